//! Saving while training goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::folder::{self, Directory, Observer, nobody};
use super::read::PARAMS;
use super::snapshot::Snapshot;
use super::write::{self, Contents};
use super::{About, Checkpoint, CheckpointError, form};
use crate::config::CheckpointConfig;
use crate::peers::Peers;
use meshloom::ir::Literal;
use meshloom::pjrt::Array;
use meshloom::trace::{Param, Tree};
use meshloom_models::published::ModelFiles;

/// Writes checkpoints to a directory, one at a time, beside the training. No other process may write there meanwhile.
///
/// Dropping it waits for the last checkpoint, but its error is only logged: [`Checkpointer::finish`] returns it.
pub struct Checkpointer {
    directory: Arc<Directory>,
    every: u64,
    keep_newest: usize,
    keep_best: usize,
    /// The step of the newest checkpoint, on its way or complete.
    last: u64,
    writer: Option<Writer>,
    set_aside: Vec<PathBuf>,
    observer: Observer,
    /// The processes that write together, if there are several.
    peers: Option<Arc<dyn Peers>>,
}

struct Writer {
    step: u64,
    thread: JoinHandle<Result<(), CheckpointError>>,
}

/// The point that a run with checkpoints starts from.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// The first step.
    Fresh,
    /// The step after a checkpoint.
    After(&'a Checkpoint),
}

impl Checkpointer {
    /// Locks the directory of a config, creates it if necessary, and deletes what killed runs left unfinished.
    ///
    /// A run that continues from a checkpoint other than the newest renames the newer ones
    /// ([`Checkpointer::set_aside`]): it writes those steps again.
    ///
    /// # Errors
    /// The directory cannot be written, another run writes there, or it holds checkpoints of a run that this one does
    /// not continue.
    pub fn new(config: &CheckpointConfig, start: Start<'_>) -> Result<Checkpointer, CheckpointError> {
        Checkpointer::with_peers(config, start, None)
    }

    /// Does the same as [`Checkpointer::new`] for one of the processes of a run, which write together. Only the first
    /// process reads the directory. All must see it, so it is on a file system that their hosts share.
    ///
    /// # Errors
    /// The errors are those of [`Checkpointer::new`].
    pub fn with_peers(
        config: &CheckpointConfig,
        start: Start<'_>,
        peers: Option<Arc<dyn Peers>>,
    ) -> Result<Checkpointer, CheckpointError> {
        let path = Path::new(&config.dir);
        let is_first = peers.as_ref().is_none_or(|peers| peers.number() == 0);
        let directory = if is_first { Directory::open(path)? } else { Directory::beside(path) };
        let (mut last, mut set_aside) = (0, Vec::new());
        match start {
            Start::After(checkpoint) if is_in(checkpoint.folder(), directory.path()) => {
                last = checkpoint.about().step;
                if is_first {
                    set_aside = directory.set_aside_after(last)?;
                }
            }
            Start::Fresh | Start::After(_) if !is_first => {}
            Start::Fresh | Start::After(_) => {
                if let Some((step, _)) = folder::list(directory.path())?.pop() {
                    return Err(CheckpointError::Occupied { directory: directory.path().to_owned(), step });
                }
            }
        }
        Ok(Checkpointer {
            directory: Arc::new(directory),
            every: config.every as u64,
            keep_newest: config.keep,
            keep_best: config.keep_best,
            last,
            writer: None,
            set_aside,
            observer: nobody(),
            peers,
        })
    }

    /// Has a function told of all that is done. It runs on the thread that writes.
    #[must_use]
    pub fn observed(mut self, observer: Observer) -> Checkpointer {
        self.observer = observer;
        self
    }

    /// The new places of the checkpoints that are newer than the one that the run continues from.
    pub fn set_aside(&self) -> &[PathBuf] {
        &self.set_aside
    }

    /// Whether a checkpoint is to be saved after so many steps: whether a multiple of `checkpoint.every` was passed
    /// since the last.
    pub fn is_due(&self, step: u64) -> bool {
        self.every > 0 && step / self.every > self.last / self.every
    }

    /// The folder of the checkpoint after a step, when it is complete.
    pub fn folder_of(&self, step: u64) -> PathBuf {
        self.directory.complete_name(step)
    }

    /// Saves the state after a step: waits for the checkpoint before this one, copies the state to the host, and has it
    /// written. The state may change when this returns. A step that has its checkpoint is not saved again.
    ///
    /// # Errors
    /// The checkpoint before this one failed, two values have one path, safetensors files cannot hold one, or the
    /// plugin fails. A failure to write this checkpoint is reported by the next call.
    pub fn save(
        &mut self,
        about: About,
        declared: &impl Tree<Leaf = Param>,
        state: &impl Tree<Leaf = Array>,
    ) -> Result<(), CheckpointError> {
        self.save_with(Contents::of(about), declared, state)
    }

    /// Does the same as [`Checkpointer::save`], and records the data that the run read and the model that it trains.
    pub(crate) fn save_with(
        &mut self,
        contents: Contents,
        declared: &impl Tree<Leaf = Param>,
        state: &impl Tree<Leaf = Array>,
    ) -> Result<(), CheckpointError> {
        self.wait()?;
        let step = contents.about.step;
        if self.last == step && self.last > 0 {
            return Ok(());
        }
        let snapshot = Snapshot::take(&form::leaves(declared, "")?, &state.leaves())?;
        self.last = step;
        let (directory, observer) = (self.directory.clone(), self.observer.clone());
        let (newest, best) = (self.keep_newest, self.keep_best);
        let peers = self.peers.clone();
        let is_first = peers.as_ref().is_none_or(|peers| peers.number() == 0);
        let write = move || {
            let folder = write::write(&directory, contents, snapshot, (&observer, peers.as_deref()))?;
            tracing::debug!("wrote the checkpoint {}", folder.display());
            if is_first { directory.retain(newest, best, &observer) } else { Ok(()) }
        };
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        let thread = thread.map_err(|source| folder::failed("start a thread for", self.directory.path(), source))?;
        self.writer = Some(Writer { step, thread });
        Ok(())
    }

    /// Waits for the checkpoint under way, if there is one.
    ///
    /// # Errors
    /// The checkpoint cannot be written.
    pub fn wait(&mut self) -> Result<(), CheckpointError> {
        let Some(Writer { step, thread }) = self.writer.take() else { return Ok(()) };
        thread.join().unwrap_or(Err(CheckpointError::Writer(step)))
    }

    /// Waits for the last checkpoint and gives the directory back.
    ///
    /// # Errors
    /// The last checkpoint cannot be written.
    pub fn finish(mut self) -> Result<(), CheckpointError> {
        self.wait()
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::error!("{error}");
        }
    }
}

impl std::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let under_way = self.writer.as_ref().map(|writer| writer.step);
        f.debug_struct("Checkpointer")
            .field("directory", &self.directory.path())
            .field("last", &self.last)
            .field("under_way", &under_way)
            .finish_non_exhaustive()
    }
}

/// Whether a folder lies directly in a directory, however both are written.
fn is_in(folder: &Path, directory: &Path) -> bool {
    let parent = folder.canonicalize().ok().and_then(|folder| Some(folder.parent()?.to_owned()));
    parent.is_some() && parent == directory.canonicalize().ok()
}

/// Reads a whole parameter by its path and its dimensions.
pub(crate) type ParameterReader = Arc<dyn Fn(&str, &[usize]) -> Result<Literal, CheckpointError> + Send + Sync>;

/// Writes a checkpoint of parameters alone into a directory that has no checkpoints. Each value is read when it is
/// written.
pub(crate) fn write_parameters(
    directory: &Path,
    about: About,
    model: ModelFiles,
    declared: &impl Tree<Leaf = Param>,
    read: ParameterReader,
) -> Result<PathBuf, CheckpointError> {
    let directory = Directory::open(directory)?;
    if let Some((step, _)) = folder::list(directory.path())?.pop() {
        return Err(CheckpointError::Occupied { directory: directory.path().to_owned(), step });
    }
    let paths: Vec<String> = declared.paths();
    let leaves = form::leaves(declared, PARAMS)?;
    let snapshot = Snapshot::of_leaves(&leaves, BYTES_OF_FILE, |number| {
        let (read, path, dims) = (read.clone(), paths[number].clone(), leaves[number].own_ty.dims.clone());
        move || read(&path, &dims)
    })?;
    let contents = Contents { model, ..Contents::of(about) };
    write::write(&directory, contents, snapshot, (&nobody(), None))
}

/// About as many bytes of parameters are in a file.
const BYTES_OF_FILE: usize = 4 << 30;

/// Writes some values as a checkpoint of their own, the only one in its directory.
pub(crate) fn write_leaves(
    directory: &Path,
    about: About,
    (declared, values): (&impl Tree<Leaf = Param>, &impl Tree<Leaf = Array>),
    peers: Option<&dyn Peers>,
) -> Result<PathBuf, CheckpointError> {
    let is_first = peers.is_none_or(|peers| peers.number() == 0);
    // The folder is left from an earlier call, of this run or another.
    if is_first
        && let Err(source) = std::fs::remove_dir_all(directory)
        && source.kind() != std::io::ErrorKind::NotFound
    {
        return Err(folder::failed("delete", directory, source));
    }
    let directory = if is_first { Directory::open(directory)? } else { Directory::beside(directory) };
    let snapshot = Snapshot::take(&form::leaves(declared, "")?, &values.leaves())?;
    write::write(&directory, Contents::of(about), snapshot, (&nobody(), peers))
}
