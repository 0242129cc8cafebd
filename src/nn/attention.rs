//! Grouped-query attention.

use std::panic::Location;

use meshloom_hlo::message::counted;

use super::layout::{KEY, QUERY, gather_keys};
use super::rotary::{Rotary, rotate};
use crate::ir::DType;
use crate::trace::{Tensor, composite, custom_vjp, einsum, einsum_with, iota};

crate::tree! {
    /// Parameters of [`attention`].
    pub struct Attention<T> {
        /// `[embed, heads, head_dim]`.
        pub wq: T,
        /// `[embed, kv_heads, head_dim]`.
        pub wk: T,
        /// `[embed, kv_heads, head_dim]`.
        pub wv: T,
        /// `[heads, head_dim, embed]`.
        pub wo: T,
    }
}

/// Which positions a query sees: `pred` `[batch, length, length]`, query by key.
#[derive(Clone, Copy, Debug)]
pub struct AttentionMask(pub Tensor);

impl AttentionMask {
    /// A query sees earlier positions of the row, and itself, within its own segment. `segment_ids` is
    /// `[batch, length]`.
    pub fn causal(segment_ids: Tensor) -> AttentionMask {
        let [batch, length] = segment_ids.shape();
        let dims = [batch, length, length];
        let of_keys = segment_ids.with_axes(["activation_batch", "activation_kv_length"]);
        let same =
            segment_ids.broadcast_like(iota(DType::S32, dims, 1), [0, 1]).equal(of_keys.expand(1).broadcast_to(dims));
        let earlier = iota(DType::S32, dims, 2).less_equal(iota(DType::S32, dims, 1));
        AttentionMask((same & earlier).with_axes(["activation_batch", "activation_length", "activation_kv_length"]))
    }
}

/// `softmax(scale * scores)` over the last dimension, in which masked entries count as minus infinity. `scores` is
/// `[batch, kv_heads, groups, queries, keys]`, `mask` `[batch, queries, keys]`; every query must see something. The
/// result has the type `dtype`; the arithmetic is that of `scores`. Only the result is saved for the backward pass.
pub fn masked_softmax(scores: Tensor, mask: AttentionMask, scale: f64, dtype: DType) -> Tensor {
    let wide = scores.dtype();
    let forward = move |scores: Tensor, mask: Tensor| {
        let visible = mask.broadcast_like(scores, [0, 3, 4]);
        let masked = visible.select(scores * scale, -1e30);
        let highest = masked.max(-1).broadcast_like(masked, [0, 1, 2, 3]);
        let weights = (masked - highest).exp();
        let total = weights.sum(-1).recip().broadcast_like(weights, [0, 1, 2, 3]);
        (weights * total).convert(dtype)
    };
    custom_vjp(
        (scores, mask.0),
        |(scores, mask)| forward(scores, mask),
        |(scores, mask)| {
            let weights = forward(scores, mask);
            (weights, (weights, mask))
        },
        move |(weights, mask), ct| {
            // Masked entries have weight zero, so nothing flows into them without asking the mask.
            let (weights, ct) = (weights.convert(wide), ct.convert(wide));
            let flow = weights * ct;
            let mean = flow.sum(-1).broadcast_like(flow, [0, 1, 2, 3]);
            ((flow - weights * mean) * scale, mask)
        },
    )
}

/// Grouped-query attention over `x` `[batch, length, embed]`: query head `h` uses key and value head
/// `h / (heads / kv_heads)`. Scores and softmax in `f32`, the rest in the type of `x`.
///
/// Source: Ainslie et al., "GQA", arXiv 2305.13245.
pub fn attention(x: Tensor, params: &Attention<Tensor>, rotary: &Rotary, mask: AttentionMask) -> Tensor {
    let dtype = x.dtype();
    let [_, heads, head_dim] = params.wq.shape();
    let [_, kv_heads, _] = params.wk.shape();
    let [batch, length, _] = x.shape();
    let project = |weight: Tensor, axes| einsum("bte,ehd->bhtd", &[x, weight.convert(dtype)]).with_axes(axes);
    let query = rotate(project(params.wq, QUERY), rotary);
    let key = gather_keys(rotate(project(params.wk, KEY), rotary));
    let value = gather_keys(project(params.wv, KEY));
    let groups = heads / kv_heads.max(1);
    let query = query.reshape([batch, kv_heads, groups, length, head_dim]);
    let mixed = attend(query, key, value, mask, (head_dim as f64).powf(-0.5));
    let mixed = mixed.reshape([batch, heads, length, head_dim]).with_axes(QUERY).named("attention_mixed");
    einsum("bhtd,hde->bte", &[mixed, params.wo.convert(dtype)])
}

/// Attention of each position to earlier positions and itself: queries `[batch, length, heads, head_dim]`, keys and
/// values `[batch, length, kv_heads, head_dim]` give `[batch, length, heads, head_dim]`. Query head `h` uses key and
/// value head `h / (heads / kv_heads)`. Scores are scaled by `head_dim^-0.5`; scores and softmax in `f32`.
#[track_caller]
pub fn causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor {
    let place = Location::caller();
    composite(place, || {
        let [batch, length, heads, head_dim] = query.shape();
        let kv_heads = key.dim(2);
        if !heads.is_multiple_of(kv_heads) {
            let expected =
                format!("a number of key and value heads that divides the {} of the queries", counted(heads, "head"));
            return key.mismatch("causal_attention", expected, key.ty().to_string(), place);
        }
        let by_head = |x: Tensor| x.transpose([0, 2, 1, 3]);
        let query = by_head(query).reshape([batch, kv_heads, heads / kv_heads, length, head_dim]);
        let positions = |axis| iota(DType::S32, [batch, length, length], axis);
        let mask = AttentionMask(positions(2).less_equal(positions(1)));
        let mixed = attend(query, by_head(key), by_head(value), mask, (head_dim as f64).powf(-0.5));
        by_head(mixed.reshape([batch, heads, length, head_dim]))
    })
}

/// Values mixed by the softmax of scaled scores: queries `[batch, kv_heads, groups, queries, head_dim]`, keys
/// `[batch, kv_heads, keys, head_dim]` and values `[batch, kv_heads, keys, value_dim]` give
/// `[batch, kv_heads, groups, queries, value_dim]`. Scores and softmax in `f32`.
pub(super) fn attend(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scale: f64) -> Tensor {
    let scores = einsum_with("bkgtd,bksd->bkgts", &[query, key], DType::F32);
    let weights = masked_softmax(scores, mask, scale, query.dtype());
    einsum("bkgts,bksd->bkgtd", &[weights, value])
}
