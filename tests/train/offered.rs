//! Every value that `meshloom config` offers is taken: the config with it gives a train step, or the reason why not.

use meshloom_train::config::RunConfig;

/// The keys that a section or a value needs in the rest of the config.
const NEEDED: [(&str, &[&str]); 19] = [
    (
        "pipeline.",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.microbatches=4", "pipeline.repeats=2", "pipeline.layers_per_stage=1"],
    ),
    ("pipeline.schedule=gpipe", &["pipeline.repeats=1", "pipeline.layers_per_stage=2"]),
    ("pipeline.schedule=1f1b", &["pipeline.repeats=1", "pipeline.layers_per_stage=2"]),
    ("pipeline.schedule=interleaved", &["pipeline.repeats=1", "pipeline.chunks=2"]),
    ("pipeline.schedule=zb-h1", &["pipeline.repeats=1", "pipeline.layers_per_stage=2"]),
    ("pipeline.schedule=zb-v", &["pipeline.repeats=1", "pipeline.chunks=2"]),
    ("pipeline.schedule=auto", &["pipeline.repeats=1", "pipeline.chunks=2"]),
    ("diloco.", &["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2"]),
    ("remat.policy=save", &["remat.names=[\"mlp_hidden\"]"]),
    ("remat.policy=offload", &["remat.names=[\"mlp_hidden\"]"]),
    ("pipeline.remat.policy=save", &["pipeline.remat.names=[\"mlp_hidden\"]"]),
    ("pipeline.remat.policy=offload", &["pipeline.remat.names=[\"mlp_hidden\"]"]),
    ("target.preallocate=", &["target.platform=cuda"]),
    ("kernels.attention=mosaic", &["target.platform=tpu"]),
    ("kernels.context_order=", &["mesh.axes=data=2,context=4"]),
    ("kernels.experts=mosaic", &["target.platform=tpu"]),
    ("kernels.experts=ragged-dot", &["target.platform=tpu"]),
    (
        "kernels.experts_exchange=",
        &["model.family=mixtral", "model.expert_capacity=2.0", "mesh.axes=data=2,fsdp=2,expert=2"],
    ),
    ("model.batch_split=true", &["train.batch=32"]),
];

/// Values that no train step takes, with what they need beside it and the reason: they are for other programs.
const REFUSED: [(&str, &str, &str); 1] =
    [("kernels.attention=cudnn", "target.platform=cuda", "segments are data, by which cuDNN cannot mask")];

/// Asks for hardware: `platforms` opens it.
const OF_HARDWARE: &str = "target.platform=auto";

/// The config with one value that is offered, and what it needs.
fn with(setting: &str) -> Vec<String> {
    let needed = NEEDED.iter().filter(|(prefix, _)| setting.starts_with(prefix)).flat_map(|(_, needed)| *needed);
    let small = ["model.layers=4", "model.embed=32", "model.seq=16", "model.mlp=32"];
    small.iter().chain(needed).map(|text| text.to_string()).chain([setting.to_owned()]).collect()
}

#[test]
fn every_offered_value_gives_a_train_step() {
    let mut tried = 0;
    let mut refused = Vec::new();
    for section in RunConfig::default().describe() {
        for key in section.keys {
            let choices: Vec<&str> = match key.allowed.strip_prefix("one of ") {
                Some(list) => list.split(", ").map(|name| name.trim_matches('"')).collect(),
                None if key.allowed.ends_with("true or false") => vec!["true", "false"],
                None => continue,
            };
            for choice in choices {
                let setting = format!("{}.{}={choice}", section.name, key.name);
                if setting == OF_HARDWARE {
                    continue;
                }
                if REFUSED.iter().any(|(refused, ..)| *refused == setting) {
                    continue;
                }
                tried += 1;
                let lowered = RunConfig::from_overrides(&with(&setting))
                    .map_err(|error| error.to_string())
                    .and_then(|config| config.lower_train_step().map_err(|error| error.to_string()));
                if let Err(error) = lowered {
                    refused.push(format!("{setting}: {error}"));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tried >= 60, "{tried}");
}

#[test]
fn values_for_other_programs_are_refused() {
    for (setting, needed, reason) in REFUSED {
        let settings = [with(setting), vec![needed.to_owned()]].concat();
        let config = RunConfig::from_overrides(&settings).unwrap_or_else(|error| panic!("{error}"));
        let error = config.lower_train_step().map(drop).expect_err(setting).to_string();
        let (key, word) = setting.split_once('=').expect("a key and its value");
        assert!(error.contains(&format!("{key} = \"{word}\": ")) && error.contains(reason), "{error}");
        assert!(error.contains(&format!("; choose {key} = \"auto\"")), "{error}");
    }
}
