//! The work of all stages in an iteration: the user's layer, mapped over the stages.
//!
//! Where stages branch, no function runs on all stages at once: it is that of one stage, and the dimension of stages is
//! missing from all types here.

use std::ops::Range;

use super::PipelineOptions;
use crate::autodiff::Halves;
use crate::ir::{DType, Graph, TensorType};
use crate::trace::{
    self, CallSite, Tensor, Tree, VmapOptions, arange, checkpoint, custom_vjp, fail_internal, refill, scan, stack,
    vmap_with, zeros,
};

/// The logical axis that runs over the stages in activations.
pub const STAGE: &str = "activation_stage";

/// The place of a call of the layer: its number in the stack and that of the part of the batch; both `s32[]`. Random
/// numbers that depend on these, and on positions, are the same however the layers are run.
#[derive(Clone, Copy, Debug)]
pub struct LayerPlace {
    /// The number of the layer in the whole stack.
    pub layer: Tensor,
    /// The number of the microbatch.
    pub microbatch: Tensor,
}

/// Everything that goes into an iteration of all stages.
pub(super) struct StageInputs {
    /// For each weight `[S, P, ..]` (without P if that is 1).
    pub weights: Vec<Tensor>,
    /// `[S, mb, ..]`.
    pub x: Tensor,
    /// For each tensor of rows `[S, mb, ..]`.
    pub rows: Vec<Tensor>,
    /// The number of each stage's first layer, `s32[S]`.
    pub first_layer: Tensor,
    /// The number of each stage's microbatch, `s32[S]`.
    pub microbatch: Tensor,
}

impl StageInputs {
    fn leaves(&self) -> Vec<Tensor> {
        [&self.weights[..], &[self.x], &self.rows, &[self.first_layer, self.microbatch]].concat()
    }
}

/// The results of an iteration, with the values for its backward pass beside the activations that it began with.
pub(super) struct Iteration {
    /// Activations `[S, mb, ..]`.
    pub(super) y: Tensor,
    /// Auxiliary values `[S, ..]`.
    pub(super) aux: Vec<Tensor>,
    /// The values that its backward pass needs, all `[S, ..]`.
    pub(super) residuals: Vec<Tensor>,
}

/// The traced function of an iteration, from [`StageInputs`] to activations `[S, mb, ..]` and auxiliary values `[S,
/// ..]`.
pub(super) struct StageFunction {
    /// The layers of one stage: outer tensors that they use, then [`StageInputs`] without stages.
    one: Graph,
    /// The same, mapped over the stages, or for one stage.
    all: Graph,
    /// Outer tensors that the layer uses.
    pub(super) captured: Vec<Tensor>,
    /// The position of the activations among the graph's inputs: after captured tensors and weights.
    x_position: usize,
    /// The number of stages over which it is mapped; `None` if it is the function of one stage.
    stages: Option<usize>,
    /// The number of leading dimensions of weights before those of one layer's weights: 1 where a stage has several
    /// layers.
    layer_dims: usize,
}

/// The halves of the derivative of a [`StageFunction`].
pub(super) struct StageHalves {
    /// The halves of the function of one stage.
    pub(super) halves: Halves,
    /// The forward half, mapped over the stages.
    forward: Graph,
    /// The backward half, mapped over the stages.
    backward: Graph,
}

/// A graph mapped over the stages. `shared` says of each input whether all stages have the same.
fn over_stages(one: &Graph, shared: &[bool], stages: Option<usize>) -> Option<Graph> {
    let Some(stages) = stages else { return Some(one.clone()) };
    let input = |(ty, shared): (&TensorType, &bool)| match shared {
        true => zeros(ty.dtype, &ty.dims),
        false => zeros(ty.dtype, [&[stages], &ty.dims[..]].concat()),
    };
    let examples: Vec<Tensor> = one.input_types().zip(shared).map(input).collect();
    let axes: Vec<Option<i32>> = shared.iter().map(|shared| (!shared).then_some(0)).collect();
    let options = VmapOptions { size: Some(stages), ..VmapOptions::default() }.inputs(axes).named(STAGE);
    let mapped = trace::graph_of("stages", &examples, |inputs| {
        vmap_with(options, inputs.to_vec(), |inputs| trace::inline(one, &inputs))
    });
    mapped.map(|(graph, _)| graph)
}

impl StageFunction {
    /// Traces the layer, once for all iterations; `example` has the types of an iteration's inputs. The function is
    /// `None` if that fails, which has been noted.
    pub(super) fn trace<W, X, A>(
        options: &PipelineOptions,
        (weights, rows): (&W, &X),
        example: &StageInputs,
        place: CallSite,
        layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    ) -> (Option<StageFunction>, A)
    where
        W: Tree<Leaf = Tensor>,
        X: Tree<Leaf = Tensor>,
        A: Tree<Leaf = Tensor>,
    {
        let weight_count = example.weights.len();
        let examples: Vec<Tensor> =
            example.leaves().into_iter().map(|tensor| zeros(tensor.dtype(), &tensor.dims()[1..])).collect();
        let mut shape = None;
        let traced = trace::graph_at("layers", &examples, place, |inputs| {
            let mut inputs = inputs.iter().copied();
            let weights = refill(weights, &mut inputs.by_ref().take(weight_count));
            let x = refill(&example.x, &mut inputs);
            let rows = refill(rows, &mut inputs);
            let (layer_number, microbatch) = refill(&(example.x, example.x), &mut inputs);
            let number = LayerPlace { layer: layer_number, microbatch };
            let (x, aux) = one_stage(options, x, weights, rows, number, &layer);
            let mut results = vec![x];
            results.extend(aux.leaves());
            shape = Some(aux);
            results
        });
        let Some(aux) = shape else { trace::unreachable_body() };
        let stage = traced.and_then(|(one, captured)| {
            let x_position = captured.len() + weight_count;
            let shared: Vec<bool> = (0..one.inputs().len()).map(|input| input < captured.len()).collect();
            let stages = (!options.schedule.branches()).then_some(options.stages);
            let all = trace::composite(place, || over_stages(&one, &shared, stages))?;
            let layer_dims = usize::from(options.layers_per_stage > 1);
            Some(StageFunction { one, all, captured, x_position, stages, layer_dims })
        });
        (stage, aux)
    }

    /// The types of the auxiliary values.
    pub(super) fn aux_types(&self) -> impl Iterator<Item = &TensorType> {
        self.all.output_types().skip(1)
    }

    /// Whether it is mapped over the stages.
    pub(super) fn is_mapped(&self) -> bool {
        self.stages.is_some()
    }

    /// A type `[S, ..]` as this function has it.
    pub(super) fn type_of_part(&self, mut ty: TensorType) -> TensorType {
        if !self.is_mapped() {
            ty.dims.remove(0);
        }
        ty
    }

    /// The type of the activations after the layers.
    pub(super) fn output_type(&self) -> Option<&TensorType> {
        self.all.output_types().next()
    }

    /// Where the weights stand among the inputs of the function of one stage; the activations come behind them.
    pub(super) fn weight_inputs(&self) -> Range<usize> {
        self.captured.len()..self.x_position
    }

    /// The function of one stage, and the number of leading dimensions of its weights before those of one layer's.
    pub(super) fn of_one(&self) -> (&Graph, usize) {
        (&self.one, self.layer_dims)
    }

    /// Differentiates it, with respect to weights and activations.
    pub(super) fn differentiate(&self) -> Option<StageHalves> {
        let captured = self.captured.len();
        let inputs = 0..self.one.inputs().len();
        let active: Vec<bool> = inputs.clone().map(|input| (captured..=self.x_position).contains(&input)).collect();
        let halves = trace::differentiate(&self.one, &active)?;
        let shared: Vec<bool> = inputs.map(|input| input < captured).collect();
        let forward = over_stages(halves.forward(), &shared, self.stages)?;
        let residuals = vec![false; halves.residual_types().count()];
        let read = halves.arguments(&shared, &residuals, &vec![false; self.one.outputs().len()]);
        let backward = over_stages(halves.backward(), &read, self.stages)?;
        Some(StageHalves { halves, forward, backward })
    }

    /// Runs an iteration; under differentiation, `halves` are those of [`StageFunction::differentiate`]. `captured`
    /// stands for the outer tensors that the layer uses.
    pub(super) fn run(&self, halves: Option<&StageHalves>, captured: &[Tensor], inputs: &StageInputs) -> Iteration {
        let graph = halves.map_or(&self.all, |halves| &halves.forward);
        let mut results = trace::inline(graph, &[captured, &inputs.leaves()].concat()).into_iter();
        let count = self.all.outputs().len() - 1;
        let y = refill(&inputs.x, &mut results);
        let aux = results.by_ref().take(count).collect();
        let mut residuals: Vec<Tensor> = results.collect();
        if halves.is_some_and(|halves| self.reads_x(halves)) {
            residuals.push(inputs.x);
        }
        Iteration { y, aux, residuals }
    }

    fn reads_x(&self, halves: &StageHalves) -> bool {
        halves.halves.reads_input(self.x_position)
    }

    /// The types of [`Iteration::residuals`].
    pub(super) fn residual_types(&self, halves: &StageHalves) -> Vec<TensorType> {
        let x = self.all.input_types().nth(self.x_position).filter(|_| self.reads_x(halves));
        halves.forward.output_types().skip(self.all.outputs().len()).chain(x).cloned().collect()
    }

    /// The cotangents of the weights and of the activations that an iteration began with. The activations in `inputs`
    /// are not read, because they are among the residuals.
    pub(super) fn run_back(
        &self,
        halves: &StageHalves,
        captured: &[Tensor],
        inputs: StageInputs,
        iteration: Iteration,
    ) -> (Vec<Tensor>, Tensor) {
        let weights = inputs.weights.clone();
        let (arguments, x) = self.backward_arguments(halves, captured, inputs, iteration);
        let results = trace::inline(&halves.backward, &arguments);
        let of_weights = self.weight_gradients(halves.halves.active(), &results, &weights, |_| true);
        let of_x = gradient_among(halves.halves.active(), &results, self.x_position);
        (of_weights, of_x.unwrap_or_else(|| x.zeros_like()))
    }

    /// The cotangents of the weights that are asked for, by their place. `results` are the cotangents of `inputs`.
    pub(super) fn weight_gradients(
        &self,
        inputs: &[usize],
        results: &[Tensor],
        weights: &[Tensor],
        asked: impl Fn(usize) -> bool,
    ) -> Vec<Tensor> {
        let asked = self.weight_inputs().zip(weights).enumerate().filter(|(index, _)| asked(*index));
        let gradient = |(_, (input, weight)): (usize, (usize, &Tensor))| {
            gradient_among(inputs, results, input).unwrap_or_else(|| weight.zeros_like())
        };
        asked.map(gradient).collect()
    }

    /// The arguments of the backward half, and the activations that the iteration began with.
    pub(super) fn backward_arguments(
        &self,
        halves: &StageHalves,
        captured: &[Tensor],
        inputs: StageInputs,
        iteration: Iteration,
    ) -> (Vec<Tensor>, Tensor) {
        let Iteration { y, aux, mut residuals } = iteration;
        let missing = || fail_internal("a stage of a pipeline", "its activations among the residuals");
        let x = if self.reads_x(halves) { residuals.pop().unwrap_or_else(missing) } else { y };
        let inputs = StageInputs { x, ..inputs };
        let cotangents = [&[y], &aux[..]].concat();
        (halves.halves.arguments(&[captured, &inputs.leaves()].concat(), &residuals, &cotangents), x)
    }
}

/// The cotangent of an input of a function, among those of these inputs.
pub(super) fn gradient_among(inputs: &[usize], gradients: &[Tensor], input: usize) -> Option<Tensor> {
    inputs.iter().position(|&other| other == input).map(|at| gradients[at])
}

/// The slices of the leading dimension. Their cotangents are put together again, rather than each padded and all added:
/// so they can stay partial sums.
fn unstack(stacked: Tensor, count: usize) -> Vec<Tensor> {
    let apart = move |stacked: Tensor| -> Vec<Tensor> {
        let dims = stacked.dims();
        (0..count).map(|index| stacked.slice(0, index..index + 1).reshape(&dims[1..])).collect()
    };
    custom_vjp(stacked, apart, move |stacked| (apart(stacked), ()), |(), cotangents| stack(&cotangents, 0))
}

/// The layers of one stage, one after the other; auxiliary values are added up.
fn one_stage<W, X, A>(
    options: &PipelineOptions,
    x: Tensor,
    weights: W,
    rows: X,
    first: LayerPlace,
    layer: &impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
) -> (Tensor, A)
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
{
    let row_leaves = rows.leaves();
    let one_layer = |x: Tensor, weights: W, number: Tensor| {
        let again = refill(&rows, &mut row_leaves.iter().copied());
        let inputs = (x, weights, again, [number, first.microbatch]);
        checkpoint(options.remat.clone(), inputs, |(x, weights, rows, [layer_number, microbatch])| {
            layer(x, weights, rows, LayerPlace { layer: layer_number, microbatch })
        })
    };
    let count = options.layers_per_stage;
    if count == 1 {
        return one_layer(x, weights, first.layer);
    }
    let leaves = weights.leaves();
    if options.scan_layers {
        let (x, aux) = scan(x, (weights, arange(DType::S32, count)), |x, (weights, number)| {
            one_layer(x, weights, first.layer + number)
        });
        let sums: Vec<Tensor> = aux.leaves().into_iter().map(|aux| aux.sum(0)).collect();
        return (x, refill(&aux, &mut sums.into_iter()));
    }
    let apart: Vec<Vec<Tensor>> = leaves.iter().map(|&weight| unstack(weight, count)).collect();
    let of_layer = |index: usize| refill(&weights, &mut apart.iter().map(|layers| layers[index]));
    let (mut x, mut total) = one_layer(x, of_layer(0), first.layer);
    for index in 1..count {
        let number = first.layer + index as f64;
        let (next, aux) = one_layer(x, of_layer(index), number);
        let mut sums = total.leaves().into_iter().zip(aux.leaves()).map(|(total, aux)| total + aux);
        (x, total) = (next, refill(&aux, &mut sums));
    }
    (x, total)
}
