//! DiLoCo against plain loops that hold the replicas one by one.

// A test says what it found by panicking.
#![allow(clippy::panic)]

mod eight_devices;

use std::sync::OnceLock;

use eight_devices::{client, relative_error};
use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::hlo::GroupFormat;
use meshloom::ir::{DType, Literal};
use meshloom::pjrt::Array;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Init, MapTree, Param, Tensor, TensorSpec, Tree, value_and_grad};
use meshloom::train::Trainer;
use meshloom::train::config::RunConfig;
use meshloom::train::data::TextDataset;
use meshloom::train::run::{Calls, RunState};
use meshloom::train::step::aliases;
use meshloom::transform::diloco::{
    Diloco, DilocoOptions, DilocoState, Fragment, HasParams, Layout, OuterState, Schedule, of_replicas,
};

meshloom::tree! {
    /// `x W + b`.
    struct Linear<T> {
        weight: T,
        bias: T,
    }

    struct Examples<T> {
        x: T,
        labels: T,
    }

    struct Input<T> {
        state: DilocoState<Linear<T>, Linear<T>, T>,
        examples: Examples<T>,
    }

    struct Output<T> {
        state: DilocoState<Linear<T>, Linear<T>, T>,
        losses: T,
    }
}

impl HasParams for Linear<Tensor> {
    type Params = Self;

    fn params(&self) -> Self {
        self.clone()
    }

    fn with_params(self, params: Self) -> Self {
        params
    }
}

/// A step of plain descent on the mean square error.
fn descend(params: Linear<Tensor>, examples: Examples<Tensor>) -> (Linear<Tensor>, Tensor) {
    let (loss, gradients) = value_and_grad(params.clone(), |params| {
        let product = examples.x.matmul(params.weight);
        (product + params.bias.broadcast_like(product, [1]) - examples.labels).square().mean(..)
    });
    let params = Linear { weight: params.weight - gradients.weight * 0.1, bias: params.bias - gradients.bias * 0.1 };
    (params, loss)
}

/// The simulation that MaxText's tests have, on one device or two.
fn simulation(mesh: Option<&str>) {
    let declared = Linear {
        weight: Param::new(DType::F32, [2, 1], &["", ""], Init::Constant(0.0)),
        bias: Param::new(DType::F32, [1], &[""], Init::Constant(0.0)),
    };
    let options =
        DilocoOptions { replicas: 2, sync_period: 3, outer_rate: 1.0, outer_momentum: 0.9, ..DilocoOptions::default() };
    let diloco = Diloco::new(&options, &declared, &Layout::default()).expect("options that go together");
    let spec = |param: &Param| param.spec.clone();
    let outer = || declared.map(|_, param| spec(param));
    let specs = Input {
        state: DilocoState {
            inner: declared.map(|_, param| of_replicas(&param.spec, 2)),
            outer: OuterState { params: outer(), momentum: outer() },
            step: TensorSpec::new(DType::S32, []),
        },
        examples: Examples {
            x: of_replicas(&TensorSpec::new(DType::F32, [2, 2]), 2),
            labels: of_replicas(&TensorSpec::new(DType::F32, [2, 1]), 2),
        },
    };
    let function = Function::trace("simulation", specs, |Input { state, examples }| {
        let (state, losses) = diloco.step(state, examples, descend);
        Output { state, losses }
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let mesh = mesh.map(|mesh| Mesh::parse(mesh, 2).expect("a mesh"));
    let rules = RuleSets::uniform(Rules::from_pairs(&[("diloco", &["diloco"])]).expect("rules"));
    let lower_options =
        LowerOptions { sharding: mesh.as_ref().map(|mesh| (mesh, &rules)), explicit: true, ..LowerOptions::default() };
    let lowered = lower(function.graph(), &lower_options).unwrap_or_else(|error| panic!("{error}"));
    let program = lowered.compile(&client()).unwrap_or_else(|error| panic!("{error}"));

    let start = Linear { weight: Literal::matrix(&[[2f32], [1.0]]), bias: Literal::vector(&[1f32]) };
    let twice = |literal: &Literal| stacked(&[literal.clone(), literal.clone()]);
    let mut state = DilocoState {
        inner: start.map(|_, literal| twice(literal)),
        outer: OuterState { params: start.clone(), momentum: start.map(|_, literal| zeros(literal)) },
        step: Literal::scalar(0i32),
    };
    let examples = Examples {
        x: Literal::from_slice(&[2, 2, 2], &[0f32, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]).expect("eight"),
        // Off by 1 in both examples of replica 0, by 1 and -1 in those of replica 1.
        labels: Literal::from_slice(&[2, 2, 1], &[1f32, 2.0, 1.0, 4.0]).expect("four"),
    };
    let mut losses = Vec::new();
    let mut outer_of_step = vec![start];
    for step in 1..=4 {
        let input = Input { state: state.clone(), examples: examples.clone() };
        let arguments = program.put(0, &input).expect("the inputs fit").leaves();
        let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
        let mut outputs = outputs.iter().map(|output| output.get().expect("a result"));
        state = state.rebuild(&mut || outputs.next().expect("as many as there were"));
        losses.push(outputs.next().expect("the losses").to_f64_vec()[0]);
        outer_of_step.push(state.outer.params.clone());
        assert_eq!(state.step, Literal::scalar(step));
        let is_outer = state.inner.leaves() == state.outer.params.map(|_, literal| twice(literal)).leaves();
        assert_eq!(is_outer, step == 3, "after step {step}");
    }
    let outer_of_step: Vec<Vec<Literal>> = outer_of_step.iter().map(Tree::leaves).collect();
    assert_eq!(outer_of_step[1], outer_of_step[0]);
    assert_eq!(outer_of_step[2], outer_of_step[0]);
    assert_ne!(outer_of_step[3], outer_of_step[0]);
    assert_eq!(outer_of_step[4], outer_of_step[3]);
    let error = relative_error(&losses, &[1.0, 0.49, 0.2401, 0.207545]);
    assert!(error <= 1e-5, "losses {losses:?}, off by {error:e}");
}

fn stacked(literals: &[Literal]) -> Literal {
    let ty = literals[0].ty();
    let mut dims = ty.dims.to_vec();
    dims.insert(0, literals.len());
    let bytes: Vec<u8> = literals.iter().flat_map(|literal| literal.bytes()).copied().collect();
    Literal::from_bytes(meshloom::ir::TensorType::new(ty.dtype, &dims), bytes).expect("as many bytes")
}

fn zeros(literal: &Literal) -> Literal {
    Literal::from_bytes(literal.ty().clone(), vec![0; literal.bytes().len()]).expect("as many bytes")
}

#[test]
fn simulation_of_two_replicas() {
    simulation(None);
    simulation(Some("diloco=2"));
}

/// A decoder of four layers, of which each replica trains on four rows a step.
const SMALL: &[&str] = &[
    "model.layers=4",
    "model.embed=16",
    "model.heads=2",
    "model.kv_heads=2",
    "model.head_dim=8",
    "model.mlp=32",
    "model.seq=8",
    "train.steps=200",
    "train.learning_rate=1e-3",
    // That LLVM takes its time over tiny kernels is of no use here.
    "target.compiler_options=[\"xla_backend_optimization_level=0\"]",
];
const ROWS: usize = 4;
const STEPS: u64 = 200;
const LAYERS: usize = 4;

fn config(settings: &[String]) -> RunConfig {
    let base = SMALL.iter().map(|&text| text.to_owned());
    let all: Vec<String> = base.chain(settings.iter().cloned()).collect();
    RunConfig::from_overrides(&all).unwrap_or_else(|error| panic!("{error}"))
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
    config(&[&own[..], &settings.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()].concat())
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
}

impl Plain {
    fn get() -> &'static Plain {
        static PLAIN: OnceLock<Plain> = OnceLock::new();
        PLAIN.get_or_init(|| {
            let own = ["mesh.axes=data=1", "target.devices=1", &format!("train.batch={ROWS}")];
            let config = config(&own.map(str::to_owned));
            let step = config.train_step();
            let function = step.trace().expect("it traces");
            let options = LowerOptions { aliases: aliases(&function), ..LowerOptions::default() };
            let lowered = lower(function.graph(), &options).expect("it lowers");
            let program = lowered.compile(&client()).expect("it compiles");
            let start = step.initialize(config.train.seed);
            let paths = start.paths();
            let tokenizer = config.load_tokenizer().expect("a tokenizer");
            let dataset = TextDataset::load_with(&config.data.text, &tokenizer).expect("the text");
            Plain { program, start: start.leaves(), paths, dataset, seq: config.model.seq }
        })
    }

    fn param_count(&self) -> usize {
        self.paths.iter().filter(|path| path.starts_with("params.")).count()
    }

    fn put(&self, values: &[Literal]) -> Vec<Array> {
        self.program.put(0, &values.to_vec()).expect("they fit").leaves()
    }

    /// The rows of a replica of a step's batch.
    fn batch(&self, step: u64, replica: usize, replicas: usize) -> Vec<Literal> {
        let batch = self.dataset.batch(0, step, replicas * ROWS, self.seq).expect("a batch");
        let leaves = [batch.tokens, batch.targets, batch.segment_ids, batch.positions, batch.weights];
        let own = |leaf: &Literal| {
            let size = leaf.bytes().len() / replicas;
            let ty = meshloom::ir::TensorType::new(leaf.ty().dtype, &[ROWS, self.seq]);
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

/// The elements of a parameter that a fragment holds, as ranges: all, none, or those of some layers.
fn elements(path: &str, count: usize, fragment: Fragment, cut: &Cut) -> Vec<std::ops::Range<usize>> {
    let is_layer = path.contains("layers.");
    match fragment {
        Fragment::Whole => vec![0..count],
        Fragment::Part(0) => {
            if is_layer {
                vec![]
            } else {
                vec![0..count]
            }
        }
        Fragment::Part(_) if !is_layer => vec![],
        Fragment::Part(number) => {
            let size = count / LAYERS;
            cut[number - 1].iter().map(|layer| layer * size..(layer + 1) * size).collect()
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
fn reference(replicas: usize, options: &DilocoOptions, schedule: Schedule, cut: &Cut) -> Outcome {
    let plain = Plain::get();
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
    for step in 1..=STEPS {
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
            for at in event.sent.map(places).into_iter().flatten().flatten() {
                let outer = &mut outer[param][at];
                let mean = inner.iter().map(|inner| *outer - inner[param][at]).sum::<f32>() / replicas as f32;
                let velocity = &mut velocity[param][at];
                *velocity = momentum * *velocity + mean;
                *outer -= rate * (mean + momentum * *velocity);
            }
            for at in event.applied.map(places).into_iter().flatten().flatten() {
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
fn run(config: &RunConfig) -> (Outcome, Vec<f64>) {
    let mut trainer = Trainer::new(config, &client()).unwrap_or_else(|error| panic!("{error}"));
    let mut losses = Vec::new();
    while (losses.len() as u64) < STEPS {
        let metrics = trainer.steps(STEPS - losses.len() as u64).unwrap_or_else(|error| panic!("{error}"));
        assert!(metrics.iter().zip(losses.len() as u64 + 1..).all(|(metrics, step)| metrics.step == step));
        losses.extend(metrics.iter().map(|metrics| metrics.loss));
    }
    (outcome(&trainer, config.diloco.as_ref().map_or(1, |diloco| diloco.replicas)), losses)
}

#[track_caller]
fn check(replicas: usize, settings: &[&str], cut: &Cut) {
    let config = diloco_config(replicas, settings);
    let options = config.diloco_options().expect("several replicas");
    let expected = reference(replicas, &options, options.schedule().expect("they go together"), cut);
    let (found, losses) = run(&config);
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

const STREAMING: &[&str] = &["diloco.streaming=true", "diloco.fragments=3"];

fn check_streaming(replicas: usize, order: &str, cut: &Cut) {
    for overlap in ["diloco.overlap_steps=0", "diloco.overlap_steps=1", "diloco.overlap_steps=3"] {
        for alpha in ["diloco.overlap_alpha=0.0", "diloco.overlap_alpha=0.5"] {
            check(replicas, &[STREAMING, &[order, overlap, alpha]].concat(), cut);
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

/// However many steps a call has, the state after them is the same: with transfers that overlap (24 steps, from step 1 on), and
/// without (a count that fits no period; no overlap).
#[test]
fn steps_per_call() {
    let uneven =
        &["diloco.streaming=true", "diloco.fragments=4", "diloco.uneven_fragments=true", "diloco.overlap_steps=2"][..];
    let overlapping = [STREAMING, &["diloco.overlap_steps=1", "diloco.overlap_alpha=0.5"]].concat();
    let cases: [(&[&str], &[&str]); 3] = [(&overlapping, &["24", "12", "7"]), (uneven, &["12"]), (&[], &["12"])];
    for (settings, counts) in cases {
        let (expected, expected_losses) = run(&diloco_config(2, settings));
        for count in counts {
            let per_call = format!("train.steps_per_call={count}");
            let config = diloco_config(2, &[settings, &[per_call.as_str()]].concat());
            let (found, losses) = run(&config);
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
        let lowered = diloco_config(2, &settings).lower_run(calls, GroupFormat::Lists).expect("it lowers").1;
        let proto = lowered.module.decode();
        let instructions = proto.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.filter(|instruction| instruction.opcode == "conditional").count()
    };
    assert_eq!(module(Calls::Several(24)), 0);
    assert!(module(Calls::Several(7)) > 0);
    assert!(module(Calls::Single) > 0);
}
