//! Bytes of files and of the standard input.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
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

/// Reads a file, or the standard input: at most the limit and one more byte, which shows that more follow.
pub fn read_all(path: &Path) -> Result<Vec<u8>> {
    let limit = streams::limits().input_bytes;
    if path == Path::new("-") {
        return streams::read(limit.saturating_add(1)).context("cannot read it");
    }
    let file = files::open(path).context("cannot open it")?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::with_capacity(length.min(limit) as usize);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).context("cannot read it")?;
    Ok(bytes)
}
