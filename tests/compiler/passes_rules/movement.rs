//! Cases of identities of ops that move or fold elements, and what they must leave alone (cases without a rule).

use super::*;
use BinaryKind::{Add, Multiply};

pub const CASES: &[Case] = &[
    case("broadcast(x) = x", "f32[8]", |b, x| broadcast(b, x[0], &[8], &[0]), "return %0"),
    case(
        "broadcast(broadcast(x)) = broadcast(x)",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[2, 8], &[1]);
            broadcast(b, y, &[2, 3, 8], &[0, 2])
        },
        "%1 = broadcast %0 {axes=[2]}; return %1",
    ),
    case(
        "broadcast(iota) = iota",
        "",
        |b, _| {
            let y = push(b, Iota { ty: TensorType::new(DType::S32, &[4]), axis: 0 }, &[]);
            broadcast(b, y, &[2, 4], &[1])
        },
        "%0 = iota {axis=1}; return %0",
    ),
    case("reshape(x) = x", "f32[2,4]", |b, x| push(b, Reshape { dims: [2, 4].as_slice().into() }, x), "return %0"),
    case(
        "reshape(reshape(x)) = reshape(x)",
        "f32[2,4]",
        |b, x| {
            let y = push(b, Reshape { dims: [8].as_slice().into() }, x);
            push(b, Reshape { dims: [4, 2].as_slice().into() }, &[y])
        },
        "%1 = reshape %0; return %1",
    ),
    case(
        "reshape(broadcast(scalar)) = broadcast(scalar)",
        "f32[]",
        |b, x| {
            let y = broadcast(b, x[0], &[6], &[]);
            push(b, Reshape { dims: [2, 3].as_slice().into() }, &[y])
        },
        "%1 = broadcast %0 {axes=[]}; return %1",
    ),
    case(
        "transpose(x) = x",
        "f32[2,4]",
        |b, x| push(b, Transpose { permutation: [0, 1].as_slice().into() }, x),
        "return %0",
    ),
    case(
        "transpose(transpose(x)) = transpose(x)",
        "f32[2,2,2]",
        |b, x| {
            let y = push(b, Transpose { permutation: [1, 2, 0].as_slice().into() }, x);
            push(b, Transpose { permutation: [1, 2, 0].as_slice().into() }, &[y])
        },
        "%1 = transpose %0 {[2, 0, 1]}; return %1",
    ),
    case(
        "transpose(broadcast(x)) = broadcast(x)",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[2, 8], &[1]);
            push(b, Transpose { permutation: [1, 0].as_slice().into() }, &[y])
        },
        "%1 = broadcast %0 {axes=[0]}; return %1",
    ),
    case(
        "",
        "f32[2,4]",
        |b, x| {
            let y = broadcast(b, x[0], &[2, 3, 4], &[0, 2]);
            push(b, Transpose { permutation: [2, 1, 0].as_slice().into() }, &[y])
        },
        "%1 = broadcast %0 {axes=[0, 2]}; %2 = transpose %1 {[2, 1, 0]}; return %2",
    ),
    case(
        "transpose(x) = reshape(x)",
        "f32[2,1,4]",
        |b, x| push(b, Transpose { permutation: [1, 0, 2].as_slice().into() }, &[x[0]]),
        "%1 = reshape %0; return %1",
    ),
    case(
        "transpose(iota) = iota",
        "",
        |b, _| {
            let y = push(b, Iota { ty: TensorType::new(DType::F32, &[4, 2]), axis: 0 }, &[]);
            push(b, Transpose { permutation: [1, 0].as_slice().into() }, &[y])
        },
        "%0 = iota {axis=1}; return %0",
    ),
    case("slice(x) = x", "f32[8]", |b, x| slice(b, x[0], 0, 8, 1), "return %0"),
    case(
        "slice(slice(x)) = slice(x)",
        "f32[8]",
        |b, x| {
            let y = slice(b, x[0], 1, 8, 2);
            slice(b, y, 1, 4, 2)
        },
        "%1 = slice %0 {3:8:4}; return %1",
    ),
    case(
        "slice(slice(x)) = slice(x)",
        "f32[8]",
        |b, x| {
            let y = slice(b, x[0], 1, 8, 2);
            slice(b, y, 2, 2, 3)
        },
        "%1 = slice %0 {5:5:6}; return %1",
    ),
    case(
        "slice(broadcast(x)) = broadcast(slice(x))",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[5, 8], &[1]);
            slice(b, y, 0, 2, 1)
        },
        "%1 = broadcast %0 {axes=[1]}; return %1",
    ),
    case(
        "slice(broadcast(x)) = broadcast(slice(x))",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[8, 5], &[0]);
            slice(b, y, 0, 2, 1)
        },
        "%1 = slice %0 {0:2:1}; %2 = broadcast %1 {axes=[0]}; return %2",
    ),
    case(
        "slice(concatenate(x, ..)) = slice(x)",
        "f32[8] f32[4]",
        |b, x| {
            let y = push(b, Concatenate { axis: 0 }, x);
            slice(b, y, 8, 12, 2)
        },
        "%2 = slice %1 {0:4:2}; return %2",
    ),
    case(
        "",
        "f32[8] f32[4]",
        |b, x| {
            let y = push(b, Concatenate { axis: 0 }, x);
            slice(b, y, 7, 9, 1)
        },
        "%2 = concatenate %0, %1 {axis=0}; %3 = slice %2 {7:9:1}; return %3",
    ),
    case(
        "slice(pad(x)) = slice(x)",
        "f32[8] f32[]",
        |b, x| {
            let y = pad(b, x[0], x[1], 2, 3, 0);
            slice(b, y, 2, 10, 1)
        },
        "return %0",
    ),
    case(
        "slice(pad(x)) = slice(x)",
        "f32[8] f32[]",
        |b, x| {
            let y = pad(b, x[0], x[1], -2, 3, 0);
            slice(b, y, 0, 6, 1)
        },
        "%2 = slice %0 {2:8:1}; return %2",
    ),
    case(
        "",
        "f32[8] f32[]",
        |b, x| {
            let y = pad(b, x[0], x[1], 2, 3, 0);
            slice(b, y, 1, 10, 1)
        },
        "%2 = pad %0, %1 {2_3_0}; %3 = slice %2 {1:10:1}; return %3",
    ),
    case("pad(x) = x", "f32[8] f32[]", |b, x| pad(b, x[0], x[1], 0, 0, 0), "return %0"),
    case(
        "pad(pad(x)) = pad(x)",
        "f32[8] f32[]",
        |b, x| {
            let y = pad(b, x[0], x[1], 1, 0, 0);
            pad(b, y, x[1], 2, 3, 0)
        },
        "%2 = pad %0, %1 {3_3_0}; return %2",
    ),
    case(
        "",
        "f32[8] f32[]",
        |b, x| {
            let y = pad(b, x[0], x[1], 1, 0, 0);
            pad(b, y, x[1], -2, 3, 0)
        },
        "%2 = pad %0, %1 {1_0_0}; %3 = pad %2, %1 {-2_3_0}; return %3",
    ),
    case("concatenate(x) = x", "f32[8]", |b, x| push(b, Concatenate { axis: 0 }, x), "return %0"),
    case(
        "concatenate(x, empty) = concatenate(x)",
        "f32[8] f32[0] f32[4]",
        |b, x| push(b, Concatenate { axis: 0 }, x),
        "%3 = concatenate %0, %2 {axis=0}; return %3",
    ),
    case(
        "concatenate(concatenate(x, y), z) = concatenate(x, y, z)",
        "f32[8] f32[4] f32[1]",
        |b, x| {
            let y = push(b, Concatenate { axis: 0 }, &x[..2]);
            push(b, Concatenate { axis: 0 }, &[y, x[2]])
        },
        "%3 = concatenate %0, %1, %2 {axis=0}; return %3",
    ),
    case(
        "concatenate(x[a:b], x[b:c]) = x[a:c]",
        "f32[8]",
        |b, x| {
            let (y, z) = (slice(b, x[0], 1, 3, 1), slice(b, x[0], 3, 7, 1));
            push(b, Concatenate { axis: 0 }, &[y, z])
        },
        "%1 = slice %0 {1:7:1}; return %1",
    ),
    case(
        "concatenate(x[a:b], x[b:c]) = x[a:c]",
        "f32[8]",
        |b, x| {
            let (y, z) = (slice(b, x[0], 0, 3, 1), slice(b, x[0], 3, 8, 1));
            push(b, Concatenate { axis: 0 }, &[y, z, y])
        },
        "%1 = slice %0 {0:3:1}; %2 = concatenate %0, %1 {axis=0}; return %2",
    ),
    case(
        "",
        "f32[8]",
        |b, x| {
            let (y, z) = (slice(b, x[0], 3, 8, 1), slice(b, x[0], 0, 3, 1));
            push(b, Concatenate { axis: 0 }, &[y, z])
        },
        "%1 = slice %0 {3:8:1}; %2 = slice %0 {0:3:1}; %3 = concatenate %1, %2 {axis=0}; return %3",
    ),
    case("reverse(x) = x", "f32[8,1]", |b, x| push(b, Reverse { axes: [1].as_slice().into() }, x), "return %0"),
    case(
        "reverse(x) = x",
        "f32[8,1]",
        |b, x| push(b, Reverse { axes: [0, 1].as_slice().into() }, x),
        "%1 = reverse %0 {axes=[0]}; return %1",
    ),
    case(
        "reverse(reverse(x)) = reverse(x)",
        "f32[2,4]",
        |b, x| {
            let y = push(b, Reverse { axes: [0].as_slice().into() }, x);
            push(b, Reverse { axes: [0, 1].as_slice().into() }, &[y])
        },
        "%1 = reverse %0 {axes=[1]}; return %1",
    ),
    case(
        "reverse(broadcast(x)) = broadcast(x)",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[5, 8], &[1]);
            push(b, Reverse { axes: [0, 1].as_slice().into() }, &[y])
        },
        "%1 = broadcast %0 {axes=[1]}; %2 = reverse %1 {axes=[1]}; return %2",
    ),
    case(
        "dynamic-slice(x) = x",
        "f32[8] s32[]",
        |b, x| push(b, DynamicSlice { sizes: [8].as_slice().into() }, x),
        "return %0",
    ),
    case(
        "dynamic-slice(x, constants) = slice(x)",
        "f32[8]",
        |b, x| {
            let y = scalar(b, DType::S32, -3.0);
            push(b, DynamicSlice { sizes: [3].as_slice().into() }, &[x[0], y])
        },
        "%1 = slice %0 {0:3:1}; return %1",
    ),
    case(
        "dynamic-slice(x, constants) = slice(x)",
        "f32[8]",
        |b, x| {
            let y = scalar(b, DType::U64, 1e30);
            push(b, DynamicSlice { sizes: [3].as_slice().into() }, &[x[0], y])
        },
        "%1 = slice %0 {5:8:1}; return %1",
    ),
    case("dynamic-update-slice(x, y) = y", "f32[8] f32[8] s32[]", |b, x| push(b, DynamicUpdateSlice, x), "return %1"),
    case(
        "reduce(x) = reshape(x)",
        "f32[8,1]",
        |b, x| reduce(b, ReduceKind::Max, x[0], &[1]),
        "%1 = reshape %0; return %1",
    ),
    case("reduce(x) = reshape(x)", "s32[8]", |b, x| reduce(b, ReduceKind::Sum, x[0], &[]), "return %0"),
    case("", "f32[8,1]", |b, x| reduce(b, ReduceKind::Sum, x[0], &[1]), "%1 = reduce-sum %0 {axes=[1]}; return %1"),
    case(
        "reduce(reduce(x)) = reduce(x)",
        "s32[2,2,2]",
        |b, x| {
            let y = reduce(b, ReduceKind::Sum, x[0], &[0]);
            reduce(b, ReduceKind::Sum, y, &[1])
        },
        "%1 = reduce-sum %0 {axes=[0, 2]}; return %1",
    ),
    case(
        "",
        "f32[2,2,2]",
        |b, x| {
            let y = reduce(b, ReduceKind::Sum, x[0], &[0]);
            reduce(b, ReduceKind::Sum, y, &[1])
        },
        "%1 = reduce-sum %0 {axes=[0]}; %2 = reduce-sum %1 {axes=[1]}; return %2",
    ),
    case(
        "max(broadcast(x)) = x",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[2, 8, 3], &[1]);
            reduce(b, ReduceKind::Max, y, &[0])
        },
        "%1 = broadcast %0 {axes=[0]}; return %1",
    ),
    case(
        "",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[0, 8], &[1]);
            reduce(b, ReduceKind::Max, y, &[0])
        },
        "%1 = broadcast %0 {axes=[1]}; %2 = reduce-max %1 {axes=[0]}; return %2",
    ),
    // A product of repetitions is a power, and its order matters.
    case(
        "",
        "f32[8]",
        |b, x| {
            let y = broadcast(b, x[0], &[2, 8], &[1]);
            reduce(b, ReduceKind::Prod, y, &[0])
        },
        "%1 = broadcast %0 {axes=[1]}; %2 = reduce-prod %1 {axes=[0]}; return %2",
    ),
    case(
        "",
        "f32[2,2,2]",
        |b, x| {
            let y = reduce(b, ReduceKind::Prod, x[0], &[0]);
            reduce(b, ReduceKind::Prod, y, &[1])
        },
        "%1 = reduce-prod %0 {axes=[0]}; %2 = reduce-prod %1 {axes=[1]}; return %2",
    ),
    // Rules answer each other.
    case(
        "",
        "f32[2,4]",
        |b, x| {
            let y = neg(b, x[0]);
            let z = with(b, Multiply, y, -1.0);
            with(b, Add, z, -0.0)
        },
        "return %0",
    ),
    // A barrier, a reshard and declared axes are where they are for a reason.
    case(
        "",
        "f32[8]",
        |b, x| {
            let y = neg(b, x[0]);
            let z = push(b, Barrier, &[y]);
            neg(b, z)
        },
        "%1 = negate %0; %2 = opt-barrier %1; %3 = negate %2; return %3",
    ),
];
