//! Keys that a run config leaves open are chosen for the mesh and the sizes.

use meshloom_train::config::RunConfig;

/// Logits of 4 GiB on a device, or what is left of them, are cut into pieces of 256 MiB; small ones are left alone.
#[test]
fn chunks_of_the_loss_are_chosen() {
    let chunks = |settings: &[&str]| {
        let overrides: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        RunConfig::from_toml_with("", "run.toml", &overrides).unwrap().decoder().unwrap().loss_chunks
    };
    let large = |settings: &[&'static str]| {
        chunks(&[&["model.vocab=131072", "model.seq=4096", "train.batch=16"], settings].concat())
    };
    assert_eq!(chunks(&[]), 1);
    assert_eq!(chunks(&["model.loss_chunks=4"]), 4);
    assert_eq!(large(&[]), 16);
    assert_eq!(large(&["train.microbatches=2"]), 8);
    assert_eq!(large(&["mesh.axes=fsdp=2,tensor=4"]), 16);
    assert_eq!(large(&["mesh.axes=fsdp=2,context=4"]), 16);
    // Stages split the positions of a microbatch's loss: 2048 of one row for a device.
    let pipeline = ["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=1", "pipeline.layers_per_stage=2"];
    assert_eq!(large(&[&pipeline[..], &["pipeline.schedule=1f1b"]].concat()), 4);
    assert_eq!(large(&[&pipeline[..], &["pipeline.schedule=gpipe"]].concat()), 16);
    // 8192 tokens on a device: a wider head has a gradient larger than their logits.
    assert_eq!(large(&["model.embed=8192"]), 16);
    assert_eq!(large(&["model.embed=8193"]), 1);
    // Positions that are padded are not cut.
    assert_eq!(large(&["model.seq=4100", "mesh.axes=context=8", "rules.uneven=true"]), 1);
    // A prime length can only be cut into single positions, which are too few.
    assert_eq!(large(&["model.seq=4099"]), 1);
    // A row's 128 tokens are 512 MiB, but fewer are no chunk.
    assert_eq!(large(&["model.vocab=1048576", "train.batch=8"]), 32);
}
