//! Pipelines over a mesh axis: every stage holds some layers of each repeat, and microbatches travel through the
//! stages.
//!
//! [`pipeline`] runs a layer function on stacked weights. The result is an ordinary program in global view, in which
//! stages are a dimension: named `activation_stage` in activations and `layers` in weights, and split over the mesh
//! axis that the rules give these names. A [roll](crate::ops::Roll) along it moves results from stage to stage, which
//! becomes a collective-permute.
//!
//! | module | what it says |
//! |---|---|
//! | `options` | the options of a pipeline, and which combinations are possible |
//! | `phases` | which stage works on what, and when |
//! | `stage` | one iteration of all stages: the layers, mapped over the stages, and both halves of their derivative |
//! | `weights` | what is gathered when, and where cotangents of weights are added up and scattered |
//! | `iteration` | one iteration, and its transpose |
//! | `run`, `back` | all of them, forwards and backwards |
//! | `timeline` | the schedule as data |
//! | `schedule` | tables of what each stage does when, where stages branch |
//! | `ticks` | the loop that runs a table, which contains the loss |
//! | `cells` | the numbers of a table as that loop reads them |
//! | `stage::split` | the backward pass of a stage in two: cotangents of activations now, those of weights later |
//! | `turns` | how inputs come to the first stage there, and their cotangents go back |
//! | `loss_function` | the loss of a microbatch |
//! | `with_loss` | a pipeline and the loss behind it, under any schedule |
//!
//! Sources: GPipe (Huang et al., arXiv 1811.06965), circular pipelines as in MaxText (maxtext.layers.pipeline),
//! PipeDream-Flush's 1F1B (Narayanan et al., arXiv 2104.04473).

mod back;
mod cells;
mod iteration;
mod loss_function;
mod options;
mod phases;
mod run;
mod schedule;
mod stage;
mod ticks;
mod timeline;
mod turns;
mod weights;
mod with_loss;

use std::cell::RefCell;
use std::panic::Location;

pub use options::{PipelineError, PipelineOptions, Schedule, WeightPlan};
pub use phases::{Phase, Task, WeightUse};
pub use schedule::{
    Cell, Columns, Cost, Costs, Direction, Item, Piece, Placement, Read, Route, ScheduleError, Shape, Simulated, Slots,
    Table, Work,
};
pub use stage::{LayerPlace, STAGE};
pub use timeline::{Column, Counts, Scatter, Timeline, WeightWindow};
pub use with_loss::{PipelineLoss, pipeline_with_loss};

use back::Backward;
use iteration::{Machine, State};
use run::Kept;
use stage::{StageFunction, StageHalves, StageInputs};
use weights::{Weights, in_types_of};

use crate::ir::{AxisNames, DType, Name};
use crate::ops::WithAxes;
use crate::trace::{self, Param, Place, Tensor, TraceErrorKind, Tree, called, custom_vjp, label, refill, zeros};
use meshloom_hlo::message::counted;

/// Stacked weights of all layers, and the logical names of their dimensions.
///
/// Mesh axes that split a weight at rest may also split rows of the activations that it is used on, as `fsdp` does. No
/// device can then use its part of the weight alone, so weights are gathered over such axes when the [`WeightPlan`]
/// says. Other axes, as those of tensor parallelism, split a weight where it is used.
#[derive(Clone, Debug)]
pub struct StackedWeights<W> {
    /// Each tensor has the [leading dimensions](PipelineOptions::leading_dims) of the pipeline, then those of a layer's
    /// weight.
    pub weights: W,
    /// For each tensor, the names of all dimensions.
    pub names: Vec<AxisNames>,
    /// For each tensor, the names of the rows of the activations that it is used on, as those of batch and sequence.
    /// Where this ends, they are those of the pipeline's activations, all but the last name.
    pub rows: Vec<AxisNames>,
}

impl<W> StackedWeights<W> {
    /// Weights with the names of their dimensions, used on rows of the pipeline's activations.
    pub fn new(weights: W, names: Vec<AxisNames>) -> StackedWeights<W> {
        StackedWeights { weights, names, rows: Vec::new() }
    }

    /// Sets the rows on which each weight is used: `rows` gets the names of the weight and returns those of the rows.
    #[must_use]
    pub fn used_on(self, rows: impl Fn(&AxisNames) -> AxisNames) -> StackedWeights<W> {
        StackedWeights { rows: self.names.iter().map(rows).collect(), ..self }
    }
}

impl<W: Tree<Leaf = Tensor>> StackedWeights<W> {
    /// Weights with the names that their declarations give. Those have the leading dimensions already:
    /// [`Param::stacked_over`] puts them there.
    pub fn declared(declared: &impl Tree<Leaf = Param>, weights: W) -> StackedWeights<W> {
        StackedWeights::new(weights, declared.leaves().into_iter().map(|param| param.spec.axes).collect())
    }
}

/// The input of a pipeline: activations, and the tensors that belong to their rows.
#[derive(Clone, Debug)]
pub struct PipelineInput<X> {
    /// `[B, ..]`.
    pub x: Tensor,
    /// The logical names of the dimensions of `x`, within the pipeline.
    pub names: Vec<&'static str>,
    /// Further inputs of the layers, such as positions and segments: each tensor `[B, ..]`. No gradient flows into
    /// them.
    pub rows: X,
}

/// Runs stacked layers as a pipeline: `layer` gets the activations `[B/M, ..]` of a microbatch, its own weights, the
/// rows that belong to the microbatch, and what place it has; it returns activations of the same type and a tree of
/// auxiliary values. Returns the activations `[B, ..]` after all layers, and the auxiliary values, summed over layers
/// and microbatches.
///
/// `layer` is traced once, or once for each layer of a stage, and must be the same for all. It may use outer tensors,
/// but no floating-point ones: what a gradient may be wanted for has to be a weight. Rows of microbatch `s (M/S) + j`
/// are those at `s (B/S) + row (M/S) + j` of the batch: so a batch that is split over stages first, then over what
/// splits the rows of a microbatch, is in place. Where M is no multiple of S, microbatch `m` has the rows `row M + m`.
///
/// Schedules in which stages [branch](Schedule::branches) need [`pipeline_with_loss`]. With the others, layers also run
/// in bubbles, on whatever values are there. Their results affect neither values nor gradients, not even if they are
/// NaN or infinite.
///
/// ```
/// use meshloom::prelude::*;
/// use meshloom::transform::pipeline::{PipelineInput, PipelineOptions, StackedWeights, pipeline};
///
/// # fn main() -> Result<(), meshloom::Error> {
/// // Four layers, two on each stage; a batch goes through in four microbatches.
/// let options = PipelineOptions { stages: 2, layers_per_stage: 2, microbatches: 4, ..PipelineOptions::default() };
/// let layers = Param::new(F32, [8, 8], &["embed", "mlp"], Init::Normal(0.3)).stacked_over(&options.leading_dims());
/// let x = TensorSpec::new(F32, [8, 8]).with_axes(&["activation_batch", ""]);
/// let function = Function::trace("loss", (&layers, x), |(weights, x)| {
///     value_and_grad(weights, |weights| {
///         let stacked = StackedWeights::declared(&layers, weights);
///         let input = PipelineInput { x, names: vec!["activation_batch", ""], rows: () };
///         let (y, ()) = pipeline(&options, stacked, input, |x, weight, (), _| (x.matmul(weight).tanh(), ()));
///         y.square().mean(..)
///     })
/// })?;
///
/// let mesh = Mesh::parse("stage=2,data=2", 4)?;
/// let rules: &[(&str, &[&str])] =
///     &[("layers", &["stage"]), ("activation_stage", &["stage"]), ("activation_batch", &["data"])];
/// let rules = RuleSets::uniform(Rules::from_pairs(rules)?);
/// let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
/// let lowered = lower(function.graph(), &options)?;
/// println!("{}", lowered.collectives()); // permutes from stage to stage
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn pipeline<W, X, A>(
    options: &PipelineOptions,
    stacked: StackedWeights<W>,
    input: PipelineInput<X>,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
) -> (Tensor, A)
where
    W: Tree<Leaf = Tensor> + Clone,
    X: Tree<Leaf = Tensor> + Clone,
    A: Tree<Leaf = Tensor>,
{
    let place = Location::caller();
    let (stage, aux) = match trace_stage(options, LossAt::Behind, &stacked, &input, layer, place) {
        (Some(stage), aux) => (stage, aux),
        (None, aux) => return (input.x, refill(&aux, &mut std::iter::empty())),
    };
    let names = stage_names(&input.names);
    let weights = Weights::new(options, &stacked, (STAGE, &input.names), place);
    let program = Program { options, stage: &stage, weights: &weights, names: &names, place };
    // From here on, every line but that of the call is the library's, not the user's.
    let (x, sums) = trace::composite(place, || {
        let io = into_slots(options, input.x, &names, place);
        let inputs = [stacked.weights.leaves(), vec![io], input.rows.leaves(), stage.captured.clone()];
        let (io, sums) = program.differentiable(inputs);
        (out_of_slots(options, io, input.x, &names, place), sums)
    });
    (x, refill(&aux, &mut sums.into_iter()))
}

/// The logical names of activations, stages first.
fn stage_names(names: &[&str]) -> AxisNames {
    [stage::STAGE].iter().chain(names).map(|name| Name::new(name)).collect()
}

/// The logical names of activations of one stage.
fn stage_names_of_one(names: &AxisNames) -> AxisNames {
    names.iter().skip(1).copied().collect()
}

/// Where the loss of a pipeline's results is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LossAt {
    /// In the pipeline's loop.
    InLoop,
    /// Behind the pipeline, which does not contain it.
    Behind,
}

/// Checks everything and traces the layer. The function is `None` after an error, which has been noted.
fn trace_stage<W, X, A>(
    options: &PipelineOptions,
    loss: LossAt,
    stacked: &StackedWeights<W>,
    input: &PipelineInput<X>,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    place: Place,
) -> (Option<StageFunction>, A)
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
{
    if let Err(problem) = check(options, loss, stacked, input) {
        let failed = trace::fail(problem, place);
        // From here on, only the structure of the layer's return value is used.
        let weights = refill(&stacked.weights, &mut stacked.weights.leaves().into_iter());
        let rows = refill(&input.rows, &mut input.rows.leaves().into_iter());
        return (None, layer(input.x, weights, rows, LayerPlace { layer: failed, microbatch: failed }).1);
    }
    let example = example(options, &stacked.weights, input);
    let (stage, aux) = StageFunction::trace(options, (&stacked.weights, &input.rows), &example, place, layer);
    let checked = stage.and_then(|stage| match check_stage(&stage, example.x) {
        Ok(()) => Some(stage),
        Err(problem) => {
            trace::fail(problem, place);
            None
        }
    });
    (checked, aux)
}

/// Checks the options, and that weights and input have the form that they state.
fn check<W, X>(
    options: &PipelineOptions,
    loss: LossAt,
    stacked: &StackedWeights<W>,
    input: &PipelineInput<X>,
) -> Result<(), TraceErrorKind>
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
{
    options.validate()?;
    let schedule = options.schedule;
    if schedule.branches() && loss == LossAt::Behind {
        return Err(PipelineError::NeedsLoss { schedule }.into());
    }
    let mismatch =
        |what: String, expected: String, found: String| Err(TraceErrorKind::Mismatch { what, expected, found });
    let leading: Vec<usize> = options.leading_dims().iter().map(|(size, _)| *size).collect();
    let (weights, paths) = (stacked.weights.leaves(), stacked.weights.paths());
    if stacked.names.len() != weights.len() {
        let expected = format!("one list for each of {}", counted(weights.len(), "weight"));
        return mismatch(
            "the names given with a pipeline's weights".to_owned(),
            expected,
            stacked.names.len().to_string(),
        );
    }
    for ((weight, path), names) in weights.iter().zip(paths).zip(&stacked.names) {
        if !weight.dims().starts_with(&leading) {
            let &PipelineOptions { stages, layers_per_stage, .. } = options;
            let repeats = options.parts();
            let found = weight.ty().to_string();
            let expected = leading;
            return Err(PipelineError::Weight { path, found, repeats, stages, layers_per_stage, expected }.into());
        }
        if names.len() != weight.rank() {
            let what = format!("the names of {} of a pipeline", called("weight", &path));
            return mismatch(what, format!("one for each dimension of {}", weight.ty()), names.len().to_string());
        }
    }
    let batch = input.x.dims().first().copied().unwrap_or(0);
    if input.names.len() != input.x.rank() {
        let what = "the names of a pipeline's activations".to_owned();
        return mismatch(what, format!("one for each dimension of {}", input.x.ty()), input.names.len().to_string());
    }
    if batch == 0 || !batch.is_multiple_of(options.microbatches) {
        return Err(PipelineError::Batch { batch, microbatches: options.microbatches }.into());
    }
    let mut rows = input.rows.leaves().into_iter().zip(input.rows.paths());
    match rows.find(|(rows, _)| rows.dims().first() != Some(&batch)) {
        None => Ok(()),
        Some((rows, path)) => mismatch(
            format!("{} of a pipeline", called("rows", &path)),
            format!("a leading dimension of {batch}, as the activations have"),
            rows.ty().to_string(),
        ),
    }
}

/// Checks the effect of a layer on activations, and the outer tensors that it uses.
fn check_stage(stage: &StageFunction, x: Tensor) -> Result<(), TraceErrorKind> {
    let (expected, found) = (stage.type_of_part(x.ty()), stage.output_type().cloned());
    if found.as_ref() != Some(&expected) {
        let what = match stage.is_mapped() {
            true => "the activations that the layers of a pipeline return, stages first".to_owned(),
            false => "the activations that the layers of a pipeline return".to_owned(),
        };
        let found = found.map(|ty| ty.to_string()).unwrap_or_default();
        return Err(TraceErrorKind::Mismatch { what, expected: expected.to_string(), found });
    }
    check_captured(&stage.captured, "layer", "a weight")
}

/// Refuses outer tensors into which a gradient would have to flow; `instead` names what to make of them.
fn check_captured(captured: &[Tensor], closure: &str, instead: &str) -> Result<(), TraceErrorKind> {
    match captured.iter().find(|tensor| tensor.dtype().is_float()) {
        None => Ok(()),
        Some(tensor) => Err(TraceErrorKind::Other(format!(
            "the {closure} of a pipeline uses an outer tensor of type {}, into which no gradient could flow: make it {instead}, or pass \
             it as rows",
            tensor.ty()
        ))),
    }
}

/// Returns an example of an iteration's inputs. Only its types matter.
fn example<W, X>(options: &PipelineOptions, weights: &W, input: &PipelineInput<X>) -> StageInputs
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
{
    let first = usize::from(options.parts() > 1);
    let part = |tensor: &Tensor| {
        let dims = tensor.dims();
        zeros(tensor.dtype(), [&[options.stages, dims[0] / options.microbatches], &dims[1..]].concat())
    };
    let numbers = zeros(DType::S32, [options.stages]);
    StageInputs {
        weights: weights.leaves().iter().map(|weight| zeros(weight.dtype(), &weight.dims()[first..])).collect(),
        x: part(&input.x),
        rows: input.rows.leaves().iter().map(part).collect(),
        first_layer: numbers,
        microbatch: numbers,
    }
}

/// `[B, ..]` as `[S, M/S, mb, ..]`, where microbatches fill the slots.
fn split_rows(options: &PipelineOptions, rows: Tensor) -> Tensor {
    let &PipelineOptions { stages, microbatches, .. } = options;
    let dims = rows.dims();
    let cut = [stages, dims[0] / microbatches, microbatches / stages];
    let order: Vec<i32> = [0, 2, 1].into_iter().chain(3..dims.len() as i32 + 2).collect();
    rows.reshape([&cut, &dims[1..]].concat()).transpose(&order[..])
}

/// `[B, ..]` as `[M, mb, ..]`, where microbatches do not fill the slots.
fn rows_by_microbatch(options: &PipelineOptions, rows: Tensor) -> Tensor {
    let dims = rows.dims();
    let cut = [dims[0] / options.microbatches, options.microbatches];
    let order: Vec<i32> = [1, 0].into_iter().chain(2..dims.len() as i32 + 1).collect();
    rows.reshape([&cut, &dims[1..]].concat()).transpose(&order[..])
}

/// Inputs as they enter a pipeline: `[S, M/S, mb, ..]`. Where microbatches do not fill the slots, there are zeros
/// behind the last, and microbatch `m` has the rows `row M + m`.
fn into_slots(options: &PipelineOptions, x: Tensor, names: &AxisNames, place: Place) -> Tensor {
    let &PipelineOptions { stages, microbatches, .. } = options;
    let split = match microbatches.is_multiple_of(stages) {
        true => split_rows(options, x),
        false => {
            let (rows, slots) = (rows_by_microbatch(options, x), microbatches.div_ceil(stages));
            let padded = rows.pad(0, 0, (stages * slots - microbatches) as i64, 0.0);
            // The rows can be padded, and cut again on the way back, only while they are whole.
            let whole = [&[Name::new("")], &names[1..]].concat();
            let padded = label(padded, WithAxes::new(whole.into()), place);
            padded.reshape([&[stages, slots], without_first(&rows.dims(), 1)].concat())
        }
    };
    let names = [&names[..1], &[Name::new("")], &names[1..]].concat();
    label(split, WithAxes::new(names.into()), place)
}

/// Dimensions without the first ones; a tensor that stands for an error has none.
fn without_first(dims: &[usize], count: usize) -> &[usize] {
    dims.get(count..).unwrap_or_default()
}

/// Results as they have left a pipeline, `[S, M/S, mb, ..]`, as a batch like `x`.
fn out_of_slots(options: &PipelineOptions, io: Tensor, x: Tensor, names: &AxisNames, place: Place) -> Tensor {
    // With one repeat, results take the slots that inputs leave, and the first is ready after `lag` iterations.
    let io = if options.repeats == 1 { in_order(options, io, options.lag()) } else { io };
    if !options.microbatches.is_multiple_of(options.stages) {
        let dims = io.dims();
        let all = io.reshape([&[dims[0] * dims[1]], without_first(&dims, 2)].concat());
        // The rows can be cut only while they are whole.
        let whole = [&[Name::new("")], &names[1..]].concat();
        let rows = label(all, WithAxes::new(whole.into()), place).slice(0, 0..options.microbatches);
        let order: Vec<i32> = [1, 0].into_iter().chain(2..rows.rank() as i32).collect();
        return rows.transpose(&order[..]).reshape(x.dims());
    }
    let order: Vec<i32> = [0, 2, 1].into_iter().chain(3..io.rank() as i32).collect();
    io.transpose(&order[..]).reshape(x.dims())
}

/// `[S, M/S, mb, ..]`, whose first slot was written `late` iterations after the first.
fn in_order(options: &PipelineOptions, io: Tensor, late: usize) -> Tensor {
    match late % options.microbatches.div_ceil(options.stages) {
        0 => io,
        late => io.roll(1, -(late as i64)),
    }
}

/// Rows by microbatches, `[M, mb, ..]`.
fn by_microbatch(options: &PipelineOptions, rows: Tensor) -> Tensor {
    if !options.microbatches.is_multiple_of(options.stages) {
        return rows_by_microbatch(options, rows);
    }
    let split = split_rows(options, rows);
    split.reshape([&[options.microbatches], &split.dims()[2..]].concat())
}

/// Rows `[M, mb, ..]`, the same on every stage.
fn rows_of_all(names: &AxisNames, all: Tensor, place: Place) -> Tensor {
    let other = vec![Name::new(""); all.rank() - 2];
    label(all, WithAxes::new([&[Name::new(""), names[1]], &other[..]].concat().into()), place)
}

/// Rows `[S, M, mb, ..]`; every stage has all.
fn rows_of_stages(options: &PipelineOptions, names: &AxisNames, rows: Tensor, place: Place) -> Tensor {
    let spread = on_every_stage(options, by_microbatch(options, rows));
    let other = vec![Name::new(""); spread.rank() - 3];
    let names = [&[names[0], Name::new(""), names[1]], &other[..]].concat();
    label(spread, WithAxes::new(names.into()), place)
}

/// `[..]` as `[S, ..]`.
fn on_every_stage(options: &PipelineOptions, x: Tensor) -> Tensor {
    let dims = [&[options.stages], &x.dims()[..]].concat();
    let axes: Vec<i32> = (1..dims.len() as i32).collect();
    x.broadcast_like(zeros(x.dtype(), &dims), &axes[..])
}

/// Zeros like these.
fn zeros_of(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.zeros_like()).collect()
}

/// A pipeline whose layer has been traced.
struct Program<'a> {
    options: &'a PipelineOptions,
    stage: &'a StageFunction,
    weights: &'a Weights<'a>,
    names: &'a AxisNames,
    place: Place,
}

/// Inputs: stacked weights, activations in slots, rows, and what else the layer uses.
type Inputs = [Vec<Tensor>; 4];

impl Program<'_> {
    /// Results in slots, and sums of auxiliary values; with the backward pass written out by hand.
    fn differentiable(&self, inputs: Inputs) -> (Tensor, Vec<Tensor>) {
        let halves: RefCell<Option<StageHalves>> = RefCell::new(None);
        custom_vjp(
            inputs,
            |[weights, io, rows, captured]| {
                let machine = self.machine(None, rows, captured);
                let weights = self.weights.before_phases(weights);
                let (state, _) = machine.run_all(&weights, io[0]);
                self.results(state).0
            },
            |[weights, io, rows, captured]| {
                let found = self.stage.differentiate(false);
                let machine = self.machine(found.as_ref(), rows.clone(), captured.clone());
                let used = self.weights.before_phases(weights.clone());
                let (state, mut kept) = machine.run_all(&used, io[0]);
                if self.options.weights == WeightPlan::GatherOnce && self.options.keep_gathered {
                    kept = used;
                }
                let (results, stash) = self.results(state);
                drop(machine);
                *halves.borrow_mut() = found;
                (results, [weights, rows, captured, kept, stash])
            },
            |[weights, rows, captured, kept, stash], (io, aux)| {
                let others = (zeros_of(&rows), zeros_of(&captured));
                let halves = halves.borrow();
                // Without halves, an error has been noted.
                let Some(halves) = halves.as_ref() else { return [zeros_of(&weights), vec![io], others.0, others.1] };
                let machine = self.machine(None, rows, captured);
                let (io, weights, kept) = self.weights_again(weights, kept, io);
                let aux = aux.iter().map(|&aux| on_every_stage(self.options, aux)).collect();
                let state = machine.start_back(io, aux, stash);
                let (state, sums) = Backward { machine: &machine, halves, stacked: &weights, kept }.run(state);
                [in_types_of(&weights, sums), vec![state.io], others.0, others.1]
            },
        )
    }

    /// Returns `io`, the stacked weights for the backward pass, and the gathered weights of each repeat if they have
    /// been kept. A gather that is repeated waits for the cotangents, and so is not merged with the gather of the
    /// forward pass.
    fn weights_again(
        &self,
        weights: Vec<Tensor>,
        kept: Vec<Tensor>,
        io: Tensor,
    ) -> (Tensor, Vec<Tensor>, Option<Kept>) {
        if kept.is_empty() {
            let mut together = trace::barrier(&[&[io], &weights[..]].concat(), self.place);
            let weights = together.split_off(1);
            return (together[0], self.weights.before_phases(weights), None);
        }
        match self.options.weights {
            WeightPlan::GatherOnce => (io, kept, None),
            _ => {
                let kept = Kept::from_leaves(self.options, weights.len(), &kept);
                (io, weights, Some(kept))
            }
        }
    }

    fn machine<'b>(&'b self, halves: Option<&'b StageHalves>, rows: Vec<Tensor>, captured: Vec<Tensor>) -> Machine<'b> {
        let &Program { options, stage, weights, names, place } = self;
        let rows = rows.into_iter().map(|rows| rows_of_stages(options, names, rows, place)).collect();
        Machine { options, stage, halves, weights, names, captured, rows, place }
    }

    /// Takes the last state apart: results and sums of auxiliary values, and the residuals that are kept.
    fn results(&self, state: State<Tensor>) -> ((Tensor, Vec<Tensor>), Vec<Tensor>) {
        let sums = state.aux.iter().map(|aux| aux.sum(0)).collect();
        ((state.io, sums), state.stash)
    }
}
