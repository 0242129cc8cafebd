//! Parts of the program that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser};
use hlo_dump::{Caller, Ran};
use meshloom::compile::Pass;

use crate::arguments::{Arguments, Command};
pub use crate::bisect::inputs::{Draw, read_safetensors};
pub use crate::bisect::program::parts_of;
pub use crate::bisect::report::{Dimension, Report};
pub use crate::bisect::search::xla_flags;
pub use crate::bisect::symptom::{Kind, Symptom, difference, not_finite};
pub use crate::progress::lines as progress_lines;
use crate::{COMMON, ELSEWHERE, parse, run};
pub use meshloom_models::parameters::to_bytes as write_safetensors;

/// Runs `meshloom bisect` with these words, and passes that may be at fault behind meshloom's.
///
/// # Errors
/// The errors are those of the command.
pub fn bisect(words: &[&str], further: &[Pass], worker: PathBuf) -> Result<Report> {
    match Arguments::try_parse_from([&["meshloom", "bisect"], words].concat())?.command {
        Command::Bisect(it) => crate::bisect::find(&it.command, further, Some(worker), &mut |_| {}),
        _ => bail!("it is another command"),
    }
}

/// Runs a command line without the program's name as [`hlo_dump::run`] does: what `plan`, `compile`, `bisect` and
/// `doctor` print goes into memory.
pub fn run_in_memory<A: Into<OsString>>(words: impl IntoIterator<Item = A>, caller: Caller) -> Ran {
    let words: Vec<OsString> = std::iter::once("meshloom".into()).chain(words.into_iter().map(Into::into)).collect();
    hlo_dump::within(caller, || match parse(words.clone()) {
        Ok(_) => run(words, ELSEWHERE).map_or_else(|failure| failure.exit_code(), |()| 0),
        Err(error) => hlo_dump::print_usage(&error),
    })
}

/// The commands that print an answer as those of `hlo-dump` do, each with its options.
pub fn options() -> Vec<(String, String)> {
    let command = Arguments::command();
    let commands = command.get_subcommands().filter(|it| COMMON.contains(&it.get_name()));
    let options = commands.flat_map(|it| it.get_arguments().map(move |argument| (it.get_name(), argument.get_long())));
    options.filter_map(|(command, option)| Some((command.to_owned(), format!("--{}", option?)))).collect()
}

/// Checks the definition of the command line.
///
/// # Panics
/// It contradicts itself.
pub fn check_command_line() {
    Arguments::command().debug_assert();
}
