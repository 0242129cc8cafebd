//! The files of a folder, and reading boxes of the tensors stored in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;

use super::decode;
use super::error::WeightsError;
use super::fault::{FileFault, IndexFault, MAX_HEADER_BYTES};
use super::header::{self, Stored};
use super::json::Entries;

/// The file of weights that are in one.
pub(crate) const SINGLE: &str = "model.safetensors";

/// The file that says which tensor is in which file.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The bytes that are read at once and decoded to numbers. They are a multiple of the size of each element, and fit in
/// a cache.
const PIECE_BYTES: usize = 1 << 18;

/// The files of a folder, all of them open.
#[derive(Debug)]
pub(crate) struct Files {
    pub folder: PathBuf,
    files: Vec<(String, File)>,
    bytes_read: AtomicU64,
}

/// The part of the index that matters. `metadata.total_size` does not: published ones are often wrong.
#[derive(Deserialize)]
struct Index {
    weight_map: Entries<String>,
}

impl Files {
    /// Opens the files of a folder, and reads their headers. Returns the stored tensors by name.
    pub fn open(folder: &Path) -> Result<(Files, BTreeMap<String, Stored>), WeightsError> {
        let mut files = Files { folder: folder.to_owned(), files: Vec::new(), bytes_read: AtomicU64::new(0) };
        let tensors = if is_there(&folder.join(SINGLE))? {
            let stored = files.add(SINGLE)?;
            stored.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
        } else if is_there(&folder.join(INDEX))? {
            files.add_all(&folder.join(INDEX))?
        } else {
            return Err(WeightsError::None(folder.to_owned()));
        };
        Ok((files, tensors))
    }

    /// The bytes of tensors read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Reads the elements of a box as numbers. The box must lie in the tensor and have as many elements as `out`.
    pub fn read_numbers(&self, tensor: &Stored, region: &[Range<usize>], out: &mut [f32]) -> Result<(), WeightsError> {
        let Some((size, decode)) = decode::decoder(tensor.dtype) else {
            return Err(WeightsError::NotNumbers { tensor: tensor.name.clone(), dtype: tensor.dtype });
        };
        let (_, file) = &self.files[tensor.file];
        let mut piece = vec![0; PIECE_BYTES.min(out.len() * size)];
        let mut out = out;
        for run in tensor.runs(region) {
            for start in run.clone().step_by(PIECE_BYTES / size) {
                let count = (run.end - start).min(PIECE_BYTES / size);
                let piece = &mut piece[..count * size];
                let read = file.read_exact_at(piece, tensor.bytes.start + (start * size) as u64);
                self.count(tensor, read, piece.len())?;
                let (numbers, rest) = std::mem::take(&mut out).split_at_mut(count);
                decode(piece, numbers);
                out = rest;
            }
        }
        Ok(())
    }

    /// Reads the bytes of a box. The box must lie in the tensor and have as many bytes as `out`.
    pub fn read_bytes(&self, tensor: &Stored, region: &[Range<usize>], out: &mut [u8]) -> Result<(), WeightsError> {
        let read = tensor.read(&self.files[tensor.file].1, element_bytes(tensor)?, region, out);
        self.count(tensor, read, out.len())
    }

    /// Counts bytes that were read of a tensor.
    fn count(&self, tensor: &Stored, read: io::Result<()>, bytes: usize) -> Result<(), WeightsError> {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        read.map_err(|source| unreadable(&self.folder.join(self.file(tensor)), source))
    }

    fn file(&self, tensor: &Stored) -> &str {
        &self.files[tensor.file].0
    }

    fn add(&mut self, name: &str) -> Result<Vec<Stored>, WeightsError> {
        let path = self.folder.join(name);
        let opened = header::open(&path, self.files.len());
        let (file, stored) = opened.map_err(|fault| match fault {
            FileFault::Read(source) => unreadable(&path, source),
            fault => WeightsError::File { path, fault },
        })?;
        self.files.push((name.to_owned(), file));
        Ok(stored)
    }

    /// Opens the files of an index, which must have the tensors that the index says, and no others.
    fn add_all(&mut self, index: &Path) -> Result<BTreeMap<String, Stored>, WeightsError> {
        let faulty = |fault| WeightsError::Index { path: index.to_owned(), fault };
        let map = read_index(index)?;
        if let Some((tensor, file)) = map.iter().find(|(_, file)| !is_plain(file)) {
            return Err(faulty(IndexFault::Outside { tensor: tensor.clone(), file: file.clone() }));
        }
        let mut tensors: BTreeMap<String, Stored> = BTreeMap::new();
        for file in map.values().collect::<BTreeSet<_>>() {
            if !is_there(&self.folder.join(file))? {
                return Err(faulty(IndexFault::MissingFile(file.clone())));
            }
            for tensor in self.add(file)? {
                let name = tensor.name.clone();
                if let Some(other) = tensors.insert(name.clone(), tensor) {
                    let first = self.file(&other).to_owned();
                    return Err(faulty(IndexFault::Duplicate { tensor: name, first, second: file.clone() }));
                }
            }
        }
        for (name, file) in &map {
            if tensors.get(name).is_none_or(|tensor| self.file(tensor) != file) {
                return Err(faulty(IndexFault::NotInFile { tensor: name.clone(), file: file.clone() }));
            }
        }
        match tensors.iter().find(|(name, _)| !map.contains_key(*name)) {
            None => Ok(tensors),
            Some((name, tensor)) => {
                Err(faulty(IndexFault::NotInIndex { tensor: name.clone(), file: self.file(tensor).to_owned() }))
            }
        }
    }
}

pub(crate) fn element_bytes(tensor: &Stored) -> Result<usize, WeightsError> {
    let bits = tensor.dtype.bitsize();
    let whole = bits.is_multiple_of(8).then_some(bits / 8);
    whole.ok_or_else(|| WeightsError::PartsOfBytes { tensor: tensor.name.clone(), dtype: tensor.dtype })
}

/// A buffer of zeros for elements of a tensor of this name.
///
/// # Errors
/// There is not enough memory.
pub fn buffer<T: Clone + Default>(tensor: &str, length: usize) -> Result<Vec<T>, WeightsError> {
    let mut buffer = Vec::new();
    let bytes = length.saturating_mul(size_of::<T>());
    buffer.try_reserve_exact(length).map_err(|_| WeightsError::Memory { tensor: tensor.to_owned(), bytes })?;
    buffer.resize(length, T::default());
    Ok(buffer)
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    let fault = |fault| WeightsError::Index { path: path.to_owned(), fault };
    let failed = |source| unreadable(path, source);
    let mut file = meshloom::hlo::files::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > MAX_HEADER_BYTES {
        return Err(fault(IndexFault::TooLong(length)));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(failed)?;
    let Index { weight_map: Entries(map) } =
        serde_json::from_slice(&text).map_err(|error| fault(IndexFault::Json(error)))?;
    Ok(map)
}

/// Whether there is an entry of this path, perhaps a link that leads nowhere.
fn is_there(path: &Path) -> Result<bool, WeightsError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(unreadable(path, source)),
    }
}

/// Whether a name that an author of weights gave can only be that of a file in the folder, on any system.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Component::Normal(first)) if first == name) && !name.contains(['/', '\\', ':', '\0'])
}

fn unreadable(path: &Path, source: io::Error) -> WeightsError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::InvalidInput => WeightsError::NotAFile(path),
        _ => WeightsError::Read { path, source },
    }
}
