//! The user's key, by which entries of caches are known to be the user's own.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hmac::{Hmac, KeyInit, Mac};
use meshloom_hlo::files;
use sha2::Sha256;

use super::cache_dir::{below_home, make_if_absent};
use super::error::PjrtError;
use super::files::io_error;

/// Bytes of a key: a block of SHA-256.
const BYTES: usize = 64;

/// Bytes of a signature.
pub(super) const SIGNATURE: usize = 32;

/// The variable that names the key's file: for hosts that share a cache, but no home folder.
const VARIABLE: &str = "MESHLOOM_KEY";

/// A secret that signs what a cache keeps. A compiled program is machine code: another user who could add one to a
/// cache could run anything. So an entry without a signature by this key counts as missing.
#[derive(Clone)]
pub struct Key([u8; BYTES]);

impl Key {
    /// The user's key: the file that `MESHLOOM_KEY` names, or `$XDG_CONFIG_HOME/meshloom/key`, or
    /// `~/.config/meshloom/key`. It is made at first use, and read once by a process.
    pub(super) fn of_user() -> Result<Key, PjrtError> {
        static KEY: OnceLock<Key> = OnceLock::new();
        if let Some(key) = KEY.get() {
            return Ok(key.clone());
        }
        let path = match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(path),
            None => below_home("XDG_CONFIG_HOME", ".config").ok_or(PjrtError::NoKey)?.join("meshloom/key"),
        };
        let key = Key::at(&path)?;
        Ok(KEY.get_or_init(|| key).clone())
    }

    /// The key in a file. The file is made if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read or made, is not a key, or can be read by others.
    pub fn at(path: &Path) -> Result<Key, PjrtError> {
        if !path.exists() {
            make(path)?;
        }
        let wrong = |reason: &str| PjrtError::Key { path: path.to_owned(), reason: reason.to_owned() };
        let file = files::open(path).map_err(io_error("read", path))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let found = file.metadata().map_err(io_error("read", path))?;
            if found.mode() & 0o077 != 0 {
                return Err(wrong(
                    "others can read it: run `chmod 600` on it, or delete it if others may have read it",
                ));
            }
        }
        let mut key = Vec::new();
        file.take(BYTES as u64 + 1).read_to_end(&mut key).map_err(io_error("read", path))?;
        let key = key.try_into().map_err(|_| wrong("it has not the 64 bytes of a key: delete it, and one is made"))?;
        Ok(Key(key))
    }

    /// The signature of an entry by its name.
    pub fn sign(&self, name: &str, entry: &[u8]) -> [u8; SIGNATURE] {
        self.mac(name, entry).finalize().into_bytes().into()
    }

    /// Whether a signature is that of an entry by its name.
    pub(super) fn has_signed(&self, name: &str, entry: &[u8], signature: &[u8]) -> bool {
        self.mac(name, entry).verify_slice(signature).is_ok()
    }

    fn mac(&self, name: &str, entry: &[u8]) -> Hmac<Sha256> {
        Hmac::<Sha256>::new(&self.0.into()).chain_update(name).chain_update([0]).chain_update(entry)
    }
}

/// Makes a key, unless another process has just done so.
fn make(path: &Path) -> Result<(), PjrtError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_if_absent(folder)?;
    let mut key = [0; BYTES];
    getrandom::fill(&mut key).map_err(|error| io_error("draw", path)(io::Error::other(error)))?;
    // The file is for the user alone, as temporary files are.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io_error("create a temporary file in", folder))?;
    file.write_all(&key).and_then(|()| file.as_file().sync_all()).map_err(io_error("write", path))?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(io_error("create", path)(error.error)),
        _ => Ok(()),
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}
