//! What moves in a decoder's train step, under each preset.

use meshloom::train::config::RunConfig;

const LAYERS: usize = 4;

fn lowered(mesh: &str, overrides: &[&str]) -> meshloom::compile::Lowered {
    let mut all = vec![
        format!("model.layers={LAYERS}"),
        "model.embed=64".into(),
        "model.heads=8".into(),
        "model.kv_heads=8".into(),
        "model.head_dim=16".into(),
        "model.mlp=96".into(),
        "model.vocab=256".into(),
        "model.seq=64".into(),
        format!("mesh.axes=\"{mesh}\""),
        "partition.mode=\"explicit\"".into(),
    ];
    all.extend(overrides.iter().map(|&text| text.to_owned()));
    RunConfig::from_overrides(&all).expect("a config").lower_train_step().expect("it lowers").1
}

#[test]
fn show() {
    let mesh = std::env::var("MESH").unwrap_or("fsdp=8".into());
    let overrides = std::env::var("SET").unwrap_or_default();
    let overrides: Vec<&str> = overrides.split(';').filter(|text| !text.is_empty()).collect();
    let lowered = lowered(&mesh, &overrides);
    println!("{}", lowered.collectives());
    for timing in &lowered.timings {
        println!("{} {:?}", timing.pass, timing.time);
    }
    if std::env::var("GRAPH").is_ok() {
        println!("{}", lowered.local.as_ref().expect("a local graph"));
    }
}
