//! The counter-based generator behind all random numbers.

use smallvec::SmallVec;

use super::rules::*;
use super::{InstructionId, expect_same_types};

/// `threefry(key0, key1, counter0, counter1)`: two pseudo-random `u32` words for each element, from two words of key
/// and two of counter; all of the same dimensions. An element of the result depends on the same element of the operands
/// alone.
///
/// Threefry-2x32 with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011; constants of
/// Random123).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Threefry;

crate::ir::op_text!(Threefry = "threefry" {});

/// Left rotations of the rounds, four at a time, alternating.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
/// Key injections, each after four rounds.
const INJECTIONS: usize = 5;
/// The key schedule's parity word (from Skein).
const PARITY: u32 = 0x1BD1_1BDA;

impl Threefry {
    /// The same on the host.
    pub fn evaluate(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
        let schedule = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
        let mut x = [counter[0].wrapping_add(schedule[0]), counter[1].wrapping_add(schedule[1])];
        for injection in 0..INJECTIONS {
            for rotation in ROTATIONS[injection % 2] {
                x[0] = x[0].wrapping_add(x[1]);
                x[1] = x[1].rotate_left(rotation) ^ x[0];
            }
            x[0] = x[0].wrapping_add(schedule[(injection + 1) % 3]);
            x[1] = x[1].wrapping_add(schedule[(injection + 2) % 3]).wrapping_add(injection as u32 + 1);
        }
        x
    }
}

/// The rounds of [`Threefry::evaluate`] as instructions.
fn rounds(context: &mut dyn EmitContext, ty: &TensorType, inputs: &[InstructionId]) -> Vec<InstructionId> {
    let &[key0, key1, counter0, counter1] = inputs else {
        return vec![context.fail("two words of a key and two of a counter"); 2];
    };
    let constant = |context: &mut dyn EmitContext, number: u32| {
        let scalar = context.number(DType::U32, number.into());
        context.repeat(ty, scalar)
    };
    let parity = constant(context, PARITY);
    let mixed = context.instruction("xor", ty, &[key0, key1]);
    let schedule = [key0, key1, context.instruction("xor", ty, &[mixed, parity])];
    let mut x = [counter0, counter1];
    for (word, key) in x.iter_mut().zip(schedule) {
        *word = context.instruction("add", ty, &[*word, key]);
    }
    for injection in 0..INJECTIONS {
        for rotation in ROTATIONS[injection % 2] {
            x[0] = context.instruction("add", ty, &[x[0], x[1]]);
            let (left, right) = (constant(context, rotation), constant(context, 32 - rotation));
            let high = context.instruction("shift-left", ty, &[x[1], left]);
            let low = context.instruction("shift-right-logical", ty, &[x[1], right]);
            let rotated = context.instruction("or", ty, &[high, low]);
            x[1] = context.instruction("xor", ty, &[rotated, x[0]]);
        }
        x[0] = context.instruction("add", ty, &[x[0], schedule[(injection + 1) % 3]]);
        let number = constant(context, injection as u32 + 1);
        let key = context.instruction("add", ty, &[schedule[(injection + 2) % 3], number]);
        x[1] = context.instruction("add", ty, &[x[1], key]);
    }
    x.to_vec()
}

impl Primitive for Threefry {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 4)?;
        expect_dtype(0, operands[0], DType::U32)?;
        expect_same_types(operands)?;
        Ok(SmallVec::from_elem(operands[0].clone(), 2))
    }

    // Integers have no gradient.
    rules!(facts: KERNEL, derivatives: none, factors: pointwise, batch: unchanged, partition: unchanged);

    /// A call of a function of 134 instructions that is emitted once for each shape.
    fn emit(&self, context: &mut dyn EmitContext) {
        let ty = context.result_type(0).clone();
        let dims: Vec<String> = ty.dims.iter().map(ToString::to_string).collect();
        let name = format!("threefry_{}", dims.join("x"));
        let function =
            context.computation(&name, &[&ty; 4], &[&ty; 2], &|context, inputs| rounds(context, &ty, inputs));
        let operands = context.operand_ids();
        context.begin_all("call", &operands).called_computation_ids.push(function);
        context.finish_all();
    }
}

import!(Threefry: in_parts);
