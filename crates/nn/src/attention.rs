//! Grouped-query attention.

use std::panic::Location;

use meshloom::hlo::message::counted;
use meshloom::ir::DType;
use meshloom::ops::{AttentionForm, KeyExchange, Number, PlaceOrder};
use meshloom::trace::{Tensor, attention_over, composite, einsum, iota, zeros};

use super::dropout::{Dropout, DroppedWeights};
use super::kv_cache::Keys;
use super::layout::{KEY, QUERY};
use super::norm::{RmsNorm, rms_norm};
use super::rotary::{Rope, Rotary, rotate};
use super::token_places::{BlockMask, TokenPlaces};

meshloom::tree! {
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
        /// The biases of queries, keys and values.
        pub bias: Option<AttentionBias<T>>,
        /// The bias of the result: `[embed]`. The caller of [`attention`] adds it, for the function leaves partial
        /// sums.
        pub output_bias: Option<T>,
        /// The norms of queries and keys over `head_dim`, before they turn.
        pub head_norms: Option<HeadNorms<T>>,
        /// For each query head a score that takes part in the softmax without a value: `[heads]`.
        pub sinks: Option<T>,
    }

    /// Biases of the projections of [`attention`].
    pub struct AttentionBias<T> {
        /// `[heads, head_dim]`.
        pub query: T,
        /// `[kv_heads, head_dim]`.
        pub key: T,
        /// `[kv_heads, head_dim]`.
        pub value: T,
    }

    /// Norms of queries and keys in [`attention`].
    pub struct HeadNorms<T> {
        /// `[head_dim]`.
        pub query: T,
        /// `[head_dim]`.
        pub key: T,
    }
}

/// The shape of grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedConfig {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The factor of products of queries and keys.
    pub scale: f64,
    /// How queries and keys turn by position.
    pub rope: Rope,
    /// The number of places that a query sees, its own and those before it; with `None` it sees all before it.
    pub window: Option<usize>,
    /// Scaled scores `s` become `cap * tanh(s / cap)`.
    pub softcap: Option<f64>,
    /// Whether queries, keys and values have biases.
    pub bias: bool,
    /// Whether the result has one.
    pub output_bias: bool,
    /// The form of the norms of queries and keys, if they have any.
    pub head_norms: Option<RmsNorm>,
    /// Whether each head has a sink.
    pub sinks: bool,
}

impl GroupedConfig {
    /// Llama's: scores times `head_dim^-0.5`, all of a head turns, and nothing else.
    pub fn llama(heads: usize, kv_heads: usize, head_dim: usize, theta: f64) -> GroupedConfig {
        GroupedConfig {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5),
            rope: Rope::new(head_dim, theta),
            window: None,
            softcap: None,
            bias: false,
            output_bias: false,
            head_norms: None,
            sinks: false,
        }
    }
}

/// The options of an attention beside mixing values by the softmax of scaled scores; by default none is in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions {
    /// Scaled scores `s` become `cap * tanh(s / cap)` (Gemma 2, arXiv 2408.00118).
    pub softcap: Option<f64>,
    /// A query sees its own place and `window - 1` before it (Longformer, arXiv 2004.05150).
    pub window: Option<usize>,
    /// For each query head a score that takes part in the softmax without a value: `f32` `[heads]` ("attention sinks",
    /// arXiv 2309.17453; as a learned number of each head in gpt-oss, arXiv 2508.10925).
    pub sinks: Option<Tensor>,
    /// Dropout of the weights.
    pub dropout: Option<DroppedWeights>,
}

/// Grouped-query attention over `x` `[batch, length, embed]`: query head `h` uses key and value head
/// `h / (heads / kv_heads)`. Scores and softmax in `f32`, the rest in the type of `x`. Weights drop as `dropout` says.
/// `rotary` has the angles of [`GroupedConfig::rope`].
///
/// Source: Ainslie et al., "GQA", arXiv 2305.13245.
pub fn attention(
    x: Tensor,
    params: &Attention<Tensor>,
    config: &GroupedConfig,
    rotary: &Rotary,
    tokens: TokenPlaces,
    dropout: Option<Dropout>,
) -> Tensor {
    attention_over_keys(x, params, config, rotary, &mut Keys::of_rows(tokens), dropout)
}

/// As [`attention`], over the keys and values that queries see.
pub(super) fn attention_over_keys(
    x: Tensor,
    params: &Attention<Tensor>,
    config: &GroupedConfig,
    rotary: &Rotary,
    keys: &mut Keys,
    dropout: Option<Dropout>,
) -> Tensor {
    let dtype = x.dtype();
    let [_, heads, head_dim] = params.wq.shape();
    let [_, kv_heads, _] = params.wk.shape();
    let [batch, length, _] = x.shape();
    let project = |weight: Tensor, bias: Option<Tensor>, axes| {
        let product = einsum("bte,ehd->bhtd", &[x, weight.convert(dtype)]);
        let sum = bias.map_or(product, |bias| product + bias.convert(dtype).broadcast_like(product, [1, 3]));
        sum.with_axes(axes)
    };
    let turned = |x: Tensor, norm: Option<Tensor>| {
        let normal = norm.zip(config.head_norms).map_or(x, |(norm, form)| rms_norm(x, norm, form));
        rotate(normal, rotary)
    };
    let (bias, norms) = (params.bias.as_ref(), params.head_norms.as_ref());
    let query = project(params.wq, bias.map(|bias| bias.query), QUERY);
    let query = turned(query, norms.map(|norms| norms.query));
    let key = project(params.wk, bias.map(|bias| bias.key), KEY);
    let key = turned(key, norms.map(|norms| norms.key));
    let (key, value) = keys.update(key, || project(params.wv, bias.map(|bias| bias.value), KEY));
    let groups = heads / kv_heads.max(1);
    let query = query.reshape([batch, kv_heads, groups, length, head_dim]);
    let options =
        AttentionOptions { softcap: config.softcap, window: config.window, sinks: params.sinks, dropout: None };
    let mixed = attend([query, key, value], keys, config.scale, dropout, options);
    let mixed = mixed.reshape([batch, heads, length, head_dim]).with_axes(QUERY);
    einsum("bhtd,hde->bte", &[mixed, params.wo.convert(dtype)])
}

/// Attention of each position to earlier positions and itself: queries `[batch, length, heads, head_dim]`, keys
/// `[batch, length, kv_heads, head_dim]` and values `[batch, length, kv_heads, value_dim]` give
/// `[batch, length, heads, value_dim]`. Query head `h` uses key and value head `h / (heads / kv_heads)`. Scores are
/// scaled by `head_dim^-0.5`; scores and softmax in `f32`.
#[track_caller]
pub fn causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor {
    causal_attention_with(query, key, value, &AttentionOptions::default())
}

/// As [`causal_attention`], with options.
#[track_caller]
pub fn causal_attention_with(query: Tensor, key: Tensor, value: Tensor, options: &AttentionOptions) -> Tensor {
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
        let scale = (head_dim as f64).powf(-0.5);
        let rows = [zeros(DType::S32, [batch, length]), iota(DType::S32, [batch, length], 1)];
        let operands = [query, by_head(key), by_head(value)];
        let block_mask =
            BlockMask { queries: rows, keys: rows, exchange: KeyExchange::Gather, order: PlaceOrder::Index };
        let mixed = mixed_values(operands, block_mask, scale, options);
        by_head(mixed.reshape([batch, heads, length, value.dim(3)]))
    })
}

/// Values mixed by the softmax of scaled scores: queries `[batch, kv_heads, groups, length, head_dim]`, keys
/// `[batch, kv_heads, keys, head_dim]` and values `[batch, kv_heads, keys, value_dim]` give
/// `[batch, kv_heads, groups, length, value_dim]`. Scores and softmax in `f32`. The names of the values that
/// the backward pass reads are `attention_queries`, `_keys`, `_values`, `_mixed` and `_log_total`, all with that
/// prefix.
pub(super) fn attend(
    operands: [Tensor; 3],
    keys: &Keys,
    scale: f64,
    dropout: Option<Dropout>,
    options: AttentionOptions,
) -> Tensor {
    let [queries, keys_met, values] = operands;
    let operands =
        [queries.named("attention_queries"), keys_met.named("attention_keys"), values.named("attention_values")];
    let heads = queries.dims();
    let dropout = dropout.and_then(|dropout| dropout.of_weights([heads[1], heads[2]]));
    let options = AttentionOptions { dropout, ..options };
    mixed_values(operands, keys.block_mask(), scale, &options)
}

/// As [`attend`], by what queries see.
fn mixed_values(operands: [Tensor; 3], block_mask: BlockMask, scale: f64, options: &AttentionOptions) -> Tensor {
    let form = AttentionForm {
        scale: Number::new(scale),
        softcap: options.softcap.map(Number::new),
        causal: true,
        window: options.window,
        order: block_mask.order,
        exchange: block_mask.exchange,
        dropout: options.dropout.map(|dropped| Number::new(dropped.rate)),
    };
    let segments = [block_mask.queries[0], block_mask.keys[0]];
    let places = [block_mask.queries[1], block_mask.keys[1]];
    let seeds = options.dropout.map(|dropped| dropped.seeds);
    let (mixed, log_total) = attention_over(form, operands, segments, places, seeds);
    // A name is one for what made the value, which is then kept in its stead.
    log_total.named("attention_log_total");
    let mixed = mixed.named("attention_mixed");
    match options.sinks {
        None => mixed,
        // The share that the sum of the others has of a sum with the sink.
        Some(sinks) => {
            let sinks = sinks.convert(log_total.dtype()).reshape([log_total.dim(1), log_total.dim(2)]);
            let share = (log_total - sinks.broadcast_like(log_total, [1, 2])).logistic();
            mixed * share.convert(mixed.dtype()).broadcast_like(mixed, [0, 1, 2, 3])
        }
    }
}
