//! Tests of streaming DiLoCo whose transfers are to overlap with steps: the steps per call of a config, and the
//! warnings if the calls leave no room.

use meshloom_train::config::RunConfig;

const STREAMING: &[&str] = &[
    "mesh.axes=diloco=2,fsdp=4",
    "diloco.replicas=2",
    "diloco.streaming=true",
    "diloco.fragments=5",
    "diloco.sync_period=20",
    "diloco.overlap_steps=3",
];

fn config(overrides: &[&str]) -> RunConfig {
    let overrides: Vec<String> = [STREAMING, overrides].concat().into_iter().map(str::to_owned).collect();
    RunConfig::from_overrides(&overrides).unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
}

/// Steps per call, and the warning if there is one.
#[test]
fn calls_have_room_for_the_transfers() {
    let none: &[&str] = &[];
    for (overrides, steps_per_call, warning) in [
        (none, 20, None),
        (&["train.steps_per_call=40"], 40, None),
        (&["diloco.sync_period=23"], 20, None),
        // A fault that was found: the update was late without an overlap.
        (&["train.steps_per_call=1"], 1, Some("train.steps_per_call must be 20, or a multiple of it, not 1")),
        (&["train.steps_per_call=30"], 30, Some("train.steps_per_call must be 20")),
        (&["diloco.overlap_steps=4"], 1, Some("must be less than the 4 steps from sync to sync, not 4")),
        (&["train.steps=22"], 1, Some("train.steps must be at least 23, not 22")),
        (&["train.steps=23"], 20, None),
        // Nothing is to overlap.
        (&["diloco.overlap_steps=0"], 1, None),
        (&["diloco.streaming=false", "diloco.fragments=3", "diloco.overlap_steps=0"], 1, None),
    ] {
        let config = config(overrides);
        assert_eq!(config.train.steps_per_call, steps_per_call, "{overrides:?}");
        let warnings = config.warnings();
        assert_eq!(warnings.len(), usize::from(warning.is_some()), "{overrides:?}: {warnings:?}");
        assert!(warning.is_none_or(|part| warnings[0].contains(part)), "{overrides:?}: {warnings:?}");
        // The config that is written is read back as the same.
        let again = RunConfig::from_toml(&config.to_toml(), "").expect("the same config");
        assert_eq!(again, config, "{overrides:?}");
    }
}

/// No config that is shipped asks for what it does not get.
#[test]
fn shipped_configs_get_what_they_ask_for() {
    let folder = support::path("examples/configs");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the configs") {
        let path = entry.expect("an entry").path();
        let config = RunConfig::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.warnings(), Vec::<String>::new(), "{}", path.display());
        seen += usize::from(config.diloco.is_some_and(|diloco| diloco.overlap_steps > 0));
    }
    assert!(seen >= 2, "{seen} shipped configs overlap");
}
