//! Finding, loading and checking a plugin.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::{env, fmt, fs};

use libloading::Library;

use super::api::{Api, Arguments, slice, string};
use super::error::{Attempt, PjrtError};
use super::fetch::{cached_path, default_cache_directory, fetch, python};
use super::sys::*;
use super::value::NamedValue;
use super::wheels::{WHEELS, Wheel};

/// The oldest minor version of the C API that our bindings can drive: the one they were made from.
const OLDEST_MINOR: i32 = PJRT_API_MINOR as i32;

/// A loaded PJRT plugin. It stays loaded until the process ends: plugins start threads and register things that no unloading
/// would undo.
pub struct Plugin {
    path: PathBuf,
    api: Api,
    version: (i32, i32),
    attributes: BTreeMap<String, NamedValue>,
}

/// How to look for a plugin.
#[derive(Clone, Debug)]
pub struct FindOptions {
    /// The plugin's file: nothing else is looked at.
    pub path: Option<PathBuf>,
    /// Only this wheel of the pinned table ([`WHEELS`]), not every one of the platform.
    pub wheel: Option<String>,
    /// Whether a wheel may be downloaded. `MESHLOOM_OFFLINE=1` forbids it as well.
    pub allow_fetch: bool,
    /// Whether installed Python packages are looked at.
    pub search_python_packages: bool,
    /// The plugin cache; by default `$XDG_CACHE_HOME/meshloom/plugins`, or below `~/.cache`.
    pub cache_directory: Option<PathBuf>,
}

impl Default for FindOptions {
    fn default() -> FindOptions {
        FindOptions { path: None, wheel: None, allow_fetch: true, search_python_packages: true, cache_directory: None }
    }
}

/// Every plugin this process has loaded. Locked while one is loaded, so that none is initialised twice.
static LOADED: Mutex<Vec<Arc<Plugin>>> = Mutex::new(Vec::new());

impl Plugin {
    /// The plugin of a platform (`cpu`, `cuda`, `tpu`): from the environment variable `MESHLOOM_<PLATFORM>_PLUGIN`, from
    /// meshloom's cache, from installed Python packages, or else downloaded from PyPI.
    ///
    /// # Errors
    /// [`PjrtError::NotFound`] lists every place looked at, why it gave nothing, and what to do.
    pub fn find(platform: &str) -> Result<Arc<Plugin>, PjrtError> {
        Plugin::find_with(platform, &FindOptions::default())
    }

    /// As [`Plugin::find`], with a say in where to look.
    pub fn find_with(platform: &str, options: &FindOptions) -> Result<Arc<Plugin>, PjrtError> {
        // A file that the caller or the user names is what they mean: falling through to another would hide their mistake.
        if let Some(path) = &options.path {
            return Plugin::load(path);
        }
        let wheels = wheels(platform, options)?;
        let variable = format!("MESHLOOM_{}_PLUGIN", platform.to_ascii_uppercase());
        if let Some(path) = env::var_os(&variable).filter(|path| !path.is_empty()) {
            return Plugin::load(path);
        }
        let mut search = Search { attempts: Vec::new(), damaged: false };
        search.failed(format!("environment variable {variable}"), "not set");

        let cache = options.cache_directory.clone().or_else(default_cache_directory);
        match &cache {
            None => search.failed("cache".into(), "neither XDG_CACHE_HOME nor HOME is an absolute path"),
            Some(cache) => {
                for wheel in &wheels {
                    if let Some(plugin) = search.try_file("cache", &cached_path(cache, wheel)) {
                        return Ok(plugin);
                    }
                }
                search.damaged = wheels.first().is_some_and(|wheel| cached_path(cache, wheel).exists());
            }
        }
        if options.search_python_packages
            && let Some(plugin) = search.python_packages(&wheels)
        {
            return Ok(plugin);
        }
        if let (Some(cache), Some(wheel)) = (&cache, wheels.first())
            && let Some(plugin) = search.fetch(cache, wheel, options)
        {
            return Ok(plugin);
        }
        let install = wheels.first().map(|wheel| {
            let extra: String = wheel.pip_arguments.iter().map(|argument| format!(" {argument}")).collect();
            format!("run `python3 -m pip install{extra} {}`, or ", wheel.requirement())
        });
        let install = install.unwrap_or_default();
        let allow = if is_offline() { "unset MESHLOOM_OFFLINE so that it is downloaded, or " } else { "" };
        Err(PjrtError::NotFound {
            platform: platform.into(),
            attempts: search.attempts,
            fix: format!("{allow}{install}set {variable} to the path of a PJRT plugin (.so)"),
        })
    }

    /// Loads a plugin from a file. The same file gives the same plugin each time.
    ///
    /// Before the first plugin is loaded, `TF_CPP_MIN_LOG_LEVEL` is set to 2 unless the environment has it: XLA then logs
    /// errors, but no notes and no warnings. With `TF_CPP_MIN_LOG_LEVEL=0` it logs everything.
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
        quiet_xla();
        // SAFETY: this runs the file's initialisers, which is what loading a plugin means; whoever names the file trusts it.
        let library = unsafe { Library::new(&path) }.map_err(|error| refused(cause(&error)))?;
        type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;
        // SAFETY: every PJRT plugin exports this symbol with this type.
        let raw = unsafe {
            let get = library.get::<GetPjrtApi>(c"GetPjrtApi");
            let get = get.map_err(|_| refused("it has no function GetPjrtApi".into()))?;
            get()
        };
        if raw.is_null() {
            return Err(refused("GetPjrtApi returned null".into()));
        }
        // From here on the library may have started threads: it is never unloaded, used or not.
        std::mem::forget(library);
        // SAFETY: `raw` is what `GetPjrtApi` returned, not null, and the library stays.
        let api = unsafe { Api::from_raw(raw) };
        if let Some(plugin) = loaded.iter().find(|plugin| plugin.api == api) {
            // Another name of a file that is loaded already.
            return Ok(plugin.clone());
        }
        let version = api.version().ok_or_else(|| refused("its function table is too short".into()))?;
        if version.0 != PJRT_API_MAJOR as i32 || version.1 < OLDEST_MINOR {
            return Err(PjrtError::ApiVersion { path, major: version.0, minor: version.1 });
        }
        // SAFETY: called once for each plugin, before anything else.
        unsafe { api.call(&mut PJRT_Plugin_Initialize_Args::new())? };
        let attributes = attributes(api)?;
        let plugin = Arc::new(Plugin { path, api, version, attributes });
        loaded.push(plugin.clone());
        Ok(plugin)
    }

    /// The file it was loaded from, with links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version of the C API it was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.version
    }

    /// What it says about itself, such as `xla_version` and `stablehlo_current_version`.
    pub fn attributes(&self) -> &BTreeMap<String, NamedValue> {
        &self.attributes
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({}, API {}.{})", self.path.display(), self.version.0, self.version.1)
    }
}

/// Sets how much XLA logs, unless the user has: errors alone. It reads this once, when a plugin is loaded.
fn quiet_xla() {
    const VARIABLE: &str = "TF_CPP_MIN_LOG_LEVEL";
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os(VARIABLE).is_none() {
            // SAFETY: the environment may not be written while C code on another thread reads it; Rust code takes turns by
            // std's own lock. No plugin of ours is loaded yet, so none of its threads exist. What is left are threads that
            // the host program runs in other C libraries: should one of them call getenv at this very moment, it might see
            // the environment while it is moved. Such a program sets the variable itself, early; then nothing is written.
            unsafe { env::set_var(VARIABLE, "2") };
        }
    });
}

/// The loader's message: libloading's own says only that `dlopen` failed, the reason is its source.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn attributes(api: Api) -> Result<BTreeMap<String, NamedValue>, PjrtError> {
    let mut arguments = PJRT_Plugin_Attributes_Args::new();
    // SAFETY: the plugin is initialised; its attributes live as long as the process.
    unsafe {
        api.call(&mut arguments)?;
        let values = slice(arguments.attributes, arguments.num_attributes);
        Ok(values
            .iter()
            .filter_map(|raw| Some((string(raw.name, raw.name_size), NamedValue::from_raw(raw)?)))
            .collect())
    }
}

fn wheels(platform: &str, options: &FindOptions) -> Result<Vec<&'static Wheel>, PjrtError> {
    let unknown = |kind, name: &str, expected: Vec<&str>| PjrtError::UnknownName {
        kind,
        name: name.into(),
        expected: expected.join(", "),
    };
    let of_platform: Vec<_> = Wheel::of_platform(platform).collect();
    if of_platform.is_empty() {
        let mut platforms: Vec<_> = WHEELS.iter().map(|wheel| wheel.platform).collect();
        platforms.dedup();
        return Err(unknown("platform", platform, platforms));
    }
    let Some(name) = &options.wheel else { return Ok(of_platform) };
    let names = of_platform.iter().map(|wheel| wheel.name).collect();
    let chosen = of_platform.into_iter().find(|wheel| wheel.name == name);
    Ok(vec![chosen.ok_or_else(|| unknown("wheel", name, names))?])
}

fn is_offline() -> bool {
    env::var_os("MESHLOOM_OFFLINE").is_some_and(|value| !value.is_empty() && value != "0")
}

/// A search in progress: what was tried and failed so far.
struct Search {
    attempts: Vec<Attempt>,
    /// Whether the cache has a file for the preferred wheel that could not be loaded.
    damaged: bool,
}

impl Search {
    fn failed(&mut self, place: String, reason: impl ToString) {
        self.attempts.push(Attempt { place, reason: reason.to_string() });
    }

    fn try_file(&mut self, kind: &str, path: &Path) -> Option<Arc<Plugin>> {
        let place = format!("{kind} {}", path.display());
        if let Err(error) = fs::metadata(path) {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            self.failed(place, if missing { "no such file".into() } else { error.to_string() });
            return None;
        }
        Plugin::load(path).map_err(|error| self.failed(place, error)).ok()
    }

    fn python_packages(&mut self, wheels: &[&Wheel]) -> Option<Arc<Plugin>> {
        let place = "installed Python packages".to_owned();
        // The empty entry of the path is the current folder, which is nobody's package.
        let script =
            "import site, sys; print('\\n'.join(dict.fromkeys([p for p in sys.path if p] + site.getsitepackages())))";
        let output = Command::new(python()).args(["-c", script]).stdin(Stdio::null()).output();
        let output = match output {
            Ok(output) if output.status.success() => output,
            Ok(output) => {
                self.failed(place, format!("python3 ended with {}", output.status));
                return None;
            }
            Err(error) => {
                self.failed(place, format!("cannot run python3: {error}"));
                return None;
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let folders: Vec<_> = text.lines().map(Path::new).filter(|folder| folder.is_dir()).collect();
        let before = self.attempts.len();
        for wheel in wheels {
            for folder in &folders {
                let path = folder.join(wheel.object);
                if path.is_file()
                    && let Some(plugin) = self.try_file("Python package", &path)
                {
                    return Some(plugin);
                }
            }
        }
        if self.attempts.len() == before {
            let names: Vec<_> = wheels.iter().map(|wheel| wheel.name).collect();
            let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            self.failed(place, format!("none of {} in {}", names.join(", "), folders.join(", ")));
        }
        None
    }

    fn fetch(&mut self, cache: &Path, wheel: &Wheel, options: &FindOptions) -> Option<Arc<Plugin>> {
        let place = format!("download of {}", wheel.requirement());
        if is_offline() {
            self.failed(place, "forbidden by MESHLOOM_OFFLINE=1");
            return None;
        }
        if !options.allow_fetch {
            self.failed(place, "forbidden by the caller");
            return None;
        }
        let plugin = fetch(cache, wheel, self.damaged).and_then(Plugin::load);
        plugin.map_err(|error| self.failed(place, error)).ok()
    }
}
