//! Element types of at most 8 bits that Rust has no type for.

use std::fmt;

use crate::small_float::SmallFloat;

macro_rules! narrow {
    ($($(#[$doc:meta])* $name:ident($bits:ty) |$number:ident| $from:expr, |$code:ident| $to:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, bytemuck::NoUninit, bytemuck::AnyBitPattern)]
        #[repr(transparent)]
        pub struct $name(pub $bits);

        impl $name {
            /// The number, converted to this type.
            pub fn from_f64($number: f64) -> $name {
                $name($from)
            }

            /// The number that it stands for.
            pub fn to_f64(self) -> f64 {
                let $code = self.0;
                $to
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f64(), f)
            }
        }
    )*};
}

narrow! {
    /// The bits of an `f8e4m3fn`: 4 exponent bits, 3 mantissa bits, no infinities. Numbers round to nearest, ties to
    /// even; beyond 464 they become NaN.
    F8E4M3FN(u8) |number| SmallFloat::E4M3FN.encode(number), |code| SmallFloat::E4M3FN.decode(code);
    /// The bits of an `f8e5m2`: 5 exponent bits, 2 mantissa bits. Numbers round to nearest, ties to even; from 61440 on
    /// they become infinite.
    F8E5M2(u8) |number| SmallFloat::E5M2.encode(number), |code| SmallFloat::E5M2.decode(code);
    /// A signed 4-bit integer, one in a byte. Numbers are truncated and saturate; of a byte, the low 4 bits count.
    S4(i8) |number| number.clamp(-8.0, 7.0) as i8, |code| f64::from(code << 4 >> 4);
    /// An unsigned 4-bit integer, one in a byte. Numbers are truncated and saturate; of a byte, the low 4 bits count.
    U4(u8) |number| number.clamp(0.0, 15.0) as u8, |code| f64::from(code & 15);
}

/// An `f32` that rounds to a 16-bit type as the number does: the number, or of the two that enclose it the one with an
/// odd mantissa (S. Boldo and G. Melquiond, "When double rounding is odd", 2005). `half` drops the lower bits of an
/// `f64` before it rounds.
pub(crate) fn to_odd(number: f64) -> f32 {
    let near = number as f32;
    let is_exact = f64::from(near) == number || number.is_nan();
    match is_exact || near.to_bits() & 1 == 1 {
        true => near,
        false if f64::from(near) < number => near.next_up(),
        false => near.next_down(),
    }
}
