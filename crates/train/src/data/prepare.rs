//! Files to entries of the token cache: each file is taken apart once, by all processors.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::digest::hex;
use super::documents::{BadLine, Unit, Units};
use super::error::{DataError, cache_error};
use super::files::SourceFile;
use super::store::{EntryWriter, FORM, StoreEntry};
use crate::config::{BadLines, DataConfig};
use crate::tokenizer::Tokenizer;
use meshloom::pjrt::user_cache_folder;

/// Bytes of text that are taken apart at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// The progress of tokenizing the files, in bytes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokenized {
    /// The bytes that are done.
    pub done: u64,
    /// The bytes of all files.
    pub total: u64,
}

/// Lines of a file that were left out, because `data.bad_lines` is `skip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedLines {
    /// The file.
    pub path: PathBuf,
    /// The number of such lines.
    pub count: u64,
    /// The first of them, from 1.
    pub line: u64,
    /// The fault of that line.
    pub reason: String,
}

pub(super) struct Prepared {
    /// The entries of the cache, one for each file.
    pub(super) entries: Vec<StoreEntry>,
    pub(super) digests: Vec<[u8; 32]>,
    pub(super) skipped: Vec<SkippedLines>,
    /// The number of files that were not in the cache.
    pub(super) tokenized: usize,
}

/// How documents become tokens.
pub(super) struct Settings<'a> {
    pub(super) data: &'a DataConfig,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) on_progress: &'a (dyn Fn(Tokenized) + Sync),
}

impl Settings<'_> {
    /// The entries of files, made where they are not there.
    pub(super) fn prepare(&self, files: &[SourceFile]) -> Result<Prepared, DataError> {
        let folder = cache_folder(&self.data.cache)?;
        fs::create_dir_all(&folder).map_err(cache_error("create", &folder))?;
        let place = |file: &SourceFile| {
            file.check_is_text()?;
            let digest = file.digest()?;
            Ok((folder.join(format!("{}.tokens", self.key(file, &digest))), digest))
        };
        let places = files.par_iter().map(place).collect::<Result<Vec<_>, DataError>>()?;
        let (places, digests): (Vec<PathBuf>, Vec<[u8; 32]>) = places.into_iter().unzip();
        let found: Vec<Option<StoreEntry>> = places.par_iter().map(|place| self.find(place)).collect();
        let places = || files.iter().zip(&places).zip(&digests);
        let absent: Vec<_> = places().zip(&found).filter(|(_, found)| found.is_none()).map(|(it, _)| it).collect();
        let sizes = absent.iter().map(|((file, _), _)| file.byte_count());
        let (done, total) = (AtomicU64::new(0), sizes.sum::<Result<u64, DataError>>()?);
        let on_read = |count| {
            let done = done.fetch_add(count, Ordering::Relaxed) + count;
            (self.on_progress)(Tokenized { done, total });
        };
        let make = |((file, place), digest): &((&SourceFile, &PathBuf), &[u8; 32])| {
            self.tokenize((file, digest), place, &on_read)
        };
        let tokenized = absent.len();
        let made = absent.into_par_iter().map(|absent| make(&absent)).collect::<Result<Vec<StoreEntry>, _>>()?;
        let mut made = made.into_iter();
        let entries: Vec<StoreEntry> = found.into_iter().filter_map(|found| found.or_else(|| made.next())).collect();
        let skipped = files.iter().zip(&entries).filter_map(|(file, entry)| {
            let BadLine { line, reason } = entry.about.first_skipped.clone()?;
            Some(SkippedLines { path: file.path.clone(), count: entry.about.skipped, line, reason })
        });
        Ok(Prepared { skipped: skipped.collect(), entries, digests, tokenized })
    }

    /// Everything that the tokens of a file depend on. `digest` is that of the file.
    fn key(&self, file: &SourceFile, digest: &[u8; 32]) -> String {
        let mut hash = Sha256::new();
        for part in [
            FORM.as_bytes(),
            digest,
            &self.tokenizer.digest(),
            format!("{:?}", file.format).as_bytes(),
            // Only lines of JSON have fields.
            if file.format.is_json_lines { self.data.field.as_bytes() } else { b"" },
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hex(&hash.finalize())
    }

    /// An entry that can be used: where bad lines are errors, not one that leaves out some.
    fn find(&self, place: &Path) -> Option<StoreEntry> {
        let allows = |entry: &StoreEntry| entry.about.skipped == 0 || self.data.bad_lines == BadLines::Skip;
        match StoreEntry::open(place) {
            Ok(entry) => Some(entry).filter(allows),
            Err(error) => {
                if error.kind() != std::io::ErrorKind::NotFound {
                    tracing::warn!("{} cannot be used ({error}); tokenizing again", place.display());
                }
                None
            }
        }
    }

    /// Makes the entry of a file, which is kept under the file's digest. The bytes that are read must have this digest.
    fn tokenize(
        &self,
        (file, digest): (&SourceFile, &[u8; 32]),
        place: &Path,
        on_read: &(dyn Fn(u64) + Sync),
    ) -> Result<StoreEntry, DataError> {
        let (mut units, digesting) = Units::of(file, on_read, self.data.max_expansion)?;
        let mut writer = EntryWriter::create(place, self.tokenizer.vocabulary_size())?;
        loop {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while bytes < CHUNK_BYTES
                && let Some(unit) = units.next()?
            {
                bytes += unit.bytes.len();
                chunk.push(unit);
            }
            if chunk.is_empty() {
                break;
            }
            let encoded = chunk.into_par_iter().map(|unit| self.encode(file, unit)).collect::<Vec<_>>();
            for document in encoded {
                let Encoded { tokens, text_bytes, bad } = document?;
                for line in bad {
                    if self.data.bad_lines == BadLines::Error {
                        let BadLine { line, reason } = line;
                        return Err(DataError::Line { path: file.path.clone(), line, reason });
                    }
                    writer.skip(line);
                }
                writer.add(&tokens, text_bytes)?;
            }
        }
        file.check_is_same(digesting, digest)?;
        writer.finish()?;
        StoreEntry::open(place).map_err(cache_error("read", place))
    }

    fn encode(&self, file: &SourceFile, unit: Unit) -> Result<Encoded, DataError> {
        let (text, bad) = match file.format.is_json_lines {
            true => match unit.field(&self.data.field) {
                Ok(text) => (text, Vec::new()),
                Err(bad) => (String::new(), vec![bad]),
            },
            false if self.tokenizer.is_bytes() => {
                let tokens: Vec<i32> = unit.bytes.iter().map(|&byte| byte.into()).collect();
                return Ok(Encoded { text_bytes: tokens.len(), tokens, bad: Vec::new() });
            }
            false => unit.characters(),
        };
        Ok(Encoded { tokens: self.tokenizer.encode(&text)?, text_bytes: text.len(), bad })
    }
}

/// A document, and lines of its unit that cannot be used.
struct Encoded {
    tokens: Vec<i32>,
    text_bytes: usize,
    bad: Vec<BadLine>,
}

fn cache_folder(named: &str) -> Result<PathBuf, DataError> {
    if !named.is_empty() {
        return Ok(PathBuf::from(named));
    }
    user_cache_folder("tokens").map_err(|error| DataError::NoCacheFolder(error.to_string()))
}
