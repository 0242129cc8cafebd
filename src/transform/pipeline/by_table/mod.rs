//! Pipelines whose stages branch: each looks up in a table what it does in a tick, and the loss is in the loop.
//!
//! | module | what it says |
//! |---|---|
//! | `ticks` | the loop that runs a table |
//! | `table_columns` | the numbers of a table as that loop reads them |
//! | `input_ring` | how inputs come to the first stage, and their cotangents go back |
//! | `split_stage` | the backward pass of a stage in two: cotangents of activations now, those of weights later |
//! | `loss_function` | the loss of a microbatch |

mod input_ring;
mod loss_function;
mod split_stage;
mod table_columns;
mod ticks;

pub(super) use input_ring::InputRing;

use loss_function::LossFunction;
use split_stage::SplitStage;
use ticks::{Derivatives, PassResults, Ticks};

use super::batch_slots::{by_microbatch, into_slots};
use super::input::{check_captured, penalized, stage_names, trace_stage};
use super::schedule::{Columns, Placement, Table};
use super::stage::{STAGE, StageFunction};
use super::stage_weights::{RepeatNumber, StageWeights, in_types_of, zeros_of};
use super::{LayerPlace, PipelineError, PipelineInput, PipelineLoss, PipelineOptions, StackedWeights};
use crate::ir::{AxisNames, Name};
use crate::ops::WithAxes;
use crate::trace::{self, CallSite, Tensor, TraceErrorKind, Tree, custom_vjp, refill, stack, zeros};

/// A pipeline with its loss in one loop; `place` is the line of its call.
pub(super) fn in_one_loop<W, X, A, H>(
    options: &PipelineOptions,
    stacked: &StackedWeights<W>,
    input: &PipelineInput<X>,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    (head, loss): (&PipelineLoss<H>, impl FnOnce(Tensor, H, X) -> Tensor),
    place: CallSite,
) -> (Tensor, A)
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
    H: Tree<Leaf = Tensor>,
{
    let failed = |aux: &A| (input.x, refill(aux, &mut std::iter::empty()));
    let (stage, aux) = trace_stage(options, (stacked, input), true, layer, place);
    let Some(stage) = stage else { return failed(&aux) };
    let Some(loss) = trace_loss(options, input, head, loss, place) else { return failed(&aux) };
    let (table, columns) = match options.table().and_then(|table| Ok((Columns::of(&table)?, table))) {
        Ok((columns, table)) => (table, columns),
        Err(problem) => {
            trace::fail(PipelineError::from(problem), place);
            return failed(&aux);
        }
    };
    let names = stage_names(&input.names);
    let weights = StageWeights::new(options, stacked, (STAGE, &input.names));
    // The loss is not of any stage: stages may split its rows.
    let loss_weights = StageWeights::new(options, &head.weights, ("", &head.names));
    let whole = WithLoss {
        options,
        table: &table,
        columns: &columns,
        stage: &stage,
        weights: &weights,
        names: &names,
        loss: &loss,
        loss_weights: &loss_weights,
        penalties: &head.penalties,
    };
    let (value, sums) = trace::composite(place, || {
        let io = into_slots(options, input.x, &names);
        let (captured, of_loss) = (stage.captured.clone(), loss.captured.clone());
        let head = head.weights.weights.leaves();
        whole.differentiable([stacked.weights.leaves(), vec![io], input.rows.leaves(), captured, head, of_loss])
    });
    (value, refill(&aux, &mut sums.into_iter().map(|aux| aux.stop_gradient())))
}

/// Traces the loss of a microbatch. Returns `None` after an error, which has been noted.
fn trace_loss<X, H>(
    options: &PipelineOptions,
    input: &PipelineInput<X>,
    head: &PipelineLoss<H>,
    loss: impl FnOnce(Tensor, H, X) -> Tensor,
    place: CallSite,
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
    let (graph, captured) = trace::graph_at("loss", &examples, place, |inputs| {
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
        Ok(dtype) => Some(LossFunction { graph, dtype, captured, weight_count: weights.len(), names }),
        Err(problem) => {
            trace::fail(problem, place);
            None
        }
    }
}

/// A pipeline with its loss, both traced.
struct WithLoss<'a> {
    options: &'a PipelineOptions,
    table: &'a Table,
    columns: &'a Columns,
    stage: &'a StageFunction,
    weights: &'a StageWeights<'a>,
    names: &'a AxisNames,
    loss: &'a LossFunction,
    loss_weights: &'a StageWeights<'a>,
    penalties: &'a [f64],
}

/// Inputs: stacked weights, activations in slots, rows, what else the layer uses; the weights of the loss, and what
/// else it uses.
type LossInputs = [Vec<Tensor>; 6];

impl WithLoss<'_> {
    /// The loss and the sums of auxiliary values. Under differentiation, gradients are found in the same pass, and
    /// kept.
    fn differentiable(&self, inputs: LossInputs) -> (Tensor, Vec<Tensor>) {
        custom_vjp(
            inputs,
            |inputs| self.forwards(inputs),
            |inputs| {
                let [rows, captured, of_loss] = [&inputs[2], &inputs[3], &inputs[5]].map(|tensors| zeros_of(tensors));
                let (value, aux, [weights, io, head]) = self.both_ways(inputs);
                ((value, aux), [weights, io, head, rows, captured, of_loss])
            },
            |[weights, io, head, rows, captured, of_loss]: LossInputs, (value, _)| {
                let scaled = |tensors: &[Tensor]| -> Vec<Tensor> {
                    let scale = |tensor: &Tensor| *tensor * value.convert(tensor.dtype()).broadcast_like(*tensor, []);
                    tensors.iter().map(scale).collect()
                };
                [scaled(&weights), scaled(&io), rows, captured, scaled(&head), of_loss]
            },
        )
    }

    /// The loss and the sums of auxiliary values.
    fn forwards(&self, inputs: LossInputs) -> (Tensor, Vec<Tensor>) {
        let PassResults { loss, aux, .. } = self.run(inputs, None);
        let sums: Vec<Tensor> = aux.iter().map(|aux| aux.sum(0)).collect();
        (penalized(loss, self.penalties, &sums), sums)
    }

    /// The loss, the sums of auxiliary values, and the gradients with respect to weights, inputs and the weights of the
    /// loss.
    fn both_ways(&self, inputs: LossInputs) -> (Tensor, Vec<Tensor>, [Vec<Tensor>; 3]) {
        let [weights, io, _, _, head, _] = inputs.clone();
        let Some(derivatives) = self.differentiate() else {
            // An error has been noted.
            return (io[0], Vec::new(), [weights, io, head]);
        };
        let PassResults { loss, aux, weights: of_weights, io: of_io, loss_weights } =
            self.run(inputs, Some(&derivatives));
        let sums: Vec<Tensor> = aux.iter().map(|aux| aux.sum(0)).collect();
        let of_weights = self.scattered(&weights, of_weights);
        let of_head = in_types_of(&head, self.loss_weights.scatter(loss_weights, false));
        let gradients = [of_weights, of_io.into_iter().collect(), of_head];
        (penalized(loss, self.penalties, &sums), sums, gradients)
    }

    fn differentiate(&self) -> Option<Derivatives> {
        let stage = self.stage.differentiate()?;
        let split = if self.table.shape.split { Some(SplitStage::of(self.stage, &stage)?) } else { None };
        Some(Derivatives { stage, split, loss: self.loss.differentiate()? })
    }

    /// The weights of a chunk, `[S, P, ..]`, as stages use them, from those in the order of the layers; or the other
    /// way round. The second chunk of a V goes through the stages from the last to the first.
    fn moved(&self, chunk: usize, weights: Vec<Tensor>) -> Vec<Tensor> {
        match (self.table.shape.placement, chunk) {
            (Placement::Loop, _) | (Placement::Vee, 0) => weights,
            (Placement::Vee, _) => weights.into_iter().map(|weight| weight.reverse(0)).collect(),
        }
    }

    /// Cotangents of the stacked weights, from the sums of each chunk.
    fn scattered(&self, weights: &[Tensor], sums: Vec<Vec<Tensor>>) -> Vec<Tensor> {
        let of_chunk = |(chunk, sums)| {
            let own = in_types_of(weights, self.weights.scatter(sums, false));
            self.moved(chunk, own)
        };
        let chunks: Vec<Vec<Tensor>> = sums.into_iter().enumerate().map(of_chunk).collect();
        match &chunks[..] {
            [only] => only.clone(),
            _ => {
                let of_weight = |weight| chunks.iter().map(|chunk| chunk[weight]).collect::<Vec<Tensor>>();
                (0..weights.len()).map(|weight| stack(&of_weight(weight), 0)).collect()
            }
        }
    }

    /// All ticks; with the backward pass, if the derivatives are given.
    fn run(&self, inputs: LossInputs, derivatives: Option<&Derivatives>) -> PassResults {
        let [weights, io, rows, captured, head, of_loss] = inputs;
        let &WithLoss { options, columns, stage, names, loss, penalties, .. } = self;
        let rows: Vec<Tensor> = rows.iter().map(|&rows| rows_of_all(names, by_microbatch(options, rows))).collect();
        let of_chunk = |chunk: usize| {
            let own = self.moved(chunk, self.weights.at_rest(&weights, RepeatNumber::Known(chunk)));
            self.weights.gather(&own, 0, false)
        };
        let weights: Vec<Vec<Tensor>> = (0..options.chunks).map(of_chunk).collect();
        let ticks = Ticks {
            options,
            shape: self.table.shape,
            columns,
            turns: &InputRing::of(columns, self.table.shape),
            stage,
            derivatives,
            captured: &captured,
            loss,
            loss_weights: &self.loss_weights.gather(&head, 0, false),
            loss_captured: &of_loss,
            rows: &rows,
            weights: &weights,
            penalties,
            names,
        };
        ticks.run(io[0])
    }
}

/// Rows `[M, mb, ..]`, the same on every stage.
fn rows_of_all(names: &AxisNames, all: Tensor) -> Tensor {
    let other = vec![Name::new(""); all.rank() - 2];
    all.with_logical_axes(WithAxes::new([&[Name::new(""), names[1]], &other[..]].concat().into()))
}
