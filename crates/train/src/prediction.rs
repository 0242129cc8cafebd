//! Predicts what a pipeline moves and needs before it is lowered, from the sizes, mesh and rules of a run config and
//! its [`Timeline`].
//!
//! Stages do the same in every iteration. So a whole step follows from one layer, which is lowered on its own
//! ([`LayerCost`]), and from how often weights are gathered, gradients scattered and microbatches handed on.
//!
//! The gathers of layer weights, the scatters of their gradients, and the transfers between stages are exact: they
//! equal the [`Ledger`](meshloom::partition::Ledger) of the lowered step. Embedding, head, loss and optimizer are left
//! out, and so are the rows (positions, segments) that every stage gets once. Memory is an estimate: it assumes a
//! moment at which all of its parts exist, although some may already be gone.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::config::RunConfig;
use crate::Error;
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::{DType, TensorType};
use meshloom::nn::{AttentionMask, Batch, DecoderConfig, Layers, Rotary, RowInputs, STREAM};
use meshloom::ops::RematPolicy;
use meshloom::partition::{CollectiveKind, Memory};
use meshloom::sharding::{Mesh, MeshAxis, Role, Rule, RuleSets, Rules, Spec};
use meshloom::trace::{Function, MapTree, TensorSpec, Tree, value_and_grad};
use meshloom::transform::pipeline::{Counts, EXPERTS, GATHERED, PipelineOptions, Schedule, Timeline, WeightPlan};

/// What a pipeline does to a device.
#[derive(Clone, Debug, Serialize)]
pub struct PipelinePrediction {
    /// Iterations, bubbles, gathers.
    pub counts: Counts,
    /// What a device sends in one step, by cause, kind and mesh axes.
    pub traffic: Vec<Traffic>,
    /// What a device holds.
    pub memory: PipelineMemory,
}

/// Collectives of one cause, kind and mesh axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// What is moved: "weights", "weight gradients", "new weights", "microbatches", "within layers".
    pub what: &'static str,
    /// How.
    #[serde(serialize_with = "by_name")]
    pub kind: CollectiveKind,
    /// Along which axes, major to minor.
    pub axes: Vec<String>,
    /// Bytes of the operands on one device, in all executions of one step.
    pub bytes: u64,
    /// Bytes that one device sends, by [`CollectiveKind::moved_bytes`].
    pub moved_bytes: u64,
}

fn by_name<S: Serializer>(kind: &CollectiveKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

/// Bytes of one device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PipelineMemory {
    /// All parameters, of the layers and outside.
    pub parameters: u64,
    /// State of the optimizer.
    pub optimizer: u64,
    /// Gradients, split as the parameters are.
    pub gradients: u64,
    /// Gathered weights of as many repeats as are there at once.
    pub gathered: u64,
    /// Sums of gradients that are not scattered yet.
    pub sums: u64,
    /// What iterations keep for the backward pass.
    pub stash: u64,
    /// What is under way between stages, waits, comes in or is done.
    pub state: u64,
    /// One layer's own values, forwards and backwards.
    pub layer: u64,
    /// Logits and their gradient, which are there when no layer is.
    pub head: u64,
}

impl PipelineMemory {
    /// The most that is there at once.
    pub fn peak(&self) -> u64 {
        let all = [self.parameters, self.optimizer, self.gradients, self.gathered, self.sums, self.stash, self.state];
        all.iter().sum::<u64>() + self.layer.max(self.head)
    }
}

/// One layer for one microbatch, lowered by itself with its weights gathered.
#[derive(Clone, Debug, Default)]
pub struct LayerCost {
    /// What it moves itself in both passes, without the gradients of weights, which the pipeline adds up.
    traffic: Vec<Traffic>,
    /// What it needs of memory, beside its weights, their gradients and the activations that it gets and gives.
    bytes: u64,
    /// What it keeps for its backward pass, by the remat policy.
    kept: u64,
}

impl RunConfig {
    /// What the pipeline of the config will move and need; `None` without one. With several microbatches
    /// ([`TrainConfig::microbatches`](super::config::TrainConfig::microbatches)) the pipeline runs for each of them;
    /// gathers of all weights that are small enough to be moved in front of their loop count as if they were not. What
    /// crosses `diloco` is not part of it: [`Schedule`](meshloom::transform::diloco::Schedule) says when what does.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together.
    pub fn predict_pipeline(&self) -> Result<Option<PipelinePrediction>, Error> {
        if self.pipeline_options()?.is_none() {
            return Ok(None);
        }
        self.predict_pipeline_with(&LayerCost::of(self)?)
    }

    /// As [`RunConfig::predict_pipeline`], with the cost of a layer, which is the same for all pipelines with as many
    /// microbatches.
    ///
    /// # Errors
    /// As there.
    pub fn predict_pipeline_with(&self, layer: &LayerCost) -> Result<Option<PipelinePrediction>, Error> {
        let Some(options) = self.pipeline_options()? else { return Ok(None) };
        let (mesh, rules) = (self.mesh()?, self.rule_sets()?);
        let counts = Timeline::of(&options).counts;
        let predictor = Predictor { config: self, mesh: &mesh, rules: &rules, options: &options, counts: &counts };
        let weights = predictor.layer_weights()?;
        let traffic = predictor.traffic(&weights, layer)?;
        let memory = predictor.memory(&weights, layer)?;
        Ok(Some(PipelinePrediction { traffic, memory, counts }))
    }
}

/// A stacked weight as one device has it, in the type that it is used in.
struct LayerWeight {
    /// Bytes of its part of one repeat.
    at_rest: u64,
    /// Bytes once gathered.
    whole: u64,
    /// Bytes of a sum of gradients, for each byte of the weight: sums have at least 32 bits.
    widening: u64,
    /// The axes over which it is gathered.
    gathered: Vec<MeshAxis>,
    /// The axes over which its gradient is summed, but not scattered, once a step, all repeats at once.
    summed: Vec<MeshAxis>,
    /// The axes that split the optimizer's state but not the weight: the sum that scatters it runs over them.
    split_further: Vec<MeshAxis>,
    /// Bytes of its part of all repeats, as it is kept and as its gradient is summed over these axes.
    kept: u64,
    sum: u64,
}

struct Predictor<'a> {
    config: &'a RunConfig,
    mesh: &'a Mesh,
    rules: &'a RuleSets,
    options: &'a PipelineOptions,
    counts: &'a Counts,
}

impl Predictor<'_> {
    /// The spec of a value, and the bytes of one device's part.
    fn part(&self, role: Role, spec: &TensorSpec) -> Result<(Spec, u64), Error> {
        resolve(self.rules.get(role), self.mesh, spec)
    }

    /// The stacked weights of the layers.
    fn layer_weights(&self) -> Result<Vec<LayerWeight>, Error> {
        let Layers::Stacked(layers) = self.config.decoder()?.parameters().layers else { return Ok(Vec::new()) };
        let decoder = self.config.decoder()?;
        let leaves = layers.paths().into_iter().zip(layers.leaves());
        leaves
            .map(|(path, param)| {
                let mut used = param.spec.clone();
                used.ty.dtype = decoder.dtype_in_use(&path, &param);
                self.layer_weight(&param.spec, &used)
            })
            .collect()
    }

    fn layer_weight(&self, kept: &TensorSpec, spec: &TensorSpec) -> Result<LayerWeight, Error> {
        let repeats = self.options.repeats as u64;
        let (rest, bytes) = self.part(Role::Params, spec)?;
        let (used, _) = self.part(Role::Compute, spec)?;
        let experts = spec.axes.iter().any(|name| name.text() == EXPERTS);
        let stays = |axis: &MeshAxis| {
            let name = self.mesh.name(*axis);
            !GATHERED.contains(&name) || (experts && name == "expert")
        };
        let whole: Vec<MeshAxis> = used.used_axes().filter(stays).collect();
        let gathered: Vec<MeshAxis> =
            rest.used_axes().filter(|axis| !whole.contains(axis) && self.mesh.size(*axis) > 1).collect();
        let parts: usize = gathered.iter().map(|axis| self.mesh.size(*axis)).product();
        let (stream, _) = self.stream()?;
        let is_summed =
            |axis: &MeshAxis| !whole.contains(axis) && !gathered.contains(axis) && self.mesh.size(*axis) > 1;
        let summed: Vec<MeshAxis> = stream.used_axes().filter(is_summed).collect();
        let widening = (DType::F32.byte_count() / spec.ty.dtype.byte_count()).max(1) as u64;
        let (of_state, _) = self.part(Role::Optimizer, spec)?;
        let (split_further, summed) = summed.into_iter().partition(|axis| of_state.used_axes().any(|own| own == *axis));
        let (_, kept) = self.part(Role::Params, kept)?;
        // Over several parts of a batch, gradients are added up with at least 32 bits.
        let sum = if self.config.train.microbatches > 1 { bytes * widening } else { kept };
        let (at_rest, whole) = (bytes / repeats, bytes / repeats * parts as u64);
        Ok(LayerWeight { at_rest, whole, widening, gathered, summed, split_further, kept, sum })
    }

    /// The activations of one iteration `[S, mb, T, E]`.
    fn stream(&self) -> Result<(Spec, u64), Error> {
        let model = &self.config.model;
        let dims = [self.options.stages, self.config.rows_of_layer(), model.seq, model.embed];
        let names = [&["activation_stage"], &STREAM[..]].concat();
        self.part(Role::Compute, &TensorSpec::new(model.compute_dtype, dims).with_axes(&names))
    }

    fn traffic(&self, weights: &[LayerWeight], layer: &LayerCost) -> Result<Vec<Traffic>, Error> {
        let mut sums = Sums { mesh: self.mesh, traffic: BTreeMap::new() };
        // The pipeline runs once for each part of the batch.
        let parts = self.config.train.microbatches.max(1);
        let gathers = (parts * (self.counts.gathers_forward + self.counts.gathers_backward)) as u64;
        let scatters = (parts * self.counts.scatters) as u64;
        for weight in weights {
            sums.add("weights", CollectiveKind::AllGather, &weight.gathered, weight.at_rest, gathers);
            // Those of single iterations are not sums yet.
            let widening = if self.options.weights == WeightPlan::PerIteration { 1 } else { weight.widening };
            let (scatter, reduce) = (CollectiveKind::ReduceScatter, CollectiveKind::AllReduce);
            sums.add("weight gradients", scatter, &weight.gathered, weight.whole * widening, scatters);
            let further = weight.split_further.iter().map(|axis| self.mesh.size(*axis) as u64).product::<u64>();
            sums.add("weight gradients", scatter, &weight.split_further, weight.sum, 1);
            sums.add("weight gradients", reduce, &weight.summed, weight.sum / further, 1);
            sums.add("new weights", CollectiveKind::AllGather, &weight.split_further, weight.kept / further, 1);
        }
        let stage: Vec<MeshAxis> = self.mesh.axis("stage").into_iter().collect();
        let permutes = (parts * self.counts.permutes) as u64;
        sums.add("microbatches", CollectiveKind::CollectivePermute, &stage, self.stream()?.1, permutes);
        // Bubbles compute as well.
        let layers_run = (parts * self.counts.iterations * self.options.layers_per_stage) as u64;
        let within = layer.traffic.iter().map(|it| Traffic {
            bytes: it.bytes * layers_run,
            moved_bytes: it.moved_bytes * layers_run,
            ..it.clone()
        });
        Ok(sums.traffic.into_values().chain(within).collect())
    }

    fn memory(&self, weights: &[LayerWeight], layer: &LayerCost) -> Result<PipelineMemory, Error> {
        let state = self.config.train_step()?.state();
        let total = |role, specs: Vec<TensorSpec>| -> Result<u64, Error> {
            specs.iter().map(|spec| Ok(self.part(role, spec)?.1)).sum()
        };
        let specs = |params: Vec<meshloom::trace::Param>| params.into_iter().map(|param| param.spec).collect();
        let parameters = total(Role::Params, specs(state.params.leaves()))?;
        // Of several replicas, what they agree on and the velocity of that are kept besides.
        let outer = if self.config.diloco.is_some() { 2 * parameters } else { 0 };
        let optimizer = total(Role::Optimizer, specs(state.optimizer.leaves()))? + outer;
        // Those of a part of the batch, and the sum over the parts.
        let gradients = if self.config.train.microbatches > 1 { 2 * parameters } else { parameters };
        let whole: u64 = weights.iter().map(|weight| weight.whole).sum();
        let microbatch = self.stream()?.1;
        let stashed = match &self.options.remat {
            RematPolicy::Full => microbatch,
            _ => microbatch.max(layer.kept),
        };
        let (iterations, layers) = (self.counts.stashed_iterations as u64, self.options.layers_per_stage as u64);
        let under_way = 1 + usize::from(self.options.delay_forwarding) + self.options.waiting();
        let slots = self.options.microbatches / self.options.stages;
        Ok(PipelineMemory {
            parameters,
            optimizer,
            gradients,
            gathered: whole * self.counts.gathered_repeats as u64,
            sums: self.sums(weights),
            stash: iterations * layers * stashed,
            // What comes in, and its gradient.
            state: microbatch * (under_way + 2 * slots) as u64,
            layer: layer.bytes,
            head: self.head()?,
        })
    }

    /// Sums of gradients, which lie as weights do where they are used.
    fn sums(&self, weights: &[LayerWeight]) -> u64 {
        let repeats = self.options.repeats as u64;
        let bytes = |weight: &LayerWeight| match self.options.weights {
            WeightPlan::PerIteration => weight.at_rest * weight.widening * repeats,
            WeightPlan::GatherOnce => weight.whole * weight.widening * repeats,
            WeightPlan::SlidingWindow | WeightPlan::SplitSlidingWindow => {
                weight.whole * weight.widening * repeats.min(2)
            }
        };
        weights.iter().map(bytes).sum()
    }

    /// The logits and their gradient: of all rows, or of one microbatch if the loss is part of the pipeline.
    fn head(&self) -> Result<u64, Error> {
        let model = &self.config.model;
        let (rows, names) = match self.options.schedule {
            Schedule::OneForwardOneBackward => (self.config.rows_of_layer(), "activation_batch"),
            _ => (self.config.rows_at_once(), "activation_embed_and_logits_batch"),
        };
        let spec = TensorSpec::new(DType::F32, [rows, model.seq, model.vocab]);
        let spec = spec.with_axes(&[names, "activation_length", "activation_vocab"]);
        Ok(2 * self.part(Role::Compute, &spec)?.1)
    }
}

/// The spec of a value by rules, and the bytes of one device's part; uneven parts count as the largest.
fn resolve(rules: &Rules, mesh: &Mesh, spec: &TensorSpec) -> Result<(Spec, u64), Error> {
    let names: Vec<String> = spec.axes.iter().map(|name| name.text()).collect();
    let names: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str()).filter(|it| !it.is_empty())).collect();
    let found = rules.resolve(mesh, "a value of the pipeline", &names, &spec.ty.dims, &mut Vec::new());
    let found = found.map_err(Box::new)?;
    let local: Vec<usize> =
        spec.ty.dims.iter().enumerate().map(|(dim, size)| size.div_ceil(found.part_count(mesh, dim))).collect();
    let bytes = TensorType::new(spec.ty.dtype, &local).byte_count() as u64;
    Ok((found, bytes))
}

/// Traffic, added up by cause, kind and axes.
struct Sums<'a> {
    mesh: &'a Mesh,
    traffic: BTreeMap<(&'static str, CollectiveKind, Vec<MeshAxis>), Traffic>,
}

impl Sums<'_> {
    fn add(&mut self, what: &'static str, kind: CollectiveKind, axes: &[MeshAxis], bytes: u64, times: u64) {
        let size: usize = axes.iter().map(|axis| self.mesh.size(*axis)).product();
        if size <= 1 || bytes * times == 0 {
            return;
        }
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        let names = sorted.iter().map(|axis| self.mesh.name(*axis).to_owned()).collect();
        let nothing = Traffic { what, kind, axes: names, bytes: 0, moved_bytes: 0 };
        let entry = self.traffic.entry((what, kind, sorted)).or_insert(nothing);
        entry.bytes += bytes * times;
        entry.moved_bytes += kind.moved_bytes(bytes, size as u64) * times;
    }
}

impl LayerCost {
    /// Lowers one layer of the config's model with its gradient, for one microbatch; and two layers, to see what the
    /// first keeps while the second runs.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together.
    pub fn of(config: &RunConfig) -> Result<LayerCost, Error> {
        let mesh = config.mesh()?;
        let rules = RuleSets::uniform(without_gathered(&config.rule_sets()?.compute)?);
        let temporaries = |lowered: &Lowered| {
            let memory = Memory::of(lowered.emitted(), &[]);
            memory.peak.saturating_sub(memory.arguments + memory.outputs)
        };
        let one = lower_layers(config, 1, &mesh, &rules)?;
        let bytes = temporaries(&one);
        let kept = temporaries(&lower_layers(config, 2, &mesh, &rules)?).saturating_sub(bytes);
        let rows = rules.compute.resolve(&mesh, "rows", &[Some(STREAM[0])], &[config.rows_of_layer()], &mut Vec::new());
        let rows: Vec<MeshAxis> = rows.map_err(Box::new)?.used_axes().collect();
        let is_of_rows = |axis: &String| rows.iter().any(|&own| mesh.name(own) == axis);
        let mut traffic: BTreeMap<(CollectiveKind, Vec<String>), Traffic> = BTreeMap::new();
        for it in one.collectives().iter()? {
            let sums = it.kind == CollectiveKind::AllReduce || it.kind == CollectiveKind::ReduceScatter;
            // Gradients of weights: the pipeline adds up those of all microbatches first.
            if sums && it.axes.iter().any(is_of_rows) {
                continue;
            }
            let times = it.executions.bound().unwrap_or(1);
            let nothing =
                Traffic { what: "within layers", kind: it.kind, axes: it.axes.clone(), bytes: 0, moved_bytes: 0 };
            let entry = traffic.entry((it.kind, it.axes.clone())).or_insert(nothing);
            entry.bytes += it.bytes * times;
            entry.moved_bytes += it.moved_bytes * times;
        }
        Ok(LayerCost { traffic: traffic.into_values().collect(), bytes, kept })
    }
}

/// So many layers, with their gradients, for one microbatch.
fn lower_layers(config: &RunConfig, count: usize, mesh: &Mesh, rules: &RuleSets) -> Result<Lowered, Error> {
    let model = &config.model;
    let alone = DecoderConfig { layers: count, pipeline: None, scan_layers: false, ..config.decoder()? };
    let rows = config.rows_of_layer();
    let x = TensorSpec::new(model.compute_dtype, [rows, model.seq, model.embed]).with_axes(&STREAM);
    let numbers = TensorSpec::new(DType::S32, [rows, model.seq]).with_axes(&Batch::AXES);
    let weights = alone.parameters().layers.map(|_, param| TensorSpec { role: Role::Compute, ..param.spec.clone() });
    let specs = ((x, weights), [numbers.clone(), numbers]);
    let function = Function::trace("layers", specs, |(inputs, [positions, segment_ids])| {
        value_and_grad(inputs, |(x, weights)| {
            let rotary = Rotary::new(positions, alone.rotary_dim(), alone.rope_theta);
            let mask = AttentionMask::causal(segment_ids);
            let (y, _) = alone.layer_stack(x, &weights, RowInputs { rotary: &rotary, mask }, None);
            y.convert(DType::F32).sum(..)
        })
    })?;
    let sharding = (mesh.device_count() > 1).then_some((mesh, rules));
    Ok(lower(function.graph(), &LowerOptions { sharding, ..LowerOptions::default() })?)
}

/// The rules for weights in use: split over none of the axes that they are gathered over.
fn without_gathered(rules: &Rules) -> Result<Rules, Error> {
    let whole = |rule: &Rule| {
        let of_activations = rule.name.starts_with("activation_");
        let stays = |axis: &&String| of_activations || rule.name == EXPERTS || !GATHERED.contains(&axis.as_str());
        Rule { axes: rule.axes.iter().filter(stays).cloned().collect(), ..rule.clone() }
    };
    Ok(Rules::new(rules.rules().iter().map(whole).collect(), false).map_err(Box::new)?)
}
