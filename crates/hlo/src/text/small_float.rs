//! Floating-point types of at most 8 bits: what their bits mean, and the bits of a number.

use super::number::{write_general, write_payload};
use crate::proto::PrimitiveType;

/// What the bits of a float type of at most 8 bits mean.
pub(crate) struct SmallFloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// No sign bit (only F8E8M0FNU).
    unsigned: bool,
    special: Special,
}

/// Which bit patterns of a small float are not numbers.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// The largest exponent holds infinities and NaNs, as in IEEE 754.
    Ieee,
    /// All exponent and mantissa bits set is NaN; there are no infinities ("FN").
    AllOnesNan,
    /// Negative zero is the only NaN ("FNUZ").
    NegativeZeroNan,
    /// Every pattern is a number.
    None,
}

impl SmallFloat {
    /// None for other types.
    pub(crate) fn of(element_type: PrimitiveType) -> Option<Self> {
        use PrimitiveType as T;
        let (exponent_bits, mantissa_bits, bias, special) = match element_type {
            T::F8e5m2 => (5, 2, 15, Special::Ieee),
            T::F8e4m3 => (4, 3, 7, Special::Ieee),
            T::F8e4m3fn => (4, 3, 7, Special::AllOnesNan),
            T::F8e4m3b11fnuz => (4, 3, 11, Special::NegativeZeroNan),
            T::F8e3m4 => (3, 4, 3, Special::Ieee),
            T::F8e5m2fnuz => (5, 2, 16, Special::NegativeZeroNan),
            T::F8e4m3fnuz => (4, 3, 8, Special::NegativeZeroNan),
            T::F4e2m1fn => (2, 1, 1, Special::None),
            T::F6e3m2fn => (3, 2, 3, Special::None),
            T::F6e2m3fn => (2, 3, 1, Special::None),
            T::F8e8m0fnu => (8, 0, 127, Special::AllOnesNan),
            _ => return None,
        };
        Some(SmallFloat { exponent_bits, mantissa_bits, bias, unsigned: element_type == T::F8e8m0fnu, special })
    }

    /// That of the number that a proto has for a type.
    pub(crate) fn of_number(element_type: i32) -> Option<Self> {
        SmallFloat::of(PrimitiveType::try_from(element_type).ok()?)
    }

    /// Digits that tell any two values apart, as the C++ `max_digits10`.
    fn digits(&self) -> usize {
        1 + (f64::from(self.mantissa_bits + 1) * std::f64::consts::LOG10_2).ceil() as usize
    }

    /// The sign, the exponent and the mantissa in `bits`.
    fn parts(&self, bits: u8) -> (bool, u32, u32) {
        let bits = u32::from(bits);
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let exponent = (bits >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1);
        let negative = !self.unsigned && (bits >> (self.mantissa_bits + self.exponent_bits)) & 1 == 1;
        (negative, exponent, mantissa)
    }

    /// The number that `bits` stand for, perhaps infinite; None for NaN.
    fn value(&self, bits: u8) -> Option<f64> {
        let (negative, exponent, mantissa) = self.parts(bits);
        let is_largest = exponent == (1 << self.exponent_bits) - 1;
        let is_all_ones = is_largest && mantissa == (1 << self.mantissa_bits) - 1;
        let magnitude = match self.special {
            Special::Ieee if is_largest && mantissa == 0 => f64::INFINITY,
            Special::Ieee if is_largest => return None,
            Special::AllOnesNan if is_all_ones => return None,
            Special::NegativeZeroNan if negative && exponent == 0 && mantissa == 0 => return None,
            _ => {
                let fraction = f64::from(mantissa) / f64::from(1u32 << self.mantissa_bits);
                if exponent == 0 && !self.unsigned {
                    fraction * 2f64.powi(1 - self.bias)
                } else {
                    (1.0 + fraction) * 2f64.powi(exponent as i32 - self.bias)
                }
            }
        };
        Some(if negative { -magnitude } else { magnitude })
    }

    /// Appends the value of `bits`.
    pub(crate) fn write(&self, out: &mut String, bits: u8) {
        let (negative, _, mantissa) = self.parts(bits);
        match self.value(bits) {
            Some(value) if value.is_finite() => write_general(out, value, self.digits()),
            Some(value) => out.push_str(if value > 0.0 { "inf" } else { "-inf" }),
            None => {
                out.push_str(if negative { "-nan" } else { "nan" });
                if self.special == Special::Ieee {
                    write_payload(out, u64::from(mantissa), 1 << (self.mantissa_bits - 1));
                }
            }
        }
    }

    /// For reading numbers.
    pub(crate) fn encoder(self) -> Encoder {
        let count = 1u32 << (self.exponent_bits + self.mantissa_bits + u32::from(!self.unsigned));
        let patterns = (0..count).map(|bits| bits as u8);
        let mut values: Vec<(f64, u8)> =
            patterns.filter_map(|bits| Some((self.value(bits).filter(|value| value.is_finite())?, bits))).collect();
        // Negative zero before zero.
        values.sort_by(|one, other| one.0.total_cmp(&other.0));
        Encoder { float: self, values, count }
    }
}

/// Finds the bits of numbers.
pub(crate) struct Encoder {
    float: SmallFloat,
    /// Every finite value and its bits, ascending.
    values: Vec<(f64, u8)>,
    /// Of bit patterns.
    count: u32,
}

impl Encoder {
    /// The bits of the value nearest to `value`; ties go to the even one. None if there is no near value.
    pub(crate) fn encode(&self, value: f64) -> Option<u8> {
        if value.is_infinite() {
            return (0..self.count).map(|bits| bits as u8).find(|&bits| self.float.value(bits) == Some(value));
        }
        let after = self.values.partition_point(|(candidate, _)| candidate.total_cmp(&value).is_lt());
        let above = self.values.get(after);
        let below = after.checked_sub(1).and_then(|before| self.values.get(before));
        match (below, above) {
            (Some(below), Some(above)) => {
                let (down, up) = (value - below.0, above.0 - value);
                let is_up = up < down || (up == down && above.1 & 1 == 0);
                Some(if is_up { above.1 } else { below.1 })
            }
            // Beyond the largest value it must be within half a step to round to it.
            (Some(end), None) | (None, Some(end)) if self.is_near_end(value, end.0) => Some(end.1),
            _ => None,
        }
    }

    fn is_near_end(&self, value: f64, end: f64) -> bool {
        let ulp = end.abs() * 2f64.powi(-(self.float.mantissa_bits as i32) - 1);
        value == end || (value - end).abs() < ulp / 2.0
    }

    /// The bits of a NaN with a sign and a payload; without one it is the quiet NaN. None if the type has no such NaN.
    pub(crate) fn nan(&self, negative: bool, payload: Option<u64>) -> Option<u8> {
        let float = &self.float;
        let quiet = match float.special {
            Special::Ieee => Some(1u64 << (float.mantissa_bits - 1)),
            _ => None,
        };
        let wanted = payload.or(quiet);
        let is_wanted = |bits: &u8| {
            let (sign, _, mantissa) = float.parts(*bits);
            let is_sign = sign == negative || float.special == Special::NegativeZeroNan || float.unsigned;
            let is_payload = quiet.is_none() || Some(u64::from(mantissa)) == wanted;
            float.value(*bits).is_none() && is_sign && is_payload
        };
        if quiet.is_none() && payload.is_some() {
            return None;
        }
        (0..self.count).map(|bits| bits as u8).find(is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_reads_back() {
        use PrimitiveType as T;
        let types = [
            T::F8e5m2,
            T::F8e4m3,
            T::F8e4m3fn,
            T::F8e4m3b11fnuz,
            T::F8e3m4,
            T::F8e5m2fnuz,
            T::F8e4m3fnuz,
            T::F4e2m1fn,
            T::F6e3m2fn,
            T::F6e2m3fn,
            T::F8e8m0fnu,
        ];
        for element_type in types {
            let float = || SmallFloat::of(element_type).unwrap();
            let encoder = float().encoder();
            for bits in (0..encoder.count).map(|bits| bits as u8) {
                let read = match float().value(bits) {
                    Some(value) => encoder.encode(value),
                    None => {
                        let (negative, _, mantissa) = float().parts(bits);
                        let payload = (float().special == Special::Ieee).then_some(u64::from(mantissa));
                        encoder.nan(negative, payload)
                    }
                };
                assert_eq!(read, Some(bits), "{element_type:?}");
            }
        }
    }

    #[test]
    fn numbers_between_values_round_to_even() {
        let encoder = SmallFloat::of(PrimitiveType::F8e4m3fn).unwrap().encoder();
        let value = |number| encoder.encode(number).and_then(|bits| encoder.float.value(bits));
        assert_eq!(value(1.0625), Some(1.0));
        assert_eq!(value(1.1875), Some(1.25));
        assert_eq!(value(448.0), Some(448.0));
        assert_eq!(value(1000.0), None);
        assert_eq!(value(f64::INFINITY), None);
    }
}
