//! Sorting, grouped products, convolutions and custom calls on tensors.

use std::panic::Location;

use super::Tensor;
use super::context::{apply, apply_many};
use crate::ir::DType;
use crate::ops::{
    Attention, AttentionForm, Convolution, CustomCall, Iota, Precision, RaggedDot, RaggedForm, RaggedMode, Sort, TopK,
    Window,
};

/// Sorts tensors of the same dimensions together along an axis, by the first `key_count` of them in lexicographic
/// order. The sort is stable. Among floating-point keys, -0 equals 0 and NaN is the largest.
#[track_caller]
pub fn sort_together(tensors: &[Tensor], axis: i32, key_count: usize) -> Vec<Tensor> {
    sort_in(tensors, axis, key_count, false)
}

#[track_caller]
fn sort_in(tensors: &[Tensor], axis: i32, key_count: usize, descending: bool) -> Vec<Tensor> {
    let place = Location::caller();
    let axis = tensors.first().and_then(|first| first.axis(axis, place)).unwrap_or(0);
    apply_many(Sort { axis, key_count, descending }.into(), tensors, tensors.len(), place).to_vec()
}

impl Tensor {
    /// Sorts along an axis, ascending. Among floating-point elements, -0 equals 0 and NaN is the largest.
    #[track_caller]
    pub fn sort(self, axis: i32) -> Tensor {
        sort_in(&[self], axis, 1, false)[0]
    }

    /// Positions (`s32`) along an axis in descending order: NaN comes first; among equal elements, the first comes
    /// first. [`sort_together`] with positions gives them in ascending order.
    #[track_caller]
    pub fn argsort_descending(self, axis: i32) -> Tensor {
        let place = Location::caller();
        let Some(position) = self.axis(axis, place) else { return self };
        let positions = apply(Iota { ty: self.ty().with_dtype(DType::S32), axis: position }, &[], place);
        sort_in(&[self, positions], axis, 1, true)[1]
    }

    /// The `k` largest elements along the last dimension, largest first, and their positions (`s32`). Among equal
    /// elements the first comes first; NaN counts as the largest.
    #[track_caller]
    pub fn top_k(self, k: usize) -> (Tensor, Tensor) {
        let results = apply_many(TopK { k }.into(), &[self], 2, Location::caller());
        (results[0], results[1])
    }
}

/// Rows times the matrix of their group: `[m,k], [g,k,n] -> [m,n]`, where the first `group_sizes[0]` rows belong to
/// group 0, and so on (`s32[g]`); rows beyond the last group give zeros. Routed experts compute this product.
///
/// Values must be finite: a row is multiplied by zero where it does not belong.
#[track_caller]
pub fn ragged_dot(rows: Tensor, matrices: Tensor, group_sizes: Tensor) -> Tensor {
    let op = RaggedDot {
        mode: RaggedMode::Rows,
        batch_count: 0,
        block_count: 0,
        dtype: rows.dtype(),
        precision: Precision::Default,
        form: RaggedForm::Masked,
    };
    ragged_dot_by(op, [rows, matrices, group_sizes])
}

/// A grouped product by its op.
#[track_caller]
pub(crate) fn ragged_dot_by(op: RaggedDot, operands: [Tensor; 3]) -> Tensor {
    apply(op, &operands, Location::caller())
}

/// Attention by its op: `[query, key, value]`, and segments and places of queries and keys, as
/// [`Attention`](crate::ops::Attention) says; `seeds` if the form has dropout. Returns the mixed values, and the
/// logarithm of each query's sum.
#[track_caller]
pub fn attention_over(
    form: AttentionForm,
    [query, key, value]: [Tensor; 3],
    segments: [Tensor; 2],
    places: [Tensor; 2],
    seeds: Option<Tensor>,
) -> (Tensor, Tensor) {
    let mut operands = vec![query, key, value, segments[0], segments[1], places[0], places[1]];
    operands.extend(seeds);
    let results = apply_many(Attention(form).into(), &operands, 2, Location::caller());
    (results[0], results[1])
}

/// A convolution: input `[batch, features, space..]`, kernel `[out_features, features / groups, space..]`, result
/// `[batch, out_features, space..]`, one window for each dimension of space.
#[track_caller]
pub fn convolution(input: Tensor, kernel: Tensor, windows: &[Window], feature_groups: usize) -> Tensor {
    let (dtype, precision) = (input.dtype(), Precision::Default);
    let op = Convolution { windows: windows.into(), feature_groups, dtype, precision };
    apply(op, &[input, kernel], Location::caller())
}

/// Each feature of `x` `[batch, length, features]` convolved on its own with its column of `kernel` `[width,
/// features]`: position `t` sees positions `t - width + 1` to `t`, the last by the kernel's last row. State-space
/// layers mix neighbours in this way.
#[track_caller]
pub fn causal_depthwise_convolution(x: Tensor, kernel: Tensor) -> Tensor {
    let place = Location::caller();
    let (&[_, _, features], &[width, kernel_features]) = (&x.dims()[..], &kernel.dims()[..]) else {
        let found = format!("{} and {}", x.ty(), kernel.ty());
        return x.mismatch(
            "causal_depthwise_convolution",
            "[batch, length, features] and [width, features]".into(),
            found,
            place,
        );
    };
    if features != kernel_features {
        let expected = format!("a kernel of {features} features");
        return kernel.mismatch("causal_depthwise_convolution", expected, kernel.ty().to_string(), place);
    }
    let window = Window { padding_low: width as i64 - 1, ..Window::default() };
    let op = Convolution {
        windows: [window].into(),
        feature_groups: features,
        dtype: x.dtype(),
        precision: Precision::Default,
    };
    let transpose =
        |x: Tensor, order: &[usize]| apply(crate::ops::Transpose { permutation: order.into() }, &[x], place);
    let kernel = transpose(kernel, &[1, 0]);
    let kernel = apply(crate::ops::Reshape { dims: [features, 1, width].into_iter().collect() }, &[kernel], place);
    let mixed = apply(op, &[transpose(x, &[0, 2, 1]), kernel], place);
    transpose(mixed, &[0, 2, 1])
}

/// Calls code that the plugin has registered under a name. The call has no derivative and no batching rule.
#[track_caller]
pub fn custom_call(call: CustomCall, operands: &[Tensor]) -> Vec<Tensor> {
    let count = call.results.len();
    apply_many(call.into(), operands, count, Location::caller()).to_vec()
}
