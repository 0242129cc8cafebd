//! Contractions by formula.

use std::panic::Location;

use smallvec::SmallVec;

use super::context::{self, CallSite, apply};
use super::{Tensor, TraceErrorKind};
use crate::ir::DType;
use crate::ops::{AxisList, DotDims, DotGeneral, Precision, Reduce, ReduceKind, Transpose};
use meshloom_hlo::message::counted;

type Letters = SmallVec<[char; 8]>;

/// The type and the precision of a contraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DotOptions {
    /// The element type of the accumulation and of the result; with `None` that of the operands.
    pub dtype: Option<DType>,
    /// The exactness with which hardware with narrower multipliers multiplies `f32` operands. Gradients are computed
    /// likewise.
    pub precision: Precision,
}

impl From<DType> for DotOptions {
    fn from(dtype: DType) -> DotOptions {
        DotOptions { dtype: Some(dtype), ..DotOptions::default() }
    }
}

impl From<Precision> for DotOptions {
    fn from(precision: Precision) -> DotOptions {
        DotOptions { precision, ..DotOptions::default() }
    }
}

/// Sums products of elements by a formula such as `"bte,ehd->bhtd"`. There is one letter for each dimension. A letter
/// missing from the result is summed over; a letter in both operands and the result runs in step. There are one or two
/// operands, and no letter occurs twice in one operand. The result has the operands' element type.
#[track_caller]
pub fn einsum(formula: &str, operands: &[Tensor]) -> Tensor {
    einsum_with(formula, operands, DotOptions::default())
}

/// As [`einsum`], with an element type for accumulation and result, or a precision, or both.
#[track_caller]
pub fn einsum_with(formula: &str, operands: &[Tensor], options: impl Into<DotOptions>) -> Tensor {
    let (options, place) = (options.into(), Location::caller());
    if let Some(&poisoned) = operands.iter().find(|operand| operand.value == context::POISON) {
        return poisoned;
    }
    let refuse =
        |problem: String| context::fail(TraceErrorKind::Einsum { formula: formula.to_owned(), problem }, place);
    let (inputs, output) = match parse(formula, operands) {
        Ok(terms) => terms,
        Err(problem) => return refuse(problem),
    };
    // A letter that only one operand has is summed first, so that the product is smaller.
    let mut terms: SmallVec<[(Letters, Tensor); 2]> = SmallVec::new();
    for (index, (letters, &operand)) in inputs.iter().zip(operands).enumerate() {
        let elsewhere = |letter: &char| {
            output.contains(letter)
                || inputs.iter().enumerate().any(|(other, input)| other != index && input.contains(letter))
        };
        let axes: AxisList = (0..letters.len()).filter(|&axis| !elsewhere(&letters[axis])).collect();
        let kept: Letters = letters.iter().copied().filter(elsewhere).collect();
        let summed =
            if axes.is_empty() { operand } else { apply(Reduce { kind: ReduceKind::Sum, axes }, &[operand], place) };
        terms.push((kept, summed));
    }
    match terms.as_slice() {
        [(letters, operand)] => {
            in_order(operand.convert(options.dtype.unwrap_or(operand.dtype())), letters, &output, place)
        }
        [(left, lhs), (right, rhs)] => {
            // Either order of the operands is right; the one whose product needs no transpose is better.
            let natural = product_letters(left, right, &output);
            if natural == output || product_letters(right, left, &output) != output {
                in_order(product((left, *lhs), (right, *rhs), &output, options, place), &natural, &output, place)
            } else {
                product((right, *rhs), (left, *lhs), &output, options, place)
            }
        }
        _ => refuse("it must have one or two operands".to_owned()),
    }
}

/// The letters of the operands and of the result, or what is wrong with a formula for these operands.
#[track_caller]
fn parse(formula: &str, operands: &[Tensor]) -> Result<(SmallVec<[Letters; 2]>, Letters), String> {
    let Some((inputs, output)) = formula.split_once("->") else { return Err("there is no `->`".to_owned()) };
    let inputs: SmallVec<[Letters; 2]> = inputs.split(',').map(|term| term.trim().chars().collect()).collect();
    let output: Letters = output.trim().chars().collect();
    if inputs.len() != operands.len() {
        return Err(format!("it has {}, but the number given is {}", counted(inputs.len(), "operand"), operands.len()));
    }
    for (index, (letters, operand)) in inputs.iter().zip(operands).enumerate() {
        if letters.len() != operand.rank() {
            let (ty, count) = (operand.ty(), letters.len());
            return Err(format!("operand {index} has type {ty}, but the formula gives it {count} dimensions"));
        }
    }
    for (index, (letters, operand)) in inputs.iter().zip(operands).enumerate().skip(1) {
        let (first, ty) = (operands[0], operand.ty());
        if ty.dtype != first.dtype() {
            return Err(format!("operand 0 has type {}, but operand {index} {ty}; convert one of them", first.ty()));
        }
        for (letter, size) in letters.iter().zip(ty.dims) {
            let place = inputs[0].iter().position(|other| other == letter);
            if let Some(other) = place.map(|place| first.dims()[place]).filter(|&other| other != size) {
                return Err(format!("`{letter}` has size {other} in operand 0, but size {size} in operand {index}"));
            }
        }
    }
    for letters in inputs.iter().chain([&output]) {
        for (index, letter) in letters.iter().enumerate() {
            if !letter.is_alphabetic() {
                return Err(format!("`{letter}` is not a letter"));
            }
            if letters[..index].contains(letter) {
                return Err(format!("`{letter}` occurs twice in one term"));
            }
        }
    }
    match output.iter().find(|letter| !inputs.iter().any(|input| input.contains(letter))) {
        Some(letter) => Err(format!("`{letter}` is in the result but in no operand")),
        None => Ok((inputs, output)),
    }
}

/// The letters of a dot's result: batch, free left, free right.
fn product_letters(left: &Letters, right: &Letters, output: &Letters) -> Letters {
    let batch = left.iter().filter(|letter| right.contains(letter) && output.contains(letter));
    let free_left = left.iter().filter(|letter| !right.contains(letter));
    let free_right = right.iter().filter(|letter| !left.contains(letter));
    batch.chain(free_left).chain(free_right).copied().collect()
}

fn product(
    (left, lhs): (&Letters, Tensor),
    (right, rhs): (&Letters, Tensor),
    output: &Letters,
    options: DotOptions,
    place: CallSite,
) -> Tensor {
    let mut dims = DotDims::default();
    for (left_axis, letter) in left.iter().enumerate() {
        if let Some(right_axis) = right.iter().position(|other| other == letter) {
            let (lhs_axes, rhs_axes) = if output.contains(letter) {
                (&mut dims.lhs_batch, &mut dims.rhs_batch)
            } else {
                (&mut dims.lhs_contract, &mut dims.rhs_contract)
            };
            lhs_axes.push(left_axis);
            rhs_axes.push(right_axis);
        }
    }
    let dtype = options.dtype.unwrap_or(lhs.dtype());
    apply(DotGeneral { dims: Box::new(dims), dtype, precision: options.precision }, &[lhs, rhs], place)
}

/// Transposes from one order of letters to another.
fn in_order(tensor: Tensor, from: &Letters, to: &Letters, place: CallSite) -> Tensor {
    if from == to {
        return tensor;
    }
    let permutation = to.iter().filter_map(|letter| from.iter().position(|other| other == letter)).collect();
    apply(Transpose { permutation }, &[tensor], place)
}
