//! Integers that a program computes from some of its inputs, above all the selectors of conditionals.
//!
//! The counter of a train step decides what the step does, and the place of a device in a pipeline decides what the
//! device does. Numbers that follow from them by integer arithmetic are known too, through fusions, calls, branches,
//! copies, tables and the tuples that loops carry. Numbers that depend on other inputs are unknown. The analysis
//! evaluates only the numbers it is asked for, element by element.

use rustc_hash::FxHashMap;

use super::devices::Devices;
use super::elements::{self, Element, counted, number};
use super::partitioning::Border;
use super::trip_count::{direction, range};
use super::walk::{Via, Walk};
use meshloom_hlo::proto::{HloInstructionProto, PrimitiveType, ShapeProto};

/// An input of the entry computation whose value is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownInput {
    /// Number of the parameter.
    pub parameter: i64,
    /// The path of the element in it, if it is a tuple.
    pub element: Vec<i64>,
    /// The value of all its elements.
    pub value: i64,
}

/// Chains of computations are followed to this depth, which is more than any step counter needs.
const DEPTH_LIMIT: usize = 400;
/// The number of instructions examined, for all devices and each set of inputs, before the analysis gives up.
const BUDGET: usize = 1 << 21;
/// The most numbers that are kept, about 100 MiB. With more, those that were kept are computed again where they are
/// needed.
const KEPT: usize = 1 << 18;
/// The most iterations of a loop; a loop with more counts as one that does not end.
const LONGEST_LOOP: u64 = 1 << 12;

/// The number that stands for any iteration.
pub(super) const ANY_ITERATION: u64 = u64::MAX;

/// A number in the result of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cell {
    path: Vec<i64>,
    element: Element,
}

impl Cell {
    const SCALAR: Cell = Cell { path: Vec::new(), element: Element::At(0) };

    /// Returns the same part, in a tuple whose element `index` has it.
    fn within(&self, index: i64) -> Cell {
        Cell { path: std::iter::once(index).chain(self.path.iter().copied()).collect(), ..*self }
    }

    /// Returns the number of the tuple's element that has this part, and the part within that element.
    fn split(&self) -> Option<(usize, Cell)> {
        let (&first, rest) = self.path.split_first()?;
        Some((usize::try_from(first).ok()?, Cell { path: rest.to_vec(), ..*self }))
    }
}

/// An instruction in a place, a part of it, and the iteration of each loop around the place, outermost first.
type Key = (usize, i64, Cell, Vec<u64>);

/// The dependences of a number, apart from the program. A number that does not depend on the device is kept for the
/// next device, and one that does not depend on inputs for the next inputs.
#[derive(Clone, Copy, Default)]
struct Reads {
    device: bool,
    inputs: bool,
}

impl Reads {
    fn and(self, other: Reads) -> Reads {
        Reads { device: self.device || other.device, inputs: self.inputs || other.inputs }
    }
}

/// The known numbers of a module.
pub(super) struct Values<'w, 'a> {
    walk: &'w Walk<'a>,
    inputs: &'w [KnownInput],
    /// The replica and the partition, if they are known.
    device: Option<(u64, u64)>,
    known: FxHashMap<Key, (Option<i128>, Reads)>,
    /// The dependences of the number that is being computed.
    reads: Reads,
    depth: usize,
    left: usize,
    depends_on_device: bool,
}

impl<'w, 'a> Values<'w, 'a> {
    /// Returns values without inputs, with a budget for this many sets of inputs.
    pub(super) fn new(walk: &'w Walk<'a>, input_sets: usize) -> Values<'w, 'a> {
        Values {
            walk,
            inputs: &[],
            device: None,
            known: FxHashMap::default(),
            reads: Reads::default(),
            depth: 0,
            left: BUDGET.saturating_mul(input_sets),
            depends_on_device: false,
        }
    }

    /// Continues as another device, numbered through the replicas.
    pub(super) fn become_device(&mut self, device: u64, devices: Devices) {
        self.known.retain(|_, (_, reads)| !reads.device);
        self.device = device.checked_div(devices.partitions).zip(device.checked_rem(devices.partitions));
    }

    /// Returns the number of the device, counted through the replicas.
    pub(super) fn device_number(&self, devices: Devices) -> Option<u64> {
        self.device.map(|(replica, partition)| replica * devices.partitions + partition)
    }

    /// Continues with other inputs.
    pub(super) fn take_inputs(&mut self, inputs: &'w [KnownInput]) {
        if self.inputs != inputs {
            self.known.retain(|_, (_, reads)| !reads.inputs);
            self.inputs = inputs;
        }
    }

    /// Whether the number of the device has been asked for.
    pub(super) fn depends_on_device(&self) -> bool {
        self.depends_on_device
    }

    /// Returns the branch that a conditional in a place takes, in an iteration of each loop around the place.
    pub(super) fn branch(
        &mut self,
        place: usize,
        conditional: &HloInstructionProto,
        iterations: &[u64],
    ) -> Option<usize> {
        let selector = self.operand_shape(place, conditional, 0)?.element_type;
        let value = self.operand(place, conditional, 0, &Cell::SCALAR, iterations)?;
        let last = conditional.called_computation_ids.len().checked_sub(1)?;
        if selector == i32::from(PrimitiveType::Pred) {
            return Some(usize::from(value == 0));
        }
        // A selector out of range takes the last branch.
        Some(usize::try_from(value).map_or(last, |branch| branch.min(last)))
    }

    /// Returns the start of a dynamic slice in a place along a dimension, in an iteration of each loop around the
    /// place.
    pub(super) fn slice_start(
        &mut self,
        place: usize,
        slice: &HloInstructionProto,
        dim: usize,
        iterations: &[u64],
    ) -> Option<u64> {
        let from = *self.operand_shape(place, slice, 0)?.dimensions.get(dim)?;
        let last = from.checked_sub(*slice.shape.as_ref()?.dimensions.get(dim)?)?.max(0);
        let start = self.operand(place, slice, 1 + dim, &Cell::SCALAR, iterations)?;
        u64::try_from(start.clamp(0, i128::from(last))).ok()
    }

    /// Returns the iterations of a loop in a place, in an iteration of each loop around the place.
    pub(super) fn trips(&mut self, place: usize, it: &HloInstructionProto, iterations: &[u64]) -> Option<u64> {
        let (body, _) = self.callee(place, it, 0)?;
        if let Some(count) = self.walk.trip_count(body) {
            return Some(count);
        }
        if it.opcode != "while" {
            return None;
        }
        let (condition, root) = self.callee(place, it, 1)?;
        for iteration in 0..LONGEST_LOOP {
            let inside: Vec<u64> = iterations.iter().copied().chain([iteration]).collect();
            if self.value(condition, root, &Cell::SCALAR, &inside)? == 0 {
                return Some(iteration);
            }
        }
        None
    }

    fn operand_shape(&self, place: usize, reader: &HloInstructionProto, position: usize) -> Option<&'a ShapeProto> {
        let computation = self.walk.computation(self.walk.places().get(place)?);
        computation.operand(reader, position)?.shape.as_ref()
    }

    fn operand(
        &mut self,
        place: usize,
        reader: &HloInstructionProto,
        position: usize,
        part: &Cell,
        iterations: &[u64],
    ) -> Option<i128> {
        let id = *reader.operand_ids.get(position)?;
        self.value(place, id, part, iterations)
    }

    /// Returns a number that an instruction makes.
    fn value(&mut self, place: usize, id: i64, part: &Cell, iterations: &[u64]) -> Option<i128> {
        let walk = self.walk;
        let it = walk.computation(walk.places().get(place)?).instruction(id)?;
        let part = match &it.shape {
            Some(shape) if part.path.is_empty() => Cell { element: part.element.of(shape), ..part.clone() },
            _ => part.clone(),
        };
        let key = (place, id, part, iterations.to_vec());
        if let Some(&(known, reads)) = self.known.get(&key) {
            self.reads = self.reads.and(reads);
            return known;
        }
        self.left = self.left.checked_sub(1)?;
        if self.depth >= DEPTH_LIMIT {
            return None;
        }
        self.depth += 1;
        let around = std::mem::take(&mut self.reads);
        let found = self.compute(place, it, &key.2, iterations);
        self.depth -= 1;
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        self.known.insert(key, (found, self.reads));
        self.reads = self.reads.and(around);
        found
    }

    fn compute(&mut self, place: usize, it: &'a HloInstructionProto, part: &Cell, iterations: &[u64]) -> Option<i128> {
        match it.opcode.as_str() {
            "parameter" => return self.parameter(place, it, part, iterations),
            "get-tuple-element" => return self.operand(place, it, 0, &part.within(it.tuple_index), iterations),
            "tuple" => {
                let (first, rest) = part.split()?;
                return self.operand(place, it, first, &rest, iterations);
            }
            "fusion" | "call" => {
                let (callee, root) = self.callee(place, it, 0)?;
                return self.value(callee, root, part, iterations);
            }
            "conditional" => {
                let taken = self.branch(place, it, iterations)?;
                let (callee, root) = self.callee(place, it, taken)?;
                return self.value(callee, root, part, iterations);
            }
            "while" => {
                let count = self.trips(place, it, iterations)?;
                return self.carried(place, it, part, iterations, count);
            }
            // A call with several operands has each as an element of its result.
            "custom-call" if Border::of(it).is_some() && it.operand_ids.len() > 1 => {
                let (first, rest) = part.split()?;
                return self.operand(place, it, first, &rest, iterations);
            }
            "custom-call" if Border::of(it).is_none() => return None,
            "opt-barrier" | "copy" | "custom-call" => return self.operand(place, it, 0, part, iterations),
            "copy-done" => return self.operand(place, it, 0, &part.within(0), iterations),
            // The tuple has the copy and its source.
            "copy-start" => {
                let (0 | 1, rest) = part.split()? else { return None };
                return self.operand(place, it, 0, &rest, iterations);
            }
            _ => {}
        }
        // The other opcodes make arrays.
        if !part.path.is_empty() {
            return None;
        }
        self.element(place, it, part.element, iterations)
    }

    fn element(
        &mut self,
        place: usize,
        it: &'a HloInstructionProto,
        element: Element,
        iterations: &[u64],
    ) -> Option<i128> {
        let array = |element| Cell { path: Vec::new(), element };
        if elements::moves(&it.opcode) {
            let shapes: Vec<_> =
                (0..it.operand_ids.len()).map(|number| self.operand_shape(place, it, number)).collect();
            let mut offset = |number| self.operand(place, it, number, &Cell::SCALAR, iterations);
            let source = match element {
                Element::At(at) => elements::source(it, &shapes, &mut offset, at),
                Element::Any => None,
            };
            let (number, element) = match source {
                Some((number, at)) => (number, Element::At(at)),
                // Wherever the element is, all elements may be equal.
                None if elements::of_one_operand(&it.opcode) => (0, Element::Any),
                None => return None,
            };
            let value = self.operand(place, it, number, &array(element), iterations)?;
            // A bitcast may make other numbers of the same bytes.
            return (shapes.get(number)?.as_ref()?.element_type == it.shape.as_ref()?.element_type).then_some(value);
        }
        let reduction = if it.opcode == "reduce" { self.reduction_of_one(place, it) } else { None };
        let mut operand = |position| self.operand(place, it, position, &array(element), iterations);
        let value = match it.opcode.as_str() {
            "constant" => number(it.literal.as_ref()?, element)?,
            "iota" => counted(it, element)?,
            "partition-id" | "replica-id" => {
                self.depends_on_device = true;
                self.reads.device = true;
                let (replica, partition) = self.device?;
                i128::from(if it.opcode == "replica-id" { replica } else { partition })
            }
            "convert" => operand(0)?,
            "select" => match operand(0) {
                Some(0) => operand(2)?,
                Some(_) => operand(1)?,
                None => operand(1).filter(|&value| operand(2) == Some(value))?,
            },
            "clamp" => operand(1)?.max(operand(0)?).min(operand(2)?),
            "compare" => i128::from(direction(it)?[(operand(0)?.cmp(&operand(1)?) as i8 + 1) as usize]),
            "not" if is_truth(it) => i128::from(operand(0)? == 0),
            "not" => !operand(0)?,
            "negate" => operand(0)?.checked_neg()?,
            "abs" => operand(0)?.checked_abs()?,
            "sign" => operand(0)?.signum(),
            // Either operand may decide alone.
            "and" if is_truth(it) => match (operand(0), operand(1)) {
                (Some(0), _) | (_, Some(0)) => 0,
                (a, b) => a? & b?,
            },
            "or" if is_truth(it) => match (operand(0), operand(1)) {
                (Some(1), _) | (_, Some(1)) => 1,
                (a, b) => a? | b?,
            },
            "reduce" => combined(reduction?, operand(0)?, operand(1)?)?,
            opcode => combined(opcode, operand(0)?, operand(1)?)?,
        };
        wrapped(value, it.shape.as_ref()?)
    }

    /// Returns the op of a reduction over dimensions of size 1, which combines each element with the initial value;
    /// libtpu writes a reshape so.
    fn reduction_of_one(&self, place: usize, it: &HloInstructionProto) -> Option<&'a str> {
        let from = &self.operand_shape(place, it, 0)?.dimensions;
        let is_one = |&dim: &i64| usize::try_from(dim).ok().and_then(|dim| from.get(dim)) == Some(&1);
        let combine = self.walk.module().callee(it, 0)?;
        let root = combine.root()?;
        let [a, b] = [combine.operand(root, 0)?, combine.operand(root, 1)?];
        let of_both = a.opcode == "parameter" && b.opcode == "parameter" && a.id != b.id;
        let commutes = matches!(&*root.opcode, "add" | "multiply" | "minimum" | "maximum" | "and" | "or" | "xor");
        let of_one = it.operand_ids.len() == 2 && it.dimensions.iter().all(is_one);
        (of_one && of_both && commutes).then_some(&root.opcode)
    }

    /// Returns the place of a computation that an instruction calls, and the id of its result.
    fn callee(&self, place: usize, caller: &HloInstructionProto, number: usize) -> Option<(usize, i64)> {
        let position = self.walk.computation(&self.walk.places()[place]).position(caller.id)?;
        let callee = self.walk.callees_at(place, position).nth(number)?;
        Some((callee, self.walk.places()[callee].computation.root_id))
    }

    fn parameter(&mut self, place: usize, it: &HloInstructionProto, part: &Cell, iterations: &[u64]) -> Option<i128> {
        let number = usize::try_from(it.parameter_number).ok()?;
        let Some(caller) = self.walk.places()[place].caller else {
            self.reads.inputs = true;
            let is = |input: &&KnownInput| input.parameter == it.parameter_number && input.element == part.path;
            return self.inputs.iter().find(is).map(|input| i128::from(input.value));
        };
        match caller.via {
            Via::Call | Via::Fusion | Via::Async => {
                self.operand(caller.place, caller.instruction, number, part, iterations)
            }
            Via::Branch(branch) => self.operand(caller.place, caller.instruction, branch + 1, part, iterations),
            Via::LoopBody | Via::LoopCondition if caller.instruction.opcode == "while" => {
                let (&iteration, around) = iterations.split_last()?;
                self.carried(caller.place, caller.instruction, part, around, iteration)
            }
            Via::LoopBody | Via::LoopCondition | Via::CustomCall => None,
        }
    }

    /// Returns a value that a loop carries into an iteration.
    fn carried(
        &mut self,
        place: usize,
        it: &HloInstructionProto,
        part: &Cell,
        around: &[u64],
        iteration: u64,
    ) -> Option<i128> {
        let (body, root) = self.callee(place, it, 0)?;
        if iteration == 0 || self.is_invariant(body, &part.path) {
            return self.operand(place, it, 0, part, around);
        }
        let before = if iteration == ANY_ITERATION { None } else { iteration.checked_sub(1) }?;
        let inside = |iteration: u64| -> Vec<u64> { around.iter().copied().chain([iteration]).collect() };
        // The evaluation starts from the last known iteration, one iteration at a time, so the depth does not grow with
        // their number.
        let is_known = |&iteration: &u64| self.known.contains_key(&(body, root, part.clone(), inside(iteration)));
        let earliest = before.saturating_sub(LONGEST_LOOP);
        let known = (earliest..before).rev().find(is_known).map(|known| known + 1);
        let first = known.or_else(|| (earliest == 0).then_some(0))?;
        for iteration in first..before {
            self.value(body, root, part, &inside(iteration));
        }
        self.value(body, root, part, &inside(before))
    }

    /// Whether the body of a loop passes on an element of its argument unchanged.
    fn is_invariant(&self, body: usize, element: &[i64]) -> bool {
        let computation = self.walk.computation(&self.walk.places()[body]);
        let (mut next, mut path) = (computation.root(), element.to_vec());
        // Chains longer than any compiler makes are not followed.
        for _ in 0..DEPTH_LIMIT {
            let Some(it) = next else { return false };
            match it.opcode.as_str() {
                "parameter" => return path == element,
                "get-tuple-element" => path.insert(0, it.tuple_index),
                "tuple" if !path.is_empty() => {
                    let first = usize::try_from(path.remove(0)).ok();
                    next = first.and_then(|first| computation.operand(it, first));
                    continue;
                }
                "copy" | "copy-start" | "copy-done" | "opt-barrier" => {}
                _ => return false,
            }
            next = computation.operand(it, 0);
        }
        false
    }
}

fn is_truth(it: &HloInstructionProto) -> bool {
    it.shape.as_ref().is_some_and(|shape| shape.element_type == i32::from(PrimitiveType::Pred))
}

/// Combines two numbers as HLO does: division rounds toward zero, and a remainder has the sign of the dividend.
fn combined(opcode: &str, a: i128, b: i128) -> Option<i128> {
    match opcode {
        "add" => a.checked_add(b),
        "subtract" => a.checked_sub(b),
        "multiply" => a.checked_mul(b),
        "divide" => a.checked_div(b),
        "remainder" => a.checked_rem(b),
        "minimum" => Some(a.min(b)),
        "maximum" => Some(a.max(b)),
        "and" => Some(a & b),
        "or" => Some(a | b),
        "xor" => Some(a ^ b),
        "shift-right-arithmetic" => u32::try_from(b).ok().and_then(|by| a.checked_shr(by)),
        "shift-right-logical" if a >= 0 => u32::try_from(b).ok().and_then(|by| a.checked_shr(by)),
        "shift-left" => u32::try_from(b).ok().filter(|&by| by < 64).and_then(|by| a.checked_mul(1 << by)),
        _ => None,
    }
}

/// Returns a number as its type holds it; `None` for types without whole numbers.
fn wrapped(value: i128, shape: &ShapeProto) -> Option<i128> {
    if shape.element_type == i32::from(PrimitiveType::Pred) {
        return Some(i128::from(value != 0));
    }
    let (smallest, largest) = range(shape)?;
    Some((value - smallest).rem_euclid(largest - smallest + 1) + smallest)
}
