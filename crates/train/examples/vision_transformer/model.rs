//! A small vision transformer, and drawn digits for it to tell apart.
//!
//! An image is cut into patches, which are what tokens are to a decoder. Every patch sees every other, and the mean
//! over them says which digit it is. Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv 2010.11929.

use meshloom::ir::{AxisNames, DType, Literal};
use meshloom::trace::{Init, MapTree, Param, Tensor, TensorSpec, Tree, einsum, full, iota, scan, scope};
use meshloom::transform::pipeline::{PipelineInput, PipelineOptions, StackedWeights, pipeline};
use meshloom_nn::{Activation, Dropout, Mlp, WholeBatch, mlp, rms_norm, rows_of_weight};
use meshloom_train::{Dataset, Error, Leaf, Model, next_bits};

/// Pixels of an image along each side.
const SIDE: usize = 16;

/// Pixels of a patch along each side.
const PATCH: usize = 4;

/// Patches of an image.
pub const PATCHES: usize = (SIDE / PATCH) * (SIDE / PATCH);

const PIXELS: usize = PATCH * PATCH;
const CLASSES: usize = 10;
const EPSILON: f64 = 1e-5;

/// The activations between layers, `[batch, patches, embed]`. Rules of the preset `decoder` know these names.
const STREAM: [&str; 3] = ["activation_batch", "activation_norm_length", "activation_embed"];

/// Queries, keys and values, `[batch, heads, patches, head_dim]`.
const HEADS: [&str; 4] = ["activation_batch", "activation_heads", "activation_length", "activation_kv"];

meshloom::tree! {
    /// Parameters of one layer.
    pub struct Layer<T> {
        /// `[embed]`.
        attention_norm: T,
        /// Query, key and value, each `[embed, heads, head_dim]`.
        project: [T; 3],
        /// `[heads, head_dim, embed]`.
        join: T,
        /// `[embed]`.
        mlp_norm: T,
        /// The feed-forward block.
        mlp: Mlp<T>,
    }

    /// Parameters of the model.
    pub struct Weights<T> {
        /// `[pixels, embed]`.
        patches: T,
        /// `[patches, embed]`.
        positions: T,
        /// All layers, stacked.
        layers: Layer<T>,
        /// `[embed]`.
        norm: T,
        /// `[embed, classes]`.
        head: T,
    }

    /// Images and what they show.
    pub struct Images<T> {
        /// `[rows, patches, pixels]`, `f32`.
        patches: T,
        /// `[rows]`, `s32`.
        digits: T,
    }
}

/// The shape of the model.
#[derive(Clone, Debug)]
pub struct VisionTransformer {
    /// Number of layers.
    pub layers: usize,
    /// Width of the activations.
    pub embed: usize,
    /// Attention heads.
    pub heads: usize,
    /// How the layers are spread over stages, if they are.
    pub pipeline: Option<PipelineOptions>,
}

impl VisionTransformer {
    fn rows(&self) -> &'static str {
        // Around a pipeline, its stages split the batch as well.
        if self.pipeline.is_some() { "activation_embed_and_logits_batch" } else { "activation_batch" }
    }

    fn layer(&self, x: Tensor, weights: &Layer<Tensor>) -> Tensor {
        let normal = rms_norm(x, weights.attention_norm, EPSILON);
        let [query, key, value] =
            weights.project.map(|weight| einsum("bte,ehd->bhtd", &[normal, weight]).with_axes(HEADS));
        let scores = einsum("bhtd,bhsd->bhts", &[query, key]) * (query.dim(-1) as f64).powf(-0.5);
        let mixed = einsum("bhts,bhsd->bhtd", &[scores.softmax(-1), value]).with_axes(HEADS);
        let x = x + einsum("bhtd,hde->bte", &[mixed, weights.join]).with_axes(STREAM);
        x + mlp(rms_norm(x, weights.mlp_norm, EPSILON), &weights.mlp, Activation::Silu).with_axes(STREAM)
    }

    fn layer_stack(&self, x: Tensor, weights: &Layer<Tensor>) -> Tensor {
        let Some(options) = &self.pipeline else {
            return scan(x, weights.clone(), |x, weights| (self.layer(x, &weights), ())).0;
        };
        let names: Vec<AxisNames> =
            self.parameters().layers.leaves().into_iter().map(|param| param.spec.axes).collect();
        let stacked = StackedWeights::new(weights.clone(), names).used_on(rows_of_weight);
        let input = PipelineInput { x, names: STREAM.to_vec(), rows: () };
        pipeline(options, stacked, input, |x, weights, (), _| (self.layer(x, &weights), ())).0
    }
}

impl Model for VisionTransformer {
    type Params<T: Leaf> = Weights<T>;
    type Batch<T: Leaf> = Images<T>;

    fn parameters(&self) -> Weights<Param> {
        let (embed, heads, head_dim, hidden) = (self.embed, self.heads, self.embed / self.heads, 2 * self.embed);
        let matrix = |dims: &[usize], axes: &[&str], fan_in: usize| {
            Param::new(DType::F32, dims, axes, Init::Normal((fan_in as f64).powf(-0.5)))
        };
        let norm = || Param::new(DType::F32, [embed], &["norm"], Init::Constant(1.0));
        let project = || matrix(&[embed, heads, head_dim], &["embed", "heads", "kv"], embed);
        let layer = Layer {
            attention_norm: norm(),
            project: [project(), project(), project()],
            join: matrix(&[heads, head_dim, embed], &["heads", "kv", "embed"], embed),
            mlp_norm: norm(),
            mlp: Mlp {
                gate: matrix(&[embed, hidden], &["embed", "mlp"], embed),
                up: matrix(&[embed, hidden], &["embed", "mlp"], embed),
                down: matrix(&[hidden, embed], &["mlp", "embed"], hidden),
            },
        };
        let leading = self.pipeline.as_ref().map_or(vec![(self.layers, "layers")], PipelineOptions::leading_dims);
        Weights {
            patches: matrix(&[PIXELS, embed], &["", "embed"], PIXELS),
            positions: matrix(&[PATCHES, embed], &["", "embed"], PATCHES),
            layers: layer.map(|_, param: &Param| param.clone().stacked_over(&leading)),
            norm: norm(),
            head: matrix(&[embed, CLASSES], &["embed", ""], embed),
        }
    }

    fn batch_specs(&self, rows: usize, _: usize) -> Images<TensorSpec> {
        Images {
            patches: TensorSpec::new(DType::F32, [rows, PATCHES, PIXELS]).with_axes(&[self.rows(), "", ""]),
            digits: TensorSpec::new(DType::S32, [rows]).with_axes(&[self.rows()]),
        }
    }

    fn whole_batch(&self, batch: &Images<Tensor>) -> WholeBatch {
        // Every image weighs the same.
        WholeBatch { weight: full(DType::F32, [], batch.digits.dim(0) as f64), parts: 1 }
    }

    fn loss(&self, params: &Weights<Tensor>, part: &Images<Tensor>, whole: WholeBatch, _: Option<Dropout>) -> Tensor {
        let stream = [self.rows(), STREAM[1], STREAM[2]];
        let x = scope("embedding", || {
            let x = einsum("btp,pe->bte", &[part.patches, params.patches]);
            (x + params.positions.broadcast_like(x, [1, 2])).with_axes(stream)
        });
        let x = scope("layers", || self.layer_stack(x, &params.layers)).with_axes(stream);
        scope("head", || {
            let mean = rms_norm(x, params.norm, EPSILON).mean(1).with_axes([self.rows(), "activation_embed"]);
            let chances = einsum("be,ec->bc", &[mean, params.head]).log_softmax(-1);
            let digits = part.digits.broadcast_like(chances, [0]);
            let of_digit = iota(DType::S32, chances.dims(), -1).equal(digits).select(chances, 0.0);
            -of_digit.sum(..) / whole.weight
        })
    }
}

/// Digits as a clock shows them, of seven segments: each somewhere else in its image, with noise.
#[derive(Clone, Copy, Debug)]
pub struct Digits;

/// The segments of each digit, from the top clockwise, then the one in the middle: one bit each.
const SEGMENTS: [u8; CLASSES] = [
    0b011_1111, 0b000_0110, 0b101_1011, 0b100_1111, 0b110_0110, 0b110_1101, 0b111_1101, 0b000_0111, 0b111_1111,
    0b110_1111,
];

/// Each segment from its first pixel to its last, as row and column in a digit of 11 by 7 pixels.
const LINES: [[[usize; 2]; 2]; 7] = [
    [[0, 0], [0, 6]],
    [[0, 6], [5, 6]],
    [[5, 6], [10, 6]],
    [[10, 0], [10, 6]],
    [[5, 0], [10, 0]],
    [[0, 0], [5, 0]],
    [[5, 0], [5, 6]],
];

impl Digits {
    /// The patches of one image, and what it shows.
    fn image(seed: u64, number: u64) -> (Vec<f32>, i32) {
        let mut state = seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let mut below = |limit: usize| (next_bits(&mut state) % limit as u64) as usize;
        let (digit, row, column) = (below(CLASSES), below(SIDE - 10), below(SIDE - 6));
        let mut image = [[0f32; SIDE]; SIDE];
        image.iter_mut().flatten().for_each(|pixel| *pixel = below(100) as f32 / 250.0);
        let lit = LINES.iter().enumerate().filter(|(segment, _)| SEGMENTS[digit] >> segment & 1 == 1);
        for (_, [[top, left], [bottom, right]]) in lit {
            for line in &mut image[row + top..=row + bottom] {
                line[column + left..=column + right].fill(1.0);
            }
        }
        let patches = (0..SIDE).step_by(PATCH).flat_map(|top| (0..SIDE).step_by(PATCH).map(move |left| (top, left)));
        let pixels = patches.flat_map(|(top, left)| {
            image[top..top + PATCH].iter().flat_map(move |line| line[left..left + PATCH].to_vec())
        });
        (pixels.collect(), digit as i32)
    }
}

impl Dataset<VisionTransformer> for Digits {
    fn batch(&self, seed: u64, step: u64, rows: usize) -> Result<Images<Literal>, Error> {
        let (mut patches, mut digits) = (Vec::new(), Vec::new());
        for row in 0..rows as u64 {
            let (image, digit) = Digits::image(seed, step * rows as u64 + row);
            patches.extend(image);
            digits.push(digit);
        }
        Ok(Images {
            patches: Literal::from_slice(&[rows, PATCHES, PIXELS], &patches)?,
            digits: Literal::from_slice(&[rows], &digits)?,
        })
    }
}
