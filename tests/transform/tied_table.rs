//! A table that is embedding and head: its two gradients are added up before devices reduce them, also where the model
//! computes in another type than that of the parameters.

use crate::transform::train_steps::{self, By, assert_same, batch, lowered};
use meshloom::ir::Literal;
use meshloom::optim::{AdamW, Optimizer};
use meshloom::partition::CollectiveKind;
use meshloom::passes::CollectiveLimits;
use meshloom_train::config::RunConfig;
use meshloom_train::run::TrainStep;
use support::cases::cases;

const WIDTH: u64 = 16;

const MODEL: &str = r#"
[model]
layers = 2
embed = 16
heads = 4
kv_heads = 4
head_dim = 4
mlp = 32
seq = 8
tied_embeddings = true
[train]
batch = 32
"#;

/// Meshes and forms, and by how many devices the vocabulary is split.
const FORMS: &[(&[&str], u64)] = &[
    (&["mesh.axes=fsdp=8"], 1),
    (&["mesh.axes=fsdp=8", "model.loss_chunks=4"], 1),
    (&["mesh.axes=fsdp=4,data=2", "train.microbatches=2"], 1),
    (&["mesh.axes=data=2,fsdp=2,tensor=2"], 2),
    (&["mesh.axes=fsdp=2,tensor=4", "model.loss_chunks=2"], 4),
    (&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=1", "pipeline.microbatches=4"], 1),
];

fn config(settings: &[&str]) -> RunConfig {
    train_steps::config(MODEL, settings)
}

fn train_step(config: &RunConfig) -> TrainStep {
    let mut step = config.train_step().expect("a step");
    // Otherwise a first step would be the sign of the gradient.
    step.optimizer = Optimizer::AdamW(AdamW { epsilon: 1e-2, ..step.optimizer.adamw().clone() });
    step
}

/// Runs a step and returns its results by path. Some tokens count less than others.
fn run(settings: &[&str]) -> Vec<(String, Literal)> {
    let config = config(settings);
    let weight = |row: usize, place: usize| if row % 3 == 1 { 0.25 } else { [1.0, 0.5][place % 2] };
    train_steps::run(&train_step(&config), &config, batch(&config, weight), By::Interpreter)
}

fn on_one_device(settings: &[&str]) -> Vec<(String, Literal)> {
    run(&[&["mesh.axes=data=1", "target.devices=1"], settings].concat())
}

/// Bytes of what is reduce-scattered over `fsdp`, by collective.
fn scattered(settings: &[&str], vocab: u64) -> u64 {
    let vocab = format!("model.vocab={vocab}");
    let config = config(&[settings, &[&vocab]].concat());
    let limits = CollectiveLimits { combined_bytes: 0, ..CollectiveLimits::default() };
    let ledger = lowered(&train_step(&config), &config, limits).collectives();
    let scattered = ledger.kind(CollectiveKind::ReduceScatter).over("fsdp");
    scattered.iter().expect("a ledger").map(|entry| entry.bytes).sum()
}

/// Twice as large a table costs once its bytes more, of the type that the model computes in.
#[test]
fn its_gradient_is_reduced_once() {
    for (settings, parts) in FORMS {
        for (dtype, bytes) in [("bf16", 2), ("f32", 4)] {
            let dtype = format!("model.compute_dtype={dtype}");
            let settings = [settings, &[&*dtype][..]].concat();
            let more = scattered(&settings, 512) - scattered(&settings, 256);
            assert_eq!(more, bytes * 256 * WIDTH / parts, "{settings:?}");
        }
    }
}

/// A model that computes in `f32` with parameters in `f64` converts its table. On any mesh it takes the step of one
/// device, which is that of a model whose parameters are `f32`, so that nothing is converted.
#[test]
fn steps_are_those_of_one_device() {
    let wide = ["model.param_dtype=f64", "model.compute_dtype=f32"];
    let expected = on_one_device(&[]);
    assert_same(&wide, &on_one_device(&wide), &expected);
    for (settings, _) in cases("transform tied table", 4, FORMS) {
        assert_same(settings, &run(&[settings, &wide[..]].concat()), &expected);
    }
}
