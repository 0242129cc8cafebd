//! Run configs as inputs of `hlo-dump` and of `meshloom`'s commands, with the feature `configs`: reading, lowering,
//! compiling.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

pub mod ahead;
mod run;
mod timeline;

pub use run::text;

use crate::run::Reader;

pub const READER: Reader = Reader { is_config: run::is_config, read: run::read };

/// Runs before everything else: the work of a child process, if this is one, and the log.
pub fn start() {
    // The compiler runs in a child process, which is this program again.
    meshloom::pjrt::worker::run_if_asked();
    let chosen = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let usual = || Targets::new().with_default(LevelFilter::WARN).with_target("meshloom", LevelFilter::INFO);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).without_time();
    let log = log.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    log.finish().with(chosen.unwrap_or_else(usual)).init();
}
