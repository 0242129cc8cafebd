//! Files that somebody else may have made: opened without waiting, and read up to a limit.
//!
//! A name in a folder can be that of a pipe, whose opening waits for a writer, of a device that never ends, or of a
//! folder. All crates open what they are given by these functions, which take regular files alone. The exceptions are
//! the streams that the person who runs a program has opened for it and names so: `/dev/stdin`, `/dev/fd/N` and
//! `/proc/self/fd/N`, as a shell writes them for `<(command)`. A link that leads to one of them is not taken.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::message::{bytes_from_text, human_bytes};

/// The environment variable that raises all limits of sizes.
pub const MAX_SIZE: &str = "MESHLOOM_MAX_SIZE";

/// Bytes of a file of settings in JSON, at most: `config.json`. Real ones have some kilobytes.
pub const SETTINGS_BYTES: u64 = 4 << 20;

/// Bytes of a file that a person writes, at most: a run config, rules, hardware.
pub const WRITTEN_BYTES: u64 = 1 << 20;

/// Returns a limit in bytes: the usual one, or a larger one if [`MAX_SIZE`] says so.
pub fn limit(usual: u64) -> u64 {
    let raised = std::env::var(MAX_SIZE).ok().and_then(|text| bytes_from_text(&text));
    raised.map_or(usual, |raised| raised.max(usual))
}

/// Opens a file for reading. It never waits.
///
/// # Errors
/// There is no such file, it may not be read, or it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // To open a pipe would wait for a writer.
    check(path, &fs::metadata(path)?)?;
    let file = File::open(path)?;
    check(path, &file.metadata()?)?;
    Ok(file)
}

/// Reads a file of at most `usual` bytes, or the number that [`MAX_SIZE`] says if that is larger.
///
/// # Errors
/// As of [`open`]; or the file is larger.
pub fn read(path: &Path, usual: u64) -> io::Result<Vec<u8>> {
    let limit = limit(usual);
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        return Err(too_large(limit));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // A file may grow, and a pipe does not know its length.
    (&mut file).take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(too_large(limit)),
        false => Ok(bytes),
    }
}

/// As [`read`], for a file of UTF-8.
///
/// # Errors
/// As of [`read`]; or it is not UTF-8.
pub fn read_text(path: &Path, usual: u64) -> io::Result<String> {
    String::from_utf8(read(path, usual)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

fn too_large(limit: u64) -> io::Error {
    let limit = human_bytes(limit);
    let reason = format!("it has more than {limit}, the most that is read; {MAX_SIZE}=SIZE raises the limit");
    io::Error::new(ErrorKind::FileTooLarge, reason)
}

fn check(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    if kind.is_file() || !kind.is_dir() && is_own_stream(path) {
        return Ok(());
    }
    let what = if kind.is_dir() { "a folder" } else { "a pipe, socket or device" };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what}, and only regular files are read")))
}

/// Whether a path names a stream that is open in this process.
fn is_own_stream(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let number = path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/"));
    path == "/dev/stdin" || number.is_some_and(|number| number.parse::<u32>().is_ok())
}
