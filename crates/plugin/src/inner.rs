//! Opening the plugin that is wrapped.
#![allow(unsafe_code)]

use std::error::Error;
use std::path::{Path, PathBuf};

use libloading::Library;
use meshloom_pjrt::raw::{self, PJRT_API_MAJOR, PJRT_Api};

/// The reason why the inner plugin cannot be opened.
#[derive(thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum InnerError {
    /// The loader refuses the file.
    #[error("cannot load {}: {reason}; MESHLOOM_PLUGIN_INNER is to name a PJRT plugin (.so)", path.display())]
    Load { path: PathBuf, reason: String },
    /// The file is no plugin, or will not be one.
    #[error("{} is no PJRT plugin: {reason}; set MESHLOOM_PLUGIN_INNER to another file", path.display())]
    NotAPlugin { path: PathBuf, reason: &'static str },
    /// The plugin's API is another.
    #[error(
        "{} has version {major}.{minor} of the PJRT C API, and version {PJRT_API_MAJOR} is known; \
         take another plugin, or a newer meshloom", path.display()
    )]
    Version { path: PathBuf, major: i32, minor: i32 },
    /// The file is this plugin.
    #[error("{} is meshloom's own plugin; set MESHLOOM_PLUGIN_INNER to the one that it is to wrap", path.display())]
    Itself { path: PathBuf },
}

meshloom_hlo::debug_is_message!(InnerError);

/// The type of the function that a plugin exports.
pub(crate) type GetApi = unsafe extern "C" fn() -> *const PJRT_Api;

/// Loads a plugin, and returns its function table. The plugin stays loaded until the process ends. `own` is the
/// function that asks.
pub(crate) fn open(path: &Path, own: GetApi) -> Result<*const PJRT_Api, InnerError> {
    let not_a_plugin = |reason| InnerError::NotAPlugin { path: path.to_owned(), reason };
    // SAFETY: this runs the file's initialisers, which is what loading a plugin means; the one who names the file
    // trusts it.
    let library = unsafe { Library::new(path) };
    let library = library.map_err(|error| InnerError::Load { path: path.to_owned(), reason: cause(&error) })?;
    // SAFETY: every PJRT plugin exports this symbol with this type.
    let get = unsafe { library.get::<GetApi>(c"GetPjrtApi") };
    let get = *get.map_err(|_| not_a_plugin("it has no function GetPjrtApi"))?;
    if std::ptr::fn_addr_eq(get, own) {
        // Our own file would wait here for itself.
        return Err(InnerError::Itself { path: path.to_owned() });
    }
    // SAFETY: as above; the function takes nothing.
    let table = unsafe { get() };
    // From here on the library may have started threads: it is never unloaded, used or not.
    std::mem::forget(library);
    if table.is_null() {
        return Err(not_a_plugin("its GetPjrtApi returned null"));
    }
    // SAFETY: the table is from `GetPjrtApi`, is not null, and the plugin stays loaded.
    let version = unsafe { raw::version(table) };
    let (major, minor) = version.ok_or_else(|| not_a_plugin("its function table is too short"))?;
    match major == PJRT_API_MAJOR as i32 {
        true => Ok(table),
        false => Err(InnerError::Version { path: path.to_owned(), major, minor }),
    }
}

/// The loader's message: libloading's own says only that `dlopen` failed, the reason is its source.
fn cause(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
