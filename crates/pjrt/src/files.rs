//! Reading and writing files with errors that name them.

use std::io::{self, Read, Write};
use std::path::Path;

use meshloom_hlo::files;
use sha2::{Digest, Sha256};

use super::error::PjrtError;

/// How temporary files begin that become others when they are complete.
pub(super) const PARTIAL_PREFIX: &str = ".partial-";

/// SHA-256 of a file, in hexadecimal.
pub(super) fn file_sha256(path: &Path) -> Result<String, PjrtError> {
    let mut file = files::open(path).map_err(io_error("open", path))?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut chunk).map_err(io_error("read", path))?;
        if count == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&chunk[..count]);
    }
}

/// Writes a file so that it appears under its name only when it is complete and on disk.
pub(super) fn write_atomically(path: &Path, parts: &[&[u8]]) -> Result<(), PjrtError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(PARTIAL_PREFIX)
        .tempfile_in(directory)
        .map_err(io_error("create a temporary file in", directory))?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    written.and_then(|()| file.as_file().sync_all()).map_err(io_error("write", file.path()))?;
    file.persist(path).map_err(|error| io_error("rename a file to", path)(error.error))?;
    Ok(())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a [`PjrtError::Io`] about a path, for `map_err`.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PjrtError {
    let path = path.to_owned();
    move |source| PjrtError::Io { action, path, source }
}
