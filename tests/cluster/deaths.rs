//! A process that is killed: the others end, no checkpoint is torn, and the run goes on where it was.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use meshloom_train::checkpoint::{Checkpoint, list};
use rustix::process::Signal;
use support::cases::cases;
use support::program::meshloom_with_processes as meshloom;

use super::etcd::{Etcd, shared};
use super::processes::{Process, Run, until};

const STEPS: u64 = 16;

/// When a process is killed.
#[derive(Clone, Copy, Debug)]
enum When {
    Joining,
    Compiling,
    Stepping,
    Saving,
    Committing,
}

const ALL: [When; 5] = [When::Compiling, When::Stepping, When::Joining, When::Saving, When::Committing];

/// Returns the folders among the checkpoints whose names begin with a prefix.
fn folders(run: &Run, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.path("checkpoints")).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let begins = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    paths.filter(begins).collect()
}

/// Whole checkpoints.
fn checkpoints(run: &Run) -> Vec<PathBuf> {
    folders(run, "step-")
}

impl When {
    fn is_now(self, run: &Run, victim: usize) -> bool {
        match self {
            When::Joining => true,
            When::Compiling => run.log(&format!("together-{victim}")).contains("has joined the others"),
            When::Stepping => run.metrics("together").len() >= 3,
            When::Saving => !folders(run, ".tmp-step-").is_empty(),
            When::Committing => {
                folders(run, ".tmp-step-").iter().any(|folder| folder.join("manifest.json").exists())
                    || !checkpoints(run).is_empty()
            }
        }
    }
}

fn start(run: &Run, count: usize, etcd: &Etcd, (job, attempt): (&str, u64), resume: bool) -> Vec<Process> {
    let process = |number: usize| {
        let (name, number) = (format!("together-{number}"), number.to_string());
        let (count, attempt) = (count.to_string(), attempt.to_string());
        let checkpoints = run.path("checkpoints").to_string_lossy().into_owned();
        let mut arguments = vec!["--process-id", &number, "--process-count", &count, "--store", etcd.address()];
        arguments.extend(["--job", job, "--attempt", &attempt, "--lease", "2", "--join-limit", "6"]);
        arguments.extend(["--checkpoint", &checkpoints, "--checkpoint-every", "2"]);
        if resume {
            arguments.extend(["--resume", &checkpoints]);
        }
        Process::start(run.command(&meshloom(), &name, &arguments))
    };
    (0..count).map(process).collect()
}

/// Starts one process that goes on from what two have saved.
fn start_one(run: &Run) -> Vec<Process> {
    let checkpoints = run.path("checkpoints").to_string_lossy().into_owned();
    let arguments = ["--set", "mesh.axes=data=1", "--checkpoint", &checkpoints, "--checkpoint-every", "2"];
    let arguments = [&arguments[..], &["--resume", &checkpoints]].concat();
    vec![Process::start(run.command(&meshloom(), "together-0", &arguments))]
}

/// A process that is killed in a run of two.
#[derive(Clone, Copy, Debug)]
struct Death {
    when: When,
    victim: usize,
    /// The delay after the phase begins: later cases are killed at other moments of it.
    delay: Duration,
    /// Whether one process goes on alone instead of both, which needs a complete checkpoint.
    leaves_one: bool,
}

impl Death {
    fn of(case: usize) -> Death {
        Death {
            when: ALL[case % ALL.len()],
            victim: case / ALL.len() % 2,
            delay: Duration::from_millis(case as u64 / 10 * 7),
            leaves_one: case % 4 == 1 && !matches!(ALL[case % ALL.len()], When::Joining | When::Compiling),
        }
    }

    /// Starts two processes and kills one. Returns whether the run was still going on; then the other has ended and
    /// says why.
    fn kills(self, run: &Run, etcd: &Etcd, job: &str) -> bool {
        let Death { when, victim, delay, leaves_one } = self;
        let _ = fs::remove_dir_all(run.path("checkpoints"));
        let _ = fs::remove_file(run.path("together.jsonl"));
        let mut processes = start(run, 2, etcd, (job, 0), false);
        let is_now = || when.is_now(run, victim) && (!leaves_one || !checkpoints(run).is_empty());
        until(&format!("{when:?}"), || is_now() || !processes[0].is_running());
        std::thread::sleep(delay);
        processes[victim].kill();
        let survivor = 1 - victim;
        let status = processes[survivor].ended(Duration::from_secs(40));
        let log = run.log(&format!("together-{survivor}"));
        let status = status.unwrap_or_else(|| panic!("{self:?}: process {survivor} still runs\n{log}"));
        if status.success() {
            assert_eq!(run.metrics("together").len(), STEPS as usize, "{self:?}: {survivor} has not noticed\n{log}");
            return false;
        }
        assert!(log.contains(&format!("process {victim}")), "{self:?}: nobody is named\n{log}");
        true
    }
}

#[test]
fn a_killed_process_ends_the_run_and_nothing_else() {
    let etcd = shared();
    let run = Run::new(STEPS, &["mesh.axes=data=2", "target.devices=1", "model.layers=1"]);
    run.alone(2);
    for case in cases("cluster deaths", 2, 0..100) {
        let death = Death::of(case);
        // If the run was over before the kill, it is tried again with less delay.
        let job = |attempt: u32| format!("deaths-{case}-{attempt}");
        let kills =
            |&attempt: &u32| Death { delay: death.delay / (attempt + 1), ..death }.kills(&run, &etcd, &job(attempt));
        let attempt = (0..6).find(kills).unwrap_or_else(|| panic!("{death:?}: the run is always over before it"));
        let checkpoints = checkpoints(&run);
        for folder in &checkpoints {
            Checkpoint::open(folder).unwrap_or_else(|error| panic!("{death:?}: {error}"));
        }
        let mut again = match death.leaves_one {
            true => start_one(&run),
            false => start(&run, 2, &etcd, (&job(attempt), 1), !checkpoints.is_empty()),
        };
        for (number, process) in again.iter_mut().enumerate() {
            let status = process.ended(Duration::from_secs(60));
            let log = run.log(&format!("together-{number}"));
            assert!(status.is_some_and(|status| status.success()), "{death:?}: the restarted process {number}\n{log}");
        }
        run.compare(["alone", "together"], STEPS as usize, 1e-5);
    }
}

/// One process gets SIGTERM: all end behind the same step with its exit code, and no step is lost.
#[test]
fn a_process_that_is_asked_to_end_ends_all() {
    let etcd = shared();
    for count in cases("cluster processes that are asked to end", 1, [2, 4]) {
        let run = Run::new(5000, &[&format!("mesh.axes=data={count}"), "target.devices=1", "model.layers=1"]);
        let mut processes = start(&run, count, &etcd, (&format!("asked-{count}"), 0), false);
        until("three steps", || run.metrics("together").len() >= 3 || !processes[0].is_running());
        processes[count - 1].signal(Signal::TERM);
        let expected = format!("SIGTERM of process {}: the state after step ", count - 1);
        for (number, process) in processes.iter_mut().enumerate() {
            let status = process.ended(Duration::from_secs(60));
            let log = run.log(&format!("together-{number}"));
            assert_eq!(status.and_then(|status| status.code()), Some(143), "process {number}: {log}");
            assert!(log.contains(&expected), "process {number}: {log}");
        }
        let last = run.metrics("together").last().expect("steps").0;
        let newest = list(run.path("checkpoints")).expect("checkpoints").pop().expect("one");
        assert_eq!(newest.0, last);
        Checkpoint::open(newest.1).unwrap_or_else(|error| panic!("{error}"));
    }
}
