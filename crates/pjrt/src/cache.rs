//! Compiled programs on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::cache_dir::{make_if_absent, user_cache_folder};
use super::client::Client;
use super::error::PjrtError;
use super::executable::{Executable, Prepared};
use super::files::{PARTIAL_PREFIX, file_sha256, hex, io_error, write_atomically};
use super::key::{Key, SIGNATURE};
use super::options::CompileOptions;
use super::plugin::Plugin;
use meshloom_hlo::PlatformKind;

/// The ending of a program's file. When it was last used is its modification time.
const PROGRAM: &str = "pjrt";
/// The ending of the file that keeps a plugin's digest, which takes long to compute.
const DIGEST: &str = "digest";

/// A temporary file this old belongs to a process that died.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Compiled programs in a folder, by the hash of everything they depend on: the module, the options, the plugin's file,
/// and the devices. Any number of threads and processes may share it.
///
/// A compiled program is machine code, so each is signed by a key of the user's, which is made at first use
/// (`~/.config/meshloom/key`, or the file that `MESHLOOM_KEY` names). A program without this signature is compiled
/// again. Hosts that share a cache need one key.
#[derive(Clone, Debug)]
pub struct CompileCache {
    directory: PathBuf,
    limit: Option<u64>,
    key: Key,
}

/// The use of a cache for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// The program was in the cache, and was loaded.
    Hit,
    /// The program was not in the cache or could not be loaded: it was compiled.
    Miss,
    /// The cache was not asked: the plugin's programs for several devices do not survive being stored. The program was
    /// compiled.
    Bypassed,
}

impl CompileCache {
    /// The user's own cache: `$XDG_CACHE_HOME/meshloom/programs`, or below `~/.cache`. It grows without a limit.
    ///
    /// # Errors
    /// Neither is a full path, the folder cannot be made or belongs to another user, or there is no key.
    pub fn of_user() -> Result<CompileCache, PjrtError> {
        CompileCache::at(user_cache_folder("programs")?)
    }

    /// A cache in this folder, which is made, for the user alone, if need be. It grows without a limit.
    ///
    /// # Errors
    /// The folder cannot be made, or there is no key.
    pub fn at(directory: impl Into<PathBuf>) -> Result<CompileCache, PjrtError> {
        let (directory, key) = (directory.into(), Key::of_user()?);
        make_if_absent(&directory)?;
        Ok(CompileCache { directory, limit: None, key })
    }

    /// The same cache, but whenever a program is added, those not used for longest go until all take no more than
    /// `bytes`. The one just added stays, however large it is.
    pub fn with_limit(self, bytes: u64) -> CompileCache {
        CompileCache { limit: Some(bytes), ..self }
    }

    /// As [`Client::compile`], but takes the program from the cache when it is there, and puts it there when it is not.
    /// Also returns which of them it did.
    ///
    /// An entry that cannot be loaded is compiled again and replaced; a plugin that cannot serialize its programs, or a
    /// folder that cannot be written, costs a warning. A CPU plugin's program for several devices is always compiled.
    pub fn compile(
        &self,
        client: &Client,
        module: &[u8],
        options: &CompileOptions,
    ) -> Result<(Executable, CacheUse), PjrtError> {
        let prepared = Prepared::new(client, module, options)?;
        if !survives_storing(client, options) {
            return Ok((prepared.compile(client, module)?, CacheUse::Bypassed));
        }
        let key = self.key(client, module, &prepared)?;
        let path = self.directory.join(format!("{key}.{PROGRAM}"));
        if let Ok(file) = fs::read(&path) {
            match self.open(&path, &file) {
                None => tracing::warn!("{} is damaged, or not signed by your key; compiling again", path.display()),
                Some(bytes) => match prepared.deserialize(client, bytes) {
                    Ok(executable) => {
                        mark_used(&path);
                        return Ok((executable, CacheUse::Hit));
                    }
                    Err(error) => tracing::warn!("{} cannot be loaded ({error}); compiling again", path.display()),
                },
            }
        }
        let executable = prepared.compile(client, module)?;
        let stored = executable.serialize().and_then(|bytes| self.store(&path, &bytes));
        if let Err(error) = stored {
            tracing::warn!("compiled program not cached: {error}");
        }
        Ok((executable, CacheUse::Miss))
    }

    /// An entry is its signature, then the program: one that is damaged, or somebody else's, must not reach the plugin,
    /// which trusts it.
    fn store(&self, path: &Path, program: &[u8]) -> Result<(), PjrtError> {
        self.write(path, program)?;
        match self.limit {
            Some(limit) => evict(&self.directory, path, limit),
            None => Ok(()),
        }
    }

    fn write(&self, path: &Path, contents: &[u8]) -> Result<(), PjrtError> {
        write_atomically(path, &[&self.key.sign(&name_of(path), contents), contents])
    }

    /// The program of an entry, if it is whole and of this name, and the user's.
    fn open<'f>(&self, path: &Path, file: &'f [u8]) -> Option<&'f [u8]> {
        let (signature, program) = file.split_at_checked(SIGNATURE)?;
        self.key.has_signed(&name_of(path), program, signature).then_some(program)
    }

    /// Everything that the compiled program depends on.
    fn key(&self, client: &Client, module: &[u8], prepared: &Prepared) -> Result<String, PjrtError> {
        let plugin = client.plugin();
        let devices: Vec<_> = client.devices().iter().map(|device| (device.id, &device.kind)).collect();
        let process = client.process().map(|process| (process.number, process.count));
        let identity = format!(
            "{} {:?} {:?} {} {} {} {devices:?} {process:?} {}",
            self.plugin_digest(plugin)?,
            plugin.api_version(),
            plugin.attributes(),
            client.platform().kind(),
            client.platform_name(),
            client.platform_version(),
            processor(),
        );
        let format = prepared.language.format.name().as_bytes();
        Ok(hash(&[b"meshloom compiled program 6", identity.as_bytes(), &prepared.options, format, module]))
    }

    /// SHA-256 of the plugin's file. Remembered for the file's path, size and time of change, here and in the folder.
    fn plugin_digest(&self, plugin: &Plugin) -> Result<String, PjrtError> {
        static KNOWN: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
        let path = plugin.path();
        let file = fs::metadata(path).map_err(io_error("read", path))?;
        let identity = format!("{:?} {} {:?}", path, file.len(), file.modified().ok());
        let identity = hash(&[b"meshloom plugin digest 1", identity.as_bytes()]);
        // Held while it is computed, so that threads do not all do it.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, digest)) = known.iter().find(|(known, _)| *known == identity) {
            return Ok(digest.clone());
        }
        let kept_in = self.directory.join(format!("{identity}.{DIGEST}"));
        let kept = fs::read(&kept_in).ok();
        let kept = kept.and_then(|file| String::from_utf8(self.open(&kept_in, &file)?.to_vec()).ok());
        let digest = match kept {
            Some(digest) => digest,
            None => {
                let digest = file_sha256(path)?;
                if let Err(error) = self.write(&kept_in, digest.as_bytes()) {
                    tracing::warn!("digest of the plugin not kept: {error}");
                }
                digest
            }
        };
        known.push((identity, digest.clone()));
        Ok(digest)
    }
}

/// Whether a stored program runs as the compiled one does.
///
/// A CPU plugin runs collectives in the order that they share one resource in. A program that it loads has another
/// resource in each nested computation (`thunk_proto_serdes.cc` of XLA), so a collective and a loop with collectives
/// start in any order, on each device in another, and the devices wait for each other until the plugin ends the
/// process.
fn survives_storing(client: &Client, options: &CompileOptions) -> bool {
    // The plugin's own name: the platform's may be that of a plugin which it stands in for.
    client.platform_name() != PlatformKind::Cpu.name() || options.device_count() == 1
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// The instruction sets of this machine: a program compiled for others would die of an illegal instruction, and cache
/// folders are shared between machines.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    format!("{} {} {}", std::env::consts::ARCH, line("model name"), line("flags"))
}

/// The name by which an entry is signed.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// An entry that another process has just thrown out need not be marked.
fn mark_used(path: &Path) {
    let marked = fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = marked {
        tracing::debug!("{} not marked as used: {error}", path.display());
    }
}

/// Throws out the programs that were not used for longest, and files that dead processes left. Other processes may do
/// so at the same time: a file that is gone already counts as thrown out, and a process that has it open keeps it.
fn evict(directory: &Path, keep: &Path, limit: u64) -> Result<(), PjrtError> {
    let mut programs = Vec::new();
    let mut total = 0;
    for entry in fs::read_dir(directory).map_err(io_error("read", directory))?.flatten() {
        let path = entry.path();
        let Ok((size, used)) = entry.metadata().and_then(|file| Ok((file.len(), file.modified()?))) else { continue };
        if path.extension().is_some_and(|extension| extension == PROGRAM) {
            total += size;
            programs.push((used, path, size));
        } else if entry.file_name().to_string_lossy().starts_with(PARTIAL_PREFIX)
            && used.elapsed().is_ok_and(|age| age > ABANDONED)
        {
            let _ = fs::remove_file(path);
        }
    }
    programs.sort();
    for (_, path, size) in programs {
        if total <= limit {
            break;
        }
        if path != keep {
            total -= size;
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}
