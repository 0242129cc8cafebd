//! Multi-token prediction against a reference script, tests/oracle/further.py: packed documents, two further tokens.

use meshloom::ir::{DType, Graph, Literal, TensorType};
use meshloom::ops::RematPolicy;
use meshloom::trace::{Function, Tree, value_and_grad};
use meshloom::transform::pipeline::{PipelineOptions, Schedule};
use meshloom_models::families::Published;
use meshloom_nn::{Batch, ContextOrder, DecoderConfig, TokenOrder};
use support::cases::cases;
use support::eight_devices::relative_error;

use super::golden::{BOUND, Golden, interpreted, read, specs};
use super::meshes::{interpreted_on, on_mesh, run_on};

/// The weight of the script.
const WEIGHT: f64 = 0.3;

/// The rows of the file, so often: meshes and microbatches divide them.
const REPEATED: usize = 4;

pub const FOLDER: &str = "tests/oracle/further";

pub fn golden() -> Golden {
    let published = Published::open(&support::path(FOLDER)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(published.further.len(), 2);
    assert!(published.architecture.further.is_empty(), "no key asks for them");
    Golden {
        case: "further",
        published: published.predicting_further(true),
        weights: read(&format!("{FOLDER}/model.safetensors")),
        expected: read(&format!("{FOLDER}/golden.safetensors")),
    }
}

fn decoder(golden: &Golden) -> DecoderConfig {
    DecoderConfig { further_weight: WEIGHT, ..golden.decoder() }
}

/// The rows of the file, in an order of their tokens.
fn batch(golden: &Golden, order: TokenOrder) -> Batch<Literal> {
    let of = |name: &str, dtype: DType| {
        let (dims, numbers) = &golden.expected[name];
        let places = order.places(dims[1]).expect("a length that divides");
        let number = |at: usize| f64::from(numbers[at / dims[1] % dims[0] * dims[1] + places[at % dims[1]]]);
        Literal::from_fn(TensorType::new(dtype, &[dims[0] * REPEATED, dims[1]]), number)
    };
    Batch {
        tokens: of("tokens", DType::S32),
        targets: of("targets", DType::S32),
        segment_ids: of("segment_ids", DType::S32),
        positions: of("positions", DType::S32),
        weights: of("weights", DType::F32),
    }
}

/// The runner of a graph.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Interpreter,
    Plugin,
}

fn run(by: By, graph: &Graph, inputs: &[Literal], mesh: Option<&str>) -> Vec<Vec<f64>> {
    let results = match (by, mesh) {
        (By::Plugin, Some(mesh)) => return run_on(graph, mesh, inputs),
        (By::Plugin, None) => support::run(graph, inputs),
        (By::Interpreter, None) => interpreted(graph, inputs),
        (By::Interpreter, Some(mesh)) => return interpreted_on(graph, mesh, inputs),
    };
    results.iter().map(Literal::to_f64_vec).collect()
}

/// Returns the largest error of loss and gradients against the script's, and its name.
fn worst(
    by: By,
    golden: &Golden,
    decoder: &DecoderConfig,
    batch: &Batch<Literal>,
    mesh: Option<&str>,
) -> (f64, String) {
    let params = golden.params(decoder, &|name| golden.weight(name));
    let function = Function::trace("further", specs(decoder, batch), |(params, batch)| {
        value_and_grad(params, |params| decoder.loss(&params, &batch))
    });
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let inputs: Vec<Literal> = params.leaves().into_iter().chain(batch.leaves()).collect();
    let results = run(by, &graph, &inputs, mesh);
    let loss = f64::from(golden.expected["loss"].1[0]);
    let mut worst = (relative_error(&results[0], &[loss]), "the loss".to_owned());
    let expected = golden.params(decoder, &|name| golden.gradient(name));
    for ((path, expected), found) in expected.paths().into_iter().zip(expected.leaves()).zip(&results[1..]) {
        let error = relative_error(found, &expected.to_f64_vec());
        if error > worst.0 {
            worst = (error, path);
        }
    }
    worst
}

/// Returns the error of the loss alone against the script's.
fn error_of_loss(golden: &Golden, decoder: &DecoderConfig, batch: &Batch<Literal>) -> f64 {
    let params = golden.params(decoder, &|name| golden.weight(name));
    let function = Function::trace("further", specs(decoder, batch), |(params, batch)| decoder.loss(&params, &batch));
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let inputs: Vec<Literal> = params.leaves().into_iter().chain(batch.leaves()).collect();
    relative_error(&interpreted(&graph, &inputs)[0].to_f64_vec(), &[golden.expected["loss"].1[0].into()])
}

fn check(by: By, what: &str, change: impl FnOnce(DecoderConfig) -> DecoderConfig, mesh: Option<&str>) {
    let golden = golden();
    let decoder = change(decoder(&golden));
    let decoder = mesh.map_or(decoder.clone(), |mesh| on_mesh(&decoder, mesh));
    let (error, name) = worst(by, &golden, &decoder, &batch(&golden, decoder.order), mesh);
    println!("{what}: at most {error:.1e}, in {name}");
    assert!(error <= BOUND, "{what}: {name} is off by {error:.1e}");
}

/// Pairs all cases with the interpreter, and the first ones with the plugin; in the full tier the plugin takes all too.
fn both<T: Clone>(name: &str, compiled: usize, all: impl IntoIterator<Item = T>) -> Vec<(By, T)> {
    let all: Vec<T> = all.into_iter().collect();
    let compiled = cases(name, compiled, all.iter().cloned()).into_iter().map(|case| (By::Plugin, case));
    all.into_iter().map(|case| (By::Interpreter, case)).chain(compiled).collect()
}

#[test]
fn one_device() {
    type Change = fn(DecoderConfig) -> DecoderConfig;
    let forms: [(&str, Change); 3] = [
        ("scanned", |decoder| decoder),
        ("unrolled, full remat", |decoder| DecoderConfig { remat: RematPolicy::Full, scan_layers: false, ..decoder }),
        ("the loss in chunks", |decoder| DecoderConfig { loss_chunks: 3, ..decoder }),
    ];
    for (by, (what, change)) in both("families further tokens, compiled", 1, forms) {
        check(by, what, change, None);
    }
}

#[test]
fn meshes() {
    let meshes = ["fsdp=2,context=2,tensor=2", "fsdp=4,tensor=2", "fsdp=2,context=4", "fsdp=2,expert=4"];
    for (by, mesh) in both("families further tokens on meshes, compiled", 0, meshes) {
        check(by, mesh, |decoder| decoder, Some(mesh));
    }
    let orders = [ContextOrder::TwoChunk, ContextOrder::Striped];
    for (by, order) in both("families further tokens in orders, compiled", 0, orders) {
        let dealt_out = |decoder| DecoderConfig { order: TokenOrder::new(order, 4), ..decoder };
        check(by, order.name(), dealt_out, Some("fsdp=2,context=4"));
    }
}

/// The routed layers are the pipeline; what is in front and behind runs around it.
#[test]
fn pipelines() {
    fn options(microbatches: usize) -> PipelineOptions {
        PipelineOptions { stages: 2, microbatches, ..PipelineOptions::default() }
    }
    type Change = fn(DecoderConfig) -> DecoderConfig;
    let forms: [(&str, Change, &str); 3] = [
        (
            "the loss in the loop of a pipeline",
            |decoder| {
                let in_loop = PipelineOptions { schedule: Schedule::OneForwardOneBackward, ..options(2) };
                DecoderConfig { pipeline: Some(in_loop), ..decoder }
            },
            "stage=2,fsdp=2,expert=2",
        ),
        (
            "a pipeline",
            |decoder| DecoderConfig { pipeline: Some(options(4)), remat: RematPolicy::Full, ..decoder },
            "stage=2,fsdp=2,tensor=2",
        ),
        (
            "a pipeline, the loss in chunks",
            |decoder| DecoderConfig { pipeline: Some(options(2)), loss_chunks: 2, ..decoder },
            "stage=2,fsdp=2,expert=2",
        ),
    ];
    for (by, (what, change, mesh)) in both("families further tokens in pipelines, compiled", 0, forms) {
        check(by, what, change, Some(mesh));
    }
}

/// Each of these is seen by far more than the bound.
#[test]
fn wrong_details_are_seen() {
    let golden = golden();
    let right = batch(&golden, TokenOrder::default());
    let ones = Literal::from_fn(right.segment_ids.ty().clone(), |_| 1.0);
    let weights = Literal::from_fn(right.weights.ty().clone(), |_| 1.0);
    let of_one_document = Batch { segment_ids: ones, ..right.clone() };
    let other_weights = Batch { weights, ..right.clone() };
    let plain = decoder(&golden);
    let wrong = |change: &dyn Fn(&mut DecoderConfig)| {
        let mut decoder = plain.clone();
        change(&mut decoder);
        decoder
    };
    let half = wrong(&|decoder| decoder.further_weight = WEIGHT / 2.0);
    let epsilon = wrong(&|decoder| decoder.architecture.final_norm.epsilon *= 100.0);
    for (what, decoder, batch) in [
        ("targets across documents", &plain, &of_one_document),
        ("weights left out", &plain, &other_weights),
        ("the sum over layers", &half, &right),
    ] {
        let error = error_of_loss(&golden, decoder, batch);
        println!("{what}: {error:.1e}");
        assert!(error > 30.0 * BOUND, "{what}: only {error:.1e}");
    }
    let error = error_of_loss(&golden, &plain, &right);
    assert!(error <= BOUND, "the correct model is off by {error:.1e}");
    // Seen in gradients alone.
    let (error, name) = worst(By::Interpreter, &golden, &epsilon, &right, None);
    assert!(error > 30.0 * BOUND, "another epsilon of norms: only {error:.1e}, in {name}");
    // Named as published, the two layers are not interchangeable either.
    let mut swapped = self::golden();
    let other = |name: &str| match () {
        () if name.starts_with("model.layers.4.") => name.replacen("layers.4.", "layers.5.", 1),
        () => name.replacen("layers.5.", "layers.4.", 1),
    };
    swapped.weights = swapped.weights.into_iter().map(|(name, tensor)| (other(&name), tensor)).collect();
    let error = error_of_loss(&swapped, &plain, &right);
    assert!(error > 30.0 * BOUND, "layers in another order: only {error:.1e}");
}

/// Without a weight the layers are not there: neither in the parameters nor in the loss.
#[test]
fn without_a_weight_there_are_none() {
    let golden = golden();
    let off = DecoderConfig { further_weight: 0.0, ..decoder(&golden) };
    let function = Function::trace("loss", specs(&off, &batch(&golden, TokenOrder::default())), |(params, batch)| {
        off.loss(&params, &batch)
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let without = golden.published.predicting_further(false);
    let plain = DecoderConfig::new(without.architecture);
    let of_plain = Function::trace("loss", specs(&plain, &batch(&golden, TokenOrder::default())), |(params, batch)| {
        plain.loss(&params, &batch)
    });
    let of_plain = of_plain.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(function.graph().nodes().len(), of_plain.graph().nodes().len());
}
