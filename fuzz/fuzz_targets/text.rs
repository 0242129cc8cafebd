//! Any bytes as HLO text: an error, or a module that prints, reads back and is analysed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom::analysis::{CostOptions, collectives, cost, device_count, memory};
use meshloom::hlo::parse::{TextLimits, parse, parse_bytes};
use meshloom::hlo::stablehlo::{self, WriteOptions};
use meshloom::hlo::text::{TextOptions, print_with_config};

fuzz_target!(|text: &[u8]| {
    let Ok(parsed) = parse_bytes(text, &TextLimits::default()) else { return };
    let printed = print_with_config(&parsed, &TextOptions::parseable());
    parse(&printed).expect("what was read and printed reads again");
    if let Some(module) = &parsed.hlo_module {
        let devices = device_count(module, parsed.config.as_ref());
        collectives(module, devices);
        cost(module, &CostOptions::devices(devices));
        let _ = memory(module);
        let _ = stablehlo::write(module, &WriteOptions::default());
        let _ = stablehlo::write_artifact(module, &WriteOptions::default(), None);
    }
});
