//! The gated feed-forward block.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::panic::Location;

use meshloom::trace::{Tensor, composite, custom_vjp, einsum};

use super::layout::HIDDEN;

meshloom::tree! {
    /// Parameters of [`mlp`].
    pub struct Mlp<T> {
        /// `[embed, mlp]`.
        pub gate: T,
        /// `[embed, mlp]`.
        pub up: T,
        /// `[mlp, embed]`.
        pub down: T,
    }
}

/// The elementwise function of a gated block between the products with its first two matrices and the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`, where `silu(x) = x * logistic(x)`.
    #[default]
    Silu,
    /// `gelu(gate) * up`, with the approximation by a hyperbolic tangent (Gemma).
    GeluTanh,
    /// `gate' * logistic(1.702 gate') * (up' + 1)`, where `gate'` is at most `limit`, and `up'` is between `-limit` and
    /// `limit` (gpt-oss, arXiv 2508.10925).
    Clamped {
        /// The limit; more than zero.
        limit: f64,
    },
}

/// The slope of the logistic function in the gate of [`Activation::Clamped`].
const CLAMPED_SLOPE: f64 = 1.702;

impl Activation {
    /// The activation of gate and up. Saves only its two operands for the backward pass.
    ///
    /// Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
    #[track_caller]
    pub fn of(self, gate: Tensor, up: Tensor) -> Tensor {
        composite(Location::caller(), || {
            custom_vjp(
                (gate, up),
                |(gate, up)| self.value(gate, up),
                |(gate, up)| (self.value(gate, up), (gate, up)),
                |(gate, up), ct| self.cotangents(gate, up, ct),
            )
        })
    }

    fn value(self, gate: Tensor, up: Tensor) -> Tensor {
        match self {
            Activation::Silu => gate * gate.logistic() * up,
            Activation::GeluTanh => gate.gelu_tanh() * up,
            Activation::Clamped { limit } => {
                let (gate, up) = (gate.minimum(limit), up.maximum(-limit).minimum(limit));
                (up + 1.0) * gate * (gate * CLAMPED_SLOPE).logistic()
            }
        }
    }

    /// The cotangents of gate and up.
    fn cotangents(self, gate: Tensor, up: Tensor, ct: Tensor) -> (Tensor, Tensor) {
        match self {
            Activation::Silu => {
                let sigmoid = gate.logistic();
                let silu = gate * sigmoid;
                let slope = sigmoid * (1.0 + gate * (1.0 - sigmoid));
                (ct * up * slope, ct * silu)
            }
            Activation::GeluTanh => {
                let factor = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
                let squared = gate.square();
                let tanh = ((gate + squared * gate * GELU_CUBIC) * factor).tanh();
                let half = (tanh + 1.0) * 0.5;
                let inner = (squared * (3.0 * GELU_CUBIC) + 1.0) * factor;
                let slope = half + gate * 0.5 * (1.0 - tanh.square()) * inner;
                (ct * up * slope, ct * gate * half)
            }
            Activation::Clamped { limit } => {
                let (low, clamped) = (gate.minimum(limit), up.maximum(-limit).minimum(limit));
                let sigmoid = (low * CLAMPED_SLOPE).logistic();
                let slope = sigmoid * (1.0 + low * (1.0 - sigmoid) * CLAMPED_SLOPE);
                // Beyond a limit nothing changes.
                let of_gate = gate.less_equal(limit).select((clamped + 1.0) * slope, 0.0);
                let of_up = (up.greater_equal(-limit) & up.less_equal(limit)).select(low * sigmoid, 0.0);
                (ct * of_gate, ct * of_up)
            }
        }
    }
}

/// The factor of the third power in the approximation of GELU (Hendrycks & Gimpel, arXiv 1606.08415).
const GELU_CUBIC: f64 = 0.044715;

/// The part between the products of a gated block, with or without experts, with the names that remat policies take.
pub(super) fn hidden(activation: Activation, gate: Tensor, up: Tensor) -> Tensor {
    activation.of(gate.named("mlp_gate"), up.named("mlp_up")).named("mlp_hidden")
}

/// The gated feed-forward block over `x` `[batch, length, embed]`; all in the type of `x`.
pub fn mlp(x: Tensor, params: &Mlp<Tensor>, activation: Activation) -> Tensor {
    let dtype = x.dtype();
    let gate = einsum("bte,em->btm", &[x, params.gate.convert(dtype)]).with_axes(HIDDEN);
    let up = einsum("bte,em->btm", &[x, params.up.convert(dtype)]).with_axes(HIDDEN);
    let hidden = hidden(activation, gate, up);
    einsum("btm,me->bte", &[hidden, params.down.convert(dtype)])
}
