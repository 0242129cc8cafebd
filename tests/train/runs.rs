//! Training runs: the same numbers on any mesh and in any form, the same module every time, donated state, memory as
//! the sharding says, and the program `meshloom`.

use std::{fs, thread};

use meshloom::compile::Lowered;
use meshloom::pjrt::PjrtError;
use meshloom::trace::Tree;
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::run::aliases;
use sha2::{Digest, Sha256};
use support::cases::{cases, every_case};
use support::configs::{self, CIRCULAR, DROPOUT, MIXED, ONE_DEVICE, ONE_F_ONE_B, SHORT_RUN, TINY};
use support::eight_devices::{client, relative_error};
use support::program::test_alone;

use super::interpreted::InterpretedRun;
use super::program::{STEPS as STEPS_OF_TRAINED, Said, refused, refused_by_a_process, run, trained, with_keys};

const FSDP: &[&str] = &["mesh.axes=\"fsdp=8\""];
const DATA: &[&str] = &["mesh.axes=\"data=8\""];

/// Steps of a run that is compared with others.
fn steps() -> usize {
    if every_case("train long runs") { 20 } else { 6 }
}

fn config(base: &[&str], overrides: &[&str]) -> RunConfig {
    configs::config(&[base, overrides])
}

/// The losses and the gradient norms of the first steps.
fn numbers(config: &RunConfig, steps: usize) -> [Vec<f64>; 2] {
    let mut trainer = Trainer::new(config, &client()).expect("a trainer");
    let each = (0..steps).map(|_| trainer.step().map(|metrics| (metrics.loss, metrics.grad_norm)));
    let (losses, grad_norms) = each.collect::<Result<Vec<_>, _>>().expect("steps").into_iter().unzip();
    [losses, grad_norms]
}

/// Runs a config and others that must give the same numbers, and compares each number of each step.
fn check(base: &[&str], left: &[&str], others: &[&[&str]], steps: usize, bound: f64) {
    let expected = numbers(&config(base, left), steps);
    assert!(expected[0].last() < expected[0].first(), "nothing is learned: {:?}", expected[0]);
    for right in others {
        let actual = numbers(&config(base, right), steps);
        let mut worst: f64 = 0.0;
        let mut report = String::new();
        for (name, (expected, actual)) in ["losses", "grad norms"].iter().zip(expected.iter().zip(&actual)) {
            let each = expected.iter().zip(actual).map(|(expected, actual)| relative_error(&[*actual], &[*expected]));
            let errors: Vec<f64> = each.collect();
            worst = errors.iter().fold(worst, |worst, error| worst.max(*error));
            let each: Vec<String> = errors.iter().map(|error| format!("{error:.0e}")).collect();
            report += &format!("\n  {name} differ by {}", each.join(" "));
        }
        println!("{left:?} and {right:?}: {worst:.1e}{report}");
        assert!(worst <= bound, "{left:?} and {right:?} differ by {worst:.1e}{report}");
    }
}

/// The same without a compiler: every number of a few steps of a tiny model.
fn check_interpreted(base: &[&str], left: &[&str], others: &[&[&str]]) {
    const STEPS: usize = 3;
    let numbers = |form: &[&str]| {
        let mut run = InterpretedRun::new(&config(&[TINY, &["train.batch=4"], base].concat(), form));
        (0..STEPS).flat_map(|_| run.step()).collect::<Vec<f64>>()
    };
    let expected = numbers(left);
    for right in others {
        let error = relative_error(&numbers(right), &expected);
        println!("{left:?} and {right:?}, interpreted: {error:.1e}");
        assert!(error <= 1e-5, "{left:?} and {right:?} differ by {error:.1e}");
    }
}

/// In the small tier, the test of dropout compares meshes.
#[test]
fn one_device_and_eight_agree() {
    for mesh in cases("train meshes", 0, [MIXED, FSDP, DATA]) {
        check(SHORT_RUN, ONE_DEVICE, &[mesh], steps(), 1e-5);
    }
}

/// `cargo test --release --test train -- --ignored the_default_run --nocapture`
#[test]
#[ignore = "minutes long"]
fn the_default_run_agrees_on_one_device_and_eight() {
    check(&[], ONE_DEVICE, &[MIXED, FSDP, DATA], 20, 1e-5);
}

/// Devices that wait for each other for ever would end a run by the time limit; one that is slow is warned of.
/// `cargo test --release --test train -- --ignored fifty_short_runs --nocapture`, best under load.
#[test]
#[ignore = "minutes long"]
fn fifty_short_runs_do_not_stall() {
    for seed in 0..50 {
        let seed = seed.to_string();
        let arguments = ["train", "--steps", "8", "--sample", "0", "--set", "train.time_limit=120", "--seed", &seed];
        let Said { code, stderr: said, .. } = run(&arguments);
        assert!(code == Some(0) && !said.contains("still runs"), "run {seed}: {said}");
        println!("run {seed}: {}", said.lines().last().unwrap_or_default());
    }
}

#[test]
fn the_same_run_twice_is_bitwise_equal() {
    for mesh in [ONE_DEVICE, MIXED] {
        check(&[SHORT_RUN, DROPOUT].concat(), mesh, &[mesh], steps() / 2, 0.0);
    }
}

#[test]
fn forms_of_the_model_agree() {
    let separate: &[&str] = &["model.scan_layers=false"];
    // The small tier compiles the first.
    let forms: [&[&str]; 5] = [
        &["remat.policy=full"],
        separate,
        &["remat.policy=dots"],
        &["remat.policy=save", "remat.names=[\"attention_mixed\", \"mlp_hidden\"]"],
        &["model.scan_layers=false", "remat.policy=full"],
    ];
    let on_one_device = forms.map(|form| [ONE_DEVICE, form].concat());
    let on_one_device: Vec<&[&str]> = on_one_device.iter().map(Vec::as_slice).collect();
    let on_a_mesh = [MIXED, separate].concat();
    check_interpreted(&["train.batch=8"], ONE_DEVICE, &[&on_one_device[..], &[&on_a_mesh[..]]].concat());
    for form in cases("train forms, compiled", 1, on_one_device.into_iter().chain([&on_a_mesh[..]])) {
        let plain = if form.starts_with(ONE_DEVICE) { ONE_DEVICE } else { MIXED };
        check(SHORT_RUN, plain, &[form], steps(), 1e-5);
    }
}

/// The activations that drop depend on seed, step, layer, row, position and channel alone.
#[test]
fn dropout_is_the_same_on_any_mesh_and_in_any_form() {
    let base = [SHORT_RUN, DROPOUT].concat();
    let (separate, recomputed) = (["model.scan_layers=false"], ["remat.policy=full"]);
    let pipeline =
        ["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.microbatches=2"];
    let on_one_device = [
        [ONE_DEVICE, &separate].concat(),
        [ONE_DEVICE, &recomputed].concat(),
        [ONE_DEVICE, &["model.batch_split=true"]].concat(),
        [ONE_DEVICE, &["train.microbatches=2"]].concat(),
    ];
    // The small tier takes the first and the fourth. The runs that stop and go on have the same programs.
    let forms = [
        MIXED.to_vec(),
        [MIXED, &["train.microbatches=2", "train.steps_per_call=4"]].concat(),
        ONE_F_ONE_B.to_vec(),
        CIRCULAR.to_vec(),
        pipeline.to_vec(),
    ];
    check_interpreted(DROPOUT, ONE_DEVICE, &on_one_device.each_ref().map(Vec::as_slice));
    let all =
        cases("train dropout", 2, forms).into_iter().chain(cases("train dropout on one device", 0, on_one_device));
    check(&base, ONE_DEVICE, &all.collect::<Vec<_>>().iter().map(Vec::as_slice).collect::<Vec<_>>(), steps(), 1e-5);
    let [plain, dropped] = [SHORT_RUN, &base].map(|base| numbers(&config(base, ONE_DEVICE), 1));
    assert!(relative_error(&dropped[0], &plain[0]) > 1e-4, "nothing drops: {plain:?} {dropped:?}");
}

#[test]
fn another_seed_is_another_run() {
    let [first, second] =
        ["train.seed=0", "train.seed=1"].map(|seed| numbers(&config(SHORT_RUN, &[ONE_DEVICE, &[seed]].concat()), 2));
    assert!(relative_error(&second[0], &first[0]) > 1e-4, "{first:?} {second:?}");
}

/// The error names step, program and the key that allows more.
///
/// Every program of a run has the limit, and the error says which it was. A run that goes on draws no first state. In
/// processes of their own, because what is too slow still runs when the error is there. The programs take longer than a
/// busy machine may keep the waiting thread from looking.
#[test]
fn what_is_beyond_the_time_limit_ends_the_run() {
    const LARGE: &[&str] = &["model.embed=256", "model.mlp=2048", "model.seq=128"];
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let run = |flags: &[&str]| {
        let arguments = [&["train", "--sample", "0"], flags].concat();
        let Said { code, stderr, .. } = run(&with_keys(&arguments, &[SHORT_RUN, MIXED, LARGE].concat()));
        (code, stderr.trim_end().to_owned())
    };
    let ends = |flags: &[&str], what: &str| {
        let (code, said) = run(&[flags, &["--set", "train.time_limit=1e-9"]].concat());
        let last = said.lines().last().unwrap_or_default();
        // Some devices may be done.
        assert!(code == Some(1) && last.starts_with(&format!("error: {what} on cpu:")), "{said}");
        assert!(last.contains(" was not done after 0.000000001 s, the time limit; it still runs;"), "{said}");
        assert!(last.ends_with("; give it more by train.time_limit, or none by 0"), "{said}");
    };
    for what in cases("train time limits", 0, ["the state before the first step: program \"first_state\""]) {
        ends(&[], what);
    }
    let (code, said) = run(&["--steps", "1", "--checkpoint", path]);
    assert_eq!(code, Some(0), "{said}");
    ends(&["--steps", "2", "--resume", path], "step 2: program \"train_step\"");
}

// The module.

fn lowered(overrides: &[&str]) -> Lowered {
    config(SHORT_RUN, overrides).lower_train_step().expect("it lowers").1
}

fn hash(overrides: &[&str]) -> String {
    support::hex(&Sha256::digest(&lowered(overrides).module.bytes))
}

const UNROLLED: &[&str] = &["mesh.axes=\"fsdp=8\"", "model.scan_layers=false", "remat.policy=dots"];

/// No address, thread, process or earlier trace shows in the module.
#[test]
fn modules_are_always_the_same() {
    let first = [hash(MIXED), hash(UNROLLED)];
    let again = |order: [usize; 2]| {
        // Other addresses than before.
        let _held: Vec<_> = (0..7).map(|count| vec![0u8; 1000 << count]).collect();
        let mut hashes = [String::new(), String::new()];
        for index in order {
            hashes[index] = hash([MIXED, UNROLLED][index]);
        }
        hashes
    };
    thread::scope(|scope| {
        let threads = [[0, 1], [1, 0]].map(|order| scope.spawn(move || again(order)));
        for thread in threads {
            assert_eq!(thread.join().expect("a thread"), first);
        }
    });
    let child = test_alone(module_path!(), "child_hash").output().expect("a child process");
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    for hash in &first {
        assert!(text.contains(hash), "{hash} is not in {text}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_hash() {
    // In the other order: interned names get other numbers.
    println!("{} {}", hash(UNROLLED), hash(MIXED));
}

#[test]
fn the_state_is_donated() {
    for mesh in [ONE_DEVICE, MIXED] {
        let config = config(&[SHORT_RUN, DROPOUT].concat(), mesh);
        let state_count = config.train_step().unwrap().state().leaves().len();
        let (function, lowered) = config.lower_train_step().expect("it lowers");
        let expected: Vec<(usize, usize)> = (0..state_count).map(|index| (index, index)).collect();
        assert_eq!(aliases(&function), expected);
        let entries = lowered.module.decode().expect("a module").input_output_alias.expect("aliases").entries;
        let pairs: Vec<_> =
            entries.iter().map(|entry| (entry.output_shape_index.clone(), entry.parameter_number)).collect();
        assert_eq!(pairs, expected.iter().map(|&(index, _)| (vec![index as i64], index as i64)).collect::<Vec<_>>());

        let mut trainer = Trainer::new(&config, &client()).expect("a trainer");
        let old = trainer.state().leaves();
        trainer.step().expect("a step");
        let donated = |array: &meshloom::pjrt::Array| array.shards().iter().all(|shard| shard.is_donated());
        assert!(old.iter().all(donated));
        assert!(!trainer.state().leaves().iter().any(donated));
        for (array, path) in old.iter().zip(trainer.state().paths()) {
            let error = array.get().expect_err(&path);
            assert!(matches!(error, PjrtError::Donated { .. }), "{path}: {error}");
        }
        let batch = trainer.dataset().batch(0, 1, config.train.batch).expect("a batch");
        let batch = [batch.tokens, batch.targets, batch.segment_ids, batch.positions, batch.weights];
        let mut arguments = old;
        arguments.extend(trainer.program().put(state_count, &batch).expect("the batch fits"));
        let error = trainer.program().run(&arguments.iter().collect::<Vec<_>>()).expect_err("the state is gone");
        assert!(
            matches!(&error, meshloom::Error::Pjrt(error) if matches!(**error, PjrtError::Donated { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("donated"), "{error}");
        // The failed call took nothing: training goes on.
        trainer.step().expect("another step");
    }
}

/// Parameters and optimizer state take their share of each device's memory: a part of what `fsdp` splits, all of the
/// rest.
#[test]
fn memory_is_split() {
    let all = [(ONE_DEVICE, 1, 1), (DATA, 1, 8), (MIXED, 4, 8), (FSDP, 8, 8)];
    for (mesh, shards, batch_shards) in cases("train memory", 2, all) {
        let config = config(&[SHORT_RUN, DROPOUT].concat(), mesh);
        let step = config.train_step().unwrap();
        let bytes = |is_split: bool| -> usize {
            let leaves = step.state().leaves();
            let has_embed = |axes: &[meshloom::ir::Name]| axes.iter().any(|name| name.text() == "embed");
            leaves
                .iter()
                .map(|leaf| &leaf.spec)
                .filter(|s| has_embed(&s.axes) == is_split)
                .map(|s| s.ty.byte_count())
                .sum()
        };
        let (split, whole) = (bytes(true), bytes(false));
        assert_eq!(split % shards, 0);
        // The norms' scales, with two moments each, and the step count are not split.
        assert_eq!(whole, 3 * 4 * (2 * config.model.layers + 1) * config.model.embed + 4);
        let expected = split / shards + whole;

        let mut trainer = Trainer::new(&config, &client()).expect("a trainer");
        for when in ["at first", "after a step"] {
            for device in 0..config.target.devices {
                let leaves = trainer.state().leaves();
                let held: usize = leaves.iter().map(|array| array.shards()[device].ty().byte_count()).sum();
                assert_eq!(held, expected, "{mesh:?}, device {device}, {when}");
            }
            trainer.step().expect("a step");
        }
        let stats = trainer.program().executable().memory_stats().expect("memory statistics");
        let batch = 5 * 4 * config.train.batch * config.model.seq / batch_shards;
        assert_eq!(stats.arguments as usize, expected + batch, "{mesh:?}");
        assert_eq!(stats.aliased as usize, expected, "{mesh:?}");
    }
}

// The program.

#[test]
fn train_writes_metrics() {
    let trained = trained();
    assert!(trained.said.stdout.starts_with(&format!("step {STEPS_OF_TRAINED}: loss ")), "{}", trained.said.stdout);
    // `--steps` ends the run early and leaves the schedule as it is; `--seed` is `train.seed`.
    let expected = numbers(&config(SHORT_RUN, &[ONE_DEVICE, &["train.seed=5"]].concat()), STEPS_OF_TRAINED as usize);
    let text = trained.metrics();
    // Evaluations have lines of their own.
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("eval_loss")).collect();
    assert!(text.ends_with('\n') && lines.len() == STEPS_OF_TRAINED as usize, "{text}");
    for (index, line) in lines.into_iter().enumerate() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a JSON line");
        let object = value.as_object().expect("an object");
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["data_seconds", "grad_norm", "loss", "step", "step_seconds", "tokens_per_second"], "{line}");
        assert_eq!(object["step"].as_u64(), Some(index as u64 + 1), "{line}");
        for (key, expected) in ["loss", "grad_norm"].iter().zip(&expected) {
            let actual = object[*key].as_f64().expect("a number");
            assert!((actual - expected[index]).abs() <= 1e-9 * expected[index], "{line}: {key} is {}", expected[index]);
        }
        for field in line.trim_matches(['{', '}']).split(", ").filter(|field| !field.contains("\"step\"")) {
            let number = field.split(": ").nth(1).expect("a number");
            let digits = number.split('e').next().unwrap_or_default().trim_start_matches(['-', '0', '.']);
            let count = digits.chars().filter(char::is_ascii_digit).count();
            assert!(count >= 9, "{field} has {count} significant digits");
        }
    }
}

/// The same run loads them; and text in both sets, which this one has, is a warning and no error.
#[test]
fn train_saves_and_loads_parameters() {
    let trained = trained();
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = folder.path().join("metrics.jsonl").to_str().expect("a name").to_owned();
    let (keys, parameters) = (trained.keys(), trained.name("trained.safetensors"));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let load = ["train", "--steps", "1", "--sample", "0", "--metrics", &metrics, "--load-parameters", &parameters];
    let both = format!("data.sources=[{:?}, {:?}]", configs::BOOK, trained.name("validation.jsonl"));
    let Said { code, stderr, .. } = run(&with_keys(&load, &[&keys[..], &[&both, "train.seed=5"]].concat()));
    assert_eq!(code, Some(0), "{stderr}");
    let warning = "validation.sources has text that data.sources has as well, in file ";
    assert!(stderr.contains(warning) && !trained.said.stderr.contains(warning), "{stderr}");
    let loss = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["loss"].as_f64();
    let first = |text: &str| loss(text.lines().next().expect("a line")).expect("a loss");
    // The loss of the first step shows that the parameters are trained.
    let (found, drawn) = (first(&fs::read_to_string(&metrics).expect("the metrics")), first(&trained.metrics()));
    assert!(found < drawn - 0.1, "{found} {drawn}");
    let message = refused_by_a_process(&with_keys(&load, &[&keys[..], &["model.mlp=96"]].concat()));
    assert!(message.contains("layers.mlp.gate is f32["), "{message}");
}

#[test]
fn train_prints_shardings() {
    let Said { code, stdout, stderr } =
        run(&with_keys(&["train", "--debug-sharding", "--set", "mesh.axes=fsdp=4,tensor=2"], SHORT_RUN));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("mesh fsdp=4,tensor=2\n| tensor"), "{stdout}");
    for part in ["| state.params.embedding ", "| [tensor, fsdp] ", "| crates/nn/src/head.rs:", "| preset decoder "] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(stdout.contains("\nbytes per device: parameters "), "{stdout}");
    let one = ["train", "--debug-sharding", "--set", "mesh.axes=data=1", "--set", "target.devices=1"];
    assert_eq!(run(&with_keys(&one, SHORT_RUN)).stdout, "one device: nothing is sharded\n");
}

#[test]
fn train_explains_what_is_wrong() {
    for (arguments, expected) in [
        (&["--set", "model.layer=2"][..], "did you mean \"layers\"?"),
        (&["--set", "train.batch=0"], "train.batch"),
        (&["--set", "train.batch=12"], "it must be a multiple of 8"),
        (&["--config", "/nowhere/run.toml"], "/nowhere/run.toml"),
        (&["--metrics", "/nowhere/metrics.jsonl"], "/nowhere/metrics.jsonl"),
    ] {
        let text = refused(&with_keys(&[&["train"], arguments].concat(), SHORT_RUN));
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

/// With a model and a batch that leave two dozen plans.
#[test]
fn train_searches_its_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, memory: u64| {
        let chip = format!("f32_flops = 20e9\nmemory_bytes = {memory}\nmemory_bandwidth = 5e9\n");
        let dimension = "[[dimension]]\nsize = 8\nwire = \"switch\"\nrate = 1e9\nlatency = 1e-5\n";
        fs::write(folder.path().join(name), chip + dimension).expect("a file");
        folder.path().join(name).to_str().expect("a name").to_owned()
    };
    let (hardware, tiny) = (file("cpu.toml", 1 << 32), file("tiny.toml", 1000));
    let few = [SHORT_RUN, &["model.layers=1", "model.heads=1", "model.kv_heads=1", "train.batch=8"]].concat();
    let auto = ["train", "--plan", "auto", "--hardware", &hardware];
    let Said { code, stdout, stderr: said } =
        run(&with_keys(&[&auto[..], &["--steps", "2", "--sample", "0"]].concat(), &few));
    assert_eq!(code, Some(0), "{said}");
    assert!(stdout.starts_with("step 2: loss "), "{stdout}");
    assert!(said.contains("24 plans for 8 devices, ") && said.contains(" of 4.00 GiB on each device\n"), "{said}");
    let found = said.find("mesh.axes=").and_then(|start| said[start..].split(';').next()).expect("a plan");
    let settings: Vec<&str> = found.split(' ').collect();
    let mesh = settings[0].strip_prefix("mesh.axes=").expect("a mesh");
    assert!(said.contains(&format!(" on 8 devices of cpu ({mesh}); lowered")), "{said}");
    // The plan that was found is searched again.
    let Said { stdout, stderr: said, .. } =
        run(&with_keys(&[&auto[..], &["--debug-sharding"]].concat(), &[&few[..], &settings].concat()));
    assert!(said.contains(&format!("the best is the configured one: {found}; by")), "{said}");
    assert!(stdout.starts_with(&format!("mesh {mesh}\n| tensor")), "{stdout}");
    for (arguments, expected) in [
        (&["train", "--plan", "auto"][..], "`cargo bench --bench estimate -- --write cpu.toml`"),
        (&["train", "--plan", "auto", "--hardware", "no/such.toml"], "cannot read the hardware \"no/such.toml\""),
        (
            &["train", "--plan", "auto", "--hardware", &tiny],
            "no plan fits the memory of a device: the nearest, mesh.axes=",
        ),
        (
            &[&auto[..], &["--process-id", "0", "--process-count", "2", "--set", "target.devices=4"]].concat(),
            "`meshloom plan CONFIG --search",
        ),
        (&[&auto[..], &["--set", "target.platform=cuda"]].concat(), "describes devices of cpu, but target.platform"),
        (&["train", "--hardware", &hardware], "--plan <PLAN>"),
        (&["train", "--plan", "fsdp"], "[possible values: auto]"),
    ] {
        let text = refused(&with_keys(arguments, &few));
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_checkpoint_generates_text() {
    let trained = trained();
    let checkpoints = trained.name("checkpoints");
    let generate = |flags: &[&str]| {
        let Said { code, stdout, stderr } = run(&[&["generate", &checkpoints, "--length", "12"], flags].concat());
        assert_eq!(code, Some(0), "{stderr}");
        (stdout, stderr)
    };
    let (sampled, said) = generate(&[]);
    assert!(said.contains("a step of 1 token reads ") && said.contains("; the parameters are "), "{said}");
    // The sample is the one that the run printed at its end.
    let printed = &trained.said.stdout;
    assert!(sampled.starts_with("It was ") && printed.ends_with(&format!("\n\n{sampled}")), "{printed}: {sampled}");
    // Several at once: each as if it were alone, the second with the next seed after that of the run.
    let (both, _) = generate(&["--count", "2"]);
    let (second, _) = generate(&["--seed", "6"]);
    assert_eq!(both, format!("[1]\n{sampled}\n[2]\n{second}"));
    // Over a mesh, by the rules of the run, and with prompts from files; until a character ends the text.
    let file = trained.path("prompt.txt");
    fs::write(&file, "She was ").expect("a file");
    let prompt = ["--greedy", "--prompt-file", file.to_str().expect("a name")];
    let (greedy, _) = generate(&prompt);
    assert!(greedy.starts_with("She was "), "{greedy}");
    let over_mesh = ["--set", "target.devices=4", "--set", "mesh.axes=fsdp=2,tensor=2"];
    let stop = greedy.trim_end().chars().last().expect("a text").to_string();
    let (stopped, _) = generate(&[&prompt[..], &over_mesh, &["--stop", &stop]].concat());
    let added = greedy.strip_prefix("She was ").and_then(|text| text.split(stop.as_str()).next()).expect("a text");
    assert_eq!(stopped, format!("She was {added}\n"));
    for more in cases("train generate over a mesh to the end", 0, [over_mesh]) {
        assert_eq!(generate(&[&prompt[..], &more].concat()).0, greedy);
    }
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let message = refused(&["generate", folder.path().to_str().expect("a name")]);
    assert!(message.contains("has no model: give a checkpoint"), "{message}");
    let message = refused(&["generate", "folder", "--greedy", "--temperature", "1"]);
    assert!(message.contains("cannot be used with"), "{message}");
    let message = refused_by_a_process(&["generate", "folder", "--count", "0"]);
    assert!(message.contains("it must be a whole number of at least 1"), "{message}");
}

#[test]
fn every_key_is_printed() {
    let print = |arguments: &[&str]| {
        let Said { code, stdout, stderr } = run(&[&["config"], arguments].concat());
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let text = print(&["--set", "model.layers=2"]);
    assert!(text.contains("  layers = 2 (default 4)\n      Number of decoder layers.\n"), "{text}");
    assert!(text.contains("  sync_period (default 20)\n"), "{text}");
    // The TOML form is a config: that of all defaults, and, without the marks, one with every section.
    let defaults = print(&["--defaults", "--format", "toml"]);
    assert_eq!(RunConfig::from_toml(&defaults, "defaults").expect("a config"), RunConfig::default());
    let changed = print(&["--set", "rules.compute.override=[[\"embed\", []]]", "--format", "toml"]);
    let compute = RunConfig::from_toml(&changed, "changed").expect("a config").rules.compute;
    assert_eq!(compute.overrides.len(), 1, "{changed}");
    let json: serde_json::Value = serde_json::from_str(&print(&["--format", "json"])).expect("JSON");
    let sections = json.as_array().expect("sections");
    let written = RunConfig::default().to_toml();
    for line in written.lines().filter_map(|line| line.split_once(" = ")) {
        let has = |section: &serde_json::Value| {
            let keys = section["keys"].as_array().expect("keys");
            keys.iter().any(|key| key["name"] == line.0 && key["meaning"].as_str().is_some_and(|text| text.len() > 9))
        };
        assert!(sections.iter().any(has), "{} is missing", line.0);
    }
}
