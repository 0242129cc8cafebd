//! `meshloom train` in several processes.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use meshloom::ir::Literal;
use meshloom::trace::Tree;
use meshloom_train::checkpoint::{self, Fallback};
use meshloom_train::config::RunConfig;
use meshloom_train::run::RunState;
use rustix::process::{Pid, Signal, kill_process};
use support::configs::{THE_BOOK, UNOPTIMIZED};
use support::counts::process;
use support::program::meshloom_with_processes as meshloom;

/// A model that compiles in a moment, as LLVM does not optimize.
pub const TINY: [&str; 9] = [
    "model.layers=2",
    "model.seq=16",
    "model.embed=32",
    "model.heads=4",
    "model.head_dim=8",
    "model.mlp=64",
    "train.batch=8",
    "data.tokenizer=bytes",
    UNOPTIMIZED,
];

/// A run of a test: its folder, and the arguments of all its processes.
pub struct Run {
    pub folder: tempfile::TempDir,
    settings: Vec<String>,
    arguments: Vec<String>,
}

impl Run {
    pub fn new(steps: u64, settings: &[&str]) -> Run {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = TINY.iter().chain(settings).map(|&setting| setting.to_owned()).collect();
        let arguments = ["train", "--sample", "0", "--steps", &steps.to_string()].map(str::to_owned).to_vec();
        Run { folder, settings, arguments }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the words of a command line for this process, which runs in another folder.
    pub fn words(&self) -> Vec<String> {
        let settings = self.settings.iter().map(String::as_str).chain([THE_BOOK]);
        let settings = settings.flat_map(|setting| ["--set", setting]).map(str::to_owned);
        self.arguments.iter().cloned().chain(settings).collect()
    }

    /// The command of a process, which writes what it says to a file, and metrics to another, if it is the first.
    pub fn command(&self, program: &Path, name: &str, arguments: &[&str]) -> Command {
        let mut command = process(program);
        let is_launcher = program != meshloom();
        if is_launcher {
            command.args(arguments).arg(meshloom());
        }
        command.args(&self.arguments).args(if is_launcher { &["--processes", "auto"][..] } else { &[] });
        command.current_dir(support::path(""));
        let log = File::create(self.path(&format!("{name}.log"))).expect("a log");
        command.args(self.settings.iter().flat_map(|setting| ["--set", setting]));
        // If an option is given twice, the last counts.
        command.args(if is_launcher { &[] } else { arguments });
        command.arg("--metrics").arg(self.path(&format!("{}.jsonl", name.split('-').next().unwrap_or(name))));
        command.env("RUST_LOG", "warn,meshloom_cluster=debug").env("MPIEXEC_TIMEOUT", "120");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// One process with all devices.
    pub fn alone(&self, devices: usize) {
        self.alone_with(devices, &[]);
    }

    pub fn alone_with(&self, devices: usize, arguments: &[&str]) {
        let devices = format!("target.devices={devices}");
        let arguments = [&["--set", &devices][..], arguments].concat();
        let ended = self.command(&meshloom(), "alone", &arguments).status().expect("meshloom runs");
        assert!(ended.success(), "{}", self.log("alone"));
    }

    /// Several processes, started by MPICH's launcher.
    pub fn together(&self, processes: usize, devices: usize) {
        self.together_with(processes, devices, &[]);
    }

    pub fn together_with(&self, processes: usize, devices: usize, arguments: &[&str]) {
        let mpiexec = meshloom_cluster::mpiexec_program().unwrap_or_else(|error| panic!("{error}"));
        let mut command = self.command(&mpiexec, "together", &["-n", &processes.to_string()]);
        let ended = command
            .args(["--set", &format!("target.devices={devices}")])
            .args(arguments)
            .status()
            .expect("mpiexec runs");
        assert!(ended.success(), "{processes} processes of {devices} devices\n{}", self.log("together"));
    }

    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// Loss and norm of the gradient of each step.
    pub fn metrics(&self, name: &str) -> Vec<(u64, [f64; 2])> {
        let text = fs::read_to_string(self.path(&format!("{name}.jsonl"))).unwrap_or_default();
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let number = |key: &str| line.get(key).and_then(serde_json::Value::as_f64);
            Some((line.get("step")?.as_u64()?, [number("loss")?, number("grad_norm")?]))
        };
        text.lines().filter_map(line).collect()
    }

    /// Checks that two runs have the same losses and norms.
    pub fn compare(&self, [one, other]: [&str; 2], steps: usize, bound: f64) {
        let (one, other) = (self.metrics(one), self.metrics(other));
        assert_eq!((one.len(), other.len()), (steps, steps), "steps");
        for ((step, one), (other_step, other)) in one.iter().zip(&other) {
            assert_eq!(step, other_step);
            for (a, b) in one.iter().zip(other) {
                assert!((a - b).abs() <= bound * a.abs(), "step {step}: {one:?} and {other:?}");
            }
        }
    }
}

/// Outer parameters, by path.
pub type Outer = Vec<(String, Literal)>;

impl Run {
    /// The outer parameters and velocities in the newest checkpoint of a directory, of a run with these settings.
    pub fn outer(&self, name: &str, settings: &[&str]) -> Outer {
        let found = checkpoint::find(self.path(name), Fallback::Refuse);
        let checkpoint = found.unwrap_or_else(|error| panic!("{error}")).checkpoint;
        let settings: Vec<String> = settings.iter().map(|&text| text.to_owned()).collect();
        let config = RunConfig::from_overrides(&settings).unwrap_or_else(|error| panic!("{error}"));
        let RunState::Diloco(declared) = config.resolve().expect("a run").state() else { panic!("replicas") };
        let outer = checkpoint.load_on_host(&declared.outer, "outer.").unwrap_or_else(|error| panic!("{error}"));
        outer.paths().into_iter().zip(outer.leaves()).collect()
    }
}

/// Checks that outer parameters and velocities are the same, except for rounding. A velocity adds up differences of
/// parameters, so the last digits of these are added to its bound: each number of an embedding is about 1, and changes
/// by a thousandth.
pub fn compare_outer(one: &Outer, other: &Outer, bound: f64) {
    assert_eq!(one.len(), other.len());
    let norm = |leaf: &Literal| leaf.to_f64_vec().iter().map(|value| value * value).sum::<f64>().sqrt();
    let parameter = |path: &str| one.iter().find(|(other, _)| other == path).map(|(_, leaf)| norm(leaf));
    for ((path, one), (_, other)) in one.iter().zip(other) {
        let rounding = path.strip_prefix("momentum.").map_or(0.0, |rest| {
            let parameter = parameter(&format!("params.{rest}")).unwrap_or_else(|| panic!("{path} has no parameter"));
            parameter * f64::from(f32::EPSILON) / 2.0
        });
        let error = distance(one, other);
        assert!(error <= bound * norm(one) + rounding, "{path}: {error:e} of {:e}, {rounding:e}", norm(one));
    }
}

fn distance(one: &Literal, other: &Literal) -> f64 {
    let [one, other] = [one, other].map(Literal::to_f64_vec);
    one.iter().zip(&other).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// A process that was started by itself.
pub struct Process {
    child: Child,
}

impl Process {
    pub fn start(mut command: Command) -> Process {
        Process { child: command.spawn().expect("meshloom runs") }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }

    /// Returns the exit status of the process, or `None` if it does not end within the time.
    pub fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// The addresses of IPv4 at which it listens now, as Linux says.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        const LISTEN: &str = "0A";
        let of_process = format!("/proc/{}", self.child.id());
        let files = fs::read_dir(format!("{of_process}/fd")).into_iter().flatten().flatten();
        let own: Vec<PathBuf> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
        let table = fs::read_to_string(format!("{of_process}/net/tcp")).unwrap_or_default();
        let address = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
            let is_own = *state == LISTEN && own.contains(&PathBuf::from(format!("socket:[{inode}]")));
            let (host, port) = local.split_once(':').filter(|_| is_own)?;
            let host = u32::from_str_radix(host, 16).ok()?.to_ne_bytes();
            Some(SocketAddr::from((host, u16::from_str_radix(port, 16).ok()?)))
        };
        table.lines().filter_map(address).collect()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}
