//! Finds what makes a program go wrong: `hlo-dump bisect`.
//!
//! [`bisect`] first has the symptom show itself: a difference from a reference, NaN or an infinity, a process that ends
//! or hangs, or too much memory. Then it changes one thing after another, and keeps what shows the symptom in a smaller
//! program, or what removes it: the program's sizes, XLA's settings, meshloom's passes, partition modes, XLA's passes,
//! plugins. At last it shrinks the module ([`meshloom::analysis::shrink`]).
//!
//! Each try is a child process with a time limit, on virtual devices of the CPU. Inputs are drawn by name from a seed.
//!
//! ```text
//! Subject -> subject.rs  a setting's program and its reference
//!            runner.rs   a try: child process, memory of what was tried
//!            search.rs   what is changed, in order, and what came of it
//!            smaller.rs  the module, shrunk
//! ```

mod inputs;
pub(crate) mod program;
mod runner;
pub(crate) mod search;
mod smaller;
mod subject;
mod suspects;
pub(crate) mod symptom;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use meshloom::compile::Pass;
use meshloom::hlo::Literal;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::pjrt::ahead_of_time::WorkerFailure;
use meshloom::pjrt::{DebugValue, PjrtError};
use serde::Serialize;

pub use inputs::{Draw, read_safetensors};
pub use meshloom_models::parameters::to_bytes as write_safetensors;
pub use subject::Subject;
pub use symptom::{Kind, Symptom};

/// The options of a search.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The only symptoms that are looked for; if empty, all are.
    pub kinds: Vec<Kind>,
    /// The only dimensions that are changed; if empty, all are.
    pub only: Vec<Dimension>,
    /// The difference between results that is allowed, as a part of the largest number of an output.
    pub tolerance: f64,
    /// The memory that a program may need on a device.
    pub memory_limit: Option<u64>,
    /// The time of a try.
    pub time_limit: Duration,
    /// XLA's settings beside those of the config and of `XLA_FLAGS`, each `name=value`.
    pub compiler_options: Vec<String>,
    /// The plugin: a known wheel's name, or a file.
    pub plugin: Option<String>,
    /// The rule by which inputs are drawn that are not given.
    pub draw: Draw,
    /// Inputs by the names of the parameters.
    pub inputs: BTreeMap<String, Literal>,
    /// Passes of the caller's own behind meshloom's, which may be at fault too.
    pub further: &'a [Pass],
    /// The most modules that are tried when it is shrunk; 0: it is not.
    pub shrink_tries: usize,
    /// The worker's program, as of [`Settings::worker`](meshloom::pjrt::ahead_of_time::Settings::worker).
    pub worker: Option<PathBuf>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            kinds: Vec::new(),
            only: Vec::new(),
            tolerance: 1e-3,
            memory_limit: None,
            time_limit: Duration::from_secs(60),
            compiler_options: Vec::new(),
            plugin: None,
            draw: Draw::default(),
            inputs: BTreeMap::new(),
            further: &[],
            shrink_tries: 400,
            worker: None,
        }
    }
}

/// The dimension along which a search changes a program or its compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dimension {
    /// The program as it was given.
    AsGiven,
    /// A key of the run config that says how large the program is.
    Size,
    /// The mesh of the run config.
    Mesh,
    /// XLA's settings that the user chose.
    Option,
    /// Passes of meshloom's.
    Pass,
    /// The partitioner of the program.
    PartitionMode,
    /// XLA's other settings.
    XlaFlag,
    /// Passes of XLA's.
    XlaPass,
    /// The plugin.
    Plugin,
}

impl Dimension {
    /// All dimensions that can be changed, in the order of the search.
    pub const ALL: [Dimension; 8] = {
        use Dimension::*;
        [Size, Mesh, Option, Pass, PartitionMode, XlaPass, XlaFlag, Plugin]
    };

    /// Returns the name of the dimension in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Dimension::AsGiven => "as given",
            Dimension::Size => "size",
            Dimension::Mesh => "mesh",
            Dimension::Option => "option",
            Dimension::Pass => "pass",
            Dimension::PartitionMode => "partition mode",
            Dimension::XlaFlag => "XLA flag",
            Dimension::XlaPass => "XLA pass",
            Dimension::Plugin => "plugin",
        }
    }
}

/// The effect of a change on the symptom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "reason")]
pub enum Effect {
    /// The symptom still shows.
    Shows,
    /// The symptom is gone.
    Gone,
    /// The program cannot run with the change, for this reason.
    NotPossible(String),
}

/// A change that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// The dimension of the change.
    pub dimension: Dimension,
    /// The change itself, in words.
    pub change: String,
    /// The effect of the change.
    #[serde(flatten)]
    pub effect: Effect,
}

/// A change that removes the symptom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// The dimension of the change.
    pub dimension: Dimension,
    /// The name of the changed thing, such as a pass, a setting or a plugin.
    pub name: String,
    /// A sentence that describes it.
    pub text: String,
}

/// The program at the end of a search, with everything that is needed to run it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The module that shows the symptom.
    pub module: HloModuleProto,
    /// Its devices: replicas and partitions.
    pub devices: (usize, usize),
    /// Whether Shardy partitions it.
    pub shardy: bool,
    /// XLA's settings.
    pub options: BTreeMap<String, DebugValue>,
    /// The reference module, if the symptom is a difference. It is `None` if the reference is the same module with
    /// other settings.
    pub reference: Option<(HloModuleProto, (usize, usize))>,
    /// The reference's settings.
    pub reference_options: BTreeMap<String, DebugValue>,
    /// Inputs by the names of the parameters.
    pub inputs: Vec<(String, Literal)>,
    /// The symptom in this program.
    pub symptom: Symptom,
    /// The plugin's name.
    pub plugin: String,
    /// The difference between results that is allowed.
    pub tolerance: f64,
    /// The time of a try.
    pub time_limit: Duration,
}

/// How the module was shrunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shrinking {
    /// Instructions before.
    pub instructions_before: usize,
    /// Instructions after.
    pub instructions: usize,
    /// Modules that were tried.
    pub tries: usize,
    /// Whether nothing was left to try.
    pub is_complete: bool,
    /// The reductions that were done, each with the number of instructions after it.
    pub steps: Vec<(String, usize)>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The symptom; `None` if none shows.
    pub symptom: Option<Symptom>,
    /// The changes that remove the symptom, the most relevant first.
    pub culprits: Vec<Culprit>,
    /// The keys of a run config that the symptom needs, each `section.key=value`.
    pub overrides: Vec<String>,
    /// XLA's settings that the symptom needs, each `name=value`.
    pub options: Vec<String>,
    /// The plugin.
    pub plugin: String,
    /// Every change that was tried.
    pub tried: Vec<Tried>,
    /// How the module was shrunk, if it was.
    pub shrinking: Option<Shrinking>,
    /// Child processes in all.
    pub runs: usize,
    /// The program at the end of the search; `None` if there is nothing to find.
    #[serde(skip)]
    pub case: Option<Box<Case>>,
}

/// Finds what makes a program go wrong. `progress` is told what is tried next.
///
/// # Errors
/// There is no plugin, the program cannot be run at all, or an option is not possible. It is not an error if no symptom
/// shows.
pub fn bisect(subject: &Subject, options: &Options<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report, BisectError> {
    search::Search::new(subject, options, progress)?.run()
}

/// The reason why [`bisect`] cannot search.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BisectError {
    /// The run config's fault, or the compiler's.
    #[error(transparent)]
    Config(#[from] Box<crate::Error>),
    /// The machine's fault, or the plugin's.
    #[error(transparent)]
    Plugin(#[from] Box<PjrtError>),
    /// The program cannot be tried as it is.
    #[error("{reason}")]
    Unsupported {
        /// The reason.
        reason: String,
    },
    /// The program is refused before a symptom can show.
    #[error("the program cannot be run: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The file of inputs cannot be used.
    #[error("the inputs cannot be read: {reason}")]
    Inputs {
        /// The reason.
        reason: String,
    },
    /// A child process cannot be started, or does not do its work.
    #[error("a child process cannot be used: {failure}")]
    Worker {
        /// The reason.
        failure: Box<WorkerFailure>,
    },
}

meshloom::hlo::debug_is_message!(BisectError);

impl From<PjrtError> for BisectError {
    fn from(error: PjrtError) -> BisectError {
        BisectError::Plugin(Box::new(error))
    }
}

impl From<crate::Error> for BisectError {
    fn from(error: crate::Error) -> BisectError {
        BisectError::Config(Box::new(error))
    }
}
