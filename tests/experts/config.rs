//! The families in the run config.

use insta::assert_snapshot;
use meshloom::train::Trainer;
use meshloom::train::config::RunConfig;

use crate::client;
use crate::meshes::config;

fn refused(overrides: &[&str]) -> String {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    RunConfig::from_overrides(&overrides).expect_err("it is refused").to_string()
}

#[test]
fn impossible_keys_are_refused() {
    let mixtral = "model.family=mixtral";
    let deepseek = "model.family=deepseek";
    assert_snapshot!(refused(&[mixtral, "model.experts_per_token=9"]), @"");
    assert_snapshot!(refused(&[mixtral, "model.experts=0"]), @"");
    assert_snapshot!(refused(&[mixtral, "model.load_balance_weight=-1.0"]), @"");
    assert_snapshot!(refused(&[mixtral, "model.experts=6", "mesh.axes=data=2,expert=4"]), @"");
    assert_snapshot!(refused(&[deepseek, "model.rope_head_dim=5"]), @"");
    assert_snapshot!(refused(&[deepseek, "model.kv_lora=0"]), @"");
    assert_snapshot!(refused(&["model.batch_split=true", "train.batch=15", "mesh.axes=data=1", "target.devices=1"]), @"");
}

/// Keys of experts say nothing about a family without.
#[test]
fn a_dense_family_has_no_experts() {
    let config = config("data=8", &["model.experts_per_token=9"]);
    assert_eq!(config.layer_parts(), meshloom::nn::LayerParts::default());
}

#[test]
fn groups_are_those_of_the_mesh() {
    let parts = |mesh: &str| config(mesh, &["model.family=mixtral"]).layer_parts().routed;
    let cut = |mesh: &str| (parts(mesh).expert_groups, parts(mesh).sequence_parts);
    assert_eq!(cut("data=2,fsdp=2,expert=2"), (2, 1));
    assert_eq!(cut("expert=4,context=2"), (4, 2));
    assert_eq!(cut("data=8"), (1, 1));
}

#[test]
fn both_families_train() {
    for family in ["model.family=mixtral", "model.family=deepseek"] {
        let config = config("data=2,fsdp=2,expert=2", &[family, "train.warmup=2"]);
        let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
        let losses: Vec<f64> = (0..12).map(|_| trainer.step().expect("a step").loss).collect();
        assert!(losses[11] < losses[0] - 0.5, "{family}: {losses:?}");
    }
}
