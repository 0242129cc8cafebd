//! Train steps of decoders whose layers are a pipeline: of every family, they compute what the layers compute one after
//! the other on one device.

use crate::transform::pairs;
use crate::transform::train_steps::{self, By, assert_same, batch};
use meshloom::ir::Literal;
use meshloom_train::config::RunConfig;
use support::cases::cases;

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
batch = 16
[remat]
policy = "full"
"#;

/// The sizes of a family with routed experts.
const ROUTED: &[&str] = &["model.family.experts=4", "model.family.moe_mlp=16"];

/// The sizes of a family with latent attention.
const LATENT: &[&str] =
    &["model.family.q_lora=8", "model.family.kv_lora=8", "model.family.rope_head_dim=4", "model.family.v_head_dim=8"];

/// A config with these keys set.
fn config(settings: &[&str]) -> RunConfig {
    let is = |family: &str| settings.contains(&family);
    let latent = if is("model.family=deepseek") { LATENT } else { &[] };
    let routed = if is("model.family=mixtral") || !latent.is_empty() { ROUTED } else { &[] };
    train_steps::config(MODEL, &[routed, latent, settings].concat())
}

/// Runs a step and returns its results by path: loss, norm of the gradient, and the moments, from which the gradient
/// follows.
fn step(config: &RunConfig) -> Vec<(String, Literal)> {
    let weight = |row: usize, place: usize| if (row * config.model.seq + place) % 7 == 3 { 0.0 } else { 1.0 };
    let results = train_steps::run(&config.train_step().unwrap(), config, batch(config, weight), By::Interpreter);
    results.into_iter().filter(|(path, _)| !path.starts_with("state.params")).collect()
}

/// As [`step`] with the layers one after the other, on one device.
fn expected(settings: &[&str]) -> Vec<(String, Literal)> {
    step(&config(&[settings, &["mesh.axes=data=1", "target.devices=1"]].concat()))
}

#[track_caller]
fn check(family: &[&str], pipeline: &[&str], expected: &[(String, Literal)]) {
    let settings = [family, pipeline].concat();
    assert_same(&settings, &step(&config(&settings)), expected);
}

const SLIDING: &[&str] = &["pipeline.repeats=2", "pipeline.weights=bsw"];
const ONCE: &[&str] = &["pipeline.repeats=2", "pipeline.weights=gather-once"];
const DEEP: &[&str] = &["pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.schedule=gpipe"];
const ONE_LOOP: &[&str] = &["pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.schedule=1f1b"];

const ZERO_BUBBLE: &[&str] =
    &["pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.schedule=zb-h1", "pipeline.remat=none"];
const VEE: &[&str] = &["pipeline.repeats=1", "pipeline.chunks=2", "pipeline.schedule=zb-v", "pipeline.remat=none"];

fn over(mesh: &'static str, pipeline: &[&'static str]) -> Vec<&'static str> {
    [&[mesh], pipeline].concat()
}

#[test]
fn llama() {
    const PIPELINES: [&[&str]; 6] = [SLIDING, ONCE, DEEP, ONE_LOOP, ZERO_BUBBLE, VEE];
    const MESHES: [&str; 3] =
        ["mesh.axes=stage=2,data=2,fsdp=2", "mesh.axes=stage=2,fsdp=2,tensor=2", "mesh.axes=stage=2,fsdp=2,context=2"];
    let expected = expected(&[]);
    for [pipeline, mesh] in pairs::of_two("transform decoder meshes", [PIPELINES.len(), MESHES.len()]) {
        check(&[], &over(MESHES[mesh], PIPELINES[pipeline]), &expected);
    }
    for schedule in cases("transform decoder stages", 1, ["pipeline.schedule=1f1b", "pipeline.schedule=gpipe"]) {
        check(&[], &over("mesh.axes=stage=4,fsdp=2", &["pipeline.repeats=1", schedule]), &expected);
    }
}

/// Rules of the shape of MaxText's for pipelines (pipeline-large-moe), from a file.
#[test]
fn rules_from_a_file() {
    const RULES: &str = concat!("rules.file=", env!("CARGO_MANIFEST_DIR"), "/rule_files/pipelined-experts.yml");
    let family = ["model.family=mixtral", RULES];
    let expected = expected(&["model.family=mixtral"]);
    check(&family, &over("mesh.axes=data=2,stage=2,fsdp=2", SLIDING), &expected);
    let dense = [RULES];
    let expected = self::expected(&[]);
    for pipeline in cases("transform decoder rules", 1, [ONE_LOOP, SLIDING]) {
        check(&dense, &over("mesh.axes=stage=2,fsdp=2,tensor=2", pipeline), &expected);
    }
}

/// MaxText's rules for pipelines with experts (pipeline-large-moe) are followed strictly: names of one value that want
/// one axis are not a mistake in such a file. Over every pair of its axes, experts and latent attention compute what
/// one device does.
#[test]
fn rules_for_large_models_with_experts() {
    const RULES: &str = concat!("rules.file=", env!("CARGO_MANIFEST_DIR"), "/rule_files/large-experts.yml");
    let mixtral = ["model.family=mixtral", RULES, "rules.strict=true"];
    let expected = expected(&["model.family=mixtral"]);
    let with_tensor = "mesh.axes=stage=2,expert=2,tensor=2";
    let meshes = [with_tensor, "mesh.axes=stage=2,fsdp=2,expert=2", "mesh.axes=stage=2,fsdp=2,tensor=2"];
    for mesh in cases("transform decoder large rules", 1, meshes) {
        check(&mixtral, &over(mesh, SLIDING), &expected);
    }
    let deepseek = ["model.family=deepseek", RULES, "rules.strict=true"];
    check(&deepseek, &over(with_tensor, SLIDING), &self::expected(&["model.family=deepseek"]));

    // A table of tokens by its width, which activations have too: each name that stays whole is reported once.
    let (_, lowered) = config(&[&mixtral[..], &over(with_tensor, SLIDING)].concat()).lower_train_step().unwrap();
    let warnings: Vec<String> = lowered.warnings().collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    let said = "(\"vocab\") stays unsplit, because rule vocab -> tensor (";
    assert!(warnings[0].contains(said) && warnings[0].contains("published rules may clash"), "{warnings:#?}");
}

/// The rules decide the axis over which weights are split at rest, and the result is the same.
#[test]
fn weights_over_data() {
    let expected = expected(&[]);
    let rules = ["rules.override=[[\"embed\", [\"data\"]]]"];
    for pipeline in cases("transform decoder data", 2, [SLIDING, ONCE, ONE_LOOP]) {
        check(&rules, &over("mesh.axes=stage=2,data=2,tensor=2", pipeline), &expected);
    }
}

/// Layers in the pipeline and around it under policies of their own.
#[test]
fn remat_of_the_pipeline() {
    let form = over("mesh.axes=stage=2,data=2,fsdp=2", SLIDING);
    let settings = ["model.layers=6", "pipeline.layers=4"];
    let expected = step(&config(&[&settings[..], &["remat.policy=none"], &form].concat()));
    for own in ["full", "dots", "none"] {
        let own = format!("pipeline.remat={own}");
        check(&[&settings[..], &["remat.policy=dots", &own]].concat(), &form, &expected);
    }
}

/// The activations that drop depend on layer, row, position and channel, not on stages, microbatches or schedule.
#[test]
fn dropout() {
    let settings = ["model.dropout=0.3"];
    let expected = expected(&settings);
    let others = [
        over("mesh.axes=stage=2,data=2,fsdp=2", SLIDING),
        over("mesh.axes=stage=2,fsdp=4", DEEP),
        over("mesh.axes=stage=2,fsdp=2,tensor=2", ONCE),
        over("mesh.axes=stage=2,data=2,fsdp=2", ONE_LOOP),
        over("mesh.axes=stage=2,data=2,fsdp=2", VEE),
        over("mesh.axes=stage=4,fsdp=2", &["pipeline.repeats=1", "pipeline.microbatches=8"]),
        over(
            "mesh.axes=stage=2,data=2",
            &["pipeline.repeats=2", "pipeline.microbatches=2", "train.microbatches=2", "target.devices=4"],
        ),
        over("mesh.axes=data=2,fsdp=4", &["train.microbatches=2"]),
        over("mesh.axes=data=2,fsdp=2,context=2", &["model.batch_split=true"]),
    ];
    for form in cases("transform decoder dropout", 5, others) {
        check(&settings, &form, &expected);
    }
    let loss =
        |found: &[(String, Literal)]| found.iter().find(|(path, _)| path == "loss").map(|(_, loss)| loss.clone());
    assert_ne!(loss(&expected), loss(&self::expected(&[])));
}

#[test]
fn tied_embeddings() {
    let tied = ["model.tied_embeddings=true"];
    let expected = expected(&tied);
    for pipeline in [SLIDING, ONE_LOOP] {
        check(&tied, &over("mesh.axes=stage=2,data=2,fsdp=2", pipeline), &expected);
    }
}

/// The gradient of a loss in chunks is made with it, by 1F1B in the loop over iterations, where stages split the
/// positions.
#[test]
fn loss_in_chunks() {
    const TIED: [&str; 2] = ["model.tied_embeddings=false", "model.tied_embeddings=true"];
    const MESHES: [&str; 2] = ["mesh.axes=stage=2,data=2,fsdp=2", "mesh.axes=stage=2,context=2,tensor=2"];
    let expected = TIED.map(|tied| expected(&[tied, "train.z_loss=0.01"]));
    let check = |tied: usize, form: Vec<&str>| {
        check(&[TIED[tied], "train.z_loss=0.01", "model.loss_chunks=2"], &form, &expected[tied]);
    };
    for [pipeline, mesh, tied] in pairs::of_options("transform decoder loss", [3, 2, 2]) {
        check(tied, over(MESHES[mesh], [ONE_LOOP, SLIDING, DEEP][pipeline]));
    }
    for tied in cases("transform decoder loss without stages", 1, [1, 0]) {
        check(tied, over("mesh.axes=data=2,fsdp=2,tensor=2", &["train.microbatches=2"]));
    }
}

#[test]
fn mixtral() {
    let family = ["model.family=mixtral"];
    let expected = expected(&family);
    for pipeline in cases("transform decoder mixtral", 2, [SLIDING, ONE_LOOP, VEE]) {
        check(&family, &over("mesh.axes=stage=2,fsdp=2,expert=2", pipeline), &expected);
    }
}

/// Latent attention, shared and routed experts, each layer in two halves of the microbatch.
#[test]
fn deepseek_in_halves() {
    let family = ["model.family=deepseek", "train.batch=32"];
    let expected = expected(&family);
    let halves = ["model.family=deepseek", "train.batch=32", "model.batch_split=true"];
    for pipeline in cases("transform decoder halves", 2, [ONE_LOOP, SLIDING, VEE]) {
        check(&halves, &over("mesh.axes=stage=2,fsdp=2,expert=2", pipeline), &expected);
    }
}
