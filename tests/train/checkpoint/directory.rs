//! The directory of checkpoints: who writes there, what stays, and what a dying process leaves.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use meshloom_train::checkpoint::{
    About, Checkpoint, CheckpointError, Checkpointer, Fallback, Phase, Start, find, list,
};

use meshloom_train::config::CheckpointConfig;

use super::state::{about, arrays, config, declared, finite_but, names, values, write, written_values};
use support::cases::cases;
use support::counts::process;
use support::program::test_name;

#[test]
fn the_last_ones_are_kept() {
    for (keep, kept) in [(0, &[1, 2, 3, 4, 5][..]), (1, &[5]), (3, &[3, 4, 5])] {
        let directory = tempfile::tempdir().expect("a folder");
        let mut checkpointer = Checkpointer::new(&config(directory.path(), keep), Start::Fresh).expect("a directory");
        for step in 1..=5 {
            checkpointer.save(about(step), &declared(), &arrays(step)).expect("saved");
        }
        checkpointer.finish().expect("written");
        let expected: Vec<String> = kept.iter().map(|step| format!("step-{step:08}")).collect();
        assert_eq!(names(directory.path()), expected);
        let found = find(directory.path(), Fallback::Refuse).expect("the newest");
        assert_eq!(found.checkpoint.about().step, 5);
        assert_eq!(values(&found.checkpoint).expect("values"), written_values(5));
    }
}

/// The newest checkpoint from which a run can go on, and the best ones, are never deleted to make room.
#[test]
fn finite_and_good_ones_are_kept() {
    let directory = tempfile::tempdir().expect("a folder");
    let kept = CheckpointConfig { keep_best: 2, ..config(directory.path(), 2) };
    let mut checkpointer = Checkpointer::new(&kept, Start::Fresh).expect("a directory");
    let losses = [Some(3.0), Some(2.0), Some(2.5), None, None, Some(3.5), Some(4.0), None];
    for (step, validation_loss) in (1..).zip(losses) {
        let about = About { validation_loss, ..about(step) };
        let bad: &[(&str, f64)] = if step <= 4 { &[] } else { &[("matrix", f64::NAN), ("wide", f64::INFINITY)] };
        checkpointer.save(about, &declared(), &finite_but(bad)).expect("saved");
    }
    checkpointer.finish().expect("written");
    // 2 and 3 are the best, 4 is the last that is finite, 7 and 8 are the newest.
    let expected = [2, 3, 4, 7, 8].map(|step| format!("step-{step:08}"));
    assert_eq!(names(directory.path()), expected);
    let not_finite = |step: u64| {
        let checkpoint = Checkpoint::open(directory.path().join(format!("step-{step:08}"))).expect("a checkpoint");
        checkpoint.not_finite().to_vec()
    };
    assert_eq!(not_finite(4), [""; 0]);
    assert_eq!(not_finite(8), ["matrix", "wide"]);
}

#[test]
fn it_is_due_when_a_multiple_was_passed() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut checkpointer = Checkpointer::new(&config(directory.path(), 0), Start::Fresh).expect("a directory");
    let mut saved = Vec::new();
    // The steps of calls of three.
    for step in [1, 2, 3, 4, 7, 10, 11] {
        if checkpointer.is_due(step) {
            checkpointer.save(about(step), &declared(), &arrays(step)).expect("saved");
            saved.push(step);
        }
    }
    assert_eq!(saved, [2, 4, 7, 10]);
    // The last step has its checkpoint already.
    checkpointer.save(about(10), &declared(), &arrays(11)).expect("nothing to do");
    checkpointer.finish().expect("written");
    assert_eq!(list(directory.path()).expect("a list").len(), 4);
    let never = CheckpointConfig { every: 0, ..config(&directory.path().join("other"), 0) };
    let checkpointer = Checkpointer::new(&never, Start::Fresh).expect("a directory");
    assert!(!(0..100).any(|step| checkpointer.is_due(step)));
}

/// The state at the call is saved, whatever happens to it before it is written.
#[test]
fn writing_goes_on_beside_the_training() {
    let directory = tempfile::tempdir().expect("a folder");
    let (open_gate, gate) = channel::<()>();
    let (arrive, arrived) = channel::<()>();
    let ends = Mutex::new((gate, arrive));
    let held = Arc::new(move |phase| {
        if phase == Phase::FolderMade {
            let (gate, arrive) = &*ends.lock().expect("a lock");
            arrive.send(()).expect("the test waits");
            // A test that fails opens it by dropping the other end.
            let _ = gate.recv();
        }
    });
    let checkpointer = Checkpointer::new(&config(directory.path(), 0), Start::Fresh).expect("a directory");
    let mut checkpointer = checkpointer.observed(held);
    let open_gate = open_gate;
    let state = arrays(1);
    checkpointer.save(about(1), &declared(), &state).expect("saved");
    drop(state);
    // Here the training goes on, and the checkpoint is not there yet.
    arrived.recv().expect("the writer");
    assert_eq!(list(directory.path()).expect("a list"), []);
    assert_eq!(names(directory.path()), [".tmp-step-00000001"]);
    open_gate.send(()).expect("the writer waits");
    checkpointer.wait().expect("written");
    let checkpoint = Checkpoint::open(directory.path().join("step-00000001")).expect("a checkpoint");
    assert_eq!(values(&checkpoint).expect("values"), written_values(1));
}

#[test]
fn one_run_writes_at_a_time() {
    let directory = tempfile::tempdir().expect("a folder");
    let config = config(&directory.path().join("made/by/the run"), 0);
    let first = Checkpointer::new(&config, Start::Fresh).expect("a directory");
    let error = Checkpointer::new(&config, Start::Fresh).expect_err("it is in use");
    assert!(matches!(error, CheckpointError::InUse(..)), "{error}");
    drop(first);
    Checkpointer::new(&config, Start::Fresh).expect("free again");
}

/// A process that is being started has the files of the one that starts it until it runs its own program. The directory
/// is free nevertheless when its run is over.
#[test]
fn processes_about_to_start_keep_nothing() {
    let directory = tempfile::tempdir().expect("a folder");
    let config = config(directory.path(), 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let starts = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Whether there is such a program matters little. They do nothing, and are not counted.
                let _ = Command::new("true").status();
            }
        });
        let mut held = 0;
        for _ in cases("train directories opened", 100, 0..500) {
            let opened = Checkpointer::new(&config, Start::Fresh);
            held += usize::from(opened.is_err());
        }
        over.store(true, Ordering::Relaxed);
        starts.join().expect("the starts");
        assert_eq!(held, 0, "times that the directory was in use");
    });
}

#[test]
fn runs_do_not_mix() {
    let directory = tempfile::tempdir().expect("a folder");
    let folders = write(directory.path(), &[2, 4, 6]);
    let error = Checkpointer::new(&config(directory.path(), 1), Start::Fresh).expect_err("a new run");
    assert!(matches!(error, CheckpointError::Occupied { step: 6, .. }), "{error}");
    assert!(error.to_string().contains("--resume"), "{error}");
    // A run from elsewhere is a new one here.
    let elsewhere = tempfile::tempdir().expect("a folder");
    write(elsewhere.path(), &[8]);
    let foreign = Checkpoint::open(elsewhere.path().join("step-00000008")).expect("a checkpoint");
    let error = Checkpointer::new(&config(directory.path(), 1), Start::After(&foreign)).expect_err("another run");
    assert!(matches!(error, CheckpointError::Occupied { .. }), "{error}");
    assert_eq!(names(directory.path()).len(), 3);

    // From an older one: those after it give way, and none is lost.
    for round in 0..2 {
        let older = Checkpoint::open(&folders[0]).expect("a checkpoint");
        let mut checkpointer =
            Checkpointer::new(&config(directory.path(), 0), Start::After(&older)).expect("the same run");
        assert_eq!(checkpointer.set_aside().len(), if round == 0 { 2 } else { 1 });
        assert_eq!(list(directory.path()).expect("a list").len(), 1);
        // Step 2 is there already.
        checkpointer.save(about(2), &declared(), &arrays(9)).expect("nothing to do");
        checkpointer.save(about(4), &declared(), &arrays(40 + round)).expect("saved");
        checkpointer.finish().expect("written");
        let newest = find(directory.path(), Fallback::Refuse).expect("the newest").checkpoint;
        assert_eq!(values(&newest).expect("values"), written_values(40 + round));
    }
    let all = [
        "set-aside-step-00000004.1",
        "set-aside-step-00000004.2",
        "set-aside-step-00000006.1",
        "step-00000002",
        "step-00000004",
    ];
    assert_eq!(names(directory.path()), all);
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let directory = tempfile::tempdir().expect("a folder");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("written");
    for taken in [file.clone(), file.join("below")] {
        let error = Checkpointer::new(&config(&taken, 0), Start::Fresh).expect_err("a file is there");
        assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    }
    let path = directory.path().join("checkpoints");
    let mut checkpointer = Checkpointer::new(&config(&path, 0), Start::Fresh).expect("a directory");
    // The thread finds it out, and the next call says so.
    fs::remove_dir_all(&path).expect("gone");
    checkpointer.save(about(1), &declared(), &arrays(1)).expect("under way");
    let error = checkpointer.save(about(2), &declared(), &arrays(2)).expect_err("the first failed");
    assert!(error.to_string().starts_with("cannot create"), "{error}");
    fs::create_dir(&path).expect("back");
    // A name that is taken: what is there stays.
    fs::create_dir(path.join("step-00000003")).expect("made");
    checkpointer.save(about(3), &declared(), &arrays(3)).expect("under way");
    let error = checkpointer.finish().expect_err("the name is taken");
    assert!(matches!(error, CheckpointError::Exists(..)), "{error}");
    assert_eq!(names(&path), ["step-00000003"]);
}

// Tests of the files that a process leaves if it dies while it writes.

const DIRECTORY: &str = "MESHLOOM_TEST_CHECKPOINTS";
const DIES_AFTER: &str = "MESHLOOM_TEST_DIES_AFTER";

/// Goes on from the newest checkpoint of the directory, writes two more and keeps two; dies after so many phases.
#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child_writes() {
    let directory = std::env::var(DIRECTORY).expect("a directory");
    let directory = Path::new(&directory);
    let limit: usize = std::env::var(DIES_AFTER).expect("a number").parse().expect("a number");
    let phases = Mutex::new(Vec::new());
    let observer = Arc::new(move |phase| {
        let mut phases = phases.lock().expect("a lock");
        phases.push(phase);
        if phases.len() == limit {
            let log = format!("{phases:?}");
            fs::write(std::env::var(DIRECTORY).expect("a directory") + ".phases", log).expect("written");
            // Nothing is unwound, flushed or tidied up.
            std::process::abort();
        }
    });
    let found = find(directory, Fallback::Refuse).expect("the newest");
    let start = Start::After(&found.checkpoint);
    let mut checkpointer = Checkpointer::new(&config(directory, 2), start).expect("a directory").observed(observer);
    let first = found.checkpoint.about().step;
    for step in [first + 1, first + 2] {
        checkpointer.save(about(step), &declared(), &arrays(step)).expect("saved");
    }
    checkpointer.finish().expect("written");
}

fn child(directory: &Path, dies_after: usize) -> Output {
    child_of(&mut process(own_path()), directory, dies_after).output().expect("a child process")
}

fn own_path() -> std::path::PathBuf {
    std::env::current_exe().expect("own path")
}

fn child_of<'a>(command: &'a mut Command, directory: &Path, dies_after: usize) -> &'a mut Command {
    command
        .args([&*test_name(module_path!(), "child_writes"), "--exact", "--ignored", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(DIES_AFTER, dies_after.to_string())
}

/// A process that dies after any of the writer's phases leaves complete checkpoints; the newest is the last
/// that got its name; the next process tidies up and goes on.
#[test]
fn a_process_may_die_after_any_phase() {
    use Phase::{DirectorySynced, FileSynced, FileWritten, FolderMade, FolderSynced, OldDeleted, OldRenamed, Renamed};
    // Eight files of values, the manifest and the checksums.
    let mut one = vec![FolderMade];
    one.extend([FileWritten, FileSynced].repeat(10));
    one.extend([FolderSynced, Renamed, DirectorySynced, OldRenamed, OldDeleted]);
    let expected = one.repeat(2);
    // In a file, before a checkpoint has its name, and after that before and when the oldest is deleted.
    const CHOSEN: [usize; 4] = [12, 22, 24, 25];
    let others = (1..=expected.len()).filter(|phase| !CHOSEN.contains(phase));
    for dies_after in CHOSEN.into_iter().chain(cases("train phases", 0, others)) {
        let scratch = tempfile::tempdir().expect("a folder");
        let directory = scratch.path().join("checkpoints");
        write(&directory, &[1, 2]);
        let died = child(&directory, dies_after);
        assert!(!died.status.success(), "the child did not die after {dies_after} phases");
        let done = &expected[..dies_after];
        let log = fs::read_to_string(scratch.path().join("checkpoints.phases"))
            .unwrap_or_else(|error| panic!("after {dies_after} phases: {error}: {died:?}"));
        assert_eq!(log, format!("{done:?}"));

        let named = done.iter().filter(|phase| **phase == Renamed).count() as u64;
        let unnamed = done.iter().filter(|phase| **phase == OldRenamed).count() as u64;
        let steps: Vec<u64> = list(&directory).expect("a list").iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, (1 + unnamed..=2 + named).collect::<Vec<_>>(), "after {done:?}");
        assert!(!steps.is_empty());
        for (step, folder) in list(&directory).expect("a list") {
            let checkpoint = Checkpoint::open(folder).unwrap_or_else(|error| panic!("after {done:?}: {error}"));
            assert_eq!(values(&checkpoint).expect("values"), written_values(step));
        }
        // A few of them go on.
        if dies_after % 7 == 1 {
            let next = child(&directory, usize::MAX);
            assert!(next.status.success(), "the next process fails after {done:?}: {next:?}");
            let newest = 2 + named + 2;
            assert_eq!(names(&directory), [newest - 1, newest].map(|step| format!("step-{step:08}")));
        }
    }
}

/// The calls to the system have an order that leaves only complete checkpoints even after a power failure: each name is
/// given after the files that it names are on the disk, and no folder is deleted under its name.
#[test]
fn the_disk_is_told_in_order() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (directory, log) = (scratch.path().join("checkpoints"), scratch.path().join("calls"));
    write(&directory, &[1, 2]);
    let mut strace = process("strace");
    strace.args(["-f", "-y", "-e", "trace=fsync,rename,renameat,renameat2,unlink,unlinkat,rmdir", "-o"]).arg(&log);
    let output = child_of(strace.arg(own_path()), &directory, usize::MAX).output();
    let Some(_) = output.ok().filter(|output| output.status.success()) else {
        return eprintln!("SKIPPED the_disk_is_told_in_order: there is no strace, or it may not trace here");
    };
    let calls = fs::read_to_string(&log).expect("the calls");
    let own = directory.to_str().expect("a name");
    let calls: Vec<String> = calls.lines().filter_map(|line| event(line, own)).collect();

    let mut expected = Vec::new();
    for (step, old) in [(3, 1), (4, 2)] {
        let (unfinished, old) = (format!(".tmp-step-{step:08}"), format!("step-{old:08}"));
        let shards = (0..8).map(|index| format!("shard-{index:05}-of-00008.safetensors"));
        let files = shards.chain(["manifest.json".to_owned(), "SHA256SUMS".to_owned()]);
        expected.extend(files.map(|file| format!("fsync {unfinished}/{file}")));
        expected.push(format!("fsync {unfinished}"));
        expected.push(format!("rename {unfinished} step-{step:08}"));
        expected.push("fsync ".to_owned());
        expected.push(format!("rename {old} .trash-{old}"));
        expected.push("fsync ".to_owned());
        expected.push(format!("delete .trash-{old}"));
    }
    assert_eq!(calls, expected);
}

/// A line of strace's, where it is about the directory: `fsync PATH`, `rename FROM TO`, and for the last of a folder's
/// deletions `delete PATH`; paths within the directory.
fn event(line: &str, directory: &str) -> Option<String> {
    let (_, call) = line.split_once(' ')?;
    let (name, arguments) = call.trim().split_once('(')?;
    let (first, rest) = inside(arguments, directory)?;
    match name {
        "fsync" => Some(format!("fsync {first}")),
        "rename" | "renameat" | "renameat2" => Some(format!("rename {first} {}", inside(rest, directory)?.0)),
        "rmdir" => Some(format!("delete {first}")),
        "unlinkat" if arguments.contains("AT_REMOVEDIR") => Some(format!("delete {first}")),
        _ => None,
    }
}

/// The first path in the directory, and the text behind it.
fn inside<'a>(text: &'a str, directory: &str) -> Option<(String, &'a str)> {
    let start = text.find(directory)? + directory.len();
    let end = text[start..].find(['"', '>']).map(|length| start + length)?;
    Some((text[start..end].trim_start_matches('/').to_owned(), &text[end..]))
}
