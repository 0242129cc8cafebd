//! The Llama-style decoder.

use super::attention::{Attention, AttentionMask, attention};
use super::dropout::Dropout;
use super::layout::{Rows, STREAM, enter_block, leave_block, whole_rows};
use super::loss::cross_entropy;
use super::mlp::{Mlp, mlp};
use super::norm::rms_norm;
use super::rotary::Rotary;
use crate::ir::DType;
use crate::ops::RematPolicy;
use crate::trace::{Init, MapTree, Param, Path, Tensor, TensorSpec, Tree, checkpoint, einsum_with, scan, scope};
use crate::transform::pipeline::{LayerPlace, PipelineInput, PipelineOptions, StackedWeights, pipeline};

/// The shape of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embed: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub mlp: usize,
    /// Number of token values.
    pub vocab: usize,
    /// Whether the head is the transposed embedding.
    pub tied_embeddings: bool,
    /// Type that parameters are stored in.
    pub param_dtype: DType,
    /// Type that activations are computed in; norms, softmax and loss are always `f32`.
    pub compute_dtype: DType,
    /// Whether the layers are one scan over stacked parameters, or each has its own nodes.
    pub scan_layers: bool,
    /// What the backward pass finds of a layer, and what it computes again.
    pub remat: RematPolicy,
    /// How the layers are spread over stages; one after the other on all devices if they are not.
    pub pipeline: Option<PipelineOptions>,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub norm_epsilon: f64,
}

crate::tree! {
    /// Parameters of one decoder layer.
    pub struct DecoderLayer<T> {
        /// `[embed]`.
        pub attention_norm: T,
        /// Attention.
        pub attention: Attention<T>,
        /// `[embed]`.
        pub mlp_norm: T,
        /// Feed-forward block.
        pub mlp: Mlp<T>,
    }

    /// Parameters of a decoder.
    pub struct Decoder<T> {
        /// `[vocab, embed]`.
        pub embedding: T,
        /// The layer stack.
        pub layers: Layers<T>,
        /// `[embed]`.
        pub final_norm: T,
        /// `[embed, vocab]`; none when tied to the embedding.
        pub head: Option<T>,
    }

    /// One batch of packed sequences; all `[batch, length]`.
    pub struct Batch<T> {
        /// Input tokens, `s32`.
        pub tokens: T,
        /// The token after each, `s32`.
        pub targets: T,
        /// Which document a token belongs to, `s32`.
        pub segment_ids: T,
        /// Position within the document, `s32`.
        pub positions: T,
        /// Weight of each token's loss, `f32`.
        pub weights: T,
    }
}

/// The layer stack: one set of parameters with a leading layer dimension, or one for each layer.
#[derive(Clone, Debug)]
pub enum Layers<T> {
    /// Paths read `layers.attention.wq`.
    Stacked(Box<DecoderLayer<T>>),
    /// Paths read `layers.3.attention.wq`.
    Separate(Vec<DecoderLayer<T>>),
}

impl<T: Tree<Leaf = T>> Tree for Layers<T> {
    type Leaf = T;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T)) {
        match self {
            Layers::Stacked(layer) => layer.visit(path, f),
            Layers::Separate(layers) => layers.visit(path, f),
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> T) -> Self {
        match self {
            Layers::Stacked(layer) => Layers::Stacked(Box::new(layer.rebuild(next))),
            Layers::Separate(layers) => Layers::Separate(layers.rebuild(next)),
        }
    }
}

impl<T, U> MapTree<U> for Layers<T>
where
    T: Tree<Leaf = T> + MapTree<U, Mapped = U>,
    U: Tree<Leaf = U>,
{
    type Mapped = Layers<U>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T) -> U) -> Layers<U> {
        match self {
            Layers::Stacked(layer) => Layers::Stacked(Box::new(layer.map_with(path, f))),
            Layers::Separate(layers) => Layers::Separate(layers.map_with(path, f)),
        }
    }
}

impl Batch<TensorSpec> {
    /// The logical axes of everything in a batch.
    pub const AXES: [&str; 2] = ["activation_batch", "activation_length"];

    /// As [`Batch::AXES`], in front of a pipeline.
    pub const AXES_OF_PIPELINE: [&str; 2] = [Rows::AROUND_PIPELINE.0, "activation_length"];

    /// The types of a batch of `batch` rows of `length` tokens.
    pub fn specs(batch: usize, length: usize) -> Batch<TensorSpec> {
        Batch::named_specs(batch, length, Self::AXES)
    }

    fn named_specs(batch: usize, length: usize, axes: [&str; 2]) -> Batch<TensorSpec> {
        let spec = |dtype| TensorSpec::new(dtype, [batch, length]).with_axes(&axes);
        Batch {
            tokens: spec(DType::S32),
            targets: spec(DType::S32),
            segment_ids: spec(DType::S32),
            positions: spec(DType::S32),
            weights: spec(DType::F32),
        }
    }
}

impl DecoderConfig {
    /// The parameters.
    ///
    /// Matrices start normally distributed with variance one over the fan-in; those that write into the residual stream
    /// with that divided by twice the number of layers, so that the stream's variance does not grow with depth.
    pub fn parameters(&self) -> Decoder<Param> {
        let (embed, heads, kv_heads, head_dim, hidden) =
            (self.embed, self.heads, self.kv_heads, self.head_dim, self.mlp);
        let residual = (2.0 * self.layers as f64).powf(-0.5);
        let matrix = |dims: &[usize], axes: &[&str], fan_in: usize, gain: f64| {
            Param::new(self.param_dtype, dims, axes, Init::Normal(gain * (fan_in as f64).powf(-0.5)))
        };
        let norm = || Param::new(self.param_dtype, [embed], &["norm"], Init::Constant(1.0));
        let layer = DecoderLayer {
            attention_norm: norm(),
            attention: Attention {
                wq: matrix(&[embed, heads, head_dim], &["embed", "heads", "kv"], embed, 1.0),
                wk: matrix(&[embed, kv_heads, head_dim], &["embed", "kv_heads", "kv"], embed, 1.0),
                wv: matrix(&[embed, kv_heads, head_dim], &["embed", "kv_heads", "kv"], embed, 1.0),
                wo: matrix(&[heads, head_dim, embed], &["heads", "kv", "embed"], heads * head_dim, residual),
            },
            mlp_norm: norm(),
            mlp: Mlp {
                gate: matrix(&[embed, hidden], &["embed", "mlp"], embed, 1.0),
                up: matrix(&[embed, hidden], &["embed", "mlp"], embed, 1.0),
                down: matrix(&[hidden, embed], &["mlp", "embed"], hidden, residual),
            },
        };
        let layers = if let Some(pipeline) = &self.pipeline {
            let dims = pipeline.leading_dims();
            Layers::Stacked(Box::new(layer.map(|_, param| param.clone().stacked_over(&dims))))
        } else if self.scan_layers {
            Layers::Stacked(Box::new(layer.map(|_, param| param.clone().stacked(self.layers))))
        } else {
            Layers::Separate(vec![layer; self.layers])
        };
        Decoder {
            // A tied embedding is the head as well, for which the fan-in is the width.
            embedding: matrix(
                &[self.vocab, embed],
                &["vocab", "embed"],
                if self.tied_embeddings { embed } else { 1 },
                1.0,
            ),
            layers,
            final_norm: norm(),
            head: (!self.tied_embeddings).then(|| matrix(&[embed, self.vocab], &["embed", "vocab"], embed, 1.0)),
        }
    }

    /// The types of a batch of `batch` rows of `length` tokens, split as this model wants them.
    pub fn batch_specs(&self, batch: usize, length: usize) -> Batch<TensorSpec> {
        let axes = if self.pipeline.is_some() { Batch::AXES_OF_PIPELINE } else { Batch::AXES };
        Batch::named_specs(batch, length, axes)
    }

    /// How rows are split outside the layers.
    fn rows(&self) -> Rows {
        if self.pipeline.is_some() { Rows::AROUND_PIPELINE } else { Rows::LAYERS }
    }

    /// One layer: attention, then the feed-forward block, each added to the residual stream `x` `[batch, length, embed]`.
    pub fn layer(&self, x: Tensor, params: &DecoderLayer<Tensor>, rotary: &Rotary, mask: AttentionMask) -> Tensor {
        self.layer_with(x, params, rotary, mask, None)
    }

    /// As [`DecoderConfig::layer`], with what each block adds to the residual stream going through `dropout`.
    pub fn layer_with(
        &self,
        x: Tensor,
        params: &DecoderLayer<Tensor>,
        rotary: &Rotary,
        mask: AttentionMask,
        dropout: Option<Dropout>,
    ) -> Tensor {
        let drop = |block: u32, added: Tensor| dropout.map_or(added, |dropout| dropout.at(block).apply(added));
        let x = scope("attention", || {
            let normal = enter_block(rms_norm(x, params.attention_norm, self.norm_epsilon));
            x + drop(0, leave_block(attention(normal, &params.attention, rotary, mask)))
        });
        scope("mlp", || {
            let normal = enter_block(rms_norm(x, params.mlp_norm, self.norm_epsilon));
            x + drop(1, leave_block(mlp(normal, &params.mlp)))
        })
    }

    /// All layers, scanned or one after the other, under the remat policy.
    pub fn layer_stack(&self, x: Tensor, layers: &Layers<Tensor>, rotary: &Rotary, mask: AttentionMask) -> Tensor {
        self.layer_stack_with(x, layers, rotary, mask, None)
    }

    /// As [`DecoderConfig::layer_stack`], with dropout: what drops is the same scanned or not, recomputed or not.
    pub fn layer_stack_with(
        &self,
        x: Tensor,
        layers: &Layers<Tensor>,
        rotary: &Rotary,
        mask: AttentionMask,
        dropout: Option<Dropout>,
    ) -> Tensor {
        let one_layer = |x: Tensor, layer: DecoderLayer<Tensor>, dropout: Option<Dropout>| {
            let inputs = (x, layer, dropout.map(|dropout| dropout.key));
            checkpoint(self.remat.clone(), inputs, |(x, layer, key)| {
                let dropout = dropout.zip(key).map(|(dropout, key)| Dropout { key, ..dropout });
                self.layer_with(x, &layer, rotary, mask, dropout)
            })
        };
        match layers {
            Layers::Stacked(layers) => scope("layers", || {
                let numbers = dropout.map(|_| Dropout::layer_numbers(self.layers));
                let stacked = ((**layers).clone(), numbers);
                let body = |x, (layer, number): (_, Option<Tensor>)| {
                    let dropout = dropout.zip(number).map(|(dropout, number)| dropout.at(number));
                    (one_layer(x, layer, dropout), ())
                };
                scan(x, stacked, body).0
            }),
            Layers::Separate(layers) => layers.iter().enumerate().fold(x, |x, (index, layer)| {
                let dropout = dropout.map(|dropout| dropout.at(index as u32));
                scope(&format!("layers.{index}"), || one_layer(x, layer.clone(), dropout))
            }),
        }
    }

    /// The logits `[batch, length, vocab]`, `f32`, of the token after each token.
    pub fn logits(&self, params: &Decoder<Tensor>, tokens: Tensor, segment_ids: Tensor, positions: Tensor) -> Tensor {
        self.logits_with(params, tokens, segment_ids, positions, None)
    }

    /// As [`DecoderConfig::logits`], with dropout in the layers.
    pub fn logits_with(
        &self,
        params: &Decoder<Tensor>,
        tokens: Tensor,
        segment_ids: Tensor,
        positions: Tensor,
        dropout: Option<Dropout>,
    ) -> Tensor {
        let x = scope("embedding", || {
            let table = whole_rows(params.embedding.convert(self.compute_dtype));
            // Where the vocabulary is split, each device has the rows of some tokens: a partial sum, as of a block.
            self.rows().leave_block(table.take(0, tokens))
        });
        if let (Some(pipeline), Layers::Stacked(layers)) = (&self.pipeline, &params.layers) {
            let x = self.pipelined(pipeline, x, layers, (positions, segment_ids), dropout);
            return self.head(params, x);
        }
        let rotary = scope("rotary", || Rotary::new(positions, self.head_dim, self.rope_theta));
        let mask = scope("mask", || AttentionMask::causal(segment_ids));
        let x = self.layer_stack_with(x, &params.layers, &rotary, mask, dropout);
        self.head(params, x)
    }

    /// The layers as a pipeline. What drops depends on layer, microbatch and position within it.
    fn pipelined(
        &self,
        options: &PipelineOptions,
        x: Tensor,
        layers: &DecoderLayer<Tensor>,
        rows: (Tensor, Tensor),
        dropout: Option<Dropout>,
    ) -> Tensor {
        let Layers::Stacked(declared) = self.parameters().layers else { return x };
        let names = declared.leaves().into_iter().map(|param| param.spec.axes).collect();
        let stacked = StackedWeights { weights: layers.clone(), names };
        let input = PipelineInput { x, names: STREAM.to_vec(), rows };
        let layer = |x: Tensor, layer: DecoderLayer<Tensor>, (positions, segment_ids), place: LayerPlace| {
            let rotary = scope("rotary", || Rotary::new(positions, self.head_dim, self.rope_theta));
            let mask = scope("mask", || AttentionMask::causal(segment_ids));
            let dropout = dropout.map(|dropout| dropout.at(place.layer).at(place.microbatch));
            (self.layer_with(x, &layer, &rotary, mask, dropout), ())
        };
        let (x, ()) = scope("layers", || pipeline(options, stacked, input, layer));
        self.rows().leave_block(x)
    }

    /// The same model with its layers one after the other, and parameters of this one for it.
    pub fn without_pipeline(&self, params: &Decoder<Tensor>) -> (DecoderConfig, Decoder<Tensor>) {
        let (Some(pipeline), Layers::Stacked(layers)) = (&self.pipeline, &params.layers) else {
            return (self.clone(), params.clone());
        };
        let leading = pipeline.leading_dims().len();
        let flat = layers.map(|_, weight| {
            let dims = weight.dims();
            weight.reshape([&[self.layers], dims.get(leading..).unwrap_or(&[])].concat())
        });
        let model = DecoderConfig { pipeline: None, scan_layers: true, ..self.clone() };
        (model, Decoder { layers: Layers::Stacked(Box::new(flat)), ..params.clone() })
    }

    /// From the residual stream to the logits.
    fn head(&self, params: &Decoder<Tensor>, x: Tensor) -> Tensor {
        scope("head", || {
            let x = self.rows().enter_block(rms_norm(x, params.final_norm, self.norm_epsilon));
            let logits = match params.head {
                Some(head) => einsum_with("bte,ev->btv", &[x, head.convert(x.dtype())], DType::F32),
                None => einsum_with("bte,ve->btv", &[x, params.embedding.convert(x.dtype())], DType::F32),
            };
            self.rows().logits(logits)
        })
    }

    /// The mean cross entropy of a batch, in nats per token.
    pub fn loss(&self, params: &Decoder<Tensor>, batch: &Batch<Tensor>) -> Tensor {
        self.loss_with(params, batch, None)
    }

    /// As [`DecoderConfig::loss`], with dropout in the layers.
    pub fn loss_with(&self, params: &Decoder<Tensor>, batch: &Batch<Tensor>, dropout: Option<Dropout>) -> Tensor {
        let logits = self.logits_with(params, batch.tokens, batch.segment_ids, batch.positions, dropout);
        scope("loss", || cross_entropy(logits, batch.targets, batch.weights))
    }
}
