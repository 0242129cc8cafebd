//! Finding, loading and checking a plugin.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Read;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::{env, fmt, thread};

use libloading::Library;
use meshloom_hlo::files;

use super::api::{Api, Arguments, slice};
use super::error::PjrtError;
use super::pci::has_tpu;
use super::search::{FindOptions, search};
use super::sys::*;
use super::value::NamedValue;

/// The oldest minor version of the C API that our bindings can drive: the one they were made from.
const OLDEST_MINOR: i32 = PJRT_API_MINOR as i32;

/// A loaded PJRT plugin. It stays loaded until the process ends: plugins start threads and register things that no
/// unloading would undo.
pub struct Plugin {
    path: PathBuf,
    api: Api,
    version: (i32, i32),
    attributes: BTreeMap<String, NamedValue>,
}

/// Every plugin this process has loaded. Locked while one is loaded, so that none is initialised twice.
static LOADED: Mutex<Vec<Arc<Plugin>>> = Mutex::new(Vec::new());

impl Plugin {
    /// The plugin of a platform (`cpu`, `cuda`, `tpu`): from the environment variable `MESHLOOM_<PLATFORM>_PLUGIN`,
    /// from meshloom's cache, from installed Python packages, or else downloaded from PyPI.
    ///
    /// # Errors
    /// [`PjrtError::NotFound`] lists every place searched, why it had no plugin, and what to do.
    pub fn find(platform: &str) -> Result<Arc<Plugin>, PjrtError> {
        Plugin::find_with(platform, &FindOptions::default())
    }

    /// As [`Plugin::find`], with a say in where to look.
    pub fn find_with(platform: &str, options: &FindOptions) -> Result<Arc<Plugin>, PjrtError> {
        search(platform, options, |path| Plugin::load(path))
    }

    /// Where [`Plugin::find_with`] would find it, without loading it: downloads it if need be.
    ///
    /// # Errors
    /// As for [`Plugin::find`]; but that a file is a plugin is not known before it is loaded.
    pub fn locate(platform: &str, options: &FindOptions) -> Result<PathBuf, PjrtError> {
        search(platform, options, |path| {
            let mut magic = [0; 4];
            let read = files::open(path).and_then(|mut file| file.read_exact(&mut magic));
            match read {
                Ok(()) if magic == *b"\x7fELF" => Ok(path.to_owned()),
                Ok(()) => Err(PjrtError::NotAPlugin { path: path.to_owned(), reason: "not a shared object".into() }),
                Err(error) => Err(PjrtError::NotAPlugin { path: path.to_owned(), reason: error.to_string() }),
            }
        })
    }

    /// Loads a plugin from a file. The same file gives the same plugin each time.
    ///
    /// Before the first plugin is loaded, `TF_CPP_MIN_LOG_LEVEL` is set to 2 unless the environment has it: XLA then
    /// logs errors, but no notes and no warnings. With `TF_CPP_MIN_LOG_LEVEL=0` it logs everything. On a machine
    /// without a TPU, `TPU_SKIP_MDS_QUERY` is set to 1, because libtpu would wait for an absent server, and
    /// `ALLOW_MULTIPLE_LIBTPU_LOAD`, because two processes could not compile at the same time. `PJRT_NPROC`, by which
    /// XLA sizes a CPU client's thread pools, is set to the number of processors unless it or `NPROC` is set. While a
    /// client of several devices is created, it is at least twice their number and one.
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Plugin>, PjrtError> {
        let given = path.as_ref();
        let refused = |reason: String| PjrtError::NotAPlugin { path: given.to_owned(), reason };
        let path = given.canonicalize().map_err(|error| refused(error.to_string()))?;
        if !path.is_file() {
            return Err(refused("not a file".into()));
        }
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.iter().find(|plugin| plugin.path == path) {
            return Ok(plugin.clone());
        }
        prepare_environment();
        // SAFETY: this runs the file's initialisers, which is what loading a plugin means; the one who names the file
        // trusts it.
        let library = unsafe { Library::new(&path) }.map_err(|error| refused(cause(&error)))?;
        type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;
        // SAFETY: every PJRT plugin exports this symbol with this type.
        let raw = unsafe {
            let get = library.get::<GetPjrtApi>(c"GetPjrtApi");
            let get = get.map_err(|_| refused("it has no function GetPjrtApi".into()))?;
            get()
        };
        if raw.is_null() {
            return Err(refused("GetPjrtApi returned null; it may have said why on standard error".into()));
        }
        // From here on the library may have started threads: it is never unloaded, used or not.
        std::mem::forget(library);
        // SAFETY: `raw` is what `GetPjrtApi` returned, not null, and the library stays.
        unsafe { Plugin::of_table(path, raw, &mut loaded) }
    }

    /// The plugin with this function table, which is not null.
    ///
    /// # Safety
    /// A plugin's `GetPjrtApi` must have returned the table, and the plugin must stay loaded for ever.
    unsafe fn of_table(
        path: PathBuf,
        raw: *const PJRT_Api,
        loaded: &mut Vec<Arc<Plugin>>,
    ) -> Result<Arc<Plugin>, PjrtError> {
        // SAFETY: the caller's promise.
        let api = unsafe { Api::from_raw(raw) };
        if let Some(plugin) = loaded.iter().find(|plugin| plugin.api == api) {
            // Another name of a file that is loaded already.
            return Ok(plugin.clone());
        }
        let short = || PjrtError::NotAPlugin { path: path.clone(), reason: "its function table is too short".into() };
        let version = api.version().ok_or_else(short)?;
        if version.0 != PJRT_API_MAJOR as i32 || version.1 < OLDEST_MINOR {
            return Err(PjrtError::ApiVersion { path, major: version.0, minor: version.1 });
        }
        // SAFETY: called once for each plugin, before anything else.
        unsafe { api.call(PJRT_Plugin_Initialize_Args::new())? };
        let attributes = attributes(api)?;
        let plugin = Arc::new(Plugin { path, api, version, attributes });
        loaded.push(plugin.clone());
        Ok(plugin)
    }

    /// The plugin with this function table, for one that stands in for another: [`load`](Plugin::load) without a file.
    ///
    /// # Errors
    /// As of [`load`](Plugin::load).
    ///
    /// # Safety
    /// As of [`of_table`](Plugin::of_table).
    pub(super) unsafe fn from_table(name: &Path, raw: *const PJRT_Api) -> Result<Arc<Plugin>, PjrtError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        prepare_environment();
        // SAFETY: the caller's promise.
        unsafe { Plugin::of_table(name.to_owned(), raw, &mut loaded) }
    }

    /// The file it was loaded from, with links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version of the C API it was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.version
    }

    /// The plugin's facts about itself, such as `xla_version` and `stablehlo_current_version`.
    pub fn attributes(&self) -> &BTreeMap<String, NamedValue> {
        &self.attributes
    }

    /// `/path/to/libtpu.so (PJRT C API 0.116)`, for messages.
    pub(super) fn describe(&self) -> String {
        format!("{} (PJRT C API {}.{})", self.path.display(), self.version.0, self.version.1)
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }

    /// An error that the plugin lacks a part of the API.
    pub(super) fn lacks(&self, feature: &str, reason: impl Into<String>) -> PjrtError {
        PjrtError::Unimplemented { feature: feature.into(), plugin: self.describe(), reason: reason.into() }
    }

    /// An extension of the plugin's table, which is as long as `E` at least.
    ///
    /// # Safety
    /// Extensions of this kind begin with the fields of `E`, and `E` begins with a base.
    pub(super) unsafe fn extension<E>(
        &self,
        kind: PJRT_Extension_Type,
        feature: &str,
        name: &str,
    ) -> Result<*const E, PjrtError> {
        let extension = self.api.extension(kind);
        let extension = extension.ok_or_else(|| self.lacks(feature, format!("it has no {name} extension")))?;
        // SAFETY: extensions live as long as the plugin, and begin with a base.
        match unsafe { (&raw const (*extension).struct_size).read() } < size_of::<E>() {
            true => Err(self.lacks(feature, format!("its {name} extension is too short"))),
            false => Ok(extension.cast()),
        }
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({}, API {}.{})", self.path.display(), self.version.0, self.version.1)
    }
}

/// Sets environment variables that plugins read once, when they are loaded, unless the user has set them: XLA logs
/// errors alone. On a machine without TPUs, libtpu does not ask a cloud's metadata server for them, and does not lock
/// them against other processes: several may compile at once. The number of threads is what XLA takes by itself;
/// [`with_threads`] replaces it.
fn prepare_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut variables = vec![("TF_CPP_MIN_LOG_LEVEL", "2".to_owned())];
        if !has_tpu() {
            variables.push(("TPU_SKIP_MDS_QUERY", "1".to_owned()));
            variables.push(("ALLOW_MULTIPLE_LIBTPU_LOAD", "1".to_owned()));
        }
        variables.push((THREADS, threads().to_string()));
        for (variable, value) in variables {
            if env::var_os(variable).is_none() {
                // SAFETY: the environment may not be written while C code on another thread reads it; Rust code takes
                // turns by std's own lock. No plugin of ours is loaded yet, so none of its threads exist. Only threads
                // that the host program runs in other C libraries are left: should one of them call getenv at this very
                // moment, it might see the environment while it is moved. Such a program sets the variables itself,
                // early; then nothing is written.
                unsafe { env::set_var(variable, value) };
            }
        }
    });
}

/// Has the process end when a collective of NCCL breaks. Otherwise XLA only gives up the connection, and the step under
/// way ends as if all were well, with sums of nothing but its own terms: a checkpoint then keeps what is wrong. XLA
/// reads the variable once, and does not take the flag from compile options (`gpu_cliques.cc`).
pub(super) fn end_on_lost_collectives() {
    const FLAGS: &str = "XLA_FLAGS";
    const FLAG: &str = "--xla_gpu_nccl_terminate_on_error";
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let given = env::var(FLAGS).unwrap_or_default();
        if !given.contains(FLAG) {
            // SAFETY: as in `prepare_environment`.
            unsafe { env::set_var(FLAGS, format!("{given} {FLAG}=true").trim_start()) };
        }
    });
}

/// Has NCCL listen on loopback, unless the user names another interface: it does not ask who connects, and the devices
/// of one process need no network.
pub(super) fn keep_nccl_on_this_host() {
    const VARIABLE: &str = "NCCL_SOCKET_IFNAME";
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os(VARIABLE).is_none() {
            // SAFETY: as in `prepare_environment`.
            unsafe { env::set_var(VARIABLE, "=lo") };
        }
    });
}

/// The variable by which XLA's CPU client first sizes its thread pools.
pub(super) const THREADS: &str = "PJRT_NPROC";

/// The threads that XLA's CPU client takes by itself, unless it has more devices.
fn threads() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    let set = || [THREADS, "NPROC"].into_iter().find_map(|variable| env::var(variable).ok()?.parse().ok());
    *FOUND.get_or_init(|| set().unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get)))
}

/// Creates a client of the CPU by `create`, with this number of threads, or with the number that it takes by itself if
/// that is larger. Also returns the number of its threads.
pub(super) fn with_threads<T>(needed: usize, create: impl FnOnce() -> T) -> (T, usize) {
    static TURN: Mutex<()> = Mutex::new(());
    if needed <= threads() {
        return (create(), threads());
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: as in `prepare_environment`, which set the variable: a value is replaced, and the environment not moved.
    unsafe { env::set_var(THREADS, needed.to_string()) };
    let created = create();
    // SAFETY: as before. Other clients, and programs that this one starts, find what they would have found.
    unsafe { env::set_var(THREADS, threads().to_string()) };
    (created, needed)
}

/// The number of threads that XLA's CPU client needs for a program on this number of devices; each device is in at
/// most this number of collectives at once ([`collectives_at_once`](meshloom_analysis::collectives_at_once)).
///
/// A device that waits in a collective blocks a thread of a pool that all devices share. XLA has a thread for each
/// device. If devices that are ahead are in two collectives at once, they block all threads, and wait forever for those
/// that have none. One thread more than all of them block in all collectives but one is enough: it is left to a device
/// that is behind.
pub(super) fn threads_for(devices: usize, at_once: usize) -> usize {
    if devices > 1 { at_once.saturating_sub(1) * devices + 1 } else { 1 }
}

/// The loader's message: libloading's own says only that `dlopen` failed, the reason is its source.
pub(super) fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn attributes(api: Api) -> Result<BTreeMap<String, NamedValue>, PjrtError> {
    // SAFETY: the plugin is initialised; its attributes live as long as the process.
    unsafe {
        let answer = api.call(PJRT_Plugin_Attributes_Args::new())?;
        Ok(NamedValue::map_from_raw(slice(answer.attributes, answer.num_attributes)))
    }
}
