//! Pipelines whose stages all do the same in every iteration: GPipe, and circular ones. A stage in a bubble computes on
//! whatever is there.
//!
//! | module | what it says |
//! |---|---|
//! | `phases` | which stage works on what, and when |
//! | `iteration` | one iteration, and its transpose |
//! | `weight_window` | the source of an iteration's weights, and the destination of their cotangents |
//! | `forward`, `backward` | all iterations, phase by phase |

mod backward;
mod forward;
mod iteration;
mod phases;
mod weight_window;

use std::cell::RefCell;
use std::panic::Location;

pub use phases::{IterationPhase, Task, WeightUse};

use backward::Backward;
use forward::KeptWeights;
use iteration::{Machine, State};

use super::batch_slots::{by_microbatch, into_slots, on_every_stage, out_of_slots};
use super::input::{stage_names, trace_stage};
use super::stage::{LayerPlace, STAGE, StageFunction, StageHalves};
use super::stage_weights::{StageWeights, in_types_of, zeros_of};
use super::{PipelineInput, PipelineOptions, StackedWeights, WeightPlan};
use crate::ir::{AxisNames, Name};
use crate::ops::WithAxes;
use crate::trace::{self, Tensor, Tree, custom_vjp, refill};

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
/// Schedules in which stages [branch](super::Schedule::branches) need
/// [`pipeline_with_loss`](super::pipeline_with_loss). With the others, layers also run in bubbles, on whatever values
/// are there. Their results affect neither values nor gradients, not even if they are NaN or infinite.
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
    let (stage, aux) = match trace_stage(options, (&stacked, &input), false, layer, place) {
        (Some(stage), aux) => (stage, aux),
        (None, aux) => return (input.x, refill(&aux, &mut std::iter::empty())),
    };
    let names = stage_names(&input.names);
    let weights = StageWeights::new(options, &stacked, (STAGE, &input.names));
    let program = TracedPipeline { options, stage: &stage, weights: &weights, names: &names };
    // From here on, every line but that of the call is the library's, not the user's.
    let (x, sums) = trace::composite(place, || {
        let io = into_slots(options, input.x, &names);
        let inputs = [stacked.weights.leaves(), vec![io], input.rows.leaves(), stage.captured.clone()];
        let (io, sums) = program.differentiable(inputs);
        (out_of_slots(options, io, input.x, &names), sums)
    });
    (x, refill(&aux, &mut sums.into_iter()))
}

/// Rows `[S, M, mb, ..]`; every stage has all of them.
fn rows_of_stages(options: &PipelineOptions, names: &AxisNames, rows: Tensor) -> Tensor {
    let spread = on_every_stage(options, by_microbatch(options, rows));
    let other = vec![Name::new(""); spread.rank() - 3];
    let names = [&[names[0], Name::new(""), names[1]], &other[..]].concat();
    spread.with_logical_axes(WithAxes::new(names.into()))
}

/// A pipeline whose layer has been traced.
struct TracedPipeline<'a> {
    options: &'a PipelineOptions,
    stage: &'a StageFunction,
    weights: &'a StageWeights<'a>,
    names: &'a AxisNames,
}

/// Inputs: stacked weights, activations in slots, rows, and what else the layer uses.
type LayerInputs = [Vec<Tensor>; 4];

impl TracedPipeline<'_> {
    /// Results in slots, and sums of auxiliary values; with the backward pass written out by hand.
    fn differentiable(&self, inputs: LayerInputs) -> (Tensor, Vec<Tensor>) {
        let halves: RefCell<Option<StageHalves>> = RefCell::new(None);
        custom_vjp(
            inputs,
            |[weights, io, rows, captured]| {
                let machine = self.machine(None, rows, captured);
                let weights = self.weights.before_phases(weights);
                let (state, _) = machine.run_all(&weights, io[0]);
                results(state).0
            },
            |[weights, io, rows, captured]| {
                let found = self.stage.differentiate();
                let machine = self.machine(found.as_ref(), rows.clone(), captured.clone());
                let used = self.weights.before_phases(weights.clone());
                let (state, mut kept) = machine.run_all(&used, io[0]);
                if self.options.weights == WeightPlan::GatherOnce && self.options.keep_gathered {
                    kept = used;
                }
                let (results, stash) = results(state);
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
    ) -> (Tensor, Vec<Tensor>, Option<KeptWeights>) {
        if kept.is_empty() {
            let mut together = trace::barrier(&[&[io], &weights[..]].concat());
            let weights = together.split_off(1);
            return (together[0], self.weights.before_phases(weights), None);
        }
        match self.options.weights {
            WeightPlan::GatherOnce => (io, kept, None),
            _ => {
                let kept = KeptWeights::from_leaves(self.options, weights.len(), &kept);
                (io, weights, Some(kept))
            }
        }
    }

    fn machine<'b>(&'b self, halves: Option<&'b StageHalves>, rows: Vec<Tensor>, captured: Vec<Tensor>) -> Machine<'b> {
        let &TracedPipeline { options, stage, weights, names } = self;
        let rows = rows.into_iter().map(|rows| rows_of_stages(options, names, rows)).collect();
        Machine { options, stage, halves, weights, names, captured, rows }
    }
}

/// The parts of the last state: results and sums of auxiliary values, and the residuals that are kept.
fn results(state: State<Tensor>) -> ((Tensor, Vec<Tensor>), Vec<Tensor>) {
    let sums = state.aux.iter().map(|aux| aux.sum(0)).collect();
    ((state.io, sums), state.stash)
}
