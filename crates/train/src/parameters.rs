//! Parameters in safetensors files.
//!
//! A tree of parameters is a file of tensors named by their paths, such as `layers.3.attention.wq`. Writing gathers one
//! parameter at a time from its devices into a temporary file, which then takes the name of the target, so nobody ever
//! finds half a file. Reading checks all names and types against the header before it reads data, then reads one
//! parameter at a time.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

use crate::Error;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, Client, PjrtError};
use meshloom::trace::{MapTree, Param, TensorSpec, Tree};

/// The longest header that is read: as the safetensors crate has it.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// What is wrong with a parameter file.
#[derive(thiserror::Error)]
pub enum ParameterError {
    /// The file cannot be read.
    #[error("cannot read the parameters {file:?}: {source}")]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the parameters to {file:?}: {source}; give a path in a directory that exists and has room")]
    Write {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is no safetensors file, or a damaged one.
    #[error("{file:?} is not a safetensors file, or damaged: {reason}")]
    Format {
        /// The file.
        file: PathBuf,
        /// What is wrong.
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

/// The first few names, and how many more.
pub(super) fn list(names: &[String]) -> String {
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

pub(super) fn stored_dtype(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(name, _)| *name == dtype.name()).map(|&(_, stored)| stored)
}

fn own_dtype(stored: Dtype) -> Option<DType> {
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
pub fn save<T: Tree>(file: impl AsRef<Path>, tree: &T) -> Result<(), Error>
where
    T::Leaf: Gather + Clone,
{
    let file = file.as_ref();
    let mut leaves = Vec::new();
    for (path, leaf) in named_leaves(tree)? {
        let dtype = leaf.ty().dtype;
        let Some(stored) = stored_dtype(dtype) else {
            return Err(ParameterError::Unsupported { path, dtype }.into());
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
pub(super) fn sort<L>(leaves: &mut [(Dtype, String, L)]) {
    leaves.sort_by(|(left, left_path, _), (right, right_path, _)| right.cmp(left).then(left_path.cmp(right_path)));
}

/// The header of a file with these tensors in this order, padded to a multiple of 8 bytes.
pub(super) fn header<'a>(
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
        let mut file = File::open(&path).map_err(unreadable)?;
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

    fn check_one(&self, path: &str, expected: &TensorType, options: LoadOptions) -> Result<DType, ParameterError> {
        let Some(info) = self.metadata.info(path) else {
            // A damaged file may have names that take forever to compare.
            let names: Vec<String> = self.names().into_iter().filter(|name| name.len() < 256).collect();
            let suggestion = did_you_mean(path, names.iter().map(String::as_str));
            return Err(ParameterError::Missing { file: self.path.clone(), path: path.to_owned(), suggestion });
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
            Some(found) if found == expected.dtype => Ok(found),
            Some(found) if found.is_float() && expected.dtype.is_float() => match options.convert {
                true => Ok(found),
                false => Err(mismatch("; convert it on loading (--convert, or `LoadOptions::convert`)")),
            },
            _ => Err(mismatch("")),
        }
    }

    /// Reads one parameter.
    ///
    /// # Errors
    /// It is missing or of another type, or the file cannot be read.
    pub fn read(&mut self, path: &str, expected: &TensorType, options: LoadOptions) -> Result<Literal, ParameterError> {
        let dtype = self.check_one(path, expected, options)?;
        let offsets = self.metadata.info(path).map_or((0, 0), |info| info.data_offsets);
        let unreadable = |source| ParameterError::Read { file: self.path.clone(), source };
        // No more than the file has: its length was checked against the offsets.
        let mut bytes = vec![0; offsets.1 - offsets.0];
        self.file.seek(SeekFrom::Start(self.data_start + offsets.0 as u64)).map_err(unreadable)?;
        self.file.read_exact(&mut bytes).map_err(unreadable)?;
        if dtype == DType::Pred {
            // Any byte but 0 is true there; here it must be 1.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        let damaged = |_| ParameterError::Format {
            file: self.path.clone(),
            reason: format!("{path} has {} bytes, which is not what {expected} has", offsets.1 - offsets.0),
        };
        let literal = Literal::from_bytes(expected.with_dtype(dtype), bytes).map_err(damaged)?;
        if dtype == expected.dtype {
            return Ok(literal);
        }
        let numbers = literal.to_f64_vec();
        Ok(Literal::from_fn(expected.clone(), |place| numbers[place]))
    }
}

/// Reads every parameter of a tree, each into what `place` makes of it.
fn load_each<T, U>(
    file: &Path,
    tree: &T,
    options: LoadOptions,
    mut place: impl FnMut(&T::Leaf, Literal) -> Result<U, Error>,
) -> Result<Vec<U>, Error>
where
    T: Tree,
    T::Leaf: Typed + Clone,
{
    let named = named_leaves(tree)?;
    let mut file = ParameterFile::open(file)?;
    let expected: Vec<(String, &TensorType)> = named.iter().map(|(path, leaf)| (path.clone(), leaf.ty())).collect();
    file.check(&expected, options)?;
    named.iter().map(|(path, leaf)| place(leaf, file.read(path, leaf.ty(), options)?)).collect()
}

/// Reads the parameters that a tree declares, as host values.
///
/// # Errors
/// The file cannot be read or is damaged; or its parameters are not those of the tree: the error names the path.
pub fn load<T>(file: impl AsRef<Path>, tree: &T, options: LoadOptions) -> Result<<T as MapTree<Literal>>::Mapped, Error>
where
    T: MapTree<Literal>,
    T::Leaf: Typed + Clone,
{
    let literals = load_each(file.as_ref(), tree, options, |_, literal| Ok(literal))?;
    Ok(tree.fill(literals)?)
}

/// Reads the parameters of a tree of arrays and spreads each over the devices as the one it replaces.
///
/// # Errors
/// Those of [`load`], or the plugin fails.
pub fn load_like<T>(file: impl AsRef<Path>, tree: &T, client: &Client, options: LoadOptions) -> Result<T, Error>
where
    T: MapTree<Array, Mapped = T> + Tree<Leaf = Array>,
{
    let put = |like: &Array, literal: Literal| Ok(Array::put(client, &literal, like.layout())?);
    Ok(tree.fill(load_each(file.as_ref(), tree, options, put)?)?)
}
