//! Sums and other combinations of two operands, element by element, for every type that devices reduce.

use half::{bf16, f16};
use meshloom_hlo::ReduceKind;
use meshloom_hlo::proto::PrimitiveType;

/// A function that combines the second operand into the first.
pub(crate) type Combining = fn(ReduceKind, &mut [u8], &[u8]);

/// Returns the function that combines elements of a type, and the bytes of one element; `None` for an unknown type.
pub(crate) fn of_type(element_type: i32) -> Option<(Combining, usize)> {
    use PrimitiveType as P;
    Some(match PrimitiveType::try_from(element_type).ok()? {
        P::Pred => (truths, 1),
        P::S8 => (each::<i8, 1>, 1),
        P::S16 => (each::<i16, 2>, 2),
        P::S32 => (each::<i32, 4>, 4),
        P::S64 => (each::<i64, 8>, 8),
        P::U8 => (each::<u8, 1>, 1),
        P::U16 => (each::<u16, 2>, 2),
        P::U32 => (each::<u32, 4>, 4),
        P::U64 => (each::<u64, 8>, 8),
        P::F16 => (each::<f16, 2>, 2),
        P::Bf16 => (each::<bf16, 2>, 2),
        P::F32 => (each::<f32, 4>, 4),
        P::F64 => (each::<f64, 8>, 8),
        _ => return None,
    })
}

/// An element type that can be combined.
trait Element<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn write(self) -> [u8; N];
    fn combined(self, other: Self, how: ReduceKind) -> Self;
}

macro_rules! elements {
    ($combined:expr; $($ty:ty, $bytes:literal;)*) => {$(
        impl Element<$bytes> for $ty {
            fn read(bytes: [u8; $bytes]) -> Self {
                <$ty>::from_ne_bytes(bytes)
            }

            fn write(self) -> [u8; $bytes] {
                self.to_ne_bytes()
            }

            #[inline]
            fn combined(self, other: Self, how: ReduceKind) -> Self {
                let combined: fn($ty, $ty, ReduceKind) -> $ty = $combined;
                combined(self, other, how)
            }
        }
    )*};
}

elements! {
    |one, other, how| match how {
        ReduceKind::Sum => one.wrapping_add(other),
        ReduceKind::Prod => one.wrapping_mul(other),
        ReduceKind::Max => one.max(other),
        ReduceKind::Min => one.min(other),
        ReduceKind::And => one & other,
        ReduceKind::Or => one | other,
    };
    i8, 1; i16, 2; i32, 4; i64, 8; u8, 1; u16, 2; u32, 4; u64, 8;
}

elements! {
    |one, other, how| match how {
        ReduceKind::Sum => one + other,
        ReduceKind::Prod => one * other,
        _ if one.is_nan() => one,
        _ if other.is_nan() => other,
        ReduceKind::Max if one < other => other,
        ReduceKind::Min if one > other => other,
        // Floats have no `and` and `or`; HLO refuses them.
        ReduceKind::Max | ReduceKind::Min | ReduceKind::And | ReduceKind::Or => one,
    };
    f16, 2; bf16, 2; f32, 4; f64, 8;
}

fn each<T: Element<N>, const N: usize>(how: ReduceKind, sum: &mut [u8], next: &[u8]) {
    let (sums, _) = sum.as_chunks_mut::<N>();
    let (nexts, _) = next.as_chunks::<N>();
    for (sum, next) in sums.iter_mut().zip(nexts) {
        *sum = T::read(*sum).combined(T::read(*next), how).write();
    }
}

fn truths(how: ReduceKind, sum: &mut [u8], next: &[u8]) {
    for (sum, next) in sum.iter_mut().zip(next) {
        let (a, b) = (*sum != 0, *next != 0);
        *sum = u8::from(match how {
            ReduceKind::Sum | ReduceKind::Max | ReduceKind::Or => a || b,
            ReduceKind::Prod | ReduceKind::Min | ReduceKind::And => a && b,
        });
    }
}
