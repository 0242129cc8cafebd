//! Integers that a program computes from some of its inputs, above all the selectors of conditionals.
//!
//! The counter of a train step decides what the step does. If the counter is known, so is what follows from it by
//! integer arithmetic, through fusions, calls, branches, copies and the tuples that loops carry. The analysis looks for
//! scalars, and for arrays whose elements are all equal; anything that depends on other inputs is unknown. It evaluates
//! only what it is asked for.

use rustc_hash::FxHashMap;

use super::partitioning::Border;
use super::trip_count::{range, scalar};
use super::walk::{Via, Walk};
use crate::proto::{HloInstructionProto, LiteralProto, PrimitiveType, ShapeProto};

/// An input of the entry computation whose value is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownInput {
    /// Number of the parameter.
    pub parameter: i64,
    /// Where in it, if it is a tuple.
    pub element: Vec<i64>,
    /// Its value, of all elements.
    pub value: i64,
}

/// Deeper chains of computations than any step counter goes through.
const DEPTH_LIMIT: usize = 400;
/// The number of instructions examined before the analysis gives up.
const BUDGET: usize = 1 << 22;

/// In place of the number of an iteration: any of them.
pub(super) const ANY_ITERATION: u64 = u64::MAX;

/// An instruction in a place, an element of its tuple, and the iteration of each loop around the place, outermost
/// first.
type Key = (usize, i64, Vec<i64>, Vec<u64>);

/// What is known of the numbers of a module.
pub(super) struct Values<'w, 'a> {
    walk: &'w Walk<'a>,
    inputs: &'w [KnownInput],
    known: FxHashMap<Key, Option<i128>>,
    depth: usize,
    left: usize,
}

impl<'w, 'a> Values<'w, 'a> {
    pub(super) fn new(walk: &'w Walk<'a>, inputs: &'w [KnownInput]) -> Values<'w, 'a> {
        Values { walk, inputs, known: FxHashMap::default(), depth: 0, left: BUDGET }
    }

    /// The branch that a conditional in a place takes, in an iteration of each loop around the place.
    pub(super) fn branch(
        &mut self,
        place: usize,
        conditional: &HloInstructionProto,
        iterations: &[u64],
    ) -> Option<usize> {
        let selector = self.operand_shape(place, conditional, 0)?.element_type;
        let value = self.operand(place, conditional, 0, &[], iterations)?;
        let last = conditional.called_computation_ids.len().checked_sub(1)?;
        if selector == i32::from(PrimitiveType::Pred) {
            return Some(usize::from(value == 0));
        }
        // What is out of range takes the last branch.
        Some(usize::try_from(value).map_or(last, |branch| branch.min(last)))
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
        element: &[i64],
        iterations: &[u64],
    ) -> Option<i128> {
        let id = *reader.operand_ids.get(position)?;
        self.value(place, id, element, iterations)
    }

    /// The number that an instruction makes.
    fn value(&mut self, place: usize, id: i64, element: &[i64], iterations: &[u64]) -> Option<i128> {
        let key = (place, id, element.to_vec(), iterations.to_vec());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        self.left = self.left.checked_sub(1)?;
        if self.depth >= DEPTH_LIMIT {
            return None;
        }
        self.depth += 1;
        let walk = self.walk;
        let computation = walk.computation(walk.places().get(place)?);
        let found = computation.instruction(id).and_then(|it| self.compute(place, it, element, iterations));
        self.depth -= 1;
        self.known.insert(key, found);
        found
    }

    fn compute(
        &mut self,
        place: usize,
        it: &'a HloInstructionProto,
        element: &[i64],
        iterations: &[u64],
    ) -> Option<i128> {
        match it.opcode.as_str() {
            "parameter" => return self.parameter(place, it, element, iterations),
            "get-tuple-element" => {
                let element: Vec<i64> = std::iter::once(it.tuple_index).chain(element.iter().copied()).collect();
                return self.operand(place, it, 0, &element, iterations);
            }
            "tuple" => {
                let (&first, rest) = element.split_first()?;
                return self.operand(place, it, usize::try_from(first).ok()?, rest, iterations);
            }
            "fusion" | "call" => {
                let (callee, root) = self.callee(place, it, 0)?;
                return self.value(callee, root, element, iterations);
            }
            "conditional" => {
                let taken = self.branch(place, it, iterations)?;
                let (callee, root) = self.callee(place, it, taken)?;
                return self.value(callee, root, element, iterations);
            }
            "while" => return self.after_loop(place, it, element, iterations),
            // Of several values, each has its element.
            "custom-call" if Border::of(it).is_some() && it.operand_ids.len() > 1 => {
                let (&first, rest) = element.split_first()?;
                return self.operand(place, it, usize::try_from(first).ok()?, rest, iterations);
            }
            "opt-barrier" | "copy-done" | "copy" | "custom-call" => {
                return if passes_on(it) { self.operand(place, it, 0, element, iterations) } else { None };
            }
            // The copy, and what it is made of.
            "copy-start" if element.len() == 1 && element[0] < 2 => return self.operand(place, it, 0, &[], iterations),
            _ => {}
        }
        // What follows makes arrays.
        if !element.is_empty() {
            return None;
        }
        let mut operand = |position| self.operand(place, it, position, &[], iterations);
        let value = match it.opcode.as_str() {
            "constant" => {
                let literal = it.literal.as_ref()?;
                scalar(literal).or_else(|| truth(literal))?
            }
            "broadcast" | "reshape" | "transpose" | "slice" | "dynamic-slice" | "reverse" | "convert" => operand(0)?,
            "bitcast" => {
                // It may make other numbers of the same bytes.
                let value = operand(0)?;
                let from = self.operand_shape(place, it, 0)?.element_type;
                (from == it.shape.as_ref()?.element_type).then_some(value)?
            }
            "select" => match operand(0) {
                Some(0) => operand(2)?,
                Some(_) => operand(1)?,
                None => operand(1).filter(|&value| operand(2) == Some(value))?,
            },
            "clamp" => operand(1)?.max(operand(0)?).min(operand(2)?),
            "compare" => compared(&it.comparison_direction, operand(0)?, operand(1)?)?,
            "not" if is_truth(it) => i128::from(operand(0)? == 0),
            "not" => !operand(0)?,
            "negate" => operand(0)?.checked_neg()?,
            "abs" => operand(0)?.checked_abs()?,
            "sign" => operand(0)?.signum(),
            // Either decides alone.
            "and" if is_truth(it) => match (operand(0), operand(1)) {
                (Some(0), _) | (_, Some(0)) => 0,
                (a, b) => a? & b?,
            },
            "or" if is_truth(it) => match (operand(0), operand(1)) {
                (Some(1), _) | (_, Some(1)) => 1,
                (a, b) => a? | b?,
            },
            opcode => combined(opcode, operand(0)?, operand(1)?)?,
        };
        wrapped(value, it.shape.as_ref()?)
    }

    /// The place of a computation that an instruction calls, and the id of what it returns.
    fn callee(&self, place: usize, caller: &HloInstructionProto, number: usize) -> Option<(usize, i64)> {
        let position = self.walk.computation(&self.walk.places()[place]).position(caller.id)?;
        let callee = self.walk.callees_at(place, position).nth(number)?;
        Some((callee, self.walk.places()[callee].computation.root_id))
    }

    fn parameter(
        &mut self,
        place: usize,
        it: &HloInstructionProto,
        element: &[i64],
        iterations: &[u64],
    ) -> Option<i128> {
        let number = usize::try_from(it.parameter_number).ok()?;
        let Some(caller) = self.walk.places()[place].caller else {
            let is = |input: &&KnownInput| input.parameter == it.parameter_number && input.element == element;
            return self.inputs.iter().find(is).map(|input| i128::from(input.value));
        };
        match caller.via {
            Via::Call | Via::Fusion | Via::Async => {
                self.operand(caller.place, caller.instruction, number, element, iterations)
            }
            Via::Branch(branch) => self.operand(caller.place, caller.instruction, branch + 1, element, iterations),
            Via::LoopBody if caller.instruction.opcode == "while" => {
                let (&iteration, around) = iterations.split_last()?;
                self.carried(place, caller.place, caller.instruction, element, around, iteration)
            }
            Via::LoopBody | Via::LoopCondition | Via::CustomCall => None,
        }
    }

    /// What a loop carries into an iteration of its body.
    fn carried(
        &mut self,
        body: usize,
        place: usize,
        it: &HloInstructionProto,
        element: &[i64],
        around: &[u64],
        iteration: u64,
    ) -> Option<i128> {
        if iteration == 0 || self.is_invariant(body, element) {
            return self.operand(place, it, 0, element, around);
        }
        let before = if iteration == ANY_ITERATION { None } else { iteration.checked_sub(1) }?;
        let iterations: Vec<u64> = around.iter().copied().chain([before]).collect();
        self.value(body, self.walk.places()[body].computation.root_id, element, &iterations)
    }

    /// Whether the body of a loop passes on an element of what it is given.
    fn is_invariant(&self, body: usize, element: &[i64]) -> bool {
        let computation = self.walk.computation(&self.walk.places()[body]);
        let (mut next, mut path) = (computation.root(), element.to_vec());
        // Longer ways than any compiler makes are not followed.
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
                "copy" | "opt-barrier" => {}
                _ => return false,
            }
            next = computation.operand(it, 0);
        }
        false
    }

    /// What a loop has carried after its last iteration.
    fn after_loop(
        &mut self,
        place: usize,
        it: &HloInstructionProto,
        element: &[i64],
        iterations: &[u64],
    ) -> Option<i128> {
        let (body, _) = self.callee(place, it, 0)?;
        let count = self.walk.trip_count(body)?;
        self.carried(body, place, it, element, iterations, count)
    }
}

/// Whether an instruction passes on its operand: a barrier, a copy, or the border of a manual region.
fn passes_on(it: &HloInstructionProto) -> bool {
    it.opcode != "custom-call" || Border::of(it).is_some()
}

fn is_truth(it: &HloInstructionProto) -> bool {
    it.shape.as_ref().is_some_and(|shape| shape.element_type == i32::from(PrimitiveType::Pred))
}

/// The only truth value of a literal.
fn truth(literal: &LiteralProto) -> Option<i128> {
    if let [value] = literal.preds[..] { Some(i128::from(value)) } else { None }
}

fn compared(direction: &str, a: i128, b: i128) -> Option<i128> {
    Some(i128::from(match direction {
        "EQ" => a == b,
        "NE" => a != b,
        "LT" => a < b,
        "LE" => a <= b,
        "GT" => a > b,
        "GE" => a >= b,
        _ => return None,
    }))
}

/// Division rounds toward zero, and a remainder has the sign of the dividend, as HLO has it.
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

/// A number as its type holds it; `None` for types that hold no whole numbers.
fn wrapped(value: i128, shape: &ShapeProto) -> Option<i128> {
    if shape.element_type == i32::from(PrimitiveType::Pred) {
        return Some(i128::from(value != 0));
    }
    let (smallest, largest) = range(shape)?;
    Some((value - smallest).rem_euclid(largest - smallest + 1) + smallest)
}
