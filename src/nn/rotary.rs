//! Rotary position embedding.

use crate::ir::DType;
use crate::trace::{Tensor, arange, concatenate, custom_vjp};

/// Cosines and sines of the rotation angles: `[batch, length, head_dim / 2]`, `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// The angles `position * theta^(-2i / head_dim)` for integer `positions` `[batch, length]`.
    pub fn new(positions: Tensor, head_dim: usize, theta: f64) -> Rotary {
        let half = head_dim / 2;
        let exponents = arange(DType::F32, half) * (-2.0 * theta.ln() / head_dim as f64);
        let frequencies = exponents.exp();
        let [batch, length] = positions.shape();
        let dims = [batch, length, half];
        let angles = positions.convert(DType::F32).expand(-1).broadcast_to(dims) * frequencies.broadcast_to(dims);
        Rotary { cos: angles.cos(), sin: angles.sin() }
    }

    /// The same with cosines and sines replaced.
    pub(super) fn map(&self, f: impl Fn(Tensor) -> Tensor) -> Rotary {
        Rotary { cos: f(self.cos), sin: f(self.sin) }
    }
}

/// Rotates `x` `[batch, heads, length, head_dim]`: element `i` of the first half of the last dimension with element `i`
/// of the second. Computed in `f32`; the result has the type of `x`.
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
    let half = head_dim / 2;
    let wide = x.convert(DType::F32);
    let (first, second) = (wide.slice(-1, ..half), wide.slice(-1, half..));
    let dims = [batch, heads, length, half];
    let (cos, sin) = (cos.expand(1).broadcast_to(dims), sin.expand(1).broadcast_to(dims));
    concatenate(&[first * cos - second * sin, second * cos + first * sin], -1).convert(x.dtype())
}
