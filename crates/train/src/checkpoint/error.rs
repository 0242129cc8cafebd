//! The errors of checkpoints: of the folder, of the files in it, or of the run that asks for them.

use std::io;
use std::path::PathBuf;

use meshloom::hlo::message::listed;
use meshloom::ir::{DType, TensorType};
use meshloom::pjrt::PjrtError;

/// An error in reading or writing a checkpoint.
#[derive(thiserror::Error)]
pub enum CheckpointError {
    /// Something cannot be read.
    #[error("cannot read {path:?}: {source}; give a checkpoint, or a directory of checkpoints, that can be read")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Something cannot be written. The checkpoints that are complete stay as they are.
    #[error("cannot {action} {path:?} for a checkpoint: {source}; give a directory that can be written and has room")]
    Write {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The thread that writes died.
    #[error("the thread that wrote the checkpoint of step {0} panicked, which is a defect of meshloom")]
    Writer(u64),
    /// A directory without checkpoints.
    #[error("there is no checkpoint in {0:?}; give a directory with folders such as step-00000120, or one of them")]
    None(PathBuf),
    /// The file or folder was not written by meshloom, or it is damaged.
    #[error("{path:?} is not a checkpoint of meshloom, or damaged: {reason}")]
    Foreign {
        /// The file or folder.
        path: PathBuf,
        /// The evidence.
        reason: String,
    },
    /// Another version of the format.
    #[error("{path:?} is a checkpoint in version {found} of the format; this meshloom reads version {expected}")]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// Ours.
        expected: u64,
    },
    /// A file's contents are not those that were written.
    #[error("{path:?} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The newest checkpoint cannot be used, and the next older one was not asked for.
    #[error("{source}; {}", older(previous))]
    Newest {
        /// The fault of the newest checkpoint.
        source: Box<CheckpointError>,
        /// The one before it, if there is one.
        previous: Option<PathBuf>,
    },
    /// No checkpoint of a directory can be used.
    #[error("none of the {} checkpoints in {directory:?} can be used: {}", failures.len(), join(failures))]
    AllDamaged {
        /// The directory.
        directory: PathBuf,
        /// The faults of the checkpoints, the newest first.
        failures: Vec<CheckpointError>,
    },
    /// Another run writes there.
    #[error("another run writes checkpoints to {0:?}; end it, or give another directory")]
    InUse(PathBuf),
    /// A new run is to write where another has left checkpoints.
    #[error(
        "{directory:?} has checkpoints of another run, up to step {step}; go on from them (--resume), or give another directory"
    )]
    Occupied {
        /// The directory.
        directory: PathBuf,
        /// The newest one's step.
        step: u64,
    },
    /// A checkpoint of this step is there already.
    #[error("there is a checkpoint {0:?} already, and checkpoints are never replaced; move it away")]
    Exists(PathBuf),
    /// The checkpoint lacks a value of the state.
    #[error("{folder:?} has no {path}{suggestion}; model and optimizer must be those of the run that wrote it")]
    Missing {
        /// The checkpoint.
        folder: PathBuf,
        /// The value's path.
        path: String,
        /// Empty, or a nearby name.
        suggestion: String,
    },
    /// The checkpoint has values that the state lacks.
    #[error(
        "{folder:?} has {} that the run lacks; model and optimizer must be those of the run that wrote it",
        listed("value", paths)
    )]
    Unexpected {
        /// The checkpoint.
        folder: PathBuf,
        /// Their paths, sorted.
        paths: Vec<String>,
    },
    /// A value of another type. Dimensions are those in a checkpoint, where all layers are one dimension.
    #[error(
        "{path} is {found} in {folder:?}, but {expected} in the run; the model must be that of the run that wrote it"
    )]
    Type {
        /// The checkpoint.
        folder: PathBuf,
        /// The value's path.
        path: String,
        /// The run's type.
        expected: Box<TensorType>,
        /// The checkpoint's.
        found: Box<TensorType>,
    },
    /// Another number of replicas that train on their own.
    #[error(
        "{path} is of {} in {folder:?}, but of {} in the run; resume with as many replicas, or start a new run from the parameters \
         alone (--load-parameters {})",
        replicas(*found), replicas(*expected), folder.display()
    )]
    Replicas {
        /// The checkpoint.
        folder: PathBuf,
        /// The value's path.
        path: String,
        /// The run's number; `None` for one model without replicas.
        expected: Option<usize>,
        /// The checkpoint's.
        found: Option<usize>,
    },
    /// A checkpoint of parameters without the state of a run is to be resumed.
    #[error(
        "{0:?} has parameters alone, as of a model that was imported: there is no run to go on with; start one \
         from them with train.init = {0:?}"
    )]
    ParametersAlone(PathBuf),
    /// The source of the values cannot be read.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// An element type that safetensors files cannot hold.
    #[error("{path} is of type {dtype}, which a checkpoint cannot hold; keep it in another type")]
    Unsupported {
        /// The value's path.
        path: String,
        /// Its element type.
        dtype: DType,
    },
    /// Two values have one path, or one has none.
    #[error(
        "the path {0:?} does not name one value of the state; wrap the state in a `tree!` struct, a tuple or a vector"
    )]
    Path(String),
    /// The state and its declaration are not of one form.
    #[error("the state has {found} values, but {expected} are declared")]
    Count {
        /// As many are declared.
        expected: usize,
        /// As many are there.
        found: usize,
    },
    /// A value of the state is of another type than it is declared.
    #[error("{path} is declared as {expected}, but the state has {found}; declare each value as it is")]
    Declared {
        /// The value's path.
        path: String,
        /// The declared type.
        expected: Box<TensorType>,
        /// The type of the value in the state.
        found: Box<TensorType>,
    },
    /// The values cannot be brought to or from the devices.
    #[error(transparent)]
    Device(#[from] Box<PjrtError>),
    /// The processes of a run do not see one directory.
    #[error(
        "{0:?}, which the first process of the run has made, is not there on this one; give a directory for checkpoints on a file system that all hosts share"
    )]
    NotShared(PathBuf),
    /// Another process of the run is gone.
    #[error(transparent)]
    Peers(#[from] crate::peers::PeersError),
}

meshloom::hlo::debug_is_message!(CheckpointError);

impl From<PjrtError> for CheckpointError {
    fn from(error: PjrtError) -> CheckpointError {
        CheckpointError::Device(Box::new(error))
    }
}

fn older(previous: &Option<PathBuf>) -> String {
    match previous {
        Some(previous) => {
            format!(
                "the one before it is {}: ask for it by name, or resume with a fallback (--resume-fallback, `Fallback::Older`)",
                previous.display()
            )
        }
        None => "there is no older one".to_owned(),
    }
}

fn replicas(count: Option<usize>) -> String {
    count.map_or("one model without replicas".to_owned(), |count| format!("{count} replicas"))
}

fn join(failures: &[CheckpointError]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
