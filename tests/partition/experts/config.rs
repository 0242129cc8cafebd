//! The families in the run config.

use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;

use super::meshes::config;
use support::cases::cases;
use support::eight_devices::client;

/// Refuses the last of the overrides for a reason.
fn check(overrides: &[&str], reason: &str) {
    let set: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let message = RunConfig::from_overrides(&set).expect_err("it is refused").to_string();
    let last = overrides.last().expect("an override");
    let (key, value) = last.split_once('=').expect("a key and a value");
    assert_eq!(message, format!("--set {last}: {key} is {value}: {reason}"));
}

#[test]
fn impossible_keys_are_refused() {
    let (mixtral, deepseek) = ("model.family=mixtral", "model.family=deepseek");
    check(&[mixtral, "model.family.experts_per_token=9"], "it must be at most model.family.experts, which is 8");
    check(&[mixtral, "model.family.experts_per_token=0"], "it must be an integer from 1 to 2147483647");
    check(&[mixtral, "model.family.experts=0"], "it must be an integer from 1 to 2147483647");
    check(&[mixtral, "model.family.moe_mlp=0"], "it must be an integer from 1 to 2147483647");
    check(&[mixtral, "model.load_balance_weight=-1.0"], "it must be a number of at least 0");
    let groups = "it must be a multiple of 4: the rules spread experts over so many devices of data=2,expert=4";
    check(&[mixtral, "mesh.axes=data=2,expert=4", "model.family.experts=6"], groups);
    check(&[deepseek, "model.family.rope_head_dim=5"], "it must be an even integer from 2 to 65536");
    check(&[deepseek, "model.family.kv_lora=0"], "it must be an integer from 1 to 2147483647");
    check(&[deepseek, "model.family.v_head_dim=0"], "it must be an integer from 1 to 2147483647");
    let odd = "the rows of a microbatch (train.batch over train.microbatches and pipeline.microbatches) must be even to be \
               split in two, but there are 15";
    check(&["mesh.axes=data=1", "target.devices=1", "train.batch=15", "model.batch_split=true"], odd);
}

#[test]
fn a_dense_family_has_no_experts() {
    let config = config("data=8", &[]);
    assert_eq!(config.architecture().unwrap().stack.routed_count(), 0);
}

#[test]
fn groups_are_those_of_the_mesh() {
    let cut = |mesh: &str| {
        let architecture = config(mesh, &["model.family=mixtral"]).architecture().unwrap();
        let routed = architecture.stack.cycle[0].routed().unwrap();
        (routed.expert_groups, routed.batch_parts, routed.sequence_parts)
    };
    assert_eq!(cut("data=2,fsdp=2,expert=2"), (2, 4, 1));
    assert_eq!(cut("expert=4,context=2"), (4, 1, 2));
    assert_eq!(cut("data=8"), (1, 8, 1));
}

#[test]
fn both_families_train() {
    for family in cases("partition families of experts", 1, ["model.family=mixtral", "model.family=deepseek"]) {
        let config = config("data=2,fsdp=2,expert=2", &[family, "train.warmup=2"]);
        let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
        let losses: Vec<f64> = (0..12).map(|_| trainer.step().expect("a step").loss).collect();
        assert!(losses[11] < losses[0] - 0.5, "{family}: {losses:?}");
    }
}
