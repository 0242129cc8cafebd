//! How often a loop runs.
//!
//! A compiler that has found out writes it into the loop: `{"known_trip_count":{"n":"7"}}`. Where it has not, the simple
//! form of a counted loop is looked for, as XLA does (`MatchTrivialLoopTripCount`, while_loop_analysis.cc): one element of the
//! carried tuple starts at a constant, grows by a constant, and is compared with a constant by `LT`. It may be hidden in
//! fusions, calls and copies, which is how a compiled module has it. Anything else is not known.

use super::index::{Computation, Module};
use crate::hlo::proto::{HloInstructionProto, LiteralProto, PrimitiveType};

/// Deeper nests of fusions than any compiler makes.
const DEPTH_LIMIT: usize = 64;

/// The iterations of a `while` in a computation; `None` where they are not known before it runs.
pub(super) fn of(module: &Module<'_>, within: &Computation<'_>, instruction: &HloInstructionProto) -> Option<u64> {
    annotated(instruction).or_else(|| counted(module, within, instruction))
}

/// The trip count that a compiler has written into a `while`.
pub fn annotated(instruction: &HloInstructionProto) -> Option<u64> {
    // A backend may have a configuration that is no JSON.
    let config: serde_json::Value = serde_json::from_slice(&instruction.backend_config).ok()?;
    let count = config.get("known_trip_count")?.get("n")?;
    count.as_u64().or_else(|| count.as_str()?.parse().ok())
}

/// What a scalar of a loop is, at the start of an iteration.
#[derive(Clone, Debug, PartialEq)]
enum Symbol {
    /// The carried tuple.
    Carried,
    Constant(i128),
    /// An element of the carried tuple, and what has been added to it.
    Element {
        index: i64,
        plus: i128,
    },
    /// Whether such an element is less than a constant.
    Less {
        index: i64,
        plus: i128,
        bound: i128,
    },
    Unknown,
}

fn counted(module: &Module<'_>, within: &Computation<'_>, instruction: &HloInstructionProto) -> Option<u64> {
    let carried = [Symbol::Carried];
    let (body, condition) = (module.callee(instruction, 0)?, module.callee(instruction, 1)?);
    let evaluate = |computation: &Computation<'_>, root| {
        Evaluation { module, computation, parameters: &carried, depth: 0 }.symbol(root)
    };
    let Symbol::Less { index, plus, bound } = evaluate(condition, condition.root()?) else { return None };
    let next = element(body, body.root()?, index)?;
    let Symbol::Element { index: from, plus: step } = evaluate(body, next) else { return None };
    let start = element(within, within.operand(instruction, 0)?, index)?;
    let none = Evaluation { module, computation: within, parameters: &[], depth: 0 };
    let Symbol::Constant(start) = none.symbol(start) else { return None };
    if from != index || step <= 0 {
        return None;
    }
    let count = u64::try_from((bound - plus - start + step - 1).div_euclid(step).max(0)).ok()?;
    // A counter that wraps around goes on for longer.
    let last = start + step * i128::from(count);
    (last.max(last + plus) <= largest(next)?).then_some(count)
}

/// The instruction that makes an element of a tuple.
fn element<'a>(
    computation: &Computation<'a>,
    tuple: &'a HloInstructionProto,
    index: i64,
) -> Option<&'a HloInstructionProto> {
    let mut tuple = tuple;
    for _ in 0..DEPTH_LIMIT {
        match tuple.opcode.as_str() {
            "tuple" => return computation.operand(tuple, usize::try_from(index).ok()?),
            "copy" | "optimization-barrier" => tuple = computation.operand(tuple, 0)?,
            _ => return None,
        }
    }
    None
}

fn largest(instruction: &HloInstructionProto) -> Option<i128> {
    use PrimitiveType as P;
    Some(match PrimitiveType::try_from(instruction.shape.as_ref()?.element_type).ok()? {
        P::S32 => i32::MAX.into(),
        P::U32 => u32::MAX.into(),
        P::S64 => i64::MAX.into(),
        P::U64 => u64::MAX.into(),
        _ => return None,
    })
}

fn scalar(literal: &LiteralProto) -> Option<i128> {
    let only = |numbers: &[i128]| if let [number] = numbers { Some(*number) } else { None };
    let numbers: Vec<i128> = (literal.s32s.iter().copied().map(i128::from))
        .chain(literal.u32s.iter().copied().map(i128::from))
        .chain(literal.s64s.iter().copied().map(i128::from))
        .chain(literal.u64s.iter().copied().map(i128::from))
        .collect();
    only(&numbers)
}

/// A computation whose parameters are known.
struct Evaluation<'a> {
    module: &'a Module<'a>,
    computation: &'a Computation<'a>,
    parameters: &'a [Symbol],
    depth: usize,
}

impl Evaluation<'_> {
    fn symbol(&self, instruction: &HloInstructionProto) -> Symbol {
        self.try_symbol(instruction).unwrap_or(Symbol::Unknown)
    }

    fn try_symbol(&self, instruction: &HloInstructionProto) -> Option<Symbol> {
        if self.depth > DEPTH_LIMIT {
            return None;
        }
        let deeper = Evaluation { depth: self.depth + 1, ..*self };
        let operand = |position| Some(deeper.symbol(self.computation.operand(instruction, position)?));
        match instruction.opcode.as_str() {
            "constant" => scalar(instruction.literal.as_ref()?).map(Symbol::Constant),
            "parameter" => self.parameters.get(usize::try_from(instruction.parameter_number).ok()?).cloned(),
            "get-tuple-element" if operand(0)? == Symbol::Carried => {
                Some(Symbol::Element { index: instruction.tuple_index, plus: 0 })
            }
            "copy" | "bitcast" | "reshape" => operand(0),
            "add" => match (operand(0)?, operand(1)?) {
                (Symbol::Element { index, plus }, Symbol::Constant(number))
                | (Symbol::Constant(number), Symbol::Element { index, plus }) => {
                    Some(Symbol::Element { index, plus: plus.checked_add(number)? })
                }
                _ => None,
            },
            "compare" if instruction.comparison_direction == "LT" => match (operand(0)?, operand(1)?) {
                (Symbol::Element { index, plus }, Symbol::Constant(bound)) => Some(Symbol::Less { index, plus, bound }),
                _ => None,
            },
            "fusion" | "call" => {
                let callee = self.module.callee(instruction, 0)?;
                let operands = self.computation.operands(instruction);
                let parameters: Vec<Symbol> =
                    operands.map(|operand| operand.map_or(Symbol::Unknown, |operand| deeper.symbol(operand))).collect();
                let inside = Evaluation {
                    module: self.module,
                    computation: callee,
                    parameters: &parameters,
                    depth: self.depth + 1,
                };
                Some(inside.symbol(callee.root()?))
            }
            _ => None,
        }
    }
}
