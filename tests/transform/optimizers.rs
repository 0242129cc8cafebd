//! Optimizers, schedules and the z-loss: twenty steps against optax (tests/oracle/optim.py) on any mesh, whole train
//! steps against the plain one on one device, and what Muon gathers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::transform::pairs;
use crate::transform::train_steps::{self, By, assert_same, batch};
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::DType::{F32, F64, S32};
use meshloom::ir::{Graph, Literal, TensorType};
use meshloom::optim::{AdamW, Decay, LearningRate, Muon, Optimizer, OptimizerState};
use meshloom::partition::CollectiveKind;
use meshloom::passes::CollectiveLimits;
use meshloom::sharding::{Mesh, Role, RuleSets, Rules};
use meshloom::trace::{Function, Init, MapTree, MatrixDims, Param, Specs, Tensor, Tree, arange, fori_loop, map, zeros};
use meshloom_train::config::RunConfig;
use safetensors::SafeTensors;
use support::anchored::{self, run_by_tier, run_compiled};
use support::eight_devices::relative_error;

/// `norm(found - expected) / norm(expected)`, of any tensor. optax's own f32 run is within 2e-7 of the golden numbers,
/// which are computed in f64.
const BOUND: f64 = 1e-6;
const STEPS: usize = 20;
const ONE: &str = "data=1";

meshloom::tree! {
    struct Problem<T> { embedding: T, norm: T, layers: Layers<T>, head: T }

    struct Layers<T> { up: T, wq: T, wo: T, experts: T }

    struct Inputs<T> { params: Problem<T>, optimizer: OptimizerState<T, Problem<T>>, curvature: Problem<T>, target: Problem<T> }

    struct Wide<T> { w: T }

    struct WideState<T> { params: Wide<T>, optimizer: OptimizerState<T, Wide<T>> }

    struct Outputs<T> { params: Problem<T>, optimizer: OptimizerState<T, Problem<T>>, rates: T }
}

fn problem() -> Problem<Param> {
    let param = |dims: &[usize], axes: &[&str]| Param::new(F32, dims, axes, Init::Constant(0.0));
    let matrix = |batch, inputs| Some(MatrixDims { batch, inputs });
    Problem {
        embedding: param(&[10, 8], &["vocab", "embed"]).with_matrix(None),
        norm: param(&[8], &["norm"]),
        layers: Layers {
            up: param(&[8, 16], &["embed", "mlp"]).stacked(4),
            wq: param(&[8, 2, 6], &["embed", "heads", "kv"]).stacked(4),
            wo: param(&[2, 6, 8], &["heads", "kv", "embed"]).with_matrix(matrix(0, 2)).stacked(4),
            experts: param(&[2, 8, 8], &["exp", "embed_no_exp_moe", "mlp"]).with_matrix(matrix(1, 1)).stacked(4),
        },
        head: param(&[8, 10], &["embed", "vocab"]).with_matrix(None),
    }
}

struct Golden(Vec<u8>);

impl Golden {
    fn load() -> Golden {
        Golden(std::fs::read(support::path("tests/oracle/optim.safetensors")).expect("the golden file"))
    }

    fn literal(&self, name: &str) -> Literal {
        let tensors = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        Literal::from_bytes(TensorType::new(F32, tensor.shape()), tensor.data()).expect("as many bytes")
    }

    fn setting<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, key: &str) -> T {
        let (_, metadata) = SafeTensors::read_metadata(&self.0).expect("a safetensors file");
        metadata.metadata().as_ref().expect("metadata")[key].parse().expect("a number")
    }

    fn optimizer(&self, name: &str) -> Optimizer {
        let adamw = AdamW {
            beta1: self.setting("beta1"),
            beta2: self.setting("beta2"),
            epsilon: self.setting("epsilon"),
            weight_decay: self.setting("weight_decay"),
            no_decay: vec!["emb*".to_owned(), "*.?o".to_owned()],
        };
        match name {
            "adamw" => Optimizer::AdamW(adamw),
            _ => Optimizer::Muon(Muon { momentum: self.setting("momentum"), rms: self.setting("rms"), adamw }),
        }
    }

    fn rate(&self, schedule: &str) -> LearningRate {
        LearningRate {
            peak: self.setting("peak"),
            warmup: self.setting("warmup"),
            steps: STEPS,
            floor: self.setting("floor"),
            decay: match schedule {
                "cosine" => Decay::Cosine,
                "linear" => Decay::Linear,
                "wsd" => Decay::Last(self.setting("decay_steps")),
                _ => Decay::Never,
            },
        }
    }

    fn inputs(&self, optimizer: &Optimizer) -> Inputs<Literal> {
        let of = |what: &str| problem().map(|path, _| self.literal(&format!("{what}.{path}")));
        let state = optimizer.state(&problem()).map(|_, param| Literal::from_fn(param.spec.ty.clone(), |_| 0.0));
        Inputs { params: of("start"), optimizer: state, curvature: of("curvature"), target: of("target") }
    }
}

/// Without gradient and decay, a parameter of f64 keeps all its digits.
#[test]
fn parameters_of_f64_keep_their_digits() {
    let declared = Wide { w: Param::new(F64, [4, 4], &["embed", "mlp"], Init::Constant(0.0)) };
    let adamw = AdamW { weight_decay: 0.0, ..AdamW::default() };
    for optimizer in [Optimizer::AdamW(adamw.clone()), Optimizer::Muon(Muon { adamw, ..Muon::default() })] {
        let state = WideState { params: declared.clone(), optimizer: optimizer.state(&declared) };
        let step = Function::trace("step", Specs(state.map(|_, param| param.spec.clone())), |state| {
            let WideState { params, optimizer: state } = state;
            let gradients = Wide { w: params.w.zeros_like() };
            let (params, _) = optimizer.update(&declared, (&params, &gradients), &state, zeros(S32, []), 1.0);
            params
        });
        let step = step.unwrap_or_else(|error| panic!("{error}"));
        let third = |index: usize| (index + 1) as f64 / 3.0;
        let inputs = state.map(|path, param| {
            let is_param = path.to_string().starts_with("params");
            Literal::from_fn(param.spec.ty.clone(), |index| if is_param { third(index) } else { 0.0 })
        });
        let found = anchored::run(step.graph(), &inputs.leaves())[0].to_f64_vec();
        assert_eq!(found, (0..16).map(third).collect::<Vec<_>>());
    }
}

/// Twenty steps, each with the gradient that the oracle states.
fn twenty_steps(optimizer: &Optimizer, rate: LearningRate) -> Arc<Graph> {
    let declared = problem();
    let specs = || declared.map(|_, param| param.spec.clone());
    let state = optimizer.state(&declared).map(|_, param| param.spec.clone());
    let inputs = Inputs { params: specs(), optimizer: state, curvature: specs(), target: specs() };
    let function = Function::trace("twenty_steps", Specs(inputs), |inputs: Inputs<Tensor>| {
        let Inputs { params, optimizer: state, curvature, target } = inputs;
        let (params, state) = fori_loop(STEPS, (params, state), |step, (params, state)| {
            let part = (step + 1).convert(F32) / STEPS as f64;
            let leaves = params.leaves().into_iter().zip(curvature.leaves()).zip(target.leaves());
            let gradients: Vec<Tensor> =
                leaves.map(|((param, curvature), target)| curvature * (param - target * part)).collect();
            let gradients = params.fill(gradients).expect("one for each parameter");
            optimizer.update(&declared, (&params, &gradients), &state, step, rate.rate(step))
        });
        Outputs { params, optimizer: state, rates: map(arange(S32, STEPS), |step| rate.rate(step)) }
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

fn by_tier(lowered: &Lowered, inputs: &[Literal]) -> Vec<Literal> {
    run_by_tier("transform golden optimizers", lowered, inputs)
}

type Run = fn(&Lowered, &[Literal]) -> Vec<Literal>;

#[track_caller]
fn check(golden: &Golden, [optimizer_name, schedule, mesh]: [&str; 3], run: Run) {
    let mesh = Mesh::parse(mesh, if mesh == ONE { 1 } else { 8 }).expect("a mesh");
    let preset = |role| Rules::preset_for(role, "decoder", true).expect("a preset");
    let rules =
        RuleSets { params: preset(Role::Params), compute: preset(Role::Compute), optimizer: preset(Role::Optimizer) };
    let optimizer = golden.optimizer(optimizer_name);
    let graph = twenty_steps(&optimizer, golden.rate(schedule));
    let options = LowerOptions {
        sharding: (mesh.device_count() > 1).then_some((&mesh, &rules)),
        deny_replication: true,
        ..LowerOptions::default()
    };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{mesh}: {error}"));
    let outputs = run(&lowered, &golden.inputs(&optimizer).leaves());
    let mut worst = (0.0, String::new());
    for (output, info) in outputs.iter().zip(graph.output_info()) {
        let expected = golden.literal(&format!("{optimizer_name}.{schedule}.{}", info.path)).to_f64_vec();
        let error = relative_error(&output.to_f64_vec(), &expected);
        worst = if error >= worst.0 { (error, info.path.to_string()) } else { worst };
    }
    println!("{optimizer_name}, {schedule} on {mesh}: {:.1e} in {}", worst.0, worst.1);
    assert!(worst.0 <= BOUND, "{optimizer_name}, {schedule} on {mesh}: {} is off by {:e}", worst.1, worst.0);
}

#[test]
fn twenty_steps_against_optax() {
    let golden = Golden::load();
    for optimizer in ["adamw", "muon"] {
        for schedule in ["cosine", "linear", "wsd", "constant"] {
            check(&golden, [optimizer, schedule, ONE], by_tier);
        }
    }
    check(&golden, ["adamw", "cosine", ONE], run_compiled);
}

#[test]
fn muon_against_optax_on_meshes() {
    let golden = Golden::load();
    for mesh in
        ["replica=2,fsdp=4", "fsdp=4,tensor=2", "fsdp=2,expert=2,tensor=2", "replica=4,tensor=2", "stage=4,fsdp=2"]
    {
        check(&golden, ["muon", "wsd", mesh], by_tier);
    }
    check(&golden, ["muon", "wsd", "fsdp=4,tensor=2"], run_compiled);
}

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
batch = 32
warmup = 1
learning_rate = 0.02
"#;

fn config(settings: &[&str]) -> RunConfig {
    train_steps::config(MODEL, &[settings, &["train.optimizer.epsilon=1e-2"]].concat())
}

/// Runs a step and returns loss, norm, new parameters and state.
fn run(settings: &[&str]) -> Vec<(String, Literal)> {
    let config = config(settings);
    let weight = |row: usize, place: usize| if (row + place).is_multiple_of(3) { 0.25 } else { 1.0 };
    train_steps::run(&config.train_step().expect("a step"), &config, batch(&config, weight), By::Interpreter)
}

/// Meshes, accumulation and pipelines with Muon and the z-loss, against one device.
#[test]
fn train_steps_equal_the_plain_one() {
    const OWN: [&[&str]; 2] = [&["train.optimizer=muon", "train.z_loss=0.01"], &["train.z_loss=0.01"]];
    const FORMS: [&[&str]; 5] = [
        &["mesh.axes=data=2,fsdp=4"],
        &["mesh.axes=fsdp=2,context=2,tensor=2", "train.microbatches=4"],
        &[
            "mesh.axes=stage=2,fsdp=2,tensor=2",
            "pipeline.schedule=1f1b",
            "pipeline.repeats=1",
            "pipeline.layers_per_stage=2",
        ],
        &["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "train.microbatches=2"],
        &["mesh.axes=stage=4,fsdp=2", "pipeline.repeats=1", "pipeline.schedule=gpipe"],
    ];
    let expected = OWN.map(|own| run(&[&["mesh.axes=data=1", "target.devices=1"], own].concat()));
    for [form, own] in pairs::of_two("transform optimizers", [FORMS.len(), OWN.len()]) {
        let settings = [FORMS[form], OWN[own]].concat();
        assert_same(&settings, &run(&settings), &expected[own]);
    }
}

/// Both optimizers' states have what they need of each parameter, and nothing else.
#[test]
fn states() {
    let state = config(&["train.optimizer=muon"]).train_step().expect("a step").state();
    let paths: BTreeSet<String> = state.optimizer.paths().into_iter().collect();
    let matrices = ["attention.wq", "attention.wk", "attention.wv", "attention.wo", "mlp.gate", "mlp.up", "mlp.down"];
    let others = ["embedding", "head", "final_norm", "layers.attention_norm", "layers.mlp_norm"];
    let momenta = matrices.map(|path| format!("momentum.layers.{path}"));
    let moments = others.into_iter().flat_map(|path| ["first", "second"].map(|name| format!("others.{name}.{path}")));
    assert_eq!(paths, momenta.into_iter().chain(moments).collect());
}

/// If layers are stacked, each device along `fsdp` and `tensor` gets some whole matrices: their elements are sent once
/// there and once back, by all-to-alls if the number of layers divides. Otherwise every device gathers all.
#[test]
fn what_muon_gathers() {
    /// Elements of the seven matrices of a layer.
    const MATRICES: u64 = 4 * 16 * 16 + 3 * 16 * 32;
    let gathered = |mesh: &str, layers: u64| {
        let settings = ["train.optimizer=muon", &format!("mesh.axes={mesh}"), &format!("model.layers={layers}")];
        let config = config(&settings);
        let step = config.train_step().expect("a step");
        let lowered = train_steps::lowered(&step, &config, CollectiveLimits::default());
        let ledger = lowered.collectives();
        let mut found: BTreeMap<(CollectiveKind, String), (usize, u64)> = BTreeMap::new();
        for entry in ledger.iter().expect("no filter") {
            assert!(!entry.scope.contains("newton_schulz") || entry.loop_depth == 0, "within the iteration: {entry:?}");
            if entry.scope.contains("newton_schulz") {
                let sums = found.entry((entry.kind, entry.axes.join(","))).or_default();
                *sums = (sums.0 + entry.operand_count, sums.1 + entry.bytes);
            }
        }
        println!("{mesh}, {layers} layers: {found:?}");
        found
    };
    use CollectiveKind::{AllGather, AllToAll};
    let expected = |entries: &[(CollectiveKind, &str, usize, u64)]| -> BTreeMap<_, _> {
        entries.iter().map(|&(kind, axes, count, bytes)| ((kind, axes.to_owned()), (count, bytes))).collect()
    };
    let bytes = 4 * MATRICES;
    assert_eq!(gathered("data=2,fsdp=4", 4), expected(&[(AllToAll, "fsdp", 14, 2 * bytes)]));
    assert_eq!(gathered("data=4,tensor=2", 4), expected(&[(AllToAll, "tensor", 14, 2 * 4 * bytes / 2)]));
    assert_eq!(gathered("data=2,fsdp=4", 3), expected(&[(AllGather, "fsdp", 7, 3 * bytes / 4)]));
}

/// The z-loss is the weighted mean of the squared logsumexp, and its gradient is what autodiff makes of the formula.
#[test]
fn z_loss() {
    let config = config(&["mesh.axes=data=1", "target.devices=1", "model.layers=1"]);
    let plain = config.decoder().expect("a model");
    let with = meshloom_nn::DecoderConfig { z_loss: 0.3, ..plain.clone() };
    let params = plain.parameters();
    let specs = (params.map(|_, param| param.spec.clone()), plain.batch_specs(4, 8));
    let own = train_steps::config(MODEL, &["train.batch=4", "mesh.axes=data=1", "target.devices=1"]);
    let inputs =
        (meshloom::trace::initialize(&params, 3).unwrap(), batch(&own, |row, place| (row + place) as f32 / 8.0));
    let graph = |by_formula: bool| {
        let function = Function::trace("loss", Specs(specs.clone()), |(params, batch)| {
            meshloom::trace::value_and_grad(params, |params: meshloom_nn::Decoder<Tensor>| match by_formula {
                false => with.loss(&params, &batch),
                true => {
                    let logits = plain.logits(&params, batch.tokens, batch.segment_ids, batch.positions);
                    let squares = logits.exp().sum(-1).log().square();
                    plain.loss(&params, &batch) + (squares * batch.weights).sum(..) / batch.weights.sum(..) * 0.3
                }
            })
        });
        function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
    };
    let inputs = [inputs.0.leaves(), inputs.1.leaves()].concat();
    let run = |by_formula| support::interpret::interpret(&graph(by_formula), &inputs);
    for (index, (found, expected)) in run(false).iter().zip(&run(true)).enumerate() {
        let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-5, "result {index} is off by {error:e}");
    }
}
