//! Normalization over the last dimension.

use std::panic::Location;

use meshloom::ir::DType;
use meshloom::trace::{Init, Param, Tensor, composite, custom_vjp};

meshloom::tree! {
    /// Parameters of [`layer_norm`].
    pub struct LayerNorm<T> {
        /// `[width]`.
        pub scale: T,
        /// `[width]`.
        pub bias: T,
    }
}

impl LayerNorm<Param> {
    /// A scale of ones and a bias of zeros, with an axis name.
    pub fn new(dtype: DType, width: usize, axis: &str) -> LayerNorm<Param> {
        let constant = |number| Param::new(dtype, [width], &[axis], Init::Constant(number));
        LayerNorm { scale: constant(1.0), bias: constant(0.0) }
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * scale + bias` over the last dimension, with statistics in `f32`. The result
/// has the type of `x`, which must be a floating-point one. The backward pass keeps `x` and two numbers for each row.
///
/// Source: Ba, Kiros & Hinton, "Layer Normalization", arXiv 1607.06450.
#[track_caller]
pub fn layer_norm(x: Tensor, params: &LayerNorm<Tensor>, epsilon: f64) -> Tensor {
    let place = Location::caller();
    composite(place, || {
        let x = x.expect_float("the layer norm");
        let width = x.dims().last().copied();
        for (name, param) in [("scale", params.scale), ("bias", params.bias)] {
            if param.rank() != 1 || param.dims().last().copied() != width {
                let expected = format!("one number for each of the last dimension of {}", x.ty());
                return param.mismatch(&format!("the {name} of a layer norm"), expected, param.ty().to_string(), place);
            }
        }
        let normalized = |x: Tensor, mean: Tensor, inverse: Tensor| {
            let wide = x.convert(DType::F32);
            (wide - spread(mean, wide)) * spread(inverse, wide)
        };
        let forward = move |x: Tensor, scale: Tensor, bias: Tensor| {
            let wide = x.convert(DType::F32);
            let inverse = (wide.variance(-1) + epsilon).rsqrt();
            let mean = wide.mean(-1);
            let normal = normalized(x, mean, inverse);
            let scaled = normal * scale.convert(DType::F32).broadcast() + bias.convert(DType::F32).broadcast();
            (scaled.convert(x.dtype()), mean, inverse)
        };
        custom_vjp(
            (x, params.scale, params.bias),
            |(x, scale, bias)| forward(x, scale, bias).0,
            |(x, scale, bias)| {
                let (result, mean, inverse) = forward(x, scale, bias);
                (result, (x, scale, bias, mean, inverse))
            },
            move |(x, scale, bias, mean, inverse), ct| {
                let ct = ct.convert(DType::F32);
                let normal = normalized(x, mean, inverse);
                let leading: Vec<i32> = (0..ct.rank() as i32 - 1).collect();
                let scale_ct = (ct * normal).sum(leading.as_slice()).convert(scale.dtype());
                let bias_ct = ct.sum(leading.as_slice()).convert(bias.dtype());
                let normal_ct = ct * scale.convert(DType::F32).broadcast();
                // Neither a shift of x nor a change along x itself moves the norm: those parts of the cotangent drop
                // out.
                let along = spread((normal_ct * normal).mean(-1), normal);
                let x_ct = (normal_ct - spread(normal_ct.mean(-1), normal) - normal * along) * spread(inverse, normal);
                (x_ct.convert(x.dtype()), scale_ct, bias_ct)
            },
        )
    })
}

/// The form of a root mean square norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub epsilon: f64,
    /// The form of the factor of normalized numbers.
    pub weight: NormWeight,
    /// Where the result gets the type of the input.
    pub cast: NormCast,
}

/// The factor of a norm, from its parameter `w`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormWeight {
    /// `w`, which starts at one.
    #[default]
    Plain,
    /// `1 + w`, of a `w` that starts at zero (Gemma).
    OnePlus,
}

/// Where a norm over a narrow type rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormCast {
    /// Behind the product with the weight, which is in `f32` (Gemma).
    #[default]
    AfterWeight,
    /// Before the product with the weight, which is in the type of the input (Llama).
    BeforeWeight,
}

impl From<f64> for RmsNorm {
    /// With this epsilon, a plain weight, and the product in `f32`.
    fn from(epsilon: f64) -> RmsNorm {
        RmsNorm { epsilon, weight: NormWeight::default(), cast: NormCast::default() }
    }
}

impl RmsNorm {
    /// The form of Llama's norms.
    pub fn llama(epsilon: f64) -> RmsNorm {
        RmsNorm { cast: NormCast::BeforeWeight, ..RmsNorm::from(epsilon) }
    }

    /// The form of Gemma's norms.
    pub fn gemma(epsilon: f64) -> RmsNorm {
        RmsNorm { weight: NormWeight::OnePlus, ..RmsNorm::from(epsilon) }
    }

    /// The first value of its parameter.
    pub(super) fn first_weight(self) -> f64 {
        match self.weight {
            NormWeight::Plain => 1.0,
            NormWeight::OnePlus => 0.0,
        }
    }

    /// The factor of normalized numbers, `f32`.
    fn factor(self, weight: Tensor) -> Tensor {
        let wide = weight.convert(DType::F32);
        match self.weight {
            NormWeight::Plain => wide,
            NormWeight::OnePlus => wide + 1.0,
        }
    }

    /// The result, in the type of `x`, of normalized numbers in `f32`.
    fn scaled(self, normal: Tensor, weight: Tensor, dtype: DType) -> Tensor {
        let factor = self.factor(weight);
        match self.cast {
            NormCast::AfterWeight => (normal * factor.broadcast_like(normal, -1)).convert(dtype),
            NormCast::BeforeWeight => normal.convert(dtype) * factor.convert(dtype).broadcast_like(normal, -1),
        }
    }
}

/// `x * rsqrt(mean(x^2) + epsilon) * scale` over the last dimension, with statistics in `f32`. The result has the type
/// of `x`, which must be a floating-point one. `scale` has one element for each of the last dimension's. `form` is an
/// epsilon, or says more of it.
///
/// Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
#[track_caller]
pub fn rms_norm(x: Tensor, scale: Tensor, form: impl Into<RmsNorm>) -> Tensor {
    let form = form.into();
    composite(Location::caller(), || {
        let x = x.expect_float("the root mean square");
        let forward = move |x: Tensor, scale: Tensor| {
            let wide = x.convert(DType::F32);
            let inverse = (wide.square().mean(-1) + form.epsilon).rsqrt();
            (form.scaled(wide * spread(inverse, wide), scale, x.dtype()), inverse)
        };
        custom_vjp(
            (x, scale),
            |(x, scale)| forward(x, scale).0,
            |(x, scale)| {
                let (result, inverse) = forward(x, scale);
                (result, (x, scale, inverse))
            },
            move |(x, scale, inverse), ct| {
                let (wide, ct) = (x.convert(DType::F32), ct.convert(DType::F32));
                let normal = wide * spread(inverse, wide);
                let leading: Vec<i32> = (0..wide.rank() as i32 - 1).collect();
                let scale_ct = (ct * normal).sum(leading.as_slice()).convert(scale.dtype());
                let normal_ct = ct * form.factor(scale).broadcast_like(ct, -1);
                // The norm does not change along the direction of x itself, so that part of the cotangent drops out.
                let along = (normal_ct * normal).mean(-1);
                let x_ct = (normal_ct - normal * spread(along, normal)) * spread(inverse, normal);
                (x_ct.convert(x.dtype()), scale_ct)
            },
        )
    })
}

/// Repeats a statistic along the last dimension of `like`.
fn spread(statistic: Tensor, like: Tensor) -> Tensor {
    let axes: Vec<i32> = (0..like.rank() as i32 - 1).collect();
    statistic.broadcast_like(like, axes.as_slice())
}
