//! A process that is killed: the others end, no checkpoint is torn, and the run goes on where it was.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use meshloom_train::checkpoint::Checkpoint;
use support::program::meshloom_with_processes as meshloom;

use super::etcd::Etcd;
use super::processes::{Process, Run, cases_by_option, until};

const STEPS: u64 = 8;

/// When a process is killed.
#[derive(Clone, Copy, Debug)]
enum When {
    Joining,
    Compiling,
    Stepping,
    Saving,
    Committing,
}

const ALL: [When; 5] = [When::Joining, When::Compiling, When::Stepping, When::Saving, When::Committing];

impl When {
    fn is_now(self, run: &Run, victim: usize) -> bool {
        let names = |prefix: &str| {
            let entries = fs::read_dir(run.path("checkpoints")).into_iter().flatten().flatten();
            let paths = entries.map(|entry| entry.path());
            let begins =
                |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
            paths.filter(begins).collect::<Vec<_>>()
        };
        match self {
            When::Joining => true,
            When::Compiling => run.log(&format!("together-{victim}")).contains("has joined the others"),
            When::Stepping => run.metrics("together").len() >= 3,
            When::Saving => !names(".tmp-step-").is_empty(),
            When::Committing => {
                names(".tmp-step-").iter().any(|folder| folder.join("manifest.json").exists())
                    || !names("step-").is_empty()
            }
        }
    }
}

fn start(run: &Run, etcd: &Etcd, job: &str, attempt: u64, resume: bool) -> [Process; 2] {
    ["0", "1"].map(|number| {
        let (name, attempt) = (format!("together-{number}"), attempt.to_string());
        let checkpoints = run.path("checkpoints").to_string_lossy().into_owned();
        let mut arguments = vec!["--process-id", number, "--process-count", "2", "--store", etcd.address()];
        arguments.extend(["--job", job, "--attempt", &attempt, "--lease", "2", "--join-limit", "6"]);
        arguments.extend(["--checkpoint", &checkpoints, "--checkpoint-every", "2"]);
        if resume {
            arguments.extend(["--resume", &checkpoints]);
        }
        Process::start(run.command(&meshloom(), &name, &arguments))
    })
}

#[test]
fn a_killed_process_ends_the_run_and_nothing_else() {
    let count = cases_by_option(10);
    let etcd = Etcd::start();
    let run = Run::new(STEPS, &["mesh.axes=data=2", "target.devices=1", "model.layers=1"]);
    run.alone(2);
    for case in 0..count {
        let (when, victim) = (ALL[case % ALL.len()], case / ALL.len() % 2);
        let job = format!("deaths-{case}");
        let _ = fs::remove_dir_all(run.path("checkpoints"));
        let _ = fs::remove_file(run.path("together.jsonl"));
        let mut processes = start(&run, &etcd, &job, 0, false);
        until(&format!("{when:?}"), || when.is_now(&run, victim) || !processes[0].is_running());
        // Later ones at other moments of the phase.
        std::thread::sleep(Duration::from_millis(case as u64 / 10 * 7));
        processes[victim].kill();
        let survivor = 1 - victim;
        let status = processes[survivor].ended(Duration::from_secs(40));
        let log = run.log(&format!("together-{survivor}"));
        let status = status.unwrap_or_else(|| panic!("{when:?}: process {survivor} still runs\n{log}"));
        // It may have been done already.
        let is_done = run.metrics("together").len() == STEPS as usize;
        assert!(!status.success() || is_done, "{when:?}: process {survivor} has not noticed\n{log}");
        assert!(status.success() || log.contains(&format!("process {victim}")), "{when:?}: nobody is named\n{log}");

        let checkpoints: Vec<_> = fs::read_dir(run.path("checkpoints"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")))
            .collect();
        for folder in &checkpoints {
            Checkpoint::open(folder).unwrap_or_else(|error| panic!("{when:?}: {error}"));
        }
        let mut again = start(&run, &etcd, &job, 1, !checkpoints.is_empty());
        for (number, process) in again.iter_mut().enumerate() {
            let status = process.ended(Duration::from_secs(60));
            let log = run.log(&format!("together-{number}"));
            assert!(status.is_some_and(|status| status.success()), "{when:?}: the restarted process {number}\n{log}");
        }
        run.compare(["alone", "together"], STEPS as usize, 1e-5);
    }
}

/// Fewer and more processes go on from what two have saved.
#[test]
fn another_number_of_processes_goes_on() {
    let etcd = Etcd::start();
    let run = Run::new(STEPS, &["mesh.axes=data=2", "target.devices=1", "model.layers=1"]);
    run.alone(2);
    let mut processes = start(&run, &etcd, "first", 0, false);
    let checkpoints = run.path("checkpoints").to_string_lossy().into_owned();
    let resumed = ["--checkpoint", &checkpoints, "--checkpoint-every", "2", "--resume", &checkpoints];
    let newest = || {
        let entries = fs::read_dir(run.path("checkpoints")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("step-")).max()
    };
    until("a whole checkpoint", || newest().is_some());
    processes.iter_mut().for_each(Process::kill);
    let one = Run::new(STEPS, &["mesh.axes=data=1", "target.devices=1", "model.layers=1"]);
    fs::copy(run.path("together.jsonl"), one.path("one.jsonl")).expect("metrics");
    fs::copy(run.path("alone.jsonl"), one.path("alone.jsonl")).expect("metrics");
    let status = one.command(&meshloom(), "one", &resumed).status().expect("meshloom runs");
    assert!(status.success(), "{}", one.log("one"));
    one.compare(["alone", "one"], STEPS as usize, 1e-5);
}
