//! Ops that move elements, against index loops.

use meshloom::ir::DType::{self, *};
use meshloom::ir::Dims;
use meshloom::ops::*;

use crate::harness::*;

/// The element types that every op that moves elements is run with.
const TYPES: [DType; DType::ALL.len()] = DType::ALL;

const HUGE: usize = usize::MAX;

pub fn broadcast() -> Entry {
    let op = |dims: &[usize], mapping: &[usize]| BroadcastInDim { dims: dims.into(), mapping: mapping.into() };
    let mut entry = Entry::new("broadcast_in_dim")
        .accept(op(&[4, 2, 3], &[0, 2]), "f32[4,3] -> f32[4,2,3]")
        .accept(op(&[2, 3], &[]), "s32[] -> s32[2,3]")
        .accept(op(&[0, 3], &[1]), "pred[3] -> pred[0,3]")
        .reject(op(&[2], &[]), "", "expected 1 operand, found 0")
        .reject(op(&[2, 3], &[1]), "f32[]", "operand 0 has 0 dimensions, but is broadcast along 1 axis")
        .reject(op(&[2, 3], &[2]), "f32[3]", "axis 2 is out of range or repeated for an operand with 2 dimensions")
        .reject(op(&[3, 3], &[1, 1]), "f32[3,3]", "axis 1 is out of range or repeated")
        .reject(op(&[2, 3], &[1, 0]), "f32[3,2]", "the axes [1, 0] must increase; transpose first")
        .reject(op(&[2, 3], &[1]), "f32[1]", "dimension 0 of operand 0 must have size 3, found 1")
        .reject(op(&[HUGE, HUGE], &[]), "f32[]", "has more bytes than can be addressed");
    let cases: [(&[usize], &[usize]); 5] =
        [(&[4, 2, 3], &[0, 2]), (&[2, 3], &[]), (&[2, 3], &[0, 1]), (&[3, 2], &[0]), (&[2, 1, 3, 2], &[1, 2])];
    for (dims, mapping) in cases {
        let operand: Vec<usize> = mapping.iter().map(|&axis| dims[axis]).collect();
        for dtype in TYPES {
            let x = distinct(dtype, &operand);
            let y = Tensor::from_fn(dtype, dims, |i| x.at(&mapping.iter().map(|&axis| i[axis]).collect::<Vec<_>>()));
            entry = entry.run(op(dims, mapping), &[x], [y], 0.0);
        }
        entry = entry.gradient(op(dims, mapping), &[f64s(&operand)]);
    }
    entry
}

pub fn reshape() -> Entry {
    let op = |dims: &[usize]| Reshape { dims: dims.into() };
    let mut entry = Entry::new("reshape")
        .accept(op(&[6]), "f32[2,3] -> f32[6]")
        .accept(op(&[]), "f32[1,1] -> f32[]")
        .accept(op(&[0, 7]), "f32[3,0] -> f32[0,7]")
        .reject(op(&[6]), "f32[6] f32[6]", "expected 1 operand, found 2")
        .reject(op(&[5]), "f32[2,3]", "cannot reshape f32[2,3] (6 elements) to [5] (5 elements)")
        .reject(op(&[HUGE, 2]), "f32[4]", "cannot reshape f32[4] (4 elements)")
        .reject(op(&[HUGE, 2, 0, HUGE]), "f32[4]", "cannot reshape f32[4] (4 elements)");
    for (from, to) in [(&[2, 3][..], &[6][..]), (&[2, 3], &[3, 2]), (&[2, 3, 2], &[4, 3]), (&[1, 1], &[]), (&[], &[1])]
    {
        for dtype in TYPES {
            let x = distinct(dtype, from);
            let y = Tensor::new(dtype, to, &x.values);
            entry = entry.run(op(to), &[x], [y], 0.0);
        }
        entry = entry.gradient(op(to), &[f64s(from)]);
    }
    entry
}

pub fn transpose() -> Entry {
    let op = |permutation: &[usize]| Transpose { permutation: permutation.into() };
    let mut entry = Entry::new("transpose")
        .accept(op(&[2, 0, 1]), "f32[2,3,4] -> f32[4,2,3]")
        .accept(op(&[]), "s32[] -> s32[]")
        .reject(op(&[0]), "", "expected 1 operand, found 0")
        .reject(op(&[0, 1]), "f32[2]", "operand 0 must have 2 dimensions, found 1")
        .reject(op(&[0, 0]), "f32[2,3]", "axis 0 is out of range or repeated for an operand with 2 dimensions")
        .reject(op(&[0, 2]), "f32[2,3]", "axis 2 is out of range");
    for (dims, permutation) in [(&[2, 3, 4][..], &[2, 0, 1][..]), (&[2, 3], &[1, 0]), (&[2, 3, 2, 2], &[1, 3, 0, 2])] {
        for dtype in TYPES {
            let x = distinct(dtype, dims);
            let result: Vec<usize> = permutation.iter().map(|&axis| dims[axis]).collect();
            let y = Tensor::from_fn(dtype, &result, |i| {
                let mut source = vec![0; dims.len()];
                permutation.iter().zip(i).for_each(|(&axis, &index)| source[axis] = index);
                x.at(&source)
            });
            entry = entry.run(op(permutation), &[x], [y], 0.0);
        }
        entry = entry.gradient(op(permutation), &[f64s(dims)]);
    }
    entry
}

pub fn slice() -> Entry {
    let op = |ranges: &[(usize, usize, usize)]| Slice {
        ranges: ranges.iter().map(|&(start, limit, stride)| SliceDim { start, limit, stride }).collect(),
    };
    let mut entry = Entry::new("slice")
        .accept(op(&[(1, 7, 2), (0, 2, 1)]), "f32[8,3] -> f32[3,2]")
        .accept(op(&[]), "f32[] -> f32[]")
        .accept(op(&[(2, 2, 1)]), "f32[4] -> f32[0]")
        .accept(op(&[(1, 4, 100)]), "f32[4] -> f32[1]")
        .reject(op(&[(0, 1, 1)]), "", "expected 1 operand, found 0")
        .reject(op(&[(0, 1, 1)]), "f32[]", "operand 0 must have 1 dimension, found 0")
        .reject(op(&[(0, 5, 1)]), "f32[4]", "the range 0..5 with stride 1 does not fit dimension 0 of size 4")
        .reject(op(&[(0, 4, 1), (3, 2, 1)]), "f32[4,4]", "the range 3..2 with stride 1 does not fit dimension 1")
        .reject(op(&[(0, 4, 0)]), "f32[4]", "the range 0..4 with stride 0 does not fit dimension 0")
        .reject(op(&[(0, 4, HUGE)]), "f32[4]", "does not fit dimension 0 of size 4");
    type Case<'a> = (&'a [usize], &'a [(usize, usize, usize)]);
    let cases: [Case<'_>; 6] = [
        (&[8, 3], &[(1, 7, 2), (0, 2, 1)]),
        (&[9], &[(2, 9, 3)]),
        (&[9], &[(0, 8, 3)]),
        (&[3, 4], &[(1, 2, 1), (3, 4, 5)]),
        (&[4, 2], &[(2, 2, 3), (0, 2, 1)]),
        (&[2, 5], &[(0, 2, 1), (0, 5, 1)]),
    ];
    for (dims, ranges) in cases {
        let kept = |&(start, limit, stride): &(usize, usize, usize)| (start..limit).step_by(stride).count();
        let result: Vec<usize> = ranges.iter().map(kept).collect();
        for dtype in TYPES {
            let x = distinct(dtype, dims);
            let y = Tensor::from_fn(dtype, &result, |i| {
                x.at(&ranges.iter().zip(i).map(|(&(start, _, stride), i)| start + stride * i).collect::<Vec<_>>())
            });
            entry = entry.run(op(ranges), &[x], [y], 0.0);
        }
        entry = entry.gradient(op(ranges), &[f64s(dims)]);
    }
    entry.with_vjp_snapshot()
}

type Padding = (i64, i64, usize);

fn padded(x: &Tensor, value: f64, padding: &[Padding]) -> Tensor {
    let size = |(&(low, high, interior), &size): (&Padding, &usize)| {
        (low + high + size as i64 + size.saturating_sub(1) as i64 * interior as i64) as usize
    };
    let dims: Vec<usize> = padding.iter().zip(x.dims()).map(size).collect();
    let (source_dims, dtype) = (x.dims().to_vec(), x.ty.dtype);
    Tensor::from_fn(dtype, &dims, |index| {
        let mut source = Vec::new();
        for (dim, &i) in index.iter().enumerate() {
            let (low, _, interior) = padding[dim];
            let position = i as i64 - low;
            let stride = interior as i64 + 1;
            if position < 0 || position % stride != 0 || position / stride >= source_dims[dim] as i64 {
                return value;
            }
            source.push((position / stride) as usize);
        }
        x.at(&source)
    })
}

pub fn pad() -> Entry {
    let op = |padding: &[Padding]| Pad {
        padding: padding.iter().map(|&(low, high, interior)| PadDim { low, high, interior }).collect(),
    };
    let mut entry = Entry::new("pad")
        .accept(op(&[(1, 2, 0), (0, -1, 1)]), "f32[2,3] f32[] -> f32[5,4]")
        .accept(op(&[]), "pred[] pred[] -> pred[]")
        .accept(op(&[(2, 1, 5)]), "f32[0] f32[] -> f32[3]")
        .accept(op(&[(-2, 0, 0)]), "f32[2] f32[] -> f32[0]")
        .reject(op(&[(0, 0, 0)]), "f32[2]", "expected 2 operands, found 1")
        .reject(op(&[(0, 0, 0)]), "f32[2] f32[1]", "operand 1 must have 0 dimensions, found 1")
        .reject(op(&[(0, 0, 0)]), "f32[2] s32[]", "the element type of operand 1 must be f32, found s32")
        .reject(op(&[(0, 0, 0)]), "f32[] f32[]", "operand 0 must have 1 dimension, found 0")
        .reject(op(&[(-2, -1, 0)]), "f32[2] f32[]", "padding dimension 0 of size 2 gives the negative size -1")
        .reject(op(&[(i64::MAX, i64::MAX, 0)]), "f32[2] f32[]", "dimension 0 of size 2 gives a size out of range")
        .reject(op(&[(i64::MIN, i64::MAX, 0)]), "f32[2] f32[]", "dimension 0 of size 2 gives a size out of range")
        .reject(op(&[(0, 0, HUGE)]), "f32[1] f32[]", "dimension 0 of size 1 gives a size out of range")
        .reject(op(&[(0, 0, HUGE / 2)]), "f32[9] f32[]", "dimension 0 of size 9 gives a size out of range")
        .reject(op(&[(0, 0, 1 << 61)]), "f32[2] f32[]", "has more bytes than can be addressed");
    let cases: [(&[usize], &[Padding]); 10] = [
        (&[3, 2], &[(0, 0, 0), (1, 2, 1)]),
        (&[2, 3], &[(1, 2, 0), (0, -1, 1)]),
        (&[4], &[(-1, 2, 0)]),
        (&[4], &[(-1, -2, 2)]),
        (&[4], &[(-3, 1, 1)]),
        (&[4], &[(3, -5, 3)]),
        (&[2, 2], &[(0, 0, 2), (-1, 3, 1)]),
        (&[0, 2], &[(2, 1, 3), (0, 0, 1)]),
        (&[2], &[(-1, -1, 0)]),
        (&[], &[]),
    ];
    for (dims, padding) in cases {
        for dtype in TYPES {
            let (x, value) = (distinct(dtype, dims), if dtype == Pred { 1.0 } else { 77.0 });
            let y = padded(&x, value, padding);
            entry = entry.run(op(padding), &[x, Tensor::scalar(dtype, value)], [y], 0.0);
        }
        entry = entry
            .gradient(op(padding), &[f64s(dims), f64s(&[])])
            .gradient_in(op(padding), &[f64s(dims), f64s(&[])], &[0])
            .gradient_in(op(padding), &[f64s(dims), f64s(&[])], &[1]);
    }
    entry.with_vjp_snapshot()
}

pub fn concatenate() -> Entry {
    let op = |axis| Concatenate { axis };
    let mut entry = Entry::new("concatenate")
        .accept(op(1), "f32[2,3] f32[2,1] f32[2,2] -> f32[2,6]")
        .accept(op(0), "s32[4] -> s32[4]")
        .accept(op(0), "s32[0] s32[4] -> s32[4]")
        .reject(op(0), "", "expected 1 operand, found 0")
        .reject(op(0), "f32[] f32[]", "axis 0 is out of range or repeated for an operand with 0 dimensions")
        .reject(op(2), "f32[2,3] f32[2,3]", "axis 2 is out of range")
        .reject(op(0), "f32[2] s32[2]", "the element type of operand 1 must be f32, found s32")
        .reject(op(1), "f32[2,3] f32[2]", "operand 1 must have 2 dimensions, found 1")
        .reject(op(1), "f32[2,3] f32[2,3,1]", "operand 1 must have 2 dimensions, found 3")
        .reject(op(1), "f32[2,3] f32[3,3]", "dimension 0 of operand 1 must have size 2, found 3")
        .reject(op(0), &format!("f32[{HUGE}] f32[{HUGE}]"), "has more bytes than can be addressed");
    for (axis, parts) in
        [(1, &[&[2, 3][..], &[2, 1], &[2, 2]][..]), (0, &[&[3], &[3]]), (0, &[&[0, 2], &[2, 2]]), (0, &[&[4]])]
    {
        for dtype in TYPES {
            let operands: Vec<Tensor> = parts.iter().map(|dims| distinct(dtype, dims)).collect();
            let mut result = parts[0].to_vec();
            result[axis] = parts.iter().map(|dims| dims[axis]).sum();
            let y = Tensor::from_fn(dtype, &result, |i| {
                let mut i = i.clone();
                let mut operands = operands.iter();
                let mut operand = operands.next().unwrap();
                while i[axis] >= operand.dims()[axis] {
                    i[axis] -= operand.dims()[axis];
                    operand = operands.next().unwrap();
                }
                operand.at(&i)
            });
            entry = entry.run(op(axis), &operands, [y], 0.0);
        }
        let operands: Vec<Tensor> = parts.iter().map(|dims| f64s(dims)).collect();
        entry = entry.gradient(op(axis), &operands);
    }
    entry.gradient_in(op(0), &[f64s(&[2]), f64s(&[3]), f64s(&[1])], &[1]).with_vjp_snapshot()
}

pub fn reverse() -> Entry {
    let op = |axes: &[usize]| Reverse { axes: axes.into() };
    let mut entry = Entry::new("reverse")
        .accept(op(&[1]), "f32[2,3] -> f32[2,3]")
        .accept(op(&[]), "f32[] -> f32[]")
        .reject(op(&[0]), "", "expected 1 operand, found 0")
        .reject(op(&[0]), "f32[]", "axis 0 is out of range")
        .reject(op(&[0, 0]), "f32[2]", "axis 0 is out of range or repeated");
    for (dims, axes) in [(&[2, 3][..], &[1][..]), (&[2, 3, 2], &[2, 0]), (&[4], &[]), (&[4], &[0])] {
        for dtype in TYPES {
            let x = distinct(dtype, dims);
            let flip = |(axis, &i): (usize, &usize)| if axes.contains(&axis) { dims[axis] - 1 - i } else { i };
            let y = Tensor::from_fn(dtype, dims, |i| x.at(&i.iter().enumerate().map(flip).collect::<Vec<_>>()));
            entry = entry.run(op(axes), &[x], [y], 0.0);
        }
        entry = entry.gradient(op(axes), &[f64s(dims)]);
    }
    entry
}

/// Where a slice of that size really starts.
fn clamped(start: f64, size: usize, available: usize) -> usize {
    start.clamp(0.0, (available - size) as f64) as usize
}

fn starts(dtype: DType, starts: &[f64]) -> Vec<Tensor> {
    starts.iter().map(|&start| Tensor::scalar(dtype, start)).collect()
}

/// Operand sizes, slice sizes and starts, inside and outside.
const DYNAMIC: [(&[usize], &[usize], &[f64]); 6] = [
    (&[4, 5], &[2, 3], &[1.0, 2.0]),
    (&[4, 5], &[2, 3], &[9.0, -3.0]),
    (&[4, 5], &[4, 1], &[1.0, 4.0]),
    (&[4], &[2], &[2147483647.0]),
    (&[3], &[0], &[2.0]),
    (&[], &[], &[]),
];

pub fn dynamic_slice() -> Entry {
    let op = |sizes: &[usize]| DynamicSlice { sizes: Dims::from_slice(sizes) };
    let mut entry = Entry::new("dynamic_slice")
        .accept(op(&[2, 3]), "f32[4,5] s32[] s32[] -> f32[2,3]")
        .accept(op(&[]), "f32[] -> f32[]")
        .accept(op(&[1]), "pred[2] u8[] -> pred[1]")
        .reject(op(&[]), "", "expected 1 operand, found 0")
        .reject(op(&[1]), "f32[2]", "expected 2 operands, found 1")
        .reject(op(&[1]), "f32[2] s32[1]", "operand 1 must have 0 dimensions, found 1")
        .reject(op(&[1]), "f32[2] f32[]", "the element type of operand 1 must be an integer type, found f32")
        .reject(op(&[1]), "f32[2] pred[]", "the element type of operand 1 must be an integer type, found pred")
        .reject(op(&[1, 1]), "f32[2,2] s32[] u32[]", "the element type of operand 2 must be s32, found u32")
        .reject(op(&[1]), "f32[2,2] s32[] s32[]", "operand 0 must have 1 dimension, found 2")
        .reject(op(&[3]), "f32[2] s32[]", "a slice of 3 elements does not fit dimension 0 of size 2");
    for (dims, sizes, at) in DYNAMIC {
        for dtype in TYPES {
            for index in [S8, S32, S64, U32] {
                let x = distinct(dtype, dims);
                let positions = starts(index, at);
                let y = Tensor::from_fn(dtype, sizes, |i| {
                    let from = |dim: usize| clamped(positions[dim].values[0], sizes[dim], dims[dim]) + i[dim];
                    x.at(&(0..dims.len()).map(from).collect::<Vec<_>>())
                });
                entry = entry.run(op(sizes), &[&[x], &positions[..]].concat(), [y], 0.0);
            }
        }
        entry = entry.gradient(op(sizes), &[&[f64s(dims)], &starts(S32, at)[..]].concat());
    }
    entry.with_vjp_snapshot()
}

pub fn dynamic_update_slice() -> Entry {
    let op = DynamicUpdateSlice;
    let mut entry = Entry::new("dynamic_update_slice")
        .accept(op.clone(), "f32[4,5] f32[2,3] s32[] s32[] -> f32[4,5]")
        .accept(op.clone(), "f32[] f32[] -> f32[]")
        .reject(op.clone(), "", "expected 2 operands, found 0")
        .reject(op.clone(), "f32[2] f32[1]", "expected 3 operands, found 2")
        .reject(op.clone(), "f32[2] s32[1] s32[]", "the element type of operand 1 must be f32, found s32")
        .reject(op.clone(), "f32[2] f32[] s32[]", "found 1")
        .reject(op.clone(), "f32[2] f32[3] s32[]", "a slice of 3 elements does not fit dimension 0 of size 2")
        .reject(op.clone(), "f32[2] f32[1] f32[]", "the element type of operand 2 must be an integer type, found f32");
    for (dims, sizes, at) in DYNAMIC {
        for dtype in TYPES {
            let (x, update) = (distinct(dtype, dims), random(dtype, sizes, 0.0, 1.9));
            let y = Tensor::from_fn(dtype, dims, |i| {
                let start = |dim: usize| clamped(at[dim], sizes[dim], dims[dim]);
                let inside = |dim: usize| i[dim] >= start(dim) && i[dim] < start(dim) + sizes[dim];
                if (0..dims.len()).all(inside) {
                    update.at(&(0..dims.len()).map(|dim| i[dim] - start(dim)).collect::<Vec<_>>())
                } else {
                    x.at(i)
                }
            });
            entry = entry.run(op.clone(), &[&[x, update], &starts(S32, at)[..]].concat(), [y], 0.0);
        }
        let operands = [&[f64s(dims), random(F64, sizes, 0.0, 1.0)], &starts(S32, at)[..]].concat();
        entry = entry.gradient(op.clone(), &operands).gradient_in(op.clone(), &operands, &[0]).gradient_in(
            op.clone(),
            &operands,
            &[1],
        );
    }
    entry.with_vjp_snapshot()
}

pub fn roll() -> Entry {
    let op = |axis, shift| Roll { axis, shift };
    let mut entry = Entry::new("roll")
        .accept(op(1, 2), "f32[2,5] -> f32[2,5]")
        .accept(op(0, 3), "pred[0,2] -> pred[0,2]")
        .accept(op(0, i64::MAX), "s8[7] -> s8[7]")
        .reject(op(0, 1), "", "expected 1 operand, found 0")
        .reject(op(1, 1), "f32[3]", "axis 1 is out of range or repeated for an operand with 1 dimension")
        .reject(op(0, i64::MIN), "f32[3]", "the shift has no opposite");
    for (axis, shift) in [(1, 2), (1, -1), (0, 1), (1, 5), (1, 0), (1, -12), (0, 7)] {
        let dims = [3, 5];
        for dtype in TYPES {
            let x = distinct(dtype, &dims);
            let y = Tensor::from_fn(dtype, &dims, |i| {
                let mut from = i.clone();
                from[axis] = (i[axis] as i64 - shift).rem_euclid(dims[axis] as i64) as usize;
                x.at(&from)
            });
            entry = entry.run(op(axis, shift), &[x], [y], 0.0);
        }
        entry = entry.gradient(op(axis, shift), &[f64s(&dims)]);
    }
    entry.with_vjp_snapshot()
}
