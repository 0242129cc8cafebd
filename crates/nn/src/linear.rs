//! A dense layer.

use std::panic::Location;

use meshloom::ir::DType;
use meshloom::trace::{Init, Param, Tensor, composite};

meshloom::tree! {
    /// Parameters of [`linear`].
    pub struct Linear<T> {
        /// `[inputs, outputs..]`.
        pub weight: T,
        /// `[outputs..]`.
        pub bias: Option<T>,
    }
}

impl Linear<Param> {
    /// A matrix `[inputs, outputs..]` with one axis name for each dimension, normally distributed with a standard
    /// deviation, and a bias of zeros.
    pub fn new(dtype: DType, dims: impl AsRef<[usize]>, axes: &[&str], deviation: f64) -> Linear<Param> {
        let dims = dims.as_ref();
        let outputs = dims.get(1..).unwrap_or_default();
        let bias = Param::new(dtype, outputs, axes.get(1..).unwrap_or_default(), Init::Constant(0.0));
        Linear { weight: Param::new(dtype, dims, axes, Init::Normal(deviation)), bias: Some(bias) }
    }
}

/// `x` `[.., inputs]` times the matrix, plus the bias: `[.., outputs..]`, in the type of `x`.
#[track_caller]
pub fn linear(x: Tensor, params: &Linear<Tensor>) -> Tensor {
    composite(Location::caller(), || {
        let product = x.matmul(params.weight.convert(x.dtype()));
        params.bias.map_or(product, |bias| product + bias.convert(x.dtype()).broadcast())
    })
}
