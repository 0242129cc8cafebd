//! Sums and other combinations of two operands, element by element, for every type that devices reduce.

use half::{bf16, f16};
use meshloom_hlo::crossing::Combine;
use meshloom_hlo::proto::PrimitiveType;

/// A function that combines the second operand into the first.
pub(crate) type Combining = fn(Combine, &mut [u8], &[u8]);

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
    fn combined(self, other: Self, how: Combine) -> Self;
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
            fn combined(self, other: Self, how: Combine) -> Self {
                let combined: fn($ty, $ty, Combine) -> $ty = $combined;
                combined(self, other, how)
            }
        }
    )*};
}

elements! {
    |one, other, how| match how {
        Combine::Add => one.wrapping_add(other),
        Combine::Multiply => one.wrapping_mul(other),
        Combine::Maximum => one.max(other),
        Combine::Minimum => one.min(other),
        Combine::And => one & other,
        Combine::Or => one | other,
    };
    i8, 1; i16, 2; i32, 4; i64, 8; u8, 1; u16, 2; u32, 4; u64, 8;
}

elements! {
    |one, other, how| match how {
        Combine::Add => one + other,
        Combine::Multiply => one * other,
        _ if one.is_nan() => one,
        _ if other.is_nan() => other,
        Combine::Maximum if one < other => other,
        Combine::Minimum if one > other => other,
        // Floats have no `and` and `or`; HLO refuses them.
        Combine::Maximum | Combine::Minimum | Combine::And | Combine::Or => one,
    };
    f16, 2; bf16, 2; f32, 4; f64, 8;
}

fn each<T: Element<N>, const N: usize>(how: Combine, sum: &mut [u8], next: &[u8]) {
    let (sums, _) = sum.as_chunks_mut::<N>();
    let (nexts, _) = next.as_chunks::<N>();
    for (sum, next) in sums.iter_mut().zip(nexts) {
        *sum = T::read(*sum).combined(T::read(*next), how).write();
    }
}

fn truths(how: Combine, sum: &mut [u8], next: &[u8]) {
    for (sum, next) in sum.iter_mut().zip(next) {
        let (a, b) = (*sum != 0, *next != 0);
        *sum = u8::from(match how {
            Combine::Add | Combine::Maximum | Combine::Or => a || b,
            Combine::Multiply | Combine::Minimum | Combine::And => a && b,
        });
    }
}
