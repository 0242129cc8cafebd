//! Values that are a checkpoint of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::{self, Directory, Observer};
use super::snapshot::Snapshot;
use super::write::{self, Contents};
use super::{About, CheckpointError, form};
use crate::peers::Peers;
use meshloom::pjrt::Array;
use meshloom::trace::{Param, Tree};
use meshloom_models::published::ModelFiles;

/// Writes some values as a checkpoint of their own, the only one in its directory.
pub(crate) fn write_leaves(
    directory: &Path,
    about: About,
    (declared, values): (&impl Tree<Leaf = Param>, &impl Tree<Leaf = Array>),
    peers: Option<&dyn Peers>,
) -> Result<PathBuf, CheckpointError> {
    let is_first = peers.is_none_or(|peers| peers.number() == 0);
    if is_first {
        // The folder is left from an earlier call, of this run or another.
        match std::fs::remove_dir_all(directory) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(folder::failed("delete", directory, source));
            }
            _ => {}
        }
    }
    let directory = if is_first { Directory::open(directory)? } else { Directory::beside(directory) };
    let snapshot = Snapshot::take(&form::leaves(declared, "")?, &values.leaves())?;
    let contents = Contents { about, digests: Vec::new(), model: ModelFiles::default() };
    let observer: Observer = Arc::new(|_| {});
    write::write(&directory, contents, snapshot, (&observer, peers))
}
