//! The start: settings, the inner plugin, and the table that is handed out.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use meshloom_pjrt::raw::PJRT_Api;

use super::boundary::FUNCTIONS;
use super::decide::message;
use super::dump::Dump;
use super::inner::{self, InnerError};
use super::partition::Partition;
use super::rewrite::Rewrite;
use super::say::say;
use super::settings::{INNER, Mode, SettingError, Settings};
use super::state::{STARTED, Started, started};
use super::table;

/// The reason why the plugin does not start.
#[derive(thiserror::Error)]
pub enum StartError {
    /// A variable has a value that means nothing.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No plugin is named.
    #[error("there is no plugin to wrap; set {INNER} to the path of a PJRT plugin (.so)")]
    NoInner,
    /// The plugin that is named cannot be opened.
    #[error(transparent)]
    Inner(#[from] InnerError),
}

meshloom_hlo::debug_is_message!(StartError);

/// Starts the plugin, and returns its function table. It starts once in a process: later calls return the same table,
/// whatever they ask for. The environment is not looked at.
///
/// # Errors
/// There is no inner plugin, or it cannot be opened. A later call may succeed.
pub fn start(settings: Settings, rewrite: Box<dyn Rewrite>) -> Result<*const PJRT_Api, StartError> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(started) = started() {
        return Ok(started.table);
    }
    let path = settings.inner.ok_or(StartError::NoInner)?;
    let inner = inner::open(&path, GetPjrtApi)?;
    let table = match settings.mode {
        Mode::Off => inner,
        // SAFETY: the table is from a `GetPjrtApi`, not null, and the functions are of the types of their fields.
        Mode::On => unsafe { table::copy(inner, FUNCTIONS) },
    };
    let dump = settings.dump.map(Dump::new);
    Ok(STARTED.get_or_init(|| Started { inner, table, rewrite, log: settings.log, dump }).table)
}

/// PJRT's entry: returns the function table; null after a line on standard error that says why there is none.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const PJRT_Api {
    let start = || -> Result<_, StartError> { start(Settings::from_environment()?, Box::new(Partition)) };
    match catch_unwind(AssertUnwindSafe(start)) {
        Ok(Ok(table)) => table,
        Ok(Err(error)) => {
            say(&error);
            ptr::null()
        }
        Err(panic) => {
            say(format_args!("it panicked at its start: {}; please report this", message(&*panic)));
            ptr::null()
        }
    }
}
