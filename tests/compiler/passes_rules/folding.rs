//! Cases of constant folding, and what it must leave alone.

use super::*;
use BinaryKind::{Add, Maximum, Multiply};

fn constant(b: &mut GraphBuilder, ty_text: &str, values: &[f64]) -> Value {
    push(b, Constant(Box::new(literal(&ty(ty_text), &mut values.iter().copied()))), &[])
}

pub const CASES: &[Case] = &[
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "f32[3]", &[1.0, 2.0, 3.0]);
            with(b, Add, x, 0.5)
        },
        "%0 = constant [1.5, 2.5, 3.5]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "f32[3]", &[1.0, 1.0, 1.0]);
            with(b, Add, x, 0.5)
        },
        "%0 = splat 1.5; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = scalar(b, DType::BF16, 1.0);
            let y = scalar(b, DType::BF16, 0.00390625);
            binary(b, Add, x, y)
        },
        "%0 = splat 1; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = scalar(b, DType::F32, 2.0);
            unary(b, UnaryKind::Sqrt, x)
        },
        "%0 = splat 1.4142135381698608; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = scalar(b, DType::F32, 2.0);
            unary(b, UnaryKind::Exponential, x)
        },
        "%0 = splat 2; %1 = exponential %0; return %1",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = scalar(b, DType::F32, 1e-30);
            binary(b, Multiply, x, x)
        },
        "%0 = splat 0.000000000000000000000000000001; %1 = multiply %0, %0; return %1",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = scalar(b, DType::F32, 3.0);
            let x = broadcast(b, x, &[1 << 20, 1 << 10], &[]);
            push(b, Transpose { permutation: [1, 0].as_slice().into() }, &[x])
        },
        "%0 = splat 3; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = push(b, Iota { ty: ty("s32[2,3]"), axis: 1 }, &[]);
            with(b, Multiply, x, 2.0)
        },
        "%0 = constant [0.0, 2.0, 4.0, 0.0, 2.0, 4.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = push(b, Iota { ty: ty("s32[1025]"), axis: 0 }, &[]);
            with(b, Add, x, 2.0)
        },
        "%0 = iota {axis=0}; %1 = splat 2; %2 = add %0, %1; return %2",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = push(b, Iota { ty: ty("s32[1024]"), axis: 0 }, &[]);
            slice(b, x, 3, 1024, 1000)
        },
        "%0 = constant [3.0, 1003.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "s32[2,2]", &[1.0, 2.0, 3.0, 4.0]);
            reduce(b, ReduceKind::Sum, x, &[0])
        },
        "%0 = constant [4.0, 6.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "f32[2]", &[1.0, 2.0]);
            reduce(b, ReduceKind::Sum, x, &[0])
        },
        "%0 = constant [1.0, 2.0]; %1 = reduce-sum %0 {axes=[0]}; return %1",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "f32[2]", &[0.0, -0.0]);
            with(b, Maximum, x, 0.0)
        },
        "%0 = constant [0.0, -0.0]; %1 = splat 0; %2 = maximum %0, %1; return %2",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "f32[2]", &[300.0, 2.0]);
            push(b, Convert(DType::S8), &[x])
        },
        "%0 = constant [300.0, 2.0]; %1 = convert %0; return %1",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "f32[2]", &[100.7, -2.5]);
            push(b, Convert(DType::S8), &[x])
        },
        "%0 = constant [100.0, -2.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let (x, y) = (constant(b, "s32[2]", &[1.0, 2.0]), constant(b, "s32[1]", &[7.0]));
            let z = push(b, Concatenate { axis: 0 }, &[x, y]);
            let v = scalar(b, DType::S32, -1.0);
            pad(b, z, v, -1, 1, 1)
        },
        "%0 = constant [-1.0, 2.0, -1.0, 7.0, -1.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "s32[3]", &[1.0, 2.0, 3.0]);
            let y = push(b, Reverse { axes: [0].as_slice().into() }, &[x]);
            let s = scalar(b, DType::S32, 9.0);
            push(b, DynamicSlice { sizes: [2].as_slice().into() }, &[y, s])
        },
        "%0 = constant [2.0, 1.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "s32[3]", &[1.0, 2.0, 3.0]);
            let y = constant(b, "s32[2]", &[8.0, 9.0]);
            let s = scalar(b, DType::S32, 9.0);
            push(b, DynamicUpdateSlice, &[x, y, s])
        },
        "%0 = constant [1.0, 8.0, 9.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = constant(b, "s32[2,3]", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            push(b, Transpose { permutation: [1, 0].as_slice().into() }, &[x])
        },
        "%0 = constant [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let x = scalar(b, DType::F32, 1.0);
            push(b, BitcastConvert(DType::S32), &[x])
        },
        "%0 = splat 1065353216; return %0",
    ),
    case(
        "",
        "",
        |b, _| {
            let (x, y) = (constant(b, "f32[2]", &[1.0, f64::NAN]), constant(b, "f32[2]", &[2.0, 0.0]));
            let p = push(b, Compare(Direction::Lt), &[x, y]);
            push(b, Select, &[p, x, y])
        },
        "%0 = constant [1.0, 0.0]; return %0",
    ),
];
