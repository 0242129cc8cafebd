//! Folders with a model, by the names in them: published models, checkpoints, and directories of checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use meshloom_models::families::CONFIG;

/// The file of a published model that says how text becomes tokens.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The folder of a checkpoint that has the files of the published model that its run is of.
pub(crate) const MODEL: &str = "model";

/// The prefix of the name of a complete checkpoint.
const COMPLETE: &str = "step-";

/// Says whether a folder is that of a published model.
pub(crate) fn is_published(folder: &Path) -> bool {
    folder.join(CONFIG).is_file()
}

/// The name of a checkpoint's folder.
pub(crate) fn folder_name(step: u64) -> String {
    format!("{COMPLETE}{step:08}")
}

/// The step that a folder's name says.
pub(crate) fn step_of(folder: &Path) -> Option<u64> {
    let name = folder.file_name()?.to_str()?;
    let step = name.strip_prefix(COMPLETE)?.parse().ok()?;
    (folder_name(step) == name).then_some(step)
}

/// The complete checkpoints of a directory with their steps, the oldest first.
pub(crate) fn checkpoints(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        found.extend(step_of(&path).map(|step| (step, path)));
    }
    found.sort();
    Ok(found)
}

/// Returns the folder of the published model that a checkpoint contains, or that the newest checkpoint in a directory
/// contains. Faults of the checkpoint are reported when it is opened.
pub(crate) fn model_folder(path: &Path) -> Option<PathBuf> {
    let newest = || Some(checkpoints(path).ok()?.pop()?.1);
    let of_checkpoint = |folder: PathBuf| Some(folder.join(MODEL)).filter(|folder| folder.is_dir());
    of_checkpoint(path.to_owned()).or_else(|| of_checkpoint(newest()?))
}
