//! Checkpoints: folders with the whole state of a run, from which it continues as if it had never stopped.
//!
//! ```text
//! CHECKPOINTS/
//!   step-00000120/                         complete: it has the name of a checkpoint
//!     manifest.json                        the files, their places, and the run
//!     model/                               config.json, tokenizer and so on of the published model that the run is of
//!     shard-00000-of-00008.safetensors ..  the values, one file for each device that had any to write
//!     SHA256SUMS                           of all the others; `sha256sum -c` checks it
//!   .tmp-step-00000130/                    being written, or left by a run that was killed
//!   .lock                                  held by the run that writes
//! ```
//!
//! **Saving.** Between two steps, [`Checkpointer::save`] copies the state to the host, each part once; a thread writes
//! it while training continues. The writer syncs every file (`fsync`), then the folder, then renames the folder, and
//! only then deletes an older checkpoint. So the folders `step-*` are complete whenever the process or the machine
//! stops.
//!
//! **Loading.** [`find`] takes the newest of them and checks every byte. Each device's part of each value is cut out of
//! the stored pieces on its own. Values are stored in one form, whatever the mesh, pipeline or layout of layers
//! (`form.rs`), so a run with another mesh, number of devices or pipeline can resume.
//!
//! The position in the data and all random numbers follow from the seed and the number of steps done. So the state
//! consists of parameters, optimizer state and that number. On the same mesh a resumed run computes the same bits.

mod checkpointer;
mod error;
mod folder;
mod form;
mod manifest;
mod read;
mod recorded;
mod snapshot;
mod sums;
mod write;

pub use checkpointer::{Checkpointer, Start};
pub(crate) use checkpointer::{ParameterReader, write_leaves, write_parameters};
pub use error::CheckpointError;
pub use folder::{Observer, list};
pub use manifest::{About, DataPosition};
pub(crate) use read::ParameterLeaves;
pub use read::{Checkpoint, Fallback, FoundCheckpoint, find};
pub use recorded::RecordedConfig;

pub(crate) use write::Contents;

/// The name of the format, which a manifest begins with.
const FORMAT: &str = "meshloom checkpoint";

const VERSION: u64 = 1;

pub(crate) const MANIFEST: &str = "manifest.json";

const SUMS: &str = "SHA256SUMS";

/// The action that the writer has just finished. If the process dies after any of them, the complete checkpoints stay
/// as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The unfinished folder has been made.
    FolderMade,
    /// A file of the folder has been handed to the system.
    FileWritten,
    /// The file is on the disk.
    FileSynced,
    /// The folder's list of files is on the disk.
    FolderSynced,
    /// The folder has the name of a checkpoint.
    Renamed,
    /// The name is on the disk.
    DirectorySynced,
    /// An older checkpoint has lost its name, on the disk.
    OldRenamed,
    /// Its files are deleted.
    OldDeleted,
}
