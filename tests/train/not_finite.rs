//! Steps whose loss or gradient is not finite: they change nothing, and too many of them end the run.

use meshloom::ir::Literal;
use meshloom::pjrt::{Array, Buffer};
use meshloom::trace::Tree;
use meshloom_models::parameters::LoadOptions;
use meshloom_train::checkpoint::{Fallback, find};
use meshloom_train::trainer::Maker;
use meshloom_train::{Dataset, Trainer};
use safetensors::SafeTensors;
use support::cases::cases;
use support::configs::{ONE_DEVICE, ONE_F_ONE_B, SHORT_RUN, TINY, UNOPTIMIZED, config};
use support::eight_devices::client;

use super::interpreted::InterpretedRun;
use super::outputs::SMALL;
use super::program::{run, with_keys};

/// A literal with another number in one place.
fn with_number(literal: &Literal, place: usize, number: f64) -> Literal {
    let numbers = literal.to_f64_vec();
    Literal::from_fn(literal.ty().clone(), |index| if index == place { number } else { numbers[index] })
}

/// Each optimizer, and each way in which gradients are added up.
const FORMS: [&[&str]; 6] = [
    &["mesh.axes=\"fsdp=2,tensor=2\"", "target.devices=4", "train.optimizer=muon", "model.param_dtype=bf16"],
    &["mesh.axes=\"expert=2,fsdp=2\"", "target.devices=4", "model.family=deepseek", "model.family.experts=4"],
    ONE_DEVICE,
    &["mesh.axes=\"data=2,fsdp=2\"", "target.devices=4", "train.batch=8", "train.microbatches=2"],
    &["mesh.axes=\"fsdp=4\"", "target.devices=4", "model.param_dtype=bf16", "train.master_copies=false"],
    ONE_F_ONE_B,
];

/// A number in a weight makes all gradients what they should not be. No bit of the state changes, on no optimizer's
/// path; without the number, each value does.
#[test]
fn a_bad_step_changes_no_bit() {
    for form in cases("train bad steps", 2, FORMS) {
        let mut run = InterpretedRun::new(&config(&[TINY, &["train.batch=4"], form]));
        let first = run.state.clone();
        run.step();
        let changed = first.iter().zip(&run.state).filter(|(before, after)| before.bytes() != after.bytes()).count();
        // Biases of choices move by the sign of a count, which may be even.
        assert!(changed + 4 >= first.len(), "{form:?}: only {changed} of {} values move", first.len());
        let weights: Vec<usize> = run.places(|path| path.contains("attention.w") || path.contains("final_norm"));
        for (place, number) in weights.into_iter().zip([f64::NAN, f64::INFINITY, f64::NAN].into_iter().cycle()) {
            let poisoned = with_number(&run.state[place], 1, number);
            let own = std::mem::replace(&mut run.state[place], poisoned);
            let before = run.state.clone();
            let [loss, norm] = run.step();
            assert!(!(loss.is_finite() && norm.is_finite()), "{form:?}: value {place} is not used");
            for (index, (before, after)) in before.iter().zip(&run.state).enumerate() {
                // A narrow weight is its master copy, rounded: one that was damaged is whole again.
                let is_whole = index == place && after.bytes() == own.bytes();
                let same = is_whole || before.bytes() == after.bytes();
                assert!(same, "{form:?}: value {index} changed by {number} in {place}");
            }
            run.state[place] = own;
        }
    }
}

/// Twenty places: a number in one weight of one device, whose copies on other devices are as they were.
#[test]
fn devices_agree_on_a_bad_step() {
    let config = config(&[SHORT_RUN, &["mesh.axes=\"data=2,fsdp=4\"", "train.skip_bad_steps=1"]]);
    let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(trainer.step().expect("a step").skipped_steps, 0);
    let batch = trainer.data().batch(0, 1, config.train.batch).expect("a batch");
    let program = trainer.program();
    let paths = trainer.state().paths();
    let mut state = trainer.state().leaves();
    // Rows of the table that no token of the batch takes are in no gradient.
    let weights: Vec<usize> =
        (0..paths.len()).filter(|&at| paths[at].starts_with("params.") && !paths[at].contains("embedding")).collect();
    for case in 0..20 {
        let (place, device) = (weights[case % weights.len()], case * 3 % 8);
        let own = state[place].shard(device).expect("a shard");
        let number = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][case % 3];
        state[place] = with_shard(&state[place], device, &with_number(&own, case % own.ty().element_count(), number));
        let expected: Vec<Vec<Literal>> = state.iter().map(shards).collect();
        let inputs = [&state[..], &program.put(state.len(), &batch).expect("it fits").leaves()].concat();
        let mut outputs = program.run(&inputs.iter().collect::<Vec<_>>()).expect("it runs");
        let metrics = outputs.split_off(state.len());
        for device in 0..8 {
            let numbers =
                [&metrics[0], &metrics[1]].map(|number| number.shard(device).expect("a number").to_f64_vec()[0]);
            assert!(numbers.iter().any(|number| !number.is_finite()), "{} on {device}: {numbers:?}", paths[place]);
        }
        for (path, (expected, array)) in paths.iter().zip(expected.iter().zip(&outputs)) {
            let same = expected.iter().zip(shards(array)).all(|(before, after)| before.bytes() == after.bytes());
            assert!(same, "{path} changed by {number} in {} on device {device}", paths[place]);
        }
        state = outputs;
        state[place] = with_shard(&state[place], device, &own);
    }
}

/// Twenty places: a number in one weight, for each weight in turn. The run names the weight, and whether it is NaN.
#[test]
fn the_value_with_a_bad_number_is_named() {
    let cases: Vec<usize> = cases("train places of bad numbers", 0, 0..20);
    if cases.is_empty() {
        return;
    }
    let config = config(&[TINY, ONE_DEVICE, &["model.layers=1", "train.batch=4", UNOPTIMIZED]]);
    let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weights.safetensors");
    trainer.save_parameters(&file).unwrap_or_else(|error| panic!("{error}"));
    let whole = std::fs::read(&file).expect("the file");
    assert_eq!(trainer.find_nan(0).unwrap_or_else(|error| panic!("{error}")), None);
    let weights: Vec<String> =
        trainer.state().params().paths().into_iter().filter(|path| !path.contains("embedding")).collect();
    for case in cases {
        let path = &weights[case % weights.len()];
        let number = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][case % 3];
        let mut bytes = whole.clone();
        let (header, tensors) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
        let info = tensors.info(path).unwrap_or_else(|| panic!("{path}"));
        let place = 8 + header + info.data_offsets.0 + 4 * (case % info.shape.iter().product::<usize>());
        bytes[place..place + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&file, bytes).expect("written");
        trainer.load_parameters(&file, LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let found = trainer.find_nan(0).unwrap_or_else(|error| panic!("{error}"));
        let found = found.unwrap_or_else(|| panic!("{number} in {path} is not found"));
        assert_eq!(found.maker, Maker::Input(format!("state.params.{path}")), "{number} in {path}: {found}");
        assert_eq!((found.is_nan, found.loops.len()), (number.is_nan(), 0), "{number} in {path}: {found}");
    }
}

fn shards(array: &Array) -> Vec<Literal> {
    (0..8).map(|device| array.shard(device).expect("a shard")).collect()
}

/// An array with another shard on one device.
fn with_shard(array: &Array, device: usize, shard: &Literal) -> Array {
    let mut shards = array.shards().to_vec();
    shards[device] = Buffer::from_literal(&client(), shard, device).expect("it fits");
    Array::from_shards(array.ty().clone(), array.layout().clone(), shards).expect("an array")
}

/// Three bad steps in a row are one more than is allowed: the run ends with the state before them, and says so.
#[test]
fn too_many_bad_steps_end_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let [checkpoints, metrics] = ["checkpoints", "metrics"].map(|name| folder.path().join(name));
    let [directory, file] = [&checkpoints, &metrics].map(|path| path.to_str().expect("a path"));
    let arguments =
        ["train", "--steps", "9", "--sample", "0", "--checkpoint", directory, "--metrics", file, "--find-nan"];
    let keys = ["train.learning_rate=1e30", "train.warmup=0", "train.clip_norm=1e30", "train.skip_bad_steps=2"];
    let said = run(&with_keys(&arguments, &[&SMALL[..], &keys].concat()));
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let lines = std::fs::read_to_string(&metrics).expect("metrics");
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let good = lines.iter().take_while(|line| line["loss"].is_f64() && line["grad_norm"].is_f64()).count();
    assert!((1..=4).contains(&good) && lines.len() == good + 3, "{lines:?}");
    let skipped: Vec<Option<u64>> =
        lines[good..].iter().map(|line| line["skipped_steps"].as_f64().map(|n| n as u64)).collect();
    assert_eq!(skipped, [Some(1), Some(2), Some(3)]);
    let end = format!("error: step {} changed nothing, nor did the 2 after it: its loss is ", good + 1);
    assert!(said.stderr.contains(&end) && said.stderr.contains("train.skip_bad_steps is 2"), "{}", said.stderr);
    assert_eq!(said.stderr.matches("changed nothing: its loss").count(), 3, "{}", said.stderr);
    println!("{}", said.stderr);
    let found = find(&checkpoints, Fallback::Refuse).expect("a checkpoint").checkpoint;
    assert_eq!((found.about().step, found.about().skipped_steps), (good as u64, 0));
    assert_eq!(found.not_finite(), [""; 0]);
}
