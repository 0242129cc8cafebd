//! Programs whose compiled modules are measured: decoder presets, small programs, and golden dumps of JAX.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloModuleProto, HloProto};
use meshloom::ir::DType::F32;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, scan, value_and_grad};
use prost::Message;
use support::configs::explicit_step;

/// A module from its text.
pub fn text(text: &str) -> HloModuleProto {
    let parsed = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    parsed.hlo_module.expect("a module")
}

/// Eight programs of ours, by name.
pub fn ours() -> Vec<(&'static str, Lowered)> {
    let one = ["mesh.axes=\"data=1\"", "target.devices=1"];
    let unrolled = "model.scan_layers=false";
    vec![
        ("decoder, one device", explicit_step(&[one[0], one[1], unrolled])),
        ("decoder, data=2,fsdp=4", explicit_step(&["mesh.axes=\"data=2,fsdp=4\"", unrolled])),
        ("decoder, fsdp=8", explicit_step(&["mesh.axes=\"fsdp=8\"", unrolled])),
        ("decoder, data=4,tensor=2", explicit_step(&["mesh.axes=\"data=4,tensor=2\"", unrolled])),
        ("decoder, one device, scanned", explicit_step(&one)),
        ("decoder, fsdp=8, scanned, remat", explicit_step(&["mesh.axes=\"fsdp=8\"", "remat.policy=\"full\""])),
        ("two layers, data=4,tensor=2", two_layers()),
        ("a stack of layers, scanned, one device", stack()),
    ]
}

/// A step of gradient descent on two layers, on a mesh.
fn two_layers() -> Lowered {
    const BATCH: usize = 256;
    const EMBED: usize = 64;
    let rules = [("batch", &["data"][..]), ("mlp", &["tensor"]), ("embed", &[])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules).expect("rules"));
    let spec = |dims: [usize; 2], axes| TensorSpec::new(F32, dims).with_axes(axes);
    let inputs = (
        spec([EMBED, 4 * EMBED], &["embed", "mlp"]),
        spec([4 * EMBED, EMBED], &["mlp", "embed"]),
        spec([BATCH, EMBED], &["batch", "embed"]),
    );
    let step = Function::trace("step", inputs, |(up, down, x): (Tensor, Tensor, Tensor)| {
        let (loss, (up_gradient, down_gradient)) = value_and_grad((up, down), |(up, down)| {
            let hidden = x.matmul(up).maximum(0.0).with_axes(["batch", "mlp"]);
            (hidden.matmul(down).with_axes(["batch", "embed"]) - x).square().mean(..)
        });
        (loss, up - up_gradient * 0.1, down - down_gradient * 0.1)
    });
    let mesh = Mesh::parse("data=4,tensor=2", 8).expect("a mesh");
    let options =
        LowerOptions { sharding: Some((&mesh, &rules)), aliases: vec![(1, 0), (2, 1)], ..LowerOptions::default() };
    lower(step.expect("it traces").graph(), &options).expect("it lowers")
}

/// A stack of layers as a loop, with its gradients.
fn stack() -> Lowered {
    const WIDTH: usize = 64;
    let spec = |dims: &[usize]| TensorSpec::new(F32, dims);
    let inputs = (spec(&[6, WIDTH, 4 * WIDTH]), spec(&[6, 4 * WIDTH, WIDTH]), spec(&[32, WIDTH]));
    let step = Function::trace("stack", inputs, |(up, down, x): (Tensor, Tensor, Tensor)| {
        value_and_grad((up, down), |layers| {
            let layer = |x: Tensor, (up, down): (Tensor, Tensor)| (x + x.matmul(up).tanh().matmul(down), ());
            scan(x, layers, layer).0.square().mean(..)
        })
    });
    lower(step.expect("it traces").graph(), &LowerOptions::default()).expect("it lowers")
}

/// A compiled JAX program, and what jaxlib says of it.
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

/// What `tests/oracle/memory.py` has written.
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
