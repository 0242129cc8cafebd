//! Arithmetic on single numbers, each held as `f64` and rounded to its element type.

use std::f64::consts::FRAC_2_SQRT_PI;

use half::{bf16, f16};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::ops::{ArgReduceKind, BinaryKind, CumulativeKind, Direction, ReduceKind, UnaryKind};

/// A literal of numbers, each rounded to the element type.
pub fn literal(ty: &TensorType, values: &mut dyn Iterator<Item = f64>) -> Literal {
    packed(ty, &values.collect::<Vec<f64>>())
}

/// As [`literal`], from a slice.
pub fn packed(ty: &TensorType, values: &[f64]) -> Literal {
    fn each<const WIDTH: usize>(values: &[f64], bytes: impl Fn(f64) -> [u8; WIDTH]) -> Vec<u8> {
        values.iter().map(|&x| bytes(x)).collect::<Vec<_>>().into_flattened()
    }
    let bytes = match ty.dtype {
        DType::Pred => each(values, |x| [u8::from(x != 0.0)]),
        DType::S8 => each(values, |x| (x as i8).to_le_bytes()),
        DType::U8 => each(values, |x| (x as u8).to_le_bytes()),
        DType::S32 => each(values, |x| (x as i32).to_le_bytes()),
        DType::U32 => each(values, |x| (x as u32).to_le_bytes()),
        DType::S64 => each(values, |x| (x as i64).to_le_bytes()),
        DType::BF16 => each(values, |x| bf16::from_f32(x as f32).to_le_bytes()),
        DType::F16 => each(values, |x| f16::from_f32(x as f32).to_le_bytes()),
        DType::F32 => each(values, |x| (x as f32).to_le_bytes()),
        DType::F64 => each(values, f64::to_le_bytes),
        DType::S4 | DType::S16 | DType::U4 | DType::U16 | DType::U64 | DType::F8E4M3FN | DType::F8E5M2 => {
            assert_eq!(values.len(), ty.element_count(), "not as many numbers as {ty} has");
            return Literal::from_fn(ty.clone(), |index| values[index]);
        }
    };
    Literal::from_bytes(ty.clone(), bytes).unwrap_or_else(|_| panic!("not as many numbers as {ty} has"))
}

/// The nearest number of a floating-point type; an integer wrapped around into the range of an integer type.
pub fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::F32 => f64::from(x as f32),
        DType::F8E4M3FN | DType::F8E5M2 => Literal::from_fn(TensorType::scalar(dtype), |_| x).to_f64_vec()[0],
        DType::S4 => f64::from((x as i64 as i8) << 4 >> 4),
        DType::U4 => f64::from(x as i64 as u8 & 15),
        DType::S16 => f64::from(x as i64 as i16),
        DType::U16 => f64::from(x as i64 as u16),
        DType::U64 => x as i128 as u64 as f64,
        DType::S8 => f64::from(x as i64 as i8),
        DType::U8 => f64::from(x as i64 as u8),
        DType::S32 => f64::from(x as i64 as i32),
        DType::U32 => f64::from(x as i64 as u32),
        _ => x,
    }
}

pub fn unary(kind: UnaryKind, x: f64) -> f64 {
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
        UnaryKind::Cosh => x.cosh(),
        UnaryKind::Cosine => x.cos(),
        UnaryKind::Erf => erf(x),
        UnaryKind::Erfc => erfc(x),
        UnaryKind::ErfInv => erf_inv(x),
        UnaryKind::Exponential => x.exp(),
        UnaryKind::ExponentialMinusOne => x.exp_m1(),
        UnaryKind::Floor => x.floor(),
        UnaryKind::IsFinite => f64::from(u8::from(x.is_finite())),
        UnaryKind::Log => x.ln(),
        UnaryKind::LogPlusOne => x.ln_1p(),
        UnaryKind::Logistic => 1.0 / (1.0 + (-x).exp()),
        UnaryKind::Negate => -x,
        UnaryKind::RoundNearestAwayFromZero => x.round(),
        UnaryKind::RoundNearestEven => x.round_ties_even(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Sign if x == 0.0 || x.is_nan() => x,
        UnaryKind::Sign => x.signum(),
        UnaryKind::Sine => x.sin(),
        UnaryKind::Sinh => x.sinh(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Tan => x.tan(),
        UnaryKind::Tanh => x.tanh(),
        other => panic!("{} is not interpreted", other.name()),
    }
}

/// The error function, by a series in which no terms cancel.
fn erf(x: f64) -> f64 {
    if x.abs() >= 2.0 || x.is_nan() {
        return (1.0 - erfc(x.abs())).copysign(x);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// The complementary error function, by a continued fraction where `x` is large.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x < 2.0 {
        return if x <= -2.0 { 2.0 - erfc(-x) } else { 1.0 - erf(x) };
    }
    let fraction = (1..200).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    0.5 * FRAC_2_SQRT_PI * (-x * x).exp() / fraction
}

/// The inverse error function, by Newton's method; near 1 it works on the distance to 1.
fn erf_inv(y: f64) -> f64 {
    if y.is_nan() || y.abs() > 1.0 {
        return f64::NAN;
    }
    if y.abs() == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    // Winitzki's approximation has an error of 1 in 500.
    let log = ((1.0 - y.abs()) * (1.0 + y.abs())).ln();
    let half = 2.0 / (std::f64::consts::PI * 0.147) + log / 2.0;
    let start = ((half * half - log / 0.147).sqrt() - half).max(0.0).sqrt();
    let rest = 1.0 - y.abs();
    let step = |x: f64, _| x + (erfc(x) - rest) / (FRAC_2_SQRT_PI * (-x * x).exp());
    let near = |x: f64, _| x - (erf(x) - y.abs()) / (FRAC_2_SQRT_PI * (-x * x).exp());
    let found = if y.abs() > 0.5 { (0..6).fold(start, step) } else { (0..6).fold(start, near) };
    found.copysign(y)
}

pub fn binary(kind: BinaryKind, x: f64, y: f64) -> f64 {
    match kind {
        BinaryKind::Add => x + y,
        BinaryKind::Atan2 => x.atan2(y),
        BinaryKind::Divide => x / y,
        BinaryKind::Multiply => x * y,
        BinaryKind::Subtract => x - y,
        BinaryKind::Power => x.powf(y),
        BinaryKind::Remainder => x % y,
        BinaryKind::Maximum | BinaryKind::Minimum if x.is_nan() || y.is_nan() => f64::NAN,
        BinaryKind::Maximum => {
            if y > x {
                y
            } else {
                x
            }
        }
        BinaryKind::Minimum => {
            if y < x {
                y
            } else {
                x
            }
        }
        other => panic!("{} is not interpreted", other.name()),
    }
}

/// Whether an element takes the place of the best one before it: the first of equals stays, and so does the first NaN.
pub fn is_better(kind: ArgReduceKind, x: f64, best: f64) -> bool {
    let extreme = if kind == ArgReduceKind::Max { x > best } else { x < best };
    !best.is_nan() && (x.is_nan() || extreme)
}

/// The result of a fold over no elements.
pub fn identity(kind: ReduceKind, dtype: DType) -> f64 {
    match kind {
        ReduceKind::And if dtype.is_signed_integer() => -1.0,
        ReduceKind::And | ReduceKind::Min => dtype.highest(),
        ReduceKind::Max => dtype.lowest(),
        ReduceKind::Or | ReduceKind::Sum => 0.0,
        ReduceKind::Prod => 1.0,
    }
}

/// The value of a running fold after one more number.
pub fn cumulate(kind: CumulativeKind, before: f64, x: f64) -> f64 {
    let combiner = match kind {
        CumulativeKind::Max => BinaryKind::Maximum,
        CumulativeKind::Min => BinaryKind::Minimum,
        CumulativeKind::Prod => BinaryKind::Multiply,
        CumulativeKind::Sum => BinaryKind::Add,
        // Equal infinities have no difference.
        CumulativeKind::LogSumExp if before == x => return x + std::f64::consts::LN_2,
        CumulativeKind::LogSumExp => {
            return binary(BinaryKind::Maximum, before, x) + (-(before - x).abs()).exp().ln_1p();
        }
    };
    binary(combiner, before, x)
}

pub fn compare(direction: Direction, x: f64, y: f64) -> bool {
    match direction {
        Direction::Eq => x == y,
        Direction::Ne => x != y,
        Direction::Ge => x >= y,
        Direction::Gt => x > y,
        Direction::Le => x <= y,
        Direction::Lt => x < y,
    }
}
