//! The program of one device for a small decoder's train step, as text, for each preset over eight devices. Each is
//! snapshotted under hlo_snapshots/partition. The CPU plugin compiles them all, but only one in the small tier. Tests
//! in traffic.rs count what moves.

use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, lower};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::Graph;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, MapTree, Tensor, Tree, value_and_grad};
use meshloom_nn::{Architecture, Batch, DecoderConfig, GroupedConfig, LayerConfig, Stack};
use support::cases::cases;
use support::eight_devices::compile;

const BATCH: usize = 16;
const LENGTH: usize = 24;

/// A small model all of whose parts can be told apart by their sizes, and be cut into eight.
fn model() -> DecoderConfig {
    let layer = LayerConfig::llama(GroupedConfig::llama(8, 8, 6, 1e4), 80, 1e-5);
    // The vocabulary is large enough for a lookup's rows to be less than the table.
    DecoderConfig::new(Architecture::llama(56, 512, Stack::uniform(layer, 2), 1e-5))
}

/// A step of plain gradient descent, whose text is short: the loss and the new parameters, in place of the old. With
/// the pairs of (output, input) that share a buffer.
fn descent(model: &DecoderConfig) -> (Graph, Vec<(usize, usize)>) {
    let params = model.parameters().map(|_, param| param.spec.clone());
    let aliases = (0..params.leaves().len()).map(|index| (1 + index, index)).collect();
    let function = Function::trace("descent", (params, Batch::specs(BATCH, LENGTH)), |(params, batch)| {
        let (loss, gradients) = value_and_grad(params.clone(), |params| model.loss(&params, &batch));
        let mut gradients = gradients.leaves().into_iter();
        let step = |_: &_, param: &Tensor| *param - gradients.next().expect("as many as parameters") * 0.1;
        (loss, MapTree::map(&params, step))
    });
    ((**function.expect("it traces").graph()).clone(), aliases)
}

#[track_caller]
fn check(name: &str, mesh: &str, preset: &str) {
    let (graph, aliases) = descent(&model());
    let mesh = Mesh::parse(mesh, 8).expect("a mesh of eight devices");
    let rules = RuleSets::uniform(Rules::preset(preset, true).expect("a preset"));
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        aliases,
        deny_replication: true,
        omit_metadata: true,
        ..LowerOptions::default()
    };
    let lowered = lower(&graph, &options).expect("it lowers");

    let _bound = support::snapshots_in("hlo_snapshots/partition");
    assert_snapshot!(name, print(&lowered.module.decode().expect("a module"), &TextOptions::canonical()));
    for lowered in cases("partition snapshots are compiled", usize::from(name == "data2_fsdp2_tensor2"), [&lowered]) {
        compile(lowered).expect("the plugin takes it");
    }
}

#[test]
fn one_axis() {
    check("context8", "context=8", "decoder");
    check("data8", "data=8", "decoder");
    check("expert8", "expert=8", "decoder");
    check("fsdp8", "fsdp=8", "decoder");
    check("tensor8", "tensor=8", "decoder");
    check("tensor8_all_reduce", "tensor=8", "decoder-all-reduce");
}

#[test]
fn combinations() {
    check("data2_fsdp2_tensor2", "data=2,fsdp=2,tensor=2", "decoder");
    check("fsdp2_context2_tensor2", "fsdp=2,context=2,tensor=2", "decoder");
}
