//! The keys and values that the queries of a layer meet: of the same tokens, or of earlier ones in a cache.

use meshloom::ir::DType;
use meshloom::ops::{KeyExchange, PlaceOrder};
use meshloom::trace::{Tensor, concatenate, fail_internal, full, iota};

use super::layout::{ALL_KEYS, ALL_LATENTS, LATENT};
use super::token_places::{Sight, TokenPlaces};

meshloom::tree! {
    /// Keys and values of the tokens before, layer by layer.
    ///
    /// The token at place `p` of a row is in slot `p % slots`. A layer with a window has as many slots as it sees keys,
    /// or fewer, so a token replaces the one that leaves the window.
    pub struct KeyValueCache<T> {
        /// The cache of each layer, from the first on.
        pub layers: Vec<LayerCache<T>>,
    }

    /// The cache of grouped attention.
    pub struct KeysAndValues<T> {
        /// Keys, turned by their positions: `[batch, kv_heads, slots, head_dim]`.
        pub key: T,
        /// `[batch, kv_heads, slots, head_dim]`.
        pub value: T,
    }

    /// The cache of latent attention.
    pub struct LatentSlots<T> {
        /// The narrow vectors that keys and values are made of, each with the part of keys that is turned:
        /// `[batch, slots, kv_lora + rope_head_dim]`.
        pub latent: T,
    }
}

meshloom::tree! {
    /// The cache of one layer.
    pub enum LayerCache<T> {
        /// The cache of grouped attention.
        Grouped(Box<KeysAndValues<T>>),
        /// The cache of latent attention.
        Latent(Box<LatentSlots<T>>),
    }
}

/// The tokens of one step, one of each row.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The place of all of them: `s32`.
    pub(super) place: Tensor,
    /// How many places in front of each row are padding: `s32` `[batch]`.
    pub(super) padding: Tensor,
}

/// The keys and values that the queries of a layer meet.
pub(super) enum Keys {
    /// Keys and values of the same tokens.
    OfRows(TokenPlaces),
    /// The same, which are left in `made` as a cache would have them.
    Kept { tokens: TokenPlaces, made: Option<LayerCache<Tensor>> },
    /// All slots of a cache, into which keys and values of a step are written.
    InSlots { step: Step, cache: LayerCache<Tensor> },
}

/// The narrow vectors that the queries of latent attention meet.
pub(super) enum MetLatents {
    /// Vectors of the same tokens: `[batch, length, kv_lora]`, and the turned parts of keys.
    OfRows { narrow: Tensor, turned: Tensor },
    /// The slots of a cache.
    Slots(Tensor),
}

/// The dimension of slots in keys and values, and in narrow vectors.
const SLOTS: i32 = 2;
const LATENT_SLOTS: i32 = 1;

impl Keys {
    /// Keys and values of the layer's tokens, `[batch, kv_heads, length, head_dim]`, in; those that queries meet, out.
    pub(super) fn meet(&mut self, key: Tensor, value: impl FnOnce() -> Tensor) -> (Tensor, Tensor) {
        match self {
            Keys::OfRows(tokens) => (tokens.meet(key), tokens.meet(value())),
            Keys::Kept { tokens, made } => {
                let value = value();
                *made = Some(LayerCache::Grouped(Box::new(KeysAndValues { key, value })));
                (tokens.meet(key), tokens.meet(value))
            }
            Keys::InSlots { step, cache: LayerCache::Grouped(slots) } => {
                slots.key = step.write(slots.key, key, SLOTS).with_axes(ALL_KEYS);
                slots.value = step.write(slots.value, value(), SLOTS).with_axes(ALL_KEYS);
                (slots.key, slots.value)
            }
            Keys::InSlots { cache: LayerCache::Latent(_), .. } => {
                let failed = fail_internal("the cache of a layer", "keys and values, as its attention is grouped");
                (failed, failed)
            }
        }
    }

    /// Narrow vectors `[batch, length, kv_lora]` and turned parts `[batch, length, rope_head_dim]` of the layer's
    /// tokens in; those that queries meet, out.
    pub(super) fn meet_latents(&mut self, narrow: Tensor, turned: Tensor) -> MetLatents {
        let joined = || concatenate(&[narrow, turned], -1);
        match self {
            Keys::OfRows(tokens) => gathered(tokens, narrow, turned),
            Keys::Kept { tokens, made } => {
                *made = Some(LayerCache::Latent(Box::new(LatentSlots { latent: joined() })));
                gathered(tokens, narrow, turned)
            }
            Keys::InSlots { step, cache: LayerCache::Latent(slots) } => {
                slots.latent = step.write(slots.latent, joined(), LATENT_SLOTS).with_axes(ALL_LATENTS);
                MetLatents::Slots(slots.latent)
            }
            Keys::InSlots { cache: LayerCache::Grouped(_), .. } => {
                MetLatents::Slots(fail_internal("the cache of a layer", "narrow vectors, as its attention is latent"))
            }
        }
    }

    /// Returns the contents of a cache after the layer.
    pub(super) fn into_cache(self) -> Option<LayerCache<Tensor>> {
        match self {
            Keys::OfRows(_) => None,
            Keys::Kept { made, .. } => made,
            Keys::InSlots { cache, .. } => Some(cache),
        }
    }

    /// Says which of the keys that they meet the queries see.
    pub(super) fn sight(&self) -> Sight {
        match self {
            Keys::OfRows(tokens) | Keys::Kept { tokens, .. } => tokens.sight(),
            Keys::InSlots { step, cache } => step.sight(cache.slots()),
        }
    }
}

/// Narrow vectors of all positions. Each device makes keys and values of them, so the gathered values are narrow.
fn gathered(tokens: &mut TokenPlaces, narrow: Tensor, turned: Tensor) -> MetLatents {
    *tokens = tokens.with_exchange(KeyExchange::Gather);
    let gather = |x: Tensor| x.with_axes_each_way(&ALL_LATENTS, &LATENT);
    MetLatents::OfRows { narrow: gather(narrow), turned: gather(turned) }
}

impl LayerCache<Tensor> {
    fn slots(&self) -> usize {
        match self {
            LayerCache::Grouped(grouped) => grouped.key.dim(SLOTS),
            LayerCache::Latent(latent) => latent.latent.dim(LATENT_SLOTS),
        }
    }

    /// Puts the keys and values of whole rows, whose tokens stand at places 0, 1, .., into a cache of `slots` slots.
    #[must_use]
    pub(super) fn placed(self, slots: usize) -> LayerCache<Tensor> {
        match self {
            LayerCache::Grouped(made) => {
                let placed = |x| placed(x, SLOTS, slots).with_axes(ALL_KEYS);
                LayerCache::Grouped(Box::new(KeysAndValues { key: placed(made.key), value: placed(made.value) }))
            }
            LayerCache::Latent(made) => {
                let latent = placed(made.latent, LATENT_SLOTS, slots).with_axes(ALL_LATENTS);
                LayerCache::Latent(Box::new(LatentSlots { latent }))
            }
        }
    }
}

/// The last of `x` along a dimension of places, each in the slot that is its own.
fn placed(x: Tensor, axis: i32, slots: usize) -> Tensor {
    match x.dim(axis) {
        length if length <= slots => x.pad(axis, 0, (slots - length) as i64, 0.0),
        length => x.slice(axis, length - slots..).roll(axis, (length % slots) as i64),
    }
}

impl Step {
    /// Slots with the step's own written into theirs. Behind a barrier: XLA for CPU would else write once for each use,
    /// into copies.
    fn write(self, slots: Tensor, own: Tensor, axis: i32) -> Tensor {
        let slot = self.place % slots.dim(axis) as f64;
        slots.dynamic_update_along(axis, own.convert(slots.dtype()), slot).barrier()
    }

    /// Says which of the slots the step's tokens see: those that have been written since the padding in front of a row.
    fn sight(self, slots: usize) -> Sight {
        let batch = self.padding.dim(0);
        let all = |x: Tensor, length: usize| x.broadcast_like(iota(DType::S32, [batch, length], 1), []);
        let place = all(self.place, slots);
        // How many places ago a slot was written; places are not below zero.
        let ago = (place - iota(DType::S32, [batch, slots], 1) + slots as f64) % slots as f64;
        let key_places = place - ago;
        let is_token = key_places.greater_equal(self.padding.broadcast_like(key_places, 0));
        let named = |x: Tensor, axis| x.with_axes(["activation_batch", axis]);
        let of_keys = [is_token.convert(DType::S32), key_places].map(|x| named(x, "activation_kv_length"));
        let of_queries = [full(DType::S32, [batch, 1], 1.0), all(self.place, 1)];
        Sight {
            queries: of_queries.map(|x| named(x, "activation_length")),
            keys: of_keys,
            exchange: KeyExchange::Gather,
            order: PlaceOrder::Any,
        }
    }
}
