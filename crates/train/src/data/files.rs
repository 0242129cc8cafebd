//! The files that a config names: folders and globs are resolved, in an order that depends on names alone.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::MultiGzDecoder;
use glob::MatchOptions;
use meshloom::hlo::files;
use meshloom::hlo::message::human_bytes;
use sha2::{Digest, Sha256};

use super::digest::hash_rest;
use super::error::DataError;
use super::zstd;

/// The extensions that a folder is searched for. The extension of a compressed file may follow.
const ENDINGS: [&str; 4] = ["txt", "md", "jsonl", "ndjson"];

/// Formats that are not text: the first bytes, the name, and how to make text of it.
const NOT_TEXT: [(&[u8], &str, &str); 6] = [
    (b"\x1f\x8b", "a gzip file", "rename it, so that it ends in .gz"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "rename it, so that it ends in .zst"),
    (b"BZh", "a bzip2 file", "unpack it"),
    (b"\xfd7zXZ\0", "an xz file", "unpack it"),
    (b"PK\x03\x04", "a zip file", "unpack it"),
    (b"PAR1", "a Parquet file", "write its text to a file that ends in .jsonl"),
];

/// Bytes of text that any compressed file may have.
const FREE_BYTES: u64 = 16 << 20;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileFormat {
    /// Whether each line is a JSON object with a document.
    pub(super) is_json_lines: bool,
    compression: Compression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A file of text.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) format: FileFormat,
    /// The key of the config that names it.
    key: &'static str,
}

impl FileFormat {
    /// The format that a name stands for, and whether it ends like a file of text.
    fn of(path: &Path) -> (FileFormat, bool) {
        let ending = |path: &Path| path.extension().map(|ending| ending.to_ascii_lowercase());
        let compression = match ending(path) {
            Some(ending) if ending == "gz" => Compression::Gzip,
            Some(ending) if ending == "zst" => Compression::Zstd,
            _ => Compression::None,
        };
        let inner = match compression {
            Compression::None => ending(path),
            _ => ending(Path::new(path.file_stem().unwrap_or_default())),
        };
        let inner = inner.unwrap_or_default();
        let is_json_lines = inner == "jsonl" || inner == "ndjson";
        (FileFormat { is_json_lines, compression }, ENDINGS.iter().any(|ending| inner == *ending))
    }
}

impl SourceFile {
    fn new(key: &'static str, path: PathBuf) -> SourceFile {
        SourceFile { format: FileFormat::of(&path).0, path, key }
    }

    /// Returns a function for `map_err` that makes a [`DataError`] about this file.
    fn read_error(&self) -> impl Fn(io::Error) -> DataError + '_ {
        |source| DataError::Read { key: self.key, path: self.path.clone(), source }
    }

    /// Its bytes, as they are.
    pub(super) fn byte_count(&self) -> Result<u64, DataError> {
        Ok(fs::metadata(&self.path).map_err(self.read_error())?.len())
    }

    /// Refuses a file that is read as text but has another format. Any bytes make tokens, so nothing else would notice.
    pub(super) fn check_is_text(&self) -> Result<(), DataError> {
        if self.format != (FileFormat { is_json_lines: false, compression: Compression::None }) {
            return Ok(());
        }
        let mut start = Vec::new();
        let file = files::open(&self.path).map_err(self.read_error())?;
        file.take(8).read_to_end(&mut start).map_err(self.read_error())?;
        match NOT_TEXT.iter().find(|(bytes, ..)| start.starts_with(bytes)) {
            Some(&(_, form, advice)) => {
                Err(DataError::NotText { key: self.key, path: self.path.clone(), form, advice })
            }
            None => Ok(()),
        }
    }

    pub(super) fn digest(&self) -> Result<[u8; 32], DataError> {
        let digest = files::open(&self.path).and_then(|mut file| hash_rest(Sha256::new(), &mut file));
        digest.map_err(self.read_error())
    }

    /// Refuses a file that is no longer the one with this digest, after its text was read.
    pub(super) fn check_is_same(&self, read: Digesting, digest: &[u8; 32]) -> Result<(), DataError> {
        match read.finish().map_err(self.read_error())? == *digest {
            true => Ok(()),
            false => Err(DataError::Changed { key: self.key, path: self.path.clone() }),
        }
    }

    /// The text in it, and the digest of the file while it is read. `on_read` learns how many bytes of the file are
    /// read. A compressed file may have `expansion` times its size as text.
    pub(super) fn open<'a>(
        &self,
        on_read: impl Fn(u64) + Send + 'a,
        expansion: f64,
    ) -> Result<(Box<dyn BufRead + Send + 'a>, Digesting), DataError> {
        let file = files::open(&self.path).map_err(self.read_error())?;
        let digesting = Digesting { file: file.try_clone().map_err(self.read_error())?, hash: Arc::default() };
        let file = BufReader::with_capacity(1 << 18, Counted { file, on_read, hash: digesting.hash.clone() });
        let most = ((self.byte_count()? as f64 * expansion) as u64).max(FREE_BYTES);
        let text: Box<dyn BufRead + Send + 'a> = match self.format.compression {
            Compression::None => Box::new(file),
            Compression::Gzip => {
                Box::new(BufReader::new(Bounded { text: MultiGzDecoder::new(file), most, left: most }))
            }
            Compression::Zstd => Box::new(BufReader::new(Bounded { text: zstd::Decoder::new(file), most, left: most })),
        };
        Ok((text, digesting))
    }
}

/// The files that a path or glob stands for. For a folder, these are the files below it with an extension of text,
/// sorted by name. Hidden files are left out.
pub(super) fn find(key: &'static str, pattern: &str) -> Result<Vec<SourceFile>, DataError> {
    let path = Path::new(pattern);
    let read_error = |source| DataError::Read { key, path: path.to_owned(), source };
    let no_files = |reason: String| DataError::NoFiles { key, pattern: pattern.to_owned(), reason };
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => match in_folder(key, path)? {
            files if files.is_empty() => {
                let endings = ENDINGS.map(|ending| format!(".{ending}")).join(", ");
                Err(no_files(format!("no file below it ends in one of {endings}, alone or with .gz or .zst")))
            }
            files => Ok(files),
        },
        Ok(_) => Ok(vec![SourceFile::new(key, path.to_owned())]),
        Err(_) if pattern.contains(['*', '?', '[']) => {
            // As a folder's hidden files are left out, so are they here, unless the glob names the dot.
            let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
            let matches =
                glob::glob_with(pattern, options).map_err(|error| no_files(format!("it is no glob: {error}")))?;
            let mut files = Vec::new();
            for found in matches {
                let found = found.map_err(|error| {
                    let path = error.path().to_owned();
                    DataError::Read { key, path, source: error.into() }
                })?;
                match found.is_dir() {
                    true => files.extend(in_folder(key, &found)?),
                    false => files.push(SourceFile::new(key, found)),
                }
            }
            if files.is_empty() { Err(no_files("no file matches it".to_owned())) } else { Ok(files) }
        }
        Err(error) => Err(read_error(error)),
    }
}

fn in_folder(key: &'static str, folder: &Path) -> Result<Vec<SourceFile>, DataError> {
    let read_error = |source| DataError::Read { key, path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = entries.map_err(read_error)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        // A link to a folder could lead back here, so none is followed.
        if entry.file_type().map_err(read_error)?.is_dir() {
            files.extend(in_folder(key, &path)?);
        } else if FileFormat::of(&path).1 && !path.is_dir() {
            files.push(SourceFile::new(key, path));
        }
    }
    Ok(files)
}

/// SHA-256 of a file while it is read.
pub(super) struct Digesting {
    /// It shares its place with the file that is read.
    file: File,
    hash: Arc<Mutex<Sha256>>,
}

impl Digesting {
    /// Returns the digest of the whole file. It first reads the bytes that the decoder has left, such as those behind
    /// the end of a compressed text.
    fn finish(mut self) -> io::Result<[u8; 32]> {
        let hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hash_rest(hash, &mut self.file)
    }
}

/// Decompressed text, which ends with an error if there is too much of it.
struct Bounded<R> {
    text: R,
    most: u64,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.text.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let most = human_bytes(self.most);
            let reason = format!("decompressed, it has more than {most}; data.max_expansion raises the limit");
            io::Error::new(io::ErrorKind::FileTooLarge, reason)
        })?;
        Ok(count)
    }
}

/// A file that tells how much of it is read, and what.
struct Counted<F> {
    file: File,
    on_read: F,
    hash: Arc<Mutex<Sha256>>,
}

impl<F: Fn(u64)> Read for Counted<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).update(&buffer[..count]);
        (self.on_read)(count as u64);
        Ok(count)
    }
}
