//! The seam: a program comes in, a decision about it goes out.
//!
//! # What JAX asks of an executable
//!
//! JAX calls more than `Execute` on what it gets, and a replaced program must answer as XLA's would for the given one.
//! These calls were seen with JAX 0.10.2 and 0.12.0.1, by a table that writes down each call, around the CPU plugin
//! with version 0.116 of the API:
//!
//! | JAX does | the C API gets |
//! |---|---|
//! | `compile()` | `Client_Compile`; `LoadedExecutable_GetExecutable`, `_AddressableDevices`, `_GetDeviceAssignment`; `Executable_OutputMemoryKinds`, `_Fingerprint` |
//! | at once, too | the extensions Shardings (type 19: shardings of parameters and results) and Layouts (type 4). Where the plugin lacks one of them, JAX calls `Executable_OptimizedProgram` and takes both from the HLO in it |
//! | a run | `Executable_NumOutputs`, `LoadedExecutable_Execute`; from the second on also `Executable_NumReplicas`, `_NumPartitions` |
//! | `as_text()` | `Executable_OptimizedProgram` |
//! | `memory_analysis()`, `cost_analysis()` | `Executable_GetCompiledMemoryStats`; `_GetCostAnalysis` |
//! | serialization, the persistent cache | `Executable_Name`, `_OutputDimensions` (0.12 only), `_Serialize`; `_DeserializeAndLoad`, which does not come by here |
//!
//! The shardings decide how JAX puts global arrays together. JAX asks for them even where the program states all of
//! them, and XLA makes them anew: `spmd_parameters_shardings` and `spmd_output_sharding` of a module that comes in are
//! lost. A product on a mesh of 2 by 4, partitioned by hand and put in the place of JAX's, showed what works:
//!
//! | the replacement | becomes of it |
//! |---|---|
//! | local shapes, no shardings or manual ones, options as given (`use_shardy_partitioner`) | JAX refuses: its parameters are replicated, "Unexpected XLA sharding override" |
//! | local shapes, manual shardings, without `use_shardy_partitioner` | it runs where all results have `out_shardings`; otherwise JAX refuses the sharding `manual` |
//! | global shapes with the shardings of the given program; between them and the local program the custom calls `Sharding`, `SPMDFullToShardShape` and `SPMDShardToFullShape`; without `use_shardy_partitioner` | it runs, and JAX sees the right shardings, stated or not |
//! | the same with `use_shardy_partitioner` | the plugin refuses it, and with JAX 0.12.0.1 the process ended |
//!
//! The bytes `1a 03 98 01 00`, appended to the options, switch `use_shardy_partitioner` off.

use super::request::{Format, Request};
use super::summary::Summary;

/// The part that decides about programs.
///
/// It is called for several programs at once, each time on a thread of its own with a stack of 64 MiB: the threads of
/// Python may have small ones, and a stack that is too short ends the process. A panic counts as [`Reason::Panicked`].
pub trait Rewrite: Send + Sync {
    /// Decides about a program.
    fn rewrite(&self, request: &Request<'_>) -> Decision;
}

/// The decision about a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The inner plugin compiles it as it is.
    PassedOn {
        /// The reason.
        reason: Reason,
        /// The line of the person's program that the reason is about, `model.py:12`, if it is known.
        line: Option<String>,
        /// The content of the program, if it was read.
        summary: Option<Summary>,
    },
    /// The inner plugin compiles another in its place. Where it refuses that, it compiles the program as it is.
    Replaced(Replacement),
}

/// A program in the place of another. Its executable must be what JAX expects of the given one: the same parameters
/// and results in the same order, sharded as the README says.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// The language of the program.
    pub format: Format,
    /// The program.
    pub code: Vec<u8>,
    /// A serialized `CompileOptionsProto`. Options that are decoded and encoded again lose what a newer XLA has added.
    /// To keep it, append the encoded difference to [`Request::options_bytes`]: protobuf merges what is appended.
    pub options: Vec<u8>,
    /// The description of the change, for the dump.
    pub report: serde_json::Value,
    /// The content of the given program, if it was read.
    pub summary: Option<Summary>,
}

/// The reason why a program is passed on. One that is said is said once.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// There is nothing to partition.
    #[error("it runs on one device")]
    OneDevice,
    /// It has no mesh to be partitioned over.
    #[error("it names no mesh to partition it over")]
    NoMesh,
    /// An instruction that is carried as it is would gather a value that XLA may leave split.
    #[error("it would gather for an instruction that meshloom has no op for: {0}")]
    Gathers(String),
    /// A replacement cannot say it.
    #[error("it leaves layouts to the compiler, and a plugin chooses them for programs in StableHLO alone")]
    OpenLayouts,
    /// A replacement cannot say it either.
    #[error("it has arguments or results in the host's memory, and a plugin reads this in StableHLO alone")]
    HostMemory,
    /// meshloom cannot import or partition it.
    #[error("{0}")]
    Refused(String),
    /// Programs are counted and not partitioned.
    #[error("programs are only counted")]
    OnlyCounted,
    /// The program cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The options cannot be read.
    #[error("its compile options are no CompileOptionsProto")]
    Options,
    /// The program is in a language that is not known.
    #[error("it is in format {0:?}; mlir, hlo and hlo_with_config are known")]
    Format(String),
    /// The arguments of the call are shorter than the API has them.
    #[error("the call has fewer arguments than version 0.81 of the PJRT C API")]
    Call,
    /// The decision panicked, which is a defect of meshloom.
    #[error("meshloom panicked: {0}; please report this")]
    Panicked(String),
    /// There is no thread to decide on.
    #[error("no thread can be started: {0}")]
    NoThread(String),
}

meshloom_hlo::debug_is_message!(Reason);

impl Reason {
    /// Whether the reason is as it should be, so that it is not said without a log.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Reason::OneDevice)
    }
}

impl Decision {
    /// A program that is passed on without having been read.
    pub fn passed_on(reason: Reason) -> Decision {
        Decision::PassedOn { reason, line: None, summary: None }
    }

    /// The content of the given program, if it was read.
    pub fn summary(&self) -> Option<&Summary> {
        match self {
            Decision::PassedOn { summary, .. } => summary.as_ref(),
            Decision::Replaced(replacement) => replacement.summary.as_ref(),
        }
    }
}
