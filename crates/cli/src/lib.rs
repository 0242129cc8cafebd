//! The program `meshloom` as a function of a command line.
//!
//! It trains, generates, plans, compiles and bisects; the commands that print an answer do so as those of `hlo-dump`,
//! with its functions for inputs and output.
//!
//! Two programs share this body: `meshloom`, and `meshloom-processes` of `meshloom-cluster`, which can also be one of
//! several processes. They differ in the [`Start`] that they pass to [`main`].

// It is the body of a program, which prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

/// `println!` and `eprintln!` of this program: control characters are shown, and not sent to a terminal. Names that are
/// printed may come from files that others have made.
macro_rules! println {
    () => { std::println!() };
    ($($what:tt)+) => { std::println!("{}", meshloom::hlo::message::shown(&format!($($what)+))) };
}
macro_rules! eprintln {
    ($($what:tt)+) => { std::eprintln!("{}", meshloom::hlo::message::shown_error(&format!($($what)+))) };
}

mod arguments;
#[doc(hidden)]
pub mod bisect;
mod compile;
mod config;
mod doctor;
mod elsewhere;
mod generate;
mod import_export;
#[doc(hidden)]
pub mod internals;
mod interrupts;
mod logits;
mod outputs;
mod plan;
mod processes;
mod progress;
mod train;
mod train_plan;
mod training_run;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use hlo_dump::Outcome;
use meshloom::pjrt::end_process;

use arguments::{Arguments, Command};

pub use elsewhere::{ELSEWHERE, Elsewhere};
pub use interrupts::{Interrupt, Interrupts};
pub use processes::{CertificateFlags, Join, Membership, ProcessFlags, Several, Start};

/// The whole program: it reads the command line of this process, runs it, prints errors, and returns the exit code. It
/// ends the process after a run that failed.
pub fn main(start: Start) -> ExitCode {
    hlo_dump::configs::start();
    let ran = elsewhere::check_version().and_then(|()| Ok(Interrupts::of_process()?)).map_err(Failure::Run);
    match ran.and_then(|interrupts| run_until(&interrupts, std::env::args_os(), start)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(error)) => {
            // If standard error is closed, the message has no reader, so an error of writing it is ignored.
            let _ = error.print();
            ExitCode::from(2)
        }
        Err(Failure::Printed(code)) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{failure}");
            // A step that took too long still runs.
            end_process(failure.exit_code().into())
        }
    }
}

/// Runs a command line, whose first word is the name of the program. Results and progress go to standard output and
/// standard error, as those of the program do. It neither ends the process nor sets up its log.
///
/// # Errors
/// The command line cannot be read, or the command fails.
pub fn run(words: impl IntoIterator<Item = impl Into<OsString>>, start: Start) -> Result<(), Failure> {
    run_until(&Interrupts::default(), words, start)
}

/// Does the same as [`run`], but training ends before its last step when it is asked to.
///
/// # Errors
/// The errors are those of [`run`]. A run that was asked to end and has ended is one, too.
pub fn run_until(
    interrupts: &Interrupts,
    words: impl IntoIterator<Item = impl Into<OsString>>,
    start: Start,
) -> Result<(), Failure> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let arguments = match parse(words.clone()) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => return Err(Failure::Usage(Box::new(error))),
        // The command line asks for help, or for the version.
        Err(help) => return help.print().map_err(|error| Failure::Run(error.into())),
    };
    let done = match &arguments.command {
        Command::Train(arguments) => train::run(arguments, &words, start, interrupts),
        Command::Generate(arguments) => generate::run(arguments),
        Command::Import(arguments) => import_export::import(arguments),
        Command::Export(arguments) => import_export::export(arguments),
        Command::Logits(arguments) => logits::run(arguments),
        Command::Config(arguments) => config::run(arguments),
        Command::Plan(it) => return printed(&it.common, |json| plan::run(&it.command, json).map(|()| Outcome::Done)),
        Command::Compile(it) => {
            return printed(&it.common, |json| compile::run(&it.command, json).map(|()| Outcome::Done));
        }
        Command::Bisect(it) => return printed(&it.common, |json| bisect::run(&it.command, json)),
        Command::Doctor(it) => {
            return printed(&it.common, |json| doctor::run(&it.command, json).map(|()| Outcome::Done));
        }
        Command::Certificates(arguments) => (start.certify)(arguments, &words).map(|advice| print!("{advice}")),
    };
    done.map_err(|error| match error.downcast() {
        Ok(ended) => Failure::Ended(ended),
        Err(error) => Failure::Run(error),
    })
}

/// The commands that print an answer.
const COMMON: [&str; 4] = ["plan", "compile", "bisect", "doctor"];

fn parse(words: Vec<OsString>) -> Result<Arguments, clap::Error> {
    hlo_dump::parse(words, |name| COMMON.contains(&name))
}

/// Runs a command that prints its answer, or its error.
fn printed(common: &hlo_dump::arguments::Common, command: impl FnOnce(bool) -> Result<Outcome>) -> Result<(), Failure> {
    match hlo_dump::execute(common, command) {
        0 => Ok(()),
        status => Err(Failure::Printed(status)),
    }
}

/// A run that was ended before its last step, alike on all its processes, after its state was saved.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Ended {
    /// The exit code.
    pub code: u8,
    /// The message that the program prints.
    pub message: String,
}

meshloom::hlo::debug_is_message!(Ended);

/// The reason why the program failed. Its text is what the program prints.
#[derive(thiserror::Error)]
pub enum Failure {
    /// The command line cannot be read.
    #[error("{0}")]
    Usage(Box<clap::Error>),
    /// The command failed.
    #[error("error: {0}")]
    Run(anyhow::Error),
    /// The run was ended before its last step.
    #[error(transparent)]
    Ended(Ended),
    /// The command has printed why, and ends with this code.
    #[error("exit status {0}")]
    Printed(u8),
}

meshloom::hlo::debug_is_message!(Failure);

impl Failure {
    /// The exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Run(_) => 1,
            Failure::Ended(ended) => ended.code,
            Failure::Printed(code) => *code,
        }
    }
}
