//! A pipeline and the loss behind it.

use std::panic::Location;

use super::one_f_one_b::{Found, LossFunction, Pass, rows_of_all};
use super::stage::{STAGE, StageFunction};
use super::weights::{Number, Weights, Window, in_types_of};
use super::{
    LayerPlace, LossAt, PipelineInput, PipelineOptions, Program, Schedule, StackedWeights, by_microbatch,
    check_captured, in_order, into_slots, out_of_slots, pipeline, stage_names, trace_stage, zeros_of,
};
use crate::ir::{AxisNames, DType, Name};
use crate::trace::{self, Place, Tensor, TraceErrorKind, Tree, arange, custom_vjp, full, refill, scan, zeros};

/// The loss behind a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineLoss<H> {
    /// Its weights, and the logical names of their dimensions; they are not stacked.
    pub weights: StackedWeights<H>,
    /// The logical names of the activations that it gets: where the stages are to split the work on it, one of these
    /// has to be a name that the rules split over `stage`.
    pub names: Vec<&'static str>,
    /// What is added to the loss of each auxiliary value of the layers: this many times the sum of its elements, over
    /// layers and microbatches. Empty for nothing.
    pub penalties: Vec<f64>,
}

/// As [`pipeline`], with a loss of the results: `loss` gets activations, its weights, and their rows, and returns a
/// scalar. It is a sum over rows, so it may be computed microbatch by microbatch. Returns the loss with all penalties,
/// and the auxiliary values, through which only the gradient of the penalties flows.
///
/// With the schedule 1F1B the loss of a microbatch and its gradient are computed while others are on their way;
/// otherwise the loss is that of the whole batch.
#[track_caller]
pub fn pipeline_with_loss<W, X, A, H>(
    options: &PipelineOptions,
    stacked: StackedWeights<W>,
    input: PipelineInput<X>,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    head: PipelineLoss<H>,
    loss: impl FnOnce(Tensor, H, X) -> Tensor,
) -> (Tensor, A)
where
    W: Tree<Leaf = Tensor> + Clone,
    X: Tree<Leaf = Tensor> + Clone,
    A: Tree<Leaf = Tensor>,
    H: Tree<Leaf = Tensor>,
{
    let place = Location::caller();
    if options.schedule == Schedule::OneForwardOneBackward {
        return in_one_loop(options, &stacked, &input, layer, (&head, loss), place);
    }
    let rows = input.rows.clone();
    let (x, aux) = pipeline(options, stacked, input, layer);
    let leaves = aux.leaves();
    let value = loss(x, head.weights.weights, rows);
    let value = penalized(value, &head.penalties, &leaves);
    let mut seen = leaves.iter().map(|aux| aux.stop_gradient());
    (value, refill(&aux, &mut seen))
}

fn in_one_loop<W, X, A, H>(
    options: &PipelineOptions,
    stacked: &StackedWeights<W>,
    input: &PipelineInput<X>,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    (head, loss): (&PipelineLoss<H>, impl FnOnce(Tensor, H, X) -> Tensor),
    place: Place,
) -> (Tensor, A)
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
    H: Tree<Leaf = Tensor>,
{
    let failed = |aux: &A| (input.x, refill(aux, &mut std::iter::empty()));
    let (stage, aux) = trace_stage(options, LossAt::InLoop, stacked, input, layer, place);
    let Some(stage) = stage else { return failed(&aux) };
    let Some(loss) = trace_loss(options, input, head, loss, place) else { return failed(&aux) };
    let names = stage_names(&input.names);
    let weights = Weights::new(options, stacked, (STAGE, &input.names), place);
    // The loss is not of any stage: stages may split its rows.
    let loss_weights = Weights::new(options, &head.weights, ("", &head.names), place);
    let program = Program { options, stage: &stage, weights: &weights, names: &names, place };
    let whole = WithLoss { program, loss: &loss, loss_weights: &loss_weights, penalties: &head.penalties };
    let (value, sums) = trace::composite(place, || {
        let io = into_slots(options, input.x, &names, place);
        let (captured, of_loss) = (stage.captured.clone(), loss.captured.clone());
        let head = head.weights.weights.leaves();
        whole.differentiable([stacked.weights.leaves(), vec![io], input.rows.leaves(), captured, head, of_loss])
    });
    (value, refill(&aux, &mut sums.into_iter().map(|aux| aux.stop_gradient())))
}

/// Traces the loss of a microbatch. None after an error, which has been noted.
fn trace_loss<X, H>(
    options: &PipelineOptions,
    input: &PipelineInput<X>,
    head: &PipelineLoss<H>,
    loss: impl FnOnce(Tensor, H, X) -> Tensor,
    place: Place,
) -> Option<LossFunction>
where
    X: Tree<Leaf = Tensor>,
    H: Tree<Leaf = Tensor>,
{
    let part = |tensor: &Tensor| {
        let dims = tensor.dims();
        zeros(tensor.dtype(), [&[dims[0] / options.microbatches], &dims[1..]].concat())
    };
    let weights = head.weights.weights.leaves();
    let rows: Vec<Tensor> = input.rows.leaves().iter().map(part).collect();
    let examples = [&[part(&input.x)], &weights[..], &rows[..]].concat();
    let (graph, captured) = trace::graph_of("loss", &examples, place, |inputs| {
        let mut inputs = inputs.iter().copied();
        let x = refill(&input.x, &mut inputs);
        let weights = refill(&head.weights.weights, &mut inputs);
        let rows = refill(&input.rows, &mut inputs);
        vec![loss(x, weights, rows)]
    })?;
    let names: AxisNames = head.names.iter().map(|name| Name::new(name)).collect();
    let checked =
        check_captured(&captured, "loss", "one of its weights").and_then(|()| match graph.output_types().next() {
            Some(ty) if ty.rank() == 0 && ty.dtype.is_float() => Ok(ty.dtype),
            found => Err(TraceErrorKind::Mismatch {
                what: "the loss of a pipeline".to_owned(),
                expected: "a floating-point scalar".to_owned(),
                found: found.map(|ty| ty.to_string()).unwrap_or_default(),
            }),
        });
    match checked {
        Ok(dtype) => Some(LossFunction { graph, dtype, captured, weight_count: weights.len(), names, place }),
        Err(problem) => {
            trace::fail(problem, place);
            None
        }
    }
}

/// A pipeline with its loss, both traced.
struct WithLoss<'a> {
    program: Program<'a>,
    loss: &'a LossFunction,
    loss_weights: &'a Weights<'a>,
    penalties: &'a [f64],
}

/// Inputs: stacked weights, activations in slots, rows, what else the layer uses; the weights of the loss, and what
/// else it uses.
type Inputs = [Vec<Tensor>; 6];

impl WithLoss<'_> {
    /// The loss and the sums of auxiliary values. Under differentiation, gradients are found in the same pass, and
    /// kept.
    fn differentiable(&self, inputs: Inputs) -> (Tensor, Vec<Tensor>) {
        custom_vjp(
            inputs,
            |inputs| self.forwards(inputs),
            |inputs| {
                let [rows, captured, of_loss] = [&inputs[2], &inputs[3], &inputs[5]].map(|tensors| zeros_of(tensors));
                let (value, aux, [weights, io, head]) = self.both_ways(inputs);
                ((value, aux), [weights, io, head, rows, captured, of_loss])
            },
            |[weights, io, head, rows, captured, of_loss]: Inputs, (value, _)| {
                let scaled = |tensors: &[Tensor]| -> Vec<Tensor> {
                    let scale = |tensor: &Tensor| *tensor * value.convert(tensor.dtype()).broadcast_like(*tensor, []);
                    tensors.iter().map(scale).collect()
                };
                [scaled(&weights), scaled(&io), rows, captured, scaled(&head), of_loss]
            },
        )
    }

    /// The loss of everything, after all of it has gone through.
    fn forwards(&self, [weights, io, rows, captured, head, of_loss]: Inputs) -> (Tensor, Vec<Tensor>) {
        let Program { options, names, place, .. } = self.program;
        let machine = self.program.machine(None, rows.clone(), captured);
        let (state, _) = machine.run_all(&self.program.weights.before_phases(weights), io[0]);
        let sums: Vec<Tensor> = state.aux.iter().map(|aux| aux.sum(0)).collect();
        let dims = io[0].dims();
        let batch = [&[dims[..3].iter().product()], &dims[3..]].concat();
        let x = by_microbatch(options, out_of_slots(options, state.io, zeros(io[0].dtype(), batch)));
        let rows: Vec<Tensor> =
            rows.iter().map(|&rows| rows_of_all(names, by_microbatch(options, rows), place)).collect();
        let head = self.loss_weights.gather(&head, 0, false);
        let nothing = zeros(self.loss.dtype, []);
        let (value, ()) = scan(nothing, arange(DType::S32, options.microbatches), |sum, microbatch| {
            let of_one: Vec<Tensor> = rows.iter().map(|rows| rows.dynamic_index(0, microbatch)).collect();
            (sum + self.loss.value(&of_loss, x.dynamic_index(0, microbatch), &head, &of_one), ())
        });
        (penalized(value, self.penalties, &sums), sums)
    }

    /// The loss, the sums of auxiliary values, and the gradients with respect to weights, inputs and the weights of the
    /// loss.
    fn both_ways(&self, inputs: Inputs) -> (Tensor, Vec<Tensor>, [Vec<Tensor>; 3]) {
        let [weights, io, rows, captured, head, of_loss] = inputs;
        let Program { options, stage, weights: stages, names, place } = self.program;
        let (Some(halves), Some(loss_halves)) = (stage.differentiate(), self.loss.differentiate()) else {
            // An error has been noted.
            return (io[0], Vec::new(), [weights, io, head]);
        };
        let aux = self.cotangents_of_aux(stage);
        let by_microbatch = |&rows: &Tensor| rows_of_all(names, by_microbatch(options, rows), place);
        let rows_of_loss: Vec<Tensor> = rows.iter().map(by_microbatch).collect();
        let machine = self.program.machine(Some(&halves), rows, captured);
        // With one repeat, all plans but that of gathering in every iteration are the same.
        let gathered = match options.weights.slides() {
            true => stages.of_repeat(&weights, Number::Known(0)),
            false => stages.before_phases(weights.clone()),
        };
        let window = Window::One(gathered);
        let pass = Pass {
            machine: &machine,
            halves: &halves,
            loss: self.loss,
            loss_halves: &loss_halves,
            loss_weights: &self.loss_weights.gather(&head, 0, false),
            loss_captured: &of_loss,
            rows: &rows_of_loss,
            window: &window,
            aux: &aux,
        };
        let found = pass.run(io[0]);
        let Found { loss, aux, io, .. } = found;
        let sums: Vec<Tensor> = aux.iter().map(|aux| aux.sum(0)).collect();
        // Cotangents took the slots that inputs left: the first of them after 2 (S - 1) iterations.
        let io = in_order(options, io, 2 * (options.stages - 1));
        let of_weights = in_types_of(&weights, stages.scatter(found.weights, false));
        let of_head = in_types_of(&head, self.loss_weights.scatter(found.loss_weights, false));
        let gradients = [of_weights, vec![io], of_head];
        (penalized(loss, self.penalties, &sums), sums, gradients)
    }

    /// For each auxiliary value, what its penalty's gradient is: `[S, ..]`.
    fn cotangents_of_aux(&self, stage: &StageFunction) -> Vec<Tensor> {
        let penalties = self.penalties.iter().copied().chain(std::iter::repeat(0.0));
        stage.aux_types().zip(penalties).map(|(ty, weight)| full(ty.dtype, &ty.dims, weight)).collect()
    }
}

/// The loss with its penalties on sums of auxiliary values.
fn penalized(loss: Tensor, penalties: &[f64], sums: &[Tensor]) -> Tensor {
    let penalties = penalties.iter().zip(sums).map(|(&weight, sum)| sum.sum(..).convert(loss.dtype()) * weight);
    penalties.fold(loss, |loss, penalty| loss + penalty)
}
