//! Runs of several replicas by a trainer, against plain loops that hold the replicas one by one. Tests in
//! `diloco_stack` try every combination of settings, on a small model.

use std::cell::LazyCell;
use std::sync::OnceLock;

use super::diloco_reference::{Cut, Outcome, Start, assert_near, reference, worst};
use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::hlo::PlatformKind;
use meshloom::ir::{Literal, TensorType};
use meshloom::pjrt::{Array, Buffer, Platform};
use meshloom::trace::Tree;
use meshloom_train::config::RunConfig;
use meshloom_train::data::TextDataset;
use meshloom_train::run::{Calls, RunState, check_replicas};
use meshloom_train::{Error, Trainer};
use support::cases::{cases, every_case};
use support::configs::{self, TINY, UNOPTIMIZED};
use support::eight_devices::{client, relative_error};

/// The settings of each replica's run of a tiny decoder.
const RUN: &[&str] = &["train.steps=200", "train.learning_rate=1e-3", UNOPTIMIZED];
const ROWS: usize = 4;
const LAYERS: usize = 4;

/// Three sync periods, or ten.
fn steps() -> u64 {
    if every_case("transform diloco settings") { 120 } else { 36 }
}

fn config(own: &[&str], settings: &[&str]) -> RunConfig {
    configs::config(&[TINY, RUN, own, settings])
}

/// A run of several replicas with these keys set.
fn diloco_config(replicas: usize, settings: &[&str]) -> RunConfig {
    let mesh = if replicas == 2 { "diloco=2,fsdp=2,tensor=2" } else { "diloco=4,fsdp=2" };
    let own = [
        format!("mesh.axes={mesh}"),
        format!("diloco.replicas={replicas}"),
        format!("train.batch={}", replicas * ROWS),
        "diloco.sync_period=12".to_owned(),
        "diloco.check_replicas=true".to_owned(),
    ];
    config(&own.each_ref().map(String::as_str), settings)
}

/// The plain train step of one replica, compiled for one device.
struct Plain {
    program: Program,
    start: Start,
    dataset: TextDataset,
    seq: usize,
}

impl Plain {
    fn get() -> &'static Plain {
        static PLAIN: OnceLock<Plain> = OnceLock::new();
        PLAIN.get_or_init(|| {
            let of_step = format!("train.batch={ROWS}");
            let config = config(&["mesh.axes=data=1", "target.devices=1", &of_step], &[]);
            let step = config.train_step().unwrap();
            let function = step.trace().expect("it traces");
            let lowered = lower(function.graph(), &LowerOptions::default()).expect("it lowers");
            let program = lowered.compile(&client()).expect("it compiles");
            let state = step.initialize(config.train.seed).unwrap();
            let tokenizer = config.load_tokenizer().expect("a tokenizer");
            let dataset = TextDataset::open(&config.data, &tokenizer, config.model.seq).expect("the text");
            let start = Start { state: state.leaves(), params: state.params.paths(), layers: LAYERS };
            Plain { program, start, dataset, seq: config.model.seq }
        })
    }

    /// The rows of a replica of a step's batch.
    fn batch(&self, step: u64, replica: usize, replicas: usize) -> Vec<Literal> {
        let leaves = self.dataset.batch(0, step, replicas * ROWS).expect("a batch").leaves();
        let own = |leaf: &Literal| {
            let size = leaf.bytes().len() / replicas;
            let ty = TensorType::new(leaf.ty().dtype, &[ROWS, self.seq]);
            Literal::from_bytes(ty, leaf.bytes()[replica * size..][..size].to_vec()).expect("as many bytes")
        };
        leaves.iter().map(own).collect()
    }

    fn step(&self, state: &[Literal], batch: &[Literal]) -> Vec<Literal> {
        let arguments = self.program.put(0, &[state, batch].concat()).expect("they fit").leaves();
        let outputs = self.program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
        outputs[..state.len()].iter().map(|output| output.get().expect("a value")).collect()
    }
}

fn outcome(trainer: &Trainer, replicas: usize) -> Outcome {
    let RunState::Diloco(state) = trainer.state() else { panic!("a run of several replicas") };
    let get = |array: Array| array.get().expect("a value");
    let inner: Vec<Literal> = state.inner.params.leaves().into_iter().map(get).collect();
    let outer: Vec<Literal> = state.outer.params.leaves().into_iter().map(get).collect();
    Outcome::of(&inner, &outer, replicas)
}

/// A run to its end, with the steps per call of the config.
fn run(config: &RunConfig, steps: u64) -> (Outcome, Vec<f64>) {
    let mut trainer = Trainer::new(config, &client()).unwrap_or_else(|error| panic!("{error}"));
    let mut losses = Vec::new();
    while (losses.len() as u64) < steps {
        let metrics = trainer.steps(steps - losses.len() as u64).unwrap_or_else(|error| panic!("{error}"));
        assert!(metrics.iter().zip(losses.len() as u64 + 1..).all(|(metrics, step)| metrics.step == step));
        losses.extend(metrics.iter().map(|metrics| metrics.loss));
    }
    (outcome(&trainer, config.diloco.as_ref().map_or(1, |diloco| diloco.replicas)), losses)
}

fn reference_of(config: &RunConfig, cut: &Cut, steps: u64) -> Outcome {
    let plain = Plain::get();
    let options = config.diloco_options().expect("several replicas");
    let replicas = options.replicas;
    reference(&plain.start, &options, cut, steps, |replica, done, state| {
        plain.step(state, &plain.batch(done, replica, replicas))
    })
}

#[track_caller]
fn check(replicas: usize, settings: &[&str], cut: &Cut) {
    let (config, steps) = (diloco_config(replicas, settings), steps());
    let expected = reference_of(&config, cut, steps);
    let (found, losses) = run(&config, steps);
    let (first, last) = (losses[..10].iter().sum::<f64>(), losses[losses.len() - 10..].iter().sum::<f64>());
    assert!(last < 0.9 * first, "nothing is learned: {losses:?}");
    assert_near(format!("{replicas} replicas, {settings:?}"), &found, &expected);
}

/// In the small tier, the interpreter alone runs replicas that do not stream.
#[test]
fn vanilla() {
    for replicas in cases("transform diloco vanilla", 0, [2, 4]) {
        check(replicas, &[], &[]);
    }
}

const STREAMING: &[&str] = &["diloco.streaming=true", "diloco.fragments=3"];

/// The cases combine each order of fragments with each overlap and weight.
#[test]
fn streaming() {
    let mut all = Vec::new();
    for overlap in [1, 3, 0] {
        for alpha in ["diloco.overlap_alpha=0.25", "diloco.overlap_alpha=0.0"] {
            for order in ["diloco.sequential_layers=false", "diloco.sequential_layers=true"] {
                for replicas in [2, 4] {
                    all.push((replicas, overlap, alpha, order));
                }
            }
        }
    }
    for (replicas, overlap, alpha, order) in cases("transform diloco settings", 1, all) {
        let overlap = format!("diloco.overlap_steps={overlap}");
        let cut = if order.ends_with("true") { [vec![0, 1], vec![2, 3]] } else { [vec![0, 2], vec![1, 3]] };
        check(replicas, &[STREAMING, &[order, &overlap, alpha]].concat(), &cut);
    }
}

#[test]
fn uneven_fragments() {
    let uneven =
        ["diloco.streaming=true", "diloco.fragments=4", "diloco.uneven_fragments=true", "diloco.overlap_steps=1"];
    let blocks = [&uneven[..], &["diloco.sequential_layers=true"]].concat();
    let all = [(&uneven[..], [vec![0, 3], vec![1], vec![2]]), (&blocks, [vec![0, 1], vec![2], vec![3]])];
    for (settings, cut) in cases("transform diloco uneven", 0, all) {
        check(4, settings, &cut);
    }
}

/// However many steps a call has, the state after them is the same: with transfers that overlap (two periods, from step
/// 1 on), and without (a count that fits no period; no overlap). In the small tier, runs that stream have both calls of
/// a period and calls of one step.
#[test]
fn steps_per_call() {
    let uneven =
        &["diloco.streaming=true", "diloco.fragments=4", "diloco.uneven_fragments=true", "diloco.overlap_steps=2"][..];
    let overlapping = [STREAMING, &["diloco.overlap_steps=1", "diloco.overlap_alpha=0.25"]].concat();
    let two = ["mesh.axes=diloco=2", "target.devices=2"];
    let on_two = [&overlapping[..], &two, &["diloco.sync_period=3"]].concat();
    let all: [(&[&str], &str); 5] =
        [(&on_two, "6"), (&overlapping, "24"), (&overlapping, "7"), (uneven, "12"), (&[], "12")];
    for (settings, count) in cases("transform diloco steps per call", 0, all) {
        let steps = steps();
        let (expected, expected_losses) = run(&diloco_config(2, settings), steps);
        let per_call = format!("train.steps_per_call={count}");
        let config = diloco_config(2, &[settings, &[per_call.as_str()]].concat());
        let (found, losses) = run(&config, steps);
        let (inner, outer) = worst(&found, &expected);
        let of_losses = relative_error(&losses, &expected_losses);
        assert!(inner.max(outer).max(of_losses) <= 1e-5, "{settings:?} {per_call}: {inner:e} {outer:e} {of_losses:e}");
    }
}

/// A program of whole periods that begins where a fragment has come in has no conditionals.
#[test]
fn overlapping_programs_decide_nothing() {
    let settings = [STREAMING, &["diloco.overlap_steps=1"]].concat();
    let module = |calls| {
        let lowered = diloco_config(2, &settings)
            .resolve()
            .unwrap()
            .lower(calls, &Platform::of_any_plugin(PlatformKind::Cpu))
            .expect("it lowers")
            .1;
        let proto = lowered.module.decode().expect("a module");
        let instructions = proto.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.filter(|instruction| instruction.opcode == "conditional").count()
    };
    assert_eq!(module(Calls::Several(24)), 0);
    assert!(module(Calls::Several(7)) > 0);
    assert!(module(Calls::Single) > 0);
}

/// A part of an outer parameter that is other than on the other replica is found, and named.
#[test]
fn replicas_that_differ_are_found() {
    // The config is the first of those that stream, which is compiled anyway.
    let settings = [STREAMING, &["diloco.overlap_steps=1", "diloco.overlap_alpha=0.25"]].concat();
    let mut trainer = Trainer::new(&diloco_config(2, &settings), &client()).unwrap_or_else(|error| panic!("{error}"));
    trainer.step().expect("a step");
    let mut outer = trainer.state().params().clone();
    check_replicas(&outer).expect("they are alike");
    let array = outer.final_norm.clone();
    let mut shards = array.shards().to_vec();
    let last = shards.len() - 1;
    let mut numbers = array.shard(last).expect("a part").to_vec::<f32>().expect("numbers");
    numbers[3] += 1e-6;
    let changed = Literal::from_slice(&shards[last].ty().dims.clone(), &numbers).expect("as many");
    shards[last] = Buffer::from_literal(&client(), &changed, last).expect("a buffer");
    outer.final_norm = Array::from_shards(array.ty().clone(), array.layout().clone(), shards).expect("an array");
    let error = check_replicas(&outer).expect_err("one differs");
    assert!(
        matches!(&error, Error::Replicas(differ) if differ.path == "final_norm" && differ.device == last),
        "{error}"
    );
}

/// Pseudo-gradients in 16, 8 and 4 bits train as well as whole ones: the mean loss of the last steps is within 1 %.
/// Other tests show in the small tier how much is lost on the way.
#[test]
fn low_bit_transport_learns_as_well() {
    let last = |transport: &str| {
        let transport = format!("diloco.transport={transport}");
        let model = ["model.embed=32", "model.mlp=96", "model.seq=32", "train.learning_rate=3e-3", "train.batch=16"];
        let settings = [STREAMING, &model, &["diloco.overlap_steps=1", "train.steps_per_call=24", &transport]].concat();
        let losses = run(&diloco_config(2, &settings), 200).1;
        (losses[0], losses[losses.len() - 20..].iter().sum::<f64>() / 20.0)
    };
    let in_full = LazyCell::new(|| last("f32"));
    for transport in cases("transform diloco transports", 0, ["int4", "f8", "bf16"]) {
        let (first, whole) = *in_full;
        assert!(whole < 0.7 * first, "from {first} to {whole}");
        let (_, loss) = last(transport);
        assert!((loss / whole - 1.0).abs() <= 0.01, "{transport}: {loss}, in full precision {whole}");
    }
}
