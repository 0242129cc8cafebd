//! The errors of weights: of the folder, a file in it, or a request.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use meshloom::hlo::message::listed;
use safetensors::Dtype;

use super::fault::{FileFault, IndexFault, MAX_HEADER_BYTES, QuantizationFault};
use super::tensor::Encoding;

/// An error of weights.
#[derive(thiserror::Error)]
pub enum WeightsError {
    /// A folder without weights.
    #[error(
        "there are no weights in {0:?}: it has neither model.safetensors nor model.safetensors.index.json; give \
         the folder of a checkpoint whose download is complete"
    )]
    None(PathBuf),
    /// Something cannot be read.
    #[error("cannot read {path:?}: {source}; give a folder with files that can be read")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A pipe, device or folder in the place of a file.
    #[error("{0:?} is not a file; give the folder of a checkpoint as it was published")]
    NotAFile(PathBuf),
    /// A file is not what the format asks for.
    #[error("{path:?} cannot be used: {fault}")]
    File {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        fault: FileFault,
    },
    /// The index does not fit the files.
    #[error("{path:?} cannot be used: {fault}")]
    Index {
        /// The index.
        path: PathBuf,
        /// The fault of the index.
        fault: IndexFault,
    },
    /// The parts of a quantized tensor do not fit together.
    #[error("tensor {tensor:?} of {folder:?} cannot be dequantized: {fault}")]
    Quantization {
        /// The folder.
        folder: PathBuf,
        /// The tensor, by the name that it would have without quantization.
        tensor: String,
        /// The fault of the tensor.
        fault: Box<QuantizationFault>,
    },
    /// There is no such tensor.
    #[error("{folder:?} has no tensor {tensor:?}{suggestion}; ask for one that is listed")]
    Unknown {
        /// The folder.
        folder: PathBuf,
        /// The name.
        tensor: String,
        /// Empty, or a nearby name.
        suggestion: String,
    },
    /// A tensor of another shape than the model's.
    #[error(
        "tensor {tensor:?} of {folder:?} is of shape {found:?}, but the model needs {expected:?}; the configuration of \
         the model must be that of the weights"
    )]
    Shape {
        /// The folder.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// The tensor's.
        found: Vec<usize>,
    },
    /// A box that does not lie in its tensor.
    #[error("the box {region:?} is not in tensor {tensor:?} of shape {shape:?}; give a range within each dimension")]
    Region {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The box.
        region: Vec<Range<usize>>,
    },
    /// More than memory holds.
    #[error("there is no memory for {bytes} bytes of tensor {tensor:?}; read it in smaller boxes")]
    Memory {
        /// The tensor.
        tensor: String,
        /// The bytes that would be needed.
        bytes: usize,
    },
    /// A tensor of integers, or of floats that are not supported, is asked for as numbers.
    #[error(
        "tensor {tensor:?} is of dtype {dtype}, which is not read as numbers; those of F32, BF16, F16 and F8_E4M3 \
         are, and all others as bytes"
    )]
    NotNumbers {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
    },
    /// The bytes of a quantized tensor are asked for.
    #[error("tensor {tensor:?} is stored as {encoding}, which no dtype stands for; read it as numbers")]
    NotBytes {
        /// The tensor.
        tensor: String,
        /// How it is stored.
        encoding: Encoding,
    },
    /// A box in a tensor whose elements are not whole bytes.
    #[error("tensor {tensor:?} is of dtype {dtype}, whose elements are not whole bytes; this crate does not read them")]
    PartsOfBytes {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
    },
    /// A model and the weights are not of one form.
    #[error(
        "the weights in {folder:?} and the model do not fit; {}; change the configuration of the model, or skip on \
         purpose what it does not use",
        misfits(unused, missing, repeated)
    )]
    Misfit {
        /// The folder.
        folder: PathBuf,
        /// Tensors that were not used and not skipped, sorted.
        unused: Vec<String>,
        /// Names that were asked for and are not there, sorted.
        missing: Vec<String>,
        /// Tensors that were used several times, sorted.
        repeated: Vec<String>,
    },
    /// Something cannot be written.
    #[error("cannot {action} {path:?}: {source}; give a folder that can be written and has room")]
    Write {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A folder that has weights is to be written.
    #[error("{folder:?} has weights already ({file}), and weights are never replaced; give another folder")]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// One of its files.
        file: String,
    },
    /// A file of an unfinished writer is in the way.
    #[error(
        "{0:?} is there: another writer is at work, or one was killed; wait for it, or delete the file if there is \
         none"
    )]
    Unfinished(PathBuf),
    /// A tensor that no file can hold is to be written.
    #[error("tensor {tensor:?} cannot be written: {reason}")]
    Declared {
        /// The tensor.
        tensor: String,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// A file would get a header that readers refuse.
    #[error("the header of {0} would have more than {MAX_HEADER_BYTES} bytes; write smaller shards")]
    HeaderTooLong(String),
    /// The bytes of a tensor are not those that its dtype and shape need.
    #[error("tensor {tensor:?} has {expected} bytes, but was given {found}; give all of them, and no more")]
    Length {
        /// The tensor.
        tensor: String,
        /// Its bytes.
        expected: u64,
        /// The bytes given.
        found: u64,
    },
}

meshloom::hlo::debug_is_message!(WeightsError);

fn misfits(unused: &[String], missing: &[String], repeated: &[String]) -> String {
    let said = [("unused", unused), ("missing", missing), ("used more than once", repeated)];
    let said = said.iter().filter(|(_, names)| !names.is_empty());
    let said: Vec<String> = said
        .map(|(what, names)| match names.len() {
            1 => format!("{what}: {}", listed("tensor", names)),
            count => format!("{what}: {count} {}", listed("tensor", names)),
        })
        .collect();
    said.join("; ")
}
