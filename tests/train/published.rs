//! Published models in a run config.

use insta::assert_snapshot;
use meshloom_models::families::named_model;
use meshloom_nn::RunForm;
use meshloom_train::config::RunConfig;

use crate::train::run_config::read;

fn refused(overrides: &[&str]) -> String {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    match RunConfig::from_toml_with("", "run.toml", &overrides) {
        Ok(_) => "taken".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn golden(case: &str) -> String {
    support::path(format!("tests/oracle/families/{case}")).display().to_string()
}

#[test]
fn a_preset_says_what_the_model_is() {
    let config = read("", &["model.preset=gemma-2-2b", "target.devices=8", "mesh.axes=fsdp=4,tensor=2"]);
    let published = named_model("gemma-2-2b").unwrap().architecture;
    assert_eq!(config.decoder().unwrap().architecture, published);
    let model = &config.model;
    assert_eq!((model.layers, model.embed, model.vocab, model.tied_embeddings), (26, 2304, 256_000, true));
    assert_eq!(read(&config.to_toml(), &[]), config);
}

#[test]
fn a_folder_says_what_the_model_is() {
    let folder = format!("model.config={}", golden("deepseek_v3"));
    let config = read("", &[&folder, "mesh.axes=fsdp=2,expert=4", "data.tokenizer=tokenizer.json"]);
    let architecture = config.decoder().unwrap().architecture;
    assert_eq!(architecture.stack.layer_count(), 4);
    let groups: Vec<usize> =
        architecture.stack.layers().filter_map(|layer| Some(layer.routed()?.expert_groups)).collect();
    assert_eq!(groups, [4, 4]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let gemma = "model.preset=gemma-2-2b";
    let start = "--set model.preset=gemma-2-3b: model.preset is \"gemma-2-3b\": there is no model \"gemma-2-3b\" (did you mean ";
    assert!(refused(&["model.preset=gemma-2-3b"]).starts_with(start));
    assert_snapshot!(refused(&[gemma, "model.config=somewhere"]), @r#"--set model.preset=gemma-2-2b: model.preset is "gemma-2-2b": model.config says what the model is as well; give one of them"#);
    assert_snapshot!(refused(&["model.config=no-such-folder"]), @r#"--set model.config=no-such-folder: model.config is "no-such-folder": cannot read "no-such-folder/config.json": No such file or directory (os error 2); give a folder that has a config.json of transformers"#);
    assert_snapshot!(refused(&[gemma, "model.layers=4"]), @r#"--set model.layers=4: model.layers is 4: model.preset = "gemma-2-2b" has 26; leave the key out"#);
    assert_snapshot!(refused(&[gemma, "model.tied_embeddings=false"]), @r#"--set model.tied_embeddings=false: model.tied_embeddings is false: model.preset = "gemma-2-2b" has true; leave the key out"#);
    let experts = refused(&[
        &format!("model.config={}", golden("qwen3_moe_plain")),
        "mesh.axes=fsdp=2,expert=4",
        "data.tokenizer=tokenizer.json",
    ]);
    assert_snapshot!(experts, @r#"--set mesh.axes=fsdp=2,expert=4: mesh.axes is "fsdp=2,expert=4": the model's 6 experts must be a multiple of 4: the rules spread experts over so many devices of fsdp=2,expert=4"#);
}

/// Keys of a shape have no effect beside a published model.
#[test]
fn keys_of_a_shape_have_no_effect() {
    let config = read("", &["model.preset=llama-3.2-1b", "model.heads=16", "model.load_balance_weight=0.5"]);
    let unused = config.warnings();
    let expected = [
        "model.heads = 16 has no effect, because model.preset is \"llama-3.2-1b\"",
        "model.load_balance_weight = 0.5 has no effect, because model.preset is \"llama-3.2-1b\", without routed experts",
    ];
    assert_eq!(unused, expected);
}

/// Stages hold whole cycles; cycles that are left over run in front of the pipeline.
#[test]
fn stages_hold_whole_cycles() {
    let gemma = ["model.preset=gemma-2-2b", "mesh.axes=stage=4,fsdp=2", "pipeline.repeats=3"];
    assert_snapshot!(refused(&gemma), @r#"run.toml: pipeline.layers_per_stage is 1: it must be a multiple of the 2 layers of a cycle, which a stage holds whole"#);
    assert_snapshot!(refused(&[&gemma[..], &["pipeline.layers_per_stage=2"]].concat()), @r#"--set pipeline.repeats=3: model.layers is 26: it must be stages * pipeline.repeats * pipeline.layers_per_stage, which is 4 * 3 * 2 = 24; or give pipeline.layers = 24, and the other layers run around it"#);
    let config = read("", &[&gemma[..], &["pipeline.layers_per_stage=2", "pipeline.layers=24"]].concat());
    let options = config.pipeline_options().unwrap().unwrap();
    assert_eq!((options.stages, options.repeats, options.layers_per_stage), (4, 3, 1));
    let runs: Vec<(usize, RunForm)> =
        config.decoder().unwrap().runs().iter().map(|run| (run.first, run.form)).collect();
    assert_eq!(runs, [(0, RunForm::Scanned(1)), (2, RunForm::Pipelined)]);
    // Gemma 3's four layers that are no whole cycle stand in front, so that 1F1B has none behind it.
    let gemma = [
        "model.preset=gemma-3-4b",
        "mesh.axes=stage=5",
        "target.devices=5",
        "pipeline.microbatches=5",
        "train.batch=10",
        "pipeline.repeats=1",
        "pipeline.layers_per_stage=6",
        "pipeline.schedule=1f1b",
    ];
    let runs: Vec<(usize, RunForm)> =
        read("", &gemma).decoder().unwrap().runs().iter().map(|run| (run.first, run.form)).collect();
    assert_eq!(runs, [(0, RunForm::Scanned(4)), (4, RunForm::Pipelined)]);
}

/// A config that code has changed is not taken for the model that was read before.
#[test]
fn a_model_that_was_not_read_again_is_refused() {
    let refused = |change: fn(&mut RunConfig)| {
        let mut config = read("", &["model.preset=llama-3.2-1b"]);
        change(&mut config);
        match config.decoder() {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let found = [
        refused(|config| config.model.preset = "gemma-2-2b".to_owned()),
        refused(|config| config.model.preset = String::new()),
        refused(|config| config.model.config = "somewhere".to_owned()),
        refused(|config| config.model.layers = 4),
        refused(|config| config.model.tied_embeddings = false),
    ];
    assert_snapshot!(found.join("\n"), @r#"
    model.preset is "gemma-2-2b": it was "llama-3.2-1b" when the model was read; call RunConfig::read_model behind the change
    model.preset is "": it was "llama-3.2-1b" when the model was read; call RunConfig::read_model behind the change
    model.config is "somewhere": it was "" when the model was read; call RunConfig::read_model behind the change
    model.layers is 4: it was 16 when the model was read; call RunConfig::read_model behind the change
    model.tied_embeddings is false: it was true when the model was read; call RunConfig::read_model behind the change
    "#);
    let mut config = read("", &["model.preset=llama-3.2-1b"]);
    config.model.preset = "gemma-2-2b".to_owned();
    config.read_model().unwrap();
    let gemma = named_model("gemma-2-2b").unwrap().architecture;
    assert_eq!((config.model.layers, config.decoder().unwrap().architecture), (26, gemma));
    // The tokenizer of a folder goes with it, and one that code has set stays.
    let mut config = read("", &[&format!("model.config={}", golden("llama3")), "data.tokenizer=of-the-run.json"]);
    config.model.config = golden("qwen3");
    config.read_model().unwrap();
    assert_eq!(config.data.tokenizer, "of-the-run.json");
    let mut config = RunConfig::default();
    config.model.preset = "gemma-2-3b".to_owned();
    assert!(config.resolve().is_err());
    assert!(config.read_model().unwrap_err().to_string().contains("there is no model \"gemma-2-3b\""));
}

#[test]
fn sequences_longer_than_a_model_was_made_for_are_a_warning() {
    let warnings = |seq: &str| read("", &["model.preset=gemma-2-2b", "data.tokenizer=tokenizer.json", seq]).warnings();
    assert_eq!(warnings("model.seq=8192"), Vec::<String>::new());
    let expected = "model.seq is 8193, but model.preset is \"gemma-2-2b\", which was made for at most 8192 tokens";
    assert_eq!(warnings("model.seq=8193"), [expected]);
}
