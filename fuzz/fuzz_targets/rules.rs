//! Any text as a rule file: an error, or rules.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom::sharding::RuleFile;

fuzz_target!(|text: &str| {
    let _ = RuleFile::parse(text, "rules.yml").and_then(|file| file.into_rules(false));
});
