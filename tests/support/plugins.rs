//! Plugins for tests: every CPU plugin, and the large ones where they are at hand.
//!
//! The CPU plugins (60 MB each) are downloaded when they are not in the plugin cache; those for TPUs and GPUs (200 MB
//! each) only when the user asks for it.

use std::collections::BTreeMap;
use std::env;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use meshloom::pjrt::{Client, ClientOptions, FindOptions, Plugin, Wheel};

/// The wheels that carry a CPU plugin.
pub fn cpu_wheels() -> impl Iterator<Item = &'static Wheel> {
    Wheel::of_platform("cpu")
}

/// The CPU wheels that tests go through: with `MESHLOOM_TEST_CPU=NAME` only that wheel.
pub fn chosen_cpu_wheels() -> Vec<&'static Wheel> {
    let only = env::var("MESHLOOM_TEST_CPU").ok().filter(|name| !name.is_empty());
    let chosen: Vec<_> = cpu_wheels().filter(|wheel| only.as_deref().is_none_or(|only| only == wheel.name())).collect();
    assert!(!chosen.is_empty(), "MESHLOOM_TEST_CPU names no CPU wheel");
    chosen
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

/// Returns the reason why tests of a platform's plugin are ignored; `None` if they run, since the plugin is there. With
/// `MESHLOOM_TEST_PLUGINS=all` a missing plugin is downloaded, and its absence is an error. The plugin is looked for
/// once for all tests of a program.
pub fn why_without(platform: &'static str) -> Result<Option<String>, String> {
    type Found = BTreeMap<&'static str, Result<Option<String>, String>>;
    static FOUND: Mutex<Found> = Mutex::new(Found::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let look = || {
        let is_needed = env::var_os("MESHLOOM_TEST_PLUGINS").is_some_and(|value| value == "all");
        match Plugin::locate(platform, &FindOptions { allow_fetch: is_needed, ..FindOptions::default() }) {
            Ok(_) => Ok(None),
            Err(error) if is_needed => Err(error.to_string()),
            Err(_) => Ok(Some(format!("no {platform} plugin; MESHLOOM_TEST_PLUGINS=all downloads it"))),
        }
    };
    found.entry(platform).or_insert_with(look).clone()
}

/// A client of every CPU plugin, with its wheel's name; made once for all tests of a file. With
/// `MESHLOOM_TEST_CPU=NAME` only that wheel's.
pub fn cpu_clients() -> &'static [(&'static str, Client)] {
    static CLIENTS: OnceLock<Vec<(&'static str, Client)>> = OnceLock::new();
    CLIENTS.get_or_init(|| {
        let client = |wheel: &'static Wheel| {
            let client = Client::new(&load(wheel), &ClientOptions { device_count: Some(8), ..Default::default() });
            (wheel.name(), client.unwrap_or_else(|error| panic!("{}: {error}", wheel.name())))
        };
        chosen_cpu_wheels().into_iter().map(client).collect()
    })
}
