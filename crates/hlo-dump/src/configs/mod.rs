//! Run configs, and what asks a plugin: all that knows the compiler and the trainer. `absent.rs` stands in its place
//! where the program is built without the feature `configs`.

use std::io::IsTerminal;

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
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,meshloom=info".into());
    let to_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(to_terminal);
    log.with_writer(std::io::stderr).init();
}
