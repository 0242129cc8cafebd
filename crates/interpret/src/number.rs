//! Arithmetic on single numbers, each held as `f64` and rounded to its element type.

use half::{bf16, f16};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::ops::{BinaryKind, CumulativeKind, Direction, ReduceKind, UnaryKind};

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
        other => panic!("{other} is not interpreted"),
    };
    Literal::from_bytes(ty.clone(), bytes).unwrap_or_else(|_| panic!("not as many numbers as {ty} has"))
}

/// The nearest number of a floating-point type; an integer wrapped around into the range of an integer type.
pub fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::F32 => f64::from(x as f32),
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

/// What a running fold has after one number more.
pub fn cumulate(kind: CumulativeKind, before: f64, x: f64) -> f64 {
    let combiner = match kind {
        CumulativeKind::Max => ReduceKind::Max.combiner(),
        CumulativeKind::Min => ReduceKind::Min.combiner(),
        CumulativeKind::Prod => ReduceKind::Prod.combiner(),
        CumulativeKind::Sum => ReduceKind::Sum.combiner(),
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
