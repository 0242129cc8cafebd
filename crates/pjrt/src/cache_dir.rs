//! The folders where meshloom keeps what it has fetched and compiled. No other user may write to them.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::PjrtError;
use super::files::io_error;
use super::wheels::Wheel;

/// A folder for what meshloom keeps from run to run, by the name of what it keeps: below `$XDG_CACHE_HOME/meshloom`, or
/// `~/.cache/meshloom`. It is made if need be.
///
/// Plugins come from there, which run with the user's rights. So the folder `meshloom` must be the user's own, or
/// root's; others may neither write nor read what is below it (mode 0700).
///
/// # Errors
/// Neither variable is an absolute path, the folder cannot be made, or it belongs to somebody else.
pub fn user_cache_folder(name: &str) -> Result<PathBuf, PjrtError> {
    let root = user_cache_directory().ok_or(PjrtError::NoCacheFolder)?;
    make_private(&root)?;
    let folder = root.join(name);
    make_if_absent(&folder)?;
    Ok(folder)
}

/// The folder for all that meshloom keeps from run to run. It need not exist. The result is `None` if neither variable
/// is an absolute path.
pub fn user_cache_directory() -> Option<PathBuf> {
    Some(below_home("XDG_CACHE_HOME", ".cache")?.join("meshloom"))
}

/// A folder of the user's by the variable that names it, or by its place in the home folder.
pub(super) fn below_home(variable: &str, usual: &str) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(usual)))
}

/// Makes a folder, and those above it that are not there, for the user alone. One that is there must be the user's own,
/// and is made private, or root's, and must be so that others do not write it.
pub fn make_private(path: &Path) -> Result<(), PjrtError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(io_error("create", path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let found = path.metadata().map_err(io_error("read", path))?;
        let (owner, mode, user) = (found.uid(), found.mode() & 0o777, rustix::process::geteuid().as_raw());
        let refused = |reason: String| Err(PjrtError::NotPrivate { path: path.to_owned(), reason });
        if owner != user && owner != 0 {
            return refused(format!("it belongs to the user {owner}, and this is the user {user}"));
        }
        // Where the disk is read-only, others do not write either.
        if owner == user && mode & 0o077 != 0 && fs::set_permissions(path, fs::Permissions::from_mode(0o700)).is_ok() {
            return Ok(());
        }
        if mode & 0o022 != 0 {
            return refused(format!("others may write it (mode {mode:04o})"));
        }
    }
    Ok(())
}

/// Makes a folder for the user alone if it does not exist. An existing folder stays as it is: its place is the user's
/// choice, or the folder above it is private.
pub(super) fn make_if_absent(path: &Path) -> Result<(), PjrtError> {
    if path.is_dir() { Ok(()) } else { make_private(path) }
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

/// The Python to ask for packages and for pip. A virtual environment that is switched on is first in PATH, so this is
/// right there as well.
pub(super) const PYTHON: &str = "python3";
