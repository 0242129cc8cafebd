//! Learning-rate schedules.

use std::panic::Location;

use crate::ir::DType;
use crate::trace::{Tensor, composite};

/// A learning rate: linear warm-up to a peak, then a fall to a fraction of it.
///
/// Step `t` (from 0) of the warm-up has `peak * (t + 1) / warmup`, so no step has a rate of 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// Highest rate.
    pub peak: f64,
    /// Steps of warm-up.
    pub warmup: usize,
    /// The step at which the lowest rate is reached; the rate stays there.
    pub steps: usize,
    /// Lowest rate as a fraction of the peak.
    pub floor: f64,
    /// The form of the fall.
    pub decay: Decay,
}

/// The form in which a learning rate falls after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// The rate falls as half a cosine (Loshchilov & Hutter, "SGDR", arXiv 1608.03983).
    Cosine,
    /// The rate falls in a straight line.
    Linear,
    /// The rate falls in a straight line over this number of last steps; before them it is the peak. This is
    /// warmup-stable-decay (Hu et al., "MiniCPM", arXiv 2404.06395), with the linear decay of Hägele et al., arXiv
    /// 2405.18392.
    Last(usize),
    /// The rate does not fall.
    Never,
}

impl LearningRate {
    /// The rate (`f32`) at step `step` (an integer scalar, from 0).
    #[track_caller]
    pub fn rate(&self, step: Tensor) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            if !step.dtype().is_integer() || step.rank() > 0 {
                let (expected, found) = ("an integer scalar".to_owned(), step.ty().to_string());
                return step.mismatch("the step of a schedule", expected, found, place);
            }
            let step = step.convert(DType::F32);
            let (warmup, steps) = (self.warmup as f64, self.steps as f64);
            let rising = (step + 1.0) * (self.peak / warmup.max(1.0));
            let progress = |start: f64| ((step - start) * (1.0 / (steps - start).max(1.0))).maximum(0.0).minimum(1.0);
            let left = match self.decay {
                Decay::Cosine => ((progress(warmup) * std::f64::consts::PI).cos() + 1.0) * 0.5,
                Decay::Linear => 1.0 - progress(warmup),
                Decay::Last(count) => 1.0 - progress((steps - count as f64).max(warmup)),
                Decay::Never => return step.less(warmup).select(rising, self.peak),
            };
            let falling = (left * (1.0 - self.floor) + self.floor) * self.peak;
            step.less(warmup).select(rising, falling)
        })
    }
}
