//! Cases of elementwise identities, and what they must leave alone (cases without a rule).

use super::*;
use BinaryKind::{Add, And, Divide, Maximum, Minimum, Multiply, Or, ShiftLeft, ShiftRightLogical, Subtract, Xor};
use UnaryKind::{Abs, Floor, Not, Sign};

pub const CASES: &[Case] = &[
    case("x + -0 = x", "f32[8]", |b, x| with(b, Add, x[0], -0.0), "return %0"),
    case(
        "x + -0 = x",
        "bf16[8]",
        |b, x| {
            let y = number(b, x[0], -0.0);
            binary(b, Add, y, x[0])
        },
        "return %0",
    ),
    case("", "f32[8]", |b, x| with(b, Add, x[0], 0.0), "%1 = splat 0; %2 = add %0, %1; return %2"),
    case("x + 0 = x", "s32[8]", |b, x| with(b, Add, x[0], 0.0), "return %0"),
    case(
        "x + 0 = x",
        "f32[8]",
        |b, x| {
            let y = binary(b, Multiply, x[0], x[0]);
            with(b, Add, y, 0.0)
        },
        "%1 = multiply %0, %0; return %1",
    ),
    case(
        "x + 0 = x",
        "f64[8]",
        |b, x| {
            let y = with(b, Add, x[0], 0.0);
            with(b, Add, y, 0.0)
        },
        "%1 = splat 0; %2 = add %0, %1; return %2",
    ),
    case(
        "x + -y = x - y",
        "f32[8] f32[8]",
        |b, x| {
            let y = neg(b, x[1]);
            binary(b, Add, x[0], y)
        },
        "%2 = subtract %0, %1; return %2",
    ),
    case(
        "-x + y = y - x",
        "s8[8] s8[8]",
        |b, x| {
            let y = neg(b, x[1]);
            binary(b, Add, y, x[0])
        },
        "%2 = subtract %0, %1; return %2",
    ),
    case("x - 0 = x", "f32[8]", |b, x| with(b, Subtract, x[0], 0.0), "return %0"),
    case("", "f32[8]", |b, x| with(b, Subtract, x[0], -0.0), "%1 = splat -0; %2 = subtract %0, %1; return %2"),
    case(
        "-0 - x = -x",
        "f32[8]",
        |b, x| {
            let y = number(b, x[0], -0.0);
            binary(b, Subtract, y, x[0])
        },
        "%1 = negate %0; return %1",
    ),
    case(
        "-0 - x = -x",
        "s32[8]",
        |b, x| {
            let y = number(b, x[0], 0.0);
            binary(b, Subtract, y, x[0])
        },
        "%1 = negate %0; return %1",
    ),
    case(
        "",
        "f32[8]",
        |b, x| {
            let y = number(b, x[0], 0.0);
            binary(b, Subtract, y, x[0])
        },
        "%1 = splat 0; %2 = subtract %1, %0; return %2",
    ),
    case(
        "x - -y = x + y",
        "f64[8] f64[8]",
        |b, x| {
            let y = neg(b, x[1]);
            binary(b, Subtract, x[0], y)
        },
        "%2 = add %0, %1; return %2",
    ),
    case("x - x = 0", "u8[8]", |b, x| binary(b, Subtract, x[0], x[0]), "%1 = splat 0; return %1"),
    case("", "f32[8]", |b, x| binary(b, Subtract, x[0], x[0]), "%1 = subtract %0, %0; return %1"),
    case("x * 1 = x", "f16[8]", |b, x| with(b, Multiply, x[0], 1.0), "return %0"),
    case("x * -1 = -x", "f32[8]", |b, x| with(b, Multiply, x[0], -1.0), "%1 = negate %0; return %1"),
    case("x * -1 = -x", "s8[8]", |b, x| with(b, Multiply, x[0], -1.0), "%1 = negate %0; return %1"),
    case("x * 0 = 0", "s32[8]", |b, x| with(b, Multiply, x[0], 0.0), "%1 = splat 0; return %1"),
    case("", "f32[8]", |b, x| with(b, Multiply, x[0], 0.0), "%1 = splat 0; %2 = multiply %0, %1; return %2"),
    case(
        "-x * -y = x * y",
        "f32[8] f32[8]",
        |b, x| {
            let (x, y) = (neg(b, x[0]), neg(b, x[1]));
            binary(b, Multiply, x, y)
        },
        "%2 = multiply %0, %1; return %2",
    ),
    case("x / 1 = x", "s32[8]", |b, x| with(b, Divide, x[0], 1.0), "return %0"),
    case("x / -1 = -x", "s8[8]", |b, x| with(b, Divide, x[0], -1.0), "%1 = negate %0; return %1"),
    case(
        "x / 2^k = x * 2^-k",
        "f32[8]",
        |b, x| with(b, Divide, x[0], -4.0),
        "%1 = splat -0.25; %2 = multiply %0, %1; return %2",
    ),
    case("", "f32[8]", |b, x| with(b, Divide, x[0], 3.0), "%1 = splat 3; %2 = divide %0, %1; return %2"),
    case("", "f16[8]", |b, x| with(b, Divide, x[0], 32768.0), "%1 = splat 32768; %2 = divide %0, %1; return %2"),
    case(
        "-x / -y = x / y",
        "f64[8] f64[8]",
        |b, x| {
            let (x, y) = (neg(b, x[0]), neg(b, x[1]));
            binary(b, Divide, x, y)
        },
        "%2 = divide %0, %1; return %2",
    ),
    case(
        "",
        "s8[8] s8[8]",
        |b, x| {
            let (x, y) = (neg(b, x[0]), neg(b, x[1]));
            binary(b, Divide, x, y)
        },
        "%2 = negate %0; %3 = negate %1; %4 = divide %2, %3; return %4",
    ),
    case("max(x, x) = x", "f32[8]", |b, x| binary(b, Maximum, x[0], x[0]), "return %0"),
    case("max(x, lowest) = x", "f32[8]", |b, x| with(b, Maximum, x[0], f64::NEG_INFINITY), "return %0"),
    case("max(x, lowest) = x", "u8[8]", |b, x| with(b, Maximum, x[0], 0.0), "return %0"),
    case("", "f32[8]", |b, x| with(b, Maximum, x[0], f64::INFINITY), "%1 = splat inf; %2 = maximum %0, %1; return %2"),
    case("min(x, x) = x", "s32[8]", |b, x| binary(b, Minimum, x[0], x[0]), "return %0"),
    case("min(x, highest) = x", "s8[8]", |b, x| with(b, Minimum, x[0], 127.0), "return %0"),
    case("x & x = x", "s32[8]", |b, x| binary(b, And, x[0], x[0]), "return %0"),
    case("x & all ones = x", "u8[8]", |b, x| with(b, And, x[0], 255.0), "return %0"),
    case("x & all ones = x", "pred[8]", |b, x| with(b, And, x[0], 1.0), "return %0"),
    case("x & 0 = 0", "pred[8]", |b, x| with(b, And, x[0], 0.0), "%1 = splat 0; return %1"),
    case("x | x = x", "pred[8]", |b, x| binary(b, Or, x[0], x[0]), "return %0"),
    case("x | 0 = x", "s32[8]", |b, x| with(b, Or, x[0], 0.0), "return %0"),
    case("x | all ones = all ones", "s32[8]", |b, x| with(b, Or, x[0], -1.0), "%1 = splat -1; return %1"),
    case("x ^ 0 = x", "u8[8]", |b, x| with(b, Xor, x[0], 0.0), "return %0"),
    case("x ^ x = 0", "u8[8]", |b, x| binary(b, Xor, x[0], x[0]), "%1 = splat 0; return %1"),
    case(
        "x << 0 = x, x >> 0 = x",
        "s32[8]",
        |b, x| {
            let y = with(b, ShiftLeft, x[0], 0.0);
            with(b, ShiftRightLogical, y, 0.0)
        },
        "return %0",
    ),
    case(
        "-(-x) = x",
        "f32[8]",
        |b, x| {
            let y = neg(b, x[0]);
            neg(b, y)
        },
        "return %0",
    ),
    case(
        "|-x| = |x|",
        "s8[8]",
        |b, x| {
            let y = neg(b, x[0]);
            unary(b, Abs, y)
        },
        "%1 = abs %0; return %1",
    ),
    case(
        "||x|| = |x|",
        "s8[8]",
        |b, x| {
            let y = unary(b, Abs, x[0]);
            unary(b, Abs, y)
        },
        "%1 = abs %0; return %1",
    ),
    case(
        "sign(sign(x)) = sign(x)",
        "f32[8]",
        |b, x| {
            let y = unary(b, Sign, x[0]);
            unary(b, Sign, y)
        },
        "%1 = sign %0; return %1",
    ),
    case(
        "round(whole) = whole",
        "f32[8]",
        |b, x| {
            let y = unary(b, UnaryKind::Ceil, x[0]);
            unary(b, Floor, y)
        },
        "%1 = ceil %0; return %1",
    ),
    case(
        "!!x = x",
        "pred[8]",
        |b, x| {
            let y = unary(b, Not, x[0]);
            unary(b, Not, y)
        },
        "return %0",
    ),
    case(
        "!(x < y) = x >= y",
        "s32[8] s32[8]",
        |b, x| {
            let y = push(b, Compare(Direction::Lt), x);
            unary(b, Not, y)
        },
        "%2 = compare %0, %1 {GE}; return %2",
    ),
    case(
        "!(x < y) = x >= y",
        "f32[8] f32[8]",
        |b, x| {
            let y = push(b, Compare(Direction::Eq), x);
            unary(b, Not, y)
        },
        "%2 = compare %0, %1 {NE}; return %2",
    ),
    case(
        "",
        "f32[8] f32[8]",
        |b, x| {
            let y = push(b, Compare(Direction::Lt), x);
            unary(b, Not, y)
        },
        "%2 = compare %0, %1 {LT}; %3 = not %2; return %3",
    ),
    case(
        "x == x is true, x < x is false",
        "s32[8]",
        |b, x| push(b, Compare(Direction::Ge), &[x[0], x[0]]),
        "%1 = splat 1; return %1",
    ),
    case(
        "x == x is true, x < x is false",
        "pred[8]",
        |b, x| push(b, Compare(Direction::Ne), &[x[0], x[0]]),
        "%1 = splat 0; return %1",
    ),
    case("", "f32[8]", |b, x| push(b, Compare(Direction::Eq), &[x[0], x[0]]), "%1 = compare %0, %0 {EQ}; return %1"),
    case(
        "(p == true) = p, (p != false) = p",
        "pred[8]",
        |b, x| {
            let y = number(b, x[0], 1.0);
            push(b, Compare(Direction::Eq), &[x[0], y])
        },
        "return %0",
    ),
    case(
        "(p == true) = p, (p != false) = p",
        "pred[8]",
        |b, x| {
            let y = number(b, x[0], 0.0);
            push(b, Compare(Direction::Ne), &[y, x[0]])
        },
        "return %0",
    ),
    case("select(p, x, x) = x", "pred[8] f32[8]", |b, x| push(b, Select, &[x[0], x[1], x[1]]), "return %1"),
    case(
        "select(true, x, y) = x",
        "f32[8] pred[8] f32[8]",
        |b, x| {
            let p = number(b, x[1], 1.0);
            push(b, Select, &[p, x[0], x[2]])
        },
        "return %0",
    ),
    case(
        "select(false, x, y) = y",
        "f32[8] pred[8] f32[8]",
        |b, x| {
            let p = number(b, x[1], 0.0);
            push(b, Select, &[p, x[0], x[2]])
        },
        "return %2",
    ),
    case(
        "select(!p, x, y) = select(p, y, x)",
        "pred[8] f32[8] f32[8]",
        |b, x| {
            let p = unary(b, Not, x[0]);
            push(b, Select, &[p, x[1], x[2]])
        },
        "%3 = select %0, %2, %1; return %3",
    ),
    case(
        "select(p, true, false) = p",
        "pred[8]",
        |b, x| {
            let (t, f) = (number(b, x[0], 1.0), number(b, x[0], 0.0));
            push(b, Select, &[x[0], t, f])
        },
        "return %0",
    ),
    case(
        "select(p, select(p, x, y), z) = select(p, x, z)",
        "pred[8] f32[8] f32[8] f32[8]",
        |b, x| {
            let y = push(b, Select, &x[..3]);
            push(b, Select, &[x[0], y, x[3]])
        },
        "%4 = select %0, %1, %3; return %4",
    ),
    case(
        "select(p, x, select(p, y, z)) = select(p, x, z)",
        "pred[8] f32[8] f32[8] f32[8]",
        |b, x| {
            let y = push(b, Select, &x[..3]);
            push(b, Select, &[x[0], x[3], y])
        },
        "%4 = select %0, %3, %2; return %4",
    ),
    case("convert(x) = x", "f32[8]", |b, x| push(b, Convert(DType::F32), x), "return %0"),
    case(
        "convert(convert(x)) = convert(x)",
        "bf16[8]",
        |b, x| {
            let y = push(b, Convert(DType::F32), x);
            push(b, Convert(DType::BF16), &[y])
        },
        "return %0",
    ),
    case(
        "convert(convert(x)) = convert(x)",
        "s8[8]",
        |b, x| {
            let y = push(b, Convert(DType::S32), x);
            push(b, Convert(DType::U8), &[y])
        },
        "%1 = convert %0; return %1",
    ),
    case(
        "convert(convert(x)) = convert(x)",
        "pred[8]",
        |b, x| {
            let y = push(b, Convert(DType::BF16), x);
            push(b, Convert(DType::S32), &[y])
        },
        "%1 = convert %0; return %1",
    ),
    case(
        "",
        "f32[8]",
        |b, x| {
            let y = push(b, Convert(DType::BF16), x);
            push(b, Convert(DType::F32), &[y])
        },
        "%1 = convert %0; %2 = convert %1; return %2",
    ),
    case(
        "",
        "s32[8]",
        |b, x| {
            let y = push(b, Convert(DType::F64), x);
            push(b, Convert(DType::S8), &[y])
        },
        "%1 = convert %0; %2 = convert %1; return %2",
    ),
    case(
        "",
        "s8[8]",
        |b, x| {
            let y = push(b, Convert(DType::U32), x);
            push(b, Convert(DType::F32), &[y])
        },
        "%1 = convert %0; %2 = convert %1; return %2",
    ),
    case("bitcast(x) = x", "f32[8]", |b, x| push(b, BitcastConvert(DType::F32), x), "return %0"),
    case(
        "bitcast(bitcast(x)) = bitcast(x)",
        "s32[8]",
        |b, x| {
            let y = push(b, BitcastConvert(DType::F32), x);
            push(b, BitcastConvert(DType::U32), &[y])
        },
        "%1 = bitcast-convert %0; return %1",
    ),
];
