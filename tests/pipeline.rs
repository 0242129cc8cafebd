//! Pipelines compute what their layers compute one after the other: loss and every gradient, for every form of pipeline.

// A test says what it found by panicking.
#![allow(clippy::panic)]

mod eight_devices;
mod pipelines;
mod support;

use eight_devices::relative_error;
use meshloom::compile::{LowerOptions, lower};
use meshloom::trace::Tree;
use meshloom::transform::pipeline::{PipelineOptions, WeightPlan};
use pipelines::Case;
use support::interpret::interpret;
use support::spmd::run_local;

/// Loss and every gradient agree with those of the sequential layers on one device, to 1e-5 in `f32`.
fn check(case: &Case) {
    let inputs = case.literals().leaves();
    let expected = interpret(case.sequential().graph(), &inputs);
    let (mesh, rules) = (case.mesh(), case.rules());
    let function = case.pipelined();
    let options = LowerOptions { sharding: Some((&mesh, &rules)), explicit: true, ..LowerOptions::default() };
    let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(lowered.fallbacks.is_empty(), "{case}: {:?}", lowered.fallbacks);
    let local = lowered.local.as_ref().expect("an explicit partition");
    let found = run_local(local, lowered.local_mesh.as_ref().expect("a mesh"), &inputs);
    let found = found.unwrap_or_else(|error| panic!("{case}: {error}"));
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-5, "{case}: result {index} is off by {error:e}");
    }
}

fn options(stages: usize, repeats: usize, microbatches: usize, weights: WeightPlan) -> PipelineOptions {
    PipelineOptions { stages, repeats, microbatches, weights, ..PipelineOptions::default() }
}

#[test]
fn a_pipeline() {
    use WeightPlan::*;
    for (stages, mesh) in
        [(1, "stage=1,data=2,fsdp=4"), (2, "stage=2,data=2,fsdp=2"), (4, "stage=4,fsdp=2"), (8, "stage=8")]
    {
        for repeats in [1, 2, 3, 4] {
            for weights in [SlidingWindow, GatherOnce, PerIteration, SplitSlidingWindow] {
                check(&Case::new(options(stages, repeats, 2 * stages, weights), mesh));
                println!("ok {stages} {repeats} {weights:?}");
            }
        }
    }
}
