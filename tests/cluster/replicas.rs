//! DiLoCo replicas that live apart: each a run of its own.

use std::time::Duration;

use support::cases::cases;
use support::program::{self, meshloom_with_processes as meshloom};

use super::etcd::shared;
use super::processes::{Outer, Process, Run, TINY, compare_outer, until};

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
        let own = self.arguments(number, arguments);
        Process::start(self.run.command(&meshloom(), name, &own.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    fn arguments(&self, number: usize, more: &[&str]) -> Vec<String> {
        let (replica, directory) = (number.to_string(), self.run.path(&Self::directory(number)));
        let directory = directory.to_string_lossy();
        let own = ["--replica", &replica, "--store", self.store, "--job", self.job, "--lease", "2"];
        let own = [&own[..], &["--checkpoint", &directory, "--join-limit", self.limit], more].concat();
        own.into_iter().map(str::to_owned).collect()
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

/// Replicas apart sync the same values as one program of all replicas, with the same bits on all.
#[test]
fn replicas_apart_are_those_of_one_program() {
    let etcd = shared();
    let all: [(_, &[&str], _); 8] = [
        (2, &LATE, "int4"),
        (3, &AT_ONCE, "f32"),
        (2, &AT_ONCE, "int4"),
        (3, &LATE, "f32"),
        (2, &LATE, "f32"),
        (3, &LATE, "int4"),
        (2, &AT_ONCE, "f32"),
        (3, &AT_ONCE, "int4"),
    ];
    for (count, syncs, transport) in cases("cluster replicas apart", 1, all) {
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

/// Replicas with different meshes, one of them in two processes, compute the same bits. Both start again, one of them
/// without its state: it takes the state of the other, which all processes of that one then write.
#[test]
fn each_replica_has_a_mesh_of_its_own() {
    cases("cluster replicas of several processes", 0, ["f8"]).into_iter().for_each(check_own_meshes);
}

fn check_own_meshes(transport: &str) {
    let etcd = shared();
    let transport = format!("diloco.transport={transport}");
    let settings = ["diloco.replicas=2", transport.as_str()];
    let settings = [&settings[..], &LATE].concat();
    let runs = [15, 25].map(|steps| Run::new(steps, &settings));
    let of_one = ["--set", "target.devices=2", "--set", "mesh.axes=data=2"];
    let of_two = ["--set", "target.devices=1", "--set", "mesh.axes=fsdp=2", "--process-count", "2", "--process-id"];
    let own = |mesh| [&TINY[..], &settings, &["target.devices=2", mesh, "diloco.apart=true"]].concat();
    let saved = runs[0].path(&Replicas::directory(1)).to_string_lossy().into_owned();
    let starts = [(&runs[0], "first-meshes", &[][..]), (&runs[1], "second-meshes", &["--resume", &saved])];
    for (run, job, resume) in starts {
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

/// One replica is killed and comes back; the others wait for it, as they need all. Then no replica is needed: the
/// others go on without the one that has died. Their losses are those of an undisturbed run.
#[test]
fn replicas_come_and_go() {
    cases("cluster replicas that come and go", 0, [3]).into_iter().for_each(check_deaths);
}

fn check_deaths(count: usize) {
    const STEPS: u64 = 60;
    let etcd = shared();
    let (of_all, needed) = (format!("diloco.replicas={count}"), format!("diloco.apart.min_replicas={count}"));
    let settings = [&of_all, "train.batch=12", "target.devices=1", "mesh.axes=data=1"];
    let settings = [&settings[..], &LATE].concat();
    let last = |run: &Run| {
        let losses: Vec<f64> = (0..count)
            .filter_map(|number| {
                let all = run.metrics(&format!("replica{number}"));
                all.last().filter(|(step, _)| *step == STEPS).map(|(_, [loss, _])| *loss)
            })
            .collect();
        losses.iter().sum::<f64>() / losses.len() as f64
    };
    let own = [&TINY[..], &settings, &["diloco.apart=true"]].concat();
    let needs_all = ["--set", &needed];
    let start = |replicas: &Replicas<'_>, more: &[&str]| -> Vec<Process> {
        (0..count).map(|number| replicas.start(number, more)).collect()
    };

    let run = Run::new(STEPS, &settings);
    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "undisturbed" };
    let mut all = start(&replicas, &needs_all);
    all.iter_mut().enumerate().for_each(|(number, process)| replicas.ends(number, process));
    let expected = last(&run);
    let compare = |run: &Run| {
        let found = last(run);
        println!("loss {found} after a death, {expected} without: {}", (found - expected).abs() / expected);
        assert!((found - expected).abs() <= 0.01 * expected, "{found} and {expected}");
    };

    let run = Run::new(STEPS, &settings);
    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "disturbed" };
    let mut all = start(&replicas, &needs_all);
    until("some steps", || run.metrics("replica1").len() >= 10 || !all[0].is_running());
    // The one that decides.
    all[0].kill();
    std::thread::sleep(Duration::from_secs(1));
    std::fs::remove_dir_all(run.path(&Replicas::directory(0))).unwrap_or_default();
    all[0] = replicas.start(0, &needs_all);
    all.iter_mut().enumerate().for_each(|(number, process)| replicas.ends(number, process));
    assert!(run.log("replica1-0").contains("replica 0 is gone"), "{}", run.log("replica1-0"));
    assert!(run.log("replica0-0").contains("goes on with the other replicas after step"), "{}", run.log("replica0-0"));
    let outer: Vec<Outer> = (0..count).map(|number| replicas.outer(number, &own)).collect();
    outer[1..].iter().for_each(|other| assert!(bits(other) == bits(&outer[0]), "replicas differ"));
    compare(&run);

    let run = Run::new(STEPS, &settings);
    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "without" };
    let mut all = start(&replicas, &[]);
    until("some steps", || run.metrics("replica0").len() >= 10 || !all[0].is_running());
    let mut victim = all.pop().expect("a replica");
    victim.kill();
    all.iter_mut().enumerate().for_each(|(number, process)| replicas.ends(number, process));
    let outer: Vec<Outer> = (0..all.len()).map(|number| replicas.outer(number, &own)).collect();
    outer[1..].iter().for_each(|other| assert!(bits(other) == bits(&outer[0]), "replicas differ"));
    compare(&run);
}

#[test]
fn wrong_use_is_refused() {
    let etcd = shared();
    let run = Run::new(3, &["diloco.replicas=2", "target.devices=1", "mesh.axes=data=1", "diloco.sync_period=2"]);
    let replicas = Replicas { run: &run, store: etcd.address(), limit: "60", job: "wrong" };
    let refused = |replicas: &Replicas<'_>, number: usize, more: &[&str], expected: &str| {
        let own = replicas.arguments(number, more);
        let words = [&run.words()[..], &own].concat();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (_, said) = program::refused(meshloom_cluster::program::HERE, &words);
        assert!(said.contains(expected), "{more:?}: {said}");
    };
    refused(&replicas, 2, &[], "--replica 2 is not one of 2 replicas");
    let mesh = ["--set", "mesh.axes=diloco=2", "--set", "target.devices=2"];
    refused(&replicas, 0, &mesh, "replicas apart have a mesh each");
    let late = [&LATE.map(|setting| ["--set", setting]).concat()[..], &["--set", "diloco.overlap_steps=4"]].concat();
    refused(&replicas, 0, &late, "diloco.overlap_steps");
    let open = ["--listen", "203.0.113.1:1"];
    refused(&replicas, 0, &open, "the port of this replica would listen at 203.0.113.1:1, which other hosts can reach");
    refused(&replicas, 0, &[&open[..], &["--insecure"]].concat(), "cannot listen at 203.0.113.1:1");
    // An authority alone says nothing of who may read.
    let authority = run.path("ca.pem").to_string_lossy().into_owned();
    std::fs::write(&authority, b"").expect("a file");
    refused(&replicas, 0, &["--store-ca", &authority], "replicas know each other by three files");
    let user = ["--store-user", "me", "--store-password-file", &authority];
    refused(&replicas, 0, &user, "the password of \"me\" would travel to");
    refused(&replicas, 0, &["--store-user", "me"], "or the password in MESHLOOM_STORE_PASSWORD");
    refused(&Replicas { job: "a/b", ..replicas }, 0, &[], "it must be up to 128 letters");
    let inside = Replicas { store: "http://me:secret@127.0.0.1:1", ..replicas };
    refused(&inside, 0, &[], "\"http://…@127.0.0.1:1\", cannot be used: an address may not hold a user");
    let unspecified = "cannot listen at 0.0.0.0:0: others cannot tell which host that is";
    refused(&replicas, 0, &["--listen", "0.0.0.0:0", "--insecure"], unspecified);
    let given = ["--load-parameters", "parameters.safetensors"];
    refused(&replicas, 0, &given, "set train.init for all of them");
    refused(&Replicas { store: "http://127.0.0.1:1", limit: "2", ..replicas }, 0, &[], "does not answer");
    // Both say what differs.
    let mut both = [replicas.start(0, &[]), replicas.start(1, &["--set", "train.learning_rate=0.5"])];
    let status = both[1].ended(Duration::from_secs(30)).expect("it ends");
    let log = run.log("replica1-0");
    assert!(!status.success() && log.contains("has train.learning_rate = 0.5") && !log.contains("panicked"), "{log}");
    both[0].kill();

    let alone = [&run.words()[..], &["--set".to_owned(), "diloco.apart=true".to_owned()]].concat();
    let alone: Vec<&str> = alone.iter().map(String::as_str).collect();
    let (_, said) = program::refused(meshloom_cluster::program::HERE, &alone);
    assert!(said.contains("does not know the other replicas"), "{said}");
}
