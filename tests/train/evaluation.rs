//! The validation set: its loss is that of a plain program on one device, on any mesh and in any form of the run; and
//! batches that are made ahead of the steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::Literal;
use meshloom::trace::Tree;
use meshloom_nn::{Batch, DecoderConfig};
use meshloom_train::checkpoint::{Checkpointer, Fallback, Start, find};
use meshloom_train::config::{CheckpointConfig, RunConfig};
use meshloom_train::data::DataError;
use meshloom_train::report::Evaluation;
use meshloom_train::run::TrainStep;
use meshloom_train::tokenizer::Tokenizer;
use meshloom_train::{Dataset, Error, Text, Trainer};
use support::cases::cases;
use support::configs::{BOOK, DROPOUT, ONE_DEVICE, ONE_F_ONE_B, SHORT_RUN, THE_BOOK, TOKENIZER};
use support::eight_devices::{client, relative_error};
use support::text_files::TextFiles;

use super::program::{copy, run, trained, with_keys};

const LINES: usize = 142;

/// The book, and a validation set of 142 lines beside it, less than two batches of rows.
fn files() -> TextFiles {
    let line = |number: usize| format!("{{\"text\": \"Line {number} of the validation set.\"}}\n");
    TextFiles::new(&[("validation.jsonl", (0..LINES).map(line).collect::<String>().as_bytes())])
}

fn config(files: &TextFiles, settings: &[&[&str]]) -> RunConfig {
    let validation = format!("validation.sources=[{:?}]", files.path(""));
    files.config(&[SHORT_RUN, &[THE_BOOK, &validation], &settings.concat()])
}

fn trainer(config: &RunConfig) -> Trainer {
    Trainer::new(config, &client()).unwrap_or_else(|error| panic!("{error}"))
}

fn evaluation(trainer: &Trainer) -> Evaluation {
    trainer.evaluate().expect("it runs").expect("a validation set")
}

/// The loss of rows of the set by a program of one device that knows no trainer: the mean over all targets.
fn plain_loss(config: &RunConfig, parameters: &[Literal], rows: u64) -> f64 {
    let text = Text::load(config).expect("a text");
    let batch = text.validation.expect("a set").fixed_rows(0..rows).expect("rows");
    let step = TrainStep { batch: rows as usize, dropout: Default::default(), ..config.train_step().expect("a step") };
    let function = step.trace_loss().expect("it traces");
    let program = lower(function.graph(), &LowerOptions::default()).expect("it lowers").compile(&client());
    let program = program.expect("it compiles");
    let arguments = program.put(0, &[parameters, &batch.leaves()[..]].concat()).expect("arguments");
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    outputs[0].get().expect("a loss").to_f64_vec()[0]
}

#[test]
fn the_loss_is_that_of_one_plain_program_on_any_mesh() {
    let files = files();
    let one = config(&files, &[ONE_DEVICE, DROPOUT]);
    let set = Text::load(&one).expect("a text").validation.expect("a set");
    // So the second batch has rows of padding, and no third is there.
    let rows = set.rows_per_epoch(0).expect("rows");
    assert!((129..144).contains(&rows), "{rows}");
    let first = evaluation(&trainer(&one));
    let parameters = one.train_step().expect("a step").initialize(one.train.seed).unwrap().params.leaves();
    // 8 batches of 16 rows.
    let expected = plain_loss(&one, &parameters, 128);
    assert!(relative_error(&[first.loss], &[expected]) < 1e-5, "{first:?} {expected}");
    let all = ["validation.batches=20"];
    let expected_of_all = plain_loss(&one, &parameters, rows);
    assert!(relative_error(&[expected], &[expected_of_all]) > 1e-6, "{expected} {expected_of_all}");
    let forms: [&[&str]; 9] = [
        &["mesh.axes=\"data=2,fsdp=4\""],
        &["mesh.axes=\"fsdp=4,tensor=2\"", "train.microbatches=4"],
        &["mesh.axes=\"diloco=2,fsdp=4\"", "diloco.replicas=2"],
        // Only the train step pads what nothing splits.
        &["mesh.axes=\"data=1,fsdp=3\"", "target.devices=3", "rules.uneven=true"],
        &["mesh.axes=\"data=8\"", "partition.mode=shardy"],
        ONE_F_ONE_B,
        &["mesh.axes=\"fsdp=8\"", "train.steps_per_call=2", "model.scan_layers=false"],
        &["mesh.axes=\"replica=2,fsdp=4\"", "train.microbatches=2"],
        &[
            "mesh.axes=\"stage=2,data=2,fsdp=2\"",
            "pipeline.microbatches=4",
            "pipeline.repeats=1",
            "pipeline.layers_per_stage=2",
        ],
    ];
    for form in cases("train evaluations", 1, forms) {
        let found = evaluation(&trainer(&config(&files, &[form, &all, DROPOUT])));
        let error = relative_error(&[found.loss], &[expected_of_all]);
        println!("{form:?}: {error:.1e}");
        assert!(error < 1e-5, "{form:?}: {found:?}, expected {expected_of_all}");
    }
}

/// If replicas train on their own, the parameters that they agree on are evaluated.
#[test]
fn replicas_are_judged_by_what_they_agree_on() {
    let files = files();
    let config = config(&files, &[&["mesh.axes=\"diloco=2,fsdp=4\"", "diloco.replicas=2", "diloco.sync_period=2"]]);
    let mut trainer = trainer(&config);
    let before = evaluation(&trainer).loss;
    trainer.step().expect("a step");
    assert_eq!(evaluation(&trainer).loss, before, "nothing was agreed on yet");
    trainer.step().expect("a step");
    let after = evaluation(&trainer).loss;
    assert_ne!(after, before);
    let literals =
        trainer.state().params().leaves().iter().map(|array| array.get().expect("values")).collect::<Vec<_>>();
    let expected = plain_loss(&config, &literals, 128);
    assert!(relative_error(&[after], &[expected]) < 1e-5, "{after} {expected}");
}

/// The load-balance loss is for training alone.
#[test]
fn experts_are_judged_by_cross_entropy() {
    let files = files();
    let form = ["model.family=mixtral", "model.family.experts=4", "model.family.moe_mlp=64"];
    let of = |weight: &str| {
        let config = config(&files, &[ONE_DEVICE, &form, &[&format!("model.load_balance_weight={weight}")]]);
        let mut trainer = trainer(&config);
        (evaluation(&trainer).loss, trainer.step().expect("a step").loss)
    };
    let with = of("1.0");
    // Before the first step one text is as unlikely as another.
    assert!(with.1 > with.0 + 0.5, "{with:?}");
    for weight in cases("train experts without a load-balance loss", 0, ["0.0"]) {
        let without = of(weight);
        assert_eq!(without.0, with.0);
        assert!(with.1 > without.1 + 0.5, "{without:?} {with:?}");
    }
}

#[test]
fn evaluations_change_nothing() {
    let files = files();
    let config = config(&files, &[ONE_DEVICE, DROPOUT, &["validation.every=2", "validation.batches=2"]]);
    let run = |evaluates: bool| {
        let mut trainer = trainer(&config);
        let mut due = Vec::new();
        let step = |_| {
            let before = trainer.steps_done();
            let metrics = trainer.step().expect("a step");
            due.push(trainer.evaluation_is_due(before, 5));
            if evaluates {
                evaluation(&trainer);
            }
            (metrics.loss, metrics.grad_norm)
        };
        let numbers: Vec<(f64, f64)> = (0..5).map(step).collect();
        assert_eq!(due, [false, true, false, true, true]);
        numbers
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn bits_per_byte_by_hand() {
    // 256 values of a byte, all as likely: 8 bits. 1024 tokens of two bytes: 10 bits for 2 bytes.
    let bytes = Evaluation::new(7, 256f64.ln(), Some(1.0));
    assert!((bytes.bits_per_byte.expect("bits") - 8.0).abs() < 1e-12 && (bytes.perplexity() - 256.0).abs() < 1e-9);
    assert!((Evaluation::new(7, 1024f64.ln(), Some(2.0)).bits_per_byte.expect("bits") - 5.0).abs() < 1e-12);
    insta::assert_snapshot!(Evaluation::new(7, 4f64.ln(), Some(4.0)).to_json(), @r#"{"step": 7, "eval_loss": 1.386294361, "eval_perplexity": 4.000000000, "eval_bits_per_byte": 0.5000000000}"#);
    insta::assert_snapshot!(Evaluation::new(7, 4f64.ln(), None).to_json(), @r#"{"step": 7, "eval_loss": 1.386294361, "eval_perplexity": 4.000000000}"#);
    insta::assert_snapshot!(Evaluation::new(7, 4f64.ln(), Some(4.0)), @"step 7  validation loss 1.3863  perplexity 4.000  0.5000 bits per byte");
    // The bytes per token of a text count its own bytes, not those of JSON.
    let files = files();
    let lines: Vec<String> = (0..LINES).map(|number| format!("Line {number} of the validation set.")).collect();
    let tokenizer = Tokenizer::load(TOKENIZER).expect("a tokenizer");
    let tokens: usize = lines.iter().map(|line| tokenizer.encode(line).expect("tokens").len()).sum();
    let own = format!("data.tokenizer={TOKENIZER:?}");
    // The text is the validation set as well: the whole book would take seconds to become tokens.
    let sources = format!("data.sources=[{:?}]", files.path(""));
    let text = Text::load(&config(&files, &[&[&own, &sources, "model.vocab=1024"]])).expect("a text");
    let expected = lines.concat().len() as f64 / tokens as f64;
    assert_eq!(Dataset::<DecoderConfig>::bytes_per_token(&text), Some(expected));
}

#[test]
fn evaluations_need_a_set() {
    let files = files();
    let without = config(&files, &[ONE_DEVICE, &["validation.sources=[]", "validation.every=5"]]);
    let refused = Trainer::new(&without, &client()).map(drop).expect_err("no set").to_string();
    assert_eq!(
        refused,
        "--set validation.every=5: validation.every is 5: there is nothing to evaluate on; set validation.sources to files that are not trained on"
    );
    let missing = config(&files, &[ONE_DEVICE, &["validation.sources=[\"absent.txt\"]"]]);
    let refused = Trainer::new(&missing, &client()).map(drop).expect_err("no file").to_string();
    assert_eq!(
        refused,
        "cannot read the text \"absent.txt\": No such file or directory (os error 2); validation.sources names it"
    );
}

/// As soon as the text is read, and not after the last step.
#[test]
fn a_set_without_targets_is_refused() {
    let one = "{\"text\": \"a\"}\n";
    let refused = |files: &TextFiles, settings: &[&str]| {
        files.without_folder(Text::load(&config(files, &[settings])).map(drop).expect_err("no targets"))
    };
    let files = TextFiles::new(&[("validation.jsonl", one.repeat(100).as_bytes())]);
    assert_eq!(
        refused(&files, &[]),
        "the text \"DIR/files/\" has 100 tokens in 100 documents, but a document of at least 2 is needed to predict one \
         from another; add to validation.sources"
    );
    // One row of 1001 has a target, and is not among the first.
    let files = TextFiles::new(&[("validation.jsonl", (one.repeat(1000) + "{\"text\": \"ab\"}\n").as_bytes())]);
    assert_eq!(
        refused(&files, &["data.documents=one-per-row", "validation.batches=1"]),
        "the validation set has no token to predict in its first 16 rows; give validation.sources more text, or leave it \
         empty"
    );
    Text::load(&config(&files, &[&["data.documents=one-per-row", "validation.batches=63"]])).expect("all rows");
}

#[test]
fn text_in_both_sets_is_warned_of() {
    let files = files();
    files.write("empty.txt", b"");
    let overlap = |sources: &[&std::path::Path]| {
        let text = Text::load(&config(&files, &[&[&format!("data.sources={sources:?}")]])).expect("a text");
        text.overlap().map(|warning| files.without_folder(warning))
    };
    let warning = |names: &str| {
        format!(
            "validation.sources has text that data.sources has as well, in {names}: the validation loss is then of text \
             that is trained on; leave it out of one of them"
        )
    };
    let (book, validation) = (std::path::Path::new(BOOK), files.path("validation.jsonl"));
    // Where there is no text, none is in both.
    assert_eq!(overlap(&[book, &files.path("empty.txt")]), None);
    assert_eq!(overlap(&[book, &validation]), Some(warning("file DIR/files/validation.jsonl")));
    // A folder that has it; and what is the same under another name.
    assert_eq!(overlap(&[&files.path("")]), Some(warning("file DIR/files/validation.jsonl")));
    files.write("a/copy.jsonl", &std::fs::read(&validation).expect("a file"));
    let both = warning("files DIR/files/a/copy.jsonl and DIR/files/validation.jsonl");
    assert_eq!(overlap(&[book, &validation]), Some(both));
}

/// The lines of evaluations stand behind those of their steps, and a run that goes on writes the same file.
#[test]
fn the_program_writes_evaluations() {
    let (trained, folder) = (trained(), tempfile::tempdir().expect("a folder"));
    let number = |line: &str, key: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")[key].as_f64();
    let loss = |lines: &str| {
        let one = |line: &str| (number(line, "step"), number(line, "loss"), number(line, "eval_loss"));
        lines.lines().map(one).collect::<Vec<_>>()
    };
    let lines = trained.metrics();
    let kinds: String = loss(&lines).iter().map(|(_, loss, _)| if loss.is_some() { 's' } else { 'e' }).collect();
    assert_eq!(kinds, "ssessese", "{lines}");
    let messages = &trained.said.stderr;
    assert!(messages.contains("step 4  validation loss ") && messages.contains(" bits per byte"), "{messages}");
    // From the checkpoint after step 2, when the file has the lines of later steps.
    let [checkpoints, metrics] = ["checkpoints", "metrics"].map(|name| folder.path().join(name));
    copy(&trained.checkpoints().join("step-00000002"), &checkpoints.join("step-00000002"));
    std::fs::write(&metrics, &lines).expect("written");
    let [checkpoints, metrics_name] = [&checkpoints, &metrics].map(|path| path.to_str().expect("a name"));
    let keys = trained.keys();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let arguments = ["train", "--steps", "5", "--seed", "5", "--sample", "0", "--resume", checkpoints];
    let said = run(&with_keys(&[&arguments[..], &["--metrics", metrics_name]].concat(), &keys));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let resumed = std::fs::read_to_string(&metrics).expect("the metrics");
    assert_eq!(loss(&resumed), loss(&lines));
    // The steps after the second are new.
    assert_ne!(resumed, lines);
    assert!(resumed.lines().zip(lines.lines()).take(3).all(|(new, old)| new == old), "{resumed}{lines}");
}

// Batches ahead of the steps.

/// A text that fails at a step, and counts what is read of it.
struct Failing {
    text: Text,
    fails_at: u64,
    read: Arc<AtomicUsize>,
    is_gone: Arc<AtomicBool>,
}

impl Dataset<DecoderConfig> for Failing {
    fn batch(&self, seed: u64, step: u64, rows: usize) -> Result<Batch<Literal>, Error> {
        self.read.fetch_add(1, Ordering::SeqCst);
        match step == self.fails_at {
            true => Err(DataError::NoCacheFolder("a test".to_owned()).into()),
            false => self.text.batch(seed, step, rows),
        }
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

#[test]
fn batches_are_made_ahead() {
    let files = files();
    let config = config(&files, &[ONE_DEVICE, &["validation.sources=[]", "train.steps_per_call=2"]]);
    let (read, is_gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let trainer = |fails_at| {
        let text = Text::load(&config).expect("a text");
        let data = Failing { text, fails_at, read: read.clone(), is_gone: is_gone.clone() };
        Trainer::of(config.resolve().expect("a run"), data, &client()).expect("a trainer")
    };
    let losses = |trainer: &mut Trainer<DecoderConfig, Failing>| {
        let metrics = trainer.steps(9).expect("steps");
        assert!(metrics.iter().all(|metrics| metrics.data_seconds <= metrics.step_seconds));
        metrics.iter().map(|metrics| (metrics.step, metrics.loss)).collect::<Vec<_>>()
    };
    let mut whole = trainer(u64::MAX);
    read.store(0, Ordering::SeqCst);
    let expected = [losses(&mut whole), losses(&mut whole)];
    drop(whole);
    assert!(is_gone.load(Ordering::SeqCst), "the thread has ended");
    // Four used, two waiting, one in hand: no more are made than can be used.
    assert!((4..=7).contains(&read.load(Ordering::SeqCst)), "{read:?}");

    let mut failing = trainer(5);
    assert_eq!([losses(&mut failing), losses(&mut failing)], expected);
    // The error is that of the step which has no batch, whenever the thread met it, and it is met again.
    for _ in 0..2 {
        let error = failing.steps(9).expect_err("the sixth batch fails");
        assert!(matches!(&error, Error::Data(error) if matches!(**error, DataError::NoCacheFolder(..))), "{error}");
        assert_eq!(failing.steps_done(), 4);
    }
    // The fifth is there, and a call of one step needs no more.
    assert_eq!(failing.step().expect("the fifth step").step, 5);
}

/// A run that goes on in the middle of weighted, compressed sources and small windows has the same bits.
#[test]
fn a_mixture_goes_on_where_it_stopped() {
    let lines = |word: &str, count: usize| -> String {
        (0..count).map(|number| format!("{{\"text\": \"{word} {number}, and {word} once more\"}}\n")).collect()
    };
    let files = TextFiles::new(&[
        ("a.jsonl.gz", &support::text_files::gzip(lines("first", 3000).as_bytes())),
        ("b.jsonl.zst", &support::text_files::zstd(lines("second", 40).as_bytes())),
    ]);
    let sources = ["a.jsonl.gz", "b.jsonl.zst"].map(|name| files.path(name).display().to_string());
    let sources = format!("data.sources={sources:?}");
    let mixture = [&*sources, "data.weights=[2, 1]", "data.shuffle_window=1024", "data.documents=one-per-row"];
    let config = files.config(&[SHORT_RUN, ONE_DEVICE, &mixture]);
    let mut whole = trainer(&config);
    let losses = |trainer: &mut Trainer, count: usize| -> Vec<f64> {
        (0..count).map(|_| trainer.step().expect("a step").loss).collect()
    };
    let expected = losses(&mut whole, 8);
    let mut first = trainer(&config);
    assert_eq!(losses(&mut first, 3), expected[..3]);
    let folder = tempfile::tempdir().expect("a folder");
    let settings = CheckpointConfig { dir: folder.path().display().to_string(), ..CheckpointConfig::default() };
    let mut checkpointer = Checkpointer::new(&settings, Start::Fresh).expect("a checkpointer");
    first.save_checkpoint(&mut checkpointer).expect("saved");
    checkpointer.finish().expect("written");
    let checkpoint = find(folder.path(), Fallback::Refuse).expect("a checkpoint").checkpoint;
    let mut resumed = Trainer::resume(&config, &client(), &checkpoint).expect("a trainer");
    assert_eq!(losses(&mut resumed, 5), expected[3..]);
}
