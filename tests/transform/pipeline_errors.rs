//! Pipelines that cannot be: each is an error that says what is wrong, by which numbers, and what to do.

use insta::assert_snapshot;
use meshloom::ir::{DType::F32, Name};
use meshloom::trace::{Function, Tensor, TensorSpec};
use meshloom::transform::pipeline::{
    PipelineInput, PipelineLoss, PipelineOptions, Schedule, StackedWeights, WeightPlan, pipeline, pipeline_with_loss,
};

fn refused(options: PipelineOptions) -> String {
    options.validate().expect_err("there can be no such pipeline").to_string()
}

fn options(stages: usize, repeats: usize, microbatches: usize) -> PipelineOptions {
    PipelineOptions { stages, repeats, microbatches, ..PipelineOptions::default() }
}

#[test]
fn options_that_exclude_each_other() {
    assert_snapshot!(refused(options(0, 1, 1)), @"the number of stages of a pipeline is 0; use 1 or more");
    assert_snapshot!(refused(PipelineOptions { layers_per_stage: 0, ..options(2, 1, 2) }), @"the number of layers per stage of a pipeline is 0; use 1 or more");
    assert_snapshot!(refused(options(4, 2, 6)), @"the number of microbatches, 6, is no multiple of the 4 stages, which several repeats need; use 4 or 8");
    assert_snapshot!(refused(options(4, 2, 2)), @"the number of microbatches, 2, is no multiple of the 4 stages, which several repeats need; use 4");
    assert_snapshot!(refused(options(4, 1, 2)), @"a pipeline of 4 stages needs as many microbatches or more, not 2");
    assert_snapshot!(refused(PipelineOptions { delay_forwarding: true, ..options(4, 2, 4) }), @"a microbatch comes round after 8 iterations (stages * delay), but the first stage needs it after the 4 microbatches of a repeat: use at least 8 microbatches, or one repeat");
    assert_snapshot!(refused(PipelineOptions { schedule: Schedule::Gpipe, ..options(2, 2, 4) }), @"the schedule gpipe has one repeat, not 2: set repeats to 1, or use the schedule circular");
    let in_one_loop = PipelineOptions { schedule: Schedule::OneForwardOneBackward, ..options(2, 1, 4) };
    assert_snapshot!(refused(PipelineOptions { repeats: 3, ..in_one_loop.clone() }), @"the schedule 1f1b has one repeat, not 3: set repeats to 1, or use the schedule circular");
    let interleaved = PipelineOptions { schedule: Schedule::Interleaved, ..in_one_loop.clone() };
    assert_snapshot!(refused(PipelineOptions { repeats: 2, ..interleaved }), @"the schedule interleaved has one repeat, not 2: set repeats to 1, or use the schedule circular; parts of the layers on a stage are its chunks");
    let vee = PipelineOptions { schedule: Schedule::ZeroBubbleVee, ..in_one_loop.clone() };
    assert_snapshot!(refused(vee), @"the schedule zb-v has two chunks of layers on each stage, not 1: set chunks to 2");
    assert_snapshot!(refused(PipelineOptions { delay_forwarding: true, ..in_one_loop.clone() }), @"the schedule 1f1b does not go with delayed forwarding: its transfers overlap with the other direction's compute anyway");
    assert_snapshot!(refused(PipelineOptions { weights: WeightPlan::PerIteration, ..in_one_loop }), @r#"the schedule 1f1b does not go with weights gathered per iteration: use "gather-once" or "bsw", which are the same for one repeat"#);
}

/// The error of a pipeline over weights and activations of these dimensions, without the place in this file.
fn error_of(
    weights: &[usize],
    rows: [usize; 2],
    names: &'static [&'static str],
    layer: impl Fn(Tensor, Tensor, Tensor) -> Tensor,
) -> String {
    let specs = (TensorSpec::new(F32, weights), TensorSpec::new(F32, [rows[0], 16]), TensorSpec::new(F32, [rows[1]]));
    let weight_names = vec![weights.iter().map(|_| Name::new("")).collect()];
    let function = Function::trace("refused", specs, |(weights, x, rows)| {
        let stacked = StackedWeights::new(weights, weight_names);
        let input = PipelineInput { x, names: names.to_vec(), rows };
        pipeline(&options(2, 2, 4), stacked, input, |x, w, rows, _| (layer(x, w, rows), ())).0
    });
    let text = function.expect_err("it is refused").to_string();
    text.split(" (at ").next().unwrap_or_default().to_owned()
}

const NAMES: &[&str] = &["activation_batch", ""];

#[test]
fn weights_and_activations_that_do_not_fit() {
    let plain = |x: Tensor, w: Tensor, _: Tensor| x.matmul(w);
    assert_snapshot!(error_of(&[4, 16, 16], [8, 8], NAMES, plain), @r#"the stacked weight is f32[4,16,16], but a pipeline of 2 repeats, 2 stages and 1 layer per stage needs the leading dimensions [2, 2]"#);
    assert_snapshot!(error_of(&[2, 2, 16, 16], [6, 6], NAMES, plain), @"a batch of 6 rows does not divide into 4 microbatches");
    assert_snapshot!(error_of(&[2, 2, 16, 16], [8, 4], NAMES, plain), @r#"the rows of a pipeline: expected a leading dimension of 8, as the activations have, found f32[4]"#);
    assert_snapshot!(error_of(&[2, 2, 16, 16], [8, 8], &["activation_batch"], plain), @"the names of a pipeline's activations: expected one for each dimension of f32[8,16], found 1");
    assert_snapshot!(error_of(&[2, 2, 16, 8], [8, 8], NAMES, plain), @"the activations that the layers of a pipeline return, stages first: expected f32[2,2,16], found f32[2,2,8]");
}

#[test]
fn layers_that_use_what_has_a_gradient() {
    let function =
        Function::trace("refused", (TensorSpec::new(F32, [2, 2, 16, 16]), TensorSpec::new(F32, [8, 16])), |(w, x)| {
            let outer = x.sum(..);
            let stacked = StackedWeights::new(w, vec![(0..4).map(|_| Name::new("")).collect()]);
            let input = PipelineInput { x, names: NAMES.to_vec(), rows: () };
            pipeline(&options(2, 2, 4), stacked, input, |x, w, (), _| (x.matmul(w) * outer, ())).0
        });
    let text = function.expect_err("it is refused").to_string();
    assert_snapshot!(text.split(" (at ").next().unwrap_or_default(), @"the layer of a pipeline uses an outer tensor of type f32[], into which no gradient could flow: make it a weight, or pass it as rows");
}

#[test]
fn losses_that_are_none() {
    let specs = (TensorSpec::new(F32, [2, 16, 16]), TensorSpec::new(F32, [8, 16]));
    let function = Function::trace("refused", specs, |(w, x)| {
        let names = vec![(0..3).map(|_| Name::new("")).collect()];
        let input = PipelineInput { x, names: NAMES.to_vec(), rows: () };
        let head =
            PipelineLoss { weights: StackedWeights::new((), Vec::new()), names: NAMES.to_vec(), penalties: Vec::new() };
        let options = PipelineOptions { schedule: Schedule::OneForwardOneBackward, ..options(2, 1, 4) };
        let stacked = StackedWeights::new(w, names);
        pipeline_with_loss(&options, stacked, input, |x, w, (), _| (x.matmul(w), ()), head, |x, _: (), ()| x.sum(-1)).0
    });
    let text = function.expect_err("it is refused").to_string();
    assert_snapshot!(text.split(" (at ").next().unwrap_or_default(), @"the loss of a pipeline: expected a floating-point scalar, found f32[2]");
}
