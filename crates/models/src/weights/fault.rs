//! The faults of the files of weights. The error that has the fault names the file.

use std::io;

use meshloom::hlo::message::counted;
use safetensors::Dtype;

/// The longest header, 100 MB, as in the `safetensors` crate: a longer one is an attack, or the file is not a
/// safetensors file.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A fault of a safetensors file. The bytes of tensors are counted from the end of the header.
#[derive(thiserror::Error)]
pub enum FileFault {
    /// It has no room for the length of a header.
    #[error("it has {}, and a safetensors file at least 8; download the file again", counted(.0, "byte"))]
    Empty(u64),
    /// It cannot be read.
    #[error("{0}")]
    Read(io::Error),
    /// The header is longer than any.
    #[error(
        "its header has {0} bytes by its first 8 bytes, and at most {MAX_HEADER_BYTES} are allowed; this is no \
         safetensors file, so download the file again"
    )]
    HeaderTooLong(u64),
    /// The header is longer than the file.
    #[error(
        "its header has {}, but only {rest} are there; it is cut off, so download the file again",
        counted(length, "byte")
    )]
    HeaderCut {
        /// The length of the header.
        length: u64,
        /// The bytes after that length.
        rest: u64,
    },
    /// The header is not JSON, or states something else.
    #[error("its header is damaged: {0}; download the file again")]
    Header(serde_json::Error),
    /// A dtype that the format does not have.
    #[error("tensor {tensor:?} is of dtype {found:?}, which safetensors files do not have; convert it to another")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        found: String,
    },
    /// A tensor ends before it begins.
    #[error("tensor {tensor:?} begins at byte {begin} and ends at byte {end}; download the file again")]
    Reversed {
        /// The tensor.
        tensor: String,
        /// Its first byte.
        begin: u64,
        /// The byte after its last.
        end: u64,
    },
    /// A tensor ends after the file.
    #[error("tensor {tensor:?} ends at byte {end} of {data_bytes}; the file is cut off, so download the file again")]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// The byte after its last.
        end: u64,
        /// The bytes of all tensors.
        data_bytes: u64,
    },
    /// A tensor of a size that no file has.
    #[error("tensor {tensor:?} of shape {shape:?} and dtype {dtype} has no number of bytes; download the file again")]
    Uncountable {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The number of bytes of a tensor is not the one that its shape and dtype need.
    #[error(
        "tensor {tensor:?} of shape {shape:?} and dtype {dtype} needs {expected} bytes, but has {found}; download the \
         file again"
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// The bytes that it needs.
        expected: u64,
        /// The bytes that it has.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {other:?} and {tensor:?} overlap; download the file again")]
    Overlap {
        /// The one that begins later.
        tensor: String,
        /// The other.
        other: String,
    },
    /// Bytes between tensors.
    #[error("no tensor has the {} before tensor {tensor:?}; download the file again", counted(bytes, "byte"))]
    Hole {
        /// The tensor after them.
        tensor: String,
        /// The number of bytes.
        bytes: u64,
    },
    /// Bytes after the last tensor.
    #[error("no tensor has its last {}; download the file again", counted(.0, "byte"))]
    Trailing(u64),
}

/// A fault of an index.
#[derive(thiserror::Error)]
pub enum IndexFault {
    /// It is longer than any.
    #[error("it has {0} bytes, and at most {MAX_HEADER_BYTES} are allowed; download the file again")]
    TooLong(u64),
    /// It is not JSON, or states something else.
    #[error("it is damaged: {0}; download the file again")]
    Json(serde_json::Error),
    /// A file that may be anywhere.
    #[error(
        "tensor {tensor:?} is in file {file:?}, which is not the name of a file of the folder; do not use what comes \
         from this author"
    )]
    Outside {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: String,
    },
    /// A file that is not there.
    #[error("its file {0:?} is not there; download it")]
    MissingFile(String),
    /// A tensor in two files.
    #[error("tensor {tensor:?} is in both {first:?} and {second:?}; remove the file that is of another checkpoint")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor that its file lacks.
    #[error("tensor {tensor:?} is not in its file {file:?}; download both again")]
    NotInFile {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: String,
    },
    /// A tensor that the index lacks.
    #[error("it does not have tensor {tensor:?} of file {file:?}; download both again")]
    NotInIndex {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: String,
    },
}

/// The reason why a tensor cannot be dequantized.
#[derive(thiserror::Error)]
pub enum QuantizationFault {
    /// Half of it is not there.
    #[error("there is {found:?}, but no {lacking:?}; download the checkpoint again")]
    Half {
        /// The tensor that is there.
        found: String,
        /// The one that it needs.
        lacking: String,
    },
    /// It is there without quantization as well.
    #[error("it is stored both under its name and as {0:?}; remove one of the two")]
    Twice(String),
    /// A part of it is of another dtype.
    #[error("{part:?} is of dtype {found}, but {expected} is needed; dequantize it with the program that quantized it")]
    Dtype {
        /// The part.
        part: String,
        /// The dtypes that it may have.
        expected: &'static str,
        /// The dtype that it has.
        found: Dtype,
    },
    /// A part of it is of no shape that values have.
    #[error(
        "{part:?} is of shape {found:?}, but {expected} is needed; dequantize it with the program that quantized it"
    )]
    Values {
        /// The part.
        part: String,
        /// The shapes that it may have.
        expected: &'static str,
        /// The shape that it has.
        found: Vec<usize>,
    },
    /// The scales are not those of the values.
    #[error(
        "{scales:?} is of shape {found:?}, but {expected:?} is needed for values {values:?}{}; {}",
        block.map(|block| format!(" in blocks of {block:?}")).unwrap_or_default(),
        if block.is_some() { "give weight_block_size of config.json" } else { "download the checkpoint again" }
    )]
    Scales {
        /// The tensor of scales.
        scales: String,
        /// The shape that the values need.
        expected: Vec<usize>,
        /// Its shape.
        found: Vec<usize>,
        /// The shape of the values.
        values: Vec<usize>,
        /// The sizes of a block, where the files do not say them.
        block: Option<[usize; 2]>,
    },
    /// A block without elements.
    #[error("its blocks are of {0:?} elements; give weight_block_size of config.json")]
    Block([usize; 2]),
}

meshloom::hlo::debug_is_message!(FileFault);
meshloom::hlo::debug_is_message!(IndexFault);
meshloom::hlo::debug_is_message!(QuantizationFault);
