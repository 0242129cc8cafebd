//! Parameters in safetensors files.
//!
//! A tree of parameters is a file of tensors named by their paths, such as `layers.3.attention.wq`. Writing gathers one
//! parameter at a time from its devices into a temporary file, which then takes the name of the target, so no reader
//! ever finds half a file. Reading checks all names and types against the header before it reads data, then reads of
//! one parameter at a time what each device holds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use meshloom::hlo::message::listed;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, PjrtError};
use meshloom::trace::{LeafCountError, MapTree, Param, TensorSpec, Tree};
use safetensors::tensor::{TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::weights::header::{self, Stored};
use crate::weights::region::fits;
use crate::weights::{FileFault, whole};

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
    #[error("{file:?} is not a safetensors file, or damaged: {fault}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The fault.
        fault: Box<FileFault>,
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
    #[error(
        "{file:?} has {} that the model lacks; the model and the file must have the same parameters",
        listed("parameter", paths)
    )]
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
    #[error("the path {0:?} does not name one parameter; wrap the parameters in a `tree!` struct, a tuple or a vector")]
    Path(String),
}

meshloom::hlo::debug_is_message!(ParameterError);

impl From<PjrtError> for ParameterError {
    fn from(error: PjrtError) -> ParameterError {
        ParameterError::Device(Box::new(error))
    }
}

/// Element types, as far as both sides have them.
const DTYPES: [(DType, Dtype); 15] = [
    (DType::BF16, Dtype::BF16),
    (DType::F16, Dtype::F16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F8E4M3FN, Dtype::F8_E4M3),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::Pred, Dtype::BOOL),
    (DType::S16, Dtype::I16),
    (DType::S32, Dtype::I32),
    (DType::S64, Dtype::I64),
    (DType::S8, Dtype::I8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::U8, Dtype::U8),
];

/// The type of a file that holds elements of this type.
pub fn stored_dtype(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(own, _)| *own == dtype).map(|&(_, stored)| stored)
}

/// The type of elements of this type of a file.
pub fn own_dtype(stored: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(_, dtype)| *dtype == stored).map(|&(own, _)| own)
}

fn named_leaves<T: Tree>(tree: &T) -> Result<Vec<(String, T::Leaf)>, ParameterError>
where
    T::Leaf: Clone,
{
    let named: Vec<(String, T::Leaf)> = tree.paths().into_iter().zip(tree.leaves()).collect();
    let mut seen = HashSet::new();
    match named.iter().find(|(path, _)| path.is_empty() || !seen.insert(path.as_str())) {
        Some((path, _)) => Err(ParameterError::Path(path.clone())),
        None => Ok(named),
    }
}

/// Writes the parameters of a tree to a file, replacing it as a whole or not at all.
///
/// # Errors
/// A path names no parameter or two, an element type has no place in such files, or the file cannot be written.
pub fn save(file: impl AsRef<Path>, tree: &impl Tree<Leaf = Literal>) -> Result<(), ParameterError> {
    let leaves = named_leaves(tree)?.into_iter().map(|(path, literal)| (path, literal.ty().clone(), literal));
    write(file.as_ref(), leaves, |literal| Ok(literal.clone()))
}

/// As [`save`], of arrays, each converted to the type that is declared for it.
///
/// # Errors
/// The errors are those of [`save`]; also, the plugin may fail.
pub fn save_arrays(
    file: impl AsRef<Path>,
    tree: &impl Tree<Leaf = Array>,
    declared: &impl Tree<Leaf = Param>,
) -> Result<(), ParameterError> {
    let leaves = named_leaves(tree)?.into_iter().zip(declared.leaves());
    write(file.as_ref(), leaves.map(|((path, array), param)| (path, param.spec.ty, array)), Array::get)
}

fn write<L>(
    file: &Path,
    named: impl Iterator<Item = (String, TensorType, L)>,
    gather: impl Fn(&L) -> Result<Literal, PjrtError>,
) -> Result<(), ParameterError> {
    let mut leaves = Vec::new();
    for (path, ty, leaf) in named {
        let Some(stored) = stored_dtype(ty.dtype) else {
            return Err(ParameterError::Unsupported { path, dtype: ty.dtype });
        };
        leaves.push((stored, path, (ty, leaf)));
    }
    let failed = |source| ParameterError::Write { file: file.to_owned(), source };
    let header = header::arrange(&mut leaves, |(ty, _)| ty.clone());
    let header = header.ok_or_else(|| failed(io::Error::other("the names are too long for a file")))?;
    let temporary = temporary_beside(file)?;
    let mut writer = BufWriter::new(temporary.as_file());
    writer.write_all(&header).map_err(failed)?;
    for (_, _, (ty, leaf)) in &leaves {
        writer.write_all(gather(leaf)?.convert(ty.dtype).bytes()).map_err(failed)?;
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
    /// In the order of their data.
    tensors: Vec<Stored>,
    places: HashMap<String, usize>,
}

impl ParameterFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The file cannot be read, or is no safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<ParameterFile, ParameterError> {
        let path = path.as_ref().to_owned();
        let (file, tensors) = header::open(&path, 0).map_err(|fault| match fault {
            FileFault::Read(source) => ParameterError::Read { file: path.clone(), source },
            fault => ParameterError::Format { file: path.clone(), fault: Box::new(fault) },
        })?;
        let places = tensors.iter().enumerate().map(|(place, tensor)| (tensor.name.clone(), place)).collect();
        Ok(ParameterFile { path, file, tensors, places })
    }

    /// Opens a file that has the parameters of a tree, and no others.
    ///
    /// # Errors
    /// The errors are those of [`ParameterFile::open`] and of [`ParameterFile::check`].
    pub fn open_for(
        path: &Path,
        declared: &impl Tree<Leaf = Param>,
        options: LoadOptions,
    ) -> Result<ParameterFile, ParameterError> {
        let named = named_leaves(declared)?;
        let file = ParameterFile::open(path)?;
        file.check(named.iter().map(|(path, param)| (path.as_str(), &param.spec.ty)), options)?;
        Ok(file)
    }

    /// The names of the tensors, in the order of their data.
    pub fn names(&self) -> Vec<&str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    /// Checks that the file has these parameters, of these types, and no others.
    ///
    /// # Errors
    /// The first that is missing or of another type, or all that are too many.
    pub fn check<'e>(
        &self,
        expected: impl Iterator<Item = (&'e str, &'e TensorType)>,
        options: LoadOptions,
    ) -> Result<(), ParameterError> {
        let mut known = HashSet::new();
        for (path, ty) in expected {
            self.checked(path, ty, options)?;
            known.insert(path);
        }
        let all = self.names().into_iter();
        let mut paths: Vec<String> = all.filter(|name| !known.contains(name)).map(str::to_owned).collect();
        if paths.is_empty() || options.ignore_unexpected {
            return Ok(());
        }
        paths.sort();
        Err(ParameterError::Unexpected { file: self.path.clone(), paths })
    }

    fn checked(&self, path: &str, expected: &TensorType, options: LoadOptions) -> Result<(), ParameterError> {
        let tensor = self.tensor(path)?;
        let mismatch = |advice| Err(self.mismatch(tensor, expected, advice));
        match own_dtype(tensor.dtype) {
            _ if tensor.shape.as_slice() != expected.dims.as_slice() => mismatch(""),
            Some(found) if found == expected.dtype => Ok(()),
            Some(found) if found.is_float() && expected.dtype.is_float() => match options.convert {
                true => Ok(()),
                false => mismatch("; convert it on loading (--convert, or `LoadOptions::convert`)"),
            },
            _ => mismatch(""),
        }
    }

    fn mismatch(&self, tensor: &Stored, expected: &TensorType, advice: &'static str) -> ParameterError {
        let found = match own_dtype(tensor.dtype) {
            Some(dtype) => TensorType::new(dtype, &tensor.shape).to_string(),
            None => format!("{:?}{:?}", tensor.dtype, tensor.shape),
        };
        let (file, path, expected) = (self.path.clone(), tensor.name.clone(), Box::new(expected.clone()));
        ParameterError::Type { file, path, expected, found, advice }
    }

    fn tensor(&self, path: &str) -> Result<&Stored, ParameterError> {
        let place = self.places.get(path).ok_or_else(|| {
            // A damaged file may have names that take forever to compare.
            let suggestion = did_you_mean(path, self.names().into_iter().filter(|name| name.len() < 256));
            ParameterError::Missing { file: self.path.clone(), path: path.to_owned(), suggestion }
        });
        place.map(|&place| &self.tensors[place])
    }

    /// Reads one parameter.
    ///
    /// # Errors
    /// The parameter is missing or of another type, or the file cannot be read.
    pub fn read(&self, path: &str, expected: &TensorType, options: LoadOptions) -> Result<Literal, ParameterError> {
        self.checked(path, expected, options)?;
        Ok(self.read_part(path, &whole(&expected.dims))?.convert(expected.dtype))
    }

    /// Reads a box of one parameter, in the type that it has in the file. The rest is not read.
    ///
    /// # Errors
    /// The parameter is missing, the box is not within it, or the file cannot be read.
    pub fn read_part(&self, path: &str, region: &[Range<usize>]) -> Result<Literal, ParameterError> {
        let tensor = self.tensor(path)?;
        let own = own_dtype(tensor.dtype);
        let ends: Vec<usize> = region.iter().map(|range| range.end).collect();
        let mismatch = || self.mismatch(tensor, &TensorType::new(own.unwrap_or(DType::F32), &ends), "");
        let dtype = own.filter(|_| fits(&tensor.shape, region)).ok_or_else(mismatch)?;
        let part = TensorType::new(dtype, &region.iter().map(Range::len).collect::<Vec<_>>());
        let mut bytes = vec![0; part.byte_count()];
        let read = tensor.read(&self.file, dtype.byte_count(), region, &mut bytes);
        read.map_err(|source| ParameterError::Read { file: self.path.clone(), source })?;
        if dtype == DType::Pred {
            // Any byte but 0 is true there; here it must be 1.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Literal::from_bytes(part, bytes).map_err(|_| mismatch())
    }
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
    T: MapTree<Literal> + Tree<Leaf = TensorSpec>,
{
    let named = named_leaves(tree)?;
    let file = ParameterFile::open(file)?;
    file.check(named.iter().map(|(path, spec)| (path.as_str(), &spec.ty)), options)?;
    let literals = named.iter().map(|(path, spec)| file.read(path, &spec.ty, options)).collect::<Result<_, _>>()?;
    Ok(tree.fill(literals)?)
}

/// Named values as the bytes of a safetensors file. The metadata name each with its type in HLO, since integers of four
/// bits are stored one in a byte.
///
/// # Errors
/// The names are too long for a file.
pub fn to_bytes(values: &[(String, Literal)]) -> Result<Vec<u8>, SafeTensorError> {
    let types = values.iter().map(|(name, literal)| (name.clone(), literal.ty().dtype.name().to_owned())).collect();
    let views = values.iter().map(|(name, literal)| {
        let TensorType { dtype, dims } = literal.ty();
        let stored = stored_dtype(*dtype).unwrap_or(if *dtype == DType::S4 { Dtype::I8 } else { Dtype::U8 });
        Ok((name, TensorView::new(stored, dims.to_vec(), literal.bytes())?))
    });
    safetensors::serialize(views.collect::<Result<Vec<_>, SafeTensorError>>()?, Some(types))
}

/// The named values in the bytes of a safetensors file.
///
/// # Errors
/// It is no such file, or it has a type that no value can have.
pub fn from_bytes(bytes: &[u8]) -> Result<BTreeMap<String, Literal>, SafeTensorError> {
    /// The bytes of the length of the header.
    const LENGTH: usize = 8;
    let (header, metadata) = SafeTensors::read_metadata(bytes)?;
    let values = &bytes[LENGTH + header..];
    let types = metadata.metadata().as_ref();
    let value = |(name, info): (String, &TensorInfo)| {
        let stated = types.and_then(|types| DType::from_name(types.get(&name)?));
        let (dtype, shape, (start, end)) = (stated.or_else(|| own_dtype(info.dtype)), &info.shape, info.data_offsets);
        let data = &values[start..end];
        let literal = dtype.and_then(|dtype| Literal::from_bytes(TensorType::new(dtype, shape), data.to_vec()).ok());
        let unknown = || SafeTensorError::InvalidTensorView(info.dtype, shape.clone(), data.len());
        Ok((name, literal.ok_or_else(unknown)?))
    };
    metadata.tensors().into_iter().map(value).collect()
}
