//! Compiled programs on disk.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::client::Client;
use super::error::PjrtError;
use super::executable::{Executable, Prepared};
use super::fetch::{hex, io_error};
use super::options::CompileOptions;

/// Compiled programs in a folder, by the hash of everything they depend on. Any number of threads and processes may share it.
#[derive(Clone, Debug)]
pub struct CompileCache {
    directory: PathBuf,
}

impl CompileCache {
    /// A cache in this folder, which is made if need be.
    pub fn at(directory: impl Into<PathBuf>) -> Result<CompileCache, PjrtError> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(io_error("create", &directory))?;
        Ok(CompileCache { directory })
    }

    /// As [`Client::compile`], but takes the program from the cache when it is there, and puts it there when it is not.
    ///
    /// An entry that cannot be loaded is compiled again and replaced; a plugin that cannot serialize its programs, or a
    /// folder that cannot be written, costs a warning.
    pub fn compile(&self, client: &Client, module: &[u8], options: &CompileOptions) -> Result<Executable, PjrtError> {
        let prepared = Prepared::new(client, module, options)?;
        let path = self.directory.join(format!("{}.pjrt", key(client, module, &prepared.options)));
        if let Ok(file) = fs::read(&path) {
            match open(&file) {
                None => tracing::warn!("{} is damaged; compiling again", path.display()),
                Some(bytes) => match prepared.deserialize(client, bytes) {
                    Ok(executable) => return Ok(executable),
                    Err(error) => tracing::warn!("{} cannot be loaded ({error}); compiling again", path.display()),
                },
            }
        }
        let executable = prepared.compile(client, module)?;
        let stored = executable.serialize().and_then(|bytes| write(&self.directory, &path, &bytes));
        if let Err(error) = stored {
            tracing::warn!("compiled program not cached: {error}");
        }
        Ok(executable)
    }
}

/// Everything that the compiled program depends on.
fn key(client: &Client, module: &[u8], options: &[u8]) -> String {
    let plugin = client.plugin();
    let file = fs::metadata(plugin.path());
    let changed = file.as_ref().ok().and_then(|file| file.modified().ok());
    let devices: Vec<_> = client.devices().iter().map(|device| (device.id, &device.kind)).collect();
    let identity = format!(
        "{:?} {:?} {:?} {:?} {:?} {} {} {devices:?} {}",
        plugin.path(),
        file.map(|file| file.len()).ok(),
        changed,
        plugin.api_version(),
        plugin.attributes(),
        client.platform_name(),
        client.platform_version(),
        processor(),
    );
    let mut hasher = Sha256::new();
    for part in [b"meshloom compiled program 1", identity.as_bytes(), options, module] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// The instruction sets of this machine: a program compiled for others would die of an illegal instruction, and cache folders
/// are shared between machines.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    format!("{} {} {}", std::env::consts::ARCH, line("model name"), line("flags"))
}

/// An entry is the SHA-256 of the program, then the program: a damaged one must not reach the plugin, which trusts it.
fn open(file: &[u8]) -> Option<&[u8]> {
    let (sum, bytes) = file.split_at_checked(32)?;
    (Sha256::digest(bytes).as_slice() == sum).then_some(bytes)
}

fn write(directory: &Path, path: &Path, bytes: &[u8]) -> Result<(), PjrtError> {
    let mut file = tempfile::Builder::new()
        .prefix(".program-")
        .tempfile_in(directory)
        .map_err(io_error("create a temporary file in", directory))?;
    let sum = Sha256::digest(bytes);
    let written = file.write_all(&sum).and_then(|()| file.write_all(bytes)).and_then(|()| file.as_file().sync_all());
    written.map_err(io_error("write", file.path()))?;
    file.persist(path).map_err(|error| io_error("rename a file to", path)(error.error))?;
    Ok(())
}
