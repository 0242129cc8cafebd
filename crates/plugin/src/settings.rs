//! The variables of the environment, read once.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The variable that names the plugin to wrap.
pub(crate) const INNER: &str = "MESHLOOM_PLUGIN_INNER";
const MODE: &str = "MESHLOOM_PLUGIN";
const LOG: &str = "MESHLOOM_PLUGIN_LOG";
const DUMP: &str = "MESHLOOM_PLUGIN_DUMP";

/// How much the plugin does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It looks at each program, and may replace it.
    #[default]
    On,
    /// It hands out the inner plugin's table as it is.
    Off,
}

/// The settings that the environment states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The file of the plugin to wrap (`MESHLOOM_PLUGIN_INNER`).
    pub inner: Option<PathBuf>,
    /// How much the plugin does (`MESHLOOM_PLUGIN`).
    pub mode: Mode,
    /// Whether each compiled program gets a line on standard error (`MESHLOOM_PLUGIN_LOG`).
    pub log: bool,
    /// The folder in which programs are kept (`MESHLOOM_PLUGIN_DUMP`).
    pub dump: Option<PathBuf>,
}

/// A variable whose value means nothing.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {found:?}, expected {expected}; set it to one of them, or unset it")]
pub struct SettingError {
    variable: &'static str,
    found: OsString,
    expected: &'static str,
}

meshloom_hlo::debug_is_message!(SettingError);

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A variable has a value that means nothing.
    pub fn from_environment() -> Result<Settings, SettingError> {
        Settings::from_variables(|name| env::var_os(name))
    }

    /// Reads variables that `value` returns by name. An empty one is as one that is not set.
    ///
    /// # Errors
    /// As of [`from_environment`](Settings::from_environment).
    pub fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Result<Settings, SettingError> {
        let value = |name: &str| value(name).filter(|value| !value.is_empty());
        let mode = match value(MODE) {
            None => Mode::On,
            Some(text) => one_of(MODE, text, "on or off", &[("on", Mode::On), ("off", Mode::Off)])?,
        };
        let log = match value(LOG) {
            None => false,
            Some(text) => one_of(LOG, text, "1 or 0", &[("1", true), ("0", false)])?,
        };
        Ok(Settings { inner: value(INNER).map(PathBuf::from), mode, log, dump: value(DUMP).map(PathBuf::from) })
    }
}

fn one_of<T: Copy>(
    variable: &'static str,
    found: OsString,
    expected: &'static str,
    values: &[(&str, T)],
) -> Result<T, SettingError> {
    let meant = values.iter().find(|(name, _)| OsStr::new(name) == found);
    meant.map(|(_, meaning)| *meaning).ok_or(SettingError { variable, found, expected })
}
