//! DiLoCo against plain loops that hold the replicas one by one. `MESHLOOM_EVERY_CASE=1` runs every combination of
//! settings, for twice as many steps.

use std::sync::OnceLock;

use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::{Literal, TensorType};
use meshloom::nn::Batch;
use meshloom::pjrt::{Array, Buffer, Platform, PlatformKind};
use meshloom::trace::Tree;
use meshloom::transform::diloco::{DilocoOptions, Fragment, Schedule};
use meshloom_train::Error;
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::data::TextDataset;
use meshloom_train::diloco::check_replicas;
use meshloom_train::run::{Calls, RunState};
use meshloom_train::step::aliases;
use support::configs::{self, TINY, UNOPTIMIZED};
use support::eight_devices::{client, relative_error};
use support::{every_case, some_of};

/// What each replica does with a tiny decoder.
const RUN: &[&str] = &["train.steps=200", "train.learning_rate=1e-3", UNOPTIMIZED];
const ROWS: usize = 4;
const LAYERS: usize = 4;

/// Five sync periods, or ten.
fn steps() -> u64 {
    if every_case() { 120 } else { 60 }
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

/// A replica of the reference loop: its state on one device.
struct Replica(Vec<Array>);

/// The plain train step of one replica, compiled for one device.
struct Plain {
    program: Program,
    start: Vec<Literal>,
    /// Paths of the state's leaves: first come the parameters.
    paths: Vec<String>,
    dataset: TextDataset,
    seq: usize,
    /// Rows that a step gets: those of a replica, or of all, of which the others' weigh nothing.
    rows: usize,
}

impl Plain {
    fn get() -> &'static Plain {
        static PLAIN: OnceLock<Plain> = OnceLock::new();
        PLAIN.get_or_init(|| Plain::of(&[]))
    }

    /// With these keys set.
    fn of(settings: &[&str]) -> Plain {
        Plain::of_rows(settings, ROWS)
    }

    /// With these keys set, and a step of so many rows.
    fn of_rows(settings: &[&str], rows: usize) -> Plain {
        let of_step = format!("train.batch={rows}");
        let own = ["mesh.axes=data=1", "target.devices=1", &of_step];
        let config = config(&own, settings);
        let step = config.train_step().unwrap();
        let function = step.trace().expect("it traces");
        let options = LowerOptions { aliases: aliases(&function), ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options).expect("it lowers");
        let program = lowered.compile(&client()).expect("it compiles");
        let start = step.initialize(config.train.seed).unwrap();
        let paths = start.paths();
        let tokenizer = config.load_tokenizer().expect("a tokenizer");
        let dataset = TextDataset::open(&config.data, &tokenizer, config.model.seq).expect("the text");
        Plain { program, start: start.leaves(), paths, dataset, seq: config.model.seq, rows }
    }

    fn param_count(&self) -> usize {
        self.paths.iter().filter(|path| path.starts_with("params.")).count()
    }

    fn put(&self, values: &[Literal]) -> Vec<Array> {
        self.program.put(0, &values.to_vec()).expect("they fit").leaves()
    }

    /// The rows of a replica of a step's batch.
    fn batch(&self, step: u64, replica: usize, replicas: usize) -> Vec<Literal> {
        let batch = self.dataset.batch(0, step, replicas * ROWS).expect("a batch");
        if self.rows == replicas * ROWS {
            let weights = batch.weights.to_vec::<f32>().expect("weights");
            let own = replica * ROWS * self.seq..(replica + 1) * ROWS * self.seq;
            let masked = weights.iter().enumerate().map(|(at, &weight)| if own.contains(&at) { weight } else { 0.0 });
            let weights = Literal::from_slice(&[self.rows, self.seq], &masked.collect::<Vec<_>>());
            return Batch { weights: weights.expect("as many"), ..batch }.leaves();
        }
        let leaves = batch.leaves();
        let own = |leaf: &Literal| {
            let size = leaf.bytes().len() / replicas;
            let ty = TensorType::new(leaf.ty().dtype, &[ROWS, self.seq]);
            Literal::from_bytes(ty, leaf.bytes()[replica * size..][..size].to_vec()).expect("as many bytes")
        };
        leaves.iter().map(own).collect()
    }

    fn step(&self, replica: &mut Replica, batch: &[Literal]) {
        let batch = self.program.put(replica.0.len(), &batch.to_vec()).expect("a batch").leaves();
        let arguments: Vec<&Array> = replica.0.iter().chain(&batch).collect();
        let mut outputs = self.program.run(&arguments).expect("it runs");
        outputs.truncate(self.paths.len());
        replica.0 = outputs;
    }
}

fn numbers(literal: &Literal) -> Vec<f32> {
    literal.to_vec::<f32>().expect("numbers")
}

/// The elements of a parameter that a fragment holds: all, none, or those of some layers.
fn elements(path: &str, count: usize, fragment: Fragment, cut: &Cut) -> Vec<usize> {
    let is_layer = path.contains("layers.");
    match fragment {
        Fragment::Part(0) if is_layer => Vec::new(),
        Fragment::Part(1..) if !is_layer => Vec::new(),
        Fragment::Whole | Fragment::Part(0) => (0..count).collect(),
        Fragment::Part(number) => {
            let size = count / LAYERS;
            cut[number - 1].iter().flat_map(|layer| layer * size..(layer + 1) * size).collect()
        }
    }
}

/// The layers of each fragment but the first.
type Cut = [Vec<usize>];

/// What a run comes to: each replica's parameters, and the outer ones.
struct Outcome {
    inner: Vec<Vec<Vec<f32>>>,
    outer: Vec<Vec<f32>>,
}

/// The reference: replicas one after the other, outer parameters and velocities as plain vectors.
fn reference(plain: &Plain, options: &DilocoOptions, schedule: Schedule, cut: &Cut, steps: u64) -> Outcome {
    let replicas = options.replicas;
    let count = plain.param_count();
    let alpha = options.streaming.map_or(0.0, |streaming| streaming.overlap_alpha) as f32;
    let (rate, momentum) = (options.outer_rate as f32, options.outer_momentum as f32);
    let mut of_replicas: Vec<Replica> = (0..replicas).map(|_| Replica(plain.put(&plain.start))).collect();
    let mut outer: Vec<Vec<f32>> = plain.start[..count].iter().map(numbers).collect();
    let mut velocity: Vec<Vec<f32>> = outer.iter().map(|param| vec![0.0; param.len()]).collect();
    let fetch = |of_replicas: &[Replica]| -> Vec<Vec<Vec<f32>>> {
        let get = |array: &Array| numbers(&array.get().expect("a value"));
        of_replicas.iter().map(|replica| replica.0[..count].iter().map(get).collect()).collect()
    };
    for step in 1..=steps {
        for (index, replica) in of_replicas.iter_mut().enumerate() {
            plain.step(replica, &plain.batch(step - 1, index, replicas));
        }
        let event = schedule.after_step(step as usize);
        if event == Default::default() {
            continue;
        }
        let mut inner = fetch(&of_replicas);
        for param in 0..count {
            let size = outer[param].len();
            let places = |fragment| elements(&plain.paths[param], size, fragment, cut);
            for at in event.sent.map(places).into_iter().flatten() {
                let outer = &mut outer[param][at];
                let mean = inner.iter().map(|inner| *outer - inner[param][at]).sum::<f32>() / replicas as f32;
                let velocity = &mut velocity[param][at];
                *velocity = momentum * *velocity + mean;
                *outer -= rate * (mean + momentum * *velocity);
            }
            for at in event.applied.map(places).into_iter().flatten() {
                let outer = outer[param][at];
                inner.iter_mut().for_each(|inner| inner[param][at] = alpha * inner[param][at] + (1.0 - alpha) * outer);
            }
        }
        for (replica, params) in of_replicas.iter_mut().zip(&inner) {
            let literals: Vec<Literal> = params
                .iter()
                .zip(&plain.start)
                .map(|(param, start)| Literal::from_slice(&start.ty().dims, param).expect("as many"))
                .collect();
            replica.0.splice(..count, plain.put(&literals));
        }
    }
    Outcome { inner: fetch(&of_replicas), outer }
}

fn outcome(trainer: &Trainer, replicas: usize) -> Outcome {
    let RunState::Diloco(state) = trainer.state() else { panic!("a run of several replicas") };
    let get = |array: Array| numbers(&array.get().expect("a value"));
    let inner: Vec<Vec<f32>> = state.inner.params.leaves().into_iter().map(get).collect();
    let of = |replica: usize| {
        let part = |param: &Vec<f32>| param[replica * param.len() / replicas..][..param.len() / replicas].to_vec();
        inner.iter().map(part).collect()
    };
    Outcome {
        inner: (0..replicas).map(of).collect(),
        outer: state.outer.params.leaves().into_iter().map(get).collect(),
    }
}

/// The largest error of any parameter of any replica, and of any outer parameter.
fn worst(found: &Outcome, expected: &Outcome) -> (f64, f64) {
    let wide = |param: &[f32]| param.iter().map(|&number| f64::from(number)).collect::<Vec<f64>>();
    let of = |found: &[Vec<f32>], expected: &[Vec<f32>]| {
        assert_eq!(found.len(), expected.len());
        let errors = found.iter().zip(expected).map(|(found, expected)| relative_error(&wide(found), &wide(expected)));
        errors.fold(0.0, f64::max)
    };
    let inner = found.inner.iter().zip(&expected.inner).map(|(found, expected)| of(found, expected));
    (inner.fold(0.0, f64::max), of(&found.outer, &expected.outer))
}

/// A run to its end, in calls of as many steps as the config says.
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
    let options = config.diloco_options().expect("several replicas");
    reference(Plain::get(), &options, options.schedule().expect("they go together"), cut, steps)
}

#[track_caller]
fn check(replicas: usize, settings: &[&str], cut: &Cut) {
    check_steps(replicas, settings, cut, steps());
}

#[track_caller]
fn check_steps(replicas: usize, settings: &[&str], cut: &Cut, steps: u64) {
    let config = diloco_config(replicas, settings);
    let expected = reference_of(&config, cut, steps);
    let (found, losses) = run(&config, steps);
    let (first, last) = (losses[..10].iter().sum::<f64>(), losses[losses.len() - 10..].iter().sum::<f64>());
    assert!(last < 0.9 * first, "nothing is learned: {losses:?}");
    let (inner, outer) = worst(&found, &expected);
    println!("{replicas} replicas, {settings:?}: inner {inner:.1e}, outer {outer:.1e}");
    assert!(inner <= 1e-5 && outer <= 1e-5, "{replicas} replicas, {settings:?}: inner {inner:e}, outer {outer:e}");
}

#[test]
fn vanilla() {
    for replicas in [2, 4] {
        check(replicas, &[], &[]);
    }
}

/// Muon trains the replicas.
#[test]
fn inner_muon() {
    let muon = "train.optimizer=muon";
    let config = diloco_config(2, &[muon]);
    let options = config.diloco_options().expect("several replicas");
    let expected = reference(&Plain::of(&[muon]), &options, options.schedule().expect("one"), &[], 24);
    let (inner, outer) = worst(&run(&config, 24).0, &expected);
    println!("inner {inner:.1e}, outer {outer:.1e}");
    assert!(inner <= 1e-5 && outer <= 1e-5, "inner {inner:e}, outer {outer:e}");
}

const STREAMING: &[&str] = &["diloco.streaming=true", "diloco.fragments=3"];

/// Each overlap with one of two weights, so that the four tests below have every pair of settings; with
/// `MESHLOOM_EVERY_CASE=1` each with both.
fn check_streaming(replicas: usize, order: &str, cut: &Cut) {
    let other = usize::from(replicas == 4) + usize::from(order.ends_with("true"));
    for (index, overlap) in [0, 1, 3].into_iter().enumerate() {
        let overlap = format!("diloco.overlap_steps={overlap}");
        for (number, alpha) in ["diloco.overlap_alpha=0.0", "diloco.overlap_alpha=0.5"].into_iter().enumerate() {
            if every_case() || (index + other + number).is_multiple_of(2) {
                check(replicas, &[STREAMING, &[order, &overlap, alpha]].concat(), cut);
            }
        }
    }
}

#[test]
fn interleaved_fragments_of_two_replicas() {
    check_streaming(2, "diloco.sequential_layers=false", &[vec![0, 2], vec![1, 3]]);
}

#[test]
fn sequential_fragments_of_two_replicas() {
    check_streaming(2, "diloco.sequential_layers=true", &[vec![0, 1], vec![2, 3]]);
}

#[test]
fn interleaved_fragments_of_four_replicas() {
    check_streaming(4, "diloco.sequential_layers=false", &[vec![0, 2], vec![1, 3]]);
}

#[test]
fn sequential_fragments_of_four_replicas() {
    check_streaming(4, "diloco.sequential_layers=true", &[vec![0, 1], vec![2, 3]]);
}

#[test]
fn uneven_fragments() {
    let uneven =
        ["diloco.streaming=true", "diloco.fragments=4", "diloco.uneven_fragments=true", "diloco.overlap_steps=1"];
    check(4, &uneven, &[vec![0, 3], vec![1], vec![2]]);
    let blocks = [&uneven[..], &["diloco.sequential_layers=true"]].concat();
    check(4, &blocks, &[vec![0, 1], vec![2], vec![3]]);
}

/// Several syncs of other fragments lie between a fragment's sending and its use.
#[test]
fn a_long_overlap() {
    let late = [STREAMING, &["diloco.overlap_steps=11", "diloco.overlap_alpha=0.5"]].concat();
    check(4, &late, &[vec![0, 2], vec![1, 3]]);
}

/// However many steps a call has, the state after them is the same: with transfers that overlap (24 steps, from step 1
/// on), and without (a count that fits no period; no overlap).
#[test]
fn steps_per_call() {
    let uneven =
        &["diloco.streaming=true", "diloco.fragments=4", "diloco.uneven_fragments=true", "diloco.overlap_steps=2"][..];
    let overlapping = [STREAMING, &["diloco.overlap_steps=1", "diloco.overlap_alpha=0.5"]].concat();
    let all: &[&str] = if every_case() { &["24", "12", "7"] } else { &["24", "7"] };
    let cases: [(&[&str], &[&str]); 3] = [(&overlapping, all), (uneven, &["12"]), (&[], &["12"])];
    for (settings, counts) in cases {
        let (expected, expected_losses) = run(&diloco_config(2, settings), steps());
        for count in counts {
            let per_call = format!("train.steps_per_call={count}");
            let config = diloco_config(2, &[settings, &[per_call.as_str()]].concat());
            let (found, losses) = run(&config, steps());
            let (inner, outer) = worst(&found, &expected);
            let of_losses = relative_error(&losses, &expected_losses);
            println!("{settings:?} {per_call}: inner {inner:.1e}, outer {outer:.1e}, losses {of_losses:.1e}");
            assert!(
                inner.max(outer).max(of_losses) <= 1e-5,
                "{settings:?} {per_call}: {inner:e} {outer:e} {of_losses:e}"
            );
        }
    }
}

/// A program of whole periods that begins where a fragment has come in has no conditionals.
#[test]
fn overlapping_programs_decide_nothing() {
    let settings = [STREAMING, &["diloco.overlap_steps=1"]].concat();
    let module = |calls| {
        let lowered = diloco_config(2, &settings)
            .lower_run(calls, &Platform::of_any_plugin(PlatformKind::Cpu))
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

/// That errors are small says something only if what could be wrong makes large ones: a step too late, another weight,
/// another cut.
#[test]
fn other_runs_are_other_numbers() {
    let steps = 60;
    let interleaved: &Cut = &[vec![0, 2], vec![1, 3]];
    let settings = |overlap: &str, alpha: &str| {
        let (overlap, alpha) = (format!("diloco.overlap_steps={overlap}"), format!("diloco.overlap_alpha={alpha}"));
        diloco_config(2, &[STREAMING, &[&overlap, &alpha]].concat())
    };
    let base = reference_of(&settings("1", "0.5"), interleaved, steps);
    let others = [
        reference_of(&settings("2", "0.5"), interleaved, steps),
        reference_of(&settings("1", "0.0"), interleaved, steps),
        reference_of(&settings("1", "0.5"), &[vec![0, 1], vec![2, 3]], steps),
        reference_of(&diloco_config(2, &[]), &[], steps),
    ];
    for (index, other) in others.iter().enumerate() {
        let (inner, outer) = worst(other, &base);
        assert!(inner > 1e-4 && outer > 1e-4, "{index}: inner {inner:e}, outer {outer:e}");
    }
}

/// Replicas that are pipelines: repeats are cut, of which each has one layer of every stage.
#[test]
fn replicas_that_are_pipelines() {
    let mesh = ["mesh.axes=diloco=2,stage=2,fsdp=2", "pipeline.repeats=2", "pipeline.microbatches=2"];
    for overlap in ["diloco.overlap_steps=0", "diloco.overlap_steps=3"] {
        let settings = [STREAMING, &mesh, &[overlap, "diloco.overlap_alpha=0.5"]].concat();
        check_steps(2, &settings, &[vec![0, 1], vec![2, 3]], 60);
    }
}

#[test]
fn replicas_that_are_partially_sharded() {
    let settings = [STREAMING, &["mesh.axes=diloco=2,replica=2,fsdp=2", "diloco.overlap_steps=1"]].concat();
    check_steps(2, &settings, &[vec![0, 2], vec![1, 3]], 60);
}

/// Which activations drop depends on the row of the whole batch: each replica trains as a plain run whose batch has the
/// rows of all, where only its own weigh anything.
#[test]
fn replicas_with_dropout() {
    let dropout = ["model.dropout=0.1"];
    for mesh in ["mesh.axes=diloco=2,data=4", "mesh.axes=diloco=2,stage=2,fsdp=2"] {
        let pipeline = ["pipeline.repeats=2", "pipeline.microbatches=2"];
        let pipeline = if mesh.contains("stage") { &pipeline[..] } else { &[] };
        let config = diloco_config(2, &[&[mesh], &dropout[..], pipeline].concat());
        let options = config.diloco_options().expect("several replicas");
        let schedule = options.schedule().expect("they go together");
        let expected = reference(&Plain::of_rows(&dropout, 2 * ROWS), &options, schedule, &[], 30);
        let (inner, outer) = worst(&run(&config, 30).0, &expected);
        assert!(inner <= 1e-5 && outer <= 1e-5, "{mesh}: inner {inner:e}, outer {outer:e}");
    }
}

/// Replicas with routed experts: mapped over the replicas, they are what each computes alone.
#[test]
fn replicas_of_other_models() {
    let latent = ["model.q_lora=8", "model.kv_lora=8", "model.rope_head_dim=4", "model.v_head_dim=8"];
    let families: [&[&str]; 2] = [&["model.family=mixtral"], &[&["model.family=deepseek"], &latent[..]].concat()];
    for family in families {
        let model = [family, &["model.experts=4", "model.moe_mlp=16"]].concat();
        let mesh = ["mesh.axes=diloco=2,fsdp=2,expert=2", "diloco.overlap_steps=1"];
        let config = diloco_config(2, &[STREAMING, &model, &mesh].concat());
        let options = config.diloco_options().expect("several replicas");
        let schedule = options.schedule().expect("they go together");
        let expected = reference(&Plain::of(&model), &options, schedule, &[vec![0, 2], vec![1, 3]], 30);
        let (inner, outer) = worst(&run(&config, 30).0, &expected);
        println!("{model:?}: inner {inner:.1e}, outer {outer:.1e}");
        assert!(inner <= 1e-5 && outer <= 1e-5, "{model:?}: inner {inner:e}, outer {outer:e}");
    }
}

/// A part of an outer parameter that is other than on the other replica is found, and named.
#[test]
fn replicas_that_differ_are_found() {
    let mut trainer = Trainer::new(&diloco_config(2, &[]), &client()).unwrap_or_else(|error| panic!("{error}"));
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

/// Pseudo-gradients in 16, 8 and 4 bits train as well as whole ones: the mean loss of the last steps is within 1 %. By
/// default, the fewest bits are tried.
#[test]
fn low_bit_transport_learns_as_well() {
    let last = |transport: &str| {
        let transport = format!("diloco.transport={transport}");
        let model = ["model.embed=32", "model.mlp=96", "model.seq=32", "train.learning_rate=3e-3", "train.batch=16"];
        let settings = [STREAMING, &model, &["diloco.overlap_steps=1", "train.steps_per_call=24", &transport]].concat();
        let losses = run(&diloco_config(2, &settings), 200).1;
        (losses[0], losses[losses.len() - 20..].iter().sum::<f64>() / 20.0)
    };
    let (first, whole) = last("f32");
    assert!(whole < 0.7 * first, "from {first} to {whole}");
    for transport in some_of(["int4", "f8", "bf16"], 3) {
        let (_, loss) = last(transport);
        println!("{transport}: {loss:.4}, in full precision {whole:.4}");
        assert!((loss / whole - 1.0).abs() <= 0.01, "{transport}: {loss}, in full precision {whole}");
    }
}
