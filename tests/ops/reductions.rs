//! Reductions and dots, against index loops.

use meshloom::ir::DType::{self, *};
use meshloom::ir::OpName;
use meshloom::ops::*;

use crate::elementwise::tolerance;
use crate::harness::*;

pub fn fold(kind: ReduceKind, left: f64, right: f64) -> f64 {
    match kind {
        ReduceKind::And => (left as i64 & right as i64) as f64,
        ReduceKind::Max => left.max(right),
        ReduceKind::Min => left.min(right),
        ReduceKind::Or => (left as i64 | right as i64) as f64,
        ReduceKind::Prod => left * right,
        ReduceKind::Sum => left + right,
    }
}

/// The result of folding nothing: the element that changes nothing, saturated to the type's own bounds.
pub fn identity(kind: ReduceKind, dtype: DType) -> f64 {
    let number = match kind {
        ReduceKind::Sum | ReduceKind::Or => 0.0,
        ReduceKind::Prod => 1.0,
        ReduceKind::And if dtype.is_signed_integer() => -1.0,
        // The one floating-point type without infinities.
        ReduceKind::Min if dtype == F8E4M3FN => 448.0,
        ReduceKind::Max if dtype == F8E4M3FN => -448.0,
        ReduceKind::And | ReduceKind::Min => f64::INFINITY,
        ReduceKind::Max => f64::NEG_INFINITY,
    };
    Tensor::scalar(dtype, number).values[0]
}

/// Sizes and the dimensions folded.
const REDUCED: [(&[usize], &[usize]); 6] =
    [(&[2, 3, 4], &[1]), (&[2, 3, 4], &[2, 0]), (&[5], &[0]), (&[2, 3], &[]), (&[], &[]), (&[3, 1, 2], &[0, 1, 2])];

/// The result index and the folded indices of an element.
fn kept(index: &[usize], axes: &[usize]) -> Vec<usize> {
    (0..index.len()).filter(|axis| !axes.contains(axis)).map(|axis| index[axis]).collect()
}

fn reduced(x: &Tensor, axes: &[usize], kind: ReduceKind) -> Tensor {
    let dims = kept(x.dims(), axes);
    let all = indices(x.dims());
    Tensor::from_fn(x.ty.dtype, &dims, |result| {
        let elements = all.iter().filter(|index| kept(index, axes) == *result).map(|index| x.at(index));
        elements.reduce(|left, right| fold(kind, left, right)).expect("a dimension that is not empty")
    })
}

pub fn reduce(kind: ReduceKind) -> Entry {
    let op = |axes: &[usize]| Reduce { kind, axes: axes.into() };
    let class = BinaryKind::from(kind).class();
    let first = if class.contains(F32) { F32 } else { Pred };
    let mut entry = Entry::new(op(&[]).name().replace('-', "_"))
        .accept(op(&[1]), &format!("{first}[2,3,4] -> {first}[2,4]"))
        .accept(op(&[0]), &format!("{first}[0,3] -> {first}[3]"))
        .accept(op(&[]), &format!("{first}[] -> {first}[]"))
        .reject(op(&[0]), "", "expected 1 operand, found 0")
        .reject(op(&[0]), &format!("{first}[2] {first}[]"), "expected 1 operand, found 2")
        .reject(op(&[2]), &format!("{first}[2,3]"), "axis 2 is out of range or repeated for an operand with 2 dim")
        .reject(op(&[1, 1]), &format!("{first}[2,3]"), "axis 1 is out of range or repeated")
        .reject(op(&[0]), &format!("{first}[]"), "axis 0 is out of range");
    for dtype in DType::ALL {
        if !class.contains(dtype) {
            entry = entry.reject(op(&[0]), &format!("{dtype}[2]"), "the element type of operand 0 must be");
            continue;
        }
        entry = entry.accept(op(&[0]), &format!("{dtype}[2] -> {dtype}[]"));
        for (dims, axes) in REDUCED {
            let mut x = distinct(dtype, dims);
            if kind == ReduceKind::And && dtype != Pred {
                x.values.iter_mut().for_each(|value| *value = (*value as i64 | 64) as f64);
            }
            if kind == ReduceKind::Prod {
                // Powers of two, so that the product of all is exact, and for the integers small.
                let factor = |value: &f64| if value.rem_euclid(8.0) == 0.0 { 2.0 } else { 1.0 };
                x.values = x.values.iter().map(factor).collect();
            }
            let y = reduced(&x, axes, kind);
            entry = entry.run(op(axes), &[x], [y], tolerance(dtype));
        }
    }
    for dtype in DType::ALL.into_iter().filter(|&dtype| class.contains(dtype)) {
        let nothing = Tensor::new(dtype, &[2], &[identity(kind, dtype); 2]);
        entry = entry.run(op(&[0]), &[distinct(dtype, &[0, 2])], [nothing], 0.0);
    }
    if !class.contains(F64) {
        return entry.without_gradient("not defined on floating point");
    }
    for (dims, axes) in REDUCED {
        entry = entry.gradient(op(axes), &[f64s(dims)]);
    }
    if kind == ReduceKind::Prod {
        // No, one and two zeros among those folded.
        let mut x = f64s(&[3, 4]);
        [4, 8, 10].into_iter().for_each(|index| x.values[index] = 0.0);
        entry = entry.gradient(op(&[1]), std::slice::from_ref(&x)).gradient(op(&[0, 1]), &[x]);
    }
    entry.with_vjp_snapshot()
}

pub fn arg_reduce(kind: ArgReduceKind) -> Entry {
    let op = |axis| ArgReduce { kind, axis };
    let mut entry = Entry::new(op(0).name())
        .accept(op(1), "f32[2,3,4] -> s32[2,4]")
        .accept(op(0), "u8[2] -> s32[]")
        .reject(op(0), "", "expected 1 operand, found 0")
        .reject(op(0), "f32[]", "axis 0 is out of range")
        .reject(op(2), "f32[2,3]", "axis 2 is out of range or repeated for an operand with 2 dimensions")
        .reject(op(0), "pred[2]", "the element type of operand 0 must be a number type, found pred")
        .reject(op(1), "f32[2,0]", "dimension 1 is empty, so no element is extreme")
        .reject(op(0), "u8[3000000000]", "dimension 0 has more positions than s32 can count");
    for dtype in DType::ALL.into_iter().filter(|&dtype| OperandClass::Numeric.contains(dtype)) {
        for (dims, axis) in [(&[2, 3, 4][..], 1), (&[2, 3, 4], 2), (&[7], 0), (&[3, 1], 1)] {
            // Few different values, so that the first of equals is asked for.
            for x in [distinct(dtype, dims), random(dtype, dims, 0.0, 1.9)] {
                let y = Tensor::from_fn(S32, &kept(dims, &[axis]), |result| {
                    let mut index = result.clone();
                    index.insert(axis, 0);
                    let mut value = |position: usize| {
                        index[axis] = position;
                        x.at(&index)
                    };
                    let better = |new: f64, old: f64| match kind {
                        ArgReduceKind::Max => new > old,
                        ArgReduceKind::Min => new < old,
                    };
                    (1..dims[axis]).fold(0, |best, next| if better(value(next), value(best)) { next } else { best })
                        as f64
                });
                entry = entry.run(op(axis), &[x], [y], 0.0);
            }
        }
    }
    entry.without_gradient("the result is an integer")
}

fn axes(list: &[usize]) -> AxisList {
    list.into()
}

/// Left sizes, right sizes, and the four lists of dimensions.
type DotCase<'a> = (&'a [usize], &'a [usize], [&'a [usize]; 4]);

const DOTS: [DotCase; 10] = [
    (&[2, 3], &[3, 4], [&[], &[], &[1], &[0]]),
    (&[3], &[3], [&[], &[], &[0], &[0]]),
    (&[2], &[3], [&[], &[], &[], &[]]),
    (&[], &[2], [&[], &[], &[], &[]]),
    // Batch dimensions, in another place and order on the right.
    (&[2, 3, 4, 2], &[4, 2, 5, 3], [&[0, 1], &[1, 3], &[2], &[0]]),
    (&[3, 2, 4], &[4, 2, 3], [&[2], &[0], &[0], &[2]]),
    // Several contractions, in another order on the right.
    (&[2, 3, 4], &[4, 5, 2], [&[], &[], &[2, 0], &[0, 2]]),
    (&[4, 2, 3], &[2, 5, 4], [&[], &[], &[0, 1], &[2, 0]]),
    // Free dimensions on both sides of the contracted ones, and batch dimensions in the middle.
    (&[2, 3, 2, 4], &[2, 3, 5, 4], [&[1], &[1], &[3], &[3]]),
    (&[3, 2], &[2, 3], [&[1, 0], &[0, 1], &[], &[]]),
];

/// The tolerance of results without any rounding. XLA leaves open whether a sum of only -0 is -0, as of one product, or
/// 0, as of a sum that starts from zero.
const EXACT_BUT_ZEROS: f64 = f64::MIN_POSITIVE;

fn dot_reference(case: &DotCase<'_>, lhs: &Tensor, rhs: &Tensor, dtype: DType) -> Tensor {
    let (left_dims, right_dims, [left_batch, right_batch, left_contract, right_contract]) = *case;
    let free = |rank: usize, used: [&[usize]; 2]| -> Vec<usize> {
        (0..rank).filter(|axis| !used[0].contains(axis) && !used[1].contains(axis)).collect()
    };
    let left_free = free(left_dims.len(), [left_batch, left_contract]);
    let right_free = free(right_dims.len(), [right_batch, right_contract]);
    let mut dims: Vec<usize> = left_batch.iter().map(|&axis| left_dims[axis]).collect();
    dims.extend(left_free.iter().map(|&axis| left_dims[axis]));
    dims.extend(right_free.iter().map(|&axis| right_dims[axis]));
    let summed: Vec<usize> = left_contract.iter().map(|&axis| left_dims[axis]).collect();
    Tensor::from_fn(dtype, &dims, |result| {
        let (batch, rest) = result.split_at(left_batch.len());
        let (left_part, right_part) = rest.split_at(left_free.len());
        let gather = |rank: usize, parts: [(&[usize], &[usize]); 3]| {
            let mut index = vec![0; rank];
            parts.iter().for_each(|(axes, values)| axes.iter().zip(*values).for_each(|(&axis, &i)| index[axis] = i));
            index
        };
        let product = |k: &Vec<usize>| {
            let left = gather(left_dims.len(), [(left_batch, batch), (&left_free, left_part), (left_contract, k)]);
            let right =
                gather(right_dims.len(), [(right_batch, batch), (&right_free, right_part), (right_contract, k)]);
            lhs.at(&left) * rhs.at(&right)
        };
        indices(&summed).iter().map(product).sum()
    })
}

fn dot(case: &DotCase<'_>, dtype: DType) -> DotGeneral {
    let [left_batch, right_batch, left_contract, right_contract] = case.2;
    let dims = DotDims {
        lhs_batch: axes(left_batch),
        rhs_batch: axes(right_batch),
        lhs_contract: axes(left_contract),
        rhs_contract: axes(right_contract),
    };
    DotGeneral { dims: Box::new(dims), dtype, precision: Precision::Default }
}

pub fn dot_general() -> Entry {
    let dims = |lists| dot(&(&[], &[], lists), F32);
    let matmul = dims([&[], &[], &[1], &[0]]);
    let mut entry = Entry::new("dot_general")
        .accept(dot(&DOTS[4], F32), "bf16[2,3,4,2] bf16[4,2,5,3] -> f32[2,3,2,5]")
        .accept(matmul.clone(), "f32[2,0] f32[0,3] -> f32[2,3]")
        .reject(matmul.clone(), "f32[2,3]", "expected 2 operands, found 1")
        .reject(matmul.clone(), "f32[2,3] bf16[3,2]", "the element type of operand 1 must be f32, found bf16")
        .reject(
            matmul.clone(),
            "s32[2,3] s32[3,2]",
            "the element type of operand 0 must be a type that can be accumulated in f32",
        )
        .reject(matmul.clone(), "pred[2,3] pred[3,2]", "a type that can be accumulated in f32, found pred")
        .reject(dot(&DOTS[0], S32), "s4[2,3] s4[3,4]", "a type that can be accumulated in s32, found s4")
        .reject(dot(&DOTS[0], Pred), "s32[2,3] s32[3,4]", "a type that can be accumulated in pred, found s32")
        .reject(dot(&DOTS[0], S8), "s32[2,3] s32[3,4]", "a type that can be accumulated in s8, found s32")
        .reject(matmul.clone(), "f32[2,3] f32[4,2]", "dimension 0 of operand 1 must have size 3, found 4")
        .reject(matmul.clone(), "f32[2] f32[4,2]", "axis 1 is out of range or repeated for an operand with 1 dimension")
        .reject(matmul, "f32[2,3] f32[]", "axis 0 is out of range")
        .reject(dims([&[0], &[], &[], &[]]), "f32[2] f32[2]", "each batch or contracted dimension needs a partner")
        .reject(dims([&[0], &[0], &[0], &[1]]), "f32[2,2] f32[2,2]", "axis 0 is out of range or repeated")
        .reject(dims([&[0, 0], &[0, 1], &[], &[]]), "f32[2,2] f32[2,2]", "axis 0 is out of range or repeated");
    // Operand type and result type.
    let types = [
        (F32, F32),
        (F64, F64),
        (BF16, BF16),
        (BF16, F32),
        (F16, F16),
        (F16, F32),
        (F32, F64),
        (S32, S32),
        (S8, S32),
        (U8, U32),
        (U32, U32),
        (S64, S64),
        (S16, S32),
        (U16, U32),
        (U64, U64),
        (F8E4M3FN, F32),
        (F8E4M3FN, BF16),
        (F8E5M2, F32),
    ];
    for case in &DOTS {
        for (dtype, accumulated) in types {
            // Small whole numbers: every sum is exact, in whatever order.
            let x = random(dtype, case.0, if dtype.is_unsigned_integer() { 0.0 } else { -3.0 }, 4.0);
            let y = random(dtype, case.1, 0.0, 3.0);
            let round = |x: Tensor| Tensor { values: x.values.iter().map(|value| value.floor()).collect(), ..x };
            let (x, y) = (round(x), round(y));
            let z = dot_reference(case, &x, &y, accumulated);
            entry = entry.run(dot(case, accumulated), &[x, y], [z], EXACT_BUT_ZEROS);
        }
        let operands = [f64s(case.0), random(F64, case.1, -1.0, 1.0)];
        entry = entry.gradient(dot(case, F64), &operands).gradient_in(dot(case, F64), &operands, &[0]).gradient_in(
            dot(case, F64),
            &operands,
            &[1],
        );
    }
    for precision in [Precision::High, Precision::Highest] {
        let op = DotGeneral { precision, ..dot(&DOTS[0], F32) };
        let (x, y) = (distinct(F32, DOTS[0].0), distinct(F32, DOTS[0].1));
        let z = dot_reference(&DOTS[0], &x, &y, F32);
        entry = entry.run(op, &[x, y], [z], 0.0);
    }
    entry.with_vjp_snapshot()
}
