//! Finding and loading NVIDIA's libraries, which the CUDA plugin opens by name.
//!
//! The plugin has no wish where they lie: it asks the loader, which gives a library of that name that is loaded
//! already. So each is loaded here, with its symbols for all, before the plugin is.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use super::super::plugin::cause;
use super::super::record::Wanted;
use super::super::search::{FindOptions, fetch_with, is_offline, named_file, python_folders};
use super::super::wheels::{Package, WHEELS};
use super::nvidia::{LIBRARIES, Library};

/// A major version of CUDA, which plugins are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toolkit {
    /// CUDA 12, of the packages `nvidia-*-cu12`.
    Cuda12,
    /// CUDA 13, of the packages `nvidia-*`.
    Cuda13,
}

/// A library that the CUDA plugin opens, and what came of the search for it.
#[derive(Clone, Debug)]
pub struct FoundLibrary {
    /// The short name, `cublas`.
    pub name: &'static str,
    /// Its name for the loader, `libcublas.so.12`.
    pub soname: &'static str,
    /// The package on PyPI that has it.
    pub package: &'static str,
    /// The file, or its name alone if the loader found it; or the reason why there is none.
    found: Result<PathBuf, String>,
}

impl FoundLibrary {
    /// Where it was found.
    pub fn path(&self) -> Option<&Path> {
        self.found.as_ref().ok().map(PathBuf::as_path)
    }

    /// The reason why it is missing, if it is.
    pub fn problem(&self) -> Option<&str> {
        self.found.as_ref().err().map(String::as_str)
    }
}

impl Library {
    /// Its name for the loader, its folder, and its package.
    fn of(&self, toolkit: Toolkit) -> (&'static str, &'static str, &'static str) {
        match toolkit {
            Toolkit::Cuda12 => (self.cu12.0, self.cu12.1, self.cu12.2.name),
            Toolkit::Cuda13 => self.cu13,
        }
    }

    /// The package to fetch, if it is pinned.
    fn pinned(&self, toolkit: Toolkit) -> Option<&'static Package> {
        (toolkit == Toolkit::Cuda12).then_some(self.cu12.2)
    }
}

impl Toolkit {
    /// The one that a plugin's file is built for, by its wheel; of another file, CUDA 12 is believed.
    fn of(plugin: &Path) -> Toolkit {
        let is_of_13 = WHEELS.iter().any(|wheel| wheel.name().contains("cuda13") && plugin.ends_with(wheel.object));
        if is_of_13 { Toolkit::Cuda13 } else { Toolkit::Cuda12 }
    }
}

/// The libraries that a CUDA plugin opens, looked for as [`Client::open`](super::super::Client::open) does, but without
/// a download.
pub fn libraries_of(plugin: &Path) -> Vec<FoundLibrary> {
    load(plugin, &FindOptions { allow_fetch: false, ..FindOptions::default() })
}

/// Finds the libraries and loads them, in their order: from beside the plugin, from installed Python packages, from
/// meshloom's cache or the loader's path; else, on a machine with a driver, fetched.
pub fn load(plugin: &Path, options: &FindOptions) -> Vec<FoundLibrary> {
    let toolkit = Toolkit::of(plugin);
    let cache = options.cache().ok();
    // A user who names a plugin has the libraries that it needs, or means another plugin than CUDA's.
    let may_fetch = options.allow_fetch && !is_offline() && named_file("cuda").is_none() && super::driver::is_there();
    let roots = roots(plugin, options);
    let one = |library: &Library| {
        let (soname, folder, package) = library.of(toolkit);
        // It may open others beside it.
        let beside_it = format!("nvidia/{folder}/lib/");
        let inside = format!("{beside_it}{soname}");
        let beside = plugin.parent().map(|folder| folder.join(soname));
        let cached = cache.as_ref().zip(library.pinned(toolkit)).map(|(cache, package)| (package, cache));
        let in_cache = cached.and_then(|(package, cache)| {
            let (root, parts) = (package.root(cache), [&*beside_it]);
            let checked = Wanted::With { file: &inside, parts: &parts }.check(package, &root);
            checked.is_ok().then(|| root.join(&inside))
        });
        let installed = roots.iter().map(|root| root.join(&inside));
        let files = beside.into_iter().chain(installed).chain(in_cache).filter(|path| path.is_file());
        let mut found = first_loaded(files.chain([PathBuf::from(soname)]));
        if found.is_err()
            && may_fetch
            && let Some((package, cache)) = cached
        {
            let fetched = fetch_with(cache, package, &inside, &[&beside_it]);
            found = fetched.map_err(|error| error.to_string()).and_then(open);
        }
        FoundLibrary { name: library.name, soname, package, found }
    };
    LIBRARIES.iter().map(one).collect()
}

/// The folders in which packages are installed: the plugin's own, and those of Python.
fn roots(plugin: &Path, options: &FindOptions) -> Vec<PathBuf> {
    // `jax_plugins/xla_cuda12/xla_cuda_plugin.so` lies three below the packages' folder.
    let own = plugin.ancestors().nth(3).map(Path::to_owned);
    let installed = match options.search_python_packages {
        true => python_folders().unwrap_or_default(),
        false => Vec::new(),
    };
    own.into_iter().chain(installed).collect()
}

/// Loads the first of some files that can be; otherwise the last one's reason.
fn first_loaded(files: impl Iterator<Item = PathBuf>) -> Result<PathBuf, String> {
    files.map(open).reduce(|first, next| first.or(next)).unwrap_or_else(|| Err("nowhere to look".to_owned()))
}

/// Loads a library for the rest of the process, its symbols for all.
fn open(path: PathBuf) -> Result<PathBuf, String> {
    // SAFETY: this runs the initialisers of NVIDIA's library, as the plugin would.
    match unsafe { Loaded::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(path)
        }
        Err(error) => Err(cause(&error)),
    }
}
