//! The ends of a worker that did not do its task.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::PjrtError;

/// Lines of a worker's output that an error repeats.
const LINES_SHOWN: usize = 12;
/// Longest part of a line that is repeated, in characters.
const LINE_LENGTH: usize = 400;

/// The text that a worker wrote to its standard output and error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerLog {
    /// The first line that reports a fatal error: a failed `CHECK` of the plugin's.
    pub fatal: Option<String>,
    /// The last lines.
    pub last_lines: Vec<String>,
}

impl WorkerLog {
    /// Reads the log that a worker wrote.
    pub fn read(text: &str) -> WorkerLog {
        let shorten = |line: &str| -> String {
            let line = line.trim_end();
            let cut = line.char_indices().nth(LINE_LENGTH).map_or(line.len(), |(index, _)| index);
            if cut < line.len() { format!("{} ...", &line[..cut]) } else { line.to_owned() }
        };
        let mut last_lines: Vec<String> =
            text.lines().rev().filter(|line| !line.trim().is_empty()).take(LINES_SHOWN).map(shorten).collect();
        last_lines.reverse();
        WorkerLog { fatal: text.lines().find(|line| is_fatal(line)).map(shorten), last_lines }
    }
}

/// Whether a line is a fatal message of absl's log: `F0000 00:00:00.000000 123 file.cc:45] message`.
fn is_fatal(line: &str) -> bool {
    let level = line.strip_prefix('F').is_some_and(|rest| rest.bytes().take_while(u8::is_ascii_digit).count() == 4);
    level && line.contains("] ")
}

impl fmt::Display for WorkerLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fatal) = &self.fatal {
            write!(f, "\n  it said: {fatal}")?;
        }
        match self.last_lines.as_slice() {
            [] => f.write_str("\n  it wrote nothing"),
            [line] if Some(line) == self.fatal.as_ref() => Ok(()),
            lines => {
                f.write_str("\n  its last lines:")?;
                lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
            }
        }
    }
}

/// The end of a worker that did not do its task.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum WorkerFailure {
    /// The worker lives and says no: mostly the plugin's own error.
    #[error("{0}")]
    Refused(PjrtError),
    /// A signal ended it. `SIGABRT` (6) is how XLA ends its process when a `CHECK` fails.
    #[error(
        "the plugin ended its process by {} after {:.1} s; this process continues{log}",
        signal_name(*signal), after.as_secs_f64()
    )]
    Died { signal: i32, after: Duration, log: WorkerLog },
    /// It was killed because it took longer than allowed.
    #[error("the plugin was not done after {} s, the time limit, and was killed{log}", limit.as_secs_f64())]
    TimedOut { limit: Duration, log: WorkerLog },
    /// It ended without an answer.
    #[error("the worker ended with {} {}{log}", status_text(*status), silence(*started))]
    NoAnswer {
        status: Option<i32>,
        /// Whether it had begun to work. A program that has not does not call `run_if_asked`.
        started: bool,
        log: WorkerLog,
    },
    /// Its answer cannot be read.
    #[error("the worker's answer cannot be read: {reason}")]
    WrongAnswer { reason: String },
    /// It could not be started.
    #[error("the worker {} cannot be started: {reason}", worker.display())]
    NotStarted { worker: PathBuf, reason: String },
    /// There is no program to be the worker.
    #[error(
        "this program cannot be its own worker: call `meshloom_pjrt::worker::run_if_asked()` first in its main, or set \
         MESHLOOM_WORKER to the path of the program meshloom-worker"
    )]
    NoWorker,
}

meshloom_hlo::debug_is_message!(WorkerFailure);

fn status_text(status: Option<i32>) -> String {
    status.map_or("an unknown status".into(), |status| format!("status {status}"))
}

fn silence(started: bool) -> &'static str {
    match started {
        true => "and gave no answer",
        false => "before it began; its main must call `meshloom_pjrt::worker::run_if_asked()` first",
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "SIGILL (an instruction that this processor does not have)",
        6 => "SIGABRT (a failed check)",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL (by somebody else, or because memory ran out)",
        11 => "SIGSEGV (a defect of the plugin)",
        15 => "SIGTERM (by somebody else)",
        signal => return format!("signal {signal}"),
    };
    name.into()
}
