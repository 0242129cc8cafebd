//! DiLoCo against plain loops that hold the replicas one by one.

// A test says what it found by panicking.
#![allow(clippy::panic)]

mod eight_devices;

use eight_devices::{client, relative_error};
use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Literal};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Init, MapTree, Param, Tensor, TensorSpec, Tree, value_and_grad};
use meshloom::transform::diloco::{Diloco, DilocoOptions, DilocoState, HasParams, Layout, OuterState, of_replicas};

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
    let params = Linear {
        weight: params.weight - gradients.weight * 0.1,
        bias: params.bias - gradients.bias * 0.1,
    };
    (params, loss)
}

/// The simulation that MaxText's tests have, on one device or two.
fn simulation(mesh: Option<&str>) {
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
    let lower_options =
        LowerOptions { sharding: mesh.as_ref().map(|mesh| (mesh, &rules)), explicit: true, ..LowerOptions::default() };
    let lowered = lower(function.graph(), &lower_options).unwrap_or_else(|error| panic!("{error}"));
    let program = lowered.compile(&client()).unwrap_or_else(|error| panic!("{error}"));

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
        let arguments = program.put(0, &input).expect("the inputs fit").leaves();
        let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
        let mut outputs = outputs.iter().map(|output| output.get().expect("a result"));
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
    Literal::from_bytes(meshloom::ir::TensorType::new(ty.dtype, &dims), bytes).expect("as many bytes")
}

fn zeros(literal: &Literal) -> Literal {
    Literal::from_bytes(literal.ty().clone(), vec![0; literal.bytes().len()]).expect("as many bytes")
}

#[test]
fn simulation_of_two_replicas() {
    simulation(None);
    simulation(Some("diloco=2"));
}
