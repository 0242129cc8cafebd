//! The number of iterations of a loop.
//!
//! A compiler that knows the trip count writes it into the loop: `{"known_trip_count":{"n":"7"}}`. Otherwise the
//! analysis looks for a counted loop, as XLA does (`ComputeWhileLoopTripCount`, while_loop_analysis.cc): an element of
//! the carried tuple starts at a constant, grows or shrinks by a constant, and is compared with an invariant, that is,
//! a constant or a tuple element that the body passes on. All directions of comparison are understood. Any of it may be
//! hidden in fusions, calls, copies, conversions and broadcasts, as in compiled modules. Any other form is unknown; the
//! analysis does not run the loop.

use std::cell::Cell;

use meshloom_hlo::is_tuple;
use rustc_hash::FxHashMap;

use super::elements::{Element, number};
use super::index::{Computation, Module, attribute};
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, PrimitiveType, ShapeProto};

/// Frontend attribute of a loop whose number of iterations depends on data: the most iterations that it has.
pub const STATED_ITERATIONS: &str = "iterations_at_most";

/// Returns the most iterations that a loop states.
pub(super) fn stated(instruction: &HloInstructionProto) -> Option<u64> {
    attribute(instruction, STATED_ITERATIONS)?.parse().ok()
}

/// More levels of fusions than any compiler makes.
const DEPTH_LIMIT: usize = 64;

/// The number of instructions that may still be examined. Operands are examined once for each reader, which could be
/// exponentially often.
pub(super) struct Budget {
    whole_module: Cell<usize>,
    one_loop: Cell<usize>,
}

impl Budget {
    /// Returns a budget that is enough for each loop of a module, unless the module is made to be hard.
    pub(super) fn of(module: &Module<'_>) -> Budget {
        let instructions: usize =
            module.computations().iter().map(|computation| computation.instructions().len()).sum();
        Budget { whole_module: Cell::new((1 << 20) + 16 * instructions), one_loop: Cell::new(0) }
    }

    fn next_loop(&self) {
        self.one_loop.set(4096.min(self.whole_module.get()));
    }

    /// Takes one instruction off the budget; `None` if the budget is used up.
    fn spend(&self) -> Option<()> {
        self.one_loop.set(self.one_loop.get().checked_sub(1)?);
        self.whole_module.set(self.whole_module.get().checked_sub(1)?);
        Some(())
    }
}

/// Returns the iterations of a `while` in a computation; `None` if they are not known before it runs.
pub(super) fn of(
    module: &Module<'_>,
    within: &Computation<'_>,
    instruction: &HloInstructionProto,
    budget: &Budget,
) -> Option<u64> {
    annotated(instruction).or_else(|| {
        budget.next_loop();
        counted(module, within, instruction, budget)
    })
}

/// Returns the iterations of each `while` of a module that are known before it runs, by the id of its instruction.
pub fn known(module: &HloModuleProto) -> FxHashMap<i64, u64> {
    let module = Module::new(module);
    let budget = Budget::of(&module);
    let loops = module.computations().iter().flat_map(|within| {
        let instructions = within.instructions().iter().filter(|it| it.opcode == "while");
        instructions.map(move |instruction| (within, instruction))
    });
    loops.filter_map(|(within, it)| Some((it.id, of(&module, within, it, &budget)?))).collect()
}

/// Returns the trip count that a compiler has written into a `while`.
pub fn annotated(instruction: &HloInstructionProto) -> Option<u64> {
    // A backend may have a configuration that is not JSON.
    let config: serde_json::Value = serde_json::from_slice(&instruction.backend_config).ok()?;
    let count = config.get("known_trip_count")?.get("n")?;
    count.as_u64().or_else(|| count.as_str()?.parse().ok())
}

/// Returns the iterations of a `scan`: the size of the leading dimension of its inputs or, without inputs, of its
/// outputs.
pub(super) fn of_scan(within: &Computation<'_>, instruction: &HloInstructionProto) -> Option<u64> {
    let carries = usize::try_from(instruction.num_carries).ok()?;
    let inputs = instruction.operand_ids.len().checked_sub(carries)?;
    let rows = match inputs {
        0 => instruction.shape.as_ref()?.tuple_shapes.first()?,
        _ => within.operand(instruction, 0)?.shape.as_ref()?,
    };
    let along = usize::try_from(*instruction.dimensions.first()?).ok()?;
    u64::try_from(*rows.dimensions.get(along)?).ok()
}

/// A comparison of two numbers: whether it is true for one that is less, equal, greater.
pub(super) type Direction = [bool; 3];

pub(super) fn direction(comparison: &HloInstructionProto) -> Option<Direction> {
    Some(match comparison.comparison_direction.as_str() {
        "EQ" => [false, true, false],
        "NE" => [true, false, true],
        "LT" => [true, false, false],
        "LE" => [true, true, false],
        "GT" => [false, false, true],
        "GE" => [false, true, true],
        _ => return None,
    })
}

/// Counts how many of `start`, `start + step`, ... compare so to `bound` before the first that does not; `None` if all
/// do.
fn count(direction: Direction, start: i128, step: i128, bound: i128) -> Option<i128> {
    // The steps from a start to the first number that is not below a bound.
    let up_to = |start: i128, step: i128, bound: i128| match (start < bound, step > 0) {
        (false, _) => Some(0),
        (true, true) => Some((bound - start + step - 1).div_euclid(step)),
        (true, false) => None,
    };
    match direction {
        [true, is_also_equal, false] => up_to(start, step, bound + i128::from(is_also_equal)),
        [false, false, true] => up_to(-start, -step, -bound),
        [false, true, true] => up_to(-start, -step, -bound + 1),
        [_, true, _] if start != bound => Some(0),
        [_, true, _] => (step != 0).then_some(1),
        _ if start == bound => Some(0),
        _ if step == 0 || (bound - start) % step != 0 => None,
        _ => u64::try_from((bound - start) / step).ok().map(i128::from),
    }
}

/// A number of a loop, at the start of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scalar {
    Constant(i128),
    /// An element of the carried tuple, and what has been added to it.
    Element {
        index: i64,
        plus: i128,
    },
}

/// The value of an instruction of a loop, at the start of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Symbol {
    /// The carried tuple.
    Carried,
    Number(Scalar),
    Comparison {
        direction: Direction,
        left: Scalar,
        right: Scalar,
    },
    Unknown,
}

fn counted(
    module: &Module<'_>,
    within: &Computation<'_>,
    instruction: &HloInstructionProto,
    budget: &Budget,
) -> Option<u64> {
    let (body, condition) = (module.callee(instruction, 0)?, module.callee(instruction, 1)?);
    let is_tuple = is_tuple(instruction.shape.as_ref()?);
    // A value that is no tuple is its own only element.
    let carried = [if is_tuple { Symbol::Carried } else { Symbol::Number(Scalar::Element { index: 0, plus: 0 }) }];
    let inside = |computation| Evaluation { module, computation, parameters: &carried, depth: 0, budget };
    let before = Evaluation { parameters: &[], ..inside(within) };
    let part = |evaluation: Evaluation<'_>, whole, index| match is_tuple {
        true => evaluation.element(whole, index),
        false => Some(evaluation.symbol(whole)),
    };
    let start = |index| match part(before, within.operand(instruction, 0)?, index)? {
        Symbol::Number(Scalar::Constant(start)) => Some(start),
        _ => None,
    };
    // The number that an iteration adds to an element.
    let step = |index| match part(inside(body), body.root()?, index)? {
        Symbol::Number(Scalar::Element { index: from, plus }) if from == index => Some(plus),
        _ => None,
    };
    let fixed = |scalar| match scalar {
        Scalar::Constant(number) => Some(number),
        Scalar::Element { index, plus } => (step(index)? == 0).then_some(start(index)?.checked_add(plus)?),
    };

    let root = inside(condition).symbol(condition.root()?);
    let Symbol::Comparison { direction, left, right } = root else { return None };
    let (direction, index, plus, bound) = match (left, right, fixed(left), fixed(right)) {
        (Scalar::Element { index, plus }, _, _, Some(bound)) => (direction, index, plus, bound),
        (_, Scalar::Element { index, plus }, Some(bound), _) => {
            let [less, equal, greater] = direction;
            ([greater, equal, less], index, plus, bound)
        }
        _ => return None,
    };
    let (start, step) = (start(index)?, step(index)?);
    let count = count(direction, start.checked_add(plus)?, step, bound)?;
    // A counter that wraps around goes on for longer.
    let last = start.checked_add(step.checked_mul(count)?)?;
    let shape = instruction.shape.as_ref()?;
    let counter = if is_tuple { shape.tuple_shapes.get(usize::try_from(index).ok()?)? } else { shape };
    let (smallest, largest) = range(counter)?;
    let holds = |number: i128| (smallest..=largest).contains(&number);
    if [start, last, start.checked_add(plus)?, last.checked_add(plus)?].into_iter().all(holds) {
        u64::try_from(count).ok()
    } else {
        None
    }
}

/// Returns the smallest and the largest whole number of a type; `None` for other types.
pub(super) fn range(shape: &ShapeProto) -> Option<(i128, i128)> {
    use PrimitiveType as P;
    Some(match PrimitiveType::try_from(shape.element_type).ok()? {
        P::S8 => (i8::MIN.into(), i8::MAX.into()),
        P::U8 => (0, u8::MAX.into()),
        P::S16 => (i16::MIN.into(), i16::MAX.into()),
        P::U16 => (0, u16::MAX.into()),
        P::S32 => (i32::MIN.into(), i32::MAX.into()),
        P::U32 => (0, u32::MAX.into()),
        P::S64 => (i64::MIN.into(), i64::MAX.into()),
        P::U64 => (0, u64::MAX.into()),
        _ => return None,
    })
}

/// A computation whose parameters are known.
#[derive(Clone, Copy)]
struct Evaluation<'a> {
    module: &'a Module<'a>,
    computation: &'a Computation<'a>,
    parameters: &'a [Symbol],
    depth: usize,
    budget: &'a Budget,
}

impl Evaluation<'_> {
    fn symbol(&self, instruction: &HloInstructionProto) -> Symbol {
        self.try_symbol(instruction).unwrap_or(Symbol::Unknown)
    }

    fn deeper(&self) -> Option<Self> {
        self.budget.spend()?;
        (self.depth < DEPTH_LIMIT).then_some(Evaluation { depth: self.depth + 1, ..*self })
    }

    fn operand(&self, instruction: &HloInstructionProto, position: usize) -> Option<Symbol> {
        Some(self.deeper()?.symbol(self.computation.operand(instruction, position)?))
    }

    fn number(&self, instruction: &HloInstructionProto, position: usize) -> Option<Scalar> {
        if let Symbol::Number(scalar) = self.operand(instruction, position)? { Some(scalar) } else { None }
    }

    fn try_symbol(&self, instruction: &HloInstructionProto) -> Option<Symbol> {
        match instruction.opcode.as_str() {
            "constant" => Some(Symbol::Number(Scalar::Constant(number(instruction.literal.as_ref()?, Element::Any)?))),
            "parameter" => self.parameters.get(usize::try_from(instruction.parameter_number).ok()?).copied(),
            "get-tuple-element" => {
                self.deeper()?.element(self.computation.operand(instruction, 0)?, instruction.tuple_index)
            }
            "copy" | "bitcast" | "reshape" | "broadcast" | "opt-barrier" => {
                // A bitcast to another type may make other numbers of the same bytes.
                let from = self.computation.operand(instruction, 0)?.shape.as_ref()?.element_type;
                if from == instruction.shape.as_ref()?.element_type { self.operand(instruction, 0) } else { None }
            }
            "convert" => self.converted(instruction),
            "add" => Some(Symbol::Number(match (self.number(instruction, 0)?, self.number(instruction, 1)?) {
                (Scalar::Element { index, plus }, Scalar::Constant(number))
                | (Scalar::Constant(number), Scalar::Element { index, plus }) => {
                    Scalar::Element { index, plus: plus.checked_add(number)? }
                }
                _ => return None,
            })),
            "subtract" => Some(Symbol::Number(match (self.number(instruction, 0)?, self.number(instruction, 1)?) {
                (Scalar::Element { index, plus }, Scalar::Constant(number)) => {
                    Scalar::Element { index, plus: plus.checked_sub(number)? }
                }
                _ => return None,
            })),
            "compare" => Some(Symbol::Comparison {
                direction: direction(instruction)?,
                left: self.number(instruction, 0)?,
                right: self.number(instruction, 1)?,
            }),
            "not" => match self.operand(instruction, 0)? {
                Symbol::Comparison { direction, left, right } => {
                    Some(Symbol::Comparison { direction: direction.map(|holds| !holds), left, right })
                }
                _ => None,
            },
            "fusion" | "call" => self.inside(instruction, |inside, root| Some(inside.symbol(root))),
            _ => None,
        }
    }

    /// Returns a number in another type: the same number, if the new type has room for all numbers of the old one.
    fn converted(&self, instruction: &HloInstructionProto) -> Option<Symbol> {
        let (smallest, largest) = range(instruction.shape.as_ref()?)?;
        let from = range(self.computation.operand(instruction, 0)?.shape.as_ref()?)?;
        let number = self.number(instruction, 0)?;
        let fits = match number {
            Scalar::Constant(number) => smallest <= number && number <= largest,
            Scalar::Element { .. } => smallest <= from.0 && from.1 <= largest,
        };
        fits.then_some(Symbol::Number(number))
    }

    fn element(&self, tuple: &HloInstructionProto, index: i64) -> Option<Symbol> {
        let deeper = self.deeper()?;
        let operand = |position| self.computation.operand(tuple, position);
        match tuple.opcode.as_str() {
            "tuple" => Some(deeper.symbol(operand(usize::try_from(index).ok()?)?)),
            "copy" | "opt-barrier" | "bitcast" => deeper.element(operand(0)?, index),
            "parameter" if self.symbol(tuple) == Symbol::Carried => {
                Some(Symbol::Number(Scalar::Element { index, plus: 0 }))
            }
            "fusion" | "call" => self.inside(tuple, |inside, root| inside.element(root, index)),
            _ => None,
        }
    }

    /// Evaluates in the computation that an instruction calls.
    fn inside(
        &self,
        caller: &HloInstructionProto,
        evaluate: impl Fn(Evaluation<'_>, &HloInstructionProto) -> Option<Symbol>,
    ) -> Option<Symbol> {
        let deeper = self.deeper()?;
        let computation = self.module.callee(caller, 0)?;
        let operands = self.computation.operands(caller);
        let parameters: Vec<Symbol> =
            operands.map(|operand| operand.map_or(Symbol::Unknown, |operand| deeper.symbol(operand))).collect();
        evaluate(Evaluation { computation, parameters: &parameters, ..deeper }, computation.root()?)
    }
}
