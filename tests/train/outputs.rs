//! Tests of the files that `meshloom train` writes, and of those that it leaves alone when a run does not begin or ends
//! with an error.

use std::fs;
use std::path::Path;

use support::configs::UNOPTIMIZED;

use super::program::{refused, refused_by_a_process, trained, with_keys};

/// A model whose step is compiled in a moment.
pub const SMALL: [&str; 10] = [
    "model.layers=1",
    "model.embed=16",
    "model.heads=2",
    "model.kv_heads=1",
    "model.mlp=16",
    "model.seq=16",
    "mesh.axes=data=2",
    "target.devices=2",
    "train.batch=4",
    UNOPTIMIZED,
];

/// The arguments of `meshloom train` with a small model.
fn train<'a>(keys: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
    with_keys(&[&["train"], flags].concat(), &[&SMALL, keys].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

#[test]
fn a_run_that_does_not_begin_leaves_the_files_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = folder.path().join("metrics.jsonl");
    fs::write(&metrics, "kept\n").expect("written");
    for key in ["data.sources=[\"/nope\"]", "validation.every=2", "mesh.axes=data=3"] {
        let said = refused(&train(&[key], &["--metrics", text(&metrics)]));
        assert_eq!(fs::read_to_string(&metrics).expect("the file"), "kept\n", "{said}");
    }
    // A file that cannot be written is reported before the model is compiled.
    let absent = folder.path().join("absent").join("metrics.jsonl");
    let said = refused_by_a_process(&train(&[], &["--metrics", text(&absent)]));
    assert!(said.contains("cannot write the metrics") && !said.contains("compiled"), "{said}");
    let said = refused_by_a_process(&train(
        &[],
        &["--tensorboard", text(&metrics.join("events")), "--metrics", text(&metrics)],
    ));
    assert!(said.contains("cannot write events") && said.contains("can be made"), "{said}");
    assert!(!said.contains('\u{1b}'), "colours where there is no terminal: {said}");
    assert_eq!(fs::read_to_string(&metrics).expect("the file"), "kept\n", "{said}");
}

/// These tests run in their own folder, where the default text is not.
#[test]
fn a_run_elsewhere_says_which_key_names_its_text() {
    let said = refused(&["train", "--steps", "1"]);
    let expected = "data.sources is the default, \"examples/data/austen.txt\" of meshloom's repository, and there is no \
                    such file below the working directory; name a text by --set 'data.sources=[\"FILE\"]' or in a run \
                    config, or start in a clone of the repository";
    assert!(said.contains(expected), "{said}");
    // A file that the user has named is another error.
    let said = refused(&["train", "--steps", "1", "--set", "data.sources=[\"absent.txt\"]"]);
    assert!(said.contains("cannot read the text \"absent.txt\"") && !said.contains("repository"), "{said}");
}

#[test]
fn events_have_evaluations() {
    let file =
        fs::read_dir(trained().path("events")).expect("a folder").next().expect("a file").expect("an entry").path();
    let events = fs::read(file).expect("the events");
    for tag in ["loss", "step_seconds", "eval_loss", "eval_perplexity", "eval_bits_per_byte"] {
        assert!(events.windows(tag.len()).any(|bytes| bytes == tag.as_bytes()), "{tag}");
    }
}

#[test]
fn flags_of_a_run_are_refused_where_nothing_runs() {
    let said = refused(&train(&[], &["--set", "target.topology=cpu:2"]));
    assert!(said.contains("a topology is compiled for, not run on; use `meshloom compile`"), "{said}");
    let flags = ["--steps=2", "--metrics=m", "--tensorboard=t", "--profile=p", "--sample=3", "--load-parameters=l"];
    let more = ["--save-parameters=s", "--checkpoint=c", "--resume=r"];
    for flag in flags.into_iter().chain(more) {
        let name = flag.split('=').next().unwrap_or_default();
        let said = refused(&train(&[], &[flag, "--debug-sharding"]));
        assert!(said.contains(&format!("{name} is for a run, and nothing is run with --debug-sharding")), "{said}");
    }
}
