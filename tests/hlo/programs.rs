//! Programs whose compiled modules are measured: decoder presets, small programs, and golden dumps of JAX.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use meshloom::compile::Lowered;
use meshloom::hlo::PlatformKind;
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloModuleProto, HloProto};
use meshloom::pjrt::Platform;
use prost::Message;
use support::calibration::{stack, two_layers};
use support::configs::explicit_step;

/// A module from its text.
pub fn text(text: &str) -> HloModuleProto {
    let parsed = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    parsed.hlo_module.expect("a module")
}

/// Eight programs of ours, by name.
pub fn ours() -> Vec<(&'static str, Lowered)> {
    const ANY: Platform = Platform::of_any_plugin(PlatformKind::Cpu);
    let one = ["mesh.axes=\"data=1\"", "target.devices=1"];
    let unrolled = "model.scan_layers=false";
    vec![
        ("decoder, one device", explicit_step(&[one[0], one[1], unrolled])),
        ("decoder, data=2,fsdp=4", explicit_step(&["mesh.axes=\"data=2,fsdp=4\"", unrolled])),
        ("decoder, fsdp=8", explicit_step(&["mesh.axes=\"fsdp=8\"", unrolled])),
        ("decoder, data=4,tensor=2", explicit_step(&["mesh.axes=\"data=4,tensor=2\"", unrolled])),
        ("decoder, one device, scanned", explicit_step(&one)),
        ("decoder, fsdp=8, scanned, remat", explicit_step(&["mesh.axes=\"fsdp=8\"", "remat.policy=\"full\""])),
        ("two layers, data=4,tensor=2", two_layers(&ANY)),
        ("a stack of layers, scanned, one device", stack(&ANY)),
    ]
}

/// A compiled JAX program, and jaxlib's figures of it.
pub struct Golden {
    pub name: String,
    pub dump: HloProto,
    /// The numbers of `expected.json`, by name; without those of its cost where XLA counts control flow otherwise.
    pub expected: BTreeMap<String, f64>,
}

impl Golden {
    pub fn module(&self) -> &HloModuleProto {
        self.dump.hlo_module.as_ref().expect("a module")
    }

    pub fn number(&self, name: &str) -> f64 {
        self.expected[name]
    }
}

/// Returns the goldens that `tests/oracle/memory.py` has written.
pub fn golden() -> Vec<Golden> {
    let folder: PathBuf = support::path("tests/oracle/memory");
    let expected = fs::read_to_string(folder.join("expected.json")).expect("the numbers");
    let expected: BTreeMap<String, BTreeMap<String, f64>> = serde_json::from_str(&expected).expect("numbers");
    let golden = |(name, expected): (String, BTreeMap<String, f64>)| {
        let bytes = fs::read(folder.join(format!("{name}.hlo.pb"))).expect("a dump");
        Golden { dump: HloProto::decode(&*bytes).expect("an HloProto"), name, expected }
    };
    expected.into_iter().map(golden).collect()
}
