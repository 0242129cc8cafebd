//! No option of a pipeline is dropped: each changes the program, or is refused by a message that says what to use.

use meshloom::ir::{DType::F32, Name};
use meshloom::ops::RematPolicy;
use meshloom::trace::{Function, TensorSpec, grad};
use meshloom::trace::{Init, Param};
use meshloom::transform::accumulate::value_and_grad_in_parts;
use meshloom::transform::pipeline::{
    Cost, Costs, PipelineInput, PipelineLoss, PipelineOptions, Schedule, StackedWeights, WeightPlan, pipeline,
    pipeline_with_loss,
};

const ROWS: usize = 20;
const WIDTH: usize = 16;

/// The graph of the gradient of a pipeline's loss, or the error. The loss comes after the pipeline, or is given to it.
fn graph(options: &PipelineOptions, with_loss: bool) -> Result<String, String> {
    let leading = options.leading_dims();
    let dims: Vec<usize> = leading.iter().map(|(size, _)| *size).chain([WIDTH, WIDTH]).collect();
    let names = leading.iter().map(|(_, name)| *name).chain(["embed", ""]).map(Name::new).collect();
    let specs = (TensorSpec::new(F32, dims), TensorSpec::new(F32, [ROWS, WIDTH]));
    let function = Function::trace("gradient", specs, |(weights, x)| {
        grad(weights, |weights| {
            let stacked = StackedWeights::new(weights, vec![names]);
            let input = PipelineInput { x, names: vec!["activation_batch", ""], rows: () };
            let head = PipelineLoss {
                weights: StackedWeights::new((), Vec::new()),
                names: vec!["activation_batch", ""],
                penalties: Vec::new(),
            };
            let layer = |x: meshloom::trace::Tensor, w, (), _| (x.matmul(w).tanh(), ());
            match with_loss {
                true => pipeline_with_loss(options, stacked, input, layer, head, |x, _: (), ()| x.square().sum(..)).0,
                false => pipeline(options, stacked, input, layer).0.square().sum(..),
            }
        })
    });
    function.map(|function| function.graph().to_string()).map_err(|error| error.to_string())
}

/// Every option with another value than in `base`. A new field is an error here.
fn changed(base: &PipelineOptions) -> Vec<(&'static str, PipelineOptions)> {
    let PipelineOptions {
        stages: _,
        repeats: _,
        chunks: _,
        microbatches: _,
        layers_per_stage: _,
        weights: _,
        schedule: _,
        delay_forwarding: _,
        scan_iterations: _,
        scan_repeats: _,
        scan_layers: _,
        keep_gathered: _,
        remat: _,
        costs: _,
    } = base;
    let virtual_stages = base.stages * base.parts();
    let base = || base.clone();
    vec![
        ("stages", PipelineOptions { stages: 5, ..base() }),
        ("repeats", PipelineOptions { repeats: 4, schedule: Schedule::Circular, ..base() }),
        ("chunks", PipelineOptions { chunks: 4, ..base() }),
        ("microbatches", PipelineOptions { microbatches: 20, ..base() }),
        ("layers_per_stage", PipelineOptions { layers_per_stage: 3, ..base() }),
        ("weights: once", PipelineOptions { weights: WeightPlan::GatherOnce, ..base() }),
        ("weights: per iteration", PipelineOptions { weights: WeightPlan::PerIteration, ..base() }),
        ("weights: split", PipelineOptions { weights: WeightPlan::SplitSlidingWindow, ..base() }),
        ("delay_forwarding", PipelineOptions { delay_forwarding: true, ..base() }),
        ("scan_iterations", PipelineOptions { scan_iterations: false, ..base() }),
        ("scan_repeats", PipelineOptions { scan_repeats: false, ..base() }),
        ("scan_layers", PipelineOptions { scan_layers: false, ..base() }),
        ("keep_gathered", PipelineOptions { keep_gathered: true, ..base() }),
        ("remat", PipelineOptions { remat: RematPolicy::Dots, ..base() }),
        ("costs", PipelineOptions { costs: Some(uneven(virtual_stages)), ..base() }),
    ]
}

#[test]
fn every_option_is_followed_or_refused() {
    let circular =
        PipelineOptions { stages: 2, repeats: 5, microbatches: 10, layers_per_stage: 2, ..PipelineOptions::default() };
    let gpipe = PipelineOptions { repeats: 1, schedule: Schedule::Gpipe, ..circular.clone() };
    let in_one_loop = PipelineOptions { schedule: Schedule::OneForwardOneBackward, ..gpipe.clone() };
    // These options change nothing, because there is nothing that they could change.
    let of_one_repeat = ["weights: split", "scan_repeats", "costs"];
    let interleaved = PipelineOptions { schedule: Schedule::Interleaved, chunks: 2, ..gpipe.clone() };
    let kept = ["weights: once", "weights: split", "scan_repeats", "keep_gathered"];
    let split = |schedule, chunks| PipelineOptions { schedule, chunks, remat: RematPolicy::None, ..gpipe.clone() };
    let cases: [(PipelineOptions, &[&str]); 7] = [
        (circular, &["costs"]),
        (gpipe.clone(), &of_one_repeat),
        (in_one_loop, &[&kept[..], &["costs"]].concat()),
        // With two stages, the same table is the best for these costs too.
        (interleaved, &[&kept[..], &["costs"]].concat()),
        (split(Schedule::ZeroBubbleOne, 1), &kept),
        (split(Schedule::ZeroBubbleVee, 2), &kept),
        (split(Schedule::Searched, 2), &kept),
    ];
    let mut wrong = Vec::new();
    for (base, without_effect) in cases {
        for with_loss in [false, true] {
            let schedule = base.schedule;
            let Ok(plain) = graph(&base, with_loss) else {
                assert!(schedule.branches() && !with_loss, "{schedule}");
                continue;
            };
            for (option, changed) in changed(&base) {
                let is_followed = graph(&changed, with_loss).map_or(true, |graph| graph != plain);
                if is_followed == without_effect.contains(&option) {
                    wrong.push(format!("{schedule} {option}, loss given: {with_loss}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each virtual stage takes longer than the one before.
fn uneven(virtual_stages: usize) -> Costs {
    let cost = |stage| Cost { forward: 1.0 + stage as f64, backward: 5.0, weights: 0.25 };
    Costs::PerVirtualStage((0..virtual_stages).map(cost).collect())
}

/// A fault that was found: 1F1B gave GPipe.
#[test]
fn a_pipeline_without_its_loss_refuses_1f1b() {
    let options = PipelineOptions {
        stages: 2,
        microbatches: 4,
        schedule: Schedule::OneForwardOneBackward,
        ..PipelineOptions::default()
    };
    let refused = graph(&options, false).expect_err("the loss is not known");
    assert!(refused.contains("use `pipeline_with_loss`"), "{refused}");
    assert!(refused.contains("tests/transform/pipeline_options.rs"), "{refused}");
    assert!(graph(&options, true).is_ok());
}

#[test]
fn a_batch_has_at_least_one_part() {
    let spec = || TensorSpec::new(F32, [4]);
    let declared = Param::new(F32, [4], &["embed"], Init::Constant(0.0));
    let function = Function::trace("parts", (spec(), spec()), |(w, x)| {
        value_and_grad_in_parts(0, &declared, w, x, |w, x| (w * x).sum(..))
    });
    let refused = function.map(drop).expect_err("no part").to_string();
    assert!(refused.contains("at least one part"), "{refused}");
}
