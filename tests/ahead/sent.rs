//! Tests of the bytes that compiled programs send, beside those of the emitted programs: rows of
//! docs/compiled-collectives.md.

use meshloom::analysis::{Devices, collectives};
use meshloom::hlo::proto::HloModuleProto;
use support::configs::config;

use crate::workers::step;

/// A compiled step sends at most 1.02 times the bytes that were emitted: no reduce-scatter became an all-reduce, which
/// sends twice as much.
pub fn as_emitted(target: &str) {
    for mesh in ["data=2,fsdp=4", "fsdp=4,tensor=2", "fsdp=8"] {
        let settings = [format!("target.topology={target}"), format!("mesh.axes={mesh}")];
        let config = config(&[&[&settings[0], &settings[1], "model.layers=2"]]);
        let step = step(mesh, &config);
        let devices = Devices::partitioned(step.devices.len());
        let emitted = step.lowered.module.decode().expect("our own module");
        let compiled = step.compiled.optimized_hlo().expect("a program").decode().expect("a module");
        let sent = |module: &HloModuleProto, reduces: bool| {
            let sent = collectives(module, devices).entries.into_iter();
            let sent = sent.filter(|it| !reduces || !it.kind.name().contains("gather"));
            let bytes = sent.map(|it| it.total_moved_bytes().bound().unwrap_or_else(|| panic!("{target}: {it:?}")));
            bytes.sum::<u64>()
        };
        // libtpu gathers operands of products as bf16, which would hide reductions that send more.
        for reduces in [false, true] {
            let [emitted, compiled] = [&emitted, &compiled].map(|module| sent(module, reduces));
            println!("{target}, {mesh}: {compiled} of {emitted} bytes");
            assert!(emitted > 1 << 20, "{target}, {mesh}: {emitted} bytes are emitted");
            assert!(100 * compiled <= 102 * emitted, "{target}, {mesh}: {compiled} bytes are sent, not {emitted}");
        }
    }
}
