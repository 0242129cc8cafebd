//! Running a worker: start it, wait for its answer, kill it when it takes too long.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::super::error::{WorkerFailure, WorkerLog};
use super::Settings;
use super::protocol::{ANSWER, Answer, FOLDER_VARIABLE, REQUEST, Request, STARTED, read, write};

/// The environment variable with the program to run as a worker.
const WORKER_VARIABLE: &str = "MESHLOOM_WORKER";

/// The interval between looks at the worker.
const INTERVAL: Duration = Duration::from_millis(5);

/// The end of the worker's output that is read.
const LOG_LENGTH: u64 = 1 << 20;

/// Whether this program can be its own worker.
static CAN_BE_ASKED: AtomicBool = AtomicBool::new(false);

/// Notes that this program, started again, answers a request instead of doing its own work.
pub(in super::super) fn note_that_this_program_can_be_asked() {
    CAN_BE_ASKED.store(true, Ordering::Relaxed);
}

/// Has a worker answer a request.
pub(super) fn run(request: &Request, settings: &Settings) -> Result<Answer, WorkerFailure> {
    let program = program(settings)?;
    let not_started = |reason: String| WorkerFailure::NotStarted { worker: program.clone(), reason };
    let folder = tempfile::Builder::new().prefix("meshloom-worker-").tempdir();
    let folder = folder.map_err(|error| not_started(format!("cannot make a temporary folder: {error}")))?;
    let log_path = folder.path().join("log");
    write(folder.path(), REQUEST, request).map_err(|reason| not_started(format!("cannot write to it: {reason}")))?;
    let logs = File::create(&log_path).and_then(|log| Ok((log.try_clone()?, log)));
    let (output, errors) = logs.map_err(|error| not_started(error.to_string()))?;

    let mut command = Command::new(&program);
    command.env(FOLDER_VARIABLE, folder.path()).stdin(Stdio::null()).stdout(output).stderr(errors);
    for variable in &settings.without_variables {
        command.env_remove(variable);
    }
    // The worker runs in a process group of its own, so that its children (the CUDA compiler starts ptxas) can be
    // killed with it.
    command.process_group(0);
    let start = Instant::now();
    let worker = Worker(command.spawn().map_err(|error| not_started(error.to_string()))?);
    let mut timed_out = false;
    // It is not waited for after its answer: a plugin's clean-up may take long, or fail.
    while !folder.path().join(ANSWER).exists() && !worker.has_ended() {
        if start.elapsed() >= settings.time_limit {
            timed_out = true;
            break;
        }
        thread::sleep(INTERVAL);
    }
    let after = start.elapsed();
    let status = worker.end();
    if folder.path().join(ANSWER).exists() {
        return read(folder.path(), ANSWER).map_err(|reason| WorkerFailure::WrongAnswer { reason });
    }
    let log = log(&log_path);
    if timed_out {
        return Err(WorkerFailure::TimedOut { limit: settings.time_limit, log });
    }
    let started = folder.path().join(STARTED).exists();
    Err(match status.and_then(|status| status.signal()) {
        Some(signal) => WorkerFailure::Died { signal, after, log },
        None => WorkerFailure::NoAnswer { status: status.and_then(|status| status.code()), started, log },
    })
}

/// The program to start.
fn program(settings: &Settings) -> Result<PathBuf, WorkerFailure> {
    if let Some(worker) = &settings.worker {
        return Ok(worker.clone());
    }
    if let Some(worker) = std::env::var_os(WORKER_VARIABLE).filter(|worker| !worker.is_empty()) {
        return Ok(worker.into());
    }
    // A program that has not said so would do its own work when started again.
    if !CAN_BE_ASKED.load(Ordering::Relaxed) {
        return Err(WorkerFailure::NoWorker);
    }
    std::env::current_exe()
        .map_err(|error| WorkerFailure::NotStarted { worker: "this program".into(), reason: error.to_string() })
}

/// A running worker. It goes with everything it started.
struct Worker(Child);

impl Worker {
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.0.id()).ok()?)
    }

    /// Whether it has ended. It remains a zombie, so that no other process gets its number before its group is killed.
    fn has_ended(&self) -> bool {
        let Some(pid) = self.pid() else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Kills the worker and its group; returns its exit status.
    fn end(mut self) -> Option<ExitStatus> {
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.0.wait().ok()
    }
}

/// The log that the worker wrote, or the end of it.
fn log(path: &Path) -> WorkerLog {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_LENGTH)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    WorkerLog::read(&String::from_utf8_lossy(&read().unwrap_or_default()))
}
