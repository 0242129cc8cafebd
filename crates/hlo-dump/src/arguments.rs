//! The command-line arguments of each command.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use meshloom_hlo::Stage;
use meshloom_hlo::message::bytes_from_text;
use meshloom_hlo::stablehlo::ArtifactVersion;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Units {
    /// 4.2 MiB (4,404,019)
    Both,
    /// 4.2 MiB
    Human,
    /// 4404019
    Exact,
}

/// How a command prints its answer, and how much it reads.
#[derive(Args)]
pub struct Common {
    /// Prints JSON instead of text; `hlo-dump schema` describes its fields
    #[arg(long, global = true, help_heading = "Printing")]
    pub json: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Printing")]
    pub color: Color,
    /// How to print numbers of bytes and operations; by default both, but human on a narrow terminal
    #[arg(long, global = true, value_name = "UNITS", help_heading = "Printing")]
    pub units: Option<Units>,
    /// Puts pseudonyms in place of the names of tensors, scopes, functions and files; with KEY, the same ones in every
    /// program
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        env = "MESHLOOM_REDACT",
        hide_env_values = true,
        help_heading = "Printing"
    )]
    pub redact: Option<String>,
    /// The most bytes of an input, plain, decompressed or decoded; by default 2 GiB, 256 MiB decompressed, and decoded
    /// 20 times its size
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes, env = "MESHLOOM_MAX_SIZE", help_heading = "Reading")]
    pub max_size: Option<u64>,
    /// How deep computations may call each other; by default 1000
    #[arg(long, global = true, value_name = "CALLS", help_heading = "Reading")]
    pub max_depth: Option<usize>,
}

/// The input, and how to read it.
#[derive(Args, Clone)]
pub struct Input {
    /// HLO or StableHLO text, HLO proto, XLA dump folder, profile, run config, or -
    #[arg(value_name = "INPUT")]
    pub path: PathBuf,
    #[command(flatten)]
    pub reading: Reading,
}

impl Input {
    /// Returns the same input with more overrides of a run config.
    pub fn with(&self, overrides: &[String]) -> Input {
        let mut input = self.clone();
        input.reading.config_set.extend_from_slice(overrides);
        input
    }
}

/// How to read an input.
#[derive(Args, Clone)]
pub struct Reading {
    /// Names the mesh axes if the HLO does not: data=2,fsdp=4, major to minor
    #[arg(long, value_name = "AXES", help_heading = "Reading")]
    pub mesh: Option<String>,
    /// The stage to look at: of a run config, or of a dump folder
    #[arg(long, value_name = "STAGE", help_heading = "Reading", value_parser = parse_stage)]
    pub stage: Option<Stage>,
    /// In a dump folder or a profile: the module with this number or name; by default the largest, or the one that took
    /// most of the time
    #[arg(long, value_name = "NAME", help_heading = "Reading")]
    pub module: Option<String>,
    /// In a dump folder: the file whose name contains this text, such as a pass
    #[arg(long, value_name = "TEXT", help_heading = "Reading", conflicts_with = "stage")]
    pub pass: Option<String>,
    /// In StableHLO with several functions: the one that is the program; by default @main, or the only public one
    #[arg(long, value_name = "NAME", help_heading = "Reading")]
    pub function: Option<String>,
    /// Overrides one key of a run config; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE", help_heading = "Reading")]
    pub set: Vec<String>,
    /// The input is a run config, whatever its name: for the standard input, and files that are not named .toml
    #[arg(long, help_heading = "Reading", conflicts_with_all = ["mesh", "module", "pass", "function"])]
    pub run_config: bool,
    /// Overrides by which a command changes a run config; HLO has none.
    #[arg(skip)]
    pub config_set: Vec<String>,
}

fn parse_stage(text: &str) -> Result<Stage, String> {
    text.parse()
}

#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    pub input: Input,
    /// The output form; by default text
    #[arg(long, value_name = "FORM")]
    pub emit: Option<Emit>,
    /// Prints everything, to be read back; by default names are renumbered, and metadata, layouts and large constants
    /// left out; in StableHLO, scopes and source lines
    #[arg(long)]
    pub full: bool,
    /// For artifact: its version, such as 1.9.0; by default the oldest one that has all of the program
    #[arg(long, value_name = "VERSION")]
    pub artifact_version: Option<ArtifactVersion>,
    /// The implementation of each op of a run config's program that has several: attention, products of experts
    #[arg(long, conflicts_with_all = ["emit", "full", "computation", "depth"])]
    pub kernels: bool,
    /// Only this computation
    #[arg(long, value_name = "NAME")]
    pub computation: Option<String>,
    /// For dot and svg: how many levels of scopes to draw, by default 3; 0 draws every instruction
    #[arg(long, value_name = "LEVELS", conflicts_with = "computation")]
    pub depth: Option<usize>,
    /// The output file; by default standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Emit {
    /// HLO text
    Text,
    /// A serialized HloModuleProto
    Proto,
    /// StableHLO text
    Stablehlo,
    /// A portable artifact of StableHLO: its bytecode, with scopes and source lines
    Artifact,
    /// Computations and instructions as JSON
    Json,
    /// A graph for Graphviz
    Dot,
    /// A drawing
    Svg,
    /// A page of the text, with links from names to their definitions
    Html,
    /// meshloom's own graph (of a run config)
    Graph,
}

#[derive(Args)]
pub struct Collectives {
    #[command(flatten)]
    pub input: Input,
    #[command(flatten)]
    pub select: Select,
    /// Sorts by this column, the largest first
    #[arg(long, value_name = "COLUMN", default_value = "program")]
    pub by: CollectiveColumn,
    /// Sums the collectives that agree in this column, the largest sum first
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["by", "steps"])]
    pub group: Option<CollectiveGroup>,
    /// Train steps in one execution of the program, for the sum per step; a run config states it itself
    #[arg(long, value_name = "N", value_parser = parse_steps)]
    pub steps: Option<NonZeroU64>,
    /// The most rows to print; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = parse_whole::<usize>)]
    pub limit: usize,
}

#[derive(Args)]
pub struct Traffic {
    #[command(flatten)]
    pub input: Input,
    /// The mesh axis, or part of one; by default diloco or replica, whichever the mesh has
    #[arg(long, value_name = "AXIS")]
    pub over: Option<String>,
    /// The number of steps, from the first, at most 100000; by default one sync period, or 1
    #[arg(long, value_name = "N", value_parser = parse_shown_steps)]
    pub steps: Option<NonZeroU64>,
    /// The most rows of each table; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 200, value_parser = parse_whole::<usize>)]
    pub limit: usize,
    /// Compares several forms of the run config: vanilla, streaming, f32, bf16, f8, int4, fragments=N, overlap=N,
    /// microbatches=N, joined by +, as in vanilla,streaming,streaming+int4
    #[arg(long, value_name = "FORMS", value_delimiter = ',')]
    pub compare: Vec<String>,
    /// The input of the program that counts steps; by default the one named step
    #[arg(long, value_name = "NAME", help_heading = "Reading")]
    pub step_input: Option<String>,
    /// Adds the time on a link of this rate, in Gbit/s for each device: a model
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub gbps: Option<f64>,
    /// Draws all series into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Args)]
pub struct Select {
    /// Only collectives that cross this mesh axis, or part of one (fsdp:(1)2); if repeated, all of them
    #[arg(long, value_name = "AXIS")]
    pub over: Vec<String>,
    /// Only collectives of this kind: all-gather, all-reduce, ...
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only collectives that move at least this much in all their executions: 4096, 16KiB, 2MiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub min_bytes: Option<u64>,
    /// Only instructions with this text in their scope path
    #[arg(long, value_name = "TEXT")]
    pub scope: Option<String>,
    /// Only collectives in a loop
    #[arg(long)]
    pub in_loops: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectiveColumn {
    /// The order of the program
    Program,
    Total,
    Bytes,
    Executions,
    Kind,
    Axes,
    Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectiveGroup {
    Kind,
    Axes,
    /// Kind and axes
    KindAxes,
    Scope,
    Source,
}

#[derive(Args)]
pub struct Memory {
    #[command(flatten)]
    pub input: Input,
    /// Only buffers of at least this size
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub min_bytes: Option<u64>,
    /// Only buffers with this text in their scope path
    #[arg(long, value_name = "TEXT")]
    pub scope: Option<String>,
    /// The most rows to print; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20, value_parser = parse_whole::<usize>)]
    pub limit: usize,
    /// Compares the peak with this chip's memory
    #[arg(long, value_name = "CHIP")]
    pub chip: Option<String>,
    /// Says what would be smaller: scopes that are computed again, arguments that are donated or split over a mesh
    /// axis, padding. An out-of-memory message has this always
    #[arg(long)]
    pub remedies: bool,
    /// For an out-of-memory message: the program that it is about, or the dump folder of the run
    #[arg(long, value_name = "INPUT", help_heading = "Reading")]
    pub program: Option<PathBuf>,
}

#[derive(Args)]
pub struct Cost {
    #[command(flatten)]
    pub input: Input,
    /// The chip: v5p, v6e, tpu7x, h100, ...; by default only operations and bytes are printed
    #[arg(long, value_name = "CHIP")]
    pub chip: Option<String>,
    /// The kind of row to print; by default a loop, with --scope an instruction
    #[arg(long, value_name = "WHAT")]
    pub by: Option<CostBy>,
    /// Only instructions with this text in their scope path
    #[arg(long, value_name = "TEXT")]
    pub scope: Option<String>,
    /// The most rows to print; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 30, value_parser = parse_whole::<usize>)]
    pub limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostBy {
    /// Loops, with what they contain
    Loop,
    /// Scope paths
    Scope,
    /// Single instructions
    Op,
    /// Opcodes
    Opcode,
}

#[derive(Args)]
pub struct Overlap {
    #[command(flatten)]
    pub input: Input,
    /// The chip whose rates are taken: v5p, v6e, tpu7x, h100, ...
    #[arg(long, value_name = "CHIP")]
    pub chip: Option<String>,
    #[command(flatten)]
    pub select: Select,
    /// The most rows to print; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 30, value_parser = parse_whole::<usize>)]
    pub limit: usize,
    /// Writes the estimated step as a trace that ui.perfetto.dev opens: lanes for compute, waits and links, with loops
    /// folded
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Puts what this profile (*.xplane.pb) measured beside it in the trace. A profile that has its program can be the
    /// INPUT itself
    #[arg(long, value_name = "FILE", requires = "perfetto")]
    pub profile: Option<PathBuf>,
}

#[derive(Args)]
pub struct Explain {
    #[command(flatten)]
    pub input: Input,
    /// A parameter's path, a scope, an instruction's name, or file:line
    pub tensor: String,
}

#[cfg(feature = "compiler")]
#[derive(Args)]
pub struct Partition {
    #[command(flatten)]
    pub input: Input,
    /// Writes the partitioned module: as HLO text to a file *.txt, as StableHLO to *.mlir, as a portable artifact to
    /// *.mlirbc, and as an HLO proto to any other
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The most rows to print; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 30, value_parser = parse_whole::<usize>)]
    pub limit: usize,
}

#[cfg(feature = "compiler")]
#[derive(Args)]
pub struct Advise {
    #[command(flatten)]
    pub input: Input,
    /// The module that XLA made of the same program: after its partitioner, or compiled; or a dump folder that has it
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    pub against: Option<PathBuf>,
    /// Hardware that a plugin compiles the program for, as it is and with each constraint that is worth it: cpu:8,
    /// v5p:2x2x2
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// The most constraints to try, each by partitioning the program again
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = parse_whole::<usize>)]
    pub trials: usize,
    /// The most rows of each table; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20, value_parser = parse_whole::<usize>)]
    pub limit: usize,
}

#[derive(Args)]
pub struct Diff {
    /// The one before
    pub before: PathBuf,
    /// The one after
    pub after: PathBuf,
    #[command(flatten)]
    pub reading: Reading,
    /// Overrides one key of the second run config only
    #[arg(long, value_name = "SECTION.KEY=VALUE", help_heading = "Reading")]
    pub set_after: Vec<String>,
    /// Exit status 1 if there is a difference
    #[arg(long)]
    pub exit_code: bool,
    /// The most rows of each table; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 30, value_parser = parse_whole::<usize>)]
    pub limit: usize,
}

#[derive(Args)]
pub struct Report {
    #[command(flatten)]
    pub input: Input,
    /// The page
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Estimates times for this chip
    #[arg(long, value_name = "CHIP", default_value = "v5p")]
    pub chip: String,
    /// Puts the times that this profile (*.xplane.pb) measured beside the estimates. INPUT is then the compiled module;
    /// a profile that has its program can be the INPUT itself
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

#[derive(Args)]
pub struct Lock {
    #[command(flatten)]
    pub input: Input,
    /// The file; by default the standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    pub input: Input,
    /// The most bytes that a device may send in one run
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Limits")]
    pub max_collective_bytes: Option<u64>,
    /// The most collectives that may execute in one run; an unknown number is too many
    #[arg(long, value_name = "N", value_parser = parse_whole::<u64>, help_heading = "Limits")]
    pub max_collectives: Option<u64>,
    /// The most bytes that a device may send over an axis in one run, whichever branches are taken; may be given more
    /// than once
    #[arg(long, value_name = "AXIS=BYTES", value_parser = parse_axis_bytes, help_heading = "Limits")]
    pub max_bytes_over: Vec<(String, u64)>,
    /// The most collectives over an axis that may execute in one run, whichever branches are taken; may be given more
    /// than once
    #[arg(long, value_name = "AXIS=N", value_parser = parse_axis_count, help_heading = "Limits")]
    pub max_collectives_over: Vec<(String, u64)>,
    /// The most memory that a device may need
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Limits")]
    pub max_memory: Option<u64>,
    /// The least share of transfer time that a compiled schedule must hide beside compute, from 0 to 1, of all or over
    /// an axis: 0.9, fsdp=0.9; may be given more than once. For a module that is compiled already, add --chip; other
    /// inputs are compiled ahead of time, as `meshloom compile` does, for --target
    #[arg(long, value_name = "[AXIS=]SHARE", value_parser = parse_share, help_heading = "Limits")]
    pub min_overlap: Vec<(Option<String>, f64)>,
    /// With --min-overlap, for a compiled module: the chip whose rates are taken: v5p, v6e, tpu7x, h100, ...
    #[arg(long, value_name = "CHIP", requires = "min_overlap", help_heading = "Limits")]
    pub chip: Option<String>,
    /// The most times that the bytes which a device sends as emitted may be sent by the compiled program: in all, and
    /// over each combination of mesh axes that a collective runs over, whatever its kind. Compiles ahead of time, as
    /// `meshloom compile` does, for --target
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio, help_heading = "Limits")]
    pub compiled_as_emitted: Option<f64>,
    /// With --compiled-as-emitted or --min-overlap: the hardware, such as v5p:2x2x2; by default a run config's
    /// target.topology
    #[arg(long, value_name = "TARGET", help_heading = "Limits")]
    pub target: Option<String>,
    /// Forbids replication, collectives-in-loops[=AXIS], collectives-over=AXIS, collectives-outside-conditionals=AXIS,
    /// collectives-across-branches, KIND[=AXIS] (all-gather=fsdp) or unknown-trip-counts; may be given more than once
    #[arg(long, value_name = "WHAT", help_heading = "Limits")]
    pub deny: Vec<String>,
    /// With --deny replication: the smallest parameter that counts; by default 64KiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Limits")]
    pub replicated_bytes: Option<u64>,
    /// Compares with what `hlo-dump lock` wrote: nothing may be sent more often, nothing more be sent or held
    #[arg(long, value_name = "FILE", help_heading = "Limits")]
    pub lock: Option<PathBuf>,
    /// Checks a program that XLA has yet to partition, with its global shapes and without the collectives to come
    #[arg(long, help_heading = "Limits")]
    pub allow_unpartitioned: bool,
}

/// Reads a whole number.
pub fn parse_whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a whole number that is possible here"))
}

fn parse_steps(text: &str) -> Result<NonZeroU64, String> {
    let steps = text.parse().ok().and_then(NonZeroU64::new);
    steps.ok_or_else(|| format!("\"{text}\" is not a number of steps: 1 or more"))
}

/// Reads a number of steps that are listed one by one.
fn parse_shown_steps(text: &str) -> Result<NonZeroU64, String> {
    const MOST: u64 = 100_000;
    let steps = parse_steps(text)?;
    if steps.get() > MOST { Err(format!("{steps} steps are too many to list; take at most {MOST}")) } else { Ok(steps) }
}

/// Reads a rate above 0.
fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("\"{text}\" is not a rate above 0"))
}

/// Reads a ratio of at least 1.
fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio >= 1.0);
    ratio.ok_or_else(|| format!("\"{text}\" is not a ratio of at least 1, such as 1.02"))
}

/// Reads `replica=64MiB`.
fn parse_axis_bytes(text: &str) -> Result<(String, u64), String> {
    let (axis, bytes) =
        text.split_once('=').ok_or_else(|| format!("\"{text}\": write AXIS=BYTES, as replica=64MiB"))?;
    Ok((axis.to_owned(), parse_bytes(bytes)?))
}

/// Reads `replica=12`.
fn parse_axis_count(text: &str) -> Result<(String, u64), String> {
    let read = || {
        let (axis, count) = text.split_once('=')?;
        Some((axis.to_owned(), count.parse().ok()?))
    };
    read().ok_or_else(|| format!("\"{text}\": write AXIS=N, as replica=12"))
}

/// Reads `0.9` or `fsdp=0.9`.
fn parse_share(text: &str) -> Result<(Option<String>, f64), String> {
    let (axis, share) = match text.split_once('=') {
        Some((axis, share)) => (Some(axis.to_owned()), share),
        None => (None, text),
    };
    let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    let wrong = || format!("\"{text}\" is not a share from 0 to 1; write 0.9, or fsdp=0.9 for an axis");
    Ok((axis, share.ok_or_else(wrong)?))
}

/// Reads `4096`, `16KiB`, `2MiB` or `1.5GB`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a number of bytes; write 4096, 16KiB, 2MiB or 1.5GB");
    bytes_from_text(text).ok_or_else(wrong)
}
