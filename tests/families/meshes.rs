//! Families on meshes and in pipelines: the same numbers as transformers, and as one device.

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::{Graph, Literal};
use meshloom::ops::RematPolicy;
use meshloom::sharding::Mesh;
use meshloom::trace::{Function, Tree, initialize, value_and_grad};
use meshloom::transform::pipeline::PipelineOptions;
use meshloom_nn::{DecoderConfig, FeedForwardConfig, MoeConfig};
use support::anchored::{run_by_tier, run_compiled, run_lowered};
use support::cases::cases;
use support::eight_devices::relative_error;
use support::experts::rules;
use support::random::Random;

use super::golden::{BOUND, CASES, Golden, interpreted, specs};

/// Rules of the preset, but that key heads and narrow vectors are whole: there are too few of them.
pub const NARROW_WHOLE: &[(&str, &[&str])] =
    &[("kv_heads", &[]), ("activation_kv_heads", &[]), ("q_lora", &[]), ("kv_lora", &[])];

/// A mesh of as many devices as it has.
pub fn parse(mesh: &str) -> Mesh {
    let sizes = mesh.split([',', '=']).filter_map(|part| part.parse::<usize>().ok());
    Mesh::parse(mesh, sizes.product()).expect("a mesh")
}

fn lowered_on(graph: &Graph, mesh: &str) -> Lowered {
    let (mesh, rules) = (parse(mesh), rules(NARROW_WHOLE));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, ..LowerOptions::default() };
    lower(graph, &options).unwrap_or_else(|error| panic!("{mesh}: {error}"))
}

type Run = fn(&Graph, &str, &[Literal]) -> Vec<Vec<f64>>;

/// Compiles a graph for a mesh, and runs it.
pub fn run_on(graph: &Graph, mesh: &str, inputs: &[Literal]) -> Vec<Vec<f64>> {
    numbers(&run_compiled(&lowered_on(graph, mesh), inputs))
}

/// Runs a graph for a mesh in the interpreter.
pub fn interpreted_on(graph: &Graph, mesh: &str, inputs: &[Literal]) -> Vec<Vec<f64>> {
    numbers(&run_lowered(&lowered_on(graph, mesh), inputs))
}

fn numbers(results: &[Literal]) -> Vec<Vec<f64>> {
    results.iter().map(Literal::to_f64_vec).collect()
}

/// The decoder with experts cut as a mesh wants them.
pub fn on_mesh(decoder: &DecoderConfig, mesh: &str) -> DecoderConfig {
    let mesh = parse(mesh);
    let size = |axis: &str| mesh.axis(axis).map_or(1, |axis| mesh.size(axis));
    let mut decoder = decoder.clone();
    decoder.architecture.for_each_layer(|layer| {
        if let FeedForwardConfig::Routed(routed) = &mut layer.feed_forward {
            *routed = MoeConfig {
                expert_groups: size("expert"),
                batch_parts: size("data") * size("fsdp"),
                sequence_parts: size("context"),
                ..routed.clone()
            };
        }
    });
    decoder
}

fn check_against_transformers(name: &str, case: &'static str, mesh: &str) {
    let golden = Golden::load(case);
    let decoder = on_mesh(&DecoderConfig { remat: RematPolicy::Full, ..golden.decoder() }, mesh);
    let (graph, inputs) = golden.program(&decoder);
    let results = run_by_tier(name, &lowered_on(&graph, mesh), &inputs);
    golden.check(mesh, &decoder, &numbers(&results), BOUND);
}

// In the small tier each mesh and each pipeline takes one family, a different one each time.

#[test]
fn fsdp_and_tensor() {
    for case in cases("families on fsdp and tensor", 1, CASES) {
        check_against_transformers("families on fsdp and tensor", case, "fsdp=4,tensor=2");
    }
}

#[test]
fn experts() {
    let of_four = ["gpt_oss", "qwen3_moe", "deepseek_v3", "mixtral"].map(|case| (case, "fsdp=2,expert=4"));
    let all = of_four.into_iter().chain([("qwen3_moe_plain", "data=2,fsdp=2,expert=2")]);
    for (case, mesh) in cases("families on experts", 1, all) {
        check_against_transformers("families on experts", case, mesh);
    }
}

#[test]
fn context() {
    for case in cases("families on context", 1, ["gemma3_text", "gemma2", "gpt_oss", "mistral", "deepseek_v3"]) {
        check_against_transformers("families on context", case, "fsdp=2,context=2,tensor=2");
    }
}

/// Computes loss and gradients of a decoder with these parameters: on a mesh, or without one by the interpreter.
fn loss_and_gradients(
    decoder: &DecoderConfig,
    golden: &Golden,
    inputs: &[Literal],
    mesh: Option<(Run, &str)>,
) -> Vec<Vec<f64>> {
    // Twelve rows, which three stages and four divide.
    let batch = golden.batch_of(6);
    let function = Function::trace("loss", specs(decoder, &batch), |(params, batch)| {
        value_and_grad(params, |params| decoder.loss(&params, &batch))
    });
    let graph = function.unwrap_or_else(|error| panic!("{}: {error}", golden.case)).graph().clone();
    let inputs: Vec<Literal> = inputs.iter().cloned().chain(batch.leaves()).collect();
    match mesh {
        Some((run, mesh)) => run(&graph, mesh, &inputs),
        None => numbers(&interpreted(&graph, &inputs)),
    }
}

/// A decoder of a family with more cycles, in a pipeline and one layer after the other.
fn check_pipeline(run: Run, case: &'static str, mesh: &str, options: PipelineOptions, cycles: usize) {
    let golden = Golden::load(case);
    let mut plain = DecoderConfig { load_balance_weight: 0.1, choice_bias_gradient: true, ..golden.decoder() };
    plain.architecture.stack.cycles = cycles;
    let pipelined = on_mesh(&DecoderConfig { pipeline: Some(options), ..plain.clone() }, mesh);
    // Every number is random, as ones and zeros would hide what is done with weights of norms and biases.
    let values = |decoder: &DecoderConfig| -> Vec<Literal> {
        let declared = decoder.parameters();
        let first = initialize(&declared, 5).expect("first values");
        let stacked = declared.leaves();
        let leaves = first.leaves().into_iter().zip(first.paths()).zip(stacked);
        leaves
            .map(|((literal, path), param)| {
                let path = meshloom::trace::LayerPath::of(&path, param.stacked_dims > 0);
                let of_layer: usize = literal.ty().dims[param.stacked_dims..].iter().product();
                let numbers = literal.to_f64_vec();
                let moved = numbers.iter().enumerate().map(|(at, number)| {
                    let layer =
                        path.numbers.map_or(0, |numbers| numbers.first + at / of_layer * numbers.step.unwrap_or(1));
                    let seed =
                        path.name.bytes().fold(layer as u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
                    let mut random = Random(seed.wrapping_mul(7919) + (at % of_layer) as u64);
                    (number + 0.2 * (random.unit() - 0.5)) as f32
                });
                let moved: Vec<f32> = moved.collect();
                Literal::from_slice(&literal.ty().dims, &moved).expect("as many as before")
            })
            .collect()
    };
    let expected = loss_and_gradients(&plain, &golden, &values(&plain), None);
    let found = loss_and_gradients(&pipelined, &golden, &values(&pipelined), Some((run, mesh)));
    let what = format!("{case} on {mesh}");
    let error = relative_error(&found[0], &expected[0]);
    assert!(error <= BOUND, "{what}: the loss is off by {error:.1e}");
    // Gradients by path, of all layers in order, whatever they are stacked with.
    let by_layer = |decoder: &DecoderConfig, results: &[Vec<f64>]| {
        let declared = decoder.parameters();
        let leaves = declared.paths().into_iter().zip(declared.leaves()).zip(&results[1..]);
        let mut all = std::collections::BTreeMap::new();
        for ((path, param), numbers) in leaves {
            let path = meshloom::trace::LayerPath::of(&path, param.stacked_dims > 0);
            let of_layer: usize = param.spec.ty.dims[param.stacked_dims..].iter().product();
            for (at, layer) in numbers.chunks(of_layer).enumerate() {
                let number = path.numbers.map(|numbers| numbers.first + at * numbers.step.unwrap_or(1));
                all.insert((path.name.clone(), number), layer.to_vec());
            }
        }
        let mut by_name = std::collections::BTreeMap::<String, Vec<f64>>::new();
        for ((name, _), numbers) in all {
            by_name.entry(name).or_default().extend(numbers);
        }
        by_name
    };
    let (found, expected) = (by_layer(&pipelined, &found), by_layer(&plain, &expected));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    let mut worst = (0.0, String::new());
    for (key, expected) in &expected {
        let error = relative_error(&found[key], expected);
        if error > worst.0 {
            worst = (error, key.clone());
        }
    }
    println!("{what}: at most {:.1e}, in {}", worst.0, worst.1);
    assert!(worst.0 <= BOUND, "{what}: the gradient of {} is off by {:.1e}", worst.1, worst.0);
}

fn circular(stages: usize, repeats: usize) -> PipelineOptions {
    PipelineOptions { stages, repeats, microbatches: if stages == 3 { 6 } else { 4 }, ..PipelineOptions::default() }
}

/// Returns all cases, beginning with this one.
fn from(first: &str) -> impl Iterator<Item = &'static str> {
    let at = CASES.iter().position(|case| *case == first).expect("a case");
    (0..CASES.len()).map(move |number| CASES[(at + number) % CASES.len()])
}

/// Three stages, two repeats, two cycles left over.
#[test]
fn three_stages() {
    for case in cases("families in three stages", 1, from("qwen2")) {
        check_pipeline(run_on, case, "stage=3,tensor=2", circular(3, 2), 8);
    }
}

/// Four stages, two repeats, a cycle left over.
#[test]
fn four_stages() {
    for case in cases("families in four stages, interpreted", 1, from("mistral")) {
        check_pipeline(interpreted_on, case, "stage=4,tensor=2", circular(4, 2), 9);
    }
    for case in cases("families in four stages, compiled", 0, CASES) {
        check_pipeline(run_on, case, "stage=4,tensor=2", circular(4, 2), 9);
    }
}
