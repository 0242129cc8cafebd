//! Runs on published models whose layers are not all alike: the same losses in every form, and across checkpoints.

use meshloom_train::Trainer;
use meshloom_train::checkpoint::{Checkpointer, Start};
use meshloom_train::config::RunConfig;
use support::cases::cases;
use support::eight_devices::{client, relative_error};

use super::exchange::{check_start, folder, run_config, text_files};
use super::golden::Golden;
use super::interpreted::InterpretedRun;

/// Losses of runs differ by the order of sums alone, step by step.
const BOUND: f64 = 2e-5;

/// The settings of all runs: no number that could hide a difference is zero.
pub const RUN: [&str; 6] = [
    "rules.strict=false",
    "train.warmup=0",
    "train.learning_rate=1e-3",
    "model.dropout=0.1",
    "model.load_balance_weight=0.05",
    "train.choice_bias_rate=1e-3",
];

/// Layers around the pipeline: DeepSeek's dense ones in front of it.
const PIPELINE: [&str; 4] =
    ["mesh.axes=stage=2,fsdp=4", "pipeline.microbatches=2", "pipeline.repeats=1", "pipeline.layers=2"];

/// The same pipeline, with the loss in its loop.
const IN_LOOP: [&str; 5] = [PIPELINE[0], PIPELINE[1], PIPELINE[2], PIPELINE[3], "pipeline.schedule=1f1b"];

/// A model whose layers are one stack, which the pipeline above has a part of; and one of dense and routed layers,
/// which takes longer to compile.
pub const RUN_CASES: [&str; 2] = ["qwen3", "deepseek_v3"];

pub const ONE_DEVICE: [&str; 2] = ["mesh.axes=data=1", "target.devices=1"];

struct Case {
    files: support::text_files::TextFiles,
    case: &'static str,
}

impl Case {
    fn new(case: &'static str) -> Case {
        Case { files: text_files(48), case }
    }

    fn config(&self, settings: &[&str]) -> RunConfig {
        run_config(&folder(self.case), &self.files, &[&RUN[..], settings].concat())
    }

    fn trainer(&self, settings: &[&str]) -> Trainer {
        let trainer = Trainer::new(&self.config(settings), &client());
        let trainer = trainer.unwrap_or_else(|error| panic!("{} {settings:?}: {error}", self.case));
        check_start(self.case, &trainer);
        trainer
    }

    fn losses(&self, settings: &[&str]) -> Vec<f64> {
        steps(&mut self.trainer(settings), 3)
    }
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<f64> {
    (0..count).map(|_| trainer.step().expect("a step").loss).collect()
}

fn check(what: &str, found: &[f64], expected: &[f64]) {
    let error = relative_error(found, expected);
    println!("{what}: {error:.1e}");
    assert!(error <= BOUND, "{what}: {found:?} for {expected:?}, off by {error:.1e}");
}

/// Losses are compared in a pipeline with the loss in its loop, in a circular one, and with one layer after the other.
/// The small tier takes the first one, in the interpreter.
#[test]
fn losses_are_those_of_one_device() {
    let run = Case::new("deepseek_v3");
    let interpreted = |settings: &[&str]| {
        let mut interpreted = InterpretedRun::new(&run.config(settings));
        Golden::load(run.case).begin(&mut interpreted);
        [(); 2].map(|()| interpreted.step()[0])
    };
    let expected = interpreted(&ONE_DEVICE);
    assert!(expected[1] < expected[0]);
    check("1f1b, interpreted", &interpreted(&IN_LOOP), &expected);
    let all = [
        ("1f1b", &IN_LOOP[..]),
        ("circular", &PIPELINE[..]),
        ("unrolled", &["mesh.axes=fsdp=4,tensor=2", "model.scan_layers=false"][..]),
    ];
    for (what, settings) in cases("families runs, compiled", 0, all) {
        let expected = run.losses(&ONE_DEVICE);
        assert!(expected[2] < expected[0]);
        check(what, &run.losses(settings), &expected);
    }
}

/// A pipeline's checkpoint goes on without a pipeline, and the other way round.
#[test]
fn checkpoints_fit_every_form() {
    cases("families of runs", 1, RUN_CASES).into_iter().for_each(check_checkpoints);
}

fn check_checkpoints(case: &'static str) {
    let run = Case::new(case);
    let plain = ["mesh.axes=fsdp=8"];
    let unrolled = ["mesh.axes=fsdp=4,tensor=2", "model.scan_layers=false"];
    let expected = run.losses(&ONE_DEVICE);
    let others = [(&PIPELINE[..], &plain[..]), (&plain, &PIPELINE), (&unrolled, &PIPELINE)];
    let own = [(&IN_LOOP[..], &ONE_DEVICE[..]), (&ONE_DEVICE, &IN_LOOP)];
    for (from, to) in own.into_iter().chain(cases("families checkpoints", 0, others)) {
        let directory = tempfile::tempdir().expect("a directory");
        let own = format!("checkpoint.dir={:?}", directory.path().display().to_string());
        let mut first = run.trainer(&[from, &[&own]].concat());
        let mut losses = steps(&mut first, 2);
        let mut checkpointer = Checkpointer::new(&first.run().config().checkpoint, Start::Fresh).expect("a place");
        first.save_checkpoint(&mut checkpointer).expect("saved");
        checkpointer.finish().expect("written");
        let found = meshloom_train::checkpoint::find(directory.path(), Default::default()).expect("a checkpoint");
        let resumed = Trainer::resume(&run.config(to), &client(), &found.checkpoint);
        losses.extend(steps(&mut resumed.unwrap_or_else(|error| panic!("{from:?} {to:?}: {error}")), 1));
        check(&format!("{from:?}, then {to:?}"), &losses, &expected);
    }
}

/// Streaming DiLoCo cuts the pipeline's layers, and all others sync with what is outside of layers. In the small tier,
/// the interpreter alone runs replicas that are pipelines.
#[test]
fn replicas_of_several_stacks_agree() {
    cases("families of replicas", 0, RUN_CASES).into_iter().for_each(check_replicas);
}

fn check_replicas(case: &'static str) {
    let run = Case::new(case);
    let settings = [
        "mesh.axes=diloco=2,stage=2,fsdp=2",
        "pipeline.microbatches=2",
        "pipeline.repeats=1",
        "pipeline.layers=2",
        "diloco.replicas=2",
        "diloco.streaming=true",
        "diloco.fragments=2",
        "diloco.sync_period=2",
        "diloco.check_replicas=true",
        "train.batch=16",
    ];
    let mut trainer = run.trainer(&settings);
    // Replicas are compared after each sync.
    let losses = steps(&mut trainer, 6);
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
}

/// Further tokens are predicted alike, however layers, rows and sequences are cut. The interpreter runs a pipeline; in
/// the full tier trainers run the cases.
#[test]
fn runs_predict_further_tokens() {
    let files = text_files(48);
    let source = support::path(super::further::FOLDER);
    let trainer = |settings: &[&str]| {
        let config = run_config(&source, &files, &[&RUN[..], settings].concat());
        Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
    };
    // Rows have few tokens, as steps are interpreted.
    let with = |settings: &[&'static str]| [settings, &["train.further_token_weight=0.3", "model.seq=8"]].concat();
    let interpreted = |settings: &[&str], count: usize| -> Vec<f64> {
        let mut run = InterpretedRun::new(&run_config(&source, &files, &[&RUN[..], settings].concat()));
        let asks = run.step.model.further_weight > 0.0;
        let mut golden = super::further::golden();
        golden.published = golden.published.predicting_further(asks);
        golden.begin(&mut run);
        (0..count).map(|_| run.step()[0]).collect()
    };
    let expected = interpreted(&with(&ONE_DEVICE), 2);
    let without = [&ONE_DEVICE[..], &["model.seq=8"]].concat();
    assert!(expected[0] > interpreted(&without, 1)[0] + 0.5, "the loss of further tokens is a part of it");
    check("in a pipeline, interpreted", &interpreted(&with(&IN_LOOP), 2), &expected);
    let all = [
        &IN_LOOP[..],
        &["mesh.axes=fsdp=2,expert=2", "target.devices=4", "train.microbatches=2"],
        &["mesh.axes=fsdp=2,context=4"],
        &PIPELINE,
        &ONE_DEVICE,
    ];
    for settings in cases("families runs of further tokens, compiled", 0, all) {
        check(&format!("{settings:?}"), &steps(&mut trainer(&with(settings)), 2), &expected);
    }
}
