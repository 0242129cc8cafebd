//! Which instructions' results are the same values.
//!
//! Every array and every tuple that an instruction produces is a node; a result has its tuples and arrays in pre-order.
//! Instructions that only pass on their operands join nodes into classes, as XLA's `HloDataflowAnalysis` and
//! `HloAliasAnalysis` do: tuple elements, bitcasts, barriers, the carries of a loop, and the operands and results of a
//! call, a branch, or an asynchronous computation. A class is in memory from its first definition to the last
//! instruction that reads it.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::schedule::Schedule;
use crate::analysis::size::{padded_bytes, shape_bytes};
use crate::analysis::walk::{Via, Walk};
use crate::proto::{HloInstructionProto, PrimitiveType, ShapeProto};

/// What holds pointers to the parts of a tuple has so many bytes for each.
const POINTER: u64 = 8;

/// The memory space of what lies in the host's memory, in a layout.
const HOST: i64 = 5;

/// What is known of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Bytes; those of the largest node, or of one device's part.
    pub(super) bytes: u64,
    /// Whether that is one device's part of something that other nodes are all of.
    pub(super) is_part: bool,
    /// When it is first defined.
    pub(super) start: u32,
    /// When it is last read or defined.
    pub(super) end: u32,
    /// The point that defines it first.
    pub(super) definer: u32,
    /// Whether it is a tuple's pointers.
    pub(super) is_tuple: bool,
    /// Whether it is a constant.
    pub(super) is_constant: bool,
    /// Whether it is an argument of the program.
    pub(super) is_argument: bool,
    /// Whether it is a result of the program.
    pub(super) is_output: bool,
    /// The node of the donated argument in whose memory it is, as a result of the program.
    pub(super) argument: Option<u32>,
    /// Whether it is computed within what reads it, and has no memory.
    pub(super) is_virtual: bool,
}

/// The values of a walk, in the order of its schedule.
pub(super) struct Flow<'w, 'a> {
    pub(super) walk: &'w Walk<'a>,
    pub(super) schedule: Schedule,
    /// The first node of each point; then the number of nodes.
    first_node: Vec<u32>,
    parents: Vec<u32>,
    classes: Vec<Class>,
    /// Where the children of tuples of tuples start.
    children: HashMap<u32, Rc<[u32]>>,
}

/// Whether a custom call only says how a value is cut into parts.
fn is_border(target: &str) -> bool {
    matches!(target, "Sharding" | "SPMDFullToShardShape" | "SPMDShardToFullShape")
}

/// How many nodes a shape has.
pub(super) fn node_count(shape: &ShapeProto) -> u64 {
    shape.tuple_shapes.iter().fold(1, |count, part| count.saturating_add(node_count(part)))
}

impl<'w, 'a> Flow<'w, 'a> {
    /// The values of a walk, one by one: [`Flow::pass_on`] and [`Flow::carry`] join them.
    pub(super) fn of(walk: &'w Walk<'a>, schedule: Schedule) -> Flow<'w, 'a> {
        let mut flow = Flow {
            walk,
            first_node: Vec::with_capacity(schedule.point_count() + 1),
            schedule,
            parents: Vec::new(),
            classes: Vec::new(),
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

    fn push_nodes(&mut self, shape: &ShapeProto, point: u32, time: u32, is_constant: bool) {
        let is_tuple = shape.element_type == i32::from(PrimitiveType::Tuple);
        let bytes = match is_tuple {
            true => POINTER * shape.tuple_shapes.len() as u64,
            false if shape.layout.as_ref().is_some_and(|layout| layout.memory_space == HOST) => 0,
            false => padded_bytes(shape).or_else(|| shape_bytes(shape)).unwrap_or(0),
        };
        self.classes.push(Class {
            bytes,
            is_part: false,
            start: time,
            end: time,
            definer: point,
            is_tuple,
            is_constant,
            is_argument: false,
            is_output: false,
            argument: None,
            is_virtual: false,
        });
        shape.tuple_shapes.iter().for_each(|part| self.push_nodes(part, point, time, is_constant));
    }

    pub(super) fn instruction(&self, point: usize) -> &'a HloInstructionProto {
        let (place, position) = self.schedule.instruction(point);
        &self.walk.places()[place].computation.instructions[position]
    }

    /// The point of what an instruction reads in a position.
    pub(super) fn operand(&self, point: usize, position: usize) -> Option<usize> {
        let (place, _) = self.schedule.instruction(point);
        let id = *self.instruction(point).operand_ids.get(position)?;
        let position = self.walk.computation(&self.walk.places()[place]).position(id)?;
        self.schedule.point(place, position)
    }

    pub(super) fn operands(&self, point: usize) -> impl Iterator<Item = Option<usize>> + use<'_, 'w, 'a> {
        (0..self.instruction(point).operand_ids.len()).map(move |position| self.operand(point, position))
    }

    /// All nodes of a point.
    pub(super) fn nodes(&self, point: usize) -> Range<u32> {
        self.first_node[point]..self.first_node[point + 1]
    }

    /// The nodes of an element of a point's tuple; none if it has no such element.
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

    /// The class of a node.
    pub(super) fn class(&mut self, node: u32) -> &mut Class {
        let root = self.find(node);
        &mut self.classes[root as usize]
    }

    /// Joins two nodes' classes.
    pub(super) fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return;
        }
        // The class defined first stays, so that chains stay short enough without ranks.
        let (a, b) = if self.classes[a as usize].start <= self.classes[b as usize].start { (a, b) } else { (b, a) };
        let other = self.classes[b as usize];
        let class = &mut self.classes[a as usize];
        class.bytes = match (class.is_part, other.is_part) {
            (true, false) => class.bytes,
            (false, true) => other.bytes,
            _ => class.bytes.max(other.bytes),
        };
        class.is_part |= other.is_part;
        class.end = class.end.max(other.end);
        class.is_constant |= other.is_constant;
        class.is_argument |= other.is_argument;
        class.is_output |= other.is_output;
        class.argument = class.argument.or(other.argument);
        class.is_virtual &= other.is_virtual;
        self.parents[b as usize] = a;
    }

    /// Joins ranges of nodes one by one, as far as both go.
    pub(super) fn join_all(&mut self, a: Range<u32>, b: Range<u32>) {
        a.zip(b).for_each(|(a, b)| self.join(a, b));
    }

    /// Joins what is passed on, but for the carries of loops, and notes what is read when.
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
                // The result of the first is one device's part, the operand of the second.
                let nodes = self.nodes(operand);
                let parts = match instruction.custom_call_target.as_str() {
                    "SPMDFullToShardShape" => results.clone(),
                    "SPMDShardToFullShape" => nodes.clone(),
                    _ => 0..0,
                };
                parts.for_each(|node| self.class(node).is_part = true);
                self.join_all(results, nodes);
            }
            ("reshape", Some(operand)) if reshapes_pass => {
                let nodes = self.nodes(operand);
                self.join_all(results, nodes);
            }
            // All of the operands, then the result.
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
            // The operands, then the results.
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

    /// Joins a called computation's parameters and root with the caller's operands and results. For loops, see
    /// [`Flow::carry`].
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
        let results = if caller.via == Via::Async { self.element(call_point, 1) } else { self.nodes(call_point) };
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

    /// The parameters of a place, with their numbers.
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

    /// Joins the carries of loops: the operand, the result, and what each iteration receives and returns. If the
    /// initial value must survive (an argument that is not donated, a constant, a value read after the loop), and an
    /// iteration changes it, the loop starts with a copy, which a compiled module already contains.
    pub(super) fn carry(&mut self, is_donated: impl Fn(u32) -> bool) {
        let mut loops: Vec<(u32, usize)> = Vec::new();
        let mut conditions: HashMap<(usize, i64), usize> = HashMap::new();
        for (place, found) in self.walk.places().iter().enumerate() {
            let Some(caller) = found.caller.filter(|caller| caller.instruction.opcode == "while") else { continue };
            let Some((_, time)) = self.call_of(place) else { continue };
            if caller.via == Via::LoopBody {
                loops.push((time, place));
            } else if caller.via == Via::LoopCondition {
                conditions.insert((caller.place, caller.instruction.id), place);
            }
        }
        // What an inner loop passes on, an outer one may.
        loops.sort_unstable();
        for (time, body) in loops {
            let Some((call_point, _)) = self.call_of(body) else { continue };
            let caller = self.walk.places()[body].caller;
            let condition = caller.and_then(|caller| conditions.get(&(caller.place, caller.instruction.id))).copied();
            let parameter = |flow: &Self, place| flow.parameters(place).first().map(|&(_, point)| flow.nodes(point));
            let (Some(given), Some(root)) = (parameter(self, body), self.root(body)) else { continue };
            let init = self.operand(call_point, 0).map(|init| self.nodes(init));
            let (results, next) = (self.nodes(call_point), self.nodes(root));
            let asked = condition.and_then(|condition| parameter(self, condition));
            for (offset, node) in given.enumerate() {
                let of = |nodes: &Range<u32>| Some(nodes.start + offset as u32).filter(|node| nodes.contains(node));
                let is_invariant = of(&next).is_some_and(|next| self.find(next) == self.find(node));
                if let Some(init) = init.as_ref().and_then(of) {
                    let first = *self.class(init);
                    let is_fixed = first.is_constant || first.is_argument && !is_donated(self.find(init));
                    if is_invariant || !is_fixed && first.end <= time {
                        self.join(node, init);
                    }
                }
                let others = [of(&next), of(&results), asked.as_ref().and_then(of)];
                others.into_iter().flatten().for_each(|other| self.join(node, other));
            }
        }
    }

    /// The shape of the node that a class is first defined as.
    pub(super) fn shape(&mut self, node: u32) -> Option<&'a ShapeProto> {
        let node = self.find(node);
        let point = self.classes[node as usize].definer as usize;
        let mut shape = self.instruction(point).shape.as_ref()?;
        let mut before = u64::from(node - self.nodes(point).start);
        while before > 0 {
            // The node itself, then its parts.
            before -= 1;
            shape = shape.tuple_shapes.iter().find(|part| {
                let count = node_count(part);
                let is_here = before < count;
                if !is_here {
                    before -= count;
                }
                is_here
            })?;
        }
        Some(shape)
    }

    /// Every class, with its first node.
    pub(super) fn classes(&self) -> impl Iterator<Item = (u32, Class)> {
        let roots = (0..).zip(&self.parents).filter(|(node, parent)| node == *parent);
        roots.map(|(node, _)| (node, self.classes[node as usize]))
    }
}
