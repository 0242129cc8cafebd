//! The numbers that bytes stand for.

use std::sync::LazyLock;

use half::f16;
use meshloom::hlo::F8E4M3FN;
use safetensors::Dtype;

/// A function that writes the numbers that elements stand for.
pub type Decode = fn(&[u8], &mut [f32]);

/// Returns the bytes of an element and how its numbers are written, or `None` for a dtype that is not read as numbers.
pub fn decoder(dtype: Dtype) -> Option<(usize, Decode)> {
    Some(match dtype {
        Dtype::F32 => (4, |bytes, out| decode(bytes, out, f32::from_le_bytes)),
        // The upper half of an f32.
        Dtype::BF16 => (2, |bytes, out| decode(bytes, out, |[low, high]| f32::from_le_bytes([0, 0, low, high]))),
        Dtype::F16 => (2, |bytes, out| decode(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32())),
        Dtype::F8_E4M3 => (1, |bytes, out| {
            let numbers = &*F8_E4M3;
            decode(bytes, out, |[code]| numbers[usize::from(code)]);
        }),
        _ => return None,
    })
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, element) in out.iter_mut().zip(elements) {
        *out = number(*element);
    }
}

/// The number of each code of F8_E4M3, which has NaN but no infinities.
static F8_E4M3: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|code| F8E4M3FN(code as u8).to_f64() as f32));

/// The number of each code of E2M1: a sign, 2 bits of exponent, 1 of mantissa (OCP MX specification v1.0, section
/// 5.3.3).
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The number of a code of E8M0, 2^(code - 127); 255 is NaN (OCP MX specification v1.0, section 5.4.1).
pub fn e8m0(code: u8) -> f32 {
    match code {
        // The only one that has no exponent of its own in an f32.
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}
