//! Run configs, and what asks a plugin: all that knows the compiler and the trainer. `absent.rs` stands in its place
//! where the program is built without the feature `configs`.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

mod ahead;
mod bisect;
pub mod commands;
pub mod compile;
mod doctor;
mod hidden;
mod plan;
mod plan_context;
mod plan_picture;
mod plan_search;
pub mod run;
mod timeline;

/// What comes before everything else.
pub fn start() {
    // The compiler runs in a child process, which is this program again.
    meshloom::pjrt::worker::run_if_asked();
    let chosen = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let usual = || Targets::new().with_default(LevelFilter::WARN).with_target("meshloom", LevelFilter::INFO);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).without_time();
    let log = log.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    log.finish().with(chosen.unwrap_or_else(usual)).init();
}
