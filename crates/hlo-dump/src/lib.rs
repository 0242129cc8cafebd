//! `hlo-dump`: shows any partitioned program.
//!
//! Each command is a file: it loads its inputs (`input.rs`), calls `meshloom_analysis`, and prints a table or JSON
//! (`output.rs`). `meshloom_analysis` computes; a command only prints.
//!
//! [`main`] is the program. [`run`] runs a command within another process: its input and output are in memory, and
//! several threads may run commands at the same time. The program `meshloom` has commands of the same kind: they share
//! the modules for inputs and output, [`parse`] and [`execute`].

#[cfg(feature = "compiler")]
mod advise;
#[cfg(feature = "configs")]
#[doc(hidden)]
pub mod ahead;
#[doc(hidden)]
pub mod arguments;
mod check;
#[doc(hidden)]
pub mod collectives;
#[doc(hidden)]
pub mod conditionals;
#[cfg(feature = "configs")]
#[doc(hidden)]
pub mod configs;
#[doc(hidden)]
pub mod cost;
mod diff;
#[doc(hidden)]
pub mod emitted;
mod explain;
mod folder;
#[doc(hidden)]
pub mod input;
#[doc(hidden)]
pub mod internals;
#[doc(hidden)]
pub mod markup;
mod lock;
#[cfg(feature = "mcp")]
mod mcp;
mod memory;
mod moved;
#[doc(hidden)]
pub mod output;
#[doc(hidden)]
pub mod overlap;
#[cfg(feature = "compiler")]
mod partition;
mod replication;
mod report;
mod run;
mod schema;
mod selection;
mod show;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod streams;
mod traffic;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use arguments::{Check, Collectives, Common, Cost, Diff, Explain, Lock, Memory, Overlap, Report, Show, Traffic};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, Parser, Subcommand};
use meshloom_hlo::message::shown_error;
use meshloom_hlo::suggest::did_you_mean;
use streams::Stream;
pub use streams::{Caller, Ran, within};

/// Shows any partitioned program: what moves, how often and over which mesh axis; what fills memory; what changed.
///
/// Reads HLO and StableHLO from any source: text or protos from JAX, MaxText or PyTorch/XLA, XLA dump folders,
/// profiles, and meshloom's own run configs. Only `--stage compiled` of a config, and a check of what is compiled, need
/// a plugin.
#[derive(Parser)]
#[command(name = "hlo-dump", version, max_term_width = 110, after_help = EXIT_STATUS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

const EXIT_STATUS: &str = "INPUT is HLO or StableHLO text, an HLO proto, an XLA dump folder, a profile (*.xplane.pb), a \
run config (.toml), or - for standard input; the format is detected from the content.\n\nExit status: 0 done; 1 `check` \
found a violation, or `diff --exit-code` a difference; 2 an error.";

#[derive(Subcommand)]
enum Command {
    /// Print the program: as HLO text, a proto, JSON, a drawing, or a page
    Show(Show),
    /// List what moves: each collective with its mesh axes, bytes, executions and source line
    #[command(visible_alias = "comms")]
    Collectives(Collectives),
    /// List the traffic over a slow axis by step: over a sync period, in each branch that is taken
    Traffic(Traffic),
    /// Show what fills memory: arguments, outputs, temporaries, and the buffers live at the peak
    Memory(Memory),
    /// Estimate what a program costs on a chip: operations, bytes, and whether compute, memory or links limit it
    Cost(Cost),
    /// Estimate what a compiled schedule hides: how long each collective takes, and how long the device waits for it
    Overlap(Overlap),
    /// Explain why a tensor has its sharding: from rule or annotation, op by op
    Explain(Explain),
    /// Partition a program as JAX lowers it, before XLA does: what it then moves and holds
    #[cfg(feature = "compiler")]
    Partition(arguments::Partition),
    /// Compare what meshloom and XLA make of a program as JAX lowers it, and try constraints that would change it
    #[cfg(feature = "compiler")]
    Advise(arguments::Advise),
    /// Compare two programs by meaning: renumbering is no difference
    Diff(Diff),
    /// Put everything on one page that needs no network
    Report(Report),
    /// Write what a program moves and holds to a file, which `check --lock` compares
    Lock(Lock),
    /// Hold a program to limits, for CI
    Check(Check),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff
    Man {
        /// The command; by default hlo-dump itself
        command: Option<String>,
    },
    /// Print the JSON Schema of what commands print with --json
    Schema {
        /// The command; by default all of them
        command: Option<String>,
    },
    /// Serve the commands as tools, by the Model Context Protocol over standard input and output
    ///
    /// Tools read only files below the current folder, write none, and neither read run configs nor compile.
    #[cfg(feature = "mcp")]
    Mcp,
}

impl Command {
    /// Whether it has no form as JSON, or no other.
    fn prints_no_answer(&self) -> bool {
        match self {
            Command::Completions { .. } | Command::Man { .. } | Command::Schema { .. } => true,
            #[cfg(feature = "mcp")]
            Command::Mcp => true,
            _ => false,
        }
    }
}

/// The outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command did what it was asked to.
    Done,
    /// A check found something, or a diff a difference.
    Found,
}

/// The program: it reads the process's arguments and streams, and logs what the compiler reports. It ends the process
/// if a reader of its output has gone away.
pub fn main() -> ExitCode {
    #[cfg(feature = "configs")]
    configs::start();
    ExitCode::from(execute_line(std::env::args_os()))
}

/// Runs a command with the arguments that follow the program's name.
///
/// The command neither reads nor prints to the process's own streams. Paths are relative to the process's current
/// folder. The caller decides whether to subscribe to logs.
pub fn run<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>, caller: Caller) -> Ran {
    let name = std::iter::once("hlo-dump".into());
    streams::within(caller, || execute_line(name.chain(arguments.into_iter().map(Into::into))))
}

fn execute_line(command_line: impl Iterator<Item = OsString>) -> u8 {
    match parse::<Arguments>(command_line, |_| true) {
        Ok(Arguments { command, common }) => execute(&common, |json| execute_command(command, json)),
        Err(error) => {
            let status = print_usage(&error);
            if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
                && ["plan", "compile", "bisect", "doctor"].contains(&name.as_str())
            {
                output::error_line(&format!("`{name}` is a command of meshloom: `meshloom {name}`"));
            }
            status
        }
    }
}

/// Prints the error of a command line, or the help that it asks for, and returns the exit status.
pub fn print_usage(error: &clap::Error) -> u8 {
    // Help is not an error, and goes to the standard output.
    let stream = if error.use_stderr() { Stream::Err } else { Stream::Out };
    let _ = streams::print_styled(stream, &error.render().ansi().to_string());
    if error.use_stderr() { 2 } else { 0 }
}

/// Runs a command, which gets whether it is to print JSON. Prints its error, and returns the exit status.
pub fn execute(common: &Common, command: impl FnOnce(bool) -> Result<Outcome>) -> u8 {
    output::configure(common.color, common.units);
    streams::set_limits(common.max_size, common.max_depth);
    streams::set_redaction(common.redact.as_deref());
    match command(common.json) {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Found) => 1,
        Err(error) => {
            let error = format!("{error:#}");
            output::error_line(&format!("{} {}", output::paint(output::BAD, "error:"), shown_error(&error)));
            2
        }
    }
}

/// Reads the command line of a program whose commands have [`Common`] arguments where `is_common` says so of their
/// names. A negative number is a value, which the option then refuses in its own words. A limit of rows with `--json`,
/// which prints all rows, is an error.
///
/// # Errors
/// The command line cannot be read, or asks for help.
pub fn parse<A: Parser>(
    command_line: impl IntoIterator<Item = OsString>,
    is_common: impl Fn(&str) -> bool,
) -> Result<A, clap::Error> {
    let takes_numbers = |argument: clap::Arg| match argument.get_action().takes_values() && !argument.is_positional() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    };
    let mut command = A::command().mut_subcommands(|command| match is_common(command.get_name()) {
        true => command.mut_args(takes_numbers),
        false => command,
    });
    let matches = command.try_get_matches_from_mut(command_line)?;
    let is_limited = |given: &clap::ArgMatches| {
        let has = |id: &str| given.ids().any(|it| it == id);
        let is_json = has("json") && given.get_flag("json");
        is_json && has("limit") && given.value_source("limit") == Some(ValueSource::CommandLine)
    };
    if matches.subcommand().is_some_and(|(_, given)| is_limited(given)) {
        let what = "--limit is for tables; --json prints all rows, so leave one of them out";
        return Err(command.error(ErrorKind::ArgumentConflict, what));
    }
    A::from_arg_matches(&matches)
}

fn execute_command(command: Command, json: bool) -> Result<Outcome> {
    if json && command.prints_no_answer() {
        anyhow::bail!("--json: this command prints no table; `collectives`, `memory`, `cost` and the others do");
    }
    match command {
        Command::Show(show) => show::run(&show, json)?,
        Command::Collectives(collectives) => collectives::run(&collectives, json)?,
        Command::Memory(memory) => memory::run(&memory, json)?,
        Command::Cost(cost) => cost::run(&cost, json)?,
        Command::Overlap(overlap) => overlap::run(&overlap, json)?,
        Command::Explain(explain) => explain::run(&explain, json)?,
        #[cfg(feature = "compiler")]
        Command::Partition(partition) => partition::run(&partition, json)?,
        #[cfg(feature = "compiler")]
        Command::Advise(advise) => advise::run(&advise, json)?,
        Command::Diff(diff) => return diff::run(&diff, json),
        Command::Traffic(traffic) => traffic::run(&traffic, json)?,
        Command::Report(report) => report::run(&report, json)?,
        Command::Lock(lock) => lock::run(&lock, json)?,
        Command::Check(check) => return check::run(&check, json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "hlo-dump", &mut script);
            output::bytes_as_they_are(&script)?;
        }
        Command::Man { command } => manual(command.as_deref())?,
        Command::Schema { command } => schema::run(command.as_deref())?,
        #[cfg(feature = "mcp")]
        Command::Mcp => mcp::run(&Arguments::command())?,
    }
    Ok(Outcome::Done)
}

fn manual(name: Option<&str>) -> Result<()> {
    let mut all = Arguments::command();
    // Commands then know whose they are: `hlo-dump memory` in place of `memory`.
    all.build();
    let page = match name {
        None => clap_mangen::Man::new(all),
        Some(name) => match all.find_subcommand(name) {
            Some(command) => clap_mangen::Man::new(command.clone()).title(format!("hlo-dump-{name}")),
            None => {
                let near = did_you_mean(name, all.get_subcommands().map(clap::Command::get_name));
                anyhow::bail!("there is no command \"{name}\"{near}; `hlo-dump --help` lists them")
            }
        },
    };
    let mut text = Vec::new();
    page.render(&mut text)?;
    output::bytes_as_they_are(&text)
}
