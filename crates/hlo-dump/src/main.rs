//! `hlo-dump`: shows any partitioned program.
//!
//! Each command is a file: it loads its inputs (`input.rs`), calls `meshloom_hlo::analysis`, and prints a table or
//! JSON (`output.rs`). The library computes; this program only prints.

mod arguments;
mod check;
mod collectives;
mod compile;
mod conditionals;
mod cost;
mod diff;
mod doctor;
mod explain;
mod folder;
mod input;
mod memory;
mod output;
mod plan;
mod replication;
mod report;
mod show;
mod traffic;

use std::process::ExitCode;

use anyhow::Result;
use arguments::{Arguments, Command};
use clap::{CommandFactory, Parser};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// A check found something, or a diff a difference.
    Found,
}

fn main() -> ExitCode {
    // The compiler runs in a child process, which is this program again.
    meshloom::pjrt::worker::run_if_asked();
    let arguments = Arguments::parse();
    output::configure(arguments.color, arguments.units);
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,meshloom=info".into());
    tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).init();
    match run(arguments) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Found) => ExitCode::from(1),
        Err(error) => {
            anstream::eprintln!("{} {error:#}", output::paint(output::BAD, "error:"));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<Outcome> {
    let json = arguments.json;
    if json && matches!(arguments.command, Command::Completions { .. } | Command::Man { .. }) {
        anyhow::bail!("--json: this command prints no table; `collectives`, `memory`, `cost` and the others do");
    }
    match arguments.command {
        Command::Show(show) => show::run(&show, json)?,
        Command::Collectives(collectives) => collectives::run(&collectives, json)?,
        Command::Memory(memory) => memory::run(&memory, json)?,
        Command::Cost(cost) => cost::run(&cost, json)?,
        Command::Explain(explain) => explain::run(&explain, json)?,
        Command::Diff(diff) => return diff::run(&diff, json),
        Command::Plan(plan) => plan::run(&plan, json)?,
        Command::Traffic(traffic) => traffic::run(&traffic, json)?,
        Command::Report(report) => report::run(&report, json)?,
        Command::Compile(compile) => compile::run(&compile, json)?,
        Command::Check(check) => return check::run(&check, json),
        Command::Doctor(doctor) => doctor::run(&doctor, json)?,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "hlo-dump", &mut std::io::stdout());
        }
        Command::Man { command } => manual(command.as_deref())?,
    }
    Ok(Outcome::Done)
}

/// The manual page of a command, or of all.
fn manual(name: Option<&str>) -> Result<()> {
    let all = Arguments::command();
    let page = match name {
        None => clap_mangen::Man::new(all),
        Some(name) => match all.find_subcommand(name) {
            Some(command) => clap_mangen::Man::new(command.clone()).title(format!("hlo-dump-{name}")),
            None => anyhow::bail!("there is no command \"{name}\"; `hlo-dump --help` lists them"),
        },
    };
    Ok(page.render(&mut std::io::stdout())?)
}
