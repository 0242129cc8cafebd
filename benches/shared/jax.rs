//! A script of benches/jax that runs one step for each line it is sent, so that its steps and ours can take turns.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};

/// The Python that `MESHLOOM_BENCH_PYTHON` names, with a script of benches/jax.
pub fn python(script: &str) -> Command {
    let python = std::env::var("MESHLOOM_BENCH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("jax").join(script));
    command
}

/// JAX's side, answering one line for each step.
pub struct Jax {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Jax {
    /// Starts a script with `--serve`; also returns what it says when it is ready.
    pub fn start(script: &str, options: &[String]) -> anyhow::Result<(Jax, String)> {
        let mut child = python(script)
            .arg("--serve")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { bail!("no pipes") };
        let mut jax = Jax { child, input, output: BufReader::new(output) };
        let ready = jax.line()?;
        let ready = ready.strip_prefix("ready ").context("JAX did not start; is it installed?")?;
        Ok((jax, ready.trim().to_owned()))
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// One step: its seconds and loss.
    pub fn step(&mut self) -> anyhow::Result<(f64, f64)> {
        writeln!(self.input, "step")?;
        let line = self.line()?;
        let (seconds, loss) = line.trim().split_once(' ').context("JAX has ended")?;
        Ok((seconds.parse()?, loss.parse()?))
    }
}

impl Drop for Jax {
    fn drop(&mut self) {
        // It ends by itself at the end of its input; a process that is gone already cannot be killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
