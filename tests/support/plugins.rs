//! Plugins for tests: every CPU plugin, and the large ones where they are at hand.
//!
//! The CPU plugins (60 MB each) are downloaded when they are not in the plugin cache; those for TPUs and GPUs (200 MB each) only when
//! the user asks for it.

use std::env;
use std::sync::{Arc, OnceLock};

use meshloom::pjrt::{Client, ClientOptions, FindOptions, PjrtError, Plugin, Wheel};

/// The wheels that carry a CPU plugin.
pub fn cpu_wheels() -> impl Iterator<Item = &'static Wheel> {
    Wheel::of_platform("cpu")
}

/// The plugin of a wheel. They may all be loaded into one process: each keeps its symbols to itself.
pub fn load(wheel: &Wheel) -> Arc<Plugin> {
    let options = FindOptions { wheel: Some(wheel.name().into()), ..FindOptions::default() };
    Plugin::find_with(wheel.platform, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Every CPU plugin.
pub fn cpu_plugins() -> Vec<Arc<Plugin>> {
    cpu_wheels().map(load).collect()
}

/// Whether the plugin for hardware that is not there is at hand; else why not. With `MESHLOOM_TEST_PLUGINS=all` it is downloaded if it
/// is not, and an error is one.
pub fn large_plugin(platform: &str) -> Result<Result<(), String>, PjrtError> {
    let is_needed = env::var_os("MESHLOOM_TEST_PLUGINS").is_some_and(|value| value == "all");
    match Plugin::locate(platform, &FindOptions { allow_fetch: is_needed, ..FindOptions::default() }) {
        Ok(_) => Ok(Ok(())),
        Err(error) if is_needed => Err(error),
        Err(_) => Ok(Err(format!("no {platform} plugin; MESHLOOM_TEST_PLUGINS=all downloads it"))),
    }
}

/// A client of every CPU plugin, with its wheel's name; made once for all tests of a file. With `MESHLOOM_TEST_CPU=NAME` only that
/// wheel's.
pub fn cpu_clients() -> &'static [(&'static str, Client)] {
    static CLIENTS: OnceLock<Vec<(&'static str, Client)>> = OnceLock::new();
    CLIENTS.get_or_init(|| {
        let only = env::var("MESHLOOM_TEST_CPU").ok().filter(|name| !name.is_empty());
        let is_wanted = |wheel: &&Wheel| only.as_deref().is_none_or(|only| only == wheel.name());
        let client = |wheel: &'static Wheel| {
            let client = Client::new(&load(wheel), &ClientOptions { device_count: Some(8), ..Default::default() });
            (wheel.name(), client.unwrap_or_else(|error| panic!("{}: {error}", wheel.name())))
        };
        let clients: Vec<_> = cpu_wheels().filter(is_wanted).map(client).collect();
        assert!(!clients.is_empty(), "MESHLOOM_TEST_CPU names no CPU wheel");
        clients
    })
}
