//! Where meshloom keeps what it has fetched and compiled.

use std::path::{Path, PathBuf};

use super::wheels::Wheel;

/// The folder for what meshloom keeps from run to run: `$XDG_CACHE_HOME/meshloom`, or below `~/.cache`. None where
/// neither variable is an absolute path.
pub fn user_cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("meshloom"))
}

/// meshloom's plugin cache.
pub(super) fn default_cache_directory() -> Option<PathBuf> {
    Some(user_cache_directory()?.join("plugins"))
}

/// Where a wheel's shared object lies in the cache. One with companions lies as deep as an installation would have it,
/// because that is from where it looks for them.
pub fn cached_path(cache: &Path, wheel: &Wheel) -> PathBuf {
    let object = Path::new(wheel.object);
    match (wheel.companions, object.file_name()) {
        ([], Some(name)) => wheel.package.root(cache).join(name),
        _ => wheel.package.root(cache).join(object),
    }
}

/// The first file of a wheel's companions that is not in the cache.
pub fn missing_companion(cache: &Path, wheel: &Wheel) -> Option<PathBuf> {
    let files = wheel.companions.iter().flat_map(|companion| companion.files);
    files.map(|file| wheel.package.root(cache).join(file)).find(|path| !path.is_file())
}

/// The Python to ask for packages and for pip. A virtual environment that is switched on is first in PATH, so this is
/// right there as well.
pub(super) const PYTHON: &str = "python3";
