//! The directory of checkpoints: its names, who may write there, and when something is deleted.
//!
//! A checkpoint is a folder `step-00000120`. It gets that name when its contents are on disk, and loses it before any
//! of them is deleted. So a folder of that name is complete, whenever the run or the machine stopped.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::manifest::{Manifest, read_manifest};
use super::{CheckpointError, MANIFEST, Phase};
use crate::model_folder::{checkpoints, folder_name, step_of};

const UNFINISHED: &str = ".tmp-";
const TRASH: &str = ".trash-";
const SET_ASIDE: &str = "set-aside-";
const LOCK: &str = ".lock";

/// A function that is told what the writer has just done.
pub type Observer = std::sync::Arc<dyn Fn(Phase) + Send + Sync>;

/// An observer that is not interested.
pub(super) fn nobody() -> Observer {
    std::sync::Arc::new(|_| {})
}

/// The checkpoints of a directory with their steps, the oldest first. A checkpoint that is not complete has no name
/// yet, so it is not listed.
///
/// # Errors
/// The directory cannot be read.
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let directory = directory.as_ref();
    checkpoints(directory).map_err(|source| CheckpointError::Read { path: directory.to_owned(), source })
}

/// The manifest of a checkpoint. A checkpoint without a readable one counts neither as good nor as finite.
fn manifest_of(folder: &Path) -> Option<Manifest> {
    serde_json::from_slice(&read_manifest(&folder.join(MANIFEST)).ok()?).ok()
}

/// A directory that this process alone writes checkpoints to.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The lock on the directory, which the system releases when the process ends, however it ends. It is `None` if
    /// another process of the same run has the lock.
    lock: Option<File>,
}

impl Drop for Directory {
    /// Closing the file would not do: a process that another thread is about to start has the file as well, and with
    /// it the lock, until it runs its own program.
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            // An error is of no use to anybody here; the file is closed next.
            let _ = lock.unlock();
        }
    }
}

impl Directory {
    /// Creates the directory if necessary, locks it, and deletes what killed runs left unfinished.
    pub(super) fn open(path: &Path) -> Result<Directory, CheckpointError> {
        make_durable(path)?;
        let lock_path = path.join(LOCK);
        let opened = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = opened.map_err(|source| failed("create", &lock_path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(CheckpointError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed("lock", &lock_path, source)),
        }
        let directory = Directory { path: path.to_owned(), lock: Some(lock) };
        directory.clean()?;
        Ok(directory)
    }

    /// The directory of a run of several processes, whose first one has it open.
    pub(super) fn beside(path: &Path) -> Directory {
        Directory { path: path.to_owned(), lock: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn clean(&self) -> Result<(), CheckpointError> {
        let unreadable = |source| CheckpointError::Read { path: self.path.clone(), source };
        for entry in fs::read_dir(&self.path).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let left = name.strip_prefix(UNFINISHED).or_else(|| name.strip_prefix(TRASH));
            if left.and_then(|name| step_of(Path::new(name))).is_some() {
                fs::remove_dir_all(&path).map_err(|source| failed("delete", &path, source))?;
            }
        }
        Ok(())
    }

    /// The name that it gets when it is complete.
    pub(super) fn complete_name(&self, step: u64) -> PathBuf {
        self.path.join(folder_name(step))
    }

    pub(super) fn unfinished(&self, step: u64) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{}", folder_name(step)))
    }

    pub(super) fn start(&self, step: u64) -> Result<PathBuf, CheckpointError> {
        let folder = self.unfinished(step);
        fs::create_dir(&folder).map_err(|source| failed("create", &folder, source))?;
        Ok(folder)
    }

    /// Gives a folder in which everything is on the disk its name.
    pub(super) fn complete(&self, unfinished: &Path, step: u64, tell: &Observer) -> Result<PathBuf, CheckpointError> {
        let folder = self.complete_name(step);
        if folder.exists() {
            return Err(CheckpointError::Exists(folder));
        }
        fs::rename(unfinished, &folder).map_err(|source| failed("rename", unfinished, source))?;
        tell(Phase::Renamed);
        sync_folder(&self.path)?;
        tell(Phase::DirectorySynced);
        Ok(folder)
    }

    /// Deletes checkpoints, except for so many of the newest (0 keeps all), as many others with the lowest validation
    /// loss as `best` says, and the newest whose numbers are all finite.
    pub(super) fn retain(&self, newest: usize, best: usize, tell: &Observer) -> Result<(), CheckpointError> {
        let all = list(&self.path)?;
        let surplus = if newest == 0 { 0 } else { all.len().saturating_sub(newest) };
        if surplus == 0 {
            return Ok(());
        }
        let (mut finite, mut losses) = (None, Vec::new());
        for (index, (_, folder)) in all.iter().enumerate() {
            let Some(manifest) = manifest_of(folder) else { continue };
            finite = if manifest.not_finite.is_empty() { Some(index) } else { finite };
            losses.extend(manifest.about.validation_loss.map(|loss| (loss, index)));
        }
        losses.sort_by(|a: &(f64, usize), b| a.0.total_cmp(&b.0));
        losses.truncate(best);
        let is_kept = |index: usize| finite == Some(index) || losses.iter().any(|(_, best)| *best == index);
        for (_, (step, folder)) in all[..surplus].iter().enumerate().filter(|(index, _)| !is_kept(*index)) {
            let trash = self.path.join(format!("{TRASH}{}", folder_name(*step)));
            self.rename(folder, &trash)?;
            tell(Phase::OldRenamed);
            fs::remove_dir_all(&trash).map_err(|source| failed("delete", &trash, source))?;
            tell(Phase::OldDeleted);
        }
        Ok(())
    }

    /// Renames the checkpoints after a step, because a run that continues from that step writes them again. They are
    /// kept. Returns where they are.
    pub(super) fn set_aside_after(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut set_aside = Vec::new();
        for (later, folder) in list(&self.path)?.into_iter().filter(|(later, _)| *later > step) {
            let name = |count: usize| self.path.join(format!("{SET_ASIDE}{}.{count}", folder_name(later)));
            let Some(free) = (1..).map(name).find(|path| !path.exists()) else { continue };
            self.rename(&folder, &free)?;
            set_aside.push(free);
        }
        Ok(set_aside)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), CheckpointError> {
        fs::rename(from, to).map_err(|source| failed("rename", from, source))?;
        // Else, after a power failure, the old name could be back with a part of the files.
        sync_folder(&self.path)
    }
}

pub(super) fn failed(action: &'static str, path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::Write { action, path: path.to_owned(), source }
}

/// Waits until a folder's names are on the disk.
pub(super) fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| failed("sync", folder, source))
}

/// Makes a directory and those above it, and waits until their names are on the disk.
fn make_durable(path: &Path) -> Result<(), CheckpointError> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    fs::create_dir_all(path).map_err(|source| failed("create", path, source))?;
    for made in missing {
        match made.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent)?,
            _ => sync_folder(Path::new("."))?,
        }
    }
    Ok(())
}
