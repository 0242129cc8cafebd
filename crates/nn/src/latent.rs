//! Multi-head latent attention: keys and values of all heads are made of one narrow vector for each token.

use meshloom::trace::{Tensor, concatenate, einsum};

use super::attention::{AttentionOptions, attend};
use super::dropout::Dropout;
use super::kv_cache::{Keys, SeenLatents};
use super::layout::QUERY;
use super::norm::{RmsNorm, rms_norm};
use super::rotary::{Rope, Rotary, rotate};
use super::token_places::TokenPlaces;

meshloom::tree! {
    /// Parameters of [`latent_attention`].
    pub struct LatentAttention<T> {
        /// How queries are made.
        pub query: LatentQuery<T>,
        /// `[embed, kv_lora]`: the narrow vector that keys and values are made of.
        pub wkv_a: T,
        /// `[embed, rope_head_dim]`: the part of keys that is turned by position, which all heads share.
        pub wk_rope: T,
        /// `[kv_lora]`.
        pub kv_norm: T,
        /// `[kv_lora, heads, nope_head_dim + v_head_dim]`.
        pub wkv_b: T,
        /// `[heads, v_head_dim, embed]`.
        pub wo: T,
    }

    /// How queries are made: of a narrow vector, if the first two are there.
    pub struct LatentQuery<T> {
        /// `[embed, q_lora]`.
        pub wq_a: Option<T>,
        /// `[q_lora]`.
        pub q_norm: Option<T>,
        /// `[q_lora, heads, nope_head_dim + rope_head_dim]`; `[embed, ..]` without the narrow vector.
        pub wq_b: T,
    }
}

/// The shape of latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentConfig {
    /// Heads.
    pub heads: usize,
    /// Width of the narrow vector that queries are made of; 0 for none.
    pub q_lora: usize,
    /// Width of the narrow vector that keys and values are made of.
    pub kv_lora: usize,
    /// Width of the part of a head's queries and keys that does not turn by position.
    pub nope_head_dim: usize,
    /// Width of the part that does; even.
    pub rope_head_dim: usize,
    /// Width of a head's values.
    pub v_head_dim: usize,
    /// The factor of products of queries and keys.
    pub scale: f64,
    /// How the part that turns does: of `rope_head_dim`.
    pub rope: Rope,
    /// The form of the norms of the narrow vectors.
    pub norm: RmsNorm,
}

/// Latent attention over `x` `[batch, length, embed]`, in the form for training: keys and values are made for all
/// heads. `rotary` has the angles of [`LatentConfig::rope`]. Scores and softmax in `f32`, the rest in the type of `x`.
///
/// Where the sequence is split, it is the narrow vectors that are gathered along it; each device makes keys and values
/// of them.
///
/// Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1.
pub fn latent_attention(
    x: Tensor,
    params: &LatentAttention<Tensor>,
    config: &LatentConfig,
    rotary: &Rotary,
    tokens: TokenPlaces,
    dropout: Option<Dropout>,
) -> Tensor {
    latent_attention_over_keys(x, params, config, rotary, &mut Keys::of_rows(tokens), dropout)
}

/// As [`latent_attention`], over the narrow vectors that queries see. Vectors in a cache are not made into keys and
/// values. Instead, queries are made into queries of narrow vectors, and mixed narrow vectors into mixed values (the
/// same source, where keys and values are absorbed).
pub(super) fn latent_attention_over_keys(
    x: Tensor,
    params: &LatentAttention<Tensor>,
    config: &LatentConfig,
    rotary: &Rotary,
    keys: &mut Keys,
    dropout: Option<Dropout>,
) -> Tensor {
    let dtype = x.dtype();
    let [batch, length, _] = x.shape();
    let [heads, v_head_dim, _] = params.wo.shape();
    let query = queries(x, &params.query, config.norm);
    let rope = params.wk_rope.dim(-1);
    let nope = query.dim(-1).saturating_sub(rope);
    let query = concatenate(&[query.slice(-1, ..nope), rotate(query.slice(-1, nope..), rotary)], -1);

    let narrow = rms_norm(einsum("bte,er->btr", &[x, params.wkv_a.convert(dtype)]), params.kv_norm, config.norm);
    let shared = einsum("bte,er->btr", &[x, params.wk_rope.convert(dtype)]);
    let turned = rotate(shared.expand(1), rotary).reshape([batch, length, rope]);
    let made_of = params.wkv_b.convert(dtype);
    let mixed = match keys.update_latents(narrow, turned) {
        SeenLatents::OfRows { narrow, turned } => {
            let made = einsum("bsr,rhd->bhsd", &[narrow, made_of]);
            // Each device sees what its own queries ask of all keys: for the way back that is scattered along the
            // sequence.
            let made = made.with_axes_each_way(&ALL_HEADS, &QUERY);
            let turned = turned.expand(1).broadcast_to([batch, heads, length, rope]);
            let key = concatenate(&[made.slice(-1, ..nope), turned], -1);
            let value = made.slice(-1, nope..);
            // Every query head has its own keys: groups of one.
            attend([query.expand(2), key, value], keys, config.scale, dropout, AttentionOptions::default())
        }
        SeenLatents::Slots(slots) => over_slots(query, slots, made_of, (nope, config.scale), keys),
    };
    let mixed = mixed.reshape([batch, heads, length, v_head_dim]).with_axes(QUERY);
    einsum("bhtd,hde->bte", &[mixed, params.wo.convert(dtype)])
}

/// Values mixed over the slots of a cache, `[batch, slots, kv_lora + rope_head_dim]`, for queries
/// `[batch, heads, length, nope + rope_head_dim]`: `[batch, heads, length, v_head_dim]`.
///
/// The product of a query with a key is that of the query, multiplied by the keys' part of `made_of`, with the narrow
/// vector. So all heads share one key, the slot, and one value, which is the slot as well; its turned part is left out
/// of the result. Matrix and slots are multiplied whole, for a slice of either would be a copy.
fn over_slots(query: Tensor, slots: Tensor, made_of: Tensor, (nope, scale): (usize, f64), keys: &Keys) -> Tensor {
    let [kv_lora, _, made] = made_of.shape();
    let plain = query.slice(-1, ..nope).pad(-1, 0, made.saturating_sub(nope) as i64, 0.0);
    let narrow = einsum("bhtd,rhd->bhtr", &[plain, made_of]);
    let query = concatenate(&[narrow, query.slice(-1, nope..)], -1).with_axes(QUERY);
    let slots = slots.expand(1);
    let mixed = attend([query.expand(1), slots, slots], keys, scale, None, AttentionOptions::default());
    let [batch, _, heads, length, _] = mixed.shape();
    let narrow = mixed.slice(-1, ..kv_lora).reshape([batch, heads, length, kv_lora]).with_axes(QUERY);
    einsum("bhtr,rhd->bhtd", &[narrow, made_of]).slice(-1, nope..)
}

/// Keys and values of all positions, `[batch, heads, length, width]`.
const ALL_HEADS: [&str; 4] = ["activation_batch", "activation_heads", "activation_kv_length", "activation_kv"];

/// `[batch, heads, length, nope_head_dim + rope_head_dim]`.
fn queries(x: Tensor, params: &LatentQuery<Tensor>, form: RmsNorm) -> Tensor {
    let dtype = x.dtype();
    let source = match (params.wq_a, params.q_norm) {
        (Some(down), Some(norm)) => rms_norm(einsum("bte,er->btr", &[x, down.convert(dtype)]), norm, form),
        _ => x,
    };
    einsum("btr,rhd->bhtd", &[source, params.wq_b.convert(dtype)]).with_axes(QUERY)
}
