//! The keys and values that the queries of a layer meet: of the same tokens, or of earlier ones in a cache.

use meshloom::ir::DType;
use meshloom::ops::{KeyExchange, PlaceOrder};
use meshloom::trace::{Tensor, concatenate, fail_internal, full, iota};

use super::layout::{ALL_KEYS, ALL_LATENTS, LATENT};
use super::token_places::{BlockMask, TokenPlaces};

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

/// The keys and values that the queries of a layer see.
pub(super) enum Keys {
    /// Keys and values of the same tokens, which are left in `made`.
    OfRows { tokens: TokenPlaces, made: Option<Made> },
    /// All slots of a cache, into which keys and values of a step are written.
    InSlots { step: Step, cache: LayerCache<Tensor> },
}

/// The keys and values of whole rows, whose tokens stand at places 0, 1, ..
#[derive(Clone, Copy)]
pub(super) enum Made {
    /// Keys and values of grouped attention.
    KeysAndValues([Tensor; 2]),
    /// The narrow vectors and turned parts of latent attention.
    Latents([Tensor; 2]),
}

/// The narrow vectors that the queries of latent attention see.
pub(super) enum SeenLatents {
    /// Vectors of the same tokens: `[batch, length, kv_lora]`, and the turned parts of keys.
    OfRows { narrow: Tensor, turned: Tensor },
    /// The slots of a cache.
    Slots(Tensor),
}

/// The dimension of slots in keys and values, and in narrow vectors.
const SLOTS: i32 = 2;
const LATENT_SLOTS: i32 = 1;

impl Keys {
    pub(super) fn of_rows(tokens: TokenPlaces) -> Keys {
        Keys::OfRows { tokens, made: None }
    }

    /// Keys and values of the layer's tokens, `[batch, kv_heads, length, head_dim]`, in; those that queries see, out.
    pub(super) fn update(&mut self, key: Tensor, value: impl FnOnce() -> Tensor) -> (Tensor, Tensor) {
        match self {
            Keys::OfRows { tokens, made } => {
                let seen = tokens.exchanged(key);
                let value = value();
                *made = Some(Made::KeysAndValues([key, value]));
                (seen, tokens.exchanged(value))
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
    /// tokens in; those that queries see, out. Each device makes keys and values of vectors of rows: the gathered
    /// values are narrow.
    pub(super) fn update_latents(&mut self, narrow: Tensor, turned: Tensor) -> SeenLatents {
        match self {
            Keys::OfRows { tokens, made } => {
                *made = Some(Made::Latents([narrow, turned]));
                *tokens = tokens.with_exchange(KeyExchange::Gather);
                let gather = |x: Tensor| x.with_axes_each_way(&ALL_LATENTS, &LATENT);
                SeenLatents::OfRows { narrow: gather(narrow), turned: gather(turned) }
            }
            Keys::InSlots { step, cache: LayerCache::Latent(slots) } => {
                let joined = concatenate(&[narrow, turned], -1);
                slots.latent = step.write(slots.latent, joined, LATENT_SLOTS).with_axes(ALL_LATENTS);
                SeenLatents::Slots(slots.latent)
            }
            Keys::InSlots { cache: LayerCache::Grouped(_), .. } => {
                SeenLatents::Slots(fail_internal("the cache of a layer", "narrow vectors, as its attention is latent"))
            }
        }
    }

    /// The cache after the layer. Keys and values of rows are put into one of `slots` slots.
    pub(super) fn into_cache(self, slots: usize) -> Option<LayerCache<Tensor>> {
        let made = match self {
            Keys::OfRows { made, .. } => made?,
            Keys::InSlots { cache, .. } => return Some(cache),
        };
        Some(match made {
            Made::KeysAndValues(both) => {
                let [key, value] = both.map(|x| placed(x, SLOTS, slots).with_axes(ALL_KEYS));
                LayerCache::Grouped(Box::new(KeysAndValues { key, value }))
            }
            Made::Latents(both) => {
                let latent = placed(concatenate(&both, -1), LATENT_SLOTS, slots).with_axes(ALL_LATENTS);
                LayerCache::Latent(Box::new(LatentSlots { latent }))
            }
        })
    }

    /// Says which of the keys that they meet the queries see.
    pub(super) fn block_mask(&self) -> BlockMask {
        match self {
            Keys::OfRows { tokens, .. } => tokens.block_mask(),
            Keys::InSlots { step, cache } => step.block_mask(cache.slots()),
        }
    }
}

impl LayerCache<Tensor> {
    fn slots(&self) -> usize {
        match self {
            LayerCache::Grouped(grouped) => grouped.key.dim(SLOTS),
            LayerCache::Latent(latent) => latent.latent.dim(LATENT_SLOTS),
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
    fn block_mask(self, slots: usize) -> BlockMask {
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
        BlockMask {
            queries: of_queries.map(|x| named(x, "activation_length")),
            keys: of_keys,
            exchange: KeyExchange::Gather,
            order: PlaceOrder::Any,
        }
    }
}
