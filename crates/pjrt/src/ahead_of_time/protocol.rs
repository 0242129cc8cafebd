//! The protocol between a process and its worker: two files in a folder of their own.
//!
//! A file has a line with the version of the format and the SHA-256 of the message, and then the message. It gets its
//! name only when it is complete.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::array::ArraySpec;
use super::super::compiled::{CostAnalysis, MemoryStats, OptimizedProgram};
use super::super::device::DeviceDescription;
use super::super::error::{ErrorCode, PjrtError};
use super::super::layout::{ShardBox, ShardLayout};
use super::super::options::CompileOptions;
use meshloom_hlo::{DType, Literal, TensorType};

/// The environment variable that tells a worker where its folder is.
pub(in super::super) const FOLDER_VARIABLE: &str = "MESHLOOM_WORKER_FOLDER";

/// The file of the request. It is in the folder before the worker starts.
pub(in super::super) const REQUEST: &str = "request";
/// The file that the worker makes first.
pub(in super::super) const STARTED: &str = "started";
/// The file of the answer, which is the worker's last act.
pub(in super::super) const ANSWER: &str = "answer";

/// Changed whenever a message changes its form. Worker and parent are mostly one program, but need not be.
const HEADER: &[u8] = concat!("meshloom worker message 3 of ", env!("CARGO_PKG_VERSION"), "\n").as_bytes();
const SUM_LENGTH: usize = 32;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Request {
    /// The process that waits for the answer; the worker has no business without it.
    pub(in super::super) parent: u32,
    pub(in super::super) plugin: PathBuf,
    pub(in super::super) topology: String,
    pub(in super::super) task: Task,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum Task {
    Describe,
    Compile {
        module: Vec<u8>,
        options: CompileOptions,
    },
    /// Compile and run.
    Execute {
        module: Vec<u8>,
        options: CompileOptions,
        arguments: Vec<Given>,
        outputs: Option<Vec<WantedOutput>>,
        compile_only: bool,
    },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum Answer {
    /// The devices, and the version of the plugin's API.
    Described(Vec<DeviceDescription>, (i32, i32)),
    Compiled {
        device_assignment: Vec<Vec<i32>>,
        compile_time: Duration,
        said: Box<Said>,
    },
    Executed {
        outputs: Vec<SentLiteral>,
        memory: Option<MemoryStats>,
        api_version: (i32, i32),
    },
    Failed(Reported),
}

/// A plugin's report on a program that it compiled: each part, or the error in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Said {
    pub(in super::super) memory_stats: Result<MemoryStats, Reported>,
    pub(in super::super) cost_analysis: Result<CostAnalysis, Reported>,
    pub(in super::super) optimized: Result<OptimizedProgram, Reported>,
    pub(in super::super) serialized: Result<Vec<u8>, Reported>,
}

/// An error of the worker's, as far as the parent tells errors apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum Reported {
    Plugin { function: String, code: ErrorCode, message: String },
    Unimplemented { feature: String, plugin: String, reason: String },
    InvalidOption { option: String, value: String, expected: String },
    InvalidModule { reason: String },
    Other(String),
}

impl From<PjrtError> for Reported {
    fn from(error: PjrtError) -> Reported {
        match error {
            PjrtError::Plugin { function, code, message } => {
                Reported::Plugin { function: function.into_owned(), code, message }
            }
            PjrtError::Unimplemented { feature, plugin, reason } => Reported::Unimplemented { feature, plugin, reason },
            PjrtError::InvalidOption { option, value, expected } => Reported::InvalidOption { option, value, expected },
            PjrtError::InvalidModule { reason } => Reported::InvalidModule { reason },
            error => Reported::Other(error.to_string()),
        }
    }
}

impl From<Reported> for PjrtError {
    fn from(reported: Reported) -> PjrtError {
        match reported {
            Reported::Plugin { function, code, message } => {
                PjrtError::Plugin { function: function.into(), code, message }
            }
            Reported::Unimplemented { feature, plugin, reason } => PjrtError::Unimplemented { feature, plugin, reason },
            Reported::InvalidOption { option, value, expected } => PjrtError::InvalidOption { option, value, expected },
            Reported::InvalidModule { reason } => PjrtError::InvalidModule { reason },
            Reported::Other(message) => PjrtError::InWorker { message },
        }
    }
}

/// A literal in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct SentLiteral {
    dtype: String,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

impl SentLiteral {
    pub(super) fn of(literal: &Literal) -> SentLiteral {
        let ty = literal.ty();
        SentLiteral { dtype: ty.dtype.to_string(), dims: ty.dims.to_vec(), bytes: literal.bytes().to_vec() }
    }

    pub(super) fn literal(self) -> Result<Literal, PjrtError> {
        let ty = TensorType::new(dtype(&self.dtype)?, &self.dims);
        Literal::from_bytes(ty, self.bytes).map_err(|error| PjrtError::InWorker { message: error.to_string() })
    }
}

/// Returns the element type of a name in a message.
fn dtype(name: &str) -> Result<DType, PjrtError> {
    let unknown = || PjrtError::InWorker { message: format!("a value has the unknown element type {name}") };
    DType::from_name(name).ok_or_else(unknown)
}

/// An argument in a message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Given {
    value: SentLiteral,
    padded: Vec<usize>,
    boxes: Vec<ShardBox>,
}

impl Given {
    pub(super) fn of(literal: &Literal, layout: &ShardLayout) -> Given {
        Given { value: SentLiteral::of(literal), padded: layout.dims().to_vec(), boxes: layout.boxes().to_vec() }
    }

    pub(super) fn argument(self) -> Result<(Literal, ShardLayout), PjrtError> {
        let literal = self.value.literal()?;
        let layout = ShardLayout::from_boxes(&self.padded, self.boxes)?.with_value_dims(&literal.ty().dims)?;
        Ok((literal, layout))
    }
}

/// An output in a message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct WantedOutput {
    dtype: String,
    dims: Vec<usize>,
    padded: Vec<usize>,
    boxes: Vec<ShardBox>,
}

impl WantedOutput {
    pub(super) fn of(spec: &ArraySpec) -> WantedOutput {
        let (dtype, dims) = (spec.ty.dtype.to_string(), spec.ty.dims.to_vec());
        WantedOutput { dtype, dims, padded: spec.layout.dims().to_vec(), boxes: spec.layout.boxes().to_vec() }
    }

    pub(super) fn spec(self) -> Result<ArraySpec, PjrtError> {
        let layout = ShardLayout::from_boxes(&self.padded, self.boxes)?.with_value_dims(&self.dims)?;
        Ok(ArraySpec { ty: TensorType::new(dtype(&self.dtype)?, &self.dims), layout })
    }
}

/// Writes a message into the folder, all or nothing.
pub fn write<M: Serialize>(folder: &Path, name: &str, message: &M) -> Result<(), String> {
    let body = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
    let file = tempfile::NamedTempFile::new_in(folder).map_err(|error| error.to_string())?;
    let parts: [&[u8]; 3] = [HEADER, &Sha256::digest(&body), &body];
    parts.iter().try_for_each(|part| file.as_file().write_all(part)).map_err(|error| error.to_string())?;
    file.persist(folder.join(name)).map_err(|error| error.to_string())?;
    Ok(())
}

/// Reads a message of the folder.
pub fn read<M: DeserializeOwned>(folder: &Path, name: &str) -> Result<M, String> {
    decode(&fs::read(folder.join(name)).map_err(|error| error.to_string())?)
}

/// Reads a message.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, String> {
    let rest = bytes.strip_prefix(HEADER).ok_or("it is not a message of this version of meshloom")?;
    let (sum, body) = rest.split_at_checked(SUM_LENGTH).ok_or("it is cut off")?;
    if Sha256::digest(body).as_slice() != sum {
        return Err("it is damaged".into());
    }
    let (message, rest) = postcard::take_from_bytes(body).map_err(|error| error.to_string())?;
    if rest.is_empty() { Ok(message) } else { Err("it has data after its end".into()) }
}
