//! The decoder's modules as text: one layer forward, one layer with its gradients, the whole train step. Each is
//! snapshotted under hlo_snapshots/decoder; in the full tier the CPU plugin compiles them, which trainers have compile
//! larger ones otherwise.

use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, PartitionMode, lower};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::{DType, Graph};
use meshloom::ops::RematPolicy;
use meshloom::optim::{AdamW, Decay, LearningRate, Optimizer};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, MapTree, Tensor, TensorSpec, value_and_grad};
use meshloom_nn::{
    Angles, Architecture, Batch, DecoderConfig, GroupedConfig, LayerConfig, Layers, RowInputs, Stack, TokenPlaces,
};
use meshloom_train::run::{DropoutConfig, TrainStep, aliases};
use support::cases::{cases, every_case};
use support::eight_devices::compile;

meshloom::tree! {
    struct LayerInput<T> {
        layers: Layers<T>,
        x: T,
        segment_ids: T,
        positions: T,
    }
}

const BATCH: usize = 8;
const LENGTH: usize = 4;

/// The smallest model all of whose parts can be told apart by their sizes.
fn model(scan_layers: bool, remat: RematPolicy) -> DecoderConfig {
    // A loop has the same text for any number of layers; unrolled, one is enough to see.
    let layers = if scan_layers { 3 } else { 1 };
    let layer = LayerConfig::llama(GroupedConfig::llama(4, 2, 6, 1e4), 40, 1e-5);
    let architecture = Architecture::llama(24, 32, Stack::uniform(layer, layers), 1e-5);
    DecoderConfig { scan_layers, remat, ..DecoderConfig::new(architecture) }
}

fn layer_input(model: &DecoderConfig) -> LayerInput<TensorSpec> {
    let batch = Batch::specs(BATCH, LENGTH);
    LayerInput {
        layers: model.parameters().layers.map(|_, param| param.spec.clone()),
        x: TensorSpec::new(DType::F32, [BATCH, LENGTH, model.architecture.embed]).with_axes(&[
            "activation_batch",
            "activation_length",
            "activation_embed",
        ]),
        segment_ids: batch.segment_ids,
        positions: batch.positions,
    }
}

fn run_layers(model: &DecoderConfig, layers: &Layers<Tensor>, input: &LayerInput<Tensor>) -> Tensor {
    let angles = Angles::new(input.positions, model.architecture.stack.layers());
    let rows = RowInputs { angles: &angles, tokens: TokenPlaces::of_rows(input.segment_ids) };
    model.layer_stack(input.x, layers, rows, None).0
}

fn layer_forward(model: &DecoderConfig) -> (Graph, Vec<(usize, usize)>) {
    let function = Function::trace("layer", layer_input(model), |input| run_layers(model, &input.layers, &input));
    ((**function.expect("it traces").graph()).clone(), Vec::new())
}

/// The gradients of the sum of the layer's output, with respect to the parameters and the input.
fn layer_backward(model: &DecoderConfig) -> (Graph, Vec<(usize, usize)>) {
    let function = Function::trace("layer_gradients", layer_input(model), |input| {
        value_and_grad((input.layers.clone(), input.x), |(layers, x)| {
            run_layers(model, &layers, &LayerInput { x, ..input }).square().sum(..)
        })
    });
    ((**function.expect("it traces").graph()).clone(), Vec::new())
}

fn train_step(model: &DecoderConfig) -> (Graph, Vec<(usize, usize)>) {
    let step = TrainStep {
        choice_bias_rate: 0.0,
        model: model.clone(),
        optimizer: Optimizer::AdamW(AdamW::default()),
        schedule: LearningRate { peak: 0.01, warmup: 10, steps: 100, floor: 0.1, decay: Decay::Cosine },
        clip_norm: 1.0,
        batch: BATCH,
        seq: LENGTH,
        microbatches: 1,
        dropout: DropoutConfig::default(),
        master_copies: true,
    };
    let function = step.trace().expect("it traces");
    ((**function.graph()).clone(), aliases(&function))
}

/// Snapshots a program on one device and annotated for a mesh, compiles them if they are chosen, and snapshots the
/// graph if asked.
fn check(chosen: &[&str], name: &str, (graph, aliases): (Graph, Vec<(usize, usize)>), with_graph: bool) {
    let _bound = support::snapshots_in("hlo_snapshots/decoder");

    let mesh = Mesh::parse("data=2,fsdp=4", 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::preset("decoder", true).expect("the preset"));
    for (place, sharding) in [("one_device", None), ("data2_fsdp4", Some((&mesh, &rules)))] {
        let options = LowerOptions {
            sharding,
            aliases: aliases.clone(),
            partition: PartitionMode::GSPMD,
            ..LowerOptions::default()
        };
        let lowered = lower(&graph, &options).expect("it lowers");
        let text = print(&lowered.module.decode().expect("a module"), &TextOptions::canonical());
        assert_snapshot!(format!("{name}.{place}"), text);
        if chosen.contains(&name) {
            compile(&lowered).expect("the plugin takes it");
        }
        if with_graph && sharding.is_none() {
            assert_snapshot!(format!("{name}.graph"), lowered.graph().to_string());
        }
    }
}

#[test]
fn layer() {
    let names = [
        "layer_backward_scanned",
        "layer_forward",
        "layer_forward_scanned",
        "layer_backward",
        "layer_backward_remat_full",
        "layer_backward_scanned_remat_full",
    ];
    let chosen = if every_case("train modules of layers") { &names[..] } else { &[] };
    check(chosen, "layer_forward", layer_forward(&model(false, RematPolicy::None)), true);
    check(chosen, "layer_forward_scanned", layer_forward(&model(true, RematPolicy::None)), false);
    check(chosen, "layer_backward", layer_backward(&model(false, RematPolicy::None)), true);
    check(chosen, "layer_backward_scanned", layer_backward(&model(true, RematPolicy::None)), true);
    check(chosen, "layer_backward_remat_full", layer_backward(&model(false, RematPolicy::Full)), false);
    check(chosen, "layer_backward_scanned_remat_full", layer_backward(&model(true, RematPolicy::Full)), true);
}

#[test]
fn step() {
    let names = ["train_step_scanned", "train_step", "train_step_scanned_remat_full"];
    let chosen = &cases("train modules of steps", 0, names);
    check(chosen, "train_step", train_step(&model(false, RematPolicy::None)), false);
    check(chosen, "train_step_scanned", train_step(&model(true, RematPolicy::None)), false);
    check(chosen, "train_step_scanned_remat_full", train_step(&model(true, RematPolicy::Full)), false);
}
