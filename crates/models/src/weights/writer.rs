//! Writing weights to a folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use safetensors::Dtype;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::error::WeightsError;
use super::files::{INDEX, SINGLE};
use super::header::{self, byte_count};
use super::json::METADATA;

/// The most bytes of tensors in a file, as transformers has it by default: 5 GB.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// A tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: Dtype,
    /// The sizes of its dimensions; row-major.
    pub shape: Vec<usize>,
}

#[derive(Serialize)]
struct WrittenIndex<'a> {
    metadata: IndexMetadata,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct IndexMetadata {
    total_size: u64,
}

/// Writes weights into a folder that has none, as transformers does: all of them into `model.safetensors`, or, if they
/// are too large, into `model-00001-of-00003.safetensors` and so on with the index `model.safetensors.index.json`. A
/// file has at most `max_shard_bytes` of tensors ([`MAX_SHARD_BYTES`]), or one tensor that is larger. The folder is
/// made if need be.
///
/// `bytes_of` gives the bytes of each tensor, in this order: elements of its dtype, little-endian, in row-major order.
/// One tensor at a time is in memory.
///
/// The files have other names at first (`.model.safetensors.unfinished`), and an error deletes them. When they are on
/// the disk, `complete` may write what else belongs to the model; then they get their names, the index last. So a
/// folder that [`Weights::open`](super::Weights::open) accepts is complete, whenever the process or the machine stops.
///
/// # Errors
///
/// The folder has weights or is being written, it cannot be written, or a tensor cannot: its name is another's or
/// reserved, its bytes are not whole or too many to be counted, or they are not given. If a file cannot get its name,
/// files with their names may be left, but no index.
pub fn write_weights<E: From<WeightsError>>(
    folder: &Path,
    tensors: &[TensorSpec],
    max_shard_bytes: u64,
    mut bytes_of: impl FnMut(&TensorSpec) -> Result<Vec<u8>, E>,
    complete: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let shards = split(tensors, max_shard_bytes)?;
    fs::create_dir_all(folder).map_err(|source| failed("create", folder, source))?;
    expect_no_weights(folder)?;
    let mut files = Vec::with_capacity(shards.len());
    for (index, tensors) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        let entries = tensors.iter().map(|(spec, bytes)| (spec.name.as_str(), spec.dtype, &spec.shape[..], *bytes));
        let Some(header) = header::write(entries) else { return Err(WeightsError::HeaderTooLong(name).into()) };
        let file = unfinished(folder, &name, &header)?;
        files.push((name, file));
    }
    let (mut total_size, mut weight_map) = (0, BTreeMap::new());
    for (tensors, (name, file)) in shards.iter().zip(&files) {
        for &(spec, expected) in tensors {
            let bytes = bytes_of(spec)?;
            let found = bytes.len() as u64;
            if found != expected {
                return Err(WeightsError::Length { tensor: spec.name.clone(), expected, found }.into());
            }
            file.as_file().write_all(&bytes).map_err(|source| failed("write", &folder.join(name), source))?;
            total_size += found;
            weight_map.insert(spec.name.as_str(), name.as_str());
        }
        file.as_file().sync_all().map_err(|source| failed("sync", &folder.join(name), source))?;
    }
    complete()?;
    let index = serde_json::to_vec_pretty(&WrittenIndex { metadata: IndexMetadata { total_size }, weight_map });
    let index = index.map_err(|error| failed("write", &folder.join(INDEX), error.into()))?;
    let is_one = files.len() == 1;
    for (name, file) in files {
        publish(folder, &name, file)?;
    }
    sync_folder(folder)?;
    if !is_one {
        // The files have to be there before the index says so.
        let file = unfinished(folder, INDEX, &[&index[..], b"\n"].concat())?;
        file.as_file().sync_all().map_err(|source| failed("sync", &folder.join(INDEX), source))?;
        publish(folder, INDEX, file)?;
        sync_folder(folder)?;
    }
    Ok(())
}

/// Checks tensors, and splits them into those of each file, with their bytes.
fn split(tensors: &[TensorSpec], max_shard_bytes: u64) -> Result<Vec<Vec<(&TensorSpec, u64)>>, WeightsError> {
    let mut names: Vec<&str> = tensors.iter().map(|spec| spec.name.as_str()).collect();
    names.sort_unstable();
    let refused = |tensor: &str, reason| WeightsError::Declared { tensor: tensor.to_owned(), reason };
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(refused(pair[0], "there are two of this name; give each a name of its own"));
    }
    let mut shards = vec![Vec::new()];
    let (mut shard_bytes, mut total) = (0u64, 0u64);
    for spec in tensors {
        if spec.name == METADATA {
            return Err(refused(METADATA, "the format keeps this name for other things; give it another"));
        }
        let bytes = byte_count(spec.dtype, &spec.shape).and_then(|bytes| Some((bytes, total.checked_add(bytes)?)));
        let Some((bytes, sum)) = bytes.filter(|(_, sum)| *sum <= i64::MAX as u64) else {
            return Err(refused(&spec.name, "its bytes are not whole, or more than a disk holds; give another shape"));
        };
        total = sum;
        if shard_bytes > 0 && shard_bytes.saturating_add(bytes) > max_shard_bytes {
            shards.push(Vec::new());
            shard_bytes = 0;
        }
        shard_bytes += bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push((spec, bytes));
        }
    }
    Ok(shards)
}

fn expect_no_weights(folder: &Path) -> Result<(), WeightsError> {
    let failed = |source| failed("read", folder, source);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if file == INDEX || file.ends_with(".safetensors") {
            return Err(WeightsError::Occupied { folder: folder.to_owned(), file });
        }
    }
    Ok(())
}

/// Makes a file that begins so and does not have its name yet.
fn unfinished(folder: &Path, name: &str, begin: &[u8]) -> Result<NamedTempFile, WeightsError> {
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{name}");
    // No random letters: two writers must not write one folder, and what a killed one has left is to be noticed.
    builder.prefix(&prefix).suffix(".unfinished").rand_bytes(0);
    // Temporary files are else their owner's alone.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder).map_err(|source| {
        let path = folder.join(format!("{prefix}.unfinished"));
        match source.kind() {
            io::ErrorKind::AlreadyExists => WeightsError::Unfinished(path),
            _ => failed("create", &path, source),
        }
    })?;
    file.as_file().write_all(begin).map_err(|source| failed("write", &folder.join(name), source))?;
    Ok(file)
}

fn publish(folder: &Path, name: &str, file: NamedTempFile) -> Result<(), WeightsError> {
    let path = folder.join(name);
    file.persist(&path).map(drop).map_err(|error| failed("rename a file to", &path, error.error))
}

/// Waits until the names in a folder are on the disk.
fn sync_folder(folder: &Path) -> Result<(), WeightsError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| failed("sync", folder, source))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> WeightsError {
    WeightsError::Write { action, path: path.to_owned(), source }
}
