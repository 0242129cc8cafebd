//! Finding a plugin's file: explicit, from the environment, in the cache, among Python packages, or downloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use super::cache_dir::{PYTHON, cached_path, user_cache_folder};
use super::error::{Attempt, PjrtError};
#[cfg(feature = "fetch")]
use super::fetch::fetch;
#[cfg(feature = "fetch")]
pub(super) use super::fetch::fetch_with;
use super::record::check_cached;
#[cfg(not(feature = "fetch"))]
use super::wheels::Package;
use super::wheels::{WHEELS, Wheel};

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

impl FindOptions {
    /// The plugin cache.
    pub(super) fn cache(&self) -> Result<PathBuf, PjrtError> {
        self.cache_directory.clone().map_or_else(|| user_cache_folder(PLUGINS), Ok)
    }
}

/// The name of the plugin cache.
pub(super) const PLUGINS: &str = "plugins";

/// Goes through all places until `accept` takes a file. [`Plugin::find`](super::Plugin::find) lists the places.
pub(super) fn search<T>(
    platform: &str,
    options: &FindOptions,
    accept: impl Fn(&Path) -> Result<T, PjrtError>,
) -> Result<T, PjrtError> {
    // The caller or the user named this file; falling through to another would hide their mistake.
    if let Some(path) = &options.path {
        return accept(path);
    }
    let wheels = wheels(platform, options)?;
    // A caller who asks for one wheel does not mean the user's file.
    if options.wheel.is_none()
        && let Some(path) = named_file(platform)
    {
        return accept(&path).map_err(|error| match error {
            PjrtError::NotAPlugin { path, reason } => {
                let reason = format!(
                    "{reason}; {} names it: give a plugin's file (.so), or unset it",
                    plugin_variable(platform)
                );
                PjrtError::NotAPlugin { path, reason }
            }
            error => error,
        });
    }
    let variable = plugin_variable(platform);
    let mut search = Search { attempts: Vec::new(), is_in_vain: Vec::new(), accept };
    let reason = if options.wheel.is_some() { "not looked at, for one wheel is asked for" } else { "not set" };
    search.failed(format!("environment variable {variable}"), reason);
    match search.all_places(&wheels, options) {
        Some(found) => Ok(found),
        None => {
            let install = wheels.first().map(|wheel| {
                let extra: String = wheel.package.pip_arguments.iter().map(|argument| format!(" {argument}")).collect();
                format!("run `python3 -m pip install{extra} {}`, or ", wheel.requirements())
            });
            let install = install.unwrap_or_default();
            let allow = if is_offline() { "unset MESHLOOM_OFFLINE so that it is downloaded, or " } else { "" };
            Err(PjrtError::NotFound {
                platform: platform.into(),
                attempts: search.attempts,
                fix: format!("{allow}{install}set {variable} to the path of a PJRT plugin (.so)"),
            })
        }
    }
}

/// The environment variable that names a platform's plugin, of a platform by its name.
pub fn plugin_variable(platform: &str) -> String {
    format!("MESHLOOM_{}_PLUGIN", platform.to_ascii_uppercase())
}

/// The plugin's file that the environment names.
pub(super) fn named_file(platform: &str) -> Option<PathBuf> {
    env::var_os(plugin_variable(platform)).filter(|path| !path.is_empty()).map(PathBuf::from)
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
    let names = of_platform.iter().map(|wheel| wheel.name()).collect();
    let chosen = of_platform.into_iter().find(|wheel| wheel.name() == name);
    Ok(vec![chosen.ok_or_else(|| unknown("wheel", name, names))?])
}

/// Whether `MESHLOOM_OFFLINE` forbids downloads.
pub fn is_offline() -> bool {
    env::var_os("MESHLOOM_OFFLINE").is_some_and(|value| !value.is_empty() && value != "0")
}

/// A search in progress: what was tried and failed so far.
struct Search<F> {
    attempts: Vec<Attempt>,
    /// The wheels that a download would not help: it was tried, or the complete wheel was refused.
    is_in_vain: Vec<&'static str>,
    accept: F,
}

impl<T, F: Fn(&Path) -> Result<T, PjrtError>> Search<F> {
    fn all_places(&mut self, wheels: &[&'static Wheel], options: &FindOptions) -> Option<T> {
        let cache = options.cache();
        match &cache {
            Err(error) => self.failed("cache".into(), error),
            Ok(cache) => {
                if let Some(found) = wheels.iter().find_map(|wheel| self.try_cache(cache, wheel, options)) {
                    return Some(found);
                }
            }
        }
        if options.search_python_packages
            && let Some(found) = self.python_packages(wheels)
        {
            return Some(found);
        }
        let (Ok(cache), Some(wheel)) = (&cache, wheels.first()) else { return None };
        self.fetch(cache, wheel, options)
    }

    /// Looks into the cache. The first wheel of a platform is the one that meshloom is tested with most, and the others
    /// stand in for it: one that is damaged is fetched anew before another is taken in its place. Where that cannot be,
    /// a warning says it.
    fn try_cache(&mut self, cache: &Path, wheel: &'static Wheel, options: &FindOptions) -> Option<T> {
        let path = cached_path(cache, wheel);
        match check_cached(cache, wheel) {
            Ok(()) => {
                self.is_in_vain.push(wheel.name());
                self.try_file("cache", &path)
            }
            Err(error) if path.exists() => {
                // Another plugin may do in its place, and then nothing else would say so.
                tracing::warn!("{error}");
                self.failed(format!("cache {}", path.display()), error);
                self.fetch(cache, wheel, options)
            }
            Err(_) => self.try_file("cache", &path),
        }
    }

    fn failed(&mut self, place: String, reason: impl ToString) {
        self.attempts.push(Attempt { place, reason: reason.to_string() });
    }

    fn try_file(&mut self, kind: &str, path: &Path) -> Option<T> {
        let place = format!("{kind} {}", path.display());
        if let Err(error) = fs::metadata(path) {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            self.failed(place, if missing { "no such file".into() } else { error.to_string() });
            return None;
        }
        (self.accept)(path).map_err(|error| self.failed(place, error)).ok()
    }

    fn python_packages(&mut self, wheels: &[&Wheel]) -> Option<T> {
        let place = "installed Python packages".to_owned();
        let folders = match python_folders() {
            Ok(folders) => folders,
            Err(reason) => {
                self.failed(place, reason);
                return None;
            }
        };
        let before = self.attempts.len();
        for wheel in wheels {
            for folder in &folders {
                let path = folder.join(wheel.object);
                if path.is_file()
                    && let Some(found) = self.try_file("Python package", &path)
                {
                    return Some(found);
                }
            }
        }
        if self.attempts.len() == before {
            let names: Vec<_> = wheels.iter().map(|wheel| wheel.name()).collect();
            let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            self.failed(place, format!("none of {} in {}", names.join(", "), folders.join(", ")));
        }
        None
    }

    fn fetch(&mut self, cache: &Path, wheel: &'static Wheel, options: &FindOptions) -> Option<T> {
        if self.is_in_vain.contains(&wheel.name()) {
            return None;
        }
        self.is_in_vain.push(wheel.name());
        let place = format!("download of {}", wheel.requirements());
        if is_offline() {
            self.failed(place, "forbidden by MESHLOOM_OFFLINE=1");
            return None;
        }
        if !options.allow_fetch {
            self.failed(place, "forbidden by the caller");
            return None;
        }
        let found = fetch(cache, wheel).and_then(|path| (self.accept)(&path));
        found.map_err(|error| self.failed(place, error)).ok()
    }
}

/// The folders that the `python3` on the path finds packages in; or why it does not say.
pub(super) fn python_folders() -> Result<Vec<PathBuf>, String> {
    // The empty entry of the path is the current folder, which is not a package.
    let script =
        "import site, sys; print('\\n'.join(dict.fromkeys([p for p in sys.path if p] + site.getsitepackages())))";
    // The command does not run in the user's current folder, which may be a stranger's: nothing is to be imported from
    // there.
    let output = Command::new(PYTHON).args(["-c", script]).current_dir("/").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run python3: {error}"))?;
    if !output.status.success() {
        return Err(format!("python3 ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(PathBuf::from).filter(|folder| folder.is_dir()).collect())
}

/// Nothing is fetched by a program that is built without it.
#[cfg(not(feature = "fetch"))]
fn fetch(_: &Path, wheel: &Wheel) -> Result<PathBuf, PjrtError> {
    Err(not_built(&wheel.package))
}

#[cfg(not(feature = "fetch"))]
pub(super) fn fetch_with(_: &Path, package: &Package, _: &str, _: &[&str]) -> Result<PathBuf, PjrtError> {
    Err(not_built(package))
}

#[cfg(not(feature = "fetch"))]
fn not_built(package: &Package) -> PjrtError {
    let requirement = package.requirement();
    let reason = format!(
        "this program is built without the feature `fetch`; build it with that, or run `pip install {requirement}` by hand"
    );
    PjrtError::Fetch { wheel: requirement, reason }
}
