//! Arithmetic on single elements, as XLA defines it.
//!
//! Integers wrap around. Division of an integer by zero gives all bits set, and the remainder the dividend; the
//! smallest integer divided by minus one gives itself, remainder zero. A shift by the width or more gives zero, or
//! copies of the sign bit; amounts count as unsigned. (XLA, `elemental_ir_emitter.cc`, `EmitIntegerDivide`,
//! `EmitIntegerRemainder` and `SaturateShiftIfNecessary`.)
//!
//! Floating-point numbers are held as `f64`, which contains all narrower types. Rounding a quotient, root, sum or
//! product twice, first to a format of more than twice the precision and two bits, gives what rounding once gives
//! (Figueroa, "When is double rounding innocuous?", 1995): so `f32` may be computed in `f64`, and `bf16` and `f16` by
//! way of `f32`.

use std::cmp::Ordering;

use half::{bf16, f16};

use crate::ir::{DType, Literal};
use crate::ops::{BinaryKind, Direction, UnaryKind};

/// One element of any type; `pred` counts as an integer.
#[derive(Clone, Copy, Debug)]
pub(super) enum ElementNumber {
    Integer(i128),
    Float(f64),
}

use ElementNumber::{Float, Integer};

/// The types whose elements are integers of whole bytes. Others are not known here until they are named.
const WHOLE: &[DType] =
    &[DType::Pred, DType::S8, DType::S16, DType::S32, DType::S64, DType::U8, DType::U16, DType::U32, DType::U64];

/// The elements of a literal; `None` for each if the type is not known here.
pub(super) fn elements(literal: &Literal) -> impl Iterator<Item = Option<ElementNumber>> {
    let dtype = literal.ty().dtype;
    literal.bytes().chunks_exact(dtype.byte_count()).map(move |bytes| ElementNumber::from_bytes(dtype, bytes))
}

impl ElementNumber {
    fn from_bytes(dtype: DType, bytes: &[u8]) -> Option<ElementNumber> {
        Some(match dtype {
            DType::BF16 => Float(bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64()),
            DType::F16 => Float(bytemuck::pod_read_unaligned::<f16>(bytes).to_f64()),
            DType::F32 => Float(bytemuck::pod_read_unaligned::<f32>(bytes).into()),
            DType::F64 => Float(bytemuck::pod_read_unaligned(bytes)),
            _ if WHOLE.contains(&dtype) => {
                let mut wide = [0; 16];
                wide[..bytes.len()].copy_from_slice(bytes);
                Integer(wrap(i128::from_le_bytes(wide), dtype))
            }
            _ => return None,
        })
    }

    /// The element in a type's own form: rounded to nearest, or wrapped around. Declined where the rounded value would
    /// be subnormal, or depends on how often a back end rounds.
    pub(super) fn bytes(self, dtype: DType) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        let mut put = |source: &[u8]| bytes[..source.len()].copy_from_slice(source);
        match self {
            // The low bytes of two's complement are the wrapped value.
            Integer(value) if dtype == DType::Pred => put(&[u8::from(value != 0)]),
            Integer(value) if WHOLE.contains(&dtype) => put(&value.to_le_bytes()[..dtype.byte_count()]),
            Integer(value) => {
                // Beyond these, rounding by way of `f64` (or `f32`, for the narrower types) rounds twice.
                let limit = match dtype {
                    DType::F64 => u128::MAX,
                    DType::F32 => 1 << 53,
                    _ => 1 << 24,
                };
                return (value.unsigned_abs() <= limit).then(|| float_bytes(value as f64, dtype)).flatten();
            }
            Float(value) => return float_bytes(value, dtype),
        }
        Some(bytes)
    }

    pub(super) fn integer(self) -> Option<i128> {
        match self {
            Integer(value) => Some(value),
            Float(_) => None,
        }
    }
}

fn float_bytes(value: f64, dtype: DType) -> Option<[u8; 8]> {
    if is_subnormal(value, dtype) {
        return None;
    }
    let mut bytes = [0; 8];
    let mut put = |source: &[u8]| bytes[..source.len()].copy_from_slice(source);
    match dtype {
        DType::BF16 => put(&bf16::from_f32(value as f32).to_le_bytes()),
        DType::F16 => put(&f16::from_f32(value as f32).to_le_bytes()),
        DType::F32 => put(&(value as f32).to_le_bytes()),
        DType::F64 => put(&value.to_le_bytes()),
        _ => return None,
    }
    Some(bytes)
}

/// Whether a number is not zero but below the smallest normal number of a type.
fn is_subnormal(value: f64, dtype: DType) -> bool {
    let smallest = match dtype {
        DType::BF16 | DType::F32 => f32::MIN_POSITIVE.into(),
        DType::F16 => f16::MIN_POSITIVE.to_f64(),
        _ => f64::MIN_POSITIVE,
    };
    value != 0.0 && value.abs() < smallest
}

/// Brings an integer into the range of a type.
fn wrap(value: i128, dtype: DType) -> i128 {
    let unused = 128 - 8 * dtype.byte_count() as u32;
    if dtype.is_signed_integer() { value << unused >> unused } else { ((value as u128) << unused >> unused) as i128 }
}

pub(super) fn unary(kind: UnaryKind, dtype: DType, x: ElementNumber) -> Option<ElementNumber> {
    match x {
        Integer(x) => Some(Integer(match kind {
            UnaryKind::Abs => wrap(x.abs(), dtype),
            UnaryKind::Negate => wrap(-x, dtype),
            UnaryKind::Not if dtype == DType::Pred => 1 - x,
            UnaryKind::Not => wrap(!x, dtype),
            UnaryKind::Sign => x.signum(),
            _ => return None,
        })),
        Float(x) if is_subnormal(x, dtype) => None,
        Float(x) => Some(Float(match kind {
            UnaryKind::Abs => x.abs(),
            UnaryKind::Ceil => x.ceil(),
            UnaryKind::Floor => x.floor(),
            UnaryKind::IsFinite => return Some(Integer(x.is_finite().into())),
            UnaryKind::Negate => -x,
            UnaryKind::RoundNearestEven => x.round_ties_even(),
            // Zero keeps its sign, and NaN stays NaN.
            UnaryKind::Sign if x == 0.0 || x.is_nan() => x,
            UnaryKind::Sign => x.signum(),
            UnaryKind::Sqrt => x.sqrt(),
            _ => return None,
        })),
    }
}

pub(super) fn binary(kind: BinaryKind, dtype: DType, x: ElementNumber, y: ElementNumber) -> Option<ElementNumber> {
    match (x, y) {
        (Integer(x), Integer(y)) => integer_binary(kind, dtype, x, y).map(Integer),
        (Float(x), Float(y)) if !is_subnormal(x, dtype) && !is_subnormal(y, dtype) => {
            Some(Float(match kind {
                BinaryKind::Add => x + y,
                BinaryKind::Divide => x / y,
                BinaryKind::Multiply => x * y,
                BinaryKind::Subtract => x - y,
                // XLA does not say which of two zeros is larger.
                BinaryKind::Maximum | BinaryKind::Minimum if x == y && x.to_bits() != y.to_bits() => return None,
                BinaryKind::Maximum | BinaryKind::Minimum if x.is_nan() || y.is_nan() => f64::NAN,
                BinaryKind::Maximum => x.max(y),
                BinaryKind::Minimum => x.min(y),
                _ => return None,
            }))
        }
        _ => None,
    }
}

fn integer_binary(kind: BinaryKind, dtype: DType, x: i128, y: i128) -> Option<i128> {
    if !WHOLE.contains(&dtype) {
        return None;
    }
    let width = 8 * dtype.byte_count() as u32;
    // The shift's amount as an unsigned number; `None` from the width on.
    let amount = || u32::try_from(y).ok().filter(|&amount| amount < width);
    let unsigned = || (x as u128) << (128 - width) >> (128 - width);
    Some(match kind {
        BinaryKind::Add => wrap(x + y, dtype),
        BinaryKind::And => x & y,
        BinaryKind::Divide if y == 0 => wrap(-1, dtype),
        BinaryKind::Divide => wrap(x / y, dtype),
        BinaryKind::Maximum => x.max(y),
        BinaryKind::Minimum => x.min(y),
        BinaryKind::Multiply => wrap(x.wrapping_mul(y), dtype),
        BinaryKind::Or => x | y,
        BinaryKind::Remainder if y == 0 => x,
        BinaryKind::Remainder => x % y,
        BinaryKind::ShiftLeft => amount().map_or(0, |amount| wrap(x << amount, dtype)),
        BinaryKind::ShiftRightLogical => amount().map_or(0, |amount| wrap((unsigned() >> amount) as i128, dtype)),
        // An unsigned number's highest bit counts as a sign here too.
        BinaryKind::ShiftRightArithmetic => {
            let signed = x << (128 - width) >> (128 - width);
            wrap(signed >> amount().unwrap_or(width - 1), dtype)
        }
        BinaryKind::Subtract => wrap(x - y, dtype),
        BinaryKind::Xor => x ^ y,
        _ => return None,
    })
}

pub(super) fn compare(direction: Direction, dtype: DType, x: ElementNumber, y: ElementNumber) -> Option<ElementNumber> {
    let order = match (x, y) {
        (Integer(x), Integer(y)) => Some(x.cmp(&y)),
        (Float(x), Float(y)) if !is_subnormal(x, dtype) && !is_subnormal(y, dtype) => x.partial_cmp(&y),
        _ => return None,
    };
    let holds = match direction {
        Direction::Eq => order == Some(Ordering::Equal),
        Direction::Ne => order != Some(Ordering::Equal),
        Direction::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        Direction::Gt => order == Some(Ordering::Greater),
        Direction::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Direction::Lt => order == Some(Ordering::Less),
    };
    Some(Integer(holds.into()))
}

/// It is declined where back ends differ: numbers that the integer type does not hold, and `f64` that would be rounded
/// to `bf16` or `f16`, which some back ends do by way of `f32`.
pub(super) fn convert(from: DType, to: DType, x: ElementNumber) -> Option<ElementNumber> {
    match x {
        Float(x) if is_subnormal(x, from) => None,
        Float(x) if to == DType::Pred => Some(Integer((x != 0.0).into())),
        Float(x) if WHOLE.contains(&to) => {
            let whole = (x.abs() < 2f64.powi(100)).then_some(x as i128)?;
            (wrap(whole, to) == whole).then_some(Integer(whole))
        }
        Float(x) if from == DType::F64 && matches!(to, DType::BF16 | DType::F16) => {
            (f64::from(x as f32) == x || x.is_nan()).then_some(Float(x))
        }
        Integer(x) if to == DType::Pred => Some(Integer((x != 0).into())),
        x => Some(x),
    }
}
