//! Runs `hlo-dump`, and the commands of `meshloom` that print as it does: within this process if the program's body
//! decides the result, and as a process if the test is about the process.

use std::process::{Command, Output, Stdio};

use hlo_dump::Caller;
use serde_json::Value;
use support::counts;

/// The output of a run, and its exit status.
#[derive(Debug, PartialEq)]
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        Ran {
            status: output.status.code().expect("hlo-dump is not killed"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.out, self.err))
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("hlo-dump prints text")
}

/// Sets the repository as the current folder of this process, since commands and pages have paths relative to it. It
/// runs before `main`, when nothing else looks at the folder.
#[ctor::ctor(unsafe)]
fn at_the_repository() {
    std::env::set_current_dir(support::path("")).expect("the repository is there");
}

/// Whether a command is one of `meshloom`.
fn is_of_meshloom(command: &str) -> bool {
    ["plan", "compile", "bisect", "doctor"].contains(&command)
}

/// Returns a command that runs the program as a process.
pub fn command(arguments: &[&str]) -> Command {
    let is_of_meshloom = arguments.first().is_some_and(|command| is_of_meshloom(command));
    let name = if is_of_meshloom { "meshloom" } else { "hlo-dump" };
    let mut command = counts::process(support::program::hlo_dump().with_file_name(name));
    command.args(arguments).current_dir(support::path("")).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Runs the program as a process that ends by itself.
pub fn process(arguments: &[&str]) -> Ran {
    checked(Ran::of(command(arguments).output().expect("hlo-dump starts")))
}

pub fn run(arguments: &[&str]) -> Ran {
    with_input(arguments, &[])
}

pub fn with_input(arguments: &[&str], input: &[u8]) -> Ran {
    let caller = Caller { input: input.to_vec(), worker: Some(support::program::worker()), ..Caller::default() };
    let ran = match arguments.first() {
        Some(command) if is_of_meshloom(command) => meshloom_cli::internals::run_in_memory(arguments, caller),
        _ => hlo_dump::run(arguments, caller),
    };
    checked(Ran { status: ran.status.into(), out: text(ran.out), err: text(ran.err) })
}

fn checked(ran: Ran) -> Ran {
    check_plurals(&ran.out);
    check_plurals(&ran.err);
    ran
}

/// Nothing that is printed says "1 devices".
fn check_plurals(text: &str) {
    const SINGULAR: [&str; 5] = ["has", "is", "less", "runs", "was"];
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        // "0 to 1 times" is right.
        let counts = words.windows(2).enumerate().filter(|(at, _)| *at == 0 || words[at - 1] != "to");
        for (_, pair) in counts {
            let count = pair[0].trim_start_matches(['(', '>', '=', '"']);
            let what = pair[1].trim_end_matches([',', '.', ';', ')', ':']);
            let plural = what.len() > 2 && what.ends_with('s') && what.bytes().all(|byte| byte.is_ascii_lowercase());
            assert!(count != "1" || !plural || SINGULAR.contains(&what), "\"{} {what}\" in: {line}", pair[0]);
        }
    }
}

/// Succeeds, and gives what was printed.
pub fn prints(arguments: &[&str]) -> String {
    let ran = run(arguments);
    assert_eq!(ran.status, 0, "{arguments:?}: {}", ran.err);
    ran.out
}

/// Fails with this exit status and message, and no panic.
pub fn check_refused(arguments: &[&str], expected: &str) {
    let ran = run(arguments);
    assert_eq!(ran.status, 2, "{arguments:?}: {}{}", ran.out, ran.err);
    assert!(ran.err.contains(expected), "{arguments:?}: expected \"{expected}\", found: {}", ran.err);
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
}
