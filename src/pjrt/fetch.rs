//! Fetching a pinned wheel and keeping its shared object in meshloom's cache.
//!
//! Any number of processes may do this at once: one downloads while the others wait for its lock, and the object appears
//! under its final name only when it is complete, checked and on disk.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::error::PjrtError;
use super::wheels::Wheel;

/// meshloom's plugin cache: `$XDG_CACHE_HOME/meshloom/plugins`, or below `~/.cache`.
pub(super) fn default_cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("meshloom/plugins"))
}

/// Where a wheel's shared object lies in the cache.
pub(super) fn cached_path(cache: &Path, wheel: &Wheel) -> PathBuf {
    let name = Path::new(wheel.object).file_name().unwrap_or(wheel.object.as_ref());
    cache.join(format!("{}-{}", wheel.name, wheel.version)).join(name)
}

/// Downloads, checks and unpacks a wheel; returns the path of its shared object in the cache. What is there already stays,
/// unless it is to be replaced.
pub(super) fn fetch(cache: &Path, wheel: &Wheel, replace: bool) -> Result<PathBuf, PjrtError> {
    let target = cached_path(cache, wheel);
    let directory = target.parent().unwrap_or(cache);
    fs::create_dir_all(directory).map_err(io_error("create", directory))?;
    // The lock is of the operating system: it goes when the process that holds it does, however that ends.
    let lock_path = cache.join(format!(".{}-{}.lock", wheel.name, wheel.version));
    let lock = File::create(&lock_path).map_err(io_error("create", &lock_path))?;
    lock.lock().map_err(io_error("lock", &lock_path))?;
    if target.is_file() && !replace {
        return Ok(target);
    }
    let scratch = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(cache)
        .map_err(io_error("create a temporary folder in", cache))?;
    let progress = Progress::new(wheel);
    let file = download(wheel, scratch.path(), &progress)?;
    check_sha256(wheel, &file)?;
    unpack(wheel, &file, scratch.path(), &target, &progress)?;
    progress.bar.finish_and_clear();
    tracing::info!("{} is in {}", wheel.requirement(), target.display());
    Ok(target)
}

/// A bar where somebody can see it, one line for the log where nobody can.
struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new(wheel: &Wheel) -> Progress {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(wheel.byte_count) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(format!("fetching {}", wheel.requirement()));
        if bar.is_hidden() {
            tracing::info!("fetching {} ({} MB) from PyPI", wheel.requirement(), wheel.byte_count / 1_000_000);
        }
        Progress { bar }
    }
}

/// Runs `pip download` and shows how far it is, by the size of the files it has written so far.
fn download(wheel: &Wheel, scratch: &Path, progress: &Progress) -> Result<PathBuf, PjrtError> {
    let failed = |reason: String| PjrtError::Fetch { wheel: wheel.requirement(), reason };
    let destination = scratch.join("wheel");
    let partial = scratch.join("partial");
    for directory in [&destination, &partial] {
        fs::create_dir(directory).map_err(io_error("create", directory))?;
    }
    let log_path = scratch.join("pip.log");
    let log = File::create(&log_path).map_err(io_error("create", &log_path))?;
    let log_too = log.try_clone().map_err(io_error("open", &log_path))?;
    let mut pip = Command::new(python());
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest"])
        .arg(&destination)
        .args(wheel.pip_arguments)
        .arg(wheel.requirement())
        // pip writes into its temporary folder first; there the bar can see it.
        .env("TMPDIR", &partial)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    let mut child =
        pip.spawn().map_err(|error| failed(format!("cannot run {}: {error}", python().to_string_lossy())))?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(io_error("wait for", Path::new("pip")))? {
            break status;
        }
        progress.bar.set_position(tree_byte_count(scratch).min(wheel.byte_count));
        thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        // pip says what is wrong in lines that begin with ERROR; everything else is chatter.
        let mut errors: Vec<&str> = log.lines().filter(|line| line.starts_with("ERROR")).collect();
        if errors.is_empty() {
            errors = log.lines().rev().take(3).collect();
            errors.reverse();
        }
        return Err(failed(format!("pip download ended with {status}: {}", errors.join("; "))));
    }
    let entries = fs::read_dir(&destination).map_err(io_error("read", &destination))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| failed("pip downloaded no wheel".into()))
}

/// The Python to ask for packages and for pip.
pub(super) fn python() -> std::ffi::OsString {
    // A virtual environment that is switched on is first in PATH, so `python3` is right there as well.
    "python3".into()
}

fn tree_byte_count(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => tree_byte_count(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn check_sha256(wheel: &Wheel, path: &Path) -> Result<(), PjrtError> {
    let mut file = File::open(path).map_err(io_error("open", path))?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut chunk).map_err(io_error("read", path))?;
        if count == 0 {
            break;
        }
        hasher.update(&chunk[..count]);
    }
    let actual = hex(&hasher.finalize());
    if actual != wheel.sha256 {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let reason = format!("{name} has SHA-256 {actual}, expected {}; it is not the pinned wheel", wheel.sha256);
        return Err(PjrtError::Fetch { wheel: wheel.requirement(), reason });
    }
    Ok(())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unpack(wheel: &Wheel, path: &Path, scratch: &Path, target: &Path, progress: &Progress) -> Result<(), PjrtError> {
    let failed = |reason: String| PjrtError::Fetch { wheel: wheel.requirement(), reason };
    let file = File::open(path).map_err(io_error("open", path))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| failed(format!("cannot read the wheel: {error}")))?;
    let mut object = archive
        .by_name(wheel.object)
        .map_err(|error| failed(format!("the wheel has no usable {}: {error}", wheel.object)))?;
    progress.bar.set_message(format!("unpacking {}", wheel.requirement()));
    progress.bar.set_length(object.size());
    progress.bar.set_position(0);
    // Beside the target, so that the rename cannot cross file systems.
    let partial = scratch.join("object");
    let mut output = File::create(&partial).map_err(io_error("create", &partial))?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        let count = object.read(&mut chunk).map_err(io_error("unpack", path))?;
        if count == 0 {
            break;
        }
        output.write_all(&chunk[..count]).map_err(io_error("write", &partial))?;
        progress.bar.inc(count as u64);
    }
    output.sync_all().map_err(io_error("write", &partial))?;
    fs::rename(&partial, target).map_err(io_error("rename a file to", target))
}

/// For `map_err`: an [`PjrtError::Io`] about a path.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PjrtError {
    let path = path.to_owned();
    move |source| PjrtError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] = b"an object";

    /// A wheel on disk with one object in it, and its row of the table.
    fn wheel(folder: &Path, object: &'static str) -> (PathBuf, Wheel) {
        let path = folder.join("some-1.0-py3-none-any.whl");
        let mut archive = zip::ZipWriter::new(File::create(&path).expect("a file"));
        archive.start_file("some/plugin.so", zip::write::SimpleFileOptions::default()).expect("an entry");
        archive.write_all(OBJECT).expect("its bytes");
        archive.finish().expect("a wheel");
        let sum = hex(&Sha256::digest(fs::read(&path).expect("the wheel")));
        let row = Wheel {
            platform: "test",
            name: "some",
            version: "1.0",
            object,
            sha256: Box::leak(sum.into_boxed_str()),
            byte_count: 0,
            pip_arguments: &[],
        };
        (path, row)
    }

    #[test]
    fn only_the_pinned_wheel_passes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, row) = wheel(folder.path(), "some/plugin.so");
        check_sha256(&row, &path).expect("it is the pinned one");
        fs::write(&path, "something else").expect("a change");
        let error = check_sha256(&row, &path).expect_err("it is not the pinned one").to_string();
        assert!(error.starts_with("cannot fetch some==1.0: some-1.0-py3-none-any.whl has SHA-256 "), "{error}");
    }

    #[test]
    fn unpacking_is_all_or_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("target.so");
        let (path, row) = wheel(folder.path(), "some/absent.so");
        let error = unpack(&row, &path, folder.path(), &target, &Progress::new(&row)).expect_err("no such entry");
        assert!(error.to_string().contains("the wheel has no usable some/absent.so"), "{error}");
        assert!(!target.exists());
        let (path, row) = wheel(folder.path(), "some/plugin.so");
        unpack(&row, &path, folder.path(), &target, &Progress::new(&row)).expect("unpack");
        assert_eq!(fs::read(&target).expect("the object"), OBJECT);
    }

    #[test]
    fn what_is_in_the_cache_is_not_fetched_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_, row) = wheel(folder.path(), "some/plugin.so");
        let cached = cached_path(folder.path(), &row);
        fs::create_dir_all(cached.parent().expect("a folder")).expect("create");
        fs::write(&cached, OBJECT).expect("write");
        assert_eq!(fetch(folder.path(), &row, false).expect("from the cache"), cached);
    }
}
