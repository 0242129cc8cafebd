//! Several processes need another program, `meshloom-processes`, which has what only they use. So a program for one
//! process needs neither a client of etcd nor TLS.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::processes::{CertificateFlags, ProcessFlags, Several, Start};

/// The program that can be one of several processes.
const PROGRAM: &str = "meshloom-processes";

/// The variable that names the version of the program that has started this one.
const STARTED_BY: &str = "MESHLOOM_STARTED_BY";

/// Replaces this program by `meshloom-processes`, with the same command line, so it returns only with an error. Process
/// number, environment, open files and signals stay.
pub const ELSEWHERE: Start = Start { join, certify };

fn join(_: &ProcessFlags, words: &[OsString]) -> Result<Box<dyn Several>> {
    match Elsewhere::of_this_process()?.run(words)? {}
}

fn certify(_: &CertificateFlags, words: &[OsString]) -> Result<String> {
    match Elsewhere::of_this_process()?.run(words)? {}
}

/// The places where `meshloom-processes` is looked for.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere {
    /// The program that needs it. Its folder is searched first.
    pub program: PathBuf,
    /// The folders that are searched next, as `PATH` has them.
    pub path: OsString,
}

impl Elsewhere {
    /// Looks beside the program that this process runs, then in `PATH`.
    ///
    /// # Errors
    /// The system does not say which program this process runs.
    pub fn of_this_process() -> Result<Elsewhere> {
        let program = env::current_exe()
            .with_context(|| format!("it is not known which program this is, beside which {PROGRAM} should be"))?;
        Ok(Elsewhere { program, path: env::var_os("PATH").unwrap_or_default() })
    }

    /// The program.
    ///
    /// # Errors
    /// The program is in none of the places.
    pub fn find(&self) -> Result<PathBuf> {
        let in_path = env::split_paths(&self.path).filter(|folder| folder.is_absolute());
        let places = self.program.parent().map(PathBuf::from).into_iter().chain(in_path);
        let found = places.map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
        found.with_context(|| {
            format!(
                "runs of several processes, and certificates for them, need the program {PROGRAM}, which is neither beside \
                 {} nor in a folder of PATH: `cargo install --path crates/cluster` installs it, and `cargo build --release \
                 --bin {PROGRAM}` builds it for `cargo run --release`",
                self.program.display()
            )
        })
    }

    fn run(&self, words: &[OsString]) -> Result<Infallible> {
        let path = self.find()?;
        let mut command = Command::new(&path);
        command.args(words.iter().skip(1)).env(STARTED_BY, env!("CARGO_PKG_VERSION"));
        Err(anyhow::Error::from(command.exec()).context(format!("cannot run {}", path.display())))
    }
}

/// Checks that the program that has started this one, if one has, has the same version.
pub(crate) fn check_version() -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    match env::var_os(STARTED_BY) {
        Some(other) if other != OsStr::new(own) => bail!(
            "this {PROGRAM} has version {own}, but the meshloom that started it has {}: install both from the same source, \
             by `cargo install --path crates/cli` and `cargo install --path crates/cluster`",
            other.to_string_lossy()
        ),
        _ => Ok(()),
    }
}
