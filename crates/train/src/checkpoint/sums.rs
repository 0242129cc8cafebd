//! Checksums: a file `SHA256SUMS` as `sha256sum` writes and checks it, with a line for every other file of a
//! checkpoint.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use meshloom::hlo::files;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::manifest::StoredFile;
use super::{CheckpointError, SUMS};
use crate::data::{hash_rest, hex};

/// The longest list that is read: a line for each of a million files.
const MAX_BYTES: u64 = 1 << 27;

pub(super) struct Sums {
    folder: PathBuf,
    by_name: HashMap<String, String>,
}

impl Sums {
    pub(super) fn read(folder: &Path) -> Result<Sums, CheckpointError> {
        let path = folder.join(SUMS);
        let damaged = |reason: String| CheckpointError::Damaged { path: path.clone(), reason };
        let text = files::read(&path, MAX_BYTES).map_err(|source| missing(&path, source))?;
        let text = String::from_utf8(text).map_err(|error| damaged(error.to_string()))?;
        let mut by_name = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let (sum, name) =
                line.split_once("  ").ok_or_else(|| damaged(format!("line {} has no checksum and name", index + 1)))?;
            by_name.insert(name.to_owned(), sum.to_owned());
        }
        Ok(Sums { folder: folder.to_owned(), by_name })
    }

    /// Checks bytes that have been read.
    pub(super) fn check_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.compare(name, &hex(&Sha256::digest(bytes)))
    }

    /// Reads files and checks them, the lengths of all of them first. Several threads: hashing is what takes the time.
    pub(super) fn check_files(&self, files: &[StoredFile]) -> Result<(), CheckpointError> {
        files.iter().try_for_each(|file| self.check_length(file))?;
        files.par_iter().try_for_each(|file| self.check_file(&file.name))
    }

    fn check_length(&self, file: &StoredFile) -> Result<(), CheckpointError> {
        let path = self.folder.join(&file.name);
        let metadata = fs::metadata(&path).map_err(|source| missing(&path, source))?;
        if metadata.is_file() && metadata.len() == file.bytes {
            return Ok(());
        }
        let reason = match metadata.is_file() {
            true => format!("it has {} bytes, but was written with {}", metadata.len(), file.bytes),
            false => "it is not a file".to_owned(),
        };
        Err(CheckpointError::Damaged { path, reason })
    }

    fn check_file(&self, name: &str) -> Result<(), CheckpointError> {
        let path = self.folder.join(name);
        let sum = files::open(&path).and_then(|mut file| hash_rest(Sha256::new(), &mut file));
        self.compare(name, &hex(&sum.map_err(|source| CheckpointError::Read { path, source })?))
    }

    fn compare(&self, name: &str, found: &str) -> Result<(), CheckpointError> {
        let damaged = |name: &str, reason| Err(CheckpointError::Damaged { path: self.folder.join(name), reason });
        match self.by_name.get(name) {
            None => damaged(SUMS, format!("it has no line for {name}")),
            Some(sum) if sum != found => damaged(name, format!("its SHA-256 is {found}, but {SUMS} has {sum}")),
            Some(_) => Ok(()),
        }
    }
}

/// A file that is not there has been lost; others cannot be read.
fn missing(path: &Path, source: io::Error) -> CheckpointError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::Damaged { path, reason: "it is missing".to_owned() },
        _ => CheckpointError::Read { path, source },
    }
}
