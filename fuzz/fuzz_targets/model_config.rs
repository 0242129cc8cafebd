//! Any text as the `config.json` of a published model: an error, or a model that is described.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom_models::families::Published;

fuzz_target!(|text: &str| {
    let _ = Published::parse("config.json", text);
});
