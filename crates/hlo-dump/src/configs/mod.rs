//! Run configs as inputs: reading, lowering, compiling. `absent.rs` takes the place of this module if the program is
//! built without the feature `configs`.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

pub mod ahead;
mod run;
mod timeline;

pub use run::{is_config, load, on_topology, read, text};

/// Runs before everything else.
pub fn start() {
    // The compiler runs in a child process, which is this program again.
    meshloom::pjrt::worker::run_if_asked();
    let chosen = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let usual = || Targets::new().with_default(LevelFilter::WARN).with_target("meshloom", LevelFilter::INFO);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).without_time();
    let log = log.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    log.finish().with(chosen.unwrap_or_else(usual)).init();
}
