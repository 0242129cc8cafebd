//! What each preset makes of a decoder: the spec of every parameter and of every value with axis names, on eight devices.

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::train::config::RunConfig;
use meshloom::train::step::aliases;

const SMALL: &[&str] = &[
    "model.layers=2",
    "model.embed=64",
    "model.heads=8",
    "model.kv_heads=8",
    "model.head_dim=16",
    "model.mlp=160",
    "model.seq=64",
    "train.batch=16",
];

/// The train step on a mesh. Not by a config alone: that refuses a `stage` axis without a pipeline.
fn lowered(mesh: &str, preset: &str, overrides: &[&str]) -> Lowered {
    let overrides: Vec<String> = SMALL.iter().chain(overrides).map(|&text| text.to_owned()).collect();
    let config = RunConfig::from_overrides(&overrides).unwrap_or_else(|error| panic!("{error}"));
    let function = config.train_step().trace().expect("it traces");
    let mesh = Mesh::parse(mesh, 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::preset(preset, true).expect("a preset"));
    let options =
        LowerOptions { sharding: Some((&mesh, &rules)), aliases: aliases(&function), ..LowerOptions::default() };
    lower(function.graph(), &options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn show() {
    let mesh = std::env::var("MESH").unwrap_or("data=2,tensor=4".into());
    println!("{}", lowered(&mesh, "decoder", &[]).debug_sharding.expect("a table"));
}
