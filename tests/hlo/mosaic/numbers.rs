//! Helpers of the tests of kernels: random numbers, and the distance of two results.

use meshloom::hlo::DType;
use support::interpret::mosaic::Array;

/// Numbers from a seed: xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Evenly between -1 and 1.
    pub fn number(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// From 0 up to but without `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    pub fn array(&mut self, dtype: DType, dims: &[usize]) -> Array {
        let data: Vec<f64> = (0..dims.iter().product()).map(|_| self.number()).collect();
        Array::new(dtype, dims, &data)
    }
}

/// The norm of the difference over that of the reference.
pub fn distance(actual: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(actual.len(), reference.len());
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut actual.iter().zip(reference).map(|(a, b)| a - b));
    let size = norm(&mut reference.iter().copied());
    if size == 0.0 { difference } else { difference / size }
}

/// Norm of the difference over norm of the reference: what each type is held to. Weights and results are rounded to the
/// type; sums are `f32` in both.
pub fn bound(dtype: DType) -> f64 {
    if dtype == DType::BF16 { 2e-2 } else { 1e-5 }
}

/// Fails if a result is not near enough, or is NaN anywhere.
pub fn assert_near(what: &str, actual: &Array, reference: &[f64], bound: f64) {
    let distance = distance(actual.data(), reference);
    assert!(distance <= bound, "{what}: {distance:e} apart, expected at most {bound:e}");
}
