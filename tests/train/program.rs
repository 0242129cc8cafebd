//! The program `meshloom`: what it refuses, and one run of it for all tests that look at what a run leaves.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;
use std::{env, fs};

use support::configs::{ONE_DEVICE, SHORT_RUN};
use support::counts::process;
use support::program::{self, meshloom};
use tempfile::TempDir;

/// The output of the program, and its exit status.
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs the program in the folder of the repository.
pub fn run(arguments: &[&str]) -> Said {
    process(meshloom()).current_dir(support::path("")).args(arguments).output().expect("meshloom runs").into()
}

/// The program with arguments that it refuses before a run begins: what it says on its standard error. Nothing else is
/// printed, and nothing panics.
#[track_caller]
pub fn refused_by_a_process(arguments: &[&str]) -> String {
    let Said { code, stdout, stderr } = run(arguments);
    assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {code:?} {stderr}");
    assert!(stdout.is_empty() && !stderr.contains("panicked"), "{arguments:?}: {stdout}{stderr}");
    stderr
}

/// The same by the program's body in this process: its last message. It runs in the folder of the tests, so no file may
/// be named relative to that of the repository, as the default text is.
#[track_caller]
pub fn refused(arguments: &[&str]) -> String {
    // Several processes are those of `meshloom-processes`: `meshloom` runs it in place of the own process.
    let (code, said) = program::refused(meshloom_cluster::program::HERE, arguments);
    assert!(matches!(code, 1 | 2), "{arguments:?}: {code} {said}");
    said
}

/// Arguments, and keys that are set.
pub fn with_keys<'a>(arguments: &[&'a str], keys: &[&'a str]) -> Vec<&'a str> {
    arguments.iter().copied().chain(keys.iter().flat_map(|&key| ["--set", key])).collect()
}

/// Steps of the run, and how often it evaluates and saves.
pub const STEPS: u64 = 5;

/// A run of [`SHORT_RUN`] on one device that writes all that a run can write: it evaluates, saves and profiles.
pub struct Trained {
    folder: TempDir,
    pub said: Said,
}

impl Trained {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The same as text.
    pub fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("a name").to_owned()
    }

    /// Checkpoints after steps 2, 4 and 5.
    pub fn checkpoints(&self) -> PathBuf {
        self.path("checkpoints")
    }

    pub fn metrics(&self) -> String {
        fs::read_to_string(self.path("metrics.jsonl")).expect("the metrics")
    }

    /// The keys of the run.
    pub fn keys(&self) -> Vec<String> {
        let own = [
            format!("data.sources=[{:?}]", support::path("examples/data/austen.txt")),
            format!("validation.sources=[{:?}]", self.name("validation.jsonl")),
            format!("data.cache={:?}", self.name("cache")),
        ];
        let plain = [SHORT_RUN, ONE_DEVICE, &["validation.every=2", "validation.batches=1", "checkpoint.keep=0"]];
        plain.concat().into_iter().map(str::to_owned).chain(own).collect()
    }
}

/// The run, which is made when the first test asks for it.
pub fn trained() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| {
        // The program's own cache, which is removed when the tests have ended.
        let cache = env::var_os("XDG_CACHE_HOME").map_or_else(env::temp_dir, PathBuf::from);
        let folder = tempfile::tempdir_in(cache).expect("a folder");
        let lines = (0..290).map(|number| format!("{{\"text\": \"Line {number} of the validation set.\"}}\n"));
        fs::write(folder.path().join("validation.jsonl"), lines.collect::<String>()).expect("a file");
        let mut trained = Trained { folder, said: Said { code: None, stdout: String::new(), stderr: String::new() } };
        let [checkpoints, metrics, events, profile, parameters] =
            ["checkpoints", "metrics.jsonl", "events", "profile", "trained.safetensors"].map(|name| trained.name(name));
        let steps = STEPS.to_string();
        let arguments = [
            ["train", "--steps", &steps, "--seed", "5", "--sample", "12"],
            ["--checkpoint", &checkpoints, "--checkpoint-every", "2", "--metrics", &metrics, "--tensorboard"],
        ];
        let more = [&events[..], "--profile", &profile, "--save-parameters", &parameters];
        let keys = trained.keys();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let arguments = with_keys(&[&arguments.concat()[..], &more].concat(), &keys);
        // The current folder has no influence, even if it has a folder that checkpoints have, too.
        fs::create_dir(trained.path("model"))
            .and_then(|()| fs::write(trained.path("model/config.json"), "{}"))
            .expect("a file");
        let output = process(meshloom()).current_dir(trained.path("")).args(arguments).output().expect("meshloom runs");
        trained.said = output.into();
        assert_eq!(trained.said.code, Some(0), "{}", trained.said.stderr);
        trained
    })
}

/// Copies a folder and what is in it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, target).expect("copied")),
        }
    }
}
