//! The list of files in a wheel. meshloom checks each file by it whenever the file is used.
//!
//! Each wheel has a file `RECORD` with the SHA-256 of every other (Python's "Binary distribution format"). The pinned
//! table has the SHA-256 of that file, so it decides over all: a plugin that was changed since it was fetched, or that
//! came into the cache in another way, is not loaded.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use meshloom_hlo::files;
use sha2::{Digest, Sha256};

use super::cache_dir::cached_path;
use super::error::PjrtError;
use super::files::{file_sha256, hex, io_error, write_atomically};
use super::wheels::{Companion, Package, Wheel};

/// The SHA-256 of each file of a wheel, in hexadecimal.
struct Record(BTreeMap<String, String>);

/// Where the record of a package lies in the cache: several packages may share a root.
pub fn path_of(package: &Package, root: &Path) -> PathBuf {
    root.join(format!("{}-{}.RECORD", package.name, package.version))
}

/// Whether a file of a wheel is its record.
pub(super) fn is_record(name: &str) -> bool {
    name.strip_suffix("/RECORD").is_some_and(|folder| folder.ends_with(".dist-info") && !folder.contains('/'))
}

/// The files that somebody needs of a wheel.
pub(super) enum Wanted<'a> {
    /// These files, by their names in it, and where they are to lie.
    Files(Vec<(String, PathBuf)>),
    /// A file below the root, and the parts that it needs: files, and folders, with a slash at their ends, with all
    /// that is below them.
    With { file: &'a str, parts: &'a [&'a str] },
}

impl Wanted<'_> {
    /// The files, of a wheel with these names that lies below a root. The one that others are needed for comes last, so
    /// if it is there, everything is.
    pub(super) fn files<'n>(&self, root: &Path, names: impl Iterator<Item = &'n str>) -> Vec<(String, PathBuf)> {
        match self {
            Wanted::Files(files) => files.clone(),
            Wanted::With { file, parts } => {
                let (folders, files): (Vec<&str>, Vec<&str>) = parts.iter().partition(|part| part.ends_with('/'));
                let below = |name: &&str| folders.iter().any(|folder| name.starts_with(folder));
                let is_further = |name: &&str| !name.ends_with('/') && name != file && !files.contains(name);
                let below = names.filter(below).filter(is_further).map(str::to_owned);
                let names = below.chain(files.iter().chain([file]).map(|&name| name.to_owned()));
                names.map(|name| (name.clone(), root.join(name))).collect()
            }
        }
    }

    /// Checks that all of it is below a root, as in the pinned wheel.
    pub(super) fn check(&self, package: &Package, root: &Path) -> Result<(), PjrtError> {
        let record = Record::read(package, root)?;
        record.check(root, &self.files(root, record.0.keys().map(String::as_str)))
    }
}

/// Bytes of a list of files, at most.
const RECORD_BYTES: u64 = 16 << 20;

impl Record {
    /// Reads the record of a package that lies below a root.
    fn read(package: &Package, root: &Path) -> Result<Record, PjrtError> {
        let path = path_of(package, root);
        let text = files::read(&path, RECORD_BYTES).map_err(io_error("read", &path))?;
        let failed = |reason: &str| PjrtError::NotPinned { path: path.clone(), reason: reason.to_owned() };
        if hex(&Sha256::digest(&text)) != package.record_sha256 {
            return Err(failed("it is not the list of files of the pinned wheel"));
        }
        let text = String::from_utf8(text).map_err(|_| failed("it is no text"))?;
        let line = |line: &str| {
            // `name,sha256=digest,size`; a name with a comma would be quoted, and none is.
            let (rest, _size) = line.rsplit_once(',')?;
            let (name, digest) = rest.rsplit_once(",sha256=")?;
            Some((name.to_owned(), hex(&URL_SAFE_NO_PAD.decode(digest).ok()?)))
        };
        Ok(Record(text.lines().filter_map(line).collect()))
    }

    /// Checks that files are as in the wheel. A file whose times, size and place are as when it was last checked is not
    /// read again: no call sets the time at which a file was changed. That holds as well, within a process, for one
    /// that was found to be another: a search asks for it several times.
    fn check(&self, root: &Path, files: &[(String, PathBuf)]) -> Result<(), PjrtError> {
        let stamps_path = root.join(STAMPS);
        let known = fs::read_to_string(&stamps_path).unwrap_or_default();
        let mut stamps: Vec<String> = known.lines().map(str::to_owned).collect();
        let count = stamps.len();
        for (name, path) in files {
            let failed = |reason: String| PjrtError::NotPinned { path: path.clone(), reason };
            let Some(expected) = self.0.get(name) else {
                return Err(failed(format!("the pinned wheel has no {name}")));
            };
            let stamp = stamp(path, expected).map_err(io_error("read", path))?;
            if stamps.contains(&stamp) {
                continue;
            }
            let known = wrong().iter().find(|(wrong, _)| *wrong == stamp).map(|(_, actual)| actual.clone());
            let actual = known.map_or_else(|| file_sha256(path), Ok)?;
            if actual != *expected {
                wrong().push((stamp, actual.clone()));
                let reason = format!("it has SHA-256 {actual}, and {name} of the pinned wheel has {expected}");
                return Err(failed(reason));
            }
            stamps.push(stamp);
        }
        if stamps.len() > count
            && let Err(error) = write_atomically(&stamps_path, &[(stamps.join("\n") + "\n").as_bytes()])
        {
            tracing::debug!("what was checked is not noted: {error}");
        }
        Ok(())
    }
}

/// The files that this process has found to be others than the pinned ones, by their stamps, with their SHA-256.
fn wrong() -> MutexGuard<'static, Vec<(String, String)>> {
    static WRONG: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
    WRONG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists the files that a plugin needs of its wheel and the companions, the object last. All lie below one root.
pub(super) fn wanted_of<'w>(cache: &Path, wheel: &'w Wheel) -> Vec<(&'w Package, Wanted<'w>)> {
    let root = wheel.package.root(cache);
    let companion = |companion: &'w Companion| {
        let files = companion.files.iter().map(|&file| (file.to_owned(), root.join(file))).collect();
        (&companion.package, Wanted::Files(files))
    };
    let object = (wheel.object.to_owned(), cached_path(cache, wheel));
    wheel.companions.iter().map(companion).chain([(&wheel.package, Wanted::Files(vec![object]))]).collect()
}

/// Checks that a plugin's wheel and its companions are in the cache, as the pinned ones have them.
pub fn check_cached(cache: &Path, wheel: &Wheel) -> Result<(), PjrtError> {
    let root = wheel.package.root(cache);
    wanted_of(cache, wheel).into_iter().try_for_each(|(package, wanted)| wanted.check(package, &root))
}

/// The file that says which files were checked.
const STAMPS: &str = ".checked";

/// Describes a file by its digest and by numbers of the file system that change whenever the file does.
fn stamp(path: &Path, digest: &str) -> io::Result<String> {
    let found = fs::metadata(path)?;
    #[cfg(unix)]
    let identity = {
        use std::os::unix::fs::MetadataExt;
        format!("{}:{}:{}:{}.{:09}", found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec())
    };
    // Without a time of change that only the system sets, each is read each time.
    #[cfg(not(unix))]
    let identity = format!("{:?}", found.accessed());
    Ok(format!("{digest} {identity}"))
}
