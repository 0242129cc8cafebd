//! Root-mean-square normalization.

use crate::ir::DType;
use crate::trace::{Tensor, custom_vjp};

/// `x * rsqrt(mean(x^2) + epsilon) * scale` over the last dimension, with statistics in `f32`. The result has the type
/// of `x`. `scale` has one element for each of the last dimension's.
///
/// Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
pub fn rms_norm(x: Tensor, scale: Tensor, epsilon: f64) -> Tensor {
    let forward = move |x: Tensor, scale: Tensor| {
        let wide = x.convert(DType::F32);
        let inverse = (wide.square().mean(-1) + epsilon).rsqrt();
        let normal = wide * spread(inverse, wide);
        let scaled = normal * scale.convert(DType::F32).broadcast_like(normal, -1);
        (scaled.convert(x.dtype()), inverse)
    };
    custom_vjp(
        (x, scale),
        |(x, scale)| forward(x, scale).0,
        |(x, scale)| {
            let (result, inverse) = forward(x, scale);
            (result, (x, scale, inverse))
        },
        |(x, scale, inverse), ct| {
            let (wide, ct) = (x.convert(DType::F32), ct.convert(DType::F32));
            let normal = wide * spread(inverse, wide);
            let leading: Vec<i32> = (0..wide.rank() as i32 - 1).collect();
            let scale_ct = (ct * normal).sum(leading.as_slice()).convert(scale.dtype());
            let normal_ct = ct * scale.convert(DType::F32).broadcast_like(ct, -1);
            // The norm does not change along the direction of x itself, so that part of the cotangent drops out.
            let along = (normal_ct * normal).mean(-1);
            let x_ct = (normal_ct - normal * spread(along, normal)) * spread(inverse, normal);
            (x_ct.convert(x.dtype()), scale_ct)
        },
    )
}

/// Repeats a statistic along the last dimension of `like`.
fn spread(statistic: Tensor, like: Tensor) -> Tensor {
    let axes: Vec<i32> = (0..like.rank() as i32 - 1).collect();
    statistic.broadcast_like(like, axes.as_slice())
}
