//! Any text as a run config: an error, or what its model computes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom_train::config::RunConfig;

fuzz_target!(|text: &str| {
    let Ok(config) = RunConfig::from_toml(text, "run.toml") else { return };
    let _ = config.architecture();
});
