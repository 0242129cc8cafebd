//! Pipelines compute what their layers compute one after the other: loss and every gradient, for every form of
//! pipeline.
//!
//! Random ones run on host values, in the reference interpreter, which takes a fraction of the time for a small
//! pipeline that XLA takes to compile it. Some run on eight devices of the CPU plugin.

use crate::transform::pairs;
use crate::transform::pipelines::{Case, save};
use meshloom::compile::{LowerOptions, Lowered, Partitioned, lower};
use meshloom::ir::DType::{self, F64};
use meshloom::ir::{Graph, Literal};
use meshloom::ops::RematPolicy;
use meshloom::trace::Tree;
use meshloom::transform::pipeline::{Cost, Costs, PipelineOptions, Schedule, WeightPlan};
use support::cases::{cases, seed};
use support::eight_devices::{compile, relative_error};
use support::interpret::interpret;
use support::random::Random;
use support::spmd::run_local;

const PLANS: [WeightPlan; 4] =
    [WeightPlan::SlidingWindow, WeightPlan::SplitSlidingWindow, WeightPlan::GatherOnce, WeightPlan::PerIteration];

/// Meshes for so many stages: over eight devices where that divides, and with more stages than the mesh has.
fn meshes(stages: usize) -> &'static [&'static str] {
    match stages {
        1 => &["stage=1,data=2,fsdp=4", "fsdp=4,tensor=2", "data=8"],
        2 => &["stage=2,data=2,fsdp=2", "stage=2,fsdp=4", "stage=2,fsdp=2,tensor=2", "data=2,stage=2,tensor=2"],
        3 => &["stage=3,fsdp=2", "stage=3,data=2,fsdp=2", "fsdp=8", "data=2,fsdp=4"],
        4 => &["stage=4,fsdp=2", "stage=4,tensor=2", "stage=2,fsdp=4", "data=2,stage=4"],
        _ => &["stage=8", "stage=4,fsdp=2", "stage=2,data=2,fsdp=2"],
    }
}

/// A program in which no op has to be computed whole.
fn lowered(case: &Case, program: &Graph) -> Lowered {
    case.lower(program, LowerOptions { deny_replication: true, ..LowerOptions::default() })
}

/// The bound in a type. In `f32`, the layers in sequence are themselves up to 2e-5 away from what `f64` gives:
/// gradients of 32 layers amplify roundings. So what is interpreted is interpreted in `f64`, where nothing but a wrong
/// program is as far off as the bound.
fn bound(dtype: DType) -> f64 {
    if dtype == F64 { 1e-12 } else { 1e-5 }
}

fn error(found: &Literal, expected: &Literal) -> f64 {
    relative_error(&found.to_f64_vec(), &expected.to_f64_vec())
}

fn compare(case: &Case, found: &[Literal], expected: &[Literal]) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = error(found, expected);
        assert!(error <= bound(case.dtype), "{case}: result {index} is off by {error:e}");
    }
}

/// Loss and every gradient agree with those of the sequential layers on one device, by the interpreter.
fn check(case: &Case) {
    let case = &Case { dtype: F64, ..case.clone() }.narrow();
    let inputs = case.literals().leaves();
    let expected = interpret(case.sequential().graph(), &inputs);
    compare(case, &interpret_local(case, &lowered(case, case.pipelined().graph()), &inputs), &expected);
}

fn interpret_local(case: &Case, lowered: &Lowered, inputs: &[Literal]) -> Vec<Literal> {
    let Some(Partitioned { graph: local, mesh, .. }) = lowered.partitioned() else {
        panic!("{case}: no local program")
    };
    run_local(local, mesh, inputs).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// As [`check`], in `f32` on eight devices of the CPU plugin. XLA's `tanh` and `rsqrt` differ from the interpreter's in
/// the last digits, and a row whose norm is almost zero makes more of that than the bound. So what the interpreter says
/// otherwise, XLA's own program of the sequential layers decides.
fn check_compiled(case: &Case) {
    let expected = interpret(case.sequential().graph(), &case.literals().leaves());
    let found = run_compiled(case, &lowered(case, case.pipelined().graph()));
    if found.iter().zip(&expected).all(|(found, expected)| error(found, expected) <= bound(case.dtype)) {
        return;
    }
    let sequential = lower(case.sequential().graph(), &LowerOptions::default());
    compare(case, &found, &run_compiled(case, &sequential.unwrap_or_else(|error| panic!("{case}: {error}"))));
}

fn run_compiled(case: &Case, lowered: &Lowered) -> Vec<Literal> {
    let program = compile(lowered).unwrap_or_else(|error| panic!("{case}: {error}"));
    let arguments = program.put(0, &case.literals()).expect("the inputs fit").leaves();
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{case}: {error}"));
    outputs.iter().map(|output| output.get().expect("a result")).collect()
}

fn options(stages: usize, repeats: usize, microbatches: usize, weights: WeightPlan) -> PipelineOptions {
    PipelineOptions { stages, repeats, microbatches, weights, ..PipelineOptions::default() }
}

fn interleaved_chunks(stages: usize, chunks: usize, microbatches: usize) -> PipelineOptions {
    with_table(Schedule::Interleaved, stages, chunks, microbatches)
}

fn with_table(schedule: Schedule, stages: usize, chunks: usize, microbatches: usize) -> PipelineOptions {
    let plain = options(stages, 1, microbatches, WeightPlan::SlidingWindow);
    PipelineOptions { schedule, chunks, ..plain }
}

/// The policies with which backward passes are cut in two, and the one with which they are not.
fn remats() -> [RematPolicy; 4] {
    [RematPolicy::None, RematPolicy::Dots, save(&["hidden"]), RematPolicy::Full]
}

/// The same with the schedule 1F1B.
fn in_one_loop(options: PipelineOptions) -> PipelineOptions {
    let weights = match options.weights {
        WeightPlan::PerIteration => WeightPlan::GatherOnce,
        plan => plan,
    };
    let schedule = Schedule::OneForwardOneBackward;
    PipelineOptions { repeats: 1, delay_forwarding: false, schedule, weights, ..options }
}

/// A random pipeline, three in five of them with a sliding window.
fn random_case(random: &mut Random) -> Case {
    let stages = [1, 2, 3, 4, 8][random.below(5)];
    let repeats = 1 + random.below(4);
    let delay_forwarding = random.below(4) == 0;
    let round = if delay_forwarding && repeats > 1 { 2 } else { 1 };
    let microbatches = match repeats {
        1 => stages + random.below(2 * stages + 1),
        _ => stages * (round + random.below(3)),
    };
    let flag = |random: &mut Random| random.below(4) != 0;
    let remat = match random.below(5) {
        0 => RematPolicy::None,
        1 => RematPolicy::Dots,
        2 => save(&["hidden"]),
        _ => RematPolicy::Full,
    };
    let options = PipelineOptions {
        stages,
        repeats,
        microbatches,
        layers_per_stage: 1 + random.below(2),
        weights: PLANS[[0, 0, 1, 2, 3][random.below(5)]],
        schedule: Schedule::Circular,
        delay_forwarding,
        scan_iterations: flag(random),
        scan_repeats: flag(random),
        scan_layers: flag(random),
        keep_gathered: random.below(3) == 0,
        remat,
        chunks: 1,
        costs: None,
    };
    let options = match random.below(6) {
        0 | 1 if repeats == 1 => in_one_loop(options),
        which @ 2..=5 => {
            let microbatches = stages + random.below(2 * stages + 1);
            let (schedule, chunks) = match which {
                2 => (Schedule::Interleaved, repeats),
                3 => (Schedule::ZeroBubbleOne, 1),
                4 => (Schedule::ZeroBubbleVee, 2),
                _ => (Schedule::Searched, repeats),
            };
            PipelineOptions { schedule, chunks, microbatches, ..in_one_loop(options) }
        }
        _ => options,
    };
    // Uneven layers: tables are searched for these costs.
    let mut cost = |_| {
        let mut number = || 0.25 + random.below(8) as f64;
        Cost { forward: number(), backward: number(), weights: number() }
    };
    let costs: Vec<Cost> = (0..stages * options.parts()).map(&mut cost).collect();
    let costs = (random.below(3) == 0).then_some(Costs::PerVirtualStage(costs));
    let options = PipelineOptions { costs, ..options };
    let meshes = meshes(stages);
    let mesh = meshes[random.below(meshes.len())];
    Case { poisonous: random.below(4) == 0, dropout: random.below(4) == 0, ..Case::new(options, mesh) }
}

const STAGES: [usize; 5] = [1, 2, 3, 4, 8];

/// Stages work on zeros in bubbles. Even a layer that makes no number of zeros must leave no trace of them.
#[test]
fn every_plan_with_every_number_of_repeats() {
    for [stages, repeats, weights, poisonous] in pairs::of_options("transform plans", [5, 4, 4, 2]) {
        let (stages, repeats, weights) = (STAGES[stages], 1 + repeats, PLANS[weights]);
        let options = options(stages, repeats, 2 * stages, weights);
        check(&Case { poisonous: poisonous == 1, ..Case::new(options, meshes(stages)[0]) });
    }
}

/// The known implementation hands lagging stages the wrong repeat from three stages on.
#[test]
fn a_sliding_window_over_three_and_more_stages() {
    let all = [(1, false), (2, false), (3, false), (2, true)];
    for [stages, rounds, keep_gathered] in pairs::of_options("transform windows", [3, 4, 2]) {
        let (stages, (rounds, delay_forwarding), keep_gathered) =
            ([3, 4, 8][stages], all[rounds], [false, true][keep_gathered]);
        let plain = options(stages, 3 + rounds % 2, rounds * stages, WeightPlan::SlidingWindow);
        let options = PipelineOptions { delay_forwarding, keep_gathered, ..plain };
        check(&Case { poisonous: delay_forwarding, ..Case::new(options, meshes(stages)[0]) });
    }
}

#[test]
fn one_forward_one_backward() {
    for [stages, rounds, layers] in pairs::of_options("transform 1f1b", [5, 3, 2]) {
        let (stages, rounds, layers_per_stage) = (STAGES[stages], 1 + rounds, 1 + layers);
        let plain = options(stages, 1, rounds * stages, WeightPlan::SlidingWindow);
        let options = in_one_loop(PipelineOptions { layers_per_stage, ..plain });
        check(&Case { poisonous: rounds == 2, ..Case::new(options, meshes(stages)[0]) });
    }
}

/// Numbers of microbatches: some fill the slots of this many stages, and some do not.
fn numbers_of_microbatches(stages: usize) -> [usize; 4] {
    [stages, stages + 1, 2 * stages + 1, 3 * stages]
}

#[test]
fn interleaved() {
    for [stages, chunks, microbatches] in pairs::of_options("transform interleaved", [4, 3, 4]) {
        let (stages, chunks) = (STAGES[stages], 1 + chunks);
        let options = interleaved_chunks(stages, chunks, numbers_of_microbatches(stages)[microbatches]);
        check(&Case { poisonous: chunks == 2, ..Case::new(options, meshes(stages)[0]) });
    }
}

/// One repeat takes any number of microbatches from that of stages on.
#[test]
fn microbatches_that_do_not_fill_the_slots() {
    for [stages, microbatches, weights, delay] in pairs::of_options("transform slots", [3, 3, 4, 2]) {
        let stages = [2, 3, 4][stages];
        let microbatches = [stages + 1, 2 * stages - 1, 2 * stages + 1][microbatches];
        let plain = options(stages, 1, microbatches, PLANS[weights]);
        let options = PipelineOptions { delay_forwarding: delay == 1, ..plain };
        check(&Case { poisonous: true, ..Case::new(options, meshes(stages)[0]) });
    }
}

/// Backward passes in two parts, and stages that lie as a V.
#[test]
fn zero_bubbles() {
    let schedules = [
        (Schedule::ZeroBubbleOne, 1),
        (Schedule::ZeroBubbleVee, 2),
        (Schedule::Searched, 1),
        (Schedule::Searched, 2),
        (Schedule::Searched, 3),
    ];
    for [stages, number, schedule] in pairs::of_options("transform zero bubbles", [4, 4, 5]) {
        let (stages, (schedule, chunks)) = (STAGES[stages], schedules[schedule]);
        let remat = remats()[(number + chunks) % 4].clone();
        let options = PipelineOptions {
            remat,
            layers_per_stage: 1 + number % 2,
            ..with_table(schedule, stages, chunks, numbers_of_microbatches(stages)[number])
        };
        check(&Case { poisonous: number == 2, ..Case::new(options, meshes(stages)[0]) });
    }
}

#[test]
fn random_pipelines() {
    for number in cases("transform random pipelines", 10, 0..800) {
        check(&random_case(&mut Random(seed(6) + 1000 * number)));
    }
}

/// Without a gradient, nothing is kept: and with 1F1B, the loss is taken when everything has gone through.
#[test]
fn forwards_alone() {
    let vee = with_table(Schedule::ZeroBubbleVee, 4, 2, 6);
    let mut forms = vec![
        in_one_loop(options(4, 1, 8, WeightPlan::SlidingWindow)),
        in_one_loop(options(4, 1, 8, WeightPlan::GatherOnce)),
        interleaved_chunks(4, 2, 9),
        PipelineOptions { remat: RematPolicy::None, ..vee },
    ];
    let circular = pairs::of_two("transform forwards", [4, 3]);
    forms.extend(circular.iter().map(|&[weights, repeats]| options(4, [1, 2, 4][repeats], 8, PLANS[weights])));
    for options in forms {
        let case = Case { dtype: F64, poisonous: true, ..Case::new(options, "stage=4,fsdp=2") }.narrow();
        let inputs = case.literals().leaves();
        let expected = interpret(case.sequential().graph(), &inputs);
        let found = interpret_local(&case, &lowered(&case, case.forwards().graph()), &inputs);
        compare(&case, &found, &expected[..1]);
    }
}

/// Random numbers depend on layer, microbatch and position alone, in both passes.
#[test]
fn dropout() {
    for [weights, form] in pairs::of_two("transform dropout", [PLANS.len(), 2]) {
        let (repeats, layers_per_stage) = [(1, 2), (3, 1)][form];
        let options = PipelineOptions { layers_per_stage, ..options(4, repeats, 8, PLANS[weights]) };
        check(&Case { dropout: true, ..Case::new(options, "stage=4,fsdp=2") });
    }
    let options = in_one_loop(options(4, 1, 8, WeightPlan::SlidingWindow));
    check(&Case { dropout: true, ..Case::new(options, "stage=4,fsdp=2") });
}

/// Forms of pipelines run on eight devices; the full tier also runs random ones.
#[test]
fn on_eight_devices() {
    let circular = |stages, weights, mesh| Case::new(options(stages, 3, 2 * stages, weights), mesh);
    let one_loop = |stages, mesh| {
        let plain = options(stages, 1, 2 * stages, WeightPlan::SlidingWindow);
        Case::new(in_one_loop(plain), mesh)
    };
    let interleaved = |stages, chunks, microbatches, mesh| {
        let case = Case::new(interleaved_chunks(stages, chunks, microbatches), mesh);
        Case { poisonous: true, dropout: true, ..case }
    };
    let split = |schedule, stages, chunks, microbatches, mesh| {
        let options = with_table(schedule, stages, chunks, microbatches);
        let case = Case::new(PipelineOptions { remat: RematPolicy::None, ..options }, mesh);
        Case { poisonous: true, dropout: true, ..case }
    };
    let (two, four) = ("stage=2,data=2,fsdp=2", "stage=4,fsdp=2");
    // The small tier takes a third of these.
    let all = [
        circular(2, WeightPlan::SlidingWindow, two),
        circular(4, WeightPlan::SlidingWindow, four),
        circular(2, WeightPlan::PerIteration, two),
        circular(4, WeightPlan::PerIteration, four),
        interleaved(2, 2, 5, "stage=2,fsdp=2,tensor=2"),
        interleaved(2, 3, 4, "data=2,stage=2,tensor=2"),
        interleaved(4, 2, 7, "stage=4,tensor=2"),
        one_loop(4, four),
        one_loop(2, two),
        split(Schedule::ZeroBubbleOne, 2, 1, 5, "stage=2,fsdp=2,tensor=2"),
        split(Schedule::ZeroBubbleVee, 4, 2, 6, "stage=4,tensor=2"),
        split(Schedule::Searched, 4, 2, 7, four),
    ];
    cases("transform compiled pipelines", 5, all).iter().for_each(check_compiled);
    for number in cases("transform compiled random pipelines", 0, 0..24) {
        let mut random = Random(seed(7) + 1000 * number);
        let mut drawn = std::iter::repeat_with(|| random_case(&mut random));
        check_compiled(&drawn.find(|case| case.mesh().device_count() <= 8).expect("one of many"));
    }
}
