//! The C API itself, for a plugin that stands in for another: its types and constants as the header has them, and what
//! reads a table that may be shorter or longer than ours.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use super::api::Api;
use super::error::PjrtError;
use super::plugin::Plugin;
pub use super::sys::*;

/// Returns the major and minor version of a table; `None` if it is too short to have one.
///
/// # Safety
/// A plugin's `GetPjrtApi` must have returned the table, which is not null, and the plugin must stay loaded for ever.
pub unsafe fn version(table: *const PJRT_Api) -> Option<(i32, i32)> {
    // SAFETY: the caller's promise.
    unsafe { Api::from_raw(table) }.version()
}

/// Returns the function at an offset of [`PJRT_Api`]; `None` if the table does not reach it, or does not have it.
///
/// # Safety
/// As of [`version`]. `F` must be the type of the function in the field at this offset.
pub unsafe fn function<F: Copy>(table: *const PJRT_Api, offset: usize) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { Api::from_raw(table) }.function(offset)
}

/// Turns what a function of the table returned into an error of ours, and frees it. Null is no error.
///
/// # Errors
/// [`PjrtError::Plugin`] with the name of the function, and the code and message of the error.
///
/// # Safety
/// As of [`version`]. `error` must be null or an error of this plugin that no other code frees.
pub unsafe fn check(table: *const PJRT_Api, function: &'static str, error: *mut PJRT_Error) -> Result<(), PjrtError> {
    // SAFETY: the caller's promise.
    unsafe { Api::from_raw(table).check(function, error) }
}

/// Returns the plugin with this table as one to open clients of. Messages call it by `name`.
///
/// # Errors
/// As of [`Plugin::load`].
///
/// # Safety
/// As of [`version`].
pub unsafe fn plugin(name: &Path, table: *const PJRT_Api) -> Result<Arc<Plugin>, PjrtError> {
    // SAFETY: the caller's promise.
    unsafe { Plugin::from_table(name, table) }
}
