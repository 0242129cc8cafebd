//! The order in which tokens are dealt out to devices that split a sequence changes what each computes, and no result:
//! in every case by the interpreter, in some and in the full tier in all by trainers.

use std::ops::ControlFlow;

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::kernels::{Blocks, Kernels};
use meshloom::ops::{AttentionSizes, KeyExchange};
use meshloom::trace::Tree;
use meshloom_nn::{ContextOrder, DecoderConfig, TokenOrder};
use meshloom_plan::{DeviceScores, Search, Variant, compare};
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::generate::{GenerateOptions, GeneratorOptions, Request, SamplingOptions};
use meshloom_train::run::TrainStep;
use support::cases::cases;
use support::configs::{ONE_DEVICE, SHORT_RUN};
use support::eight_devices::{client, relative_error};
use support::interpret::interpret;
use support::text_files::TextFiles;

use super::interpreted::InterpretedRun;

/// Short documents, so that each row has several segments; and a validation set, whose last batch has padding.
fn files() -> TextFiles {
    let line = |number: usize| format!("{{\"text\": \"Line {number} of {} in all.\"}}\n", number * 7);
    let lines = |range: std::ops::Range<usize>| range.map(line).collect::<String>();
    let (train, validation) = (lines(0..400), lines(400..420));
    TextFiles::new(&[("train.jsonl", train.as_bytes()), ("validation/lines.jsonl", validation.as_bytes())])
}

fn config(files: &TextFiles, settings: &[&[&str]]) -> RunConfig {
    let sources = format!("data.sources=[{:?}]", files.path("train.jsonl"));
    let validation = format!("validation.sources=[{:?}]", files.path("validation"));
    let all = ["train.batch=8", &sources, &validation];
    files.config(&[SHORT_RUN, &all, &settings.concat()])
}

/// The results of a run.
struct Numbers {
    /// The loss of each step, and the norm of its gradient.
    losses: Vec<f64>,
    parameters: Vec<f64>,
    evaluation: f64,
}

fn numbers(config: &RunConfig) -> Numbers {
    let mut trainer = Trainer::new(config, &client()).unwrap_or_else(|error| panic!("{error}"));
    let mut step = || trainer.step().map(|metrics| [metrics.loss, metrics.grad_norm]).expect("a step");
    let losses = [step(), step()].concat();
    let leaves = trainer.state().params().leaves();
    let parameters = leaves.iter().flat_map(|leaf| leaf.get().expect("a parameter").to_f64_vec()).collect();
    Numbers { losses, parameters, evaluation: trainer.evaluate().expect("it runs").expect("a validation set").loss }
}

/// The same of few short rows, without an evaluation: there is no other program for one.
fn interpreted(config: &RunConfig) -> Numbers {
    let mut run = InterpretedRun::new(config);
    let losses = [run.step(), run.step()].concat();
    let parameters = run.parameters().flat_map(|(_, literal)| literal.to_f64_vec()).collect();
    Numbers { losses, parameters, evaluation: 0.0 }
}

/// The settings of batch and model for the interpreter, unless a test gives others.
const FEW: &[&str] = &["train.batch=2", "model.embed=16", "model.mlp=32"];

type Case = (KeyExchange, ContextOrder);

/// Runs with keys gathered and in a ring, in each order of tokens, are those of one device.
fn check(run: fn(&RunConfig) -> Numbers, settings: &[&str], mesh: &[&str], cases: &[Case]) {
    if cases.is_empty() {
        return;
    }
    let files = files();
    let one = run(&config(&files, &[settings, ONE_DEVICE]));
    for (exchange, order) in cases {
        let keys = [format!("kernels.context={exchange}"), format!("kernels.context_order={order}")];
        let keys = keys.each_ref().map(String::as_str);
        let found = run(&config(&files, &[settings, mesh, &keys]));
        let errors = [
            relative_error(&found.losses, &one.losses),
            relative_error(&found.parameters, &one.parameters),
            relative_error(&[found.evaluation], &[one.evaluation]),
        ];
        println!("{settings:?} {mesh:?} {keys:?}: {errors:?}");
        assert!(errors.iter().all(|&error| error <= 1e-5), "{settings:?} {mesh:?} {keys:?}: {errors:?}");
    }
}

fn all() -> Vec<Case> {
    KeyExchange::ALL.into_iter().flat_map(|exchange| ContextOrder::ALL.map(|order| (exchange, order))).collect()
}

const CONTEXT: &[&str] = &["mesh.axes=data=2,context=4"];

const TWO_CHUNK: (KeyExchange, ContextOrder) = (KeyExchange::Ring, ContextOrder::TwoChunk);
const STRIPED: (KeyExchange, ContextOrder) = (KeyExchange::Gather, ContextOrder::Striped);

#[test]
fn steps_and_evaluations_are_those_of_one_device() {
    check(interpreted, FEW, CONTEXT, &all());
    let others = all().into_iter().filter(|case| *case != TWO_CHUNK);
    check(numbers, &[], CONTEXT, &cases("train orders", 1, [TWO_CHUNK].into_iter().chain(others)));
}

/// With rows so long that attention is a loop over blocks, which finds by places what it need not compute.
#[test]
fn attention_in_blocks() {
    const LONG: [&str; 2] = ["model.seq=1024", "train.batch=2"];
    let narrow = ["model.layers=1", "model.heads=1", "model.kv_heads=1", "model.embed=8", "model.mlp=8"];
    let one_row = ["train.batch=1", "mesh.axes=context=4", "target.devices=4"];
    let orders = cases("train orders in blocks, interpreted", 1, [TWO_CHUNK, STRIPED]);
    check(interpreted, &[&LONG[..], &narrow, &["train.batch=1"]].concat(), &one_row, &orders);
    check(numbers, &LONG, CONTEXT, &cases("train orders in blocks", 0, [TWO_CHUNK, STRIPED]));
}

#[test]
fn in_pipelines() {
    let pipeline = |schedule| {
        [
            "mesh.axes=stage=2,context=4",
            "pipeline.microbatches=2",
            "pipeline.repeats=1",
            "pipeline.layers_per_stage=2",
            schedule,
        ]
    };
    let pipelines = [pipeline("pipeline.schedule=1f1b"), pipeline("pipeline.schedule=gpipe")];
    pipelines.iter().for_each(|mesh| check(interpreted, FEW, mesh, &[TWO_CHUNK]));
    cases("train orders in pipelines", 0, pipelines).iter().for_each(|mesh| check(numbers, &[], mesh, &[TWO_CHUNK]));
}

/// Latent attention and routed experts; and microbatches, with the loss in chunks. Weights of attention drop by places.
#[test]
fn in_other_models_and_runs() {
    let latent = [
        "model.family=deepseek",
        "model.family.experts=4",
        "model.family.experts_per_token=2",
        "model.family.moe_mlp=32",
    ];
    let chunks = ["model.loss_chunks=2"];
    let microbatches = [CONTEXT, &["train.microbatches=2"]].concat();
    let dropout = ["model.attention_dropout=0.2"];
    let all: [(&[&str], &[&str], &[Case]); 3] = [
        (&latent, CONTEXT, &[STRIPED]),
        (&chunks, &microbatches, &[TWO_CHUNK]),
        (&dropout, CONTEXT, &[TWO_CHUNK, STRIPED]),
    ];
    for (settings, mesh, orders) in all {
        // Two microbatches on two devices have four rows.
        let few = if mesh == CONTEXT { FEW } else { &["train.batch=4"] };
        check(interpreted, &[few, settings].concat(), mesh, orders);
    }
    for (settings, mesh, orders) in cases("train orders in other models", 0, all) {
        check(numbers, settings, mesh, orders);
    }
}

#[test]
fn samples_are_in_natural_order() {
    let files = files();
    let sample = |settings: &[&str]| {
        let trainer = Trainer::new(&config(&files, &[settings]), &client()).expect("a trainer");
        let mut generator = trainer.generator(GeneratorOptions::new(1, 9)).expect("a generator");
        let options = GenerateOptions { length: 6, sampling: SamplingOptions::greedy(), stop_tokens: Vec::new() };
        let request = Request { prompt: vec![76, 105, 110], seed: 1 };
        generator.generate(&[request], &options, |_, _| ControlFlow::Continue(())).expect("a text")
    };
    // The programs of the trainers are those of the first test.
    let ordered = [CONTEXT, &["kernels.context_order=two-chunk", "kernels.context=ring"]].concat();
    assert_eq!(sample(&ordered), sample(ONE_DEVICE));
    // One row on one device is one group of experts, however a mesh divides them.
    let routed = ["model.family=mixtral", "model.family.experts=4", "model.family.moe_mlp=32"];
    let with = |mesh: &[&str], more: &[&str]| sample(&[&routed, mesh, more].concat());
    for capacity in cases("train samples of routed models", 0, [&[][..], &["model.expert_capacity=1.0"]]) {
        assert_eq!(with(&["mesh.axes=data=2,fsdp=2,expert=2"], capacity), with(ONE_DEVICE, capacity));
    }
}

/// A model learns the places of tokens by its order alone: the loss of rows that are arranged by it is that of rows in
/// their natural order, and that of rows which are not is another.
#[test]
fn a_model_takes_rows_in_its_order() {
    let files = files();
    let step = config(&files, &[ONE_DEVICE]).train_step().expect("a step");
    let (rows, length) = (step.batch, step.seq);
    let number = |dtype, f: &dyn Fn(usize, usize) -> f64| {
        Literal::from_fn(TensorType::new(dtype, &[rows, length]), |index| f(index / length, index % length))
    };
    // The second document of a row begins in its middle.
    let token = |row: usize, place: usize| ((row * 31 + place * 17) % 251) as f64;
    let batch = |places: &[usize]| {
        [
            number(DType::S32, &|row, index| token(row, places[index])),
            number(DType::S32, &|row, index| token(row, places[index] + 1)),
            number(DType::S32, &|row, index| f64::from(row % 2 == 0 && places[index] >= length / 2)),
            number(DType::S32, &|row, index| (places[index] % (length / if row % 2 == 0 { 2 } else { 1 })) as f64),
            number(DType::F32, &|_, index| (1 + places[index] % 3) as f64),
        ]
    };
    let parameters = step.initialize(3).expect("parameters").params.leaves();
    let loss = |order: TokenOrder, batch: &[Literal]| {
        let step = TrainStep { model: DecoderConfig { order, ..step.model.clone() }, ..step.clone() };
        let lowered =
            lower(step.trace_loss().expect("it traces").graph(), &LowerOptions::default()).expect("it lowers");
        interpret(lowered.graph(), &[&parameters, batch].concat())[0].to_f64_vec()
    };
    let index: Vec<usize> = (0..length).collect();
    let expected = loss(TokenOrder::default(), &batch(&index));
    for order in [ContextOrder::TwoChunk, ContextOrder::Striped].map(|order| TokenOrder::new(order, 4)) {
        let arranged = batch(&order.places(length).expect("a length that divides"));
        let error = relative_error(&loss(order, &arranged), &expected);
        assert!(error <= 1e-5, "{order:?}: {error:.1e}");
        let of_another = relative_error(&loss(TokenOrder::default(), &arranged), &expected);
        assert!(of_another > 1e-4, "{order:?}: {of_another:.1e}");
    }
}

#[test]
fn a_model_refuses_rows_of_another_length() {
    let files = files();
    let mut step = config(&files, &[ONE_DEVICE]).train_step().expect("a step");
    step.model.order = TokenOrder::new(ContextOrder::TwoChunk, 5);
    let error = step.trace_loss().expect_err("32 tokens in ten chunks").to_string();
    assert!(error.contains("an order of tokens") && error.contains("a multiple of 10"), "{error}");
}

/// An impossible order is refused by its key; one without effect is reported.
#[test]
fn orders_that_do_not_suit_the_rest() {
    let read = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        RunConfig::from_overrides(&settings)
    };
    let refused = |settings: &[&str]| read(settings).expect_err("it is refused").to_string();
    let split = "mesh.axes=context=8";
    assert_eq!(
        refused(&["kernels.context_order=zigzag"]),
        "--set kernels.context_order=zigzag: kernels.context_order is \"zigzag\": it must be one of \"natural\", \
         \"two-chunk\", \"striped\""
    );
    assert_eq!(
        refused(&[split, "model.seq=72", "kernels.context_order=two-chunk"]),
        "--set kernels.context_order=two-chunk: kernels.context_order is \"two-chunk\": model.seq, which is 72, must be \
         a multiple of 16 to be dealt out to 8 devices of the mesh \"context=8\""
    );
    let uneven = refused(&[split, "model.seq=60", "rules.uneven=true", "kernels.context_order=striped"]);
    assert!(uneven.contains("kernels.context_order is \"striped\": model.seq, which is 60"), "{uneven}");
    let dropout = refused(&[split, "model.dropout=0.1", "kernels.context_order=striped"]);
    assert!(dropout.contains("kernels.context_order is \"striped\": model.dropout is 0.1"), "{dropout}");
    let routed = ["model.family=mixtral", "model.expert_capacity=2.0"];
    let capacity = refused(&[&[split, "kernels.context_order=striped"][..], &routed].concat());
    assert!(capacity.contains("the tokens that an expert has no slot for"), "{capacity}");
    read(&[split, "model.dropout=0.1"]).expect("the natural order");
    read(&["model.dropout=0.1", "kernels.context_order=striped"]).expect("a sequence that is whole");

    let warnings = |settings: &[&str]| read(settings).expect("a config").warnings();
    assert_eq!(
        warnings(&["kernels.context_order=striped"]),
        ["kernels.context_order = \"striped\" has no effect, because no rule splits activation_length over the mesh \
             \"data=2,fsdp=4\""]
    );
    assert_eq!(warnings(&[split, "kernels.context_order=striped"]), Vec::<String>::new());
}

/// Where rules give the axis to the batch first, they leave the sequence whole.
#[test]
fn parts_are_those_that_the_rules_leave() {
    let order = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        RunConfig::from_overrides(&settings).expect("a config").decoder().expect("a decoder").order
    };
    let key = "kernels.context_order=two-chunk";
    assert_eq!(order(&["mesh.axes=data=2,context=4", key]), TokenOrder::new(ContextOrder::TwoChunk, 4));
    assert_eq!(order(&["mesh.axes=data=2,context=4"]), TokenOrder::default());
    assert_eq!(order(&["mesh.axes=data=2,fsdp=4", key]), TokenOrder::default());
    let taken = "rules.override=[[\"activation_batch\", [\"context\"]]]";
    assert_eq!(order(&["mesh.axes=fsdp=2,context=4", taken, "rules.strict=false", key]), TokenOrder::default());
}

/// The ways that `meshloom plan` compares: each order with keys gathered and in a ring, and the orders that the length
/// refuses.
#[test]
fn ways_to_split_a_sequence_are_compared() {
    let ways = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        compare(&RunConfig::from_overrides(&settings).expect("a config"), None, u64::MAX).expect("they lower")
    };
    let small = ["model.layers=1", "model.embed=32", "model.heads=2", "model.kv_heads=2", "model.mlp=32"];
    let settings = ["mesh.axes=data=2,context=4", "model.seq=2048", "kernels.context_order=striped"];
    let Search { found, refused, .. } = ways(&[&small[..], &settings].concat());
    assert_eq!(refused, []);
    let plans = all().into_iter().map(|(exchange, order)| Variant::Sequence(exchange, order));
    assert_eq!(found.iter().map(|way| way.plan.clone()).collect::<Vec<_>>(), plans.collect::<Vec<_>>());
    assert_eq!(found.iter().position(|way| way.is_configured), Some(2));
    for way in &found {
        let Variant::Sequence(_, order) = way.plan else { panic!("{}", way.plan) };
        // In blocks of 128: 4 of queries see 12 of keys before the last device's part, and 10 pairs in it.
        let pairs = match order {
            ContextOrder::Natural => 4 * 12 + 10,
            ContextOrder::TwoChunk => 16 * 17 / 2 / 4,
            ContextOrder::Striped => 4 * 10,
        };
        let scores = way.scores.expect("attention");
        assert_eq!(scores.busiest, pairs * 128 * 128, "{}", way.plan);
        assert_eq!(order == ContextOrder::Natural, scores.balance() > 1.0);
        assert!(way.memory.peak > 0);
    }
    let Search { found, refused, .. } = ways(&[&small[..], &["mesh.axes=context=8", "model.seq=24"]].concat());
    assert_eq!(found.len(), 4);
    let two_chunk = KeyExchange::ALL.map(|exchange| Variant::Sequence(exchange, ContextOrder::TwoChunk));
    assert_eq!(refused.into_iter().map(|it| it.plan).collect::<Vec<_>>(), two_chunk);
    assert_eq!(ways(&[]).considered, 0);
}

/// The blocks that a device computes: with contiguous parts the last device has almost twice the mean, in other orders
/// each has the same.
#[test]
fn blocks_of_scores_are_balanced() {
    let blocks = Blocks { queries: 16, keys: 16 };
    let kernels = Kernels { blocks: Some(blocks), ..Kernels::default() };
    let (length, devices) = (512, 4);
    let scores = |exchange: KeyExchange, order: ContextOrder| {
        let places = TokenOrder::new(order, devices).places(length).expect("a length that divides");
        let queries = length / devices;
        let keys = if exchange == KeyExchange::Gather { length } else { queries };
        let batch = [1].into_iter().collect();
        let sizes = AttentionSizes { batch, kv_heads: 2, groups: 2, queries, keys, width: 8, value_width: 8 };
        DeviceScores::of(&kernels, &sizes, &places)
    };
    // Blocks of a whole row: 32 of each.
    let needed = 32 * 33 / 2 * 256;
    for exchange in KeyExchange::ALL {
        let natural = scores(exchange, ContextOrder::Natural);
        // The last device: 24 blocks of keys before its own 8.
        assert_eq!((natural.busiest, natural.mean), ((8 * 24 + 36) * 256, needed as f64 / 4.0), "{exchange}");
        assert!((natural.balance() - 1.73).abs() < 0.01, "{exchange}: {natural:?}");
        let two_chunk = scores(exchange, ContextOrder::TwoChunk);
        assert_eq!((two_chunk.busiest, two_chunk.balance()), (needed / 4, 1.0), "{exchange}");
        // A block of 16 tokens of a stripe spans 64 places, so there are more blocks on the diagonal.
        let striped = scores(exchange, ContextOrder::Striped);
        assert_eq!((striped.busiest, striped.balance()), (4 * 36 * 256, 1.0), "{exchange}");
    }
}
