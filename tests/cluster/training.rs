//! Train steps in several processes are those of one process with as many devices.

use std::collections::BTreeSet;
use std::time::Duration;

use meshloom::partition::Collective;
use meshloom_train::config::RunConfig;
use support::cases::{cases, every_case};
use support::program::{self, meshloom_with_processes as meshloom};

use super::etcd::shared;
use super::processes::{Process, Run, TINY, compare_outer, until};

/// A mesh over processes of some devices each, and settings that go with it.
struct Case {
    processes: usize,
    devices: usize,
    mesh: &'static str,
    settings: &'static [&'static str],
}

const fn case([processes, devices]: [usize; 2], mesh: &'static str, settings: &'static [&'static str]) -> Case {
    Case { processes, devices, mesh, settings }
}

const PIPELINE: &[&str] = &["model.layers=4", "pipeline.microbatches=4", "pipeline.repeats=2"];
const EXPERTS: &[&str] = &["model.family=mixtral", "model.family.experts=4", "model.family.moe_mlp=32"];

/// The first case runs in the small tier.
const CASES: &[Case] = &[
    case([2, 2], "data=1,fsdp=2,tensor=2", &[]),
    case([3, 1], "data=3", &["train.batch=6"]),
    case(
        [2, 2],
        "replica=2,expert=2",
        &["model.family=mixtral", "model.family.experts=4", "model.family.moe_mlp=32", "train.microbatches=2"],
    ),
    // An axis that lies within processes and across them.
    case([2, 2], "fsdp=4", &["train.microbatches=2"]),
    case([4, 1], "data=2,fsdp=2", &[]),
    case([2, 4], "tensor=2,fsdp=4", &[]),
    case([2, 4], "data=2,fsdp=4", &[]),
    case([2, 2], "tensor=4", &[]),
    case([2, 2], "expert=4", EXPERTS),
    case([2, 2], "stage=2,data=2", PIPELINE),
    case(
        [2, 4],
        "data=2,expert=4",
        &[
            "model.family=mixtral",
            "model.family.experts=4",
            "model.family.moe_mlp=32",
            "model.expert_capacity=2.0",
            "kernels.experts_exchange=all-to-all",
        ],
    ),
    case(
        [2, 2],
        "expert=4",
        &[
            "model.family=mixtral",
            "model.family.experts=4",
            "model.family.moe_mlp=32",
            "model.expert_capacity=2.0",
            "kernels.experts_exchange=all-to-all",
        ],
    ),
    case([2, 4], "replica=2,fsdp=4", &["train.microbatches=2", "train.batch=16"]),
    case(
        [2, 4],
        "stage=2,fsdp=4",
        &["model.layers=4", "pipeline.microbatches=4", "pipeline.repeats=2", "train.batch=16"],
    ),
    case([4, 1], "stage=4", &["model.layers=8", "pipeline.microbatches=4", "pipeline.repeats=2"]),
    case(
        [2, 2],
        "stage=4",
        &["model.layers=4", "pipeline.microbatches=4", "pipeline.schedule=1f1b", "pipeline.repeats=1"],
    ),
    case([2, 2], "context=2,fsdp=2", &["kernels.context=ring"]),
    case([2, 2], "context=4", &[]),
    case([3, 2], "data=3,tensor=2", &["train.batch=6", "train.steps_per_call=2", "train.steps=4"]),
    case([4, 2], "data=2,fsdp=2,tensor=2", &["model.dropout=0.1"]),
];

#[test]
fn steps_equal_those_of_one_process() {
    for Case { processes, devices, mesh, settings } in cases("cluster meshes", 1, CASES) {
        println!("{processes} x {devices}: {mesh} {settings:?}");
        let mesh = format!("mesh.axes={mesh}");
        let run = Run::new(2, &[settings, &[mesh.as_str()][..]].concat());
        run.alone(processes * devices);
        run.together(*processes, *devices);
        run.compare(["alone", "together"], 2, 1e-5);
    }
}

/// A step sends as many bytes to other processes as the ledger states for the axes that cross.
#[test]
fn bytes_are_those_of_the_ledger() {
    for (mesh, devices) in cases("cluster bytes", 1, [("fsdp=4", 2), ("data=2,fsdp=2", 2)]) {
        let mesh = format!("mesh.axes={mesh}");
        let sent = |steps: u64| {
            let run = Run::new(steps, &[&mesh]);
            run.together(2, devices);
            let log = run.log("together");
            let lines = log.lines().filter(|line| line.contains("bytes were sent to other processes"));
            let number = |line: &str| line.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).next();
            let each: Vec<u64> = lines.filter_map(number).collect();
            assert_eq!(each.len(), 2, "{log}");
            assert_eq!(each[0], each[1], "each process sends as much");
            each[0]
        };
        let of_step = sent(3) - sent(2);
        let devices_key = format!("target.devices={devices}");
        let settings = TINY.iter().copied().chain([mesh.as_str(), &devices_key, "target.processes=2"]);
        let settings: Vec<String> = settings.map(str::to_owned).collect();
        let config = RunConfig::from_overrides(&settings).unwrap_or_else(|error| panic!("{error}"));
        let (_, lowered) = config.lower_train_step().unwrap_or_else(|error| panic!("{error}"));
        let own_mesh = lowered.emitted_mesh().expect("a mesh").clone();
        let crosses = |entry: &&Collective| {
            let axis = |name: &String| own_mesh.axis(name).unwrap_or_else(|| panic!("no axis {name} in {own_mesh}"));
            let mut axes = entry.axes.iter().map(|name| own_mesh.crosses(axis(name), 2));
            let first = axes.next().expect("an axis");
            assert!(axes.all(|crosses| crosses == first), "{entry:?} lies within processes and across them");
            first
        };
        let ledger = lowered.collectives();
        let crossing = ledger.iter().expect("a ledger").filter(|entry| crosses(entry));
        let bytes: u64 = crossing.map(|entry| entry.moved_bytes * entry.executions.bound().expect("a number")).sum();
        assert_eq!(of_step, bytes * devices as u64, "{mesh}");
    }
}

/// Without a launcher: process 0 starts the etcd, and MPI's processes join by a port.
#[test]
fn processes_are_started_by_themselves() {
    let count: usize = if every_case("cluster processes by themselves") { 3 } else { 2 };
    let run = Run::new(2, &[&format!("mesh.axes=data={count}"), "train.batch=6", "target.devices=1"]);
    run.alone(count);
    let port =
        std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|bound| bound.local_addr()).expect("a port").port();
    let store = format!("http://127.0.0.1:{port}");
    let total = count.to_string();
    let mut processes: Vec<Process> = (0..count)
        .map(|number| {
            let number = number.to_string();
            let name = format!("together-{number}");
            let arguments = ["--process-id", &number, "--process-count", &total, "--store", &store];
            Process::start(run.command(&meshloom(), &name, &arguments))
        })
        .collect();
    // MPI connects them, and no other host can reach it.
    let mut listeners = BTreeSet::new();
    until("they end", || {
        processes.iter().for_each(|process| listeners.extend(process.listeners()));
        std::thread::sleep(Duration::from_millis(20));
        !processes.iter_mut().any(Process::is_running)
    });
    assert!(!listeners.is_empty() && listeners.iter().all(|address| address.ip().is_loopback()), "{listeners:?}");
    for (number, process) in processes.iter_mut().enumerate() {
        let status = process.ended(Duration::from_secs(60));
        assert!(status.is_some_and(|status| status.success()), "{}", run.log(&format!("together-{number}")));
    }
    run.compare(["alone", "together"], 2, 1e-5);
}

/// If processes would run different programs, all of them report it.
#[test]
fn processes_agree_before_they_compile() {
    let etcd = shared();
    let run = Run::new(2, &["mesh.axes=data=2", "target.devices=1"]);
    let start = |number: &str, seed: &str| {
        let name = format!("together-{number}");
        let place = ["--process-id", number, "--process-count", "2", "--store", etcd.address(), "--job", "agree"];
        let arguments = [&place[..], &["--seed", seed]].concat();
        Process::start(run.command(&meshloom(), &name, &arguments))
    };
    let mut processes = [start("0", "1"), start("1", "2")];
    for (number, process) in processes.iter_mut().enumerate() {
        let status = process.ended(Duration::from_secs(60)).expect("it ends");
        let log = run.log(&format!("together-{number}"));
        assert!(!status.success() && log.contains("the SHA-256 of the run config differs between processes"), "{log}");
        assert!(log.contains("on process 0") && log.contains("on process 1"), "{log}");
    }
}

#[test]
fn wrong_use_is_refused() {
    let refused = |arguments: &[&str], expected: &str| {
        let settings = TINY.iter().flat_map(|setting| ["--set", setting]);
        let words: Vec<&str> =
            ["train", "--steps", "1"].into_iter().chain(settings).chain(arguments.iter().copied()).collect();
        let (_, said) = program::refused(meshloom_cluster::program::HERE, &words);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    refused(&["--processes", "auto"], "no launcher has started this process");
    refused(&["--process-id", "2", "--process-count", "2"], "--process-id 2 is not one of 2 processes");
    refused(&["--process-id", "0"], "--process-count");
    refused(&["--set", "target.processes=2", "--set", "target.devices=4"], "start as many processes");
    let mesh =
        ["--process-id", "0", "--process-count", "2", "--set", "target.devices=6", "--set", "mesh.axes=data=3,fsdp=4"];
    refused(&mesh, "cannot lie in 2 processes");
    let mesh = ["--process-id", "0", "--process-count", "2", "--set", "target.devices=4", "--set", "mesh.axes=data=3"];
    refused(&mesh, "each of 2 processes has target.devices = 4");
    let none = ["--process-id", "0", "--process-count", "2", "--set", "target.devices=4"];
    refused(&none, "the processes need a store to find each other");
    let gspmd = [&none[..], &["--store", "http://127.0.0.1:1", "--set", "partition.mode=gspmd"]].concat();
    refused(&gspmd, "partition.mode");
}

/// DiLoCo replicas of one program, each in a process of its own: the outer parameters are those of one process.
#[test]
fn replicas_of_a_program_in_processes() {
    let streaming = ["diloco.streaming=true", "diloco.fragments=3", "diloco.overlap_steps=1", "diloco.transport=int4"];
    let all = [("mesh.axes=diloco=2,fsdp=2", 2, &[][..]), ("mesh.axes=diloco=2", 1, &streaming)];
    for (mesh, devices, streaming) in cases("cluster replicas of a program", 1, all) {
        let settings = [mesh, "diloco.replicas=2", "diloco.sync_period=6", "train.batch=8"];
        let run = Run::new(7, &[&settings[..], streaming].concat());
        let saved = |name: &str| run.path(name).to_string_lossy().into_owned();
        run.alone_with(2 * devices, &["--checkpoint", &saved("alone-checkpoints")]);
        run.together_with(2, devices, &["--checkpoint", &saved("together-checkpoints")]);
        let all = format!("target.devices={}", 2 * devices);
        let declared = [&TINY[..], &settings, streaming, &[&all]].concat();
        let [alone, together] = ["alone-checkpoints", "together-checkpoints"].map(|name| run.outer(name, &declared));
        compare_outer(&alone, &together, 1e-6);
    }
}
