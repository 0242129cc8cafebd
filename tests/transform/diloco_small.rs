//! DiLoCo on models of a few numbers: the simulation that peers have, what is lost on the way in few bits, what is
//! refused, and programs as text.

use super::diloco_stack::{
    LAYERS, Stack, StackInput, StackOutput, WIDTH, descend_stack, stack, stack_function, stack_options, stack_rules,
};
use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Init, MapTree, Param, Specs, Tensor, TensorSpec, Tree, value_and_grad};
use meshloom::transform::diloco::{
    Diloco, DilocoError, DilocoOptions, DilocoState, HasParams, LayerOrder, Layout, OuterState, Streaming, Transport,
    of_replicas,
};
use support::anchored::{run_by_tier, run_compiled, run_lowered};
use support::cases::cases;
use support::eight_devices::{compile, relative_error};
use support::interpret::interpret;

meshloom::tree! {
    /// `x W + b`.
    struct Linear<T> {
        weight: T,
        bias: T,
    }

    struct Examples<T> {
        x: T,
        labels: T,
    }

    struct Input<T> {
        state: DilocoState<Linear<T>, Linear<T>, T>,
        examples: Examples<T>,
    }

    struct Output<T> {
        state: DilocoState<Linear<T>, Linear<T>, T>,
        losses: T,
    }
}

impl HasParams for Linear<Tensor> {
    type Params = Self;

    fn params(&self) -> Self {
        self.clone()
    }

    fn with_params(self, params: Self) -> Self {
        params
    }
}

/// A step of plain descent on the mean square error.
fn descend(params: Linear<Tensor>, examples: Examples<Tensor>) -> (Linear<Tensor>, Tensor) {
    let (loss, gradients) = value_and_grad(params.clone(), |params| {
        let product = examples.x.matmul(params.weight);
        (product + params.bias.broadcast_like(product, [1]) - examples.labels).square().mean(..)
    });
    let params = Linear { weight: params.weight - gradients.weight * 0.1, bias: params.bias - gradients.bias * 0.1 };
    (params, loss)
}

/// The simulation that MaxText's tests have, on one device or two.
fn simulation(mesh: Option<&str>, run: impl Fn(&Lowered, &[Literal]) -> Vec<Literal>) {
    let declared = Linear {
        weight: Param::new(DType::F32, [2, 1], &["", ""], Init::Constant(0.0)),
        bias: Param::new(DType::F32, [1], &[""], Init::Constant(0.0)),
    };
    let options =
        DilocoOptions { replicas: 2, sync_period: 3, outer_rate: 1.0, outer_momentum: 0.9, ..DilocoOptions::default() };
    let diloco = Diloco::new(&options, &declared, &Layout::default()).expect("options that go together");
    let spec = |param: &Param| param.spec.clone();
    let outer = || declared.map(|_, param| spec(param));
    let specs = Input {
        state: DilocoState {
            inner: declared.map(|_, param| of_replicas(&param.spec, 2)),
            outer: OuterState { params: outer(), momentum: outer() },
            step: TensorSpec::new(DType::S32, []),
        },
        examples: Examples {
            x: of_replicas(&TensorSpec::new(DType::F32, [2, 2]), 2),
            labels: of_replicas(&TensorSpec::new(DType::F32, [2, 1]), 2),
        },
    };
    let function = Function::trace("simulation", specs, |Input { state, examples }| {
        let (state, losses) = diloco.step(state, examples, descend);
        Output { state, losses }
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let mesh = mesh.map(|mesh| Mesh::parse(mesh, 2).expect("a mesh"));
    let rules = RuleSets::uniform(Rules::from_pairs(&[("diloco", &["diloco"])]).expect("rules"));
    let lower_options = LowerOptions { sharding: mesh.as_ref().map(|mesh| (mesh, &rules)), ..LowerOptions::default() };
    let lowered = lower(function.graph(), &lower_options).unwrap_or_else(|error| panic!("{error}"));

    let start = Linear { weight: Literal::matrix(&[[2f32], [1.0]]), bias: Literal::vector(&[1f32]) };
    let twice = |literal: &Literal| stacked(&[literal.clone(), literal.clone()]);
    let mut state = DilocoState {
        inner: start.map(|_, literal| twice(literal)),
        outer: OuterState { params: start.clone(), momentum: start.map(|_, literal| zeros(literal)) },
        step: Literal::scalar(0i32),
    };
    let examples = Examples {
        x: Literal::from_slice(&[2, 2, 2], &[0f32, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]).expect("eight"),
        // Off by 1 in both examples of replica 0, by 1 and -1 in those of replica 1.
        labels: Literal::from_slice(&[2, 2, 1], &[1f32, 2.0, 1.0, 4.0]).expect("four"),
    };
    let mut losses = Vec::new();
    let mut outer_of_step = vec![start];
    for step in 1..=4 {
        let input = Input { state: state.clone(), examples: examples.clone() };
        let mut outputs = run(&lowered, &input.leaves()).into_iter();
        state = state.rebuild(&mut || outputs.next().expect("as many as there were"));
        losses.push(outputs.next().expect("the losses").to_f64_vec()[0]);
        outer_of_step.push(state.outer.params.clone());
        assert_eq!(state.step, Literal::scalar(step));
        let is_outer = state.inner.leaves() == state.outer.params.map(|_, literal| twice(literal)).leaves();
        assert_eq!(is_outer, step == 3, "after step {step}");
    }
    let outer_of_step: Vec<Vec<Literal>> = outer_of_step.iter().map(Tree::leaves).collect();
    assert_eq!(outer_of_step[1], outer_of_step[0]);
    assert_eq!(outer_of_step[2], outer_of_step[0]);
    assert_ne!(outer_of_step[3], outer_of_step[0]);
    assert_eq!(outer_of_step[4], outer_of_step[3]);
    let error = relative_error(&losses, &[1.0, 0.49, 0.2401, 0.207545]);
    assert!(error <= 1e-5, "losses {losses:?}, off by {error:e}");
}

fn stacked(literals: &[Literal]) -> Literal {
    let ty = literals[0].ty();
    let mut dims = ty.dims.to_vec();
    dims.insert(0, literals.len());
    let bytes: Vec<u8> = literals.iter().flat_map(|literal| literal.bytes()).copied().collect();
    Literal::from_bytes(TensorType::new(ty.dtype, &dims), bytes).expect("as many bytes")
}

fn zeros(literal: &Literal) -> Literal {
    Literal::from_bytes(literal.ty().clone(), vec![0; literal.bytes().len()]).expect("as many bytes")
}

#[test]
fn simulation_of_two_replicas() {
    simulation(None, run_lowered);
    simulation(Some("diloco=2"), run_lowered);
    simulation(Some("diloco=2"), run_compiled);
}

/// The mean pseudo-gradient as it arrives, in blocks of four, and that of a mesh; against the exact one.
fn check_transport(transport: Transport, largest_error: impl Fn(f64, f64) -> f64, exact: bool) {
    let options = DilocoOptions {
        sync_period: 1,
        outer_rate: 1.0,
        outer_momentum: 0.0,
        transport,
        block: 4,
        ..DilocoOptions::default()
    };
    // Steps that change nothing: what syncs is what the replicas start with.
    let function = stack_function(&options, 2, None, |params, x| (params, x.sum(..)));
    let value = |index: usize| ((index * 37 % 101) as f32 - 50.0) * if index.is_multiple_of(5) { 1e-4 } else { 0.02 };
    let literal = |dims: &[usize], from: usize| {
        let numbers: Vec<f32> = (0..dims.iter().product()).map(|index| value(from + index)).collect();
        Literal::from_slice(dims, &numbers).expect("as many")
    };
    // A block of zeros in one replica, the first numbers of its scale.
    let mut scale: Vec<f32> = (0..2 * WIDTH).map(|index| value(index + 7)).collect();
    scale[..4].fill(0.0);
    let outer = Stack { scale: zeros(&literal(&[WIDTH], 0)), layers: zeros(&literal(&[LAYERS, WIDTH, WIDTH], 0)) };
    let input = StackInput {
        state: DilocoState {
            inner: Stack {
                scale: Literal::from_slice(&[2, WIDTH], &scale).expect("as many"),
                layers: literal(&[2, LAYERS, WIDTH, WIDTH], 100),
            },
            outer: OuterState { params: outer.clone(), momentum: outer },
            step: Literal::scalar(0i32),
        },
        x: literal(&[2, 4, WIDTH], 0),
    };
    let (mesh, rules) = (Mesh::parse("diloco=2,fsdp=2", 4).expect("a mesh"), stack_rules());
    let one_device = LowerOptions::default();
    let run = |options: &LowerOptions<'_>| {
        let lowered = lower(function.graph(), options).unwrap_or_else(|error| panic!("{error}"));
        let results = run_by_tier("transform transports", &lowered, &input.leaves());
        results[2..4].iter().flat_map(Literal::to_f64_vec).collect::<Vec<f64>>()
    };
    let (found, on_mesh) = (run(&one_device), run(&stack_options(&mesh, &rules)));
    assert_eq!(found, on_mesh, "{transport}");
    let replicas: Vec<Vec<f64>> = (0..2)
        .map(|replica| {
            let part = |literal: &Literal| {
                let numbers = literal.to_f64_vec();
                numbers[replica * numbers.len() / 2..][..numbers.len() / 2].to_vec()
            };
            input.state.inner.leaves().iter().flat_map(part).collect()
        })
        .collect();
    let mut worst: f64 = 0.0;
    for (index, found) in found.iter().enumerate() {
        let mean = (replicas[0][index] + replicas[1][index]) / 2.0;
        let of_replica = |replica: &Vec<f64>| {
            // Blocks lie along the last dimension, here as in memory.
            let block = &replica[index / 4 * 4..][..4];
            largest_error(replica[index].abs(), block.iter().fold(0.0, |largest, number| number.abs().max(largest)))
        };
        let bound = replicas.iter().map(of_replica).sum::<f64>() / 2.0 + 1e-6;
        assert!((found - mean).abs() <= bound, "{transport}: {found} for {mean}, at {index}");
        worst = worst.max((found - mean).abs());
    }
    assert_eq!(worst < 1e-6, exact, "{transport}: off by at most {worst:e}");
}

#[test]
fn what_is_lost_in_few_bits() {
    check_transport(Transport::F32, |_, _| 0.0, true);
    check_transport(Transport::Bf16, |number, _| number / 256.0, false);
    // Four significant bits, down to the smallest normal number; beneath it, steps of 2^-9.
    check_transport(Transport::F8, |number, largest| (number / 16.0).max(largest / 448.0 / 1024.0), false);
    check_transport(Transport::Int4, |_, largest| largest / 14.0, false);
}

#[test]
fn what_cannot_be() {
    let params = stack();
    let check = |options: DilocoOptions| match Diloco::new(&options, &params, &Layout::default()) {
        Ok(_) => panic!("{options:?} is taken"),
        Err(error) => error.to_string(),
    };
    let plain = DilocoOptions::default();
    let streaming = |streaming: Streaming| check(DilocoOptions { streaming: Some(streaming), ..plain.clone() });
    let three = Streaming::default();
    assert_snapshot!(check(DilocoOptions { replicas: 0, ..plain.clone() }), @"the number of replicas of a DiLoCo run is 0; use 1 or more");
    assert_snapshot!(check(DilocoOptions { outer_momentum: 1.0, ..plain.clone() }), @"the outer momentum is 1, but must be at least 0 and less than 1");
    assert_snapshot!(check(DilocoOptions { transport: Transport::Int4, block: 5, ..plain.clone() }), @"4-bit integers are sent two in a byte, but a block holds 5: use an even block, such as 64");
    assert_snapshot!(streaming(Streaming { fragments: 1, ..three }), @"streaming DiLoCo needs at least 2 fragments, one for everything outside the layers and one for layers, not 1: use more, or no streaming");
    assert_snapshot!(streaming(Streaming { fragments: 4, ..three }), @"4 layers cannot be divided into 3 layer fragments: use 3 or 5 fragments, or allow uneven ones");
    assert_snapshot!(streaming(Streaming { fragments: 6, uneven: true, ..three }), @"4 layers cannot fill 5 layer fragments: use at most 5 fragments");
    assert_snapshot!(streaming(Streaming { fragments: 21, ..three }), @"21 fragments sync one at a time, which takes at least as many steps, not 20: use a longer sync period");
    assert_snapshot!(streaming(Streaming { overlap_steps: 18, ..three }), @"a fragment comes in 18 steps after it is sent, but is sent again after 18: overlap fewer steps");
    assert_snapshot!(streaming(Streaming { overlap_alpha: 1.5, ..three }), @"alpha is 1.5, but must be from 0 to 1");
    let separate = Linear {
        weight: Param::new(DType::F32, [2, 1], &["", ""], Init::Constant(0.0)),
        bias: Param::new(DType::F32, [1], &[""], Init::Constant(0.0)),
    };
    let options = DilocoOptions { streaming: Some(three), ..plain };
    let error = Diloco::new(&options, &separate, &Layout::default()).expect_err("no layers");
    assert_eq!(error, DilocoError::NoLayers);
    assert_snapshot!(error, @"streaming DiLoCo cuts the dimension over layers, which no parameter has: stack the layers (`Param::stacked`)");
}

/// Programs that send while they compute are of whole periods, and apply a fragment before the next is sent.
#[test]
fn what_cannot_overlap() {
    let params = stack();
    for (overlap_steps, steps) in [(1, 7), (0, 6), (2, 6), (5, 6)] {
        let streaming = Some(Streaming { overlap_steps, ..Streaming::default() });
        let options = DilocoOptions { sync_period: 6, streaming, ..DilocoOptions::default() };
        let diloco = Diloco::new(&options, &params, &Layout::default()).expect("options that go together");
        let own = || params.map(|_, param| param.spec.clone());
        let x = TensorSpec::new(DType::F32, [steps, 2, 4, WIDTH]);
        let state = DilocoState {
            inner: params.map(|_, param| of_replicas(&param.spec, 2)),
            outer: OuterState { params: own(), momentum: own() },
            step: TensorSpec::new(DType::S32, []),
        };
        let function = Function::trace("stack", StackInput { state, x }, |StackInput { state, x }| {
            let (state, loss) = diloco.overlapped_steps(state, x, &descend_stack);
            StackOutput { state, loss }
        });
        let error = function.map(|_| ()).expect_err("it cannot be").to_string();
        let expected = format!(
            "a program that sends while it computes runs whole periods of 6 steps, not {steps}, and applies fragments after 1 to 1 steps, \
             not {overlap_steps}: use `Diloco::steps`, which takes any"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn programs_as_text() {
    let _bound = support::snapshots_in("hlo_snapshots/diloco");
    let (mesh, rules) = (Mesh::parse("diloco=2,fsdp=2", 4).expect("a mesh"), stack_rules());
    let streaming = Streaming { order: LayerOrder::Interleaved, overlap_steps: 1, ..Streaming::default() };
    let options = DilocoOptions { sync_period: 6, streaming: Some(streaming), ..DilocoOptions::default() };
    let vanilla = DilocoOptions { streaming: None, ..options.clone() };
    let int4 = DilocoOptions { transport: Transport::Int4, block: 4, ..vanilla.clone() };
    let programs = [
        ("vanilla", vanilla, None),
        ("vanilla_int4", int4, None),
        ("streaming", options.clone(), None),
        ("streaming_overlapped", options, Some(6)),
    ];
    let compiled =
        cases("transform diloco programs", 1, ["streaming_overlapped", "vanilla_int4", "vanilla", "streaming"]);
    for (name, options, steps) in programs {
        let function = stack_function(&options, 2, steps, descend_stack);
        let aliases = meshloom_train::run::aliases(&function);
        let lowered = lower(function.graph(), &LowerOptions { aliases, ..stack_options(&mesh, &rules) });
        let lowered = lowered.unwrap_or_else(|error| panic!("{name}: {error}"));
        if compiled.contains(&name) {
            compile(&lowered).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let text = print(&lowered.module.decode().expect("a module"), &TextOptions::canonical());
        assert_snapshot!(name, text);
    }
}

/// The norm of a message on the host is that of the pseudo-gradients which a program decodes from it, in each form; a
/// number that is not finite leaves none.
#[test]
fn the_norm_of_a_message_is_that_of_what_it_carries() {
    let declared = Linear {
        weight: Param::new(DType::F32, [6, 8], &["", ""], Init::Constant(0.0)),
        bias: Param::new(DType::F32, [5], &[""], Init::Constant(0.0)),
    };
    for transport in [Transport::F32, Transport::Bf16, Transport::F8, Transport::Int4] {
        let options = DilocoOptions { replicas: 1, apart: true, transport, block: 4, ..DilocoOptions::default() };
        let diloco = Diloco::new(&options, &declared, &Layout::default()).expect("options that go together");
        let spec = |param: &Param| param.spec.clone();
        let outer = || declared.map(|_, param| spec(param));
        let specs = DilocoState {
            inner: declared.map(|_, param| of_replicas(&param.spec, 1)),
            outer: OuterState { params: outer(), momentum: outer() },
            step: TensorSpec::new(DType::S32, []),
        };
        let share = diloco.shares()[0];
        let message =
            Function::trace("message", Specs((specs.clone(), TensorSpec::new(DType::S32, []))), |(state, n)| {
                diloco.message((share, n), &state)
            });
        let message = message.unwrap_or_else(|error| panic!("{error}"));
        let sent = message.outputs().to_vec();
        let decoded = Function::trace("decoded", Specs(sent), |message| diloco.decoded(share, message));
        let decoded = decoded.unwrap_or_else(|error| panic!("{error}"));
        let numbers = |index: usize| ((index * 37 + 11) % 17) as f64 / 3.0 - 2.5;
        let parts = |with: Option<f64>| {
            let leaves = specs.leaves();
            let leaf = |(place, spec): (usize, &TensorSpec)| {
                Literal::from_fn(spec.ty.clone(), |index| match with {
                    // A weight of the replica.
                    Some(number) if place == 0 && index == 13 => number,
                    _ => numbers(index + 5 * place),
                })
            };
            let state = leaves.iter().enumerate().map(leaf).chain([Literal::scalar(0i32)]).collect::<Vec<_>>();
            interpret(message.graph(), &state)
        };
        let gradients = interpret(decoded.graph(), &parts(None)).into_iter().flat_map(|leaf| leaf.to_f64_vec());
        let expected = gradients.map(|number| number * number).sum::<f64>().sqrt();
        let found = diloco.message_norm(share, &parts(None));
        assert!(expected > 1.0 && relative_error(&[found], &[expected]) < 1e-6, "{transport:?}: {found}, {expected}");
        for number in [f64::NAN, f64::INFINITY] {
            let found = diloco.message_norm(share, &parts(Some(number)));
            assert!(!found.is_finite(), "{transport:?} {number}: {found}");
        }
        assert!(!diloco.message_norm(share, &parts(None)[1..]).is_finite(), "{transport:?}: a message that ends early");
    }
}
