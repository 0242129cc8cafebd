//! Evaluates ops on the host, if their value is the same on every back end.
//!
//! Constant folding uses [`evaluate`], so it declines rather than guesses. It knows the ops that move elements, integer
//! and `pred` arithmetic with XLA's rules for overflow, division by zero and shifts (see [`number`]), and the
//! floating-point operations whose result IEEE 754 fixes: sum, difference, product, quotient, square root, rounding to
//! integers, comparison, conversion to nearest. It declines transcendental functions, floating-point sums of more than
//! two numbers (back ends choose the order), and anything that involves subnormal numbers, which some back ends flush
//! to zero.

mod number;

use smallvec::SmallVec;

use crate::ir::{Dims, Literal, TensorType};
use crate::ops::{BinaryKind, Op, Reduce, ReduceKind, complement};
use number::ElementNumber;

/// The result of an op with one result on host values; `None` where back ends may differ, or the op is not known here.
pub fn evaluate(op: &Op, operands: &[&Literal]) -> Option<Literal> {
    let types: SmallVec<[&TensorType; 8]> = operands.iter().map(|literal| literal.ty()).collect();
    let results = op.infer(&types).ok()?;
    let [ty] = &results[..] else { return None };
    let operand = |index: usize| operands[index];
    match op {
        Op::Constant(op) => Some((*op.0).clone()),
        Op::Splat(op) => {
            let (bytes, width) = op.element_bytes();
            Literal::from_bytes(ty.clone(), bytes[..width].repeat(ty.element_count())).ok()
        }
        Op::Iota(op) => by_index(ty, |index| ElementNumber::Integer(index[op.axis] as i128).bytes(ty.dtype)),
        Op::BroadcastInDim(op) => pick(operand(0), ty, |index, dim| index[op.mapping[dim]]),
        Op::Reshape(_) => Literal::from_bytes(ty.clone(), operand(0).bytes()).ok(),
        Op::Transpose(op) => {
            let mut inverse = op.permutation.clone();
            op.permutation.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
            pick(operand(0), ty, |index, dim| index[inverse[dim]])
        }
        Op::Slice(op) => pick(operand(0), ty, |index, dim| op.ranges[dim].start + index[dim] * op.ranges[dim].stride),
        Op::Reverse(op) => {
            pick(
                operand(0),
                ty,
                |index, dim| {
                    if op.axes.contains(&dim) { ty.dims[dim] - 1 - index[dim] } else { index[dim] }
                },
            )
        }
        Op::DynamicSlice(op) => {
            let starts = starts(&operands[1..], &operand(0).ty().dims, &op.sizes)?;
            pick(operand(0), ty, |index, dim| starts[dim] + index[dim])
        }
        Op::DynamicUpdateSlice(_) => {
            let starts = starts(&operands[2..], &ty.dims, &operand(1).ty().dims)?;
            let mut bytes = operand(0).bytes().to_vec();
            paste(&mut bytes, ty, operand(1), |index, dim| (starts[dim] + index[dim]) as i64);
            Literal::from_bytes(ty.clone(), bytes).ok()
        }
        Op::Pad(op) => {
            let mut bytes = operand(1).bytes().repeat(ty.element_count());
            paste(&mut bytes, ty, operand(0), |index, dim| {
                op.padding[dim].low + (index[dim] * (op.padding[dim].interior + 1)) as i64
            });
            Literal::from_bytes(ty.clone(), bytes).ok()
        }
        Op::Concatenate(op) => {
            let mut bytes = vec![0; ty.byte_count()];
            let mut start = 0;
            for operand in operands {
                paste(&mut bytes, ty, operand, |index, dim| {
                    (index[dim] + if dim == op.axis { start } else { 0 }) as i64
                });
                start += operand.ty().dims[op.axis];
            }
            Literal::from_bytes(ty.clone(), bytes).ok()
        }
        Op::Select(_) => {
            let width = ty.dtype.byte_count();
            let chosen = operand(0).bytes().iter().enumerate().flat_map(|(index, &choice)| {
                let from = if choice != 0 { operand(1) } else { operand(2) };
                &from.bytes()[index * width..][..width]
            });
            Literal::from_bytes(ty.clone(), chosen.copied().collect::<Vec<u8>>()).ok()
        }
        Op::Unary(op) => elementwise(operands, ty, |x| number::unary(op.0, operand(0).ty().dtype, x[0])),
        Op::Binary(op) => elementwise(operands, ty, |x| number::binary(op.0, ty.dtype, x[0], x[1])),
        Op::Compare(op) => elementwise(operands, ty, |x| number::compare(op.0, operand(0).ty().dtype, x[0], x[1])),
        Op::Convert(op) => elementwise(operands, ty, |x| number::convert(operand(0).ty().dtype, op.0, x[0])),
        Op::BitcastConvert(_) => Literal::from_bytes(ty.clone(), operand(0).bytes()).ok(),
        Op::Reduce(op) => reduce(op, operand(0), ty),
        _ => None,
    }
}

/// Where a slice of `sizes` starts, moved back until it fits.
fn starts(indices: &[&Literal], dims: &[usize], sizes: &[usize]) -> Option<Dims> {
    let start = |((index, &dim), &size): ((&&Literal, &usize), &usize)| {
        let start = number::elements(index).next()??.integer()?;
        Some(start.clamp(0, (dim - size) as i128) as usize)
    };
    indices.iter().zip(dims).zip(sizes).map(start).collect()
}

/// Calls `f` with every index of a shape, in row-major order.
fn each_index(dims: &[usize], mut f: impl FnMut(&[usize])) {
    if dims.contains(&0) {
        return;
    }
    let mut index = Dims::from_elem(0, dims.len());
    loop {
        f(&index);
        let Some(dim) = (0..dims.len()).rev().find(|&dim| index[dim] + 1 < dims[dim]) else { return };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

fn position(dims: &[usize], coordinate: impl Fn(usize) -> usize) -> usize {
    dims.iter().enumerate().fold(0, |position, (dim, &size)| position * size + coordinate(dim))
}

/// A literal from the bytes of each element.
fn by_index(ty: &TensorType, mut f: impl FnMut(&[usize]) -> Option<[u8; 8]>) -> Option<Literal> {
    let width = ty.dtype.byte_count();
    let mut bytes = Vec::with_capacity(ty.byte_count());
    let mut complete = true;
    each_index(&ty.dims, |index| match f(index) {
        Some(element) => bytes.extend_from_slice(&element[..width]),
        None => complete = false,
    });
    if complete { Literal::from_bytes(ty.clone(), bytes).ok() } else { None }
}

/// A literal whose elements are elements of `source`, at the coordinate `from` gives for each of its dimensions.
fn pick(source: &Literal, ty: &TensorType, from: impl Fn(&[usize], usize) -> usize) -> Option<Literal> {
    let width = ty.dtype.byte_count();
    let mut bytes = Vec::with_capacity(ty.byte_count());
    each_index(&ty.dims, |index| {
        let start = position(&source.ty().dims, |dim| from(index, dim)) * width;
        bytes.extend_from_slice(&source.bytes()[start..start + width]);
    });
    Literal::from_bytes(ty.clone(), bytes).ok()
}

/// Puts the elements of `source` into `target`, at the coordinate `to` gives for each dimension; elements that fall
/// outside are left out.
fn paste(target: &mut [u8], ty: &TensorType, source: &Literal, to: impl Fn(&[usize], usize) -> i64) {
    let width = ty.dtype.byte_count();
    let mut from = 0;
    each_index(&source.ty().dims, |index| {
        let inside = (0..index.len()).all(|dim| (0..ty.dims[dim] as i64).contains(&to(index, dim)));
        if inside {
            let start = position(&ty.dims, |dim| to(index, dim) as usize) * width;
            target[start..start + width].copy_from_slice(&source.bytes()[from..from + width]);
        }
        from += width;
    });
}

fn elementwise(
    operands: &[&Literal],
    ty: &TensorType,
    f: impl Fn(&[ElementNumber]) -> Option<ElementNumber>,
) -> Option<Literal> {
    let mut elements: SmallVec<[_; 2]> = operands.iter().map(|literal| number::elements(literal)).collect();
    let mut bytes = Vec::with_capacity(ty.byte_count());
    for _ in 0..ty.element_count() {
        let numbers: Option<SmallVec<[ElementNumber; 2]>> =
            elements.iter_mut().map(|elements| elements.next().flatten()).collect();
        bytes.extend_from_slice(&f(&numbers?)?.bytes(ty.dtype)?[..ty.dtype.byte_count()]);
    }
    Literal::from_bytes(ty.clone(), bytes).ok()
}

/// Folds dimensions in row-major order. Sums and products of floating-point numbers are declined: their order is the
/// back end's.
fn reduce(op: &Reduce, operand: &Literal, ty: &TensorType) -> Option<Literal> {
    let (kind, dims) = (BinaryKind::from(op.kind), &operand.ty().dims);
    if ty.dtype.is_float() && matches!(op.kind, ReduceKind::Sum | ReduceKind::Prod) {
        return None;
    }
    let kept = complement(&op.axes, dims.len());
    let mut elements = number::elements(operand);
    let mut folded: Vec<Option<ElementNumber>> = vec![None; ty.element_count()];
    let mut complete = true;
    each_index(dims, |index| {
        let slot = &mut folded[kept.iter().fold(0, |position, &dim| position * dims[dim] + index[dim])];
        let next = elements.next().flatten();
        complete &= next.is_some();
        *slot = match (*slot, next) {
            (Some(before), Some(next)) => number::binary(kind, ty.dtype, before, next),
            (_, next) => next,
        };
        complete &= slot.is_some();
    });
    let mut folded = folded.into_iter();
    if complete { by_index(ty, |_| folded.next()??.bytes(ty.dtype)) } else { None }
}
