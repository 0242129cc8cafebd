//! Small pipelines, and the same layers one after the other.

use std::fmt;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::DType::{F32, F64, S32};
use meshloom::ir::{DType, Graph, Literal, Name};
use meshloom::ops::RematPolicy;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Key, Tensor, TensorSpec, Tree, einsum, value_and_grad};
use meshloom::transform::pipeline::{
    LayerPlace, PipelineInput, PipelineLoss, PipelineOptions, StackedWeights, pipeline_with_loss,
};
use meshloom_nn::dropout;

use support::numbers;

pub const LENGTH: usize = 8;
pub const EMBED: usize = 16;
pub const HIDDEN: usize = 32;

/// The logical names of activations within a pipeline.
pub const STREAM: [&str; 3] = ["activation_batch", "activation_length", "activation_embed"];

/// Logical names and their mesh axes.
pub type PipelineRules = &'static [(&'static str, &'static [&'static str])];

/// The rules of MaxText's pipelines, as far as these layers go.
pub const RULES: PipelineRules = &[
    ("activation_stage", &["stage"]),
    ("activation_batch", &["data", "fsdp"]),
    ("batch", &["stage", "data", "fsdp"]),
    ("activation_mlp", &["tensor"]),
    ("activation_length", &[]),
    ("activation_logits_length", &["stage"]),
    ("activation_embed", &[]),
    ("embed", &["fsdp"]),
    ("mlp", &["tensor"]),
    ("norm", &[]),
    ("layers", &["stage"]),
    ("layers_per_stage", &[]),
    ("circular_repeats", &[]),
];

meshloom::tree! {
    /// One layer: a norm's scale and two matrices.
    pub struct Layer<T> {
        pub scale: T,
        pub up: T,
        pub down: T,
    }

    /// The inputs of a program.
    pub struct Inputs<T> {
        pub layers: Layer<T>,
        pub head: T,
        pub x: T,
        pub positions: T,
        pub target: T,
    }
}

/// The weight of an auxiliary value in the loss.
const PENALTY: f64 = 0.1;

/// Loss and gradients.
pub type Program = Function<Inputs<TensorSpec>, (TensorSpec, (Layer<TensorSpec>, TensorSpec, TensorSpec))>;

/// A pipeline over a mesh.
#[derive(Clone, Debug)]
pub struct Case {
    /// The rules of every role.
    pub rules: PipelineRules,
    pub options: PipelineOptions,
    /// The type of weights and activations: `F32`, or `F64`.
    pub dtype: DType,
    /// Rows of a microbatch.
    pub rows: usize,
    pub mesh: String,
    /// Whether a layer applied to zeros, as in bubbles, gives NaN.
    pub poisonous: bool,
    /// Whether hidden values drop out, by layer and microbatch.
    pub dropout: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PipelineOptions {
            stages, repeats, chunks, microbatches, layers_per_stage, weights, remat, schedule, ..
        } = &self.options;
        let flags = [
            ("delay", self.options.delay_forwarding),
            ("unrolled iterations", !self.options.scan_iterations),
            ("unrolled repeats", !self.options.scan_repeats),
            ("unrolled layers", !self.options.scan_layers),
            ("kept", self.options.keep_gathered),
            ("poisonous", self.poisonous),
            ("dropout", self.dropout),
        ];
        write!(
            f,
            "{schedule} S={stages} R={repeats} v={chunks} M={microbatches} P={layers_per_stage} mb={} {weights:?} {remat:?}",
            self.rows
        )?;
        flags.iter().filter(|(_, set)| *set).try_for_each(|(name, _)| write!(f, ", {name}"))?;
        write!(f, " on {}", self.mesh)
    }
}

pub fn save(names: &[&str]) -> RematPolicy {
    RematPolicy::Save(names.iter().map(|name| Name::new(name)).collect())
}

impl Case {
    pub fn new(options: PipelineOptions, mesh: &str) -> Case {
        // The mesh has parts for so many rows. With three stages, so many rows fit any number of microbatches.
        let uneven = options.stages == 3 && !options.microbatches.is_multiple_of(3);
        let rows = if uneven { 24 } else { 8 };
        Case { rules: RULES, options, dtype: F32, rows, mesh: mesh.to_owned(), poisonous: false, dropout: false }
    }

    /// Returns the case with only as many rows in a microbatch as the mesh has parts for, which is interpreted sooner.
    pub fn narrow(self) -> Case {
        let mesh = self.mesh();
        let axes = ["data", "fsdp"].iter().filter_map(|axis| mesh.axis(axis));
        let parts: usize = axes.map(|axis| mesh.size(axis)).product();
        // If microbatches do not fill the slots, stages share the rows of each.
        let fills = self.options.microbatches.is_multiple_of(self.options.stages);
        let rows = if fills { parts } else { self.rows.min(parts * self.options.stages) };
        Case { rows, ..self }
    }

    pub fn mesh(&self) -> Mesh {
        let devices = self.mesh.split(',').filter_map(|axis| axis.split_once('=')?.1.parse::<usize>().ok()).product();
        Mesh::parse(&self.mesh, devices).expect("a mesh")
    }

    pub fn rules(&self) -> RuleSets {
        let rules = Rules::from_pairs(self.rules).expect("rules");
        RuleSets::uniform(rules.with_declared_axes(["data", "stage", "fsdp", "tensor"].map(str::to_owned)))
    }

    pub fn batch(&self) -> usize {
        self.rows * self.options.microbatches
    }

    /// The types of a program's inputs.
    pub fn specs(&self) -> Inputs<TensorSpec> {
        let leading = self.options.leading_dims();
        let weight = |dims: &[usize], names: &[&'static str]| {
            let all: Vec<usize> = leading.iter().map(|(size, _)| *size).chain(dims.iter().copied()).collect();
            let names: Vec<&str> = leading.iter().map(|(_, name)| *name).chain(names.iter().copied()).collect();
            TensorSpec::new(self.dtype, all).with_axes(&names)
        };
        // Behind the pipeline it is whole everywhere, so that all gathers are of the layers.
        let in_one_loop = self.options.schedule.branches();
        let head = if in_one_loop { &["embed", "mlp"] } else { &["", ""] };
        let activations = || TensorSpec::new(self.dtype, [self.batch(), LENGTH, EMBED]).with_axes(&["batch", "", ""]);
        Inputs {
            layers: Layer {
                scale: weight(&[EMBED], &["norm"]),
                up: weight(&[EMBED, HIDDEN], &["embed", "mlp"]),
                down: weight(&[HIDDEN, EMBED], &["mlp", "embed"]),
            },
            head: TensorSpec::new(self.dtype, [EMBED, EMBED]).with_axes(head),
            x: activations(),
            positions: TensorSpec::new(S32, [self.batch(), LENGTH]).with_axes(&["batch", ""]),
            target: activations(),
        }
    }

    pub fn literals(&self) -> Inputs<Literal> {
        let mut seed = 0;
        let specs = self.specs();
        let mut floats = |spec: &TensorSpec, size: f64| {
            seed += 1;
            let values: Vec<f32> =
                numbers(spec.ty.element_count(), seed).iter().map(|number| ((number - 0.6) * size) as f32).collect();
            // The same numbers in both types.
            match self.dtype {
                F64 => Literal::from_slice(&spec.ty.dims, &values.iter().copied().map(f64::from).collect::<Vec<_>>()),
                _ => Literal::from_slice(&spec.ty.dims, &values),
            }
            .expect("as many elements")
        };
        let positions: Vec<i32> = (0..self.batch() * LENGTH).map(|index| (index * 7 % 11) as i32).collect();
        Inputs {
            layers: Layer {
                scale: floats(&specs.layers.scale, 1.0),
                up: floats(&specs.layers.up, 0.5),
                down: floats(&specs.layers.down, 0.5),
            },
            head: floats(&specs.head, 0.5),
            x: floats(&specs.x, 1.0),
            positions: Literal::from_slice(&[self.batch(), LENGTH], &positions).expect("as many elements"),
            target: floats(&specs.target, 1.0),
        }
    }

    fn layer(&self, x: Tensor, layer: &Layer<Tensor>, positions: Tensor, place: LayerPlace) -> (Tensor, Tensor) {
        let number = place.layer;
        let norm = match self.poisonous {
            true => x.square().mean(-1).rsqrt(),
            false => (x.square().mean(-1) + 1e-5).rsqrt(),
        };
        let scale = layer.scale + number.convert(self.dtype).broadcast_like(layer.scale, []) * 0.05;
        let angle = positions.convert(self.dtype) * 0.3;
        let normal =
            x * norm.broadcast_like(x, [0, 1]) * scale.broadcast_like(x, [2]) + angle.sin().broadcast_like(x, [0, 1]);
        let hidden = einsum("bte,em->btm", &[normal, layer.up]).with_axes([
            "activation_batch",
            "activation_length",
            "activation_mlp",
        ]);
        let hidden = hidden.tanh().named("hidden");
        let hidden = match self.dropout {
            true => dropout(hidden, 0.4, Key::new(5).fold_in(number).fold_in(place.microbatch)),
            false => hidden,
        };
        let y = x + einsum("btm,me->bte", &[hidden, layer.down]);
        (y, hidden.square().sum(..) * 0.01)
    }

    fn loss(y: Tensor, head: Tensor, target: Tensor) -> Tensor {
        (einsum("btm,me->bte", &[y, head]) - target).square().sum(..) * PENALTY
    }

    /// Loss and gradients, with the layers in a pipeline.
    pub fn pipelined(&self) -> Program {
        let function = Function::trace("pipelined", self.specs(), |Inputs { layers, head, x, positions, target }| {
            value_and_grad((layers, head, x), |(layers, head, x)| {
                self.pipelined_loss(Inputs { layers, head, x, positions, target })
            })
        });
        function.unwrap_or_else(|error| panic!("{self}: {error}"))
    }

    /// [`Case::pipelined`], lowered for the mesh.
    pub fn lowered(&self, options: LowerOptions<'_>) -> Lowered {
        self.lower(self.pipelined().graph(), options)
    }

    /// A program of this case, lowered for the mesh.
    pub fn lower(&self, program: &Graph, options: LowerOptions<'_>) -> Lowered {
        let (mesh, rules) = (self.mesh(), self.rules());
        let options = LowerOptions { sharding: Some((&mesh, &rules)), ..options };
        lower(program, &options).unwrap_or_else(|error| panic!("{self}: {error}"))
    }

    /// The loss alone, with the layers in a pipeline.
    pub fn forwards(&self) -> Function<Inputs<TensorSpec>, TensorSpec> {
        let function = Function::trace("forwards", self.specs(), |inputs| self.pipelined_loss(inputs));
        function.unwrap_or_else(|error| panic!("{self}: {error}"))
    }

    fn pipelined_loss(&self, Inputs { layers, head, x, positions, target }: Inputs<Tensor>) -> Tensor {
        let specs = self.specs();
        let names = specs.layers.leaves().into_iter().map(|spec| spec.axes).collect();
        let length = if LENGTH.is_multiple_of(self.options.stages) { "activation_logits_length" } else { "" };
        let stacked = StackedWeights::new(layers, names);
        let input = PipelineInput { x, names: STREAM.to_vec(), rows: (positions, target) };
        let loss = PipelineLoss {
            weights: StackedWeights::new(head, vec![specs.head.axes]),
            names: vec!["activation_batch", length, ""],
            penalties: vec![PENALTY],
        };
        let layer = |x, layer: Layer<Tensor>, (positions, _): (Tensor, Tensor), place: LayerPlace| {
            self.layer(x, &layer, positions, place)
        };
        let of_loss = |y, head, (_, target)| Case::loss(y, head, target);
        pipeline_with_loss(&self.options, stacked, input, layer, loss, of_loss).0
    }

    /// The rows of a microbatch: `s (M/S) + j` has those at `s (B/S) + row (M/S) + j`; where M is no multiple of S,
    /// `m` has those at `row M + m`.
    fn rows_of(&self, all: Tensor, microbatch: usize) -> Tensor {
        let PipelineOptions { stages, microbatches, .. } = self.options;
        if !microbatches.is_multiple_of(stages) {
            let cut = all.reshape([&[self.rows, microbatches], &all.dims()[1..]].concat());
            return cut.slice(1, microbatch..microbatch + 1).reshape([&[self.rows], &all.dims()[1..]].concat());
        }
        let slots = microbatches / stages;
        let (stage, slot) = (microbatch / slots, microbatch % slots);
        let cut = all.reshape([&[stages, self.rows, slots], &all.dims()[1..]].concat());
        let own = cut.slice(0, stage..stage + 1).slice(2, slot..slot + 1);
        own.reshape([&[self.rows], &all.dims()[1..]].concat())
    }

    /// Returns loss and gradients, with the layers one after the other. Layers and loss are computed row by row, so all
    /// microbatches go through at once; but dropout depends on the microbatch.
    pub fn sequential(&self) -> Program {
        let function = Function::trace("sequential", self.specs(), |Inputs { layers, head, x, positions, target }| {
            value_and_grad((layers, head, x), |(layers, head, x)| {
                let count = self.options.layers();
                let leading = self.options.leading_dims().len();
                let flat = |weight: Tensor| weight.reshape([&[count], &weight.dims()[leading..]].concat());
                let flat = Layer { scale: flat(layers.scale), up: flat(layers.up), down: flat(layers.down) };
                let number = |number: usize| meshloom::trace::full(S32, [], number as f64);
                let (mut loss, mut total): (Option<Tensor>, Option<Tensor>) = (None, None);
                for microbatch in 0..if self.dropout { self.options.microbatches } else { 1 } {
                    let own = |rows: Tensor| if self.dropout { self.rows_of(rows, microbatch) } else { rows };
                    let (mut x, positions) = (own(x), own(positions));
                    for index in 0..count {
                        let one = |weight: Tensor| weight.slice(0, index..index + 1).reshape(&weight.dims()[1..]);
                        let layer = Layer { scale: one(flat.scale), up: one(flat.up), down: one(flat.down) };
                        let place = LayerPlace { layer: number(index), microbatch: number(microbatch) };
                        let (y, aux) = self.layer(x, &layer, positions, place);
                        (x, total) = (y, Some(total.map_or(aux, |total| total + aux)));
                    }
                    let own_loss = Case::loss(x, head, own(target));
                    loss = Some(loss.map_or(own_loss, |loss| loss + own_loss));
                }
                loss.expect("a microbatch") + total.expect("a layer") * PENALTY
            })
        });
        function.unwrap_or_else(|error| panic!("{self}: {error}"))
    }
}
