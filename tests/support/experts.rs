//! Blocks of routed experts, and how they are run and compared.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::{DType, Graph, Literal};
use meshloom::sharding::{Mesh, Rule, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, value_and_grad};
use meshloom_nn::{ExpertBiases, Mlp, Moe, MoeConfig, Scoring};

use crate::anchored::run_compiled;
use crate::eight_devices::relative_error;
use crate::random::Random;

/// Sizes of a batch of rows for a block of experts.
#[derive(Clone, Copy)]
pub struct Rows {
    pub batch: usize,
    pub length: usize,
    pub embed: usize,
}

pub const ROWS: Rows = Rows { batch: 8, length: 12, embed: 16 };

pub fn experts(experts: usize, experts_per_token: usize) -> MoeConfig {
    MoeConfig { experts, experts_per_token, mlp: 8, ..MoeConfig::default() }
}

pub fn deepseek(config: MoeConfig) -> MoeConfig {
    MoeConfig { shared_experts: 2, scoring: Scoring::Sigmoid, weight_scale: 2.5, ..config }
}

pub fn spec(dims: &[usize], axes: &[&str]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).with_axes(axes)
}

/// The parameters of a block, with the axis names that a decoder gives them.
pub fn parameters(embed: usize, config: &MoeConfig) -> Moe<TensorSpec> {
    let (count, mlp, shared) = (config.experts, config.mlp, config.mlp * config.shared_experts);
    let up = || spec(&[count, embed, mlp], &["exp", "embed_no_exp_moe", "mlp"]);
    let shared_up = || spec(&[embed, shared], &["embed", "mlp"]);
    Moe {
        router: spec(&[embed, count], &["embed", ""]),
        gate: up(),
        up: up(),
        down: spec(&[count, mlp, embed], &["exp", "mlp", "embed_no_exp_moe"]),
        router_bias: config.router_bias.then(|| spec(&[count], &[""])),
        choice_bias: config.choice_bias.then(|| spec(&[count], &[""])),
        biases: config.biases.then(|| ExpertBiases {
            gate: spec(&[count, mlp], &["exp", "mlp"]),
            up: spec(&[count, mlp], &["exp", "mlp"]),
            down: spec(&[count, embed], &["exp", "embed_no_exp_moe"]),
        }),
        shared: (shared > 0).then(|| Mlp {
            gate: shared_up(),
            up: shared_up(),
            down: spec(&[shared, embed], &["mlp", "embed"]),
        }),
    }
}

pub fn stream(rows: Rows) -> TensorSpec {
    let dims = [rows.batch, rows.length, rows.embed];
    spec(&dims, &["activation_batch", "activation_norm_length", "activation_embed"])
}

/// Random inputs of a graph of floats, from -1 to 1; the same for the same seed.
pub fn random_inputs(graph: &Graph, seed: u64) -> Vec<Literal> {
    let mut random = Random(seed);
    let literal = |ty: &meshloom::ir::TensorType, random: &mut Random| {
        let numbers: Vec<f32> = (0..ty.element_count()).map(|_| (2.0 * random.unit() - 1.0) as f32).collect();
        Literal::from_slice(&ty.dims, &numbers).expect("as many as the dims say")
    };
    graph.input_types().map(|ty| literal(ty, &mut random)).collect()
}

/// The preset, with rules before it.
pub fn rules(first: &[(&str, &[&str])]) -> RuleSets {
    let rule = |&(name, axes): &(&str, &[&str])| Rule {
        name: name.to_owned(),
        axes: axes.iter().map(|&axis| axis.to_owned()).collect(),
        origin: "test".to_owned(),
        published: false,
    };
    let rules = Rules::preset("decoder", true).expect("a preset");
    RuleSets::uniform(rules.with_first(first.iter().map(rule).collect()).expect("rules"))
}

/// Lowered over a mesh of eight devices, where everything must be split as it is.
pub fn partitioned(graph: &Graph, mesh: &str, rules: &RuleSets) -> Lowered {
    partitioned_without(graph, mesh, rules, &[])
}

/// The same without some passes.
pub fn partitioned_without(graph: &Graph, mesh: &str, rules: &RuleSets, without: &[&str]) -> Lowered {
    let mesh = Mesh::parse(mesh, 8).expect("a mesh");
    let options =
        LowerOptions { sharding: Some((&mesh, rules)), deny_replication: true, without, ..LowerOptions::default() };
    lower(graph, &options).unwrap_or_else(|error| panic!("{mesh}: {error}"))
}

pub fn run(lowered: &Lowered, inputs: &[Literal]) -> Vec<Vec<f64>> {
    run_compiled(lowered, inputs).iter().map(Literal::to_f64_vec).collect()
}

pub fn run_on_one(graph: &Graph, inputs: &[Literal]) -> Vec<Vec<f64>> {
    run(&lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}")), inputs)
}

/// Checks each output against what it should be: `norm(difference) / norm(reference)`.
pub fn check_equal(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = relative_error(found, expected);
        assert!(error <= bound, "{what}: output {index} is off by {error:.1e}");
    }
}

pub type Block = fn(Tensor, &Moe<Tensor>, &MoeConfig) -> (Tensor, Tensor);

/// A block's result and load-balance loss, and the gradients of a mix of both.
pub fn with_gradients(config: &MoeConfig, rows: Rows, block: Block) -> Arc<Graph> {
    let specs = (stream(rows), parameters(rows.embed, config), stream(rows));
    let function = Function::trace("experts", specs, |(x, params, probe)| {
        let results = block(x, &params, config);
        let gradients = value_and_grad((x, params), |(x, params)| {
            let (result, loss) = block(x, &params, config);
            (result * probe).sum(..) + loss * 3.0
        });
        (results, gradients.1)
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}
