//! Learning-rate schedules.

use std::panic::Location;

use crate::ir::DType;
use crate::trace::{Tensor, composite};

/// Linear warm-up, then half a cosine down to a fraction of the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmupCosine {
    /// Highest rate.
    pub peak: f64,
    /// Steps of warm-up: step `t` of them has `peak * (t + 1) / warmup`.
    pub warmup: usize,
    /// Step at which the lowest rate is reached; it stays.
    pub steps: usize,
    /// Lowest rate as a fraction of the peak.
    pub floor: f64,
}

impl WarmupCosine {
    /// The rate (`f32`) at step `step` (an integer scalar, from 0).
    #[track_caller]
    pub fn rate(&self, step: Tensor) -> Tensor {
        composite(Location::caller(), || self.rate_at(step))
    }

    fn rate_at(&self, step: Tensor) -> Tensor {
        if !step.dtype().is_integer() || step.rank() > 0 {
            let (expected, found) = ("an integer scalar".to_owned(), step.ty().to_string());
            return step.mismatch("the step of a schedule", expected, found, Location::caller());
        }
        let step = step.convert(DType::F32);
        let warmup = self.warmup as f64;
        let rising = (step + 1.0) * (self.peak / warmup.max(1.0));
        let length = (self.steps as f64 - warmup).max(1.0);
        let progress = ((step - warmup) * (1.0 / length)).maximum(0.0).minimum(1.0);
        let wave = ((progress * std::f64::consts::PI).cos() + 1.0) * 0.5;
        let falling = (wave * (1.0 - self.floor) + self.floor) * self.peak;
        step.less(warmup).select(rising, falling)
    }
}
