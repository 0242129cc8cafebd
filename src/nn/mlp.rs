//! The gated feed-forward block.

use std::panic::Location;

use super::layout::HIDDEN;
use crate::trace::{Tensor, composite, custom_vjp, einsum};

crate::tree! {
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

/// `silu(gate) * up`, elementwise, where `silu(x) = x * logistic(x)`. Saves only its two operands for the backward
/// pass.
///
/// Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
#[track_caller]
pub fn swiglu(gate: Tensor, up: Tensor) -> Tensor {
    composite(Location::caller(), || {
        custom_vjp(
            (gate, up),
            |(gate, up)| gate * gate.logistic() * up,
            |(gate, up)| (gate * gate.logistic() * up, (gate, up)),
            |(gate, up), ct| {
                let sigmoid = gate.logistic();
                let silu = gate * sigmoid;
                let slope = sigmoid * (1.0 + gate * (1.0 - sigmoid));
                (ct * up * slope, ct * silu)
            },
        )
    })
}

/// The gated feed-forward block over `x` `[batch, length, embed]`; all in the type of `x`.
pub fn mlp(x: Tensor, params: &Mlp<Tensor>) -> Tensor {
    let dtype = x.dtype();
    let gate = einsum("bte,em->btm", &[x, params.gate.convert(dtype)]).with_axes(HIDDEN);
    let up = einsum("bte,em->btm", &[x, params.up.convert(dtype)]).with_axes(HIDDEN);
    let hidden = swiglu(gate, up).named("mlp_hidden");
    einsum("btm,me->bte", &[hidden, params.down.convert(dtype)])
}
