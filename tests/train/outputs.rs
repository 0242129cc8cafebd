//! What `meshloom train` writes, and what it leaves alone when a run does not begin or ends with an error.

use std::fs;
use std::path::Path;
use std::process::Command;

use support::program::meshloom;

const SMALL: &str = "model.layers=1 model.embed=16 model.heads=2 model.kv_heads=1 model.mlp=16 model.seq=16 \
                     mesh.axes=data=2 target.devices=2 train.batch=4";

/// Runs `meshloom train` with a small model: whether it succeeded, and what it said.
fn train(keys: &[&str], flags: &[&str]) -> (bool, String) {
    let mut command = Command::new(meshloom());
    let keys = SMALL.split_whitespace().chain(keys.iter().copied());
    command.arg("train").args(flags).args(keys.flat_map(|key| ["--set", key]));
    let output = command.current_dir(support::path("")).output().expect("meshloom runs");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

#[test]
fn a_run_that_does_not_begin_leaves_the_files_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = folder.path().join("metrics.jsonl");
    fs::write(&metrics, "kept\n").expect("written");
    for key in ["data.sources=[\"/nope\"]", "train.eval_every=2", "mesh.axes=data=3"] {
        let (ok, said) = train(&[key], &["--metrics", text(&metrics)]);
        assert!(!ok, "{said}");
        assert_eq!(fs::read_to_string(&metrics).expect("the file"), "kept\n", "{said}");
    }
    // What cannot be written is said before the model is compiled.
    let absent = folder.path().join("absent").join("metrics.jsonl");
    let (ok, said) = train(&[], &["--metrics", text(&absent)]);
    assert!(!ok && said.contains("cannot write the metrics") && !said.contains("compiled"), "{said}");
    let (ok, said) = train(&[], &["--tensorboard", text(&metrics.join("events")), "--metrics", text(&metrics)]);
    assert!(!ok && said.contains("cannot write events") && said.contains("can be made"), "{said}");
    assert!(!said.contains('\u{1b}'), "colours where there is no terminal: {said}");
    assert_eq!(fs::read_to_string(&metrics).expect("the file"), "kept\n", "{said}");
}

#[test]
fn events_have_evaluations() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = ["data.validation=[\"examples/data/austen.txt\"]", "train.eval_every=1", "train.eval_batches=1"];
    let (ok, said) = train(&keys, &["--steps", "1", "--sample", "0", "--tensorboard", text(folder.path())]);
    assert!(ok, "{said}");
    let file = fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("an entry").path();
    let events = fs::read(file).expect("the events");
    for tag in ["loss", "step_seconds", "eval_loss", "eval_perplexity", "eval_bits_per_byte"] {
        assert!(events.windows(tag.len()).any(|bytes| bytes == tag.as_bytes()), "{tag}");
    }
}

#[test]
fn flags_of_a_run_are_refused_where_nothing_runs() {
    let flags = ["--steps=2", "--metrics=m", "--tensorboard=t", "--profile=p", "--sample=3", "--load-parameters=l"];
    let more = ["--save-parameters=s", "--checkpoint=c", "--resume=r"];
    for flag in flags.into_iter().chain(more) {
        let name = flag.split('=').next().unwrap_or_default();
        for (other, instead) in [("--target=cpu:2", "target.topology"), ("--debug-sharding", "--debug-sharding")] {
            let (ok, said) = train(&[], &[flag, other]);
            let expected = format!("{name} is for a run, and nothing is run with {instead}");
            assert!(!ok && said.contains(&expected), "{flag} {other}: {said}");
        }
    }
}

#[test]
fn a_loss_that_is_no_number_is_warned_of_once() {
    let keys = ["train.learning_rate=1e30", "train.warmup=0", "train.clip_norm=1e30"];
    let (ok, said) = train(&keys, &["--steps", "6", "--sample", "0"]);
    assert!(ok, "{said}");
    assert_eq!(said.matches("warning: the loss of step").count(), 1, "{said}");
}
