//! Decoders of all families on random meshes of eight devices: loss and gradients are those of one device.

use std::sync::Arc;

use meshloom::ir::{Literal, Name};
use meshloom::ops::RematPolicy;
use meshloom::trace::{Function, MapTree, Tree, initialize, value_and_grad};
use meshloom_nn::{Batch, DecoderConfig};
use meshloom_train::config::RunConfig;

use super::{interpreted, interpreted_over};
use meshloom::ir::Graph;
use support::cases::cases;
use support::experts::*;
use support::random::Random;

const SMALL: &[&str] = &[
    "model.layers=2",
    "model.embed=32",
    "model.heads=8",
    "model.kv_heads=8",
    "model.head_dim=8",
    "model.mlp=48",
    "model.seq=16",
    "model.load_balance_weight=0.5",
    "train.batch=16",
];

/// The sizes of a family with routed experts.
const ROUTED: &[&str] = &["model.family.experts=8", "model.family.experts_per_token=3", "model.family.moe_mlp=16"];

/// The sizes of a family with latent attention.
const LATENT: &[&str] =
    &["model.family.q_lora=16", "model.family.kv_lora=16", "model.family.rope_head_dim=4", "model.family.v_head_dim=8"];

/// A family, and what of it is set.
const MODELS: &[&[&str]] = &[
    &["model.family=mixtral"],
    &["model.family=mixtral", "model.batch_split=true", "remat.policy=full"],
    &["model.family=deepseek"],
    &["model.family=deepseek", "model.batch_split=true", "model.scan_layers=false"],
    &["model.family=deepseek", "model.family.q_lora=0", "remat.policy=dots", "model.family.routed_scaling_factor=2.5"],
    &["model.batch_split=true"],
];

const AXES: [&str; 5] = ["data", "fsdp", "expert", "context", "tensor"];

/// Three axes of two devices, or two of two and four, in the order of the preset.
pub fn random_mesh(random: &mut Random) -> String {
    let mut axes = [0, 1, 2, 3, 4];
    random.shuffle(&mut axes);
    let sizes: &[usize] = if random.below(2) == 0 { &[2, 2, 2] } else { &[4, 2] };
    let mut taken: Vec<(usize, usize)> = axes.into_iter().zip(sizes.iter().copied()).collect();
    taken.sort_unstable();
    taken.iter().map(|(axis, size)| format!("{}={size}", AXES[*axis])).collect::<Vec<_>>().join(",")
}

pub fn config(mesh: &str, model: &[&str]) -> RunConfig {
    let mesh = format!("mesh.axes={mesh}");
    let is = |family: &str| model.contains(&family);
    let latent = if is("model.family=deepseek") { LATENT } else { &[] };
    let routed = if is("model.family=mixtral") || !latent.is_empty() { ROUTED } else { &[] };
    support::configs::config(&[SMALL, &[support::configs::UNOPTIMIZED], routed, latent, model, &[&mesh]])
}

/// Loss and gradients; and inputs for them.
pub fn loss_and_gradients(config: &RunConfig) -> (Arc<Graph>, Vec<Literal>) {
    let model = config.decoder().unwrap();
    let (batch, length) = (config.train.batch, config.model.seq);
    let params = model.parameters();
    let specs = (params.map(|_, param| param.spec.clone()), Batch::specs(batch, length));
    let function =
        Function::trace("loss", specs, |(params, batch)| value_and_grad(params, |params| model.loss(&params, &batch)));
    let mut inputs = initialize(&params, 3).unwrap().leaves();
    let numbers = |f: &dyn Fn(usize) -> usize| {
        let numbers: Vec<i32> = (0..batch * length).map(|index| f(index) as i32).collect();
        Literal::from_slice(&[batch, length], &numbers).expect("a batch")
    };
    let weights: Vec<f32> = (0..batch * length).map(|index| (index % 5) as f32 / 4.0).collect();
    let batch = Batch {
        tokens: numbers(&|index| (index * 5 + index / 7) % 256),
        targets: numbers(&|index| (index * 11 + index / 7) % 256),
        segment_ids: numbers(&|index| index % length / 9),
        positions: numbers(&|index| index % length),
        weights: Literal::from_slice(&[batch, length], &weights).expect("weights"),
    };
    inputs.extend(batch.leaves());
    (function.unwrap_or_else(|error| panic!("{error}")).graph().clone(), inputs)
}

/// Compares by the interpreter, and by XLA too if asked to.
fn check(mesh: &str, model: &[&str], by_xla: bool) {
    let what = format!("{mesh}: {}", model.join(" "));
    let config = config(mesh, model);
    let (graph, inputs) = loss_and_gradients(&config);
    let rules = config.rule_sets().expect("rules");
    // One device has one group of experts, one part of all tokens, and layers that are not cut.
    let plain = DecoderConfig { remat: RematPolicy::None, ..config.decoder().unwrap().on_one_device() };
    let specs = (plain.parameters().map(|_, param| param.spec.clone()), Batch::specs(16, 16));
    let reference =
        Function::trace("loss", specs, |(params, batch)| value_and_grad(params, |params| plain.loss(&params, &batch)));
    let expected = interpreted(reference.expect("it traces").graph(), &inputs);
    check_equal(&what, &interpreted_over(&graph, mesh, &rules, &inputs), &expected, 1e-5);
    if by_xla {
        check_equal(&what, &run(&partitioned(&graph, mesh, &rules), &inputs), &expected, 1e-5);
    }
}

/// Checks each case; in the small tier, XLA takes this many of them too.
fn check_all(by_xla: usize, all: &[(String, &[&str])]) {
    let by_xla = cases("partition experts on meshes by XLA", by_xla, 0..all.len());
    for (index, (mesh, model)) in all.iter().enumerate() {
        check(mesh, model, by_xla.contains(&index));
    }
}

/// The small tier takes each model once.
#[test]
fn all_meshes_compute_what_one_device_does() {
    let case = |number: usize| (random_mesh(&mut Random(17 + number as u64)), MODELS[number / 4]);
    let numbers = cases("partition experts on meshes", MODELS.len(), 0..4 * MODELS.len());
    check_all(0, &numbers.into_iter().map(case).collect::<Vec<_>>());
}

#[test]
fn the_axes_of_the_pipeline_work_together() {
    check_all(1, &[("data=2,fsdp=2,expert=2".to_owned(), MODELS[0]), ("expert=8".to_owned(), MODELS[2])]);
}

/// Decoders whose experts have a capacity: what is dropped does not depend on the mesh.
#[test]
fn decoders_with_a_capacity_drop_the_same() {
    let (exchange, capacity) = ("kernels.experts_exchange=all-to-all", "model.expert_capacity=1.0");
    let models: [(&str, &[&str]); 3] = [
        ("data=2,fsdp=2,expert=2", &["model.family=mixtral", capacity, exchange, "remat.policy=full"]),
        ("expert=4,tensor=2", &["model.family=deepseek", "model.batch_split=true", capacity, exchange]),
        ("expert=2,context=2,tensor=2", &["model.family=mixtral", capacity]),
    ];
    check_all(0, &models.map(|(mesh, model)| (mesh.to_owned(), model)));
}

/// The names that rules go by.
#[test]
fn parameters_have_the_names_of_the_field() {
    let config = config("data=2,fsdp=2,expert=2", MODELS[2]);
    let params = config.decoder().unwrap().parameters();
    let mut rows = Vec::new();
    params.map(|path, param| {
        let axes: Vec<String> = param.spec.axes.iter().map(Name::to_string).collect();
        rows.push(format!("{path} {:?} {}", &param.spec.ty.dims[..], axes.join(",")));
        param.clone()
    });
    rows.retain(|row| row.starts_with("layers"));
    insta::assert_snapshot!(rows.join("\n"), @r"
    layers.attention_norm [2, 32] layers,norm
    layers.attention.query.wq_a [2, 32, 16] layers,embed,q_lora
    layers.attention.query.q_norm [2, 16] layers,norm
    layers.attention.query.wq_b [2, 16, 8, 12] layers,q_lora,heads,kv
    layers.attention.wkv_a [2, 32, 16] layers,embed,kv_lora
    layers.attention.wk_rope [2, 32, 4] layers,embed,kv
    layers.attention.kv_norm [2, 16] layers,norm
    layers.attention.wkv_b [2, 16, 8, 16] layers,kv_lora,heads,kv
    layers.attention.wo [2, 8, 8, 32] layers,heads,kv,embed
    layers.mlp_norm [2, 32] layers,norm
    layers.mlp.router [2, 32, 8] layers,embed,
    layers.mlp.gate [2, 8, 32, 16] layers,exp,embed_no_exp_moe,mlp
    layers.mlp.up [2, 8, 32, 16] layers,exp,embed_no_exp_moe,mlp
    layers.mlp.down [2, 8, 16, 32] layers,exp,mlp,embed_no_exp_moe
    layers.mlp.shared.gate [2, 32, 16] layers,embed,mlp
    layers.mlp.shared.up [2, 32, 16] layers,embed,mlp
    layers.mlp.shared.down [2, 16, 32] layers,mlp,embed
    ");
}
