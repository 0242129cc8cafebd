//! The weights and the batch that go into a pipeline, and its layer: checked, and traced.

use super::stage::{STAGE, StageFunction, StageInputs};
use super::{LayerPlace, PipelineError, PipelineOptions};
use crate::ir::{AxisNames, DType, Name};
use crate::trace::{self, CallSite, Param, Tensor, TraceErrorKind, Tree, called, refill, zeros};
use meshloom_hlo::message::counted;

/// Stacked weights of all layers, and the logical names of their dimensions.
///
/// Mesh axes that split a weight at rest may also split rows of the activations that it is used on, as `fsdp` does. No
/// device can then use its part of the weight alone, so weights are gathered over such axes when the
/// [`WeightPlan`](super::WeightPlan) says. Other axes, as those of tensor parallelism, split a weight where it is used.
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

/// The loss behind a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineLoss<H> {
    /// The weights of the loss, and the logical names of their dimensions; they are not stacked.
    pub weights: StackedWeights<H>,
    /// The logical names of the activations that it gets: where the stages are to split the work on it, one of these
    /// has to be a name that the rules split over `stage`.
    pub names: Vec<&'static str>,
    /// For each auxiliary value of the layers, the factor with which the sum of its elements, over layers and
    /// microbatches, is added to the loss. An empty list adds nothing.
    pub penalties: Vec<f64>,
}

/// The logical names of activations, stages first.
pub(super) fn stage_names(names: &[&str]) -> AxisNames {
    [STAGE].iter().chain(names).map(|name| Name::new(name)).collect()
}

/// Checks everything and traces the layer; `has_loss` is whether the pipeline's loop contains the loss. The function is
/// `None` after an error, which has been noted.
pub(super) fn trace_stage<W, X, A>(
    options: &PipelineOptions,
    (stacked, input): (&StackedWeights<W>, &PipelineInput<X>),
    has_loss: bool,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    place: CallSite,
) -> (Option<StageFunction>, A)
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
{
    if let Err(problem) = check(options, (stacked, input), has_loss) {
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
    (stacked, input): (&StackedWeights<W>, &PipelineInput<X>),
    has_loss: bool,
) -> Result<(), TraceErrorKind>
where
    W: Tree<Leaf = Tensor>,
    X: Tree<Leaf = Tensor>,
{
    options.validate()?;
    let schedule = options.schedule;
    if schedule.branches() && !has_loss {
        return Err(PipelineError::NeedsLoss { schedule }.into());
    }
    let mismatch =
        |what: String, expected: String, found: String| Err(TraceErrorKind::Mismatch { what, expected, found });
    let leading: Vec<usize> = options.leading_dims().iter().map(|(size, _)| *size).collect();
    let (weights, paths) = (stacked.weights.leaves(), stacked.weights.paths());
    if stacked.names.len() != weights.len() {
        let expected = format!("one list for each of {}", counted(weights.len(), "weight"));
        let what = "the names given with a pipeline's weights".to_owned();
        return mismatch(what, expected, stacked.names.len().to_string());
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
pub(super) fn check_captured(captured: &[Tensor], closure: &str, instead: &str) -> Result<(), TraceErrorKind> {
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

/// The loss with its penalties on sums of auxiliary values.
pub(super) fn penalized(loss: Tensor, penalties: &[f64], sums: &[Tensor]) -> Tensor {
    let penalties = penalties.iter().zip(sums).map(|(&weight, sum)| sum.sum(..).convert(loss.dtype()) * weight);
    penalties.fold(loss, |loss, penalty| loss + penalty)
}
