//! The state before the first step: drawn on the devices, the same bits on any mesh and in any form, and its
//! statistics.

use std::collections::BTreeMap;

use meshloom::hlo::DType;
use meshloom::ir::Literal;
use meshloom::trace::{Key, MapTree, Param, Tree};
use support::cases::{cases, more_than_few};
use support::configs::{self, DECODER, ONE_DEVICE};
use support::eight_devices::{client, compile, relative_error};

/// The values of a state by their paths, those of layers that are apart as one.
type Values = BTreeMap<String, (DType, Vec<u8>)>;

fn add(values: &mut Values, path: &str, literal: &Literal) {
    let parts: Vec<&str> = path.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
    let (_, bytes) = values.entry(parts.join(".")).or_insert_with(|| (literal.ty().dtype, Vec::new()));
    bytes.extend_from_slice(literal.bytes());
}

/// Returns the values that the program of a config draws. Nothing is sent between devices.
fn drawn(settings: &[&str]) -> Values {
    let config = configs::config(&[DECODER, settings]).on_client(&client()).expect("devices");
    let run = config.resolve().expect("a run");
    let lowered = run.lower_first_state(client().platform()).expect("it lowers");
    assert_eq!(lowered.collectives().iter().expect("a ledger").len(), 0, "{settings:?}");
    // In the small tier as runs have it, whose first states are then those of these.
    let program = match more_than_few() {
        true => lowered.compile(&client()),
        false => compile(&lowered),
    };
    let program = program.expect("it compiles");
    let key = program.put(0, &Key::from_seed(3)).expect("a key").into_data();
    let state = run.state().fill(program.run(&[&key]).expect("it runs")).expect("the state's leaves");
    let mut values = Values::new();
    for (path, leaf) in Tree::paths(&state).iter().zip(state.leaves()) {
        add(&mut values, path, &leaf.get().expect("a value"));
    }
    values
}

#[test]
fn it_has_the_same_bits_on_any_mesh_and_in_any_form() {
    let expected = drawn(ONE_DEVICE);
    assert_eq!(expected.len(), 37, "{:?}", expected.keys());
    let forms: [&[&str]; 7] = [
        // 3 divides few dimensions, and those that it does not divide are padded.
        &["mesh.axes=fsdp=3,tensor=2", "target.devices=6", "train.batch=18"],
        &["mesh.axes=data=2,fsdp=4"],
        &["mesh.axes=fsdp=2,tensor=4"],
        &["mesh.axes=data=2,fsdp=4", "model.scan_layers=false"],
        &["mesh.axes=fsdp=8", "partition.mode=shardy"],
        &["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=1", "pipeline.microbatches=2"],
        &["mesh.axes=fsdp=8", "train.seed=4"],
    ];
    for form in cases("train first states", 3, forms) {
        let drawn = drawn(form);
        let others: Vec<&String> = expected.keys().filter(|path| drawn.get(*path) != expected.get(*path)).collect();
        assert!(others.is_empty(), "{form:?}: {others:?}");
    }
}

/// All replicas begin with the parameters that they agree on.
#[test]
fn replicas_begin_alike() {
    let (one, several) = (drawn(ONE_DEVICE), drawn(&["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2"]));
    for (path, (dtype, bytes)) in &one {
        if let Some(param) = path.strip_prefix("params.") {
            assert_eq!(several[&format!("outer.params.{param}")], (*dtype, bytes.clone()), "{path}");
        }
        assert_eq!(several[&format!("inner.{path}")], (*dtype, bytes.repeat(2)), "{path}");
    }
}

/// The host draws the same numbers, but for rounding. A parameter of `bf16` is the rounded one of `f32`.
#[test]
fn the_host_draws_the_same() {
    let on_host = |settings: &[&str]| {
        let step = configs::config(&[DECODER, settings]).train_step().expect("a step");
        let mut values = Values::new();
        let state = step.initialize(3).expect("it draws");
        state.paths().iter().zip(state.leaves()).for_each(|(path, literal)| add(&mut values, path, &literal));
        values
    };
    let numbers = |(dtype, bytes): &(DType, Vec<u8>)| {
        let ty = meshloom::ir::TensorType::new(*dtype, &[bytes.len() / dtype.byte_count()]);
        Literal::from_bytes(ty, bytes.clone()).expect("numbers").to_f64_vec()
    };
    let (host, device) = (on_host(ONE_DEVICE), drawn(ONE_DEVICE));
    assert_eq!(host.keys().collect::<Vec<_>>(), device.keys().collect::<Vec<_>>());
    for (path, values) in &host {
        let error = relative_error(&numbers(&device[path]), &numbers(values));
        assert!(error <= 1e-6, "{path}: {error:.1e}");
    }
    let narrow = drawn(&[ONE_DEVICE, &["model.param_dtype=bf16"]].concat());
    for (path, values) in narrow.iter().filter(|(path, _)| path.starts_with("params.")) {
        let rounded: Vec<f64> =
            numbers(&device[path]).iter().map(|&number| half::bf16::from_f32(number as f32).to_f64()).collect();
        let others = numbers(values).iter().zip(&rounded).filter(|(drawn, rounded)| drawn != rounded).count();
        assert_eq!(others, 0, "{path}, of {} numbers", rounded.len());
    }
}

/// Mean, deviation, limits and independence of what is drawn, over a hundred thousand numbers.
#[test]
fn numbers_are_normal_within_three_deviations() {
    use meshloom::ir::DType::F32;
    use meshloom::trace::Init;
    let param = |init| Param::new(F32, [64, 512], &[], init).stacked(3);
    let params = [param(Init::Normal(2.0)), param(Init::Normal(2.0))];
    let drawn: Vec<Vec<f64>> = meshloom::trace::initialize(&params.to_vec(), 0)
        .expect("it draws")
        .iter()
        .map(|literal| literal.to_f64_vec().iter().map(|number| number / 2.0).collect())
        .collect();
    let count = drawn[0].len() as f64;
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count;
    // The moments of a normal distribution cut off at three deviations.
    let (deviation, fourth) = (0.986_578, 2.680_045);
    for numbers in &drawn {
        let five_sigma = 5.0 / count.sqrt();
        assert!(mean(&mut numbers.iter().copied()).abs() < five_sigma);
        let variance = mean(&mut numbers.iter().map(|number| number * number));
        assert!((variance - deviation * deviation).abs() < 1.3 * five_sigma, "{variance}");
        let kurtosis = mean(&mut numbers.iter().map(|number| number.powi(4)));
        assert!((kurtosis - fourth).abs() < 7.5 * five_sigma, "{kurtosis}");
        let largest = numbers.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
        assert!((2.99..=3.0).contains(&largest), "{largest}");
        // Neighbours and layers have nothing to do with each other.
        for lag in [1, 512, 64 * 512] {
            let together = mean(&mut numbers.iter().zip(&numbers[lag..]).map(|(left, right)| left * right));
            assert!(together.abs() < five_sigma, "{lag}: {together}");
        }
    }
    assert!(relative_error(&drawn[0], &drawn[1]) > 1.0, "two parameters of one seed are alike");
}
