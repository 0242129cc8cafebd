//! Rotary position embedding.

use std::f64::consts::TAU;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::trace::{Tensor, concatenate, constant, custom_vjp, fail_internal};

/// The frequencies of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// How many numbers of a head turn, the first ones; even. The others stay as they are.
    pub dim: usize,
    /// Base of the frequencies: pair `i` turns by `theta^(-2i / dim)` for each position.
    pub theta: f64,
    /// How frequencies are stretched for longer sequences.
    pub scaling: RopeScaling,
    /// The numbers of a head that are a pair in published weights. Here they always are halves: element `i` turns with
    /// element `i + dim / 2`.
    pub pairs: RopePairs,
}

/// The numbers of a head that turn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopePairs {
    /// Element `i` with element `i + dim / 2` (Llama).
    #[default]
    Halves,
    /// Neighbours, `2 i` and `2 i + 1` (DeepSeek). Reading weights puts the even ones first, then the odd ones.
    Neighbours,
}

/// How the frequencies of a rotary embedding are stretched for sequences longer than those trained on.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// All by a factor (Chen et al., arXiv 2306.15595).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Long wavelengths by a factor, short ones not (Llama 3.1, arXiv 2407.21783; the formula as in transformers,
    /// `modeling_rope_utils.py`).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths over `original / low_frequency` are stretched.
        low_frequency: f64,
        /// Wavelengths under `original / high_frequency` are not.
        high_frequency: f64,
        /// Length trained on, in positions.
        original: f64,
    },
    /// YaRN (Peng et al., arXiv 2309.00071): pairs that turn often within the length trained on keep their
    /// frequencies, others are stretched, with a ramp between.
    Yarn {
        /// The factor.
        factor: f64,
        /// Pairs that turn more often than this within `original` positions are not stretched.
        beta_fast: f64,
        /// Pairs that turn less often than this are stretched by the whole factor.
        beta_slow: f64,
        /// Length trained on, in positions.
        original: f64,
        /// Whether the ramp starts and ends at whole pairs.
        truncate: bool,
        /// The factor of cosines and sines.
        magnitude: f64,
    },
}

impl Rope {
    /// Frequencies that are not stretched.
    pub fn new(dim: usize, theta: f64) -> Rope {
        Rope { dim, theta, scaling: RopeScaling::None, pairs: RopePairs::Halves }
    }

    /// The angle by which each pair turns from one position to the next, in radians: `dim / 2` numbers.
    pub fn frequencies(&self) -> Vec<f64> {
        let plain = (0..self.dim / 2).map(|pair| self.theta.powf(-2.0 * pair as f64 / self.dim as f64));
        match self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Llama3 { factor, low_frequency, high_frequency, original } => plain
                .map(|frequency| {
                    let turns = original * frequency / TAU;
                    let kept = ((turns - low_frequency) / (high_frequency - low_frequency)).clamp(0.0, 1.0);
                    mixed(frequency, factor, kept)
                })
                .collect(),
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, .. } => {
                let [from, to] = self.yarn_ramp([beta_fast, beta_slow], original, truncate);
                plain
                    .enumerate()
                    .map(|(pair, frequency)| {
                        let stretched = ((pair as f64 - from) / (to - from)).clamp(0.0, 1.0);
                        mixed(frequency, factor, 1.0 - stretched)
                    })
                    .collect()
            }
        }
    }

    /// The pairs between which the ramp of YaRN rises.
    fn yarn_ramp(&self, turns: [f64; 2], original: f64, truncate: bool) -> [f64; 2] {
        // The pair that turns so often within the length trained on.
        let [fast, slow] =
            turns.map(|turns| self.dim as f64 * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln()));
        let (from, to) = if truncate { (fast.floor(), slow.ceil()) } else { (fast, slow) };
        let (from, to) = (from.max(0.0), to.min(self.dim as f64 - 1.0));
        // A ramp of no width would divide by zero.
        if from == to { [from, to + 0.001] } else { [from, to] }
    }

    /// The factor of cosines and sines.
    fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { magnitude, .. } => magnitude,
            _ => 1.0,
        }
    }
}

/// A frequency: the share `kept` stays, and the rest is divided by the factor.
fn mixed(frequency: f64, factor: f64, kept: f64) -> f64 {
    kept * frequency + (1.0 - kept) * frequency / factor
}

/// Cosines and sines of the rotation angles: `[batch, length, dim / 2]`, `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// The angles for integer `positions` `[batch, length]`: each times the [frequencies](Rope::frequencies). These are
    /// made of constant logarithms, for products of constants would be folded for all positions.
    pub fn new(positions: Tensor, rope: &Rope) -> Rotary {
        let frequencies = rope.frequencies();
        let [batch, length] = positions.shape();
        let dims = [batch, length, frequencies.len()];
        let ty = TensorType::new(DType::F32, &[frequencies.len()]);
        let frequencies = constant(Literal::from_fn(ty, |pair| frequencies[pair].ln())).exp();
        let angles = positions.convert(DType::F32).expand(-1).broadcast_to(dims) * frequencies.broadcast_to(dims);
        let magnitude = rope.magnitude();
        let scaled = |x: Tensor| if magnitude == 1.0 { x } else { x * magnitude };
        Rotary { cos: scaled(angles.cos()), sin: scaled(angles.sin()) }
    }

    /// Notes an internal error, since angles cannot be missing, and returns what stands for them.
    pub(super) fn missing(subject: &str) -> Rotary {
        let failed = fail_internal(subject, "angles for each way in which layers turn heads");
        Rotary { cos: failed, sin: failed }
    }

    /// The same with cosines and sines replaced.
    pub(super) fn map(&self, f: impl Fn(Tensor) -> Tensor) -> Rotary {
        Rotary { cos: f(self.cos), sin: f(self.sin) }
    }
}

/// Rotates `x` `[batch, heads, length, head_dim]`: element `i` of the first `dim` with element `i + dim / 2`. The
/// elements behind them stay. Computed in `f32`; the result has the type of `x`.
///
/// Source: Su et al., "RoFormer", arXiv 2104.09864, in the split-half form that Llama checkpoints use.
pub fn rotate(x: Tensor, rotary: &Rotary) -> Tensor {
    // A rotation's transpose is the rotation back.
    custom_vjp(
        (x, rotary.cos, rotary.sin),
        |(x, cos, sin)| turn(x, cos, sin),
        |(x, cos, sin)| (turn(x, cos, sin), (cos, sin)),
        |(cos, sin), ct| (turn(ct, cos, -sin), cos.zeros_like(), sin.zeros_like()),
    )
}

fn turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor {
    let [batch, heads, length, head_dim] = x.shape();
    let half = cos.dim(-1);
    let wide = x.convert(DType::F32);
    let (first, second) = (wide.slice(-1, ..half), wide.slice(-1, half..2 * half));
    let dims = [batch, heads, length, half];
    let (cos, sin) = (cos.expand(1).broadcast_to(dims), sin.expand(1).broadcast_to(dims));
    let mut parts = vec![first * cos - second * sin, second * cos + first * sin];
    if 2 * half < head_dim {
        parts.push(wide.slice(-1, 2 * half..));
    }
    concatenate(&parts, -1).convert(x.dtype())
}
