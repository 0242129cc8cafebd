//! Elementwise ops against closures over single numbers.

use meshloom::ir::DType::{self, *};
use meshloom::ops::*;

use crate::harness::*;

/// Relative rounding error allowed in a result of this type.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        F8E5M2 => 0.25,
        F8E4M3FN => 0.125,
        BF16 => 8e-3,
        F16 => 1e-3,
        F32 => 1e-6,
        F64 => 1e-13,
        _ => 0.0,
    }
}

fn bit_count(dtype: DType) -> u32 {
    dtype.bit_count() as u32
}

/// The bits of a whole number in two's complement.
fn bits(dtype: DType, number: f64) -> u128 {
    number as i128 as u128 & ((1 << bit_count(dtype)) - 1)
}

/// Wraps a whole number to the bits of a type.
fn wrap(dtype: DType, number: i128) -> f64 {
    let bits = bit_count(dtype);
    if dtype == Pred {
        return (number & 1) as f64;
    }
    let low = number & ((1 << bits) - 1);
    let negative = dtype.is_signed_integer() && low >> (bits - 1) == 1;
    (if negative { low - (1 << bits) } else { low }) as f64
}

fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// By Newton's method.
fn erf_inv(y: f64) -> f64 {
    (0..100).fold(0.0, |x: f64, _| x - (erf(x) - y) / (std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp()))
}

fn unary_reference(kind: UnaryKind, dtype: DType, x: f64) -> f64 {
    match kind {
        UnaryKind::Abs => x.abs(),
        UnaryKind::Acos => x.acos(),
        UnaryKind::Acosh => x.acosh(),
        UnaryKind::Asin => x.asin(),
        UnaryKind::Asinh => x.asinh(),
        UnaryKind::Atan => x.atan(),
        UnaryKind::Atanh => x.atanh(),
        UnaryKind::Cbrt => x.cbrt(),
        UnaryKind::Ceil => x.ceil(),
        UnaryKind::Cosine => x.cos(),
        UnaryKind::Cosh => x.cosh(),
        UnaryKind::CountLeadingZeros => f64::from(bits(dtype, x).leading_zeros()) - 128.0 + bit_count(dtype) as f64,
        UnaryKind::Erf => erf(x),
        UnaryKind::Erfc => 1.0 - erf(x),
        UnaryKind::ErfInv => erf_inv(x),
        UnaryKind::Exponential => x.exp(),
        UnaryKind::ExponentialMinusOne => x.exp_m1(),
        UnaryKind::Floor => x.floor(),
        UnaryKind::IsFinite => f64::from(x.is_finite()),
        UnaryKind::Log => x.ln(),
        UnaryKind::LogPlusOne => x.ln_1p(),
        UnaryKind::Logistic => 1.0 / (1.0 + (-x).exp()),
        UnaryKind::Negate if dtype.is_float() => -x,
        UnaryKind::Negate => wrap(dtype, -(x as i128)),
        UnaryKind::Not => wrap(dtype, !(x as i128)),
        UnaryKind::PopulationCount => f64::from(bits(dtype, x).count_ones()),
        UnaryKind::RoundNearestAwayFromZero => x.round(),
        UnaryKind::RoundNearestEven => x.round_ties_even(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Sign if x == 0.0 => 0.0,
        UnaryKind::Sign => x.signum(),
        UnaryKind::Sine => x.sin(),
        UnaryKind::Sinh => x.sinh(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Tan => x.tan(),
        UnaryKind::Tanh => x.tanh(),
    }
}

/// Where the function is defined and smooth enough.
fn domain(kind: UnaryKind) -> (f64, f64) {
    match kind {
        UnaryKind::Acos | UnaryKind::Asin | UnaryKind::Atanh | UnaryKind::ErfInv => (-0.9, 0.9),
        UnaryKind::Acosh => (1.1, 5.0),
        UnaryKind::Cbrt | UnaryKind::Log | UnaryKind::Rsqrt | UnaryKind::Sqrt => (0.2, 4.0),
        UnaryKind::LogPlusOne => (-0.8, 3.0),
        UnaryKind::Tan => (-1.2, 1.2),
        _ => (-2.5, 2.5),
    }
}

fn class_text(class: OperandClass) -> &'static str {
    match class {
        OperandClass::Float => "a floating-point type",
        OperandClass::FloatOrSigned => "a floating-point or signed integer type",
        OperandClass::Numeric => "a number type",
        OperandClass::Integer => "an integer type",
        OperandClass::Bits => "an integer type or pred",
    }
}

fn integer_range(dtype: DType) -> (f64, f64) {
    match dtype {
        Pred => (0.0, 2.0),
        dtype if dtype.is_signed_integer() => (-100.0, 100.0),
        _ => (0.0, 200.0),
    }
}

/// Adds a rejection for every element type outside a class, and an acceptance for every one inside.
fn classed(mut entry: Entry, op: &Op, class: OperandClass, arity: usize, result: impl Fn(DType) -> DType) -> Entry {
    // The first one is in the snapshot.
    let mut types = DType::ALL.to_vec();
    types.sort_by_key(|&dtype| (dtype != F32, dtype != S32));
    for dtype in types {
        let operands = vec![format!("{dtype}[2,3]"); arity].join(" ");
        entry = if class.contains(dtype) {
            entry.accept(op.clone(), &format!("{operands} -> {}[2,3]", result(dtype)))
        } else {
            let wide = if matches!(dtype, S4 | U4) { " of at least 8 bits" } else { "" };
            let text = class_text(class);
            let message = format!("the element type of operand 0 must be {text}{wide}, found {dtype}; convert it");
            entry.reject(op.clone(), &operands, &message)
        };
    }
    entry
}

pub fn unary(kind: UnaryKind) -> Entry {
    let op: Op = Unary(kind).into();
    let result = |dtype| if kind == UnaryKind::IsFinite { Pred } else { dtype };
    let mut entry = classed(Entry::new(format!("unary_{}", kind.name())), &op, kind.class(), 1, result);
    let sample = entry.accepts[0].operands[0].dtype;
    entry = entry
        .accept(op.clone(), &format!("{sample}[] -> {}[]", result(sample)))
        .accept(op.clone(), &format!("{sample}[0,3] -> {}[0,3]", result(sample)))
        .reject(op.clone(), "", "expected 1 operand, found 0")
        .reject(op.clone(), &format!("{sample}[2] {sample}[2]"), "expected 1 operand, found 2");
    for dtype in DType::ALL.into_iter().filter(|dtype| kind.class().contains(*dtype)) {
        let (low, high) = if dtype.is_float() { domain(kind) } else { integer_range(dtype) };
        for dims in shapes(dtype, &[&[], &[2, 1, 3]], &[3, 5]) {
            let x = random(dtype, dims, low, high);
            let y = Tensor::from_fn(result(dtype), dims, |index| unary_reference(kind, dtype, x.at(index)));
            entry = entry.run(op.clone(), &[x], [y], tolerance(dtype));
        }
    }
    if kind == UnaryKind::IsFinite {
        let x = Tensor::new(F32, &[4], &[f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0]);
        entry = entry.run(op.clone(), &[x], [Tensor::new(Pred, &[4], &[0.0, 0.0, 0.0, 1.0])], 0.0);
    }
    if result(F64) == Pred || !kind.class().contains(F64) {
        return entry.without_gradient("neither operands nor results are floating-point");
    }
    let (low, high) = domain(kind);
    entry.gradient(op, &[random(F64, &[4, 5], low, high)])
}

fn binary_reference(kind: BinaryKind, dtype: DType, x: f64, y: f64) -> f64 {
    if dtype.is_float() {
        return match kind {
            BinaryKind::Add => x + y,
            BinaryKind::Atan2 => x.atan2(y),
            BinaryKind::Divide => x / y,
            BinaryKind::Maximum => x.max(y),
            BinaryKind::Minimum => x.min(y),
            BinaryKind::Multiply => x * y,
            BinaryKind::Power => x.powf(y),
            BinaryKind::Remainder => x % y,
            BinaryKind::Subtract => x - y,
            BinaryKind::And
            | BinaryKind::Or
            | BinaryKind::ShiftLeft
            | BinaryKind::ShiftRightArithmetic
            | BinaryKind::ShiftRightLogical
            | BinaryKind::Xor => unreachable!("not defined on floating point"),
        };
    }
    let (x, y) = (x as i128, y as i128);
    let bits = dtype.bit_count() as i128;
    let unsigned = x & ((1 << bits) - 1);
    let result = match kind {
        BinaryKind::Add => x + y,
        BinaryKind::And => x & y,
        BinaryKind::Atan2 | BinaryKind::Power => unreachable!("not defined on integers"),
        BinaryKind::Divide => x / y,
        BinaryKind::Maximum => x.max(y),
        BinaryKind::Minimum => x.min(y),
        BinaryKind::Multiply => x * y,
        BinaryKind::Or => x | y,
        BinaryKind::Remainder => x % y,
        BinaryKind::ShiftLeft if y >= bits => 0,
        BinaryKind::ShiftLeft => x << y,
        // An arithmetic shift takes the highest bit for a sign, whatever the type.
        BinaryKind::ShiftRightArithmetic => {
            let signed = if unsigned >> (bits - 1) == 1 { unsigned - (1 << bits) } else { unsigned };
            signed >> y.min(bits - 1)
        }
        BinaryKind::ShiftRightLogical if y >= bits => 0,
        BinaryKind::ShiftRightLogical => unsigned >> y,
        BinaryKind::Subtract => x - y,
        BinaryKind::Xor => x ^ y,
    };
    wrap(dtype, result)
}

pub fn binary(kind: BinaryKind) -> Entry {
    let op: Op = Binary(kind).into();
    let mut entry = classed(Entry::new(format!("binary_{}", kind.name())), &op, kind.class(), 2, |dtype| dtype);
    let sample = entry.accepts[0].operands[0].dtype;
    let pair = |left: &str, right: &str| format!("{sample}{left} {sample}{right}");
    entry = entry
        .accept(op.clone(), &format!("{} -> {sample}[]", pair("[]", "[]")))
        .reject(op.clone(), &format!("{sample}[2]"), "expected 2 operands, found 1")
        .reject(op.clone(), &pair("[2,3]", "[2]"), "operand 1 must have 2 dimensions, found 1")
        .reject(op.clone(), &pair("[2,3]", "[]"), "operand 1 must have 2 dimensions, found 0")
        .reject(op.clone(), &pair("[2,3]", "[2,1]"), "dimension 1 of operand 1 must have size 3, found 1")
        .reject(op.clone(), &format!("{sample}[2] u16[2]"), &format!("must be {sample}, found u16"));
    let shifts =
        matches!(kind, BinaryKind::ShiftLeft | BinaryKind::ShiftRightArithmetic | BinaryKind::ShiftRightLogical);
    for dtype in DType::ALL.into_iter().filter(|dtype| kind.class().contains(*dtype)) {
        let (mut left, mut right) =
            if dtype.is_float() { ((-3.0, 3.0), (0.3, 2.0)) } else { (integer_range(dtype), integer_range(dtype)) };
        if kind == BinaryKind::Power {
            left = (0.2, 2.0);
        }
        if shifts {
            // Shifts by the width and more are defined too.
            right = (0.0, dtype.bit_count() as f64 + 4.0);
        }
        for dims in shapes(dtype, &[&[], &[2, 1, 3]], &[4, 5]) {
            let x = random(dtype, dims, left.0, left.1);
            let mut y = random(dtype, dims, right.0, right.1);
            if matches!(kind, BinaryKind::Divide | BinaryKind::Remainder) {
                y.values.iter_mut().filter(|value| **value == 0.0).for_each(|value| *value = 7.0);
            }
            let z = Tensor::from_fn(dtype, dims, |i| binary_reference(kind, dtype, x.at(i), y.at(i)));
            entry = entry.run(op.clone(), &[x, y], [z], tolerance(dtype));
        }
    }
    if !kind.class().contains(F64) {
        return entry.without_gradient("not defined on floating point");
    }
    let low = if kind == BinaryKind::Power { 0.3 } else { -3.0 };
    let operands = |dims: &[usize]| [random(F64, dims, low, 3.0), random(F64, dims, 0.4, 2.0)];
    entry = entry.gradient(op.clone(), &operands(&[4, 5])).gradient_in(op.clone(), &operands(&[]), &[0]).gradient_in(
        op.clone(),
        &operands(&[]),
        &[1],
    );
    match kind {
        BinaryKind::Power => {
            // A base that is negative or zero has a gradient where the exponent is a whole number.
            let base = Tensor::new(F64, &[7], &[-1.5, -2.0, -0.7, 0.0, 0.0, 0.0, 0.0]);
            let exponent = Tensor::new(F64, &[7], &[2.0, 3.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
            entry.gradient_in(op, &[base, exponent], &[0])
        }
        // All four quadrants.
        BinaryKind::Atan2 => entry.gradient(op, &[random(F64, &[12], -2.0, 2.0), random(F64, &[12], -1.5, 2.0)]),
        // A quotient is smooth for negative divisors too; the remainder's jumps are not near these numbers.
        BinaryKind::Divide | BinaryKind::Remainder => {
            entry.gradient(op, &[random(F64, &[9], -3.0, 3.0), random(F64, &[9], -2.0, -0.5)])
        }
        _ => entry,
    }
}

pub fn compare(direction: Direction) -> Entry {
    let op: Op = Compare(direction).into();
    let holds = |x: f64, y: f64| match direction {
        Direction::Eq => x == y,
        Direction::Ne => x != y,
        Direction::Ge => x >= y,
        Direction::Gt => x > y,
        Direction::Le => x <= y,
        Direction::Lt => x < y,
    };
    let mut entry = Entry::new(format!("compare_{}", direction.name().to_lowercase()))
        .accept(op.clone(), "f32[2,3] f32[2,3] -> pred[2,3]")
        .reject(op.clone(), "f32[2]", "expected 2 operands, found 1")
        .reject(op.clone(), "f32[2] s32[2]", "the element type of operand 1 must be f32, found s32")
        .reject(op.clone(), "f32[2] f32[3]", "dimension 0 of operand 1 must have size 2, found 3")
        .reject(op.clone(), "f32[2] f32[]", "operand 1 must have 1 dimension, found 0");
    for dtype in DType::ALL {
        if matches!(dtype, S4 | U4) {
            let message = format!("must be a number type of at least 8 bits, found {dtype}");
            entry = entry.reject(op.clone(), &format!("{dtype}[2] {dtype}[2]"), &message);
            continue;
        }
        entry = entry.accept(op.clone(), &format!("{dtype}[] {dtype}[] -> pred[]"));
        let bits = dtype.bit_count() as i32;
        // Far values show whether the sign counts.
        let far = if dtype == F8E4M3FN {
            256.0
        } else if dtype.is_float() {
            1e4
        } else {
            2f64.powi(bits - 1)
        };
        let near = if dtype.is_signed_integer() || dtype.is_float() { -1.0 } else { far };
        let (x, y) = ([1.0, 0.0, near, 3.0, 0.0, far / 2.0], [0.0, 1.0, 3.0, near, 0.0, far / 2.0]);
        let (x, y) = (Tensor::new(dtype, &[6], &x), Tensor::new(dtype, &[6], &y));
        let z = Tensor::from_fn(Pred, &[6], |i| f64::from(holds(x.at(i), y.at(i))));
        entry = entry.run(op.clone(), &[x, y], [z], 0.0);
    }
    entry.without_gradient("the result is pred")
}

pub fn clamp() -> Entry {
    let mut entry = Entry::new("clamp")
        .accept(Clamp, "f32[2,3] f32[2,3] f32[] -> f32[2,3]")
        .accept(Clamp, "f32[] f32[2,3] f32[2,3] -> f32[2,3]")
        .accept(Clamp, "s8[] s8[] s8[] -> s8[]")
        .accept(Clamp, "f32[] f32[0,3] f32[] -> f32[0,3]")
        .reject(Clamp, "f32[2] f32[2]", "expected 3 operands, found 2")
        .reject(Clamp, "pred[2] pred[2] pred[2]", "the element type of operand 1 must be a number type, found pred")
        .reject(Clamp, "s32[2] f32[2] f32[2]", "the element type of operand 0 must be f32, found s32")
        .reject(Clamp, "f32[2] f32[2] bf16[]", "the element type of operand 2 must be f32, found bf16")
        .reject(Clamp, "f32[2] f32[] f32[]", "operand 0 must have 0 dimensions, found 1")
        .reject(Clamp, "f32[] f32[3] f32[2]", "dimension 0 of operand 2 must have size 3, found 2");
    let bounds: [[&[usize]; 3]; 4] = [[&[], &[9], &[]], [&[9], &[9], &[9]], [&[], &[3, 3], &[3, 3]], [&[], &[], &[]]];
    for dtype in DType::ALL.into_iter().filter(|&dtype| OperandClass::Numeric.contains(dtype)) {
        for dims in bounds {
            let x = distinct(dtype, dims[1]);
            let (low, high) = (random(dtype, dims[0], -3.0, 2.0), random(dtype, dims[2], 0.0, 4.0));
            let y = Tensor::from_fn(dtype, dims[1], |i| {
                let bound = |bound: &Tensor| if bound.dims().is_empty() { bound.values[0] } else { bound.at(i) };
                x.at(i).max(bound(&low)).min(bound(&high))
            });
            entry = entry.run(Clamp, &[low, x, high], [y], 0.0);
        }
    }
    for dims in bounds {
        let (low, high) = (random(F64, dims[0], -1.0, 0.0), random(F64, dims[2], 0.1, 1.0));
        entry = entry.gradient(Clamp, &[low, f64s(dims[1]), high]);
    }
    // Bounds that cross: the upper one wins, wherever the operand is.
    let (low, high) = (Tensor::scalar(F64, 0.5), Tensor::scalar(F64, -0.5));
    entry.gradient(Clamp, &[low, f64s(&[9]), high]).with_vjp_snapshot()
}

pub fn select() -> Entry {
    let mut entry = Entry::new("select")
        .accept(Select, "pred[2,3] f32[2,3] f32[2,3] -> f32[2,3]")
        .accept(Select, "pred[] s8[] s8[] -> s8[]")
        .accept(Select, "pred[2] pred[2] pred[2] -> pred[2]")
        .reject(Select, "pred[2] f32[2]", "expected 3 operands, found 2")
        .reject(Select, "s32[2] f32[2] f32[2]", "the element type of operand 0 must be pred, found s32")
        .reject(Select, "pred[] f32[2] f32[2]", "operand 1 must have 0 dimensions, found 1")
        .reject(Select, "pred[2] f32[2] bf16[2]", "the element type of operand 2 must be f32, found bf16")
        .reject(Select, "pred[2] f32[2] f32[3]", "dimension 0 of operand 2 must have size 2, found 3");
    for dtype in DType::ALL {
        let (low, high) = if dtype == Pred { (0.0, 2.0) } else { (0.0, 100.0) };
        let p = distinct(Pred, &[3, 4]);
        let (x, y) = (random(dtype, &[3, 4], low, high), distinct(dtype, &[3, 4]));
        let z = Tensor::from_fn(dtype, &[3, 4], |i| if p.at(i) == 1.0 { x.at(i) } else { y.at(i) });
        entry = entry.run(Select, &[p, x, y], [z], 0.0);
    }
    entry
        .gradient(Select, &[distinct(Pred, &[3, 4]), f64s(&[3, 4]), random(F64, &[3, 4], 0.0, 1.0)])
        .gradient(Select, &[Tensor::scalar(Pred, 1.0), f64s(&[]), random(F64, &[], 0.0, 1.0)])
}

fn converted(from: DType, to: DType, x: f64) -> f64 {
    match (from.is_float(), to) {
        (_, Pred) => f64::from(x != 0.0),
        (_, to) if to.is_float() => x,
        // In range by choice of the inputs.
        (true, _) => x.trunc(),
        (false, to) => wrap(to, x as i128),
    }
}

pub fn convert() -> Entry {
    let mut entry = Entry::new("convert")
        .accept(Convert(BF16), "f32[2,3] -> bf16[2,3]")
        .accept(Convert(F32), "f32[] -> f32[]")
        .reject(Convert(F32), "", "expected 1 operand, found 0")
        .reject(Convert(F32), "f32[] f32[]", "expected 1 operand, found 2");
    for from in DType::ALL {
        for to in DType::ALL {
            entry = entry.accept(Convert(to), &format!("{from}[2] -> {to}[2]"));
            let signed = |dtype: DType| dtype.is_float() || dtype.is_signed_integer();
            // Integers wrap, but what a number out of range becomes on the way from floating point is not defined.
            let low = if signed(from) && (!from.is_float() || signed(to)) { -100.0 } else { 0.0 };
            let x =
                match from {
                    Pred => distinct(Pred, &[9]),
                    from if from.is_integer() => random(from, &[9], low, 120.0),
                    // Every fourth is zero, so that both values of pred occur.
                    from => Tensor::from_fn(from, &[9], |i| {
                        if i[0] % 4 == 0 { 0.0 } else { random(F64, &[9], low, 120.0).at(i) }
                    }),
                };
            let y = Tensor::from_fn(to, &[9], |i| converted(from, to, x.at(i)));
            entry = entry.run(Convert(to), &[x], [y], 0.0);
        }
    }
    // The halves of small whole numbers convert exactly, and so do numbers a step away.
    let exact = Tensor::from_fn(F64, &[5], |i| i[0] as f64 / 2.0 - 1.0);
    for to in [F16, BF16, F32, F64] {
        entry = entry.gradient(Convert(to), std::slice::from_ref(&exact)).with_step(0.25);
    }
    entry.gradient(Convert(S32), &[f64s(&[5])]).expect_zero()
}

pub fn bitcast_convert() -> Entry {
    let op = BitcastConvert;
    let mut entry = Entry::new("bitcast_convert")
        .accept(op(S32), "f32[2,3] -> s32[2,3]")
        .accept(op(Pred), "pred[2] -> pred[2]")
        .accept(op(U64), "f64[] -> u64[]")
        .reject(op(S32), "", "expected 1 operand, found 0")
        .reject(op(S32), "bf16[2]", "cannot reinterpret bf16 as s32: the widths differ")
        .reject(op(U8), "pred[2]", "cannot reinterpret pred as u8: pred has no bits of its own")
        .reject(op(Pred), "s8[2]", "cannot reinterpret s8 as pred: pred has no bits of its own");
    let floats = [0.0, -0.0, 1.0, -2.5, 1e4];
    let bits32: Vec<f64> = floats.iter().map(|&x| f64::from((x as f32).to_bits())).collect();
    let bits16: Vec<f64> = floats.iter().map(|&x| f64::from(half::f16::from_f64(x).to_bits())).collect();
    entry = entry
        .run(op(U32), &[Tensor::new(F32, &[5], &floats)], [Tensor::new(U32, &[5], &bits32)], 0.0)
        .run(op(F32), &[Tensor::new(U32, &[5], &bits32)], [Tensor::new(F32, &[5], &floats)], 0.0)
        .run(op(U16), &[Tensor::new(F16, &[5], &floats)], [Tensor::new(U16, &[5], &bits16)], 0.0)
        .run(op(U8), &[Tensor::new(S8, &[2], &[-1.0, 5.0])], [Tensor::new(U8, &[2], &[255.0, 5.0])], 0.0);
    entry.gradient(op(S64), &[f64s(&[3])]).expect_zero().refuse_gradient(
        op(F64),
        "f64[3]",
        "bitcast-convert(f64[3]): it is not differentiable; wrap its operand in",
    )
}
