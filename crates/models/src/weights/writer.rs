//! Writing weights to a folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use meshloom::hlo::suggest::did_you_mean;
use safetensors::Dtype;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::error::WeightsError;
use super::files::{INDEX, SINGLE};
use super::header::{self, byte_count};
use super::json::METADATA;
use super::natural::natural;

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

/// Writes weights into a folder, as transformers does: all of them into `model.safetensors`, or, if they are too large,
/// into `model-00001-of-00003.safetensors` and so on with the index `model.safetensors.index.json`.
///
/// All tensors are declared first. Then their bytes are given, in any number of pieces; those of one tensor in order,
/// tensors in any order. Nothing is kept in memory.
///
/// Until [`finish`](Self::finish) the files have other names (`.model.safetensors.unfinished`), and a writer that is
/// dropped deletes them. `finish` waits until they are on the disk and gives them their names, the index last. So a
/// folder that [`Weights::open`](super::Weights::open) accepts is complete, whenever the process or the machine stops.
#[derive(Debug)]
pub struct WeightsWriter {
    folder: PathBuf,
    shards: Vec<Shard>,
    slots: BTreeMap<String, Slot>,
}

/// A file being written.
#[derive(Debug)]
struct Shard {
    name: String,
    file: NamedTempFile,
}

/// The bytes of a tensor in its file that were not given yet.
#[derive(Debug)]
struct Slot {
    shard: usize,
    next: u64,
    end: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Index<'a> {
    metadata: IndexMetadata,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct IndexMetadata {
    total_size: u64,
}

impl WeightsWriter {
    /// Prepares the files of these tensors, in this order, in a folder that has no weights; makes the folder if need
    /// be. A file has at most `max_shard_bytes` of tensors ([`MAX_SHARD_BYTES`]), or one tensor that is larger.
    ///
    /// # Errors
    ///
    /// If the folder has weights or is being written, it cannot be written, or a tensor cannot: its name is another's
    /// or reserved, or its bytes are not whole or too many to be counted.
    pub fn create(folder: &Path, tensors: &[TensorSpec], max_shard_bytes: u64) -> Result<WeightsWriter, WeightsError> {
        let shards = split(tensors, max_shard_bytes)?;
        fs::create_dir_all(folder).map_err(|source| failed("create", folder, source))?;
        expect_no_weights(folder)?;
        let mut writer = WeightsWriter { folder: folder.to_owned(), shards: Vec::new(), slots: BTreeMap::new() };
        for (index, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => SINGLE.to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            writer.add(name, shard)?;
        }
        Ok(writer)
    }

    /// Writes the next bytes of a tensor: elements of its dtype, little-endian, in row-major order.
    ///
    /// # Errors
    ///
    /// If the tensor was not declared or has fewer bytes, or the file cannot be written.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), WeightsError> {
        let Some(slot) = self.slots.get_mut(name) else {
            let suggestion = did_you_mean(name, self.slots.keys().map(String::as_str));
            return Err(WeightsError::Undeclared { tensor: name.to_owned(), suggestion });
        };
        let count = bytes.len() as u64;
        let left = slot.end - slot.next;
        if count > left {
            let (expected, found) = (slot.bytes, slot.bytes - left + count);
            return Err(WeightsError::Excess { tensor: name.to_owned(), expected, found });
        }
        let Shard { name, file } = &self.shards[slot.shard];
        let failed = |source| failed("write", &self.folder.join(name), source);
        file.as_file().write_all_at(bytes, slot.next).map_err(failed)?;
        slot.next += count;
        Ok(())
    }

    /// Waits until all files are on the disk, and gives them their names.
    ///
    /// # Errors
    ///
    /// If a tensor lacks bytes: then nothing is left in the folder. If a file cannot be written or get its name: then
    /// files with their names may be left, but no index.
    pub fn finish(self) -> Result<(), WeightsError> {
        let incomplete = self.slots.iter().filter(|(_, slot)| slot.next < slot.end);
        let mut tensors: Vec<String> = incomplete.map(|(name, _)| name.clone()).collect();
        if !tensors.is_empty() {
            tensors.sort_by(|a, b| natural(a, b));
            return Err(WeightsError::Incomplete { tensors });
        }
        let WeightsWriter { folder, shards, slots } = self;
        let names: Vec<String> = shards.iter().map(|shard| shard.name.clone()).collect();
        for Shard { name, file } in &shards {
            file.as_file().sync_all().map_err(|source| failed("sync", &folder.join(name), source))?;
        }
        for shard in shards {
            publish(&folder, shard)?;
        }
        sync_folder(&folder)?;
        if names.len() == 1 {
            return Ok(());
        }

        // The files have to be there before the index says so.
        let weight_map = slots.iter().map(|(name, slot)| (name.as_str(), names[slot.shard].as_str())).collect();
        let total_size = slots.values().map(|slot| slot.bytes).sum();
        let index = Index { metadata: IndexMetadata { total_size }, weight_map };
        let failed = |source| failed("write", &folder.join(INDEX), source);
        let mut text = serde_json::to_vec_pretty(&index).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let file = unfinished(&folder, INDEX)?;
        file.as_file().write_all_at(&text, 0).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        publish(&folder, Shard { name: INDEX.to_owned(), file })?;
        sync_folder(&folder)
    }

    /// Makes a file with a header.
    fn add(&mut self, name: String, tensors: &[(&TensorSpec, u64)]) -> Result<(), WeightsError> {
        let entries = tensors.iter().map(|(spec, bytes)| (spec.name.as_str(), spec.dtype, &spec.shape[..], *bytes));
        let Some(header) = header::write(entries) else {
            return Err(WeightsError::HeaderTooLong { file: name });
        };
        let file = unfinished(&self.folder, &name)?;
        let written = file.as_file().write_all_at(&header, 0);
        written.map_err(|source| failed("write", &self.folder.join(&name), source))?;
        let mut next = header.len() as u64;
        for (spec, bytes) in tensors {
            let slot = Slot { shard: self.shards.len(), next, end: next + bytes, bytes: *bytes };
            next = slot.end;
            self.slots.insert(spec.name.clone(), slot);
        }
        self.shards.push(Shard { name, file });
        Ok(())
    }
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

/// Makes a file that does not have its name yet.
fn unfinished(folder: &Path, name: &str) -> Result<NamedTempFile, WeightsError> {
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{name}");
    // No random letters: two writers must not write one folder, and what a killed one has left is to be noticed.
    builder.prefix(&prefix).suffix(".unfinished").rand_bytes(0);
    // Temporary files are else their owner's alone.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(|source| {
        let path = folder.join(format!("{prefix}.unfinished"));
        match source.kind() {
            io::ErrorKind::AlreadyExists => WeightsError::Unfinished { path },
            _ => failed("create", &path, source),
        }
    })
}

/// Gives a file its name.
fn publish(folder: &Path, Shard { name, file }: Shard) -> Result<(), WeightsError> {
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
