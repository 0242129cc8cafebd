//! Bytes of files and of the standard input.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use meshloom_hlo::files;

use crate::streams;

pub const STANDARD_INPUT: &str = "standard input";

/// Returns the name that messages give the path of an input.
pub fn name(path: &Path) -> String {
    if path == Path::new("-") { STANDARD_INPUT.to_owned() } else { shown(&path.display().to_string()) }
}

/// Returns a name, or its pseudonym if names are secret.
pub fn shown(name: &str) -> String {
    streams::redacted(|redaction| redaction.text(name)).unwrap_or_else(|| name.to_owned())
}

/// Returns the path at which a file or folder is opened. Where a command may read below one folder only, links are
/// followed first, and a path that leads out of it is an error: the same one, whether something is there or not.
pub fn admitted(path: &Path) -> Result<Cow<'_, Path>> {
    let Some(folder) = streams::below() else { return Ok(path.into()) };
    if path == Path::new("-") {
        bail!("the standard input of `hlo-dump mcp` has the requests, so no program is read from it; name a file");
    }
    let place = folder.join(path);
    let nearest = place.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    if !nearest.is_some_and(|nearest| nearest.starts_with(&folder)) {
        bail!("`hlo-dump mcp` reads only files below the folder that it was started in, {}", folder.display());
    }
    Ok(place.canonicalize().context("cannot open it")?.into())
}

/// Whether a path is that of a folder which the command may read.
pub fn is_folder(path: &Path) -> bool {
    admitted(path).is_ok_and(|place| place.is_dir())
}

/// Reads a file, or the standard input: at most the limit and one more byte, which shows that more follow.
pub fn read_all(path: &Path) -> Result<Vec<u8>> {
    let limit = streams::limits().input_bytes;
    if path == Path::new("-") {
        return streams::read(limit.saturating_add(1)).context("cannot read it");
    }
    let file = files::open(&admitted(path)?).context("cannot open it")?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::with_capacity(length.min(limit) as usize);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).context("cannot read it")?;
    Ok(bytes)
}
