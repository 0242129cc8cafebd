//! Run configs of small decoders.

use meshloom::compile::Lowered;
use meshloom_train::config::RunConfig;

/// The text of the default config, wherever a test runs.
pub const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/austen.txt");
/// The key that names it, for a run in any folder.
pub const THE_BOOK: &str = concat!("data.sources=['", env!("CARGO_MANIFEST_DIR"), "/../examples/data/austen.txt']");
pub const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/austen.tokenizer.json");

/// Where the numbers of a run matter, and not its speed: LLVM does not optimize.
pub const UNOPTIMIZED: &str = "target.compiler_options=[\"xla_backend_optimization_level=0\"]";

/// A decoder that is lowered, and hardly ever run.
pub const DECODER: &[&str] = &[
    "model.layers=2",
    "model.embed=64",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_dim=16",
    "model.mlp=160",
    "model.seq=64",
];

/// A smaller one, all of whose dimensions divide by four.
pub const NARROW: &[&str] = &[
    "model.layers=2",
    "model.embed=32",
    "model.heads=4",
    "model.kv_heads=4",
    "model.head_dim=8",
    "model.mlp=64",
    "model.seq=32",
];

/// A model whose steps take milliseconds, and how it is trained. Tests share it, so that a process compiles its
/// programs once.
pub const SHORT_RUN: &[&str] = &[
    "model.layers=4",
    "model.embed=32",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_dim=8",
    "model.mlp=64",
    "model.seq=32",
    "train.warmup=2",
    "train.steps=40",
    UNOPTIMIZED,
];

/// Both kinds of dropout. Tests share it, so that a process compiles their train steps once.
pub const DROPOUT: &[&str] = &["model.dropout=0.1", "model.attention_dropout=0.1"];

/// [`NARROW`] on the tokens of [`TOKENIZER`].
pub const ON_TOKENS: &[&str] = &[
    "model.kv_heads=2",
    "model.vocab=1024",
    "train.batch=8",
    "train.warmup=2",
    "train.learning_rate=1e-2",
    UNOPTIMIZED,
];

/// One for hundreds of steps.
pub const TINY: &[&str] = &[
    "model.layers=4",
    "model.embed=16",
    "model.heads=2",
    "model.kv_heads=2",
    "model.head_dim=8",
    "model.mlp=32",
    "model.seq=8",
];

/// A mesh that splits the batch in two ways, and the parameters in one.
pub const MIXED: &[&str] = &["mesh.axes=data=2,fsdp=4"];

/// A pipeline of two stages whose loss is in its loop.
pub const ONE_F_ONE_B: &[&str] = &[
    "mesh.axes=stage=2,fsdp=4",
    "pipeline.repeats=1",
    "pipeline.layers_per_stage=2",
    "pipeline.microbatches=2",
    "pipeline.schedule=1f1b",
];

/// A pipeline whose stages have two parts of the layers each.
pub const CIRCULAR: &[&str] = &["mesh.axes=stage=2,data=2,fsdp=2", "pipeline.repeats=2"];

pub const ONE_DEVICE: &[&str] = &["mesh.axes=\"data=1,fsdp=1\"", "target.devices=1"];

/// The defaults with these keys set; later ones win.
#[track_caller]
pub fn config(settings: &[&[&str]]) -> RunConfig {
    // Programs are compiled each time, whatever an earlier run has left.
    let overrides: Vec<String> =
        [THE_BOOK, "target.compile_cache="].into_iter().chain(settings.concat()).map(str::to_owned).collect();
    RunConfig::from_overrides(&overrides).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

/// The train step of a config.
#[track_caller]
pub fn lowered_step(settings: &[&[&str]]) -> Lowered {
    config(settings).lower_train_step().unwrap_or_else(|error| panic!("{settings:?}: {error}")).1
}

/// The train step of three layers, partitioned by us.
#[track_caller]
pub fn explicit_step(settings: &[&str]) -> Lowered {
    lowered_step(&[DECODER, &["model.layers=3", "partition.mode=explicit"], settings])
}
