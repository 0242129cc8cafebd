//! Errors between us and a plugin. Each says whose fault it is.

mod worker;

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use meshloom_hlo::stablehlo::WriteError;
use meshloom_hlo::{PlatformKind, TensorType};

pub use worker::{WorkerFailure, WorkerLog};

/// One place that was searched for a plugin, and why it gave none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The place: an environment variable, a file, a folder, a download.
    pub place: String,
    /// The reason why no plugin came from it.
    pub reason: String,
}

/// Declares [`ErrorCode`]: each code is its number, its name, and absl's name for it.
macro_rules! error_codes {
    ($($number:literal $code:ident $text:literal,)*) => {
        /// The status code that a plugin gives an error (absl's).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)] // The names are absl's and say all there is.
        pub enum ErrorCode {
            $($code,)*
            /// A number that API 0.81 does not have.
            Other(u32),
        }

        impl ErrorCode {
            pub(super) fn from_raw(code: u32) -> ErrorCode {
                match code {
                    $($number => ErrorCode::$code,)*
                    other => ErrorCode::Other(other),
                }
            }

            pub(super) fn raw(self) -> u32 {
                match self {
                    $(ErrorCode::$code => $number,)*
                    ErrorCode::Other(code) => code,
                }
            }
        }

        impl fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(ErrorCode::$code => f.write_str($text),)*
                    ErrorCode::Other(code) => write!(f, "CODE_{code}"),
                }
            }
        }
    };
}

error_codes! {
    1 Cancelled "CANCELLED",
    2 Unknown "UNKNOWN",
    3 InvalidArgument "INVALID_ARGUMENT",
    4 DeadlineExceeded "DEADLINE_EXCEEDED",
    5 NotFound "NOT_FOUND",
    6 AlreadyExists "ALREADY_EXISTS",
    7 PermissionDenied "PERMISSION_DENIED",
    8 ResourceExhausted "RESOURCE_EXHAUSTED",
    9 FailedPrecondition "FAILED_PRECONDITION",
    10 Aborted "ABORTED",
    11 OutOfRange "OUT_OF_RANGE",
    12 Unimplemented "UNIMPLEMENTED",
    13 Internal "INTERNAL",
    14 Unavailable "UNAVAILABLE",
    15 DataLoss "DATA_LOSS",
    16 Unauthenticated "UNAUTHENTICATED",
}

/// Any failure of this module. Each variant says whose fault it is.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum PjrtError {
    /// The machine's: no plugin in any of the places searched. Lists them all, and the fix.
    #[error("no PJRT plugin for platform \"{platform}\" found\n{}to fix this, {fix}", list(.attempts))]
    NotFound { platform: String, attempts: Vec<Attempt>, fix: String },

    /// The caller's: a platform or wheel name that is in no table.
    #[error("unknown {kind} \"{name}\", expected {expected}")]
    UnknownName { kind: &'static str, name: String, expected: String },

    /// The machine's: it has no hardware of a platform.
    #[error(
        "there are no devices of the platform {platform}: {reason}; run on a machine that has them, take the platform cpu, or set \
         {variable} to a PJRT plugin (.so) that has devices here"
    )]
    NoDevices { platform: PlatformKind, reason: String, variable: String },

    /// The machine's: the plugin makes no client, and libraries that it opens are nowhere.
    #[error(
        "{source}\n{} is without {missing}; run `python3 -m pip install {packages}`, or put them into the loader's path",
        .plugin.display()
    )]
    MissingLibraries {
        plugin: PathBuf,
        /// The libraries, by their names for the loader.
        missing: String,
        /// The packages that have them, as pip takes them.
        packages: String,
        source: Box<PjrtError>,
    },

    /// The caller's or the machine's: the file cannot be loaded as a PJRT plugin.
    #[error("{} is not a PJRT plugin: {reason}", .path.display())]
    NotAPlugin { path: PathBuf, reason: String },

    /// The plugin's: its API version is outside what these bindings drive.
    #[error("{} has PJRT C API {major}.{minor}, expected 0.81 or a later 0.x; use another version of the plugin", .path.display())]
    ApiVersion { path: PathBuf, major: i32, minor: i32 },

    /// The caller's or the plugin's: the module says how values are sharded in a form that is newer than the plugin.
    #[error(
        "the module has named shardings (V3), which {} of PJRT C API {major}.{minor} does not read, expected 0.106 or later; use a \
         newer plugin, or write the module with `Annotation::ShardyAttributes`",
        .path.display()
    )]
    NamedShardings { path: PathBuf, major: i32, minor: i32 },

    /// The caller's or the plugin's: collectives name their devices in a compact form that the plugin is not known to
    /// read. It would skip the groups, and communicate among all devices.
    #[error(
        "the module names the devices of collectives in `{field}`, which {} of PJRT C API {major}.{minor} is not known to read; \
         lower it with `GroupFormat::Lists`, or what `GroupFormat::read_by` gives",
        .path.display()
    )]
    DeviceGroups { path: PathBuf, major: i32, minor: i32, field: &'static str },

    /// The plugin's: it has no such function.
    #[error("the plugin has no {function}; use a newer plugin")]
    Unsupported { function: &'static str },

    /// The plugin's: it lacks this part of the API.
    #[error("{feature}: unimplemented by the plugin {plugin}: {reason}")]
    Unimplemented {
        feature: String,
        /// The plugin's file and version.
        plugin: String,
        reason: String,
    },

    /// The caller's: a text that is not the name of a topology.
    #[error("\"{topology}\" is not a topology: {reason}")]
    InvalidTopology { topology: String, reason: String },

    /// The network's, or the package index's: a pinned wheel could not be had, or was not the pinned one.
    #[error("cannot fetch {wheel}: {reason}")]
    Fetch {
        /// `name==version`.
        wheel: String,
        reason: String,
    },

    /// The machine's: a file of the cache is not that of the pinned wheel.
    #[error("{} is not used: {reason}; delete it, and it is fetched again", .path.display())]
    NotPinned { path: PathBuf, reason: String },

    /// The machine's: there is no place for what is kept from run to run.
    #[error("neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them to a folder to keep files below")]
    NoCacheFolder,

    /// The machine's: there is no place for the key that signs what is kept.
    #[error(
        "neither XDG_CONFIG_HOME nor HOME is an absolute path to keep a key below; set one of them, or MESHLOOM_KEY to the \
         path of a file"
    )]
    NoKey,

    /// The machine's: a file is not the key that signs what is kept.
    #[error("{} is not used as the key that signs what is kept: {reason}", .path.display())]
    Key { path: PathBuf, reason: String },

    /// The machine's: another user could change what is kept in a folder, and run programs with the user's rights.
    #[error("{} is not used: {reason}; give another folder by XDG_CACHE_HOME, or delete this one", .path.display())]
    NotPrivate { path: PathBuf, reason: String },

    /// The machine's: a file could not be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },

    /// The caller's: an option value that cannot work. Refused before the plugin sees it, which might abort the
    /// process.
    #[error("{option} = {value} is not possible: expected {expected}")]
    InvalidOption { option: String, value: String, expected: String },

    /// The caller's: a program that is to be given to the plugin as StableHLO, and has something that StableHLO cannot
    /// express.
    #[error(transparent)]
    StableHlo(#[from] WriteError),

    /// The maker's of the module: it is not a well-formed `HloModuleProto`.
    #[error("not a valid HLO module: {reason}")]
    InvalidModule { reason: String },

    /// The caller's: a wrong number of arguments, outputs or devices.
    #[error("{what}: expected {expected}, got {actual}")]
    Count { what: String, expected: usize, actual: usize },

    /// The caller's: a value of the wrong element type or shape.
    #[error("{what}: expected {expected}, got {actual}")]
    Type { what: String, expected: Box<TensorType>, actual: Box<TensorType> },

    /// The caller's: a buffer that lies on another device, or belongs to another client, than the call needs.
    #[error("{what} is on {actual}, expected {expected}; put it there first")]
    Placement { what: String, expected: String, actual: String },

    /// The caller's: a buffer whose memory an earlier execution was given.
    #[error(
        "{what} ({ty}) was donated to an earlier execution and is gone; use that execution's output instead, or list the \
         parameter in `ExecuteOptions::non_donatable`"
    )]
    Donated { what: String, ty: TensorType },

    /// The caller's: one call is given the same buffer twice, and at least one of them donates it.
    #[error(
        "{first} and {second} are the same buffer and {second} is donated; copy it, or list the parameter in `ExecuteOptions::non_donatable`"
    )]
    DonatedTwice { first: String, second: String },

    /// The program's, or the device's: a value was not there in time.
    #[error("{} on {device} was not done after {} s, the time limit; it still runs", described(.program), .limit.as_secs_f64())]
    TimedOut {
        /// The program that computes the value; none for a value on its way from the host.
        program: Option<String>,
        device: String,
        limit: Duration,
    },

    /// The program's: its devices would wait for each other forever on XLA's CPU client, whose threads they all block.
    #[error(
        "each of the {devices} devices of program \"{program}\" is in up to {at_once} collectives at once, which takes {needed} \
         threads, and the client has {threads}; create it with `ClientOptions::collectives_at_once` of {at_once}, or set the \
         environment variable {variable} to {needed} or more"
    )]
    TooFewThreads {
        program: String,
        devices: usize,
        at_once: usize,
        threads: usize,
        needed: usize,
        /// The environment variable that sets the number of a client's threads.
        variable: &'static str,
    },

    /// The caller's: boxes that do not describe a sharding of the value.
    #[error("invalid shard layout: {reason}")]
    Layout { reason: String },

    /// The plugin's, or the program's: an element type that a host value cannot have here.
    #[error("{what} has the element type {name}, which has no host form here")]
    ElementType {
        what: String,
        /// The type's name or number.
        name: String,
    },

    /// Usually the plugin's fault: the worker, a child process that shields this one from crashes of the plugin,
    /// failed.
    #[error("{action} with {}: {failure}", .plugin.display())]
    Worker { action: String, plugin: PathBuf, failure: Box<WorkerFailure> },

    /// Any other error that a worker reported, as text.
    #[error("{message}")]
    InWorker { message: String },

    /// Any other error of the plugin: its function, status code and message.
    #[error("{function} failed with {code}: {message}")]
    Plugin { function: Cow<'static, str>, code: ErrorCode, message: String },
}

meshloom_hlo::debug_is_message!(PjrtError);

impl PjrtError {
    pub(super) fn option(option: &str, value: impl ToString, expected: impl Into<String>) -> PjrtError {
        PjrtError::InvalidOption { option: option.into(), value: value.to_string(), expected: expected.into() }
    }
}

fn described(program: &Option<String>) -> String {
    program.as_ref().map_or("a transfer".into(), |program| format!("program \"{program}\""))
}

fn list(attempts: &[Attempt]) -> String {
    attempts.iter().map(|attempt| format!("  {}: {}\n", attempt.place, attempt.reason)).collect()
}
