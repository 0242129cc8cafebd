//! Parameters in safetensors files.
//!
//! A tree of parameters is a file of tensors named by their paths, such as `layers.3.attention.wq`. Writing gathers one
//! parameter at a time from its devices into a temporary file, which then takes the name of the target, so no reader
//! ever finds half a file. Reading checks all names and types against the header before it reads data, then reads of
//! one parameter at a time what each device holds.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use meshloom::hlo::files;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, PjrtError, runs};
use meshloom::trace::{LeafCountError, MapTree, Param, TensorSpec, Tree};

/// The number of bytes of a file that are read at a time, where a part of a parameter is not in one piece.
const BUFFER_BYTES: usize = 1 << 20;

/// The longest header that is read: as the safetensors crate has it.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An error of a parameter file.
#[derive(thiserror::Error)]
pub enum ParameterError {
    /// The file cannot be read.
    #[error("cannot read the parameters {file:?}: {source}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the parameters to {file:?}: {source}; give a path in a directory that exists and has room")]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a safetensors file, or it is damaged.
    #[error("{file:?} is not a safetensors file, or damaged: {reason}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The file lacks a parameter.
    #[error("{file:?} has no parameter {path}{suggestion}; the model and the file must have the same parameters")]
    Missing {
        /// The file.
        file: PathBuf,
        /// The parameter's path in the model.
        path: String,
        /// Empty, or a nearby name in the file.
        suggestion: String,
    },
    /// The file has parameters that the model lacks.
    #[error("{file:?} has {} that the model lacks; the model and the file must have the same parameters", list(paths))]
    Unexpected {
        /// The file.
        file: PathBuf,
        /// Their names, sorted.
        paths: Vec<String>,
    },
    /// A parameter has another type.
    #[error("{path} is {found} in {file:?}, but the model has {expected}{advice}")]
    Type {
        /// The file.
        file: PathBuf,
        /// The parameter's path.
        path: String,
        /// The model's type.
        expected: Box<TensorType>,
        /// The file's.
        found: String,
        /// Empty, or what to do.
        advice: &'static str,
    },
    /// An element type that safetensors files cannot hold.
    #[error("{path} is of type {dtype}, which safetensors files cannot hold; convert it first")]
    Unsupported {
        /// The parameter's path.
        path: String,
        /// Its element type.
        dtype: DType,
    },
    /// The parameters cannot be brought from the devices.
    #[error(transparent)]
    Device(#[from] Box<PjrtError>),
    /// The tree has not as many leaves as it declares.
    #[error(transparent)]
    Leaves(#[from] LeafCountError),
    /// Two parameters have one path, or one has none.
    #[error(
        "the path {path:?} does not name one parameter; wrap the parameters in a `tree!` struct, a tuple or a vector"
    )]
    Path {
        /// The path.
        path: String,
    },
}

meshloom::hlo::debug_is_message!(ParameterError);

impl From<PjrtError> for ParameterError {
    fn from(error: PjrtError) -> ParameterError {
        ParameterError::Device(Box::new(error))
    }
}

/// The first few names, and how many more.
pub fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Element types by name, as far as both sides have them.
const DTYPES: [(&str, Dtype); 15] = [
    ("bf16", Dtype::BF16),
    ("f16", Dtype::F16),
    ("f32", Dtype::F32),
    ("f64", Dtype::F64),
    ("f8e4m3fn", Dtype::F8_E4M3),
    ("f8e5m2", Dtype::F8_E5M2),
    ("pred", Dtype::BOOL),
    ("s16", Dtype::I16),
    ("s32", Dtype::I32),
    ("s64", Dtype::I64),
    ("s8", Dtype::I8),
    ("u16", Dtype::U16),
    ("u32", Dtype::U32),
    ("u64", Dtype::U64),
    ("u8", Dtype::U8),
];

/// The type of a file that holds elements of this type.
pub fn stored_dtype(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(name, _)| *name == dtype.name()).map(|&(_, stored)| stored)
}

/// The type of elements of this type of a file.
pub fn own_dtype(stored: Dtype) -> Option<DType> {
    DTYPES.iter().find(|&&(_, dtype)| dtype == stored).and_then(|(name, _)| DType::from_name(name))
}

/// A leaf that says what type of value belongs at its place.
pub trait Typed {
    /// The type.
    fn ty(&self) -> &TensorType;
}

impl Typed for Array {
    fn ty(&self) -> &TensorType {
        Array::ty(self)
    }
}

impl Typed for Literal {
    fn ty(&self) -> &TensorType {
        Literal::ty(self)
    }
}

impl Typed for Param {
    fn ty(&self) -> &TensorType {
        &self.spec.ty
    }
}

impl Typed for TensorSpec {
    fn ty(&self) -> &TensorType {
        &self.ty
    }
}

/// A leaf with a value that can be brought to the host.
pub trait Gather: Typed {
    /// The value.
    ///
    /// # Errors
    /// The plugin fails.
    fn gather(&self) -> Result<Literal, PjrtError>;
}

impl Gather for Array {
    fn gather(&self) -> Result<Literal, PjrtError> {
        self.get()
    }
}

impl Gather for Literal {
    fn gather(&self) -> Result<Literal, PjrtError> {
        Ok(self.clone())
    }
}

/// The leaves of a tree by path.
fn named_leaves<T: Tree>(tree: &T) -> Result<Vec<(String, T::Leaf)>, ParameterError>
where
    T::Leaf: Clone,
{
    let named: Vec<(String, T::Leaf)> = tree.paths().into_iter().zip(tree.leaves()).collect();
    let mut seen = std::collections::HashSet::new();
    match named.iter().find(|(path, _)| path.is_empty() || !seen.insert(path.as_str())) {
        Some((path, _)) => Err(ParameterError::Path { path: path.clone() }),
        None => Ok(named),
    }
}

/// Writes the parameters of a tree to a file, replacing it as a whole or not at all.
///
/// # Errors
/// A path names no parameter or two, an element type has no place in such files, the plugin fails, or the file cannot
/// be written.
pub fn save<T: Tree>(file: impl AsRef<Path>, tree: &T) -> Result<(), ParameterError>
where
    T::Leaf: Gather + Clone,
{
    save_leaves(file.as_ref(), named_leaves(tree)?)
}

/// As [`save`], of arrays, each converted to the type that is declared for it.
pub fn save_as(
    file: &Path,
    tree: &impl Tree<Leaf = Array>,
    declared: &impl Tree<Leaf = Param>,
) -> Result<(), ParameterError> {
    let named = named_leaves(tree)?.into_iter().zip(declared.leaves());
    let converted = |((path, array), param): ((String, Array), Param)| (path, Converted { array, ty: param.spec.ty });
    save_leaves(file, named.map(converted).collect())
}

/// An array that is written as of another type.
struct Converted {
    array: Array,
    ty: TensorType,
}

impl Typed for Converted {
    fn ty(&self) -> &TensorType {
        &self.ty
    }
}

impl Gather for Converted {
    fn gather(&self) -> Result<Literal, PjrtError> {
        Ok(self.array.get()?.convert(self.ty.dtype))
    }
}

fn save_leaves(file: &Path, named: Vec<(String, impl Gather)>) -> Result<(), ParameterError> {
    let mut leaves = Vec::new();
    for (path, leaf) in named {
        let dtype = leaf.ty().dtype;
        let Some(stored) = stored_dtype(dtype) else {
            return Err(ParameterError::Unsupported { path, dtype });
        };
        leaves.push((stored, path, leaf));
    }
    sort(&mut leaves);
    let header = header(file, leaves.iter().map(|(stored, path, leaf)| (*stored, path, leaf.ty().clone())))?;
    let failed = |source| ParameterError::Write { file: file.to_owned(), source };
    let temporary = temporary_beside(file)?;
    let mut writer = BufWriter::new(temporary.as_file());
    writer.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    writer.write_all(&header).map_err(failed)?;
    for (_, _, leaf) in &leaves {
        writer.write_all(leaf.gather()?.bytes()).map_err(failed)?;
    }
    writer.flush().map_err(failed)?;
    drop(writer);
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Checks that parameters can be written to a file, before a long run that ends with it.
///
/// # Errors
/// Its folder does not exist, or cannot be written.
pub fn check_writable(file: impl AsRef<Path>) -> Result<(), ParameterError> {
    temporary_beside(file.as_ref()).map(drop)
}

/// An empty file beside `file`, which goes away unless it takes its place.
fn temporary_beside(file: &Path) -> Result<tempfile::NamedTempFile, ParameterError> {
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Without the temporary file's path, which the user knows nothing of.
    let failed = |error: io::Error| ParameterError::Write { file: file.to_owned(), source: error.kind().into() };
    tempfile::NamedTempFile::new_in(directory).map_err(failed)
}

/// The order of tensors in a file: the widest types first, so that every tensor is aligned; as the safetensors crate
/// does.
pub fn sort<L>(leaves: &mut [(Dtype, String, L)]) {
    leaves.sort_by(|(left, left_path, _), (right, right_path, _)| right.cmp(left).then(left_path.cmp(right_path)));
}

/// The header of a file with these tensors in this order, padded to a multiple of 8 bytes.
pub fn header<'a>(
    file: &Path,
    tensors: impl Iterator<Item = (Dtype, &'a String, TensorType)>,
) -> Result<Vec<u8>, ParameterError> {
    let mut offset = 0;
    let info = |(dtype, path, ty): (Dtype, &String, TensorType)| {
        let start = offset;
        offset += ty.byte_count();
        (path.clone(), TensorInfo { dtype, shape: ty.dims.to_vec(), data_offsets: (start, offset) })
    };
    let infos = tensors.map(info).collect();
    let refused = |reason: String| ParameterError::Format { file: file.to_owned(), reason };
    let metadata = Metadata::new(None, infos).map_err(|error| refused(error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| refused(error.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// How parameters are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Converts between floating-point types; otherwise a parameter must have the model's type.
    pub convert: bool,
    /// Takes a file that has parameters which the model lacks.
    pub ignore_unexpected: bool,
}

/// A parameter file, open for reading. Its header has been read and checked against the length of the file.
#[derive(Debug)]
pub struct ParameterFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl ParameterFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The file cannot be read, or is no safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<ParameterFile, ParameterError> {
        let path = path.as_ref().to_owned();
        let unreadable = |source| ParameterError::Read { file: path.clone(), source };
        let damaged = |reason: String| ParameterError::Format { file: path.clone(), reason };
        let mut file = files::open(&path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        if length < 8 {
            return Err(damaged(format!("it has {length} bytes, but starts with a length of 8")));
        }
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(unreadable)?;
        let header_length = u64::from_le_bytes(prefix);
        if header_length > MAX_HEADER_BYTES || header_length > length - 8 {
            return Err(damaged(format!("its header should have {header_length} bytes, of {length} in all")));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let data_start = 8 + header_length;
        if data_start.checked_add(metadata.data_len() as u64) != Some(length) {
            return Err(damaged(SafeTensorError::MetadataIncompleteBuffer.to_string()));
        }
        Ok(ParameterFile { path, file, metadata, data_start })
    }

    /// The names of the tensors, in the order of their data.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Checks that the file has these parameters, of these types, and no others.
    ///
    /// # Errors
    /// The first that is missing or of another type, or all that are too many.
    pub fn check(&self, expected: &[(String, &TensorType)], options: LoadOptions) -> Result<(), ParameterError> {
        for (path, ty) in expected {
            self.check_one(path, ty, options)?;
        }
        let known: std::collections::HashSet<&str> = expected.iter().map(|(path, _)| path.as_str()).collect();
        let mut paths: Vec<String> = self.names().into_iter().filter(|name| !known.contains(name.as_str())).collect();
        if paths.is_empty() || options.ignore_unexpected {
            return Ok(());
        }
        paths.sort();
        Err(ParameterError::Unexpected { file: self.path.clone(), paths })
    }

    fn check_one(&self, path: &str, expected: &TensorType, options: LoadOptions) -> Result<(), ParameterError> {
        let Some(info) = self.metadata.info(path) else {
            return Err(self.missing(path));
        };
        let mismatch = |advice| ParameterError::Type {
            file: self.path.clone(),
            path: path.to_owned(),
            expected: Box::new(expected.clone()),
            found: match own_dtype(info.dtype) {
                Some(dtype) => TensorType::new(dtype, &info.shape).to_string(),
                None => format!("{:?}{:?}", info.dtype, info.shape),
            },
            advice,
        };
        if info.shape.as_slice() != expected.dims.as_slice() {
            return Err(mismatch(""));
        }
        match own_dtype(info.dtype) {
            Some(found) if found == expected.dtype => Ok(()),
            Some(found) if found.is_float() && expected.dtype.is_float() => match options.convert {
                true => Ok(()),
                false => Err(mismatch("; convert it on loading (--convert, or `LoadOptions::convert`)")),
            },
            _ => Err(mismatch("")),
        }
    }

    /// Reads one parameter.
    ///
    /// # Errors
    /// The parameter is missing or of another type, or the file cannot be read.
    pub fn read(&self, path: &str, expected: &TensorType, options: LoadOptions) -> Result<Literal, ParameterError> {
        self.check_one(path, expected, options)?;
        let whole: Vec<Range<usize>> = expected.dims.iter().map(|&size| 0..size).collect();
        Ok(self.read_part(path, &whole)?.convert(expected.dtype))
    }

    /// Reads a box of one parameter, in the type that it has in the file. The rest is not read.
    ///
    /// # Errors
    /// The parameter is missing, the box is not within it, or the file cannot be read.
    pub fn read_part(&self, path: &str, shard: &[Range<usize>]) -> Result<Literal, ParameterError> {
        let damaged = |reason: String| ParameterError::Format { file: self.path.clone(), reason };
        let Some(info) = self.metadata.info(path) else { return Err(self.missing(path)) };
        let Some(dtype) = own_dtype(info.dtype) else {
            return Err(damaged(format!("{path} is of type {:?}, which no tensor here can have", info.dtype)));
        };
        let ty = TensorType::new(dtype, &info.shape);
        let is_within = |(range, &size): (&Range<usize>, &usize)| range.start <= range.end && range.end <= size;
        if shard.len() != ty.rank() || !shard.iter().zip(&ty.dims).all(is_within) {
            return Err(damaged(format!("{path} is {ty}, which has no part {shard:?}")));
        }
        if info.data_offsets.1 - info.data_offsets.0 != ty.byte_count() {
            let found = info.data_offsets.1 - info.data_offsets.0;
            return Err(damaged(format!("{path} has {found} bytes, which is not what {ty} has")));
        }
        let part = TensorType::new(dtype, &shard.iter().map(Range::len).collect::<Vec<_>>());
        let unreadable = |source| ParameterError::Read { file: self.path.clone(), source };
        let mut bytes = Vec::with_capacity(part.byte_count());
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, &self.file);
        reader.seek(SeekFrom::Start(self.data_start + info.data_offsets.0 as u64)).map_err(unreadable)?;
        let mut position = 0;
        for run in runs(&ty, shard) {
            reader.seek_relative((run.start - position) as i64).map_err(unreadable)?;
            let start = bytes.len();
            bytes.resize(start + run.len(), 0);
            reader.read_exact(&mut bytes[start..]).map_err(unreadable)?;
            position = run.end;
        }
        if dtype == DType::Pred {
            // Any byte but 0 is true there; here it must be 1.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        let (expected, found) = (part.byte_count(), bytes.len());
        Literal::from_bytes(part, bytes).map_err(|_| damaged(format!("{path} has {found} bytes of {expected}")))
    }

    fn missing(&self, path: &str) -> ParameterError {
        // A damaged file may have names that take forever to compare.
        let names: Vec<String> = self.names().into_iter().filter(|name| name.len() < 256).collect();
        let suggestion = did_you_mean(path, names.iter().map(String::as_str));
        ParameterError::Missing { file: self.path.clone(), path: path.to_owned(), suggestion }
    }
}

/// Opens a file that has the parameters of a tree, and no others.
pub fn open_for<T>(file: &Path, tree: &T, options: LoadOptions) -> Result<ParameterFile, ParameterError>
where
    T: Tree,
    T::Leaf: Typed + Clone,
{
    let named = named_leaves(tree)?;
    let file = ParameterFile::open(file)?;
    let expected: Vec<(String, &TensorType)> = named.iter().map(|(path, leaf)| (path.clone(), leaf.ty())).collect();
    file.check(&expected, options)?;
    Ok(file)
}

/// Reads the parameters that a tree declares, as host values.
///
/// # Errors
/// The file cannot be read or is damaged; or its parameters are not those of the tree: the error names the path.
pub fn load<T>(
    file: impl AsRef<Path>,
    tree: &T,
    options: LoadOptions,
) -> Result<<T as MapTree<Literal>>::Mapped, ParameterError>
where
    T: MapTree<Literal>,
    T::Leaf: Typed + Clone,
{
    let file = open_for(file.as_ref(), tree, options)?;
    let read = |(path, leaf): (String, T::Leaf)| file.read(&path, leaf.ty(), options);
    let literals = tree.paths().into_iter().zip(tree.leaves()).map(read).collect::<Result<_, _>>()?;
    Ok(tree.fill(literals)?)
}
