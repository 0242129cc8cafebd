//! The values of a module: instructions whose results are the same value share one.
//!
//! Every array and every tuple that an instruction produces is a node; a result has its tuples and arrays in pre-order.
//! Instructions that only pass on their operands join nodes into values, as XLA's `HloDataflowAnalysis` does: tuple
//! elements, bitcasts, barriers, and the operands and results of a call, a branch, or an asynchronous computation. A
//! value is live from its definition to the last instruction that reads it or passes it on (`HloLiveRange`).
//!
//! Several values may have to be in one buffer (`HloAliasAnalysis`): the initial value of a loop, the values that each
//! iteration receives and returns, and the result; or the results of the branches of a conditional. Such a class is
//! live while one of its values is: between them its memory is free.

use meshloom_hlo::is_tuple;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use super::schedule::{Schedule, node_count};
use crate::host_transfers::HOST;
use crate::size::{padded_bytes, shape_bytes};
use crate::walk::{Via, Walk};
use meshloom_hlo::proto::{HloInstructionProto, ShapeProto};

/// The bytes of a pointer to a part of a tuple.
const POINTER: u64 = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// The bytes of its largest node in the device's main memory, or of one device's part.
    pub(super) bytes: u64,
    /// The memory space that it lies in, and its bytes there, if that is not the device's main memory.
    pub(super) elsewhere: Option<(i64, u64)>,
    /// The node that is one device's part, where other nodes are the whole value.
    pub(super) part: Option<u32>,
    /// The time at which it is first defined.
    pub(super) start: u32,
    /// The time at which it is last read or defined.
    pub(super) end: u32,
    /// The point that defines it first.
    pub(super) definer: u32,
    /// Whether it holds a tuple's pointers.
    pub(super) is_tuple: bool,
    pub(super) is_constant: bool,
    pub(super) is_argument: bool,
    pub(super) is_output: bool,
    /// The node of the donated argument that it lies in, as a result of the program.
    pub(super) argument: Option<u32>,
    /// Whether it is computed within its readers, and has no memory.
    pub(super) is_virtual: bool,
    /// Whether several values have to be in it.
    pub(super) is_merged: bool,
    /// Whether moves place it in the host's memory.
    pub(super) is_on_host: bool,
}

/// Times with both ends included, by start; none overlap.
pub(super) type Ranges = BTreeMap<u32, u32>;

/// Adds a time to ranges, and joins it with those that it overlaps.
pub(super) fn add_range(ranges: &mut Ranges, (mut start, mut end): (u32, u32)) {
    while let Some((&other, &until)) = ranges.range(..=end).next_back().filter(|&(_, &until)| until >= start) {
        ranges.remove(&other);
        (start, end) = (start.min(other), end.max(until));
    }
    ranges.insert(start, end);
}

/// Whether the ranges have no time in common.
pub(super) fn is_apart(first: &Ranges, second: &Ranges) -> bool {
    let (few, many) = if first.len() <= second.len() { (first, second) } else { (second, first) };
    few.iter().all(|(&start, &end)| many.range(..=end).next_back().is_none_or(|(_, &until)| until < start))
}

/// Returns the ranges without a time at which one of them starts.
pub(super) fn after_start(mut ranges: Ranges, time: u32) -> Ranges {
    if let Some(end) = ranges.remove(&time).filter(|&end| end > time) {
        ranges.insert(time + 1, end);
    }
    ranges
}

/// Returns the ranges without a time at which one of them ends.
pub(super) fn before_end(mut ranges: Ranges, time: u32) -> Ranges {
    if let Some((_, end)) = ranges.range_mut(..time).next_back().filter(|(_, end)| **end == time) {
        *end -= 1;
    }
    ranges
}

/// The values of a walk, in the order of its schedule.
pub(super) struct Flow<'w, 'a> {
    pub(super) walk: &'w Walk<'a>,
    pub(super) schedule: Schedule,
    /// The first node of each point, and at the end the number of nodes.
    first_node: Vec<u32>,
    shapes: Vec<&'a ShapeProto>,
    parents: Vec<u32>,
    classes: Vec<Class>,
    /// The times in which the classes of several values are live; others are live from start to end.
    ranges: HashMap<u32, Ranges>,
    /// The first nodes of the children of tuples of tuples.
    children: HashMap<u32, Rc<[u32]>>,
}

/// Whether a custom call only states how a value is cut into parts.
fn is_border(target: &str) -> bool {
    matches!(target, "Sharding" | "SPMDFullToShardShape" | "SPMDShardToFullShape")
}

/// Returns the memory space of an array that does not lie in the device's main memory. On TPUs, whose layouts have
/// tiles, there are several on the chip; on GPUs the same numbers are for parts of the main memory.
pub(super) fn other_space(shape: &ShapeProto) -> Option<i64> {
    let layout = shape.layout.as_ref()?;
    match layout.memory_space {
        0 => None,
        HOST => Some(HOST),
        space => (!layout.tiles.is_empty()).then_some(space),
    }
}

impl<'w, 'a> Flow<'w, 'a> {
    /// Returns the values of a walk, one by one: [`Flow::pass_on`] and [`Flow::carry`] join them.
    pub(super) fn of(walk: &'w Walk<'a>, schedule: Schedule) -> Flow<'w, 'a> {
        let mut flow = Flow {
            walk,
            first_node: Vec::with_capacity(schedule.point_count() + 1),
            schedule,
            shapes: Vec::new(),
            parents: Vec::new(),
            classes: Vec::new(),
            ranges: HashMap::new(),
            children: HashMap::new(),
        };
        for point in 0..flow.schedule.point_count() {
            flow.first_node.push(flow.classes.len() as u32);
            let (instruction, time) = (flow.instruction(point), flow.schedule.time(point));
            if let Some(shape) = &instruction.shape {
                flow.push_nodes(shape, point as u32, time, instruction.opcode == "constant");
            }
        }
        flow.first_node.push(flow.classes.len() as u32);
        flow.parents = (0..flow.classes.len() as u32).collect();
        flow
    }

    fn push_nodes(&mut self, shape: &'a ShapeProto, point: u32, time: u32, is_constant: bool) {
        let is_tuple = is_tuple(shape);
        let bytes = match is_tuple {
            true => POINTER * shape.tuple_shapes.len() as u64,
            false => padded_bytes(shape).or_else(|| shape_bytes(shape)).unwrap_or(0),
        };
        let elsewhere = other_space(shape).filter(|_| !is_tuple).map(|space| (space, bytes));
        self.shapes.push(shape);
        self.classes.push(Class {
            bytes: if elsewhere.is_some() { 0 } else { bytes },
            elsewhere,
            part: None,
            start: time,
            end: time,
            definer: point,
            is_tuple,
            is_constant,
            is_argument: false,
            is_output: false,
            argument: None,
            is_virtual: false,
            is_merged: false,
            is_on_host: false,
        });
        shape.tuple_shapes.iter().for_each(|part| self.push_nodes(part, point, time, is_constant));
    }

    pub(super) fn instruction(&self, point: usize) -> &'a HloInstructionProto {
        let (place, position) = self.schedule.instruction(point);
        &self.walk.places()[place].computation.instructions[position]
    }

    pub(super) fn operand(&self, point: usize, position: usize) -> Option<usize> {
        let (place, _) = self.schedule.instruction(point);
        let id = *self.instruction(point).operand_ids.get(position)?;
        let position = self.walk.computation(&self.walk.places()[place]).position(id)?;
        self.schedule.point(place, position)
    }

    pub(super) fn operands(&self, point: usize) -> impl Iterator<Item = Option<usize>> + use<'_, 'w, 'a> {
        (0..self.instruction(point).operand_ids.len()).map(move |position| self.operand(point, position))
    }

    pub(super) fn nodes(&self, point: usize) -> Range<u32> {
        self.first_node[point]..self.first_node[point + 1]
    }

    /// Returns the nodes of an element of a point's tuple; an empty range if it has no such element.
    pub(super) fn element(&mut self, point: usize, index: i64) -> Range<u32> {
        let nodes = self.nodes(point);
        let none = nodes.end..nodes.end;
        let Some(shape) = &self.instruction(point).shape else { return none };
        let Some(index) = usize::try_from(index).ok().filter(|&index| index < shape.tuple_shapes.len()) else {
            return none;
        };
        if nodes.len() == shape.tuple_shapes.len() + 1 {
            let node = nodes.start + 1 + index as u32;
            return node..node + 1;
        }
        let starts = self.children.entry(point as u32).or_insert_with(|| {
            let mut next = nodes.start + 1;
            let mut starts = vec![next];
            for part in &shape.tuple_shapes {
                next += node_count(part) as u32;
                starts.push(next);
            }
            starts.into()
        });
        starts[index]..starts[index + 1]
    }

    pub(super) fn find(&mut self, node: u32) -> u32 {
        let mut root = node;
        while self.parents[root as usize] != root {
            root = self.parents[root as usize];
        }
        let mut node = node;
        while self.parents[node as usize] != root {
            node = std::mem::replace(&mut self.parents[node as usize], root);
        }
        root
    }

    pub(super) fn class(&mut self, node: u32) -> &mut Class {
        let root = self.find(node);
        &mut self.classes[root as usize]
    }

    /// Returns the times in which a node's class is live.
    pub(super) fn ranges(&mut self, node: u32) -> Ranges {
        let root = self.find(node);
        let class = &self.classes[root as usize];
        self.ranges.get(&root).cloned().unwrap_or_else(|| Ranges::from([(class.start, class.end)]))
    }

    /// Puts different values in one buffer.
    pub(super) fn put_together(&mut self, a: u32, b: u32) {
        self.merge(a, b);
        self.class(a).is_merged = true;
    }

    /// Puts two nodes' values in one buffer, which is live while one of them is.
    pub(super) fn merge(&mut self, a: u32, b: u32) {
        if self.find(a) == self.find(b) {
            return;
        }
        let (mut ranges, others) = (self.ranges(a), self.ranges(b));
        others.into_iter().for_each(|range| add_range(&mut ranges, range));
        for node in [a, b] {
            let root = self.find(node);
            self.ranges.remove(&root);
        }
        self.join(a, b);
        let root = self.find(a);
        self.ranges.insert(root, ranges);
    }

    /// Makes two nodes one value.
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return;
        }
        // The class defined first stays, so that chains stay short enough without ranks.
        let (a, b) = if self.classes[a as usize].start <= self.classes[b as usize].start { (a, b) } else { (b, a) };
        let other = self.classes[b as usize];
        let class = &mut self.classes[a as usize];
        class.bytes = match (class.part, other.part) {
            (Some(_), None) => class.bytes,
            (None, Some(_)) => other.bytes,
            _ => class.bytes.max(other.bytes),
        };
        class.elsewhere = class.elsewhere.max(other.elsewhere);
        class.part = class.part.or(other.part);
        class.end = class.end.max(other.end);
        class.is_constant |= other.is_constant;
        class.is_argument |= other.is_argument;
        class.is_output |= other.is_output;
        class.argument = class.argument.or(other.argument);
        class.is_virtual &= other.is_virtual;
        class.is_merged |= other.is_merged;
        self.parents[b as usize] = a;
    }

    /// Joins ranges of nodes one by one, as far as both go.
    fn join_all(&mut self, a: Range<u32>, b: Range<u32>) {
        a.zip(b).for_each(|(a, b)| self.join(a, b));
    }

    /// Joins values that are passed on, except for loops and the results of conditionals, and notes when each value is
    /// read.
    pub(super) fn pass_on(&mut self, reshapes_pass: bool) {
        for time in 0..self.schedule.point_count() {
            let point = self.schedule.point_at(time);
            self.pass_on_at(point, time as u32, reshapes_pass);
        }
        for place in 0..self.walk.places().len() {
            self.pass_in_and_out(place);
        }
    }

    fn pass_on_at(&mut self, point: usize, time: u32, reshapes_pass: bool) {
        let instruction = self.instruction(point);
        let results = self.nodes(point);
        let first = self.operand(point, 0);
        match (instruction.opcode.as_str(), first) {
            ("get-tuple-element", Some(tuple)) => {
                let element = self.element(tuple, instruction.tuple_index);
                self.read(tuple, time, 1);
                self.read_nodes(element.clone(), time);
                self.join_all(results, element);
                return;
            }
            ("tuple", _) => {
                for index in 0..instruction.operand_ids.len() {
                    if let Some(operand) = self.operand(point, index) {
                        let (element, nodes) = (self.element(point, index as i64), self.nodes(operand));
                        self.join_all(element, nodes);
                    }
                }
            }
            ("bitcast" | "opt-barrier" | "add-dependency" | "domain" | "async-update", Some(operand)) => {
                let nodes = self.nodes(operand);
                self.join_all(results, nodes);
            }
            ("custom-call", Some(operand)) if is_border(&instruction.custom_call_target) => {
                // The result of the first is one device's part, and so is the operand of the second.
                let nodes = self.nodes(operand);
                let parts = match instruction.custom_call_target.as_str() {
                    "SPMDFullToShardShape" => results.clone(),
                    "SPMDShardToFullShape" => nodes.clone(),
                    _ => 0..0,
                };
                parts.for_each(|node| self.class(node).part = Some(node));
                self.join_all(results, nodes);
            }
            ("reshape", Some(operand)) if reshapes_pass => {
                let nodes = self.nodes(operand);
                self.join_all(results, nodes);
            }
            // The tuple has all of the operands, then the result.
            ("async-start", _) => {
                let given = self.element(point, 0);
                let mut next = given.start + 1;
                for operand in 0..instruction.operand_ids.len() {
                    let Some(operand) = self.operand(point, operand) else { continue };
                    let nodes = self.nodes(operand);
                    let count = nodes.len() as u32;
                    self.join_all(next..given.end.min(next + count), nodes);
                    next = given.end.min(next + count);
                }
            }
            // The tuple has the operands, then the results.
            ("all-gather-start" | "collective-permute-start" | "copy-start" | "send" | "recv", Some(operand)) => {
                let given = self.element(point, if instruction.opcode == "copy-start" { 1 } else { 0 });
                let nodes = self.nodes(operand);
                if given.len() == nodes.len() && instruction.opcode != "recv" {
                    self.join_all(given, nodes);
                }
            }
            ("async-done" | "all-gather-done" | "collective-permute-done", Some(start)) => {
                let result = self.element(start, 1);
                self.join_all(results, result);
            }
            ("copy-done" | "recv-done", Some(start)) => {
                let result = self.element(start, 0);
                self.join_all(results, result);
            }
            ("all-reduce-done", Some(start)) => {
                let nodes = self.nodes(start);
                self.join_all(results, nodes);
            }
            // Its carry is read when an iteration receives it.
            ("while", _) => return,
            _ => {}
        }
        let operands: Vec<usize> = self.operands(point).flatten().collect();
        operands.into_iter().for_each(|operand| self.read(operand, time, usize::MAX));
    }

    /// Notes that the first nodes of a point are read.
    fn read(&mut self, point: usize, time: u32, count: usize) {
        let nodes = self.nodes(point);
        let end = nodes.end.min(nodes.start.saturating_add(count as u32));
        self.read_nodes(nodes.start..end, time);
    }

    fn read_nodes(&mut self, nodes: Range<u32>, time: u32) {
        nodes.for_each(|node| {
            let class = self.class(node);
            class.end = class.end.max(time);
        });
    }

    /// Joins a called computation's parameters and root with the caller's operands and results. For loops and the
    /// results of conditionals, see [`Flow::settle`].
    fn pass_in_and_out(&mut self, place: usize) {
        let Some(caller) = self.walk.places()[place].caller else { return };
        let Some((call_point, _)) = self.call_of(place) else { return };
        let first_operand = match caller.via {
            Via::Call | Via::Async => 0,
            Via::Branch(branch) => branch + 1,
            _ => return,
        };
        for (number, parameter) in self.parameters(place) {
            let Some(operand) = usize::try_from(number).ok().and_then(|number| {
                // A branch has one parameter, which is its own operand.
                if matches!(caller.via, Via::Branch(_)) && number > 0 {
                    return None;
                }
                self.operand(call_point, first_operand + number)
            }) else {
                continue;
            };
            let (given, taken) = (self.nodes(operand), self.nodes(parameter));
            self.join_all(taken, given);
        }
        let results = match caller.via {
            Via::Branch(_) => return,
            Via::Async => self.element(call_point, 1),
            _ => self.nodes(call_point),
        };
        if let Some(root) = self.root(place) {
            let nodes = self.nodes(root);
            self.join_all(results, nodes);
        }
    }

    /// The point at which a place is called, if both are scheduled, and its time.
    pub(super) fn call_of(&self, place: usize) -> Option<(usize, u32)> {
        let caller = self.walk.places()[place].caller?;
        let around = &self.walk.places()[caller.place];
        let position = self.walk.computation(around).position(caller.instruction.id)?;
        self.schedule.point(place, 0)?;
        let point = self.schedule.point(caller.place, position)?;
        Some((point, self.schedule.time(point)))
    }

    pub(super) fn parameters(&self, place: usize) -> Vec<(i64, usize)> {
        let instructions = self.walk.places()[place].computation.instructions.iter().enumerate();
        let parameters = instructions.filter(|(_, instruction)| instruction.opcode == "parameter");
        let points = parameters.filter_map(|(position, parameter)| {
            Some((parameter.parameter_number, self.schedule.point(place, position)?))
        });
        points.collect()
    }

    pub(super) fn root(&self, place: usize) -> Option<usize> {
        let found = &self.walk.places()[place];
        self.schedule.point(place, self.walk.computation(found).position(found.computation.root_id)?)
    }

    /// Settles the results of conditionals and the carries of loops. They are one value, if every branch or every
    /// iteration passes on the same. Otherwise they are values in one buffer, which are returned in pairs.
    ///
    /// If the initial value of a carry must survive (an argument that is not donated, a constant, a value read after
    /// the loop, the initial value of another carry of the loop), and an iteration changes it, the loop starts with a
    /// copy, which a compiled module already contains.
    pub(super) fn settle(&mut self, is_donated: impl Fn(u32) -> bool) -> Vec<(u32, u32)> {
        let mut callers: BTreeMap<u32, Vec<(Via, usize)>> = BTreeMap::new();
        for (place, found) in self.walk.places().iter().enumerate() {
            let Some(caller) = found.caller else { continue };
            if let (Via::LoopBody | Via::LoopCondition | Via::Branch(_), Some((_, time))) =
                (caller.via, self.call_of(place))
            {
                callers.entry(time).or_default().push((caller.via, place));
            }
        }
        // Inner loops come first: an outer loop may pass on the value that an inner one passes on.
        let mut merged = Vec::new();
        for (time, callees) in callers {
            let call = self.schedule.point_at(time as usize);
            if callees.iter().any(|&(via, _)| matches!(via, Via::Branch(_))) {
                let places: Vec<usize> = callees.iter().map(|&(_, place)| place).collect();
                self.settle_branches(call, &places, &mut merged);
            } else if let Some(&(_, body)) = callees.iter().find(|(via, _)| *via == Via::LoopBody) {
                let condition = callees.iter().find(|(via, _)| *via == Via::LoopCondition).map(|&(_, place)| place);
                self.settle_loop(call, body, condition, &is_donated, &mut merged);
            }
        }
        merged
    }

    fn settle_branches(&mut self, call: usize, branches: &[usize], merged: &mut Vec<(u32, u32)>) {
        let mut given = Vec::with_capacity(branches.len());
        for &branch in branches {
            let Some(root) = self.root(branch) else { continue };
            let nodes = self.nodes(root);
            self.read_nodes(nodes.clone(), self.end_of(branch));
            given.push(nodes);
        }
        for (offset, result) in self.nodes(call).enumerate() {
            let found: Vec<u32> = given
                .iter()
                .map(|nodes| nodes.start + offset as u32)
                .zip(&given)
                .filter_map(|(node, nodes)| nodes.contains(&node).then_some(node))
                .collect();
            let Some(&first) = found.first() else { continue };
            let value = self.find(first);
            if found.iter().all(|&node| self.find(node) == value) {
                self.join(result, first);
            } else {
                merged.extend(found.into_iter().map(|node| (result, node)));
            }
        }
    }

    fn settle_loop(
        &mut self,
        call: usize,
        body: usize,
        condition: Option<usize>,
        is_donated: impl Fn(u32) -> bool,
        merged: &mut Vec<(u32, u32)>,
    ) {
        let parameter = |flow: &Self, place| flow.parameters(place).first().map(|&(_, point)| flow.nodes(point));
        let (Some(given), Some(root)) = (parameter(self, body), self.root(body)) else { return };
        let received = self.class(given.start).start;
        let init = self.operand(call, 0).map(|init| self.nodes(init));
        let (results, next) = (self.nodes(call), self.nodes(root));
        let asked = condition.and_then(|condition| parameter(self, condition));
        let end = self.end_of(body);
        self.read_nodes(next.clone(), end);
        // Initial values in which a carry already starts.
        let mut taken = HashSet::new();
        for (offset, node) in given.enumerate() {
            let of = |nodes: &Range<u32>| Some(nodes.start + offset as u32).filter(|node| nodes.contains(node));
            let (init, next) = (init.as_ref().and_then(of), of(&next));
            let others = [of(&results), asked.as_ref().and_then(of)];
            let is_invariant = next.is_some_and(|next| self.find(next) == self.find(node));
            if is_invariant {
                init.into_iter().chain(others.into_iter().flatten()).for_each(|other| self.join(node, other));
                continue;
            }
            if let Some(init) = init {
                self.read_nodes(init..init + 1, received);
                let first = *self.class(init);
                let is_fixed = first.is_constant || first.is_argument && !is_donated(self.find(init));
                if !is_fixed && first.end <= self.schedule.time(call) && taken.insert(self.find(init)) {
                    merged.push((node, init));
                }
            }
            merged.extend(others.into_iter().chain([next]).flatten().map(|other| (node, other)));
        }
    }

    /// Returns the time at which a place has run: that of the point after its last instruction.
    fn end_of(&self, place: usize) -> u32 {
        let count = self.walk.places()[place].computation.instructions.len();
        let times = (0..count).filter_map(|position| Some(self.schedule.time(self.schedule.point(place, position)?)));
        times.max().map_or(0, |last| last + 1)
    }

    /// Returns the shape of the part of a node that each device has.
    pub(super) fn part_shape(&mut self, node: u32) -> Option<&'a ShapeProto> {
        let node = self.class(node).part.unwrap_or(node);
        self.shapes.get(node as usize).copied()
    }

    /// Returns the shape of the node that first defines a class.
    pub(super) fn shape(&mut self, node: u32) -> Option<&'a ShapeProto> {
        let node = self.find(node);
        self.shapes.get(node as usize).copied()
    }

    /// Returns every class, with its first node.
    pub(super) fn classes(&self) -> impl Iterator<Item = (u32, Class)> {
        let roots = (0..).zip(&self.parents).filter(|(node, parent)| node == *parent);
        roots.map(|(node, _)| (node, self.classes[node as usize]))
    }
}
