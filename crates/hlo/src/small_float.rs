//! Floating-point types of at most 8 bits: the meaning of their bits, and the bits of a number.

use crate::number::{write_general, write_payload};
use crate::proto::PrimitiveType;

/// The layout of a float type of at most 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct SmallFloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// No sign bit, and no zero (only F8E8M0FNU).
    unsigned: bool,
    special: SpecialBits,
}

/// The bit patterns of a small float that are not finite numbers.
#[derive(Clone, Copy, PartialEq)]
enum SpecialBits {
    /// The largest exponent holds infinities and NaNs, as in IEEE 754.
    Ieee,
    /// All exponent and mantissa bits set is NaN; there are no infinities ("FN").
    AllOnesNan,
    /// Negative zero is the only NaN ("FNUZ").
    NegativeZeroNan,
    /// Every pattern is a number.
    None,
}

/// 2 to a power that `f64` holds as a normal number.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

impl SmallFloat {
    pub(crate) const E4M3FN: SmallFloat = SmallFloat::new(4, 3, 7, SpecialBits::AllOnesNan);
    pub(crate) const E5M2: SmallFloat = SmallFloat::new(5, 2, 15, SpecialBits::Ieee);

    const fn new(exponent_bits: u32, mantissa_bits: u32, bias: i32, special: SpecialBits) -> Self {
        SmallFloat { exponent_bits, mantissa_bits, bias, unsigned: false, special }
    }

    /// The layout of the type with this number in the protos, or `None` for other types.
    pub(crate) fn of(element_type: i32) -> Option<Self> {
        use PrimitiveType as T;
        Some(match T::try_from(element_type).ok()? {
            T::F8e5m2 => SmallFloat::E5M2,
            T::F8e4m3 => SmallFloat::new(4, 3, 7, SpecialBits::Ieee),
            T::F8e4m3fn => SmallFloat::E4M3FN,
            T::F8e4m3b11fnuz => SmallFloat::new(4, 3, 11, SpecialBits::NegativeZeroNan),
            T::F8e3m4 => SmallFloat::new(3, 4, 3, SpecialBits::Ieee),
            T::F8e5m2fnuz => SmallFloat::new(5, 2, 16, SpecialBits::NegativeZeroNan),
            T::F8e4m3fnuz => SmallFloat::new(4, 3, 8, SpecialBits::NegativeZeroNan),
            T::F4e2m1fn => SmallFloat::new(2, 1, 1, SpecialBits::None),
            T::F6e3m2fn => SmallFloat::new(3, 2, 3, SpecialBits::None),
            T::F6e2m3fn => SmallFloat::new(2, 3, 1, SpecialBits::None),
            T::F8e8m0fnu => SmallFloat { unsigned: true, ..SmallFloat::new(8, 0, 127, SpecialBits::AllOnesNan) },
            _ => return None,
        })
    }

    /// Digits that tell any two values apart, as the C++ `max_digits10`.
    fn digits(&self) -> usize {
        1 + (f64::from(self.mantissa_bits + 1) * std::f64::consts::LOG10_2).ceil() as usize
    }

    /// The bit of the sign.
    fn sign(&self) -> u32 {
        if self.unsigned { 0 } else { 1 << (self.exponent_bits + self.mantissa_bits) }
    }

    /// The first magnitude above the largest number: an infinity, a NaN, or no bits of this type.
    fn overflow(&self) -> u32 {
        let end = 1 << (self.exponent_bits + self.mantissa_bits);
        match self.special {
            SpecialBits::Ieee => end - (1 << self.mantissa_bits),
            SpecialBits::AllOnesNan => end - 1,
            SpecialBits::NegativeZeroNan | SpecialBits::None => end,
        }
    }

    /// Whether there is a sign, and the bits without it.
    fn parts(&self, bits: u8) -> (bool, u32) {
        let all = (1 << (self.exponent_bits + self.mantissa_bits)) - 1;
        (u32::from(bits) & self.sign() != 0, u32::from(bits) & all)
    }

    /// The exponent of the smallest numbers.
    fn lowest_exponent(&self) -> i32 {
        if self.unsigned { -self.bias } else { 1 - self.bias }
    }

    /// The number that bits without a sign stand for.
    fn magnitude(&self, bits: u32) -> f64 {
        let hidden = 1 << self.mantissa_bits;
        let (exponent, mantissa) = (bits >> self.mantissa_bits, bits & (hidden - 1));
        let units = if exponent > 0 || self.unsigned { mantissa + hidden } else { mantissa };
        let exponent = (exponent as i32 - self.bias).max(self.lowest_exponent());
        f64::from(units) * power_of_two(exponent - self.mantissa_bits as i32)
    }

    /// The number that `bits` stand for, perhaps infinite; None for NaN.
    fn value(&self, bits: u8) -> Option<f64> {
        let (negative, magnitude) = self.parts(bits);
        let value = match self.special {
            SpecialBits::Ieee if magnitude == self.overflow() => f64::INFINITY,
            SpecialBits::NegativeZeroNan if negative && magnitude == 0 => return None,
            _ if magnitude >= self.overflow() => return None,
            _ => self.magnitude(magnitude),
        };
        Some(if negative { -value } else { value })
    }

    /// The number that `bits` stand for; a NaN has their sign.
    pub(crate) fn decode(&self, bits: u8) -> f64 {
        let nan = if self.parts(bits).0 { -f64::NAN } else { f64::NAN };
        self.value(bits).unwrap_or(nan)
    }

    /// Appends the value of `bits`.
    pub(crate) fn write(&self, out: &mut String, bits: u8) {
        match self.value(bits) {
            Some(value) if value.is_finite() => write_general(out, value, self.digits()),
            Some(value) => out.push_str(if value > 0.0 { "inf" } else { "-inf" }),
            None => {
                let (negative, magnitude) = self.parts(bits);
                out.push_str(if negative { "-nan" } else { "nan" });
                if self.special == SpecialBits::Ieee {
                    write_payload(out, u64::from(magnitude - self.overflow()), 1 << (self.mantissa_bits - 1));
                }
            }
        }
    }

    /// The bits of the magnitude nearest to one; ties go to the even bits. At most those of overflow.
    fn nearest(&self, magnitude: f64) -> u32 {
        let lowest = self.lowest_exponent();
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(lowest);
        if exponent > self.bias + 1 {
            return self.overflow();
        }
        // In units of the last place: exact, since only the exponent changes. Rounding up to the next power of two
        // carries into the exponent by itself.
        let units = magnitude * power_of_two(self.mantissa_bits as i32 - exponent);
        let below = ((exponent - lowest) << self.mantissa_bits) + units.floor() as i32 - i32::from(self.unsigned);
        let rest = units.fract();
        let is_up = rest > 0.5 || (rest == 0.5 && below & 1 == 1);
        u32::try_from(below + i32::from(is_up)).unwrap_or(0).min(self.overflow())
    }

    /// The bits of the nearest number; a magnitude that rounds beyond the largest one overflows. For types with a sign
    /// and with a pattern for what overflows.
    pub(crate) fn encode(&self, number: f64) -> u8 {
        let sign = if number.is_sign_negative() { self.sign() } else { 0 };
        let all = self.sign() - 1;
        (sign | if number.is_nan() { all } else { self.nearest(number.abs()) }) as u8
    }

    /// The bits of the number nearest to `value`; None if there is no near number.
    pub(crate) fn bits_near(&self, value: f64) -> Option<u8> {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_infinite() {
            return (self.special == SpecialBits::Ieee).then_some((sign | self.overflow()) as u8);
        }
        let largest = self.overflow() - 1;
        // Without a sign there is nothing below the smallest number, not even zero.
        let is_below = self.unsigned && value < self.magnitude(0);
        let bits = if is_below { 0 } else { self.nearest(value.abs()).min(largest) };
        let end = self.magnitude(if is_below { 0 } else { largest });
        let beyond = if is_below { end - value } else { value.abs() - end };
        // A value beyond an end must be within half a step to round to it.
        if beyond > 0.0 && beyond >= end * power_of_two(-(self.mantissa_bits as i32) - 2) {
            return None;
        }
        let is_zero = bits == 0 && self.special == SpecialBits::NegativeZeroNan;
        Some((bits | if is_zero { 0 } else { sign }) as u8)
    }

    /// The bits of a NaN with a sign and a payload; without a payload it is the quiet NaN. The result is `None` if the
    /// type has no such NaN.
    pub(crate) fn nan(&self, negative: bool, payload: Option<u64>) -> Option<u8> {
        let sign = if negative { self.sign() } else { 0 };
        let bits = match (self.special, payload) {
            (SpecialBits::Ieee, payload) => {
                let payload = payload.unwrap_or(1 << (self.mantissa_bits - 1));
                let fits = payload > 0 && payload >> self.mantissa_bits == 0;
                sign | (self.overflow() + fits.then_some(payload as u32)?)
            }
            (SpecialBits::AllOnesNan, None) => sign | self.overflow(),
            (SpecialBits::NegativeZeroNan, None) => self.sign(),
            _ => return None,
        };
        Some(bits as u8)
    }
}
