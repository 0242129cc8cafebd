//! The state of the plugin, which is there from its start on.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use meshloom_pjrt::raw::PJRT_Api;

use super::dump::Dump;
use super::rewrite::Rewrite;

/// The state that all calls need.
pub(crate) struct Started {
    /// The inner plugin's table.
    pub(crate) inner: *const PJRT_Api,
    /// The table that is handed out.
    pub(crate) table: *const PJRT_Api,
    pub(crate) rewrite: Box<dyn Rewrite>,
    pub(crate) log: bool,
    pub(crate) dump: Option<Dump>,
}

// SAFETY: the tables are constant, and PJRT's functions may be called from any thread.
unsafe impl Send for Started {}
// SAFETY: as above.
unsafe impl Sync for Started {}

pub(crate) static STARTED: OnceLock<Started> = OnceLock::new();

/// The state, if the plugin has started.
pub(crate) fn started() -> Option<&'static Started> {
    STARTED.get()
}
