//! Checkpoints: the whole state of a run in a folder, from which it goes on as if it had never stopped.
//!
//! ```text
//! CHECKPOINTS/
//!   step-00000120/                         complete: it has the name of a checkpoint
//!     manifest.json                        what there is, where, and of which run
//!     shard-00000-of-00008.safetensors ..  the values, one file for each device that had any to write
//!     SHA256SUMS                           of all the others; `sha256sum -c` checks it
//!   .tmp-step-00000130/                    being written, or left by a run that was killed
//!   .lock                                  held by the run that writes
//! ```
//!
//! **Saving.** Between two steps [`Checkpointer::save`] copies the state to the host, each part once; a thread writes it while training
//! goes on. Every file is on the disk (`fsync`) before the folder that names them is, that before the folder gets its name by a rename, and
//! that before any older checkpoint is deleted. So whenever the process or the machine stops, the folders `step-*` are complete.
//!
//! **Loading.** [`find`] takes the newest of them and checks every byte. Each device's part of each value is cut out of the stored
//! pieces by itself. Values are stored in one form, whatever the mesh, pipeline or layout of layers (`form.rs`), so another mesh, another
//! number of devices or another pipeline resumes from it.
//!
//! The step, the position in the data and all random numbers follow from the seed and the number of steps done, so parameters,
//! optimizer state and that number are all the state there is. On the same mesh a resumed run computes the same bits.

mod checkpointer;
mod error;
mod folder;
mod form;
mod manifest;
mod read;
mod run;
mod snapshot;
mod sums;
mod write;

pub use checkpointer::{Checkpointer, Start};
pub use error::CheckpointError;
pub use folder::{Observer, list};
pub use manifest::{About, DataPosition};
pub use read::{Checkpoint, Fallback, Found, find};

/// What a manifest says it is.
const FORMAT: &str = "meshloom checkpoint";

/// The version of the format.
const VERSION: u64 = 1;

const MANIFEST: &str = "manifest.json";

const SUMS: &str = "SHA256SUMS";

/// What the writer has just done. A process that dies after any of these leaves complete checkpoints alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The unfinished folder is there.
    FolderMade,
    /// A file of it has been handed to the system.
    FileWritten,
    /// That file is on the disk.
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
