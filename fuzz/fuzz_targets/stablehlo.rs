//! Any bytes as StableHLO text: an error, or a module that prints as HLO and is analysed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom::analysis::{CostOptions, collectives, cost, device_count, memory};
use meshloom::hlo::read::{self, Form, Limits};
use meshloom::hlo::stablehlo::{self, WriteOptions};
use meshloom::hlo::text::{TextOptions, print};

fuzz_target!(|text: &[u8]| {
    let Ok(found) = read::read(text, &Limits::default()) else { return };
    if found.form != Form::StableHlo {
        return;
    }
    let (module, config) = (&found.module, found.config.as_ref());
    print(module, &TextOptions::parseable());
    let devices = device_count(module, config);
    collectives(module, devices);
    cost(module, &CostOptions::devices(devices));
    let _ = memory(module);
    let _ = stablehlo::write(module, &WriteOptions::default());
    let _ = stablehlo::write_artifact(module, &WriteOptions::default(), None);
});
