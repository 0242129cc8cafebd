//! Training in bf16: the type of every value that matters, whole steps over meshes, pipelines and replicas against one
//! device, and what master copies are good for.
//!
//! Where an equality in `f32` holds to 1e-5, one in `bf16` cannot: activations have 8 bits, and a sum over devices is
//! of parts that have been rounded. Each rounding is off by at most 2^-9, about 2e-3. In a loss, the mean over a
//! thousand tokens, such errors mostly cancel: the losses of six steps agree to 2e-4, and with those in `f32` to 1e-3.

use std::collections::BTreeMap;

use meshloom::ir::{DType, Literal};
use meshloom::trace::Tree;
use meshloom_train::Trainer;
use meshloom_train::checkpoint::{Checkpointer, Fallback, Start, find};
use meshloom_train::config::CheckpointConfig;
use support::cases::{cases, every_case};
use support::configs::{self, DECODER, DROPOUT, MIXED, ONE_DEVICE, ONE_F_ONE_B, SHORT_RUN, TINY};
use support::eight_devices::{client, relative_error};

use super::interpreted::InterpretedRun;

/// `f32` parameters, computed with in `bf16`.
const COMPUTE: &[&str] = &["model.compute_dtype=bf16"];
/// `bf16` parameters with `f32` master copies.
const MASTERS: &[&str] = &["model.compute_dtype=bf16", "model.param_dtype=bf16"];

fn losses(settings: &[&[&str]], steps: usize) -> Vec<f64> {
    let config = configs::config(&[&[SHORT_RUN], settings].concat());
    let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    (0..steps).map(|_| trainer.step().expect("a step").loss).collect()
}

/// The losses of some steps agree with those of a plain run, and with those in `f32`: of these forms in these
/// precisions.
#[track_caller]
fn check(base: &[&str], plain: &[&str], all: &[(&[&str], &[&str])]) {
    const STEPS: usize = 6;
    let wide = losses(&[base, plain], STEPS);
    for (precision, form) in all {
        let expected = losses(&[base, precision, plain], STEPS);
        assert!(expected[STEPS - 1] < expected[0] - 0.3, "nothing is learned: {expected:?}");
        let error = relative_error(&expected, &wide);
        println!("{base:?} {precision:?}: {error:.1e} from f32");
        assert!((1e-6..1e-3).contains(&error), "{precision:?}: {error:.1e} from f32: {expected:?} {wide:?}");
        let found = losses(&[base, precision, form], STEPS);
        let error = relative_error(&found, &expected);
        println!("{base:?} {precision:?} {form:?}: {error:.1e}");
        assert!(error < 2e-4, "{precision:?} {form:?}: {error:.1e}: {found:?} {expected:?}");
    }
}

/// Meshes, a pipeline, and partially sharded data parallelism.
#[test]
fn any_form_agrees_with_one_device() {
    let forms: [&[&str]; 4] =
        [MIXED, &["mesh.axes=fsdp=4,tensor=2"], &["mesh.axes=replica=2,fsdp=4", "train.microbatches=2"], ONE_F_ONE_B];
    let all = [MASTERS, COMPUTE].into_iter().flat_map(|precision| forms.map(|form| (precision, form)));
    check(DROPOUT, ONE_DEVICE, &cases("train bf16", 1, all));
}

/// Against replicas of one device each. The outer optimizer works on the master copies.
#[test]
fn replicas_of_several_devices_agree_with_those_of_one() {
    const BASE: &[&str] = &["diloco.replicas=2", "diloco.sync_period=2"];
    let (one, several) = (["mesh.axes=diloco=2", "target.devices=2"], ["mesh.axes=diloco=2,fsdp=4"]);
    let streaming = [BASE, &["diloco.streaming=true", "diloco.fragments=2"]].concat();
    for base in cases("train bf16 of replicas", 0, [BASE, &streaming]) {
        check(base, &one, &[(MASTERS, &several)]);
    }
}

/// Parameters are the master copies, rounded; these, and what the optimizer keeps, are `f32`.
#[test]
fn master_copies_are_what_is_trained() {
    let replicas = ["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2", "diloco.sync_period=2"];
    for form in cases("train master copies", 1, [MIXED, &replicas]) {
        let config = configs::config(&[SHORT_RUN, DROPOUT, MASTERS, form]);
        let mut trainer = Trainer::new(&config, &client()).expect("a trainer");
        (0..3).for_each(|_| assert!(trainer.step().expect("a step").loss.is_finite()));
        let state = trainer.state();
        let leaves = state.leaves().into_iter().map(|leaf| leaf.get().expect("a value"));
        let values: BTreeMap<String, Literal> = Tree::paths(state).into_iter().zip(leaves).collect();
        let mut rounded = 0;
        for (path, value) in &values {
            let is_param = path.starts_with("params.") || path.starts_with("inner.params.");
            let expected = if path.ends_with("step") {
                DType::S32
            } else if is_param {
                DType::BF16
            } else {
                DType::F32
            };
            assert_eq!(value.ty().dtype, expected, "{path}");
            if is_param {
                let master = &values[&path.replacen("params.", "master.", 1)];
                assert!(master.clone().convert(DType::BF16) == *value, "{path} is not its master copy, rounded");
                rounded += usize::from(master.clone().convert(DType::BF16).convert(DType::F32) != *master);
            }
        }
        assert_eq!(rounded, 12, "no master copy has anything that its parameter has not");
        // A checkpoint's parameters are those that were trained, not as they were rounded.
        let directory = tempfile::tempdir().expect("a folder");
        let place = CheckpointConfig { dir: directory.path().display().to_string(), every: 0, keep: 0, keep_best: 0 };
        let mut checkpointer = Checkpointer::new(&place, Start::Fresh).expect("a directory");
        trainer.save_checkpoint(&mut checkpointer).expect("saved");
        checkpointer.finish().expect("written");
        trainer.step().expect("a step");
        let saved = find(directory.path(), Fallback::Refuse).expect("a checkpoint").checkpoint;
        trainer.load_parameters_of(&saved).expect("the same model");
        let is_parameter = |path: &str| ["params.", "master.", "outer.params."].iter().any(|it| path.starts_with(it));
        let state = trainer.state();
        let mut compared = 0;
        for (path, leaf) in Tree::paths(state).into_iter().zip(state.leaves()).filter(|(path, _)| is_parameter(path)) {
            assert!(leaf.get().expect("a value") == values[&path], "{path} is not what was saved");
            compared += 1;
        }
        assert!(compared >= 12, "{compared}");
    }
}

/// Small updates are lost where parameters are `bf16` and nothing else: a weight near 1 changes by at least 2^-9. The
/// interpreter rounds every result to its type, of a tiny model; in the full tier XLA does, of a larger one.
#[test]
fn master_copies_keep_small_updates() {
    const SLOW: &[&str] =
        &["train.learning_rate=1e-5", "train.warmup=0", "train.weight_decay=0", "train.schedule=constant"];
    check_small_updates(&|settings| {
        let small = ["model.layers=1", "train.batch=4"];
        let mut run = InterpretedRun::new(&configs::config(&[TINY, SLOW, ONE_DEVICE, &small, settings]));
        // The number of steps is so large that the lost updates weigh more than the roundings of `bf16` in a batch of
        // 32 tokens.
        (0..100).map(|_| run.step()[0]).collect()
    });
    if every_case("train small updates, compiled") {
        check_small_updates(&|settings| losses(&[SLOW, ONE_DEVICE, settings], 20));
    }
}

fn check_small_updates(after: &dyn Fn(&[&str]) -> Vec<f64>) {
    let wide = after(&[]);
    let copies = relative_error(&after(MASTERS), &wide);
    let none = relative_error(&after(&[MASTERS, &["train.master_copies=false"]].concat()), &wide);
    println!("the losses differ from those in f32 by {copies:.1e} with master copies, by {none:.1e} without");
    assert!(copies < 1e-3 && none > 4.0 * copies, "{copies:.1e} {none:.1e}");
}

/// Gradients are added up in `f32` over devices that hold the same part of a parameter, whatever type they are made in.
#[test]
fn gradients_are_added_up_in_f32() {
    let over_data = |precision: &[&str]| -> u64 {
        let lowered = configs::lowered_step(&[DECODER, precision, MIXED]);
        let ledger = lowered.collectives();
        let over_data = ledger.iter().expect("a ledger").filter(|one| one.axes.iter().any(|axis| axis == "data"));
        over_data.map(|one| one.bytes).sum()
    };
    let expected = over_data(&[]);
    // All parameters count, with four bytes for each element that a device holds.
    assert!(expected > 4 * 100_000 / 4, "{expected}");
    assert_eq!([COMPUTE, MASTERS].map(over_data), [expected; 2]);
}
