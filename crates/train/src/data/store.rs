//! The tokens of a file on disk: an entry of the token cache.
//!
//! An entry is one file: the tokens of all documents in little-endian integers of 1, 2 or 4 bytes, as the vocabulary
//! needs; where each document ends, counted in tokens, as 64-bit integers; what it is [`StoreAbout`], in JSON; the
//! length of that, 64 bits; and the SHA-256 of everything before. It is read by position rather than mapped into
//! memory: both read the system's page cache, but a file that becomes shorter is an error here and the end of the
//! process there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use meshloom::hlo::files;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::digest::{Hashing, hash_rest};
use super::documents::BadLine;
use super::error::{DataError, cache_error};

/// The version of the form; it is part of every key.
pub(super) const FORM: &str = "meshloom tokens 1";

/// The bytes that follow the description: its length, and the digest.
const TAIL: u64 = 8 + 32;

const OPEN_FILES: usize = 64;

/// The description of an entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoreAbout {
    /// Bytes of a token.
    pub(super) width: usize,
    pub(super) tokens: u64,
    pub(super) documents: u64,
    /// Bytes of text that the tokens stand for.
    pub(super) text_bytes: u64,
    /// Lines that were left out, and the first of them.
    pub(super) skipped: u64,
    pub(super) first_skipped: Option<BadLine>,
    /// How often each token occurs, of those that do.
    pub(super) counts: Vec<(u32, u64)>,
}

/// Writes an entry; it appears under its name when it is complete.
pub(super) struct EntryWriter {
    path: PathBuf,
    file: BufWriter<Hashing<NamedTempFile>>,
    ends: BufWriter<File>,
    counts: Vec<u64>,
    about: StoreAbout,
}

impl EntryWriter {
    /// Creates an entry for a tokenizer with `vocabulary` token values.
    pub(super) fn create(path: &Path, vocabulary: usize) -> Result<EntryWriter, DataError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let failed = cache_error("create a file for", path);
        let file = tempfile::Builder::new().prefix(".partial-").tempfile_in(folder).map_err(&failed)?;
        let ends = tempfile::tempfile_in(folder).map_err(&failed)?;
        let width = match vocabulary {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        };
        let about = StoreAbout {
            width,
            tokens: 0,
            documents: 0,
            text_bytes: 0,
            skipped: 0,
            first_skipped: None,
            counts: Vec::new(),
        };
        Ok(EntryWriter {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 18, Hashing { to: file, hash: Sha256::new() }),
            ends: BufWriter::new(ends),
            counts: vec![0; vocabulary],
            about,
        })
    }

    /// Adds a document, if it has tokens. `text_bytes` are those of its text.
    pub(super) fn add(&mut self, tokens: &[i32], text_bytes: usize) -> Result<(), DataError> {
        if tokens.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(tokens.len() * self.about.width);
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes()[..self.about.width]);
            if let Some(count) = self.counts.get_mut(*token as usize) {
                *count += 1;
            }
        }
        self.about.tokens += tokens.len() as u64;
        self.about.documents += 1;
        self.about.text_bytes += text_bytes as u64;
        let end = self.about.tokens.to_le_bytes();
        let written = self.file.write_all(&bytes).and_then(|()| self.ends.write_all(&end));
        written.map_err(cache_error("write", &self.path))
    }

    pub(super) fn skip(&mut self, line: BadLine) {
        self.about.skipped += 1;
        self.about.first_skipped.get_or_insert(line);
    }

    /// The rest of the file, and its name.
    pub(super) fn finish(mut self) -> Result<(), DataError> {
        let path = self.path.clone();
        let failed = cache_error("write", &path);
        let mut ends = self.ends.into_inner().map_err(|error| failed(error.into_error()))?;
        ends.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let counts = (0..).zip(&self.counts).filter(|(_, count)| **count > 0);
        self.about.counts = counts.map(|(token, count)| (token, *count)).collect();
        let about = serde_json::to_vec(&self.about).map_err(|error| failed(error.into()))?;
        io::copy(&mut ends, &mut self.file).map_err(&failed)?;
        let length = (about.len() as u64).to_le_bytes();
        self.file.write_all(&about).and_then(|()| self.file.write_all(&length)).map_err(&failed)?;
        let Hashing { to: mut file, hash } = self.file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.write_all(&hash.finalize()).map_err(&failed)?;
        // The file is not synced: if a crash damages it, the damage is detected, and the file is made again.
        file.persist(&path).map_err(|error| cache_error("rename a file to", &path)(error.error))?;
        Ok(())
    }
}

/// An entry that has been checked.
#[derive(Clone, Debug)]
pub(super) struct StoreEntry {
    /// Its place in the cache, which is the same for the same tokens.
    pub(super) path: PathBuf,
    pub(super) about: StoreAbout,
}

impl StoreEntry {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// There is no such file, or it is damaged.
    pub(super) fn open(path: &Path) -> io::Result<StoreEntry> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
        let mut file = files::open(path)?;
        let length = file.metadata()?.len();
        let hashed = length.checked_sub(32).ok_or_else(damaged)?;
        let hash = hash_rest(Sha256::new(), &mut Read::by_ref(&mut file).take(hashed))?;
        let mut digest = Vec::new();
        file.read_to_end(&mut digest)?;
        if digest[..] != hash[..] {
            return Err(damaged());
        }
        let mut about_length = [0; 8];
        file.read_exact_at(&mut about_length, length.checked_sub(TAIL).ok_or_else(damaged)?)?;
        let about_length = u64::from_le_bytes(about_length);
        let start = (length - TAIL).checked_sub(about_length).ok_or_else(damaged)?;
        let mut about = vec![0; about_length as usize];
        file.read_exact_at(&mut about, start)?;
        let about: StoreAbout = serde_json::from_slice(&about)?;
        Ok(StoreEntry { path: path.to_owned(), about })
    }
}

/// The entries of a source. Only a few are open at a time.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) entries: Vec<StoreEntry>,
    open: Mutex<HashMap<usize, Arc<File>>>,
}

impl Entries {
    pub(super) fn new(entries: Vec<StoreEntry>) -> Entries {
        Entries { entries, open: Mutex::new(HashMap::new()) }
    }

    pub(super) fn tokens(&self, entry: usize, range: Range<u64>) -> Result<Vec<i32>, DataError> {
        let width = self.entries[entry].about.width;
        let bytes = self.read(entry, range.start * width as u64, (range.end - range.start) as usize * width)?;
        let token = |bytes: &[u8]| {
            let mut number = [0; 4];
            number[..width].copy_from_slice(bytes);
            i32::from_le_bytes(number)
        };
        Ok(bytes.chunks_exact(width).map(token).collect())
    }

    /// Returns where documents of an entry end, in tokens: the end of the document before them, then their own ends.
    pub(super) fn ends(&self, entry: usize, documents: Range<u64>) -> Result<Vec<u64>, DataError> {
        let StoreAbout { width, tokens, .. } = self.entries[entry].about;
        let before = documents.start.saturating_sub(1);
        let bytes = self.read(entry, tokens * width as u64 + before * 8, (documents.end - before) as usize * 8)?;
        let ends = bytes.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end));
        let first = (documents.start == 0).then_some(0);
        Ok(first.into_iter().chain(ends).collect())
    }

    fn read(&self, entry: usize, offset: u64, count: usize) -> Result<Vec<u8>, DataError> {
        let path = &self.entries[entry].path;
        let mut bytes = vec![0; count];
        let file = self.file(entry).map_err(cache_error("open", path))?;
        file.read_exact_at(&mut bytes, offset).map_err(cache_error("read", path))?;
        Ok(bytes)
    }

    fn file(&self, entry: usize) -> io::Result<Arc<File>> {
        // A panic elsewhere cannot leave the map half-written.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&entry) {
            return Ok(file.clone());
        }
        if open.len() >= OPEN_FILES {
            open.clear();
        }
        let file = Arc::new(files::open(&self.entries[entry].path)?);
        open.insert(entry, file.clone());
        Ok(file)
    }
}
