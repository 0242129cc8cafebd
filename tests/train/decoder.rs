//! The decoder against JAX (tests/oracle/decoder.py): loss, every gradient and four AdamW steps, for scanned and
//! unrolled layers and every remat policy, by the interpreter and compiled; and how many nodes, dots and saved bytes
//! its train step has.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::str::FromStr;

use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Graph, Literal, Name, Phase, TensorType};
use meshloom::ops::{Op, RematPolicy};
use meshloom::optim::{AdamW, AdamWState, Decay, LearningRate, Optimizer, OptimizerState};
use meshloom::trace::{Function, MapTree, Param, Subtree, TensorSpec, Tree, value_and_grad};
use meshloom_nn::{Architecture, Batch, Decoder, DecoderConfig, GroupedConfig, LayerConfig, Stack};
use meshloom_train::run::{DropoutConfig, TrainStep, aliases};
use safetensors::{Dtype, SafeTensors};
use support::cases::cases;
use support::eight_devices::{compile, relative_error, run};
use support::interpret::interpret;

/// Largest relative error of anything in f32, single tensors included.
const BOUND: f64 = 1e-5;

/// A golden file.
struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    fn load(tied: bool) -> Golden {
        let name = if tied { "decoder_tied" } else { "decoder_untied" };
        let path = support::path(format!("tests/oracle/{name}.safetensors"));
        Golden { bytes: std::fs::read(&path).expect("the golden file") }
    }

    fn literal(&self, name: &str) -> Literal {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        let tensor = tensors.tensor(name).expect("a tensor of that name");
        let dtype = match tensor.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::I32 => DType::S32,
            other => panic!("{name} is {other:?}"),
        };
        Literal::from_bytes(TensorType::new(dtype, tensor.shape()), tensor.data()).expect("as many bytes as elements")
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        self.literal(name).to_f64_vec()
    }

    fn setting<T: FromStr<Err: Debug>>(&self, key: &str) -> T {
        let (_, metadata) = SafeTensors::read_metadata(&self.bytes).expect("a safetensors file");
        let settings = metadata.metadata().as_ref().expect("metadata");
        settings[key].parse().expect("a number")
    }

    fn model(&self, scan_layers: bool, remat: RematPolicy) -> DecoderConfig {
        let [heads, kv_heads, head_dim] =
            ["heads", "kv_heads", "head_dim"].map(|key| self.setting(&format!("model.{key}")));
        let attention = GroupedConfig::llama(heads, kv_heads, head_dim, 1e4);
        let layer = LayerConfig::llama(attention, self.setting("model.mlp"), 1e-5);
        let stack = Stack::uniform(layer, self.setting("model.layers"));
        let architecture = Architecture {
            tied_embeddings: self.setting("model.tied_embeddings"),
            ..Architecture::llama(self.setting("model.embed"), self.setting("model.vocab"), stack, 1e-5)
        };
        DecoderConfig { scan_layers, remat, ..DecoderConfig::new(architecture) }
    }

    fn step(&self, model: DecoderConfig) -> TrainStep {
        TrainStep {
            choice_bias_rate: 0.0,
            model,
            optimizer: Optimizer::AdamW(AdamW {
                beta1: self.setting("train.b1"),
                beta2: self.setting("train.b2"),
                epsilon: self.setting("train.epsilon"),
                weight_decay: self.setting("train.weight_decay"),
                no_decay: Vec::new(),
            }),
            schedule: LearningRate {
                peak: self.setting("train.learning_rate"),
                warmup: self.setting("train.warmup"),
                steps: self.setting("train.steps"),
                floor: 0.1,
                decay: Decay::Cosine,
            },
            clip_norm: self.setting("train.clip_norm"),
            batch: self.setting("train.batch"),
            seq: self.setting("model.seq"),
            microbatches: 1,
            dropout: DropoutConfig::default(),
            master_copies: true,
        }
    }

    /// Parameters or gradients; those of single layers are put together where the model wants them stacked.
    fn params(&self, model: &DecoderConfig, what: &str) -> Decoder<Literal> {
        let layer_count = model.architecture.stack.layer_count();
        model.parameters().map(|path, param: &Param| {
            let path = path.to_string();
            let literal = match path.strip_prefix("layers.").filter(|_| param.stacked_dims > 0) {
                None => self.literal(&format!("{what}.{path}")),
                Some(rest) => {
                    let layers = (0..layer_count).map(|layer| self.literal(&format!("{what}.layers.{layer}.{rest}")));
                    let bytes: Vec<u8> = layers.flat_map(|layer| layer.bytes().to_vec()).collect();
                    Literal::from_bytes(param.spec.ty.clone(), bytes).expect("layers of one size")
                }
            };
            assert_eq!(*literal.ty(), param.spec.ty, "{path}");
            literal
        })
    }

    fn batch(&self) -> Batch<Literal> {
        let field = |name: &str| self.literal(&format!("batch.{name}"));
        Batch {
            tokens: field("tokens"),
            targets: field("targets"),
            segment_ids: field("segment_ids"),
            positions: field("positions"),
            weights: field("weights"),
        }
    }
}

fn save() -> RematPolicy {
    RematPolicy::Save(vec![Name::new("attention_mixed"), Name::new("mlp_hidden")])
}

fn policies() -> [RematPolicy; 4] {
    [RematPolicy::None, RematPolicy::Full, RematPolicy::Dots, save()]
}

fn spec_of(literal: &Literal) -> TensorSpec {
    TensorSpec { ty: literal.ty().clone(), ..TensorSpec::new(DType::F32, []) }
}

/// The backend that runs a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Interpreter,
    Plugin,
}

/// Loss and gradients of a model at the golden parameters.
fn loss_and_gradients(by: By, golden: &Golden, model: &DecoderConfig) -> (f64, Vec<(String, Vec<f64>)>) {
    let (params, batch) = (golden.params(model, "param"), golden.batch());
    let specs = (params.clone(), batch.clone()).map(|_, literal| spec_of(literal));
    let function = Function::trace("loss_and_gradients", specs, |(params, batch)| {
        value_and_grad(params, |params| model.loss(&params, &batch))
    });
    let (function, inputs) = (function.expect("it traces"), (params.clone(), batch));
    let results = match by {
        By::Interpreter => interpret(function.graph(), &inputs.leaves()),
        By::Plugin => run(function.graph(), &inputs),
    };
    let gradients = params.paths().into_iter().zip(results[1..].iter().map(Literal::to_f64_vec)).collect();
    (results[0].to_f64_vec()[0], gradients)
}

/// Compares one form of the model with the golden file, in everything the file has. Returns the largest errors.
fn check(by: By, tied: bool, scan_layers: bool, remat: RematPolicy) -> String {
    let golden = Golden::load(tied);
    let model = golden.model(scan_layers, remat);
    let mut errors: Vec<(String, f64)> = Vec::new();

    let (loss, gradients) = loss_and_gradients(by, &golden, &model);
    errors.push(("loss".to_owned(), relative_error(&[loss], &golden.numbers("loss"))));
    let expected = golden.params(&model, "grad");
    let (mut all, mut all_expected) = (Vec::new(), Vec::new());
    for ((path, gradient), expected) in gradients.iter().zip(expected.leaves()) {
        let expected = expected.to_f64_vec();
        errors.push((format!("grad.{path}"), relative_error(gradient, &expected)));
        all.extend(gradient);
        all_expected.extend(expected);
    }
    errors.push(("all gradients".to_owned(), relative_error(&all, &all_expected)));

    let step = golden.step(model.clone());
    let function = step.trace().expect("it traces");
    let options = LowerOptions { aliases: aliases(&function), ..LowerOptions::default() };
    let lowered = lower(function.graph(), &options).expect("it lowers");
    let program = (by == By::Plugin).then(|| compile(&lowered).expect("it compiles"));
    let run_step = |arguments: &[Literal]| match &program {
        None => interpret(lowered.graph(), arguments),
        Some(program) => {
            let arguments = program.put(0, &arguments.to_vec()).expect("they fit");
            let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
            outputs.iter().map(|output| output.get().expect("read")).collect()
        }
    };
    let params = golden.params(&model, "param");
    let zeros = || params.map(|_, literal| zeros_like(literal));
    let optimizer = OptimizerState::AdamW(AdamWState { first: zeros(), second: zeros() });
    let state = meshloom_train::run::TrainState {
        params: params.clone(),
        master: Subtree::default(),
        optimizer,
        step: Literal::scalar(0i32),
    };
    let (mut state, batch) = (state.leaves(), golden.batch().leaves());
    let (mut losses, mut grad_norms, mut param_norms) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..golden.numbers("losses").len() {
        let leaves = state[..params.leaves().len()].iter().flat_map(Literal::to_f64_vec);
        param_norms.push(leaves.map(|x| x * x).sum::<f64>().sqrt());
        let mut outputs = run_step(&[&state[..], &batch].concat());
        let metrics = outputs.split_off(state.len());
        losses.extend(metrics[0].to_f64_vec());
        grad_norms.extend(metrics[1].to_f64_vec());
        state = outputs;
    }
    errors.push(("grad_norm".to_owned(), relative_error(&grad_norms[..1], &golden.numbers("grad_norm"))));
    for (name, actual) in [("losses", losses), ("grad_norms", grad_norms), ("param_norms", param_norms)] {
        errors.push((name.to_owned(), relative_error(&actual, &golden.numbers(name))));
        for (step, (actual, expected)) in actual.iter().zip(golden.numbers(name)).enumerate() {
            errors.push((format!("{name}[{step}]"), relative_error(&[*actual], &[expected])));
        }
    }

    let form = format!("tied {tied}, scanned {scan_layers}, remat {:?}, by the {by:?}", model.remat);
    for (name, error) in &errors {
        assert!(*error <= BOUND, "{form}: {name} is off by {error:.1e}");
    }
    let worst = |prefix: &str| {
        let group = errors.iter().filter(|(name, _)| name.starts_with(prefix));
        group.map(|(_, error)| *error).fold(0.0, f64::max)
    };
    let groups = ["loss", "grad.", "all gradients", "losses[", "grad_norms[", "param_norms["];
    let groups = groups.map(|group| format!("{group} {:.1e}", worst(group)));
    format!("{form}: {}", groups.join(", "))
}

fn zeros_like(literal: &Literal) -> Literal {
    Literal::from_bytes(literal.ty().clone(), vec![0; literal.bytes().len()]).expect("zeros")
}

#[test]
fn agrees_with_jax() {
    let mut forms = Vec::new();
    for scan_layers in [true, false] {
        forms.extend(policies().map(|remat| (false, scan_layers, remat)));
        forms.extend([RematPolicy::None, RematPolicy::Full].map(|remat| (true, scan_layers, remat)));
    }
    for (tied, scan_layers, remat) in forms.iter().cloned() {
        println!("{}", check(By::Interpreter, tied, scan_layers, remat));
    }
    for (tied, scan_layers, remat) in cases("train decoders, compiled", 1, forms) {
        println!("{}", check(By::Plugin, tied, scan_layers, remat));
    }
}

#[test]
fn learning_rates_agree_with_jax() {
    // Twelve steps of a schedule of ten: warm-up, the cosine, and two steps on the floor.
    let golden = Golden::load(false);
    let expected = golden.numbers("learning_rates");
    let schedule = golden.step(golden.model(true, RematPolicy::None)).schedule;
    let specs = vec![TensorSpec::new(DType::S32, []); expected.len()];
    let function = Function::trace("rates", specs, |steps| -> Vec<_> {
        steps.into_iter().map(|step| schedule.rate(step)).collect()
    });
    let steps: Vec<Literal> = (0..expected.len() as i32).map(Literal::scalar).collect();
    let rates = run(function.expect("trace").graph(), &steps);
    let rates: Vec<f64> = rates.iter().flat_map(Literal::to_f64_vec).collect();
    assert!(relative_error(&rates, &expected) <= BOUND, "{rates:?} instead of {expected:?}");
}

/// In bf16 the loss stays close to that of f32; parameters, norms, softmax and loss are still f32.
#[test]
fn bf16_compute_is_close() {
    let golden = Golden::load(false);
    let mut model = golden.model(true, RematPolicy::None);
    model.compute_dtype = DType::BF16;
    let (loss, gradients) = loss_and_gradients(By::Plugin, &golden, &model);
    // bf16 has 8 significant bits: one rounding is up to 2^-9 of a value.
    let error = relative_error(&[loss], &golden.numbers("loss"));
    assert!(error < 2f64.powi(-9), "loss {error:.1e}");
    assert!(error > 0.0, "the model was not computed in bf16");
    let all: Vec<f64> = gradients.iter().flat_map(|(_, gradient)| gradient.clone()).collect();
    let expected = golden.params(&model, "grad").leaves();
    let expected: Vec<f64> = expected.iter().flat_map(Literal::to_f64_vec).collect();
    let error = relative_error(&all, &expected);
    // The error is 1.6e-2: each rounding adds up to 2^-9, on a path of many.
    assert!(error < 2e-2, "gradients {error:.1e}");
}

/// A token's loss depends on earlier tokens of its own segment, and on nothing else.
#[test]
fn segments_do_not_see_each_other() {
    let golden = Golden::load(false);
    let model = golden.model(true, RematPolicy::None);
    let inputs = |batch: &Batch<Literal>| (golden.params(&model, "param"), batch.clone());
    let specs = inputs(&golden.batch()).map(|_, literal| spec_of(literal));
    let function = Function::trace("loss", specs, |(params, batch)| model.loss(&params, &batch)).expect("it traces");
    let loss = |batch: &Batch<Literal>| interpret(function.graph(), &inputs(batch).leaves())[0].to_f64_vec();
    // Row 0 has segments at 0..5, 5..13 and 13..16; row 1 at 0..7 and 7..12, then padding.
    for (changed, counted, matters) in [
        ((0, 0), 0..4, true),
        ((0, 0), 5..12, false),
        ((0, 0), 13..15, false),
        ((0, 6), 6..12, true),
        ((0, 6), 5..6, false),
        ((0, 6), 0..4, false),
        ((0, 6), 13..15, false),
        ((0, 4), 0..4, false),
        ((0, 15), 13..15, false),
        ((1, 3), 0..12, false),
        ((1, 15), 0..16, false),
    ] {
        let mut batch = golden.batch();
        let length = batch.tokens.ty().dims[1];
        let weights: Vec<f32> =
            (0..batch.weights.ty().element_count()).map(|at| f32::from(u8::from(counted.contains(&at)))).collect();
        batch.weights = Literal::from_slice(&batch.weights.ty().dims, &weights).expect("weights");
        let mut other = batch.clone();
        let mut tokens = batch.tokens.to_vec::<i32>().expect("s32");
        let token = &mut tokens[changed.0 * length + changed.1];
        *token = (*token + 1) % model.architecture.vocab as i32;
        other.tokens = Literal::from_slice(&batch.tokens.ty().dims, &tokens).expect("tokens");
        let (left, right) = (loss(&batch), loss(&other));
        assert_eq!(left != right, matters, "token {changed:?}, losses of {counted:?}: {left:?} and {right:?}");
    }
}

/// Describes how the dots of a graph are divided among phases, and the values that its scans stack: one line for the
/// outside, one per scan.
fn dots_and_residuals(graph: &Graph) -> String {
    fn count(graph: &Graph, place: &str, lines: &mut Vec<String>) {
        let mut dots: BTreeMap<Phase, usize> = BTreeMap::new();
        let at = lines.len();
        lines.push(String::new());
        for node in graph.nodes() {
            match node.op() {
                Op::DotGeneral(_) => *dots.entry(node.origin().phase).or_default() += 1,
                Op::Scan(scan) => {
                    let stacked: Vec<_> = node.results().skip(scan.carry_count).collect();
                    let bytes: usize = stacked.iter().map(|&value| graph.ty(value).byte_count()).sum();
                    let direction = if scan.reverse { "backward" } else { "forward" };
                    let place =
                        format!("{direction} scan of {}, stacks {} ({bytes} bytes)", scan.length, stacked.len());
                    count(&scan.body, &place, lines);
                }
                _ => {}
            }
        }
        let dots: Vec<String> = dots.iter().map(|(phase, count)| format!("{count} {phase:?}")).collect();
        lines[at] = format!("{place}: dots {}", dots.join(", "));
    }
    let mut lines = Vec::new();
    count(graph, "outside", &mut lines);
    lines.join("\n")
}

fn step_graph(layers: usize, scan_layers: bool, remat: RematPolicy) -> Graph {
    let golden = Golden::load(false);
    let mut model = golden.model(scan_layers, remat);
    model.architecture.stack.cycles = layers;
    let function = golden.step(model).trace().expect("it traces");
    lower(function.graph(), &LowerOptions::default()).expect("it lowers").graph().clone()
}

/// A layer has seven dots (four projections, three in the mlp), each with two in the backward pass, and attention,
/// which is an op of its own; the head has one and two. One layer saves these bytes (a row, 2 sequences of 16 tokens
/// with 4 bytes each, is 128):
///
/// - `none`: x, q, mixed, x after attention (4096 each), k, v (2048 each), attention's log total (512), two norms'
///   statistics (128 each), gate, up and hidden (6144 each): 39680.
/// - `full`: x.
/// - `dots`: x and six dots: q, the attention's output (4096 each), k, v, gate, up; and attention's two results: 33280.
///   The last dot, whose result the backward pass never reads, is not among them.
/// - `save`: x and hidden. The name of attention's result is of no use without that of the log total: both are made
///   again.
#[test]
fn dots_and_residuals_of_the_train_step() {
    let [none, full, dots, save] = policies().map(|remat| dots_and_residuals(&step_graph(3, true, remat)));
    assert_snapshot!(none, @r"
    outside: dots 1 Forward, 2 Backward
    forward scan of 3, stacks 12 (119040 bytes): dots 7 Forward
    backward scan of 3, stacks 9 (92928 bytes): dots 14 Backward
    ");
    assert_snapshot!(full, @r"
    outside: dots 1 Forward, 2 Backward
    forward scan of 3, stacks 1 (12288 bytes): dots 7 Forward
    backward scan of 3, stacks 9 (92928 bytes): dots 14 Backward, 6 Recompute
    ");
    assert_snapshot!(dots, @r"
    outside: dots 1 Forward, 2 Backward
    forward scan of 3, stacks 9 (99840 bytes): dots 7 Forward
    backward scan of 3, stacks 9 (92928 bytes): dots 14 Backward
    ");
    assert_snapshot!(save, @r"
    outside: dots 1 Forward, 2 Backward
    forward scan of 3, stacks 2 (30720 bytes): dots 7 Forward
    backward scan of 3, stacks 9 (92928 bytes): dots 14 Backward, 6 Recompute
    ");
    let [none, full, dots, save] = policies().map(|remat| dots_and_residuals(&step_graph(3, false, remat)));
    assert_snapshot!(none, @"outside: dots 22 Forward, 44 Backward");
    assert_snapshot!(full, @"outside: dots 22 Forward, 44 Backward, 18 Recompute");
    assert_snapshot!(dots, @"outside: dots 22 Forward, 44 Backward");
    assert_snapshot!(save, @"outside: dots 22 Forward, 44 Backward, 18 Recompute");
}

/// Each further layer adds the same number of nodes when unrolled, and none when scanned.
#[test]
fn node_counts_are_linear() {
    for remat in policies() {
        let count = |layers, scan_layers| step_graph(layers, scan_layers, remat.clone()).total_node_count();
        assert_eq!(count(2, true), count(3, true), "{remat:?}");
        assert_eq!(count(2, true), count(100, true), "{remat:?}");
        let per_layer = count(3, false) - count(2, false);
        for layers in [4, 9, 33] {
            assert_eq!(count(layers, false), count(2, false) + (layers - 2) * per_layer, "{remat:?}, {layers} layers");
        }
    }
}
