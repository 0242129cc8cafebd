//! `meshloom`: trains decoders, generates text, reads and writes published models, and explains its run config.

mod ahead;
mod arguments;
mod config;
mod exchange;
mod generate;
mod logits;
mod outputs;
mod plan;
#[cfg(feature = "cluster")]
mod processes;
mod train;

use std::io::IsTerminal;
use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;
use meshloom::pjrt::{end_process, worker};

fn main() -> ExitCode {
    // For --target: the compiler runs in a child process, which is this program again.
    worker::run_if_asked();
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,meshloom=info".into());
    let to_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(to_terminal);
    log.with_writer(std::io::stderr).init();
    let result = match &arguments.command {
        Command::Train(arguments) => train::run(arguments),
        Command::Generate(arguments) => generate::run(arguments),
        Command::Import(arguments) => exchange::import(arguments),
        Command::Export(arguments) => exchange::export(arguments),
        Command::Logits(arguments) => logits::run(arguments),
        Command::Config(arguments) => config::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            // A step that took too long still runs.
            end_process(1)
        }
    }
}
