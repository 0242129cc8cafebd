//! Ops without operands, and ops whose results are their operands.

use meshloom::ir::DType::{self, *};
use meshloom::ir::{Literal, Name, TensorType};
use meshloom::ops::*;
use meshloom::sharding::Spec;

use crate::harness::*;

pub fn constant() -> Entry {
    let op = |tensor: &Tensor| Constant(Box::new(tensor.literal()));
    let first = op(&distinct(F32, &[2, 3]));
    let mut entry = Entry::new("constant")
        .accept(first.clone(), " -> f32[2,3]")
        .accept(Constant(Box::new(Literal::scalar(3u8))), "-> u8[]")
        .reject(first, "f32[2,3]", "expected 0 operands, found 1");
    for dtype in DType::ALL {
        for dims in shapes(dtype, &[&[], &[2, 3], &[0, 2]], &[20]) {
            let x = distinct(dtype, dims);
            entry = entry.run(op(&x), &[], [x], 0.0);
        }
    }
    for dtype in [BF16, F16, F32, F64] {
        let x = Tensor::new(dtype, &[4], &[f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0]);
        entry = entry.run(op(&x), &[], [x], 0.0);
    }
    entry.without_gradient("there are no operands")
}

pub fn splat() -> Entry {
    let op = |dtype, dims: &[usize], number| Splat::new(TensorType::new(dtype, dims), number);
    let mut entry = Entry::new("splat")
        .accept(op(F32, &[2, 3], 1.5), "-> f32[2,3]")
        .accept(op(Pred, &[], 1.0), "-> pred[]")
        .reject(op(F32, &[], 1.5), "f32[]", "expected 0 operands, found 1")
        .reject(op(F32, &[usize::MAX, 2], 1.5), "", "has more bytes than can be addressed");
    for dtype in DType::ALL {
        for number in [-0.0, -1.5, 3.25, 1e300, -1e300, f64::NAN] {
            for dims in shapes(dtype, &[&[], &[2, 3], &[0]], &[2]) {
                let count = dims.iter().product();
                let expected = Tensor::new(dtype, dims, &vec![number; count]);
                entry = entry.run(op(dtype, dims, number), &[], [expected], 0.0);
            }
        }
    }
    entry.without_gradient("there are no operands")
}

pub fn iota() -> Entry {
    let op = |dtype, dims: &[usize], axis| Iota { ty: TensorType::new(dtype, dims), axis };
    let mut entry = Entry::new("iota")
        .accept(op(S32, &[2, 3], 1), "-> s32[2,3]")
        .reject(op(S32, &[2], 0), "s32[]", "expected 0 operands, found 1")
        .reject(op(S32, &[], 0), "", "axis 0 is out of range or repeated for an operand with 0 dimensions")
        .reject(op(S32, &[2, 3], 2), "", "axis 2 is out of range")
        .reject(op(Pred, &[2], 0), "", "positions cannot be of type pred")
        .reject(op(S32, &[usize::MAX], 0), "", "has more bytes than can be addressed");
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != Pred) {
        for axis in 0..2 {
            let expected = Tensor::from_fn(dtype, &[4, 5], |i| i[axis] as f64);
            entry = entry.run(op(dtype, &[4, 5], axis), &[], [expected], 0.0);
        }
    }
    entry.without_gradient("there are no operands")
}

/// Runs and gradients of an op that gives back its operand.
fn identity(mut entry: Entry, op: impl Into<Op>) -> Entry {
    let op = op.into();
    for dtype in [Pred, S32, U32, BF16, F32] {
        let x = distinct(dtype, &[2, 3]);
        entry = entry.run(op.clone(), std::slice::from_ref(&x), [x.clone()], 0.0);
    }
    entry = entry
        .accept(op.clone(), "f32[2,3] -> f32[2,3]")
        .reject(op.clone(), "", "expected 1 operand, found 0")
        .reject(op.clone(), "f32[2] f32[2]", "expected 1 operand, found 2");
    entry.gradient(op, &[f64s(&[2, 3])])
}

pub fn named() -> Entry {
    identity(Entry::new("named"), Named(Name::new("saved")))
}

pub fn move_to() -> Entry {
    identity(Entry::new("move_to"), MoveTo(Memory::Host))
        .run(MoveTo(Memory::Device), &[distinct(F32, &[2])], [distinct(F32, &[2])], 0.0)
        .accept(MoveTo(Memory::Device), "f32[2] -> f32[2]")
}

pub fn stop_gradient() -> Entry {
    identity(Entry::new("stop_gradient"), StopGradient).expect_zero()
}

pub fn with_axes() -> Entry {
    let op = |names: &[&str]| WithAxes::new(names.iter().map(|name| Name::new(name)).collect());
    identity(Entry::new("with_axes"), op(&["batch", ""]))
        .accept(op(&["", ""]), "f32[2,3] -> f32[2,3]")
        .reject(
            op(&["batch"]),
            "f32[2,3]",
            "expected an axis name, or \"\", for each of 2 dimensions, found [\"batch\"]",
        )
        .reject(op(&["batch", "batch"]), "f32[2,3]", "the axis name \"batch\" is given to two dimensions")
}

pub fn reshard() -> Entry {
    identity(Entry::new("reshard"), Reshard::new(Spec::replicated(2))).reject(
        Reshard::new(Spec::replicated(2)),
        "f32[2]",
        "operand 0 must have 2 (one for each entry of the spec) dimensions, found 1",
    )
}

pub fn barrier() -> Entry {
    let mut entry = Entry::new("barrier")
        .accept(Barrier, "f32[2,3] s32[] -> f32[2,3] s32[]")
        .accept(Barrier, "f32[2] -> f32[2]")
        .accept(Barrier, "->");
    let tensors = [distinct(F32, &[2, 3]), distinct(S32, &[4]), distinct(Pred, &[2]), distinct(BF16, &[])];
    for count in [0, 1, 2, 4] {
        entry = entry.run(Barrier, &tensors[..count], tensors[..count].to_vec(), 0.0);
    }
    entry
        .gradient(Barrier, &[f64s(&[2, 3])])
        .gradient(Barrier, &[f64s(&[2, 3]), distinct(S32, &[2]), f64s(&[4])])
        .gradient_in(Barrier, &[f64s(&[2, 3]), f64s(&[4])], &[1])
}
