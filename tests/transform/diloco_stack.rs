//! DiLoCo on one small stack of layers, in the interpreter: every combination of settings against the plain loop.

use std::sync::OnceLock;

use super::diloco_reference::{Cut, Outcome, Start, assert_near, reference, worst};
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::{DType, Graph, Literal};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Init, MapTree, Param, Tensor, TensorSpec, Tree, scan, value_and_grad};
use meshloom::transform::diloco::{
    Diloco, DilocoOptions, DilocoState, HasParams, LayerOrder, Layout, OuterState, Streaming, of_replicas,
};
use support::anchored::run_lowered;
use support::cases::every_case;
use support::interpret::interpret;
use support::numbers;

meshloom::tree! {
    /// Layers `x := tanh(x W) + x`, and a scale before them.
    pub struct Stack<T> {
        pub scale: T,
        pub layers: T,
    }

    pub struct StackInput<T> {
        pub state: DilocoState<Stack<T>, Stack<T>, T>,
        pub x: T,
    }

    pub struct StackOutput<T> {
        pub state: DilocoState<Stack<T>, Stack<T>, T>,
        pub loss: T,
    }
}

impl HasParams for Stack<Tensor> {
    type Params = Self;

    fn params(&self) -> Self {
        self.clone()
    }

    fn with_params(self, params: Self) -> Self {
        params
    }
}

pub const LAYERS: usize = 4;
pub const WIDTH: usize = 8;

pub fn stack() -> Stack<Param> {
    let zero = Init::Constant(0.0);
    Stack {
        scale: Param::new(DType::F32, [WIDTH], &["embed"], zero),
        layers: Param::new(DType::F32, [WIDTH, WIDTH], &["embed", ""], zero).stacked(LAYERS),
    }
}

/// Traces a step, or several, of a stack's state and a batch `[replicas, 4, 8]`, or `[steps, replicas, 4, 8]` for
/// several.
pub fn stack_function(
    options: &DilocoOptions,
    parts: usize,
    steps: Option<usize>,
    step: impl Fn(Stack<Tensor>, Tensor) -> (Stack<Tensor>, Tensor),
) -> Function<StackInput<TensorSpec>, StackOutput<TensorSpec>> {
    let declared = stack();
    let layout = Layout { parts: vec![vec![parts], vec![1, parts, 1]], ..Layout::default() };
    let diloco = Diloco::new(options, &declared, &layout).unwrap_or_else(|error| panic!("{error}"));
    let own = || declared.map(|_, param| param.spec.clone());
    let mut x = of_replicas(&TensorSpec::new(DType::F32, [4, WIDTH]), options.replicas);
    if let Some(steps) = steps {
        x.ty.dims.insert(0, steps);
        x.axes.insert(0, Default::default());
    }
    let specs = StackInput {
        state: DilocoState {
            inner: declared.map(|_, param| of_replicas(&param.spec, options.replicas)),
            outer: OuterState { params: own(), momentum: own() },
            step: TensorSpec::new(DType::S32, []),
        },
        x,
    };
    let function = Function::trace("stack", specs, |StackInput { state, x }| {
        let (state, loss) = match steps {
            Some(_) => diloco.overlapped_steps(state, x, &step),
            None => diloco.step(state, x, step),
        };
        StackOutput { state, loss }
    });
    let names: &[&str] = if steps.is_some() { &["", "diloco"] } else { &["diloco"] };
    let named = function.and_then(|function| function.with_output_axes("loss", names));
    named.unwrap_or_else(|error| panic!("{error}"))
}

pub fn descend_stack(params: Stack<Tensor>, x: Tensor) -> (Stack<Tensor>, Tensor) {
    let (loss, gradients) = value_and_grad(params.clone(), |params| {
        let start = x * params.scale.broadcast_like(x, [1]);
        scan(start, params.layers, |x, layer| (x.matmul(layer).tanh() + x, ())).0.square().mean(..)
    });
    let mut pairs = params.leaves().into_iter().zip(gradients.leaves()).map(|(param, slope)| param - slope * 0.1);
    (params.rebuild(&mut || pairs.next().expect("as many")), loss)
}

/// The program of one device of `diloco=2,fsdp=2`.
pub fn stack_options<'a>(mesh: &'a Mesh, rules: &'a RuleSets) -> LowerOptions<'a> {
    LowerOptions {
        sharding: Some((mesh, rules)),
        deny_replication: true,
        omit_metadata: true,
        ..LowerOptions::default()
    }
}

pub fn stack_rules() -> RuleSets {
    RuleSets::uniform(
        Rules::from_pairs(&[("diloco", &["diloco"]), ("embed", &["fsdp"]), ("layers", &[])]).expect("rules"),
    )
}

// Runs.

/// The number of steps of a period.
const PERIOD: usize = 12;

/// Returns the number of steps: three periods, and five in the full tier.
fn steps() -> u64 {
    if every_case("transform diloco settings") { 60 } else { 36 }
}

/// Returns numbers around zero.
fn signed(dims: &[usize], seed: u64, size: f32) -> Literal {
    let values: Vec<f32> = numbers(dims.iter().product(), seed).iter().map(|x| (*x as f32 - 0.7) * size).collect();
    Literal::from_slice(dims, &values).expect("as many")
}

/// The rows of a replica of a step's batch.
fn rows(step: u64, replica: usize) -> Literal {
    signed(&[4, WIDTH], 1000 * (replica as u64 + 1) + step, 2.0)
}

fn first() -> Stack<Literal> {
    Stack { scale: signed(&[WIDTH], 1, 1.0), layers: signed(&[LAYERS, WIDTH, WIDTH], 2, 0.5) }
}

/// The step of one replica.
fn plain() -> &'static Graph {
    static PLAIN: OnceLock<Graph> = OnceLock::new();
    PLAIN.get_or_init(|| {
        let params = stack().map(|_, param| param.spec.clone());
        let specs = (params, TensorSpec::new(DType::F32, [4, WIDTH]));
        let function = Function::trace("plain", specs, |(params, x)| descend_stack(params, x));
        function.unwrap_or_else(|error| panic!("{error}")).graph().as_ref().clone()
    })
}

fn expected(options: &DilocoOptions, cut: &Cut, steps: u64) -> Outcome {
    let start = Start { state: first().leaves(), params: first().paths(), layers: LAYERS };
    reference(&start, options, cut, steps, |replica, done, state| {
        let mut results = interpret(plain(), &[state, &[rows(done, replica)]].concat());
        results.truncate(state.len());
        results
    })
}

/// A run on the mesh, and its state so far.
struct Run {
    options: DilocoOptions,
    state: Vec<Literal>,
    done: u64,
}

impl Run {
    fn new(options: &DilocoOptions) -> Run {
        let zero = |literal: &Literal| Literal::from_fn(literal.ty().clone(), |_| 0.0);
        let state = DilocoState {
            inner: first().map(|_, literal| literal.repeated(options.replicas)),
            outer: OuterState { params: first(), momentum: first().map(|_, literal| zero(literal)) },
            step: Literal::scalar(0i32),
        };
        Run { options: options.clone(), state: state.leaves(), done: 0 }
    }

    /// Lowers the program of one step, or of this many that send while they compute.
    fn lowered(&self, steps: Option<usize>) -> Lowered {
        let replicas = self.options.replicas;
        let mesh = Mesh::parse(&format!("diloco={replicas},fsdp=2"), 2 * replicas).expect("a mesh");
        let function = stack_function(&self.options, 2, steps, descend_stack);
        lower(function.graph(), &stack_options(&mesh, &stack_rules())).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Calls a program of this many steps.
    fn call(&mut self, program: &Lowered, steps: Option<usize>) {
        let count = steps.unwrap_or(1) as u64;
        let all: Vec<u8> = (self.done..self.done + count)
            .flat_map(|step| (0..self.options.replicas).map(move |replica| rows(step, replica)))
            .flat_map(|rows| rows.bytes().to_vec())
            .collect();
        let dims = [steps.as_slice(), &[self.options.replicas, 4, WIDTH]].concat();
        let x = Literal::from_bytes(meshloom::ir::TensorType::new(DType::F32, &dims), all).expect("as many bytes");
        let mut results = run_lowered(program, &[&self.state[..], &[x]].concat());
        results.truncate(self.state.len());
        (self.state, self.done) = (results, self.done + count);
    }

    /// Runs step by step.
    fn single_steps(&mut self, count: u64) {
        let program = self.lowered(None);
        (0..count).for_each(|_| self.call(&program, None));
    }

    fn outcome(&self) -> Outcome {
        Outcome::of(&self.state[..2], &self.state[2..4], self.options.replicas)
    }
}

fn options(replicas: usize, streaming: Option<Streaming>) -> DilocoOptions {
    DilocoOptions { replicas, sync_period: PERIOD, streaming, ..DilocoOptions::default() }
}

#[track_caller]
fn check(replicas: usize, streaming: Option<Streaming>, cut: &Cut) {
    let options = options(replicas, streaming);
    let mut run = Run::new(&options);
    run.single_steps(steps());
    assert_near(format!("{options:?}"), &run.outcome(), &expected(&options, cut, steps()));
}

#[test]
fn everything_at_once() {
    for replicas in [2, 4] {
        check(replicas, None, &[]);
    }
}

/// No weight is a half: both sides of the mix would have it.
#[test]
fn even_fragments() {
    for replicas in [2, 4] {
        for (order, cut) in
            [(LayerOrder::Interleaved, [vec![0, 2], vec![1, 3]]), (LayerOrder::Sequential, [vec![0, 1], vec![2, 3]])]
        {
            for overlap_steps in [0, 1, 3] {
                for overlap_alpha in [0.0, 0.25] {
                    let streaming = Streaming { order, overlap_steps, overlap_alpha, ..Streaming::default() };
                    check(replicas, Some(streaming), &cut);
                }
            }
        }
    }
}

#[test]
fn uneven_fragments() {
    for (order, cut) in [
        (LayerOrder::Interleaved, [vec![0, 3], vec![1], vec![2]]),
        (LayerOrder::Sequential, [vec![0, 1], vec![2], vec![3]]),
    ] {
        let streaming = Streaming { fragments: 4, uneven: true, order, overlap_steps: 1, ..Streaming::default() };
        check(4, Some(streaming), &cut);
    }
}

/// Several syncs of other fragments lie between a fragment's sending and its use.
#[test]
fn a_long_overlap() {
    let streaming = Streaming { overlap_steps: 11, overlap_alpha: 0.25, ..Streaming::default() };
    check(4, Some(streaming), &[vec![0, 2], vec![1, 3]]);
}

/// Programs of whole periods that send while they compute leave the state that single steps leave.
#[test]
fn overlapping_programs() {
    for (overlap_steps, overlap_alpha, uneven) in [(1, 0.25, false), (3, 0.0, false), (2, 0.0, true)] {
        let fragments = if uneven { 4 } else { 3 };
        let streaming = Streaming { fragments, uneven, overlap_steps, overlap_alpha, ..Streaming::default() };
        let options = options(2, Some(streaming));
        let mut apart = Run::new(&options);
        apart.single_steps(overlap_steps as u64 + 2 * PERIOD as u64);
        for periods in [1, 2] {
            let mut run = Run::new(&options);
            run.single_steps(overlap_steps as u64);
            let program = run.lowered(Some(periods * PERIOD));
            (0..2 / periods).for_each(|_| run.call(&program, Some(periods * PERIOD)));
            assert_near(format!("{options:?}, {periods} periods"), &run.outcome(), &apart.outcome());
        }
    }
}

/// Small errors mean something only if mistakes cause large ones: a step too late, another weight, another cut.
#[test]
fn other_runs_are_other_numbers() {
    let interleaved: &Cut = &[vec![0, 2], vec![1, 3]];
    let of = |overlap_steps, overlap_alpha, cut: &Cut| {
        let streaming = Streaming { overlap_steps, overlap_alpha, ..Streaming::default() };
        expected(&options(2, Some(streaming)), cut, 60)
    };
    let base = of(1, 0.25, interleaved);
    let others = [
        of(2, 0.25, interleaved),
        of(1, 0.0, interleaved),
        of(1, 0.75, interleaved),
        of(1, 0.25, &[vec![0, 1], vec![2, 3]]),
        expected(&options(2, None), &[], 60),
    ];
    for (index, other) in others.iter().enumerate() {
        let (inner, outer) = worst(other, &base);
        assert!(inner > 1e-4 && outer > 1e-4, "{index}: inner {inner:e}, outer {outer:e}");
    }
}
