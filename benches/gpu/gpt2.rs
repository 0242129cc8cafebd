//! GPT-2 in the Rust API, as `examples/12_gpt2.rs` has it, with activations of their own type; a model for the trainer.

use meshloom::ops::RematPolicy;
use meshloom::prelude::*;
use meshloom::trace::Param;
use meshloom_nn::{Batch, Dropout, LayerNorm, Linear, WholeBatch, causal_attention, cross_entropy, layer_norm, linear};
use meshloom_train::{Leaf, Model};

const EPSILON: f64 = 1e-5;

tree! {
    pub struct Block<T> {
        norm1: LayerNorm<T>,
        qkv: Linear<T>,
        out: Linear<T>,
        norm2: LayerNorm<T>,
        up: Linear<T>,
        down: Linear<T>,
    }

    pub struct Parameters<T> { tokens: T, positions: T, layers: Block<T>, norm: LayerNorm<T> }
}

/// The shape of the model. The output head is the transposed table of tokens.
#[derive(Clone, Debug)]
pub struct Gpt2 {
    pub layers: usize,
    pub embed: usize,
    pub heads: usize,
    pub vocab: usize,
    pub seq: usize,
    /// The type of the activations.
    pub dtype: DType,
    pub remat: RematPolicy,
}

impl Gpt2 {
    /// By the formula of [`DecoderConfig::flops_per_token`](meshloom_nn::DecoderConfig::flops_per_token).
    pub fn flops_per_token(&self) -> f64 {
        let params = self.parameters();
        let is_product = |path: &str| path == "tokens" || path.ends_with(".weight");
        let products = params.paths().into_iter().zip(params.leaves()).filter(|(path, _)| is_product(path));
        let products: usize = products.map(|(_, param)| param.spec.ty.element_count()).sum();
        6.0 * (products + 2 * self.layers * self.embed * self.seq) as f64
    }

    fn block(&self, x: Tensor, p: &Block<Tensor>) -> Tensor {
        let qkv = linear(layer_norm(x, &p.norm1, EPSILON), &p.qkv);
        let [q, k, v] = [0, 1, 2].map(|part| qkv.index((.., .., part)));
        let x = x + linear(causal_attention(q, k, v).reshape(x.dims()), &p.out);
        x + linear(linear(layer_norm(x, &p.norm2, EPSILON), &p.up).gelu_tanh(), &p.down)
    }

    fn logits(&self, params: &Parameters<Tensor>, tokens: Tensor) -> Tensor {
        let table = params.tokens.convert(self.dtype);
        let x = table.take(0, tokens) + params.positions.convert(self.dtype).broadcast();
        let (x, ()) = scan(x, params.layers.clone(), |x, layer| {
            (checkpoint(self.remat.clone(), (x, layer), |(x, layer)| self.block(x, &layer)), ())
        });
        einsum_with("bte,ve->btv", &[layer_norm(x, &params.norm, EPSILON), table], F32)
    }
}

impl Model for Gpt2 {
    type Params<T: Leaf> = Parameters<T>;
    type Batch<T: Leaf> = Batch<T>;

    fn parameters(&self) -> Parameters<Param> {
        let (embed, heads) = (self.embed, self.heads);
        let dense = |dims: &[usize], axes: &[&str]| Linear::new(F32, dims, axes, 0.02);
        let layer = Block {
            norm1: LayerNorm::new(F32, embed, "norm"),
            qkv: dense(&[embed, 3, heads, embed / heads], &["embed", "", "heads", ""]),
            out: dense(&[embed, embed], &["heads", "embed"]),
            norm2: LayerNorm::new(F32, embed, "norm"),
            up: dense(&[embed, 4 * embed], &["embed", "mlp"]),
            down: dense(&[4 * embed, embed], &["mlp", "embed"]),
        };
        Parameters {
            tokens: Param::new(F32, [self.vocab, embed], &["vocab", "embed"], Init::Normal(0.02)),
            positions: Param::new(F32, [self.seq, embed], &["", "embed"], Init::Normal(0.01)),
            layers: layer.map(|_, param| param.clone().stacked(self.layers)),
            norm: LayerNorm::new(F32, embed, "norm"),
        }
    }

    fn batch_specs(&self, rows: usize, length: usize) -> Batch<TensorSpec> {
        Batch::specs(rows, length)
    }

    fn whole_batch(&self, batch: &Batch<Tensor>) -> WholeBatch {
        WholeBatch::of(batch.weights)
    }

    /// The mean over a part, times the part's share of the batch.
    fn loss(&self, params: &Parameters<Tensor>, part: &Batch<Tensor>, whole: WholeBatch, _: Option<Dropout>) -> Tensor {
        let mean = cross_entropy(self.logits(params, part.tokens), part.targets, part.weights);
        mean * (part.weights.sum(..) / whole.weight)
    }
}
