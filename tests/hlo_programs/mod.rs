//! Programs whose compiled modules are measured: decoder presets, small programs, and golden dumps of JAX.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloModuleProto, HloProto};
use meshloom::ir::DType::F32;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, scan, value_and_grad};
use meshloom_train::config::RunConfig;
use prost::Message;

/// A module from its text.
pub fn text(text: &str) -> HloModuleProto {
    let parsed = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    parsed.hlo_module.expect("a module")
}

/// The train step of a small decoder.
pub fn decoder(overrides: &[&str]) -> Lowered {
    let small = [
        "model.layers=3",
        "model.embed=64",
        "model.heads=4",
        "model.kv_heads=2",
        "model.head_dim=16",
        "model.mlp=160",
        "model.seq=64",
        "partition.mode=\"explicit\"",
    ];
    let overrides: Vec<String> = small.iter().chain(overrides).map(|&text| text.to_owned()).collect();
    RunConfig::from_overrides(&overrides).expect("a config").lower_train_step().expect("it lowers").1
}

/// Eight programs of ours, by name.
pub fn ours() -> Vec<(&'static str, Lowered)> {
    let one = ["mesh.axes=\"data=1\"", "target.devices=1"];
    let unrolled = "model.scan_layers=false";
    vec![
        ("decoder, one device", decoder(&[one[0], one[1], unrolled])),
        ("decoder, data=2,fsdp=4", decoder(&["mesh.axes=\"data=2,fsdp=4\"", unrolled])),
        ("decoder, fsdp=8", decoder(&["mesh.axes=\"fsdp=8\"", unrolled])),
        ("decoder, data=4,tensor=2", decoder(&["mesh.axes=\"data=4,tensor=2\"", unrolled])),
        ("decoder, one device, scanned", decoder(&one)),
        ("decoder, fsdp=8, scanned, remat", decoder(&["mesh.axes=\"fsdp=8\"", "remat.policy=\"full\""])),
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
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        aliases: vec![(1, 0), (2, 1)],
        explicit: true,
        ..LowerOptions::default()
    };
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
    /// The numbers of `expected.json`, by name.
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
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/memory");
    let expected = fs::read_to_string(folder.join("expected.json")).expect("the numbers");
    let expected: BTreeMap<String, BTreeMap<String, f64>> = serde_json::from_str(&expected).expect("numbers");
    let golden = |(name, expected): (String, BTreeMap<String, f64>)| {
        let bytes = fs::read(folder.join(format!("{name}.hlo.pb"))).expect("a dump");
        Golden { dump: HloProto::decode(&*bytes).expect("an HloProto"), name, expected }
    };
    expected.into_iter().map(golden).collect()
}
