//! Replicas of every kind of model and mesh, in the interpreter, against the plain loop. There are a few steps, in
//! which every fragment syncs twice.

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::PlatformKind;
use meshloom::ir::Literal;
use meshloom::pjrt::Platform;
use meshloom::trace::{MapTree, Tree};
use meshloom_nn::Batch;
use meshloom_train::config::RunConfig;
use meshloom_train::run::{Calls, RunState};
use support::anchored::run_lowered;
use support::cases::cases;

use super::diloco_reference::{Cut, Outcome, Start, assert_near, reference};
use super::train_steps;

const MODEL: &str = r#"
[model]
layers = 4
embed = 16
heads = 2
kv_heads = 2
head_dim = 8
mlp = 32
vocab = 256
seq = 8
[train]
steps = 200
warmup = 1
learning_rate = 1e-3
"#;

const ROWS: usize = 4;
const LAYERS: usize = 4;

/// The steps are two periods of three, and one more.
const STEPS: u64 = 7;

fn config(settings: &[&str]) -> RunConfig {
    train_steps::config(MODEL, settings)
}

/// Returns the config of a run of two replicas with these keys set.
fn diloco_config(settings: &[&str]) -> RunConfig {
    let rows = format!("train.batch={}", 2 * ROWS);
    config(&[&["diloco.replicas=2", "diloco.sync_period=3", &rows], settings].concat())
}

/// Returns a batch of this many rows of random tokens, in documents of five.
fn batch(step: u64, rows: usize, seq: usize) -> Batch<Literal> {
    let integers = |f: &dyn Fn(usize) -> usize| {
        let values: Vec<i32> = (0..rows * seq).map(|index| f(index) as i32).collect();
        Literal::from_slice(&[rows, seq], &values).expect("as many elements")
    };
    let step = step as usize;
    Batch {
        tokens: integers(&|index| (index * 37 + step * 11) % 61),
        targets: integers(&|index| (index * 53 + step * 7) % 59),
        segment_ids: integers(&|index| index % seq / 5),
        positions: integers(&|index| index % seq % 5),
        weights: Literal::from_slice(&[rows, seq], &vec![1f32; rows * seq]).expect("as many elements"),
    }
}

/// The plain train step of one replica on one device.
struct Plain {
    lowered: Lowered,
    start: Start,
    /// The number of rows that a step gets: those of a replica, or those of all, where the others' have no weight.
    rows: usize,
    seq: usize,
}

impl Plain {
    fn new(settings: &[&str], rows: usize) -> Plain {
        let of_step = format!("train.batch={rows}");
        let config = config(&[&["mesh.axes=data=1", "target.devices=1", &of_step], settings].concat());
        let step = config.train_step().unwrap();
        let function = step.trace().expect("it traces");
        let lowered = lower(function.graph(), &LowerOptions::default()).expect("it lowers");
        let state = step.initialize(config.train.seed).unwrap();
        let params = state.params.paths();
        let start = Start { state: state.leaves(), params, layers: LAYERS };
        assert_eq!(start.state[0], state.params.leaves()[0], "parameters come first");
        Plain { lowered, start, rows, seq: config.model.seq }
    }

    fn step(&self, replica: usize, done: u64, state: &[Literal]) -> Vec<Literal> {
        let all = batch(done, 2 * ROWS, self.seq);
        let batch = match self.rows == ROWS {
            true => all.map(|_, leaf| rows_of(leaf, replica)),
            false => {
                let own = replica * ROWS * self.seq..(replica + 1) * ROWS * self.seq;
                let weight = |index: usize| if own.contains(&index) { 1.0 } else { 0.0 };
                Batch { weights: Literal::from_fn(all.weights.ty().clone(), weight), ..all }
            }
        };
        let mut results = run_lowered(&self.lowered, &[state, &batch.leaves()].concat());
        results.truncate(state.len());
        results
    }
}

/// Returns the rows of a replica.
fn rows_of(leaf: &Literal, replica: usize) -> Literal {
    let mut ty = leaf.ty().clone();
    ty.dims[0] = ROWS;
    let size = ty.byte_count();
    Literal::from_bytes(ty, &leaf.bytes()[replica * size..][..size]).expect("as many bytes")
}

/// Compares a run of the config with the plain loop.
#[track_caller]
fn check(settings: &[&str], plain: &Plain, cut: &Cut) {
    let config = diloco_config(settings);
    let lowered = config.resolve().unwrap().lower(Calls::Single, &Platform::of_any_plugin(PlatformKind::Cpu));
    let lowered = lowered.unwrap_or_else(|error| panic!("{settings:?}: {error}")).1;
    let step = config.diloco_step().unwrap().expect("several replicas");
    let first = RunState::Diloco(Box::new(step.initialize(config.train.seed).unwrap()));
    let mut state = first.leaves();
    for done in 0..STEPS {
        let batch = batch(done, 2 * ROWS, config.model.seq).map(|_, leaf| {
            let mut ty = leaf.ty().clone();
            ty.dims[0] = ROWS;
            ty.dims.insert(0, 2);
            Literal::from_bytes(ty, leaf.bytes()).expect("as many bytes")
        });
        let mut results = run_lowered(&lowered, &[&state[..], &batch.leaves()].concat());
        results.truncate(state.len());
        state = results;
    }
    let of = |prefix: &str| -> Vec<Literal> {
        let all = first.paths().into_iter().zip(&state);
        all.filter(|(path, _)| path.starts_with(prefix)).map(|(_, leaf)| leaf.clone()).collect()
    };
    let found = Outcome::of(&of("inner.params."), &of("outer.params."), 2);
    let options = config.diloco_options().expect("several replicas");
    let expected =
        reference(&plain.start, &options, cut, STEPS, |replica, done, state| plain.step(replica, done, state));
    assert_near(format!("{settings:?}"), &found, &expected);
}

const INTERLEAVED: &[&[usize]] = &[&[0, 2], &[1, 3]];
const SEQUENTIAL: &[&[usize]] = &[&[0, 1], &[2, 3]];

fn cut(layers: &[&[usize]]) -> Vec<Vec<usize>> {
    layers.iter().map(|layers| layers.to_vec()).collect()
}

const STREAMING: &[&str] = &["diloco.streaming=true", "diloco.fragments=3"];

/// Muon trains the replicas.
#[test]
fn inner_muon() {
    let muon = "train.optimizer=muon";
    check(&["mesh.axes=diloco=2,fsdp=2,tensor=2", muon], &Plain::new(&[muon], ROWS), &[]);
}

/// Replicas that are pipelines: repeats are cut; each has one layer of every stage.
#[test]
fn replicas_that_are_pipelines() {
    let mesh = ["mesh.axes=diloco=2,stage=2,fsdp=2", "pipeline.repeats=2", "pipeline.microbatches=2"];
    let plain = Plain::new(&[], ROWS);
    for overlap in ["diloco.overlap_steps=2", "diloco.overlap_steps=0"] {
        let settings = [STREAMING, &mesh, &[overlap, "diloco.overlap_alpha=0.25"]].concat();
        check(&settings, &plain, &cut(SEQUENTIAL));
    }
}

#[test]
fn replicas_that_are_partially_sharded() {
    let settings = [STREAMING, &["mesh.axes=diloco=2,replica=2,fsdp=2", "diloco.overlap_steps=1"]].concat();
    check(&settings, &Plain::new(&[], ROWS), &cut(INTERLEAVED));
}

/// The activations that drop depend on the row of the whole batch: each replica trains as a plain run whose batch has
/// the rows of all, where only its own have a weight.
#[test]
fn replicas_with_dropout() {
    let dropout = "model.dropout=0.1";
    let plain = Plain::new(&[dropout], 2 * ROWS);
    for mesh in ["mesh.axes=diloco=2,data=4", "mesh.axes=diloco=2,stage=2,fsdp=2"] {
        let pipeline = ["pipeline.repeats=2", "pipeline.microbatches=2"];
        let pipeline = if mesh.contains("stage") { &pipeline[..] } else { &[] };
        check(&[&[mesh, dropout], pipeline].concat(), &plain, &[]);
    }
}

/// Replicas with routed experts: mapped over the replicas, they are what each computes alone.
#[test]
fn replicas_of_other_models() {
    let latent = [
        "model.family.q_lora=8",
        "model.family.kv_lora=8",
        "model.family.rope_head_dim=4",
        "model.family.v_head_dim=8",
    ];
    let families: [&[&str]; 2] = [&["model.family=mixtral"], &[&["model.family=deepseek"], &latent[..]].concat()];
    for family in cases("transform diloco experts", 1, families) {
        let model = [family, &["model.family.experts=4", "model.family.moe_mlp=16"]].concat();
        let mesh = ["mesh.axes=diloco=2,fsdp=2,expert=2", "diloco.overlap_steps=1"];
        check(&[STREAMING, &model, &mesh].concat(), &Plain::new(&model, ROWS), &cut(INTERLEAVED));
    }
}
