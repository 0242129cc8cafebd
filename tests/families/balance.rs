//! Biases by which experts are chosen: what moves them, and that it balances.

use meshloom::compile::{LowerOptions, Partitioned, lower};
use meshloom::ir::Literal;
use meshloom::pjrt::Array;
use meshloom::sharding::Mesh;
use meshloom::trace::{Function, MapTree, Tree, value_and_grad};
use meshloom_nn::{MoeConfig, RouterGroups, Scoring, route};
use meshloom_train::Trainer;
use support::cases::cases;
use support::eight_devices::{client, relative_error};
use support::experts::{ROWS, experts, parameters, random_inputs, rules, run, stream};
use support::spmd::run_local;

use super::exchange::{folder, run_config, text_files};
use super::golden::{BOUND, Golden, interpreted};
use super::interpreted::InterpretedRun;

fn config() -> MoeConfig {
    let groups = Some(RouterGroups { count: 4, chosen: 2 });
    MoeConfig { choice_bias: true, scoring: Scoring::Sigmoid, groups, ..experts(8, 3) }
}

/// The gradient is the amount by which each expert's fraction of a row's choices is over an even one, as the mean over
/// rows; also where rows and experts are on several devices. The loss does not change. The interpreter computes all
/// cases, and some meshes are compiled too.
#[test]
fn the_gradient_is_the_uneven_part_of_choices() {
    let config = config();
    let specs = (stream(ROWS), parameters(ROWS.embed, &config));
    let function = Function::trace("router", specs, |(x, params)| {
        let routing = route(x, &params, &config);
        let moved = params.choice_bias.expect("it has one");
        let (loss, gradient) = value_and_grad(moved, |bias| {
            let params = meshloom_nn::Moe { choice_bias: Some(bias), ..params.clone() };
            route(x, &params, &config).choice_bias_loss.expect("it has one")
        });
        (routing.experts, loss, gradient)
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let inputs = random_inputs(function.graph(), 3);
    let check = |what: &str, results: &[Vec<f64>]| {
        let [chosen, loss, gradient] = results else { panic!("three results") };
        let mut expected = vec![-1.0 / config.experts as f64; config.experts];
        for &expert in chosen {
            expected[expert as usize] += 1.0 / chosen.len() as f64;
        }
        assert_eq!(loss, &[0.0], "{what}");
        assert!(expected.iter().any(|over| over.abs() > 0.02), "choices are uneven");
        let error = relative_error(gradient, &expected);
        assert!(error <= BOUND, "{what}: off by {error:.1e}");
    };
    let numbers = |results: &[Literal]| results.iter().map(Literal::to_f64_vec).collect::<Vec<_>>();
    check("one device", &numbers(&interpreted(function.graph(), &inputs)));
    let meshes = ["fsdp=2,expert=4", "fsdp=4,tensor=2", "fsdp=2,context=4"];
    let compiled = cases("families choices on meshes, compiled", 1, meshes);
    for text in meshes {
        let (mesh, rules) = (Mesh::parse(text, 8).expect("a mesh"), rules(&[]));
        let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{text}: {error}"));
        let Some(Partitioned { graph, mesh, .. }) = lowered.partitioned() else { panic!("{text}: no local program") };
        check(text, &numbers(&run_local(graph, mesh, &inputs).unwrap_or_else(|error| panic!("{text}: {error}"))));
        if compiled.contains(&text) {
            check(text, &run(&lowered, &inputs));
        }
    }
}

/// The runner of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Interpreter,
    /// The trainer uses eight devices, unless settings say otherwise.
    Trainer,
}

const ONE_DEVICE: [&str; 2] = ["mesh.axes=data=1", "target.devices=1"];

/// Returns the state of a run after some steps: biases, all other parameters, and the norms of gradients.
fn after(by: By, settings: &[&str], steps: usize) -> (Vec<Vec<f64>>, Vec<Vec<f64>>, Vec<f64>) {
    let files = text_files(48);
    let mut all = vec!["rules.strict=false", "train.warmup=0", "train.learning_rate=1e-3"];
    all.extend(if by == By::Trainer { &["mesh.axes=fsdp=8"][..] } else { &ONE_DEVICE });
    all.extend(settings);
    let config = run_config(&folder("deepseek_v3"), &files, &all);
    let (mut biases, mut others) = (Vec::new(), Vec::new());
    let mut add = |path: &str, literal: &Literal| {
        let numbers = literal.to_f64_vec();
        if path.ends_with("choice_bias") { biases.push(numbers) } else { others.push(numbers) }
    };
    let norms = match by {
        By::Interpreter => {
            let mut run = InterpretedRun::new(&config);
            Golden::load("deepseek_v3").begin(&mut run);
            let norms = (0..steps).map(|_| run.step()[1]).collect();
            run.parameters().for_each(|(path, literal)| add(path, literal));
            norms
        }
        By::Trainer => {
            let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
            let norms = (0..steps).map(|_| trainer.step().expect("a step").grad_norm).collect();
            let host = trainer.state().params().map(|_, array: &Array| array.get().expect("on the host"));
            Tree::paths(&host).iter().zip(host.leaves()).for_each(|(path, literal)| add(path, &literal));
            norms
        }
    };
    (biases, others, norms)
}

/// Returns the interpreter, and in the full tier the trainer too, which then compiles with the usual options.
fn both(name: &str) -> impl Iterator<Item = By> {
    [By::Interpreter].into_iter().chain(cases(name, 0, [By::Trainer]))
}

/// A step moves each by the rate, whatever the learning rate and the gradient's norm, and nothing else by it.
#[test]
fn a_step_moves_biases_by_the_rate_alone() {
    both("families steps of biases, compiled").for_each(check_rate);
}

fn check_rate(by: By) {
    let after = |settings: &[&str], steps| after(by, settings, steps);
    let (before, _, _) = after(&[], 0);
    let (still, others, norms) = after(&["train.choice_bias_rate=0"], 2);
    assert_eq!(still, before);
    let (moved, _, first_norms) = after(&["train.choice_bias_rate=1e-5"], 1);
    assert_eq!(first_norms[0], norms[0]);
    let differences = moved.iter().flatten().zip(before.iter().flatten()).map(|(moved, before)| moved - before);
    let differences: Vec<f64> = differences.collect();
    assert!(differences.iter().any(|&moved| moved > 0.0) && differences.iter().any(|&moved| moved < 0.0));
    for moved in &differences {
        let is_step = (moved.abs() - 1e-5).abs() < 1e-7 || *moved == 0.0;
        assert!(is_step, "{moved:e} is no step of 1e-5");
    }
    // A rate too small to change a choice changes nothing else.
    let (_, same, same_norms) = after(&["train.choice_bias_rate=1e-9"], 2);
    assert_eq!((others, norms), (same, same_norms));
}

/// Microbatches, a layer in halves and a pipeline move them as one device does.
#[test]
fn biases_move_alike_however_a_batch_is_cut() {
    both("families cut batches, compiled").for_each(check_cut_batches);
}

fn check_cut_batches(by: By) {
    let (expected, ..) = after(by, &[], 1);
    let all = [
        &["mesh.axes=stage=2,data=2", "target.devices=4", "pipeline.microbatches=2", "pipeline.repeats=1"][..],
        &["model.batch_split=true", "mesh.axes=data=2,fsdp=2", "target.devices=4"],
        &["train.microbatches=2", "mesh.axes=data=4", "target.devices=4"],
        &["train.microbatches=1", "mesh.axes=data=1", "target.devices=1"],
    ];
    for settings in all {
        let (found, ..) = after(by, settings, 1);
        let [found, expected] = [&found, &expected].map(|biases| {
            let mut all: Vec<f64> = biases.iter().flatten().copied().collect();
            all.sort_by(f64::total_cmp);
            all
        });
        let error = relative_error(&found, &expected);
        assert!(error <= 1e-7, "{settings:?}: {error:.1e}");
    }
}
