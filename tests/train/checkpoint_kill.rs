//! Tests `meshloom train`, killed or asked to end at random moments again and again: it goes on from the newest
//! complete checkpoint, and all losses are those of a run that was not killed. A run that is asked to end loses no
//! step.
//!
//! ```text
//! MESHLOOM_EVERY_CASE="train kills" cargo test --release --test train checkpoint_kill -- --nocapture
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use meshloom_train::checkpoint::{Checkpoint, list};
use rustix::process::{Pid, Signal, kill_process};
use support::cases::{cases, every_case, seed};
use support::counts::process;
use support::program::meshloom;

/// Kills in all.
const KILLS: u64 = 200;

/// The number of steps of a run. It is so large that the kills come first; the small tier has few kills.
fn steps_of_run() -> u64 {
    if every_case("train kills") { 240 } else { 72 }
}

const EVERY: u64 = 3;

const TINY: &[&str] = &[
    "model.layers=1",
    "model.embed=16",
    "model.heads=2",
    "model.kv_heads=2",
    "model.head_dim=8",
    "model.mlp=16",
    "model.seq=8",
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
    "train.batch=4",
    "mesh.axes=fsdp=2",
    "target.devices=2",
    "checkpoint.keep=2",
    // Most of a process's time is XLA's: less of it is less between two kills.
    "target.compiler_options=[\"xla_backend_optimization_level=0\", \"xla_llvm_disable_expensive_passes=true\"]",
];

/// SplitMix64; the seed is printed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// Where a run writes.
struct Run {
    checkpoints: PathBuf,
    metrics: PathBuf,
}

impl Run {
    fn new(folder: &Path) -> Run {
        Run { checkpoints: folder.join("checkpoints"), metrics: folder.join("metrics.jsonl") }
    }

    /// Starts the program, from the newest checkpoint if there is one.
    fn start(&self, program: &Path) -> Child {
        let mut command = process(program);
        command.current_dir(support::path("")).arg("train").args(TINY.iter().flat_map(|text| ["--set", text]));
        command.args(["--set", &format!("train.steps={}", steps_of_run())]);
        command
            .args(["--sample", "0", "--checkpoint-every", &EVERY.to_string(), "--checkpoint"])
            .arg(&self.checkpoints);
        command.arg("--metrics").arg(&self.metrics);
        if self.newest().is_some() {
            command.arg("--resume").arg(&self.checkpoints);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("meshloom starts")
    }

    /// The step of the newest checkpoint.
    fn newest(&self) -> Option<u64> {
        let name = self.complete().pop()?;
        name.to_str()?.rsplit('-').next()?.parse().ok()
    }

    /// The complete lines of the metrics.
    fn raw_lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.metrics).unwrap_or_default();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
    }

    /// Step, loss and norm of each line, as they are written.
    fn lines(&self) -> Vec<String> {
        let numbers = |line: &String| line.split(", \"tokens_per_second\"").next().unwrap_or_default().to_owned();
        self.raw_lines().iter().map(numbers).collect()
    }

    /// The folders of complete checkpoints.
    fn complete(&self) -> Vec<PathBuf> {
        let all = if self.checkpoints.exists() { list(&self.checkpoints).expect("a list") } else { Vec::new() };
        all.into_iter().map(|(_, folder)| folder).collect()
    }

    /// Whether there is a folder that is not complete.
    fn has_unfinished(&self) -> bool {
        let Ok(entries) = fs::read_dir(&self.checkpoints) else { return false };
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-"))
    }
}

/// The step that a line is of.
fn step_of(line: &str) -> u64 {
    let value: serde_json::Value = serde_json::from_str(line).expect("a line of metrics");
    value["step"].as_u64().expect("a step")
}

fn stderr_of(child: Child) -> String {
    String::from_utf8_lossy(&child.wait_with_output().expect("it ends").stderr).into_owned()
}

/// The numbers of kills, by the progress of the program.
#[derive(Default, Debug)]
struct Kills {
    all: usize,
    /// Before the first step of the process: while it loaded, compiled or read the checkpoint.
    before_steps: usize,
    /// While a checkpoint was being written: its unfinished folder was there.
    while_writing: usize,
    /// With steps in the metrics that no checkpoint had.
    steps_lost: usize,
    resumed: usize,
    /// By SIGTERM, after the first step of the process.
    asked: usize,
}

#[test]
fn a_killed_run_goes_on_with_the_same_bits() {
    // Each kill has a seed of its own.
    let seed = seed(20_261_122);
    let random = |number: &u64| Random(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    // Every third of those that are chosen, so that each share of the cases has some.
    let signal = |place: usize| if place % 3 == 2 { Signal::TERM } else { Signal::KILL };
    let chosen = cases("train kills", 3, 0..KILLS).into_iter().enumerate();
    let mut left: Vec<(Signal, Random)> = chosen.map(|(place, number)| (signal(place), random(&number))).collect();
    left.reverse();
    let (wanted, program) = (left.len(), meshloom());
    let scratch = tempfile::tempdir().expect("a folder");

    let whole = Run::new(&scratch.path().join("whole"));
    fs::create_dir(scratch.path().join("whole")).expect("made");
    let start = Instant::now();
    let stderr = stderr_of(whole.start(&program));
    let duration = start.elapsed();
    let expected = whole.lines();
    assert_eq!(expected.len() as u64, steps_of_run(), "{stderr}");
    let last = final_values(&whole);

    let mut kills = Kills::default();
    let mut series = 0;
    while kills.all < wanted {
        series += 1;
        let folder = scratch.path().join(series.to_string());
        fs::create_dir(&folder).expect("made");
        let run = Run::new(&folder);
        while let Some((signal, random)) = left.last_mut() {
            if kill_one((&run, &program), duration, (*signal, random), &mut kills) {
                break;
            }
            left.pop();
        }
        // To the end, unless it is there.
        let stderr = stderr_of(run.start(&program));
        println!("series {series}: {kills:?}");
        assert_eq!(run.newest(), Some(steps_of_run()), "{stderr}");
        assert_eq!(run.lines(), expected, "series {series}: the metrics are not those of the run that was not killed");
        assert!(final_values(&run) == last, "series {series}: the last state is another");
    }
    println!("seed {seed}, {series} series of {} steps: {kills:?}", steps_of_run());
    assert!(kills.resumed > 0 && kills.asked > 0 && kills.all == wanted, "{kills:?}");
}

/// The values of the last checkpoint, which do not say where they lie.
fn final_values(run: &Run) -> Vec<u8> {
    let checkpoint =
        Checkpoint::open(run.checkpoints.join(format!("step-{:08}", steps_of_run()))).expect("the last checkpoint");
    let files = fs::read_dir(checkpoint.folder()).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut shards: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|it| it == "safetensors")).collect();
    shards.sort();
    shards.iter().flat_map(|path| fs::read(path).expect("a file")).collect()
}

/// Starts the program and sends it a signal some time later: within its start, or after a random number of steps and a
/// while. Whether it came to its end before.
fn kill_one(
    (run, program): (&Run, &Path),
    duration: Duration,
    (signal, random): (Signal, &mut Random),
    kills: &mut Kills,
) -> bool {
    let (from, old) = (run.newest(), run.raw_lines());
    // The lines that this process has written: their times tell them from lines of killed processes.
    let written = || run.raw_lines().into_iter().filter(|line| !old.contains(line)).collect::<Vec<_>>();
    let mut child = run.start(program);
    let started = Instant::now();
    let limit = match random.below(8) {
        0 => duration.mul_f64(random.below(1000) as f64 / 1000.0),
        _ => Duration::from_secs(300),
    };
    let steps = 1 + random.below(20) as usize;
    while started.elapsed() < limit && written().len() < steps {
        if child.try_wait().expect("a state").is_some() {
            break;
        }
        sleep(Duration::from_micros(200));
    }
    // Steps and checkpoints take a few milliseconds.
    sleep(Duration::from_micros(random.below(12_000)));
    let ended = child.try_wait().expect("a state").is_some();
    // After SIGKILL, nothing of it runs any more.
    if !ended {
        kill_process(Pid::from_child(&child), signal).expect("a signal");
    }
    let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    // One that is asked to end may have done its last step.
    if ended || status.success() {
        assert_eq!(run.newest(), Some(steps_of_run()), "meshloom failed: {stderr}");
        return true;
    }
    kills.all += 1;
    if signal == Signal::TERM && !written().is_empty() {
        assert_eq!(status.code(), Some(143), "{stderr}");
        let last = run.raw_lines().last().map(|line| step_of(line));
        assert_eq!(run.newest(), last, "a step was lost: {stderr}");
        assert!(stderr.contains(&format!("SIGTERM: the state after step {} is in ", last.unwrap_or(0))), "{stderr}");
        kills.asked += 1;
    }
    kills.before_steps += usize::from(written().is_empty());
    kills.while_writing += usize::from(run.has_unfinished());
    let done = run.raw_lines().last().map_or(0, |line| step_of(line));
    kills.steps_lost += usize::from(run.newest().is_none_or(|step| step < done));
    if let Some(step) = from
        && stderr.contains("resumed after step")
    {
        assert!(stderr.contains(&format!("resumed after step {step} ")), "not from the newest, {step}: {stderr}");
        kills.resumed += 1;
    }
    // Each folder with the name of a checkpoint is complete, and no step that had a checkpoint is lost.
    assert!(run.newest() >= from);
    for folder in run.complete() {
        Checkpoint::open(&folder).unwrap_or_else(|error| panic!("kill {}: {error}", kills.all));
    }
    false
}
