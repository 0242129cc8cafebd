//! Text from a decoder: prompts in one pass, then one token of each row at a time, over a cache of keys and values.
//!
//! Rows of a batch are padded in front, so the last tokens of all prompts stand at one place, and all rows write the
//! same slot of the cache. The slots of padding are the first to be used again, so it takes none from the text.

use meshloom::ir::DType;
use meshloom::ops::{KeyExchange, RematPolicy};
use meshloom::trace::{MapTree, Param, Tensor, TensorSpec, fail_internal, iota, scope};

use super::attention::GroupedConfig;
use super::head::Head;
use super::kv_cache::{KeyValueCache, Keys, KeysAndValues, LatentSlots, LayerCache, Step};
use super::layer::{Angles, AttentionConfig, DecoderLayer, FeedForwardConfig, Layer, LayerConfig, LayerLossWeights};
use super::layout::{ALL_KEYS, ALL_LATENTS};
use super::moe::{ExpertExchange, MoeConfig};
use super::token_order::TokenOrder;
use super::token_places::TokenPlaces;
use super::{Decoder, DecoderConfig};

/// A decoder as it generates text: each layer by itself, so that no step slices or copies weights.
///
/// No token is dropped by an expert, whatever its capacity in training; sequences are not split over devices.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratingDecoder {
    config: DecoderConfig,
    capacity: usize,
}

meshloom::tree! {
    /// Prompts, all of one length with the padding in front.
    pub struct Prompts<T> {
        /// `s32` `[rows, length]`.
        pub tokens: T,
        /// How many tokens of each row are padding, fewer than all: `s32` `[rows]`.
        pub padding: T,
    }

    /// The inputs of a step beside parameters and cache.
    pub struct NextTokens<T> {
        /// The next token of each row: `s32` `[rows]`.
        pub tokens: T,
        /// As in [`Prompts`].
        pub padding: T,
        /// The place of the tokens: `s32`. In the first step it is the length of the prompts, with padding.
        pub place: T,
    }

    /// The results of a pass over prompts, or of a step.
    pub struct Continued<T> {
        /// Keys and values of all tokens so far.
        pub cache: KeyValueCache<T>,
        /// The logits of the token after the last: `f32` `[rows, vocab]`.
        pub logits: T,
    }
}

impl GeneratingDecoder {
    /// A decoder whose cache holds `capacity` tokens of each row, at least one: a prompt and what follows it.
    pub fn new(decoder: &DecoderConfig, capacity: usize) -> GeneratingDecoder {
        let mut config = DecoderConfig {
            scan_layers: false,
            remat: RematPolicy::None,
            pipeline: None,
            exchange: KeyExchange::Gather,
            order: TokenOrder::default(),
            batch_split: false,
            ..decoder.clone()
        };
        // They predict what comes later, in training alone.
        config.architecture.further.clear();
        config.architecture.stack.for_each(|layer| {
            if let FeedForwardConfig::Routed(routed) = &mut layer.feed_forward {
                *routed = MoeConfig {
                    capacity_factor: None,
                    exchange: ExpertExchange::Gather,
                    sequence_parts: 1,
                    ..routed.clone()
                };
            }
        });
        GeneratingDecoder { config, capacity: capacity.max(1) }
    }

    /// The decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Tokens of a row that the cache holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The parameters, in the types that layers use them in: none is converted in a step.
    pub fn parameters(&self) -> Decoder<Param> {
        self.config.parameters().map(|path, param| {
            let mut param = param.clone();
            param.spec.ty.dtype = self.config.dtype_in_use(&path.to_string(), &param);
            param
        })
    }

    /// The types of the cache of so many rows: in the type that the decoder computes in.
    pub fn cache_specs(&self, rows: usize) -> KeyValueCache<TensorSpec> {
        let layers = self.config.architecture.stack.layers();
        KeyValueCache { layers: layers.map(|layer| self.layer_specs(layer, rows)).collect() }
    }

    fn layer_specs(&self, layer: &LayerConfig, rows: usize) -> LayerCache<TensorSpec> {
        let (dtype, slots) = (self.config.compute_dtype, self.slots(layer));
        match &layer.attention {
            AttentionConfig::Grouped(GroupedConfig { kv_heads, head_dim, .. }) => {
                let spec = || TensorSpec::new(dtype, [rows, *kv_heads, slots, *head_dim]).with_axes(&ALL_KEYS);
                LayerCache::Grouped(Box::new(KeysAndValues { key: spec(), value: spec() }))
            }
            AttentionConfig::Latent(latent) => {
                let width = latent.kv_lora + latent.rope_head_dim;
                let latent = TensorSpec::new(dtype, [rows, slots, width]).with_axes(&ALL_LATENTS);
                LayerCache::Latent(Box::new(LatentSlots { latent }))
            }
        }
    }

    /// How many tokens of a row a layer sees at most.
    fn slots(&self, layer: &LayerConfig) -> usize {
        let window = match &layer.attention {
            AttentionConfig::Grouped(grouped) => grouped.window,
            AttentionConfig::Latent(_) => None,
        };
        window.map_or(self.capacity, |window| window.clamp(1, self.capacity))
    }

    /// The types of prompts of so many rows and tokens.
    pub fn prompt_specs(&self, rows: usize, length: usize) -> Prompts<TensorSpec> {
        Prompts {
            tokens: TensorSpec::new(DType::S32, [rows, length]).with_axes(&["activation_batch", ""]),
            padding: TensorSpec::new(DType::S32, [rows]).with_axes(&["activation_batch"]),
        }
    }

    /// The types of a step's tokens.
    pub fn next_specs(&self, rows: usize) -> NextTokens<TensorSpec> {
        let of_row = || TensorSpec::new(DType::S32, [rows]).with_axes(&["activation_batch"]);
        NextTokens { tokens: of_row(), padding: of_row(), place: TensorSpec::new(DType::S32, []) }
    }

    /// All tokens of the prompts at once. No prompt has more tokens than the cache holds; with the padding it may.
    pub fn prefill(&self, params: &Decoder<Tensor>, prompts: Prompts<Tensor>) -> Continued<Tensor> {
        let Prompts { tokens, padding } = prompts;
        let place = iota(DType::S32, tokens.dims(), 1);
        let padding = padding.broadcast_like(tokens, 0);
        let rows = TokenPlaces::of_rows(place.greater_equal(padding).convert(DType::S32));
        let last = tokens.dim(1).saturating_sub(1);
        self.pass(params, tokens, place - padding, last, |layer, x, angles| {
            let mut keys = Keys::of_rows(rows);
            let x = layer.attention_block(x, angles, &mut keys, None);
            (x, keys.into_cache(self.slots(layer.config)))
        })
    }

    /// One token more of each row.
    pub fn step(
        &self,
        params: &Decoder<Tensor>,
        cache: KeyValueCache<Tensor>,
        next: NextTokens<Tensor>,
    ) -> Continued<Tensor> {
        let NextTokens { tokens, padding, place } = next;
        let step = Step { place, padding };
        let positions = (place.broadcast_like(padding, []) - padding).expand(1);
        let mut layers = cache.layers.into_iter();
        self.pass(params, tokens.expand(1), positions, 0, |layer, x, angles| {
            let Some(cache) = layers.next() else { return (x, None) };
            let mut keys = Keys::InSlots { step, cache };
            let x = layer.attention_block(x, angles, &mut keys, None);
            (x, keys.into_cache(self.slots(layer.config)))
        })
    }

    /// From tokens `[rows, length]` to what the layers keep of them and the logits behind the one with the index
    /// `last`. `attend` is the first block of a layer.
    fn pass(
        &self,
        params: &Decoder<Tensor>,
        tokens: Tensor,
        positions: Tensor,
        last: usize,
        mut attend: impl FnMut(Layer<'_>, Tensor, &Angles) -> (Tensor, Option<LayerCache<Tensor>>),
    ) -> Continued<Tensor> {
        let config = &self.config;
        let params = &config.with_table_in_use(params);
        let angles = Angles::new(positions, config.architecture.stack.described());
        let weights: Vec<&DecoderLayer<Tensor>> = params.layers.0.iter().flat_map(|run| &run.layers).collect();
        let mut x = config.embed(params.embedding, tokens, config.rows());
        let mut cache = KeyValueCache { layers: Vec::with_capacity(weights.len()) };
        for (number, (layer, params)) in config.architecture.stack.layers().zip(weights).enumerate() {
            let loss = LayerLossWeights { load_balance: 0.0, choice_bias: false };
            let layer = Layer { config: layer, params, loss };
            scope(&format!("layers.{number}"), || {
                let (attended, kept) = attend(layer, x, &angles);
                x = layer.feed_forward_block(attended, None).0;
                match kept {
                    Some(kept) => cache.layers.push(kept),
                    None => x = fail_internal("a layer that generates", "keys and values in its cache"),
                }
            });
        }
        let x = x.slice(1, last..=last);
        let logits = config.head(&Head::of(params), x, config.rows());
        Continued { cache, logits: logits.reshape([logits.dim(0), logits.dim(-1)]) }
    }
}
