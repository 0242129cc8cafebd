//! Functions of several ops: activations, log-space arithmetic, statistics. Values and gradients are stable for any
//! finite operand.

use std::panic::Location;

use super::context::{apply, composite};
use super::operators::{Operand, align};
use super::{Axes, Tensor};
use crate::ir::DType;
use crate::ops::{AxisList, Clamp, Reduce, ReduceKind, complement};

impl Tensor {
    /// Keeps each element between two bounds: `min(max(x, low), high)`. The bounds are numbers, or tensors of the same
    /// dimensions or without any. Beyond a bound the gradient goes to the bound, not to this tensor; exactly at it, to
    /// neither.
    #[track_caller]
    pub fn clamp(self, low: impl Operand, high: impl Operand) -> Tensor {
        let place = Location::caller();
        apply(Clamp, &[low.tensor(self, place), self, high.tensor(self, place)], place)
    }

    /// The larger of each element and 0. The gradient at 0 is 0; NaN stays.
    #[track_caller]
    pub fn relu(self) -> Tensor {
        if self.dtype().is_float() { self.clamp(0.0, self.dtype().highest()) } else { self.maximum(0.0) }
    }

    /// `x * logistic(x)`.
    #[track_caller]
    pub fn silu(self) -> Tensor {
        composite(Location::caller(), || self * self.logistic())
    }

    /// `x * P(normal < x)`, by the complementary error function. Source: Hendrycks and Gimpel, arXiv 1606.08415.
    #[track_caller]
    pub fn gelu(self) -> Tensor {
        composite(Location::caller(), || self * 0.5 * (self * -std::f64::consts::FRAC_1_SQRT_2).erfc())
    }

    /// [`Tensor::gelu`] approximated by a hyperbolic tangent, as in the same paper; the error is below 5e-4.
    #[track_caller]
    pub fn gelu_tanh(self) -> Tensor {
        composite(Location::caller(), || {
            let cubic = self + self.square() * self * 0.044715;
            let slope = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            self * 0.5 * ((cubic * slope).tanh() + 1.0)
        })
    }

    /// log(1 + exp(x)).
    #[track_caller]
    pub fn softplus(self) -> Tensor {
        self.log_add_exp(0.0)
    }

    /// log(logistic(x)).
    #[track_caller]
    pub fn log_logistic(self) -> Tensor {
        composite(Location::caller(), || -(-self).softplus())
    }

    /// log(exp(x) + exp(y)).
    #[track_caller]
    pub fn log_add_exp(self, other: impl Operand) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let (x, y) = align(self, other.tensor(self, place), place);
            // Equal infinities have no difference, and equal numbers share the gradient of the larger one anyway.
            let distance = x.equal(y).select(0.0, x - y).abs();
            x.maximum(y) + (-distance).exp().log_1p()
        })
    }

    /// log(sum(exp)) along the axes. It is minus infinity if there are no elements.
    #[track_caller]
    pub fn logsumexp(self, axes: impl Axes) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let axes = self.axes(axes, place);
            let largest = self.exponent_shift(&axes);
            let powers = (self - largest.repeated_along(&axes, self)).exp();
            powers.total(&axes).log().convert(self.dtype()) + largest
        })
    }

    /// exp(x) over its sum along the axes.
    #[track_caller]
    pub fn softmax(self, axes: impl Axes) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let axes = self.axes(axes, place);
            let powers = (self - self.exponent_shift(&axes).repeated_along(&axes, self)).exp();
            (powers.wide() / powers.total(&axes).repeated_along(&axes, self)).convert(self.dtype())
        })
    }

    /// Logarithm of [`Tensor::softmax`].
    #[track_caller]
    pub fn log_softmax(self, axes: impl Axes) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let axes = self.axes(axes, place);
            let shifted = self - self.exponent_shift(&axes).repeated_along(&axes, self);
            shifted - shifted.exp().total(&axes).log().convert(self.dtype()).repeated_along(&axes, self)
        })
    }

    /// The mean along the axes, of a floating-point tensor. For a type narrower than `f32` it is computed in `f32`.
    #[track_caller]
    pub fn mean(self, axes: impl Axes) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let x = self.expect_float("the mean");
            x.wide().mean_along(&x.axes(axes, place)).convert(x.dtype())
        })
    }

    /// Mean squared distance from the mean along the axes (of the population: divided by the count), of a
    /// floating-point tensor. For a type narrower than `f32` it is computed in `f32`.
    #[track_caller]
    pub fn variance(self, axes: impl Axes) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let x = self.expect_float("the variance");
            let (axes, wide) = (x.axes(axes, place), x.wide());
            let distance = wide - wide.mean_along(&axes).repeated_along(&axes, wide);
            distance.square().mean_along(&axes).convert(x.dtype())
        })
    }

    /// Returns this tensor if it is of a floating-point type, and else notes an error that names `what`, the function
    /// that is asked for. A function whose results on integers would mostly be rounded checks its operand so.
    ///
    /// # Errors
    /// In the trace: [`TraceErrorKind::Mismatch`](super::TraceErrorKind::Mismatch).
    #[track_caller]
    pub fn expect_float(self, what: &str) -> Tensor {
        if self.dtype().is_float() {
            return self;
        }
        let expected = "a floating-point tensor, such as `x.convert(F32)`".to_owned();
        self.mismatch(&format!("{what} of a tensor"), expected, self.ty().to_string(), Location::caller())
    }

    /// Converts a narrower floating-point type to `f32`: in its own type, a sum of many elements would round away what
    /// it adds, or overflow.
    #[track_caller]
    fn wide(self) -> Tensor {
        let dtype = self.dtype();
        if dtype.is_float() && dtype.bit_count() < 32 { self.convert(DType::F32) } else { self }
    }

    /// The sum along the axes, of the type of [`Tensor::wide`].
    #[track_caller]
    fn total(self, axes: &AxisList) -> Tensor {
        self.wide().folded(ReduceKind::Sum, axes)
    }

    #[track_caller]
    fn mean_along(self, axes: &AxisList) -> Tensor {
        let dims = self.dims();
        let count: usize = axes.iter().map(|&axis| dims[axis]).product();
        self.folded(ReduceKind::Sum, axes) * (1.0 / count as f64)
    }

    #[track_caller]
    fn folded(self, kind: ReduceKind, axes: &AxisList) -> Tensor {
        apply(Reduce { kind, axes: axes.clone() }, &[self], Location::caller())
    }

    /// Repeats a fold of `axes` of `whole` along these axes.
    #[track_caller]
    fn repeated_along(self, axes: &AxisList, whole: Tensor) -> Tensor {
        let dims = whole.dims();
        self.broadcast_at(&dims, complement(axes, dims.len()), Location::caller())
    }

    /// The number to subtract from every exponent: the largest, or 0 where that is infinite. The result does not depend
    /// on it, so no gradient flows through it.
    #[track_caller]
    fn exponent_shift(self, axes: &AxisList) -> Tensor {
        let largest = self.folded(ReduceKind::Max, axes);
        largest.is_finite().select(largest, 0.0).stop_gradient()
    }
}
