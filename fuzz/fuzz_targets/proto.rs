//! Any bytes as an HloModuleProto: an error, or a module that prints and is analysed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom::analysis::{CostOptions, collectives, cost, device_count, memory};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::stablehlo::{self, WriteOptions};
use meshloom::hlo::text::{TextOptions, print};
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    let Ok(module) = HloModuleProto::decode(bytes) else { return };
    // Ids may name nothing, so the text need not read; it must not do harm.
    let _ = parse(&print(&module, &TextOptions::parseable()));
    let devices = device_count(&module, None);
    collectives(&module, devices);
    cost(&module, &CostOptions::devices(devices));
    let _ = memory(&module);
    let _ = stablehlo::write(&module, &WriteOptions::default());
    let _ = stablehlo::write_artifact(&module, &WriteOptions::default(), None);
});
