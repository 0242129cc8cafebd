//! DiLoCo replicas that live apart: each a run of its own.

use std::time::Duration;

use support::program::meshloom_with_processes as meshloom;

use super::etcd::Etcd;
use super::processes::{Outer, Process, Run, TINY, cases_by_option, compare_outer, until};

/// All at once, or fragments that come in three steps late.
const AT_ONCE: [&str; 2] = ["diloco.sync_period=3", "diloco.overlap_steps=0"];
const LATE: [&str; 4] =
    ["diloco.sync_period=12", "diloco.streaming=true", "diloco.fragments=3", "diloco.overlap_steps=3"];

/// Replicas of a run, and the store in which they meet.
#[derive(Clone, Copy)]
struct Replicas<'a> {
    run: &'a Run,
    store: &'a str,
    job: &'a str,
    /// Seconds that they wait for each other to begin.
    limit: &'a str,
}

impl Replicas<'_> {
    fn directory(number: usize) -> String {
        format!("replica-{number}-checkpoints")
    }

    /// Starts one, with more arguments.
    fn start(&self, number: usize, arguments: &[&str]) -> Process {
        self.start_as(&format!("replica{number}-0"), number, arguments)
    }

    fn start_as(&self, name: &str, number: usize, arguments: &[&str]) -> Process {
        let (replica, directory) = (number.to_string(), self.run.path(&Self::directory(number)));
        let directory = directory.to_string_lossy();
        let own = ["--replica", &replica, "--store", self.store, "--job", self.job, "--lease", "2"];
        let own = [&own[..], &["--checkpoint", &directory, "--join-limit", self.limit], arguments].concat();
        Process::start(self.run.command(&meshloom(), name, &own))
    }

    fn ends(&self, number: usize, process: &mut Process) {
        let status = process.ended(Duration::from_secs(60));
        assert!(status.is_some_and(|status| status.success()), "{}", self.run.log(&format!("replica{number}-0")));
    }

    fn outer(&self, number: usize, settings: &[&str]) -> Outer {
        self.run.outer(&Self::directory(number), settings)
    }
}

fn bits(outer: &Outer) -> Vec<(&str, &[u8])> {
    outer.iter().map(|(path, literal)| (path.as_str(), literal.bytes())).collect()
}

/// What is synced is what one program of all replicas syncs, and the same bits on all.
#[test]
fn replicas_apart_are_those_of_one_program() {
    let etcd = Etcd::start();
    let cases = [(2, &LATE[..], "int4"), (3, &AT_ONCE, "f32"), (2, &AT_ONCE, "int4"), (3, &LATE, "f32")];
    let more = [(2, &LATE[..], "f32"), (3, &LATE, "int4"), (2, &AT_ONCE, "f32"), (3, &AT_ONCE, "int4")];
    for (count, syncs, transport) in cases.into_iter().chain(more).take(cases_by_option(2)) {
        println!("{count} replicas, {syncs:?}, {transport}");
        let of_mesh = [format!("mesh.axes=diloco={count}"), format!("target.devices={count}")];
        let shared = [format!("diloco.replicas={count}"), format!("diloco.transport={transport}")];
        let shared = shared.each_ref().map(String::as_str);
        let settings = [&["train.batch=12", "model.dropout=0.1"], &shared[..], syncs].concat();
        let run = Run::new(15, &settings);
        let one = run.path("one").to_string_lossy().into_owned();
        run.alone_with(count, &["--set", &of_mesh[0], "--checkpoint", &one]);
        let expected = [&TINY[..], &settings, &[&of_mesh[0], &of_mesh[1]]].concat();
        let expected = run.outer("one", &expected);

        let job = format!("{count}-{transport}-{}", syncs.len());
        let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: &job };
        let apart = ["--set", "target.devices=1", "--set", "mesh.axes=data=1"];
        let mut processes: Vec<Process> = (0..count).map(|number| replicas.start(number, &apart)).collect();
        processes.iter_mut().enumerate().for_each(|(number, process)| replicas.ends(number, process));
        let own = [&TINY[..], &settings, &["target.devices=1", "mesh.axes=data=1", "diloco.apart=true"]].concat();
        let all: Vec<Outer> = (0..count).map(|number| replicas.outer(number, &own)).collect();
        compare_outer(&expected, &all[0], 1e-6);
        all[1..].iter().for_each(|other| assert!(bits(other) == bits(&all[0]), "replicas differ"));
        let waits = std::fs::read_to_string(run.path("replica0.jsonl")).expect("metrics");
        assert_eq!(waits.lines().filter(|line| line.contains("\"wait_seconds\"")).count(), 15, "{waits}");
    }
}

/// Replicas with other meshes, one of them in two processes: the same bits. Both are started again, one of them without
/// its state: it takes that of the other, which all processes of that one write.
#[test]
fn each_replica_has_a_mesh_of_its_own() {
    let etcd = Etcd::start();
    let settings = ["diloco.replicas=2", "diloco.transport=f8"];
    let settings = [&settings[..], &LATE].concat();
    let runs = [15, 25].map(|steps| Run::new(steps, &settings));
    let of_one = ["--set", "target.devices=2", "--set", "mesh.axes=data=2"];
    let of_two = ["--set", "target.devices=1", "--set", "mesh.axes=fsdp=2", "--process-count", "2", "--process-id"];
    let own = |mesh| [&TINY[..], &settings, &["target.devices=2", mesh, "diloco.apart=true"]].concat();
    let saved = runs[0].path(&Replicas::directory(1)).to_string_lossy().into_owned();
    for (run, job, resume) in [(&runs[0], "first", &[][..]), (&runs[1], "second", &["--resume", &saved])] {
        let replicas = Replicas { run, store: etcd.address(), job, limit: "60" };
        let of_second = |process| [&of_two[..], &[process], resume].concat();
        let mut processes = [
            replicas.start(0, &of_one),
            replicas.start_as("replica1-0", 1, &of_second("0")),
            replicas.start_as("replica1-1", 1, &of_second("1")),
        ];
        processes.iter_mut().zip([0, 1, 1]).for_each(|(process, number)| replicas.ends(number, process));
        let one = replicas.outer(0, &own("mesh.axes=data=2"));
        assert!(bits(&one) == bits(&replicas.outer(1, &own("mesh.axes=fsdp=2"))), "replicas differ");
    }
    let log = runs[1].log("replica0-0");
    assert!(log.contains("goes on with the other replicas after step 15"), "{log}");
}

/// One is killed and comes again; the other waits for it, as it needs two. A third joins when it likes.
#[test]
fn replicas_come_and_go() {
    const STEPS: u64 = 60;
    let etcd = Etcd::start();
    let settings = ["diloco.replicas=3", "train.batch=12", "target.devices=1", "mesh.axes=data=1"];
    let settings = [&settings[..], &LATE].concat();
    let undisturbed = Run::new(STEPS, &settings);
    let run = Run::new(STEPS, &settings);
    let last = |run: &Run| {
        let losses: Vec<f64> = (0..3)
            .filter_map(|number| {
                let all = run.metrics(&format!("replica{number}"));
                all.last().filter(|(step, _)| *step == STEPS).map(|(_, [loss, _])| *loss)
            })
            .collect();
        losses.iter().sum::<f64>() / losses.len() as f64
    };
    let own = [&TINY[..], &settings, &["diloco.apart=true"]].concat();
    let needs = |least: &'static str| ["--set", least];

    let replicas = Replicas { run: &undisturbed, store: etcd.address(), limit: "60", job: "undisturbed" };
    let mut all = [0, 1, 2].map(|number| replicas.start(number, &needs("diloco.min_replicas=3")));
    all.iter_mut().enumerate().for_each(|(number, process)| replicas.ends(number, process));

    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "disturbed" };
    let mut all = [0, 1, 2].map(|number| replicas.start(number, &needs("diloco.min_replicas=3")));
    until("some steps", || run.metrics("replica2").len() >= 10 || !all[0].is_running());
    // The one that decides.
    all[0].kill();
    std::thread::sleep(Duration::from_secs(1));
    std::fs::remove_dir_all(run.path(&Replicas::directory(0))).unwrap_or_default();
    all[0] = replicas.start(0, &needs("diloco.min_replicas=3"));
    all.iter_mut().enumerate().for_each(|(number, process)| replicas.ends(number, process));
    assert!(run.log("replica1-0").contains("replica 0 is gone"), "{}", run.log("replica1-0"));
    assert!(run.log("replica0-0").contains("goes on with the other replicas after step"), "{}", run.log("replica0-0"));
    let outer = [0, 1, 2].map(|number| replicas.outer(number, &own));
    outer[1..].iter().for_each(|other| assert!(bits(other) == bits(&outer[0]), "replicas differ"));
    let (one, other) = (last(&undisturbed), last(&run));
    println!("loss {other} after a death, {one} without");
    assert!((one - other).abs() <= 0.01 * one, "{one} and {other}");

    // Who needs nobody goes on without those who have died.
    let run = Run::new(STEPS, &settings);
    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "without" };
    let mut all = [0, 1, 2].map(|number| replicas.start(number, &[]));
    until("some steps", || run.metrics("replica0").len() >= 10 || !all[0].is_running());
    all[2].kill();
    [0, 1].iter().for_each(|&number| replicas.ends(number, &mut all[number]));
    assert!(bits(&replicas.outer(0, &own)) == bits(&replicas.outer(1, &own)), "replicas differ");
    let other = last(&run);
    assert!((one - other).abs() <= 0.01 * one, "{one} and {other}");
}

#[test]
fn wrong_use_is_refused() {
    let etcd = Etcd::start();
    let run = Run::new(3, &["diloco.replicas=2", "target.devices=1", "mesh.axes=data=1", "diloco.sync_period=2"]);
    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "wrong" };
    let refused = |name: &str, process: &mut Process, expected: &str| {
        let status = process.ended(Duration::from_secs(30)).expect("it ends");
        let log = run.log(name);
        assert!(!status.success() && log.contains(expected) && !log.contains("panicked"), "{log}");
    };
    refused("replica2-0", &mut replicas.start(2, &[]), "--replica 2 is not one of 2 replicas");
    let mesh = ["--set", "mesh.axes=diloco=2", "--set", "target.devices=2"];
    refused("replica0-0", &mut replicas.start(0, &mesh), "replicas apart have a mesh each");
    let late = [&LATE.map(|setting| ["--set", setting]).concat()[..], &["--set", "diloco.overlap_steps=4"]].concat();
    refused("replica0-0", &mut replicas.start(0, &late), "diloco.overlap_steps");
    refused("replica0-0", &mut replicas.start(0, &["--listen", "203.0.113.1:1"]), "cannot listen at 203.0.113.1:1");
    let unspecified = "cannot listen at 0.0.0.0:0: others cannot tell which host that is";
    refused("replica0-0", &mut replicas.start(0, &["--listen", "0.0.0.0:0"]), unspecified);
    let given = ["--load-parameters", "parameters.safetensors"];
    refused("replica0-0", &mut replicas.start(0, &given), "set train.init for all of them");
    let lost = Replicas { store: "http://127.0.0.1:1", limit: "2", ..replicas };
    refused("replica0-0", &mut lost.start(0, &[]), "does not answer");
    // Both say what differs.
    let mut both = [replicas.start(0, &[]), replicas.start(1, &["--set", "train.learning_rate=0.5"])];
    let expected = "has train.learning_rate = 0.5";
    refused("replica1-0", &mut both[1], expected);
    both[0].kill();

    let alone = run.path("alone.log");
    let mut command = run.command(&meshloom(), "alone", &["--set", "diloco.apart=true"]);
    assert!(!command.status().expect("meshloom runs").success());
    let log = std::fs::read_to_string(alone).expect("a log");
    assert!(log.contains("does not know the other replicas"), "{log}");
}
