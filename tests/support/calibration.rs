//! The programs by which the memory of modules that are not compiled is calibrated, and XLA's figures for them.
//!
//! `calibration.tsv` beside this file has the figures of `PJRT_Executable_GetCompiledMemoryStats` for each program and
//! platform. The test `memory_figures` of `tests/ahead` writes the missing rows of the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::PlatformKind;
use meshloom::ir::{DType, Graph};
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{CompileOptions, DeviceDescription, MemoryStats, Platform};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, scan, value_and_grad};
use meshloom_nn::causal_attention;
use meshloom_train::config::RunConfig;
use meshloom_train::run::Calls;

use crate::ahead_of_time::{described, topology};
use crate::configs::config;
use crate::counts;

#[allow(dead_code, reason = "the example's data set is not used here")]
#[path = "../../crates/train/examples/vision_transformer/model.rs"]
mod vision_transformer;

/// A program of the set.
pub struct Calibration {
    pub name: &'static str,
    source: Source,
}

enum Source {
    /// The train step of a config: these keys beside the defaults.
    Config(&'static [&'static [&'static str]]),
    /// The same of the example's vision transformer.
    Images(&'static [&'static str]),
    /// Something else, for one device or eight.
    Function(usize, fn(&Platform) -> Lowered),
}

/// A function that lowers a program for a platform.
type Lower = fn(&Platform) -> Lowered;

/// Two layers of a small decoder.
const SMALL: &[&str] =
    &["model.layers=2", "model.embed=128", "model.heads=4", "model.kv_heads=2", "model.mlp=384", "model.seq=128"];

/// Two layers of one with sequences of 512 tokens.
const LARGE: &[&str] = &["model.layers=2", "model.embed=512", "model.mlp=1536", "model.seq=512"];

const ONE: &[&str] = &["mesh.axes=data=1", "target.devices=1"];
const FSDP: &[&str] = &["mesh.axes=fsdp=8"];
const UNROLLED: &[&str] = &["model.scan_layers=false"];

/// All programs.
pub fn programs() -> Vec<Calibration> {
    let configs: [(&'static str, &'static [&'static [&'static str]]); 37] = [
        ("small, one device", &[SMALL, ONE]),
        ("small, tied embeddings of 4096", &[SMALL, &["model.vocab=4096", "model.tied_embeddings=true"]]),
        ("small, vocabulary of 8192, fsdp=8", &[SMALL, FSDP, &["model.vocab=8192", "train.z_loss=0.0001"]]),
        ("small, Muon", &[SMALL, &["train.optimizer=muon"]]),
        ("small, Muon, unrolled, fsdp=8", &[SMALL, FSDP, UNROLLED, &["train.optimizer=muon"]]),
        ("small, bf16 parameters", &[SMALL, &["model.param_dtype=bf16", "model.compute_dtype=bf16"]]),
        ("small, halves of the batch in turns", &[SMALL, &["model.batch_split=true", "train.batch=32"]]),
        ("small, uneven", &[SMALL, &["model.embed=100", "rules.uneven=true"]]),
        ("small, Mixtral", &[SMALL, &["model.family=mixtral", "mesh.axes=fsdp=2,expert=4"]]),
        ("small, DeepSeek", &[SMALL, &["model.family=deepseek", "mesh.axes=data=2,fsdp=2,expert=2"]]),
        (
            "small, partially sharded",
            &[SMALL, &["mesh.axes=replica=2,fsdp=4", "train.microbatches=4", "train.batch=32"]],
        ),
        ("small, DiLoCo", &[SMALL, &["mesh.axes=diloco=2,fsdp=4", "diloco.sync_period=4"]]),
        (
            "small, Streaming DiLoCo",
            &[
                SMALL,
                &["mesh.axes=diloco=2,fsdp=4", "diloco.sync_period=4", "diloco.streaming=true", "diloco.fragments=2"],
                &["diloco.transport=bf16"],
            ],
        ),
        (
            "pipeline, circular",
            &[&[
                "mesh.axes=stage=2,data=2,fsdp=2",
                "pipeline.microbatches=4",
                "pipeline.repeats=2",
                "pipeline.weights=bsw",
            ]],
        ),
        (
            "pipeline, 1f1b",
            &[&["mesh.axes=stage=4,fsdp=2", "pipeline.microbatches=4", "pipeline.repeats=1", "pipeline.schedule=1f1b"]],
        ),
        (
            "pipeline, gpipe",
            &[
                SMALL,
                &[
                    "mesh.axes=stage=2,fsdp=4",
                    "pipeline.microbatches=4",
                    "pipeline.repeats=1",
                    "pipeline.schedule=gpipe",
                ],
            ],
        ),
        ("default", &[]),
        ("default, fsdp=8", &[FSDP]),
        ("default, data=8", &[&["mesh.axes=data=8"]]),
        ("default, one device", &[ONE]),
        ("default, unrolled", &[UNROLLED]),
        ("default, full remat", &[&["remat.policy=full"]]),
        ("default, dots kept", &[&["remat.policy=dots"]]),
        ("default, unrolled, full remat, one device", &[ONE, UNROLLED, &["remat.policy=full"]]),
        ("default, data=4,tensor=2", &[&["mesh.axes=data=4,tensor=2"]]),
        ("default, fsdp=2,context=2,tensor=2", &[&["mesh.axes=fsdp=2,context=2,tensor=2"]]),
        ("default, four microbatches", &[&["train.batch=64", "train.microbatches=4"]]),
        ("default, two steps in a call", &[&["train.steps_per_call=2"]]),
        ("default, dropout", &[&["model.dropout=0.1"]]),
        ("default, bf16 computation", &[&["model.compute_dtype=bf16"]]),
        ("large, fsdp=8", &[LARGE, FSDP]),
        ("large, unrolled", &[LARGE, UNROLLED]),
        ("large, unrolled, one device", &[LARGE, UNROLLED, ONE]),
        ("large, full remat, fsdp=8", &[LARGE, FSDP, &["remat.policy=full"]]),
        ("large, fsdp=2,tensor=4", &[LARGE, &["mesh.axes=fsdp=2,tensor=4"]]),
        ("large, bf16, fsdp=8", &[LARGE, FSDP, &["model.compute_dtype=bf16"]]),
        ("large, sequences of 2048, one device", &[LARGE, ONE, &["model.seq=2048", "train.batch=2"]]),
    ];
    let images: [(&'static str, &'static [&'static str]); 2] =
        [("vision transformer", &["mesh.axes=data=2,fsdp=4"]), ("vision transformer, one device", ONE)];
    let functions: [(&'static str, usize, Lower); 6] = [
        ("two layers, data=4,tensor=2", 8, two_layers),
        ("layers in a loop", 1, stack),
        ("multilayer perceptron", 1, perceptron),
        ("attention", 1, attention),
        ("gradient of a softmax", 1, softmax),
        ("elementwise", 1, elementwise),
    ];
    let configs = configs.into_iter().map(|(name, keys)| Calibration { name, source: Source::Config(keys) });
    let images = images.into_iter().map(|(name, keys)| Calibration { name, source: Source::Images(keys) });
    let functions = functions
        .into_iter()
        .map(|(name, devices, function)| Calibration { name, source: Source::Function(devices, function) });
    functions.chain(images).chain(configs).collect()
}

impl Calibration {
    fn config(&self, kind: PlatformKind) -> Option<RunConfig> {
        let settings = match self.source {
            Source::Config(keys) => keys.concat(),
            Source::Images(keys) => [keys, &["model.seq=16", "train.batch=64"]].concat(),
            Source::Function(..) => return None,
        };
        let devices = if settings.contains(&ONE[0]) { 1 } else { 8 };
        let target = format!("target.topology={}", target(kind, devices));
        let settings: Vec<&str> = settings.into_iter().filter(|key| *key != ONE[1]).chain([&*target]).collect();
        let config = config(&[&settings]);
        Some(config.on_stated_devices().unwrap_or_else(|error| panic!("{}: {error}", self.name)))
    }

    fn devices(&self) -> usize {
        match self.source {
            Source::Config(keys) if keys.concat().contains(&ONE[0]) => 1,
            Source::Images(keys) if keys.contains(&ONE[0]) => 1,
            Source::Function(devices, _) => devices,
            _ => 8,
        }
    }

    /// The program as it is emitted for a platform.
    pub fn lower(&self, kind: PlatformKind) -> Lowered {
        let platform = Platform::of_any_plugin(kind);
        let lowered = match (&self.source, self.config(kind)) {
            (Source::Function(_, function), _) => Ok(function(&platform)),
            (Source::Images(_), Some(config)) => {
                let model = vision_transformer::VisionTransformer {
                    layers: config.model.layers,
                    embed: 32,
                    heads: 4,
                    pipeline: None,
                };
                let run = config.resolve_for(model).unwrap_or_else(|error| panic!("{}: {error}", self.name));
                run.lower(Calls::Single, &platform).map(|(_, lowered)| lowered)
            }
            (_, Some(config)) => {
                config.resolve().and_then(|run| run.lower(config.calls(), &platform)).map(|(_, lowered)| lowered)
            }
            (_, None) => unreachable!("a config or a function"),
        };
        lowered.unwrap_or_else(|error| panic!("{} for {}: {error}", self.name, kind.name()))
    }

    /// Returns XLA's memory statistics of the program, compiled ahead of time.
    pub fn compile(&self, kind: PlatformKind) -> MemoryStats {
        let topology = topology(target(kind, self.devices()));
        let settings = Settings::default();
        let described = described(target(kind, self.devices()));
        let places: Vec<_> = described.devices.iter().map(DeviceDescription::place).collect();
        let lowered = self.lower(kind);
        let debug_options = self
            .config(kind)
            .map(|config| config.compiler_options(&described.platform).unwrap_or_else(|error| panic!("{error}")));
        let options = lowered.options_on(&places).unwrap_or_else(|error| panic!("{error}"));
        let options = CompileOptions { debug_options: debug_options.unwrap_or_default(), ..options };
        counts::started(1);
        let compiled = ahead_of_time::compile(&topology, &lowered.module.bytes, &options, &settings)
            .unwrap_or_else(|error| panic!("{} for {}: {error}", self.name, kind.name()));
        compiled.memory_stats().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A topology of one device or eight.
fn target(kind: PlatformKind, devices: usize) -> &'static str {
    match (kind, devices) {
        (PlatformKind::Cpu, 1) => "cpu:1",
        (PlatformKind::Cpu, _) => "cpu:8",
        (PlatformKind::Tpu, 1) => "v5e:1x1",
        (PlatformKind::Tpu, _) => "v5e:2x4",
        (PlatformKind::Cuda, 1) => "h100:1x1x1",
        (PlatformKind::Cuda, _) => "h100:1x1x8",
    }
}

// Functions.

fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims)
}

fn lowered(graph: &Graph, platform: &Platform) -> Lowered {
    lower(graph, &LowerOptions::default().on(platform)).expect("it lowers")
}

/// A step of gradient descent on two layers, on a mesh.
pub fn two_layers(platform: &Platform) -> Lowered {
    const BATCH: usize = 256;
    const EMBED: usize = 64;
    let rules = [("batch", &["data"][..]), ("mlp", &["tensor"]), ("embed", &[])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules).expect("rules"));
    let inputs = (
        spec(&[EMBED, 4 * EMBED]).with_axes(&["embed", "mlp"]),
        spec(&[4 * EMBED, EMBED]).with_axes(&["mlp", "embed"]),
        spec(&[BATCH, EMBED]).with_axes(&["batch", "embed"]),
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
    lower(step.expect("it traces").graph(), &options.on(platform)).expect("it lowers")
}

/// A stack of layers as a loop, with its gradients.
pub fn stack(platform: &Platform) -> Lowered {
    const WIDTH: usize = 64;
    let inputs = (spec(&[6, WIDTH, 4 * WIDTH]), spec(&[6, 4 * WIDTH, WIDTH]), spec(&[32, WIDTH]));
    let step = Function::trace("stack", inputs, |(up, down, x): (Tensor, Tensor, Tensor)| {
        value_and_grad((up, down), |layers| {
            let layer = |x: Tensor, (up, down): (Tensor, Tensor)| (x + x.matmul(up).tanh().matmul(down), ());
            scan(x, layers, layer).0.square().mean(..)
        })
    });
    lowered(step.expect("it traces").graph(), platform)
}

/// Three wide layers, with the gradients of their weights.
fn perceptron(platform: &Platform) -> Lowered {
    let inputs = (spec(&[300, 1000]), spec(&[1000, 700]), spec(&[700, 10]), spec(&[500, 300]));
    let step = Function::trace("perceptron", inputs, |(a, b, c, x): (Tensor, Tensor, Tensor, Tensor)| {
        value_and_grad((a, b, c), |(a, b, c)| x.matmul(a).tanh().matmul(b).tanh().matmul(c).square().mean(..))
    });
    lowered(step.expect("it traces").graph(), platform)
}

/// Attention of 8 heads over 256 positions, with the gradients of queries, keys and values.
fn attention(platform: &Platform) -> Lowered {
    let heads = || spec(&[4, 256, 8, 32]);
    let step = Function::trace("attention", (heads(), heads(), heads()), |(q, k, v): (Tensor, Tensor, Tensor)| {
        value_and_grad((q, k, v), |(q, k, v)| causal_attention(q, k, v).square().sum(..))
    });
    lowered(step.expect("it traces").graph(), platform)
}

/// A softmax over 5000 classes, with its gradient.
fn softmax(platform: &Platform) -> Lowered {
    let step = Function::trace("softmax", (spec(&[200, 64]), spec(&[64, 5000])), |(x, w): (Tensor, Tensor)| {
        value_and_grad(w, |w| x.matmul(w).log_softmax([1]).slice(1, ..1).mean(..))
    });
    lowered(step.expect("it traces").graph(), platform)
}

/// Elementwise ops and sums over both dimensions.
fn elementwise(platform: &Platform) -> Lowered {
    let function = Function::trace("elementwise", spec(&[1000, 600]), |x: Tensor| {
        let y = x.tanh() * 2.0 + x;
        let rows = y.sum([0]);
        let columns = y.square().sum([1]);
        (y.exp().transpose([1, 0]), rows, columns)
    });
    lowered(function.expect("it traces").graph(), platform)
}

// The table.

/// XLA's figures for a program on a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub arguments: u64,
    pub outputs: u64,
    pub aliased: u64,
    pub temporaries: u64,
}

impl Figures {
    /// All that a device holds for the program.
    pub fn total(&self) -> u64 {
        self.arguments + self.outputs - self.aliased + self.temporaries
    }
}

impl From<MemoryStats> for Figures {
    fn from(stats: MemoryStats) -> Figures {
        let bytes = |bytes: i64| u64::try_from(bytes).expect("not negative");
        Figures {
            arguments: bytes(stats.arguments),
            outputs: bytes(stats.outputs),
            aliased: bytes(stats.aliased),
            temporaries: bytes(stats.temporary),
        }
    }
}

/// Figures by program and platform.
pub type Table = BTreeMap<(String, String), Figures>;

fn table_path() -> PathBuf {
    crate::path("tests/support/calibration.tsv")
}

/// The figures that are kept.
pub fn table() -> Table {
    let Ok(text) = fs::read_to_string(table_path()) else { return Table::new() };
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |nth: usize| cells[nth].parse().unwrap_or_else(|_| panic!("a number: {line}"));
        let figures = Figures { arguments: number(2), outputs: number(3), aliased: number(4), temporaries: number(5) };
        ((cells[0].to_owned(), cells[1].to_owned()), figures)
    };
    text.lines().skip(1).map(row).collect()
}

/// Writes the figures of programs that are still there.
pub fn write_table(table: &Table) {
    let mut text = "program\tplatform\targuments\toutputs\taliased\ttemporaries\n".to_owned();
    let names: Vec<&str> = programs().iter().map(|program| program.name).collect();
    for ((name, platform), figures) in table.iter().filter(|((name, _), _)| names.contains(&&**name)) {
        let Figures { arguments, outputs, aliased, temporaries } = figures;
        writeln!(text, "{name}\t{platform}\t{arguments}\t{outputs}\t{aliased}\t{temporaries}").expect("text");
    }
    // Whole or not at all: compiling takes long, and may be interrupted.
    let part = table_path().with_extension("part");
    fs::write(&part, text).and_then(|()| fs::rename(&part, table_path())).expect("a file that can be written");
}
