//! Branches by place: devices that hold different slices take different branches, with exchanges in them.

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::DType::{F32, S32};
use meshloom::ir::Literal;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{
    Function, Tensor, TensorSpec, Tree, cond, einsum, map_parallel, scan, switch, while_loop, zeros,
};
use support::eight_devices::{compile, relative_error};
use support::interpret::interpret;
use support::numbers;
use support::spmd::run_local;

const RULES: &[(&str, &[&str])] = &[("stages", &["stage"]), ("rows", &["data"]), ("inner", &["tensor"]), ("out", &[])];

meshloom::tree! {
    struct Inputs<T> {
        which: T,
        times: T,
        x: T,
        w: T,
        sums: T,
    }
}

const STAGES: usize = 4;

fn specs() -> Inputs<TensorSpec> {
    Inputs {
        which: TensorSpec::new(S32, [3, STAGES]).with_axes(&["", "stages"]),
        times: TensorSpec::new(S32, [3, STAGES]).with_axes(&["", "stages"]),
        x: TensorSpec::new(F32, [STAGES, 8, 8]).with_axes(&["stages", "rows", ""]),
        w: TensorSpec::new(F32, [STAGES, 8, 8]).with_axes(&["stages", "inner", ""]),
        sums: TensorSpec::new(F32, [STAGES, 8, 8]).with_axes(&["stages", "inner", ""]),
    }
}

fn literals() -> Vec<Literal> {
    let floats = |seed| numbers(STAGES * 64, seed).iter().map(|number| (number - 0.5) as f32).collect::<Vec<f32>>();
    let of = |dims: &[usize], values: &[i32]| Literal::from_slice(dims, values).expect("as many elements");
    let float = |seed| Literal::from_slice(&[STAGES, 8, 8], &floats(seed)).expect("as many elements");
    let which = of(&[3, STAGES], &[0, 1, 2, 1, 2, 0, 1, 0, 1, 1, 0, 2]);
    let times = of(&[3, STAGES], &[0, 3, 1, 2, 1, 1, 0, 2, 2, 0, 0, 1]);
    vec![which, times, float(1), float(2), float(3)]
}

/// Ticks: in each a stage does nothing, multiplies (with a sum over what splits the inner dimension), or makes
/// a gradient, partial over the rows' axis, and adds it up so often; results go on from stage to stage.
fn program(inputs: Inputs<Tensor>) -> (Tensor, Tensor) {
    let Inputs { which, times, x, w, sums } = inputs;
    let ((x, sums), ()) = scan((x, sums), (which, times), |(x, sums), (which, times)| {
        let (y, sums) = map_parallel((which, times, x, w, sums), |(which, times, x, w, sums)| {
            let nothing = |(x, w): (Tensor, Tensor)| (x, w.zeros_like());
            let multiplies = |(x, w): (Tensor, Tensor)| {
                let hidden = x.tanh().with_axes(["rows", "inner"]);
                (einsum("bi,io->bo", &[hidden, w]).with_axes(["rows", "out"]), w.zeros_like())
            };
            let differentiates = |(x, _): (Tensor, Tensor)| (x, einsum("bi,bo->io", &[x, x * 0.5]));
            let (y, added) = switch(which, (x, w), [&nothing, &multiplies, &differentiates]);
            let (_, sums) =
                while_loop((times, sums), |(left, _)| left.greater(0.0), |(left, sums)| (left - 1.0, sums + added));
            (y, sums)
        });
        ((y.roll(0, 1), sums), ())
    });
    (x, sums)
}

fn traced() -> Function<Inputs<TensorSpec>, (TensorSpec, TensorSpec)> {
    Function::trace("branches", specs(), program).expect("a program")
}

fn lowered(function: &Function<Inputs<TensorSpec>, (TensorSpec, TensorSpec)>, mesh: &str) -> Lowered {
    let mesh = Mesh::parse(mesh, 8).expect("a mesh");
    let rules = Rules::from_pairs(RULES).expect("rules");
    let rules = RuleSets::uniform(rules.with_declared_axes(["stage", "data", "tensor"].map(str::to_owned)));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    lower(function.graph(), &options).expect("it lowers")
}

const MESHES: [&str; 5] =
    ["stage=4,data=2", "stage=4,tensor=2", "stage=2,data=2,tensor=2", "data=4,tensor=2", "stage=2,data=4"];

fn close(found: &[Literal], expected: &[Literal], mesh: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-6, "{mesh}: off by {error:e}");
    }
}

#[test]
fn devices_branch_by_their_place() {
    let function = traced();
    let expected = interpret(function.graph(), &literals());
    let by_xla =
        support::cases::cases("partition branches by XLA", 1, ["stage=2,data=2,tensor=2"].into_iter().chain(MESHES));
    for mesh in MESHES {
        let lowered = lowered(&function, mesh);
        let partitioned = lowered.partitioned().expect("it is partitioned");
        let found = run_local(&partitioned.graph, &partitioned.mesh, &literals()).expect("it runs");
        close(&found, &expected, mesh);
        if !by_xla.contains(&mesh) {
            continue;
        }
        let program = compile(&lowered).expect("it compiles");
        let inputs = refill(&literals());
        let arguments = program.put(0, &inputs).expect("the inputs fit").leaves();
        let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
        let found: Vec<Literal> = outputs.iter().map(|output| output.get().expect("a result")).collect();
        close(&found, &expected, mesh);
    }
}

fn refill(literals: &[Literal]) -> Inputs<Literal> {
    let mut literals = literals.iter().cloned();
    let mut next = || literals.next().expect("an input");
    Inputs { which: next(), times: next(), x: next(), w: next(), sums: next() }
}

/// Partial sums that are added up in branches are all-reduced once, after the loop; the branch that needs a sum has its
/// own all-reduce.
#[test]
fn sums_over_devices_wait_until_they_are_needed() {
    let function = traced();
    let lowered = lowered(&function, "stage=2,data=2,tensor=2");
    let text = lowered.collectives().to_string();
    insta::assert_snapshot!(text);
}

/// A carry that a loop hands on unchanged has nothing to be added up, so nothing is exchanged for it.
#[test]
fn a_loop_hands_on_what_it_does_not_change() {
    let function = Function::trace("handed", (specs(), TensorSpec::new(F32, [8])), |(inputs, scale)| {
        let Inputs { times, x, w, .. } = inputs;
        let times = times.slice(0, 0..1).reshape([STAGES]);
        map_parallel((times, x, w), |(times, x, w)| {
            let carry = (times, x, scale);
            let (_, x, scale) =
                while_loop(carry, |(left, ..)| left.greater(0.0), |(left, x, scale)| (left - 1.0, x + w, scale));
            (x, scale)
        })
    });
    let function = function.expect("a program");
    let mesh = Mesh::parse("stage=4,data=2", 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::from_pairs(RULES).expect("rules").with_declared_axes(["tensor".to_owned()]));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    let lowered = lower(function.graph(), &options).expect("it lowers");
    assert_eq!(lowered.collectives().count().expect("no overflow"), 0, "{}", lowered.collectives());
}

#[test]
fn exchanges_that_would_hang_are_refused() {
    let mesh = Mesh::parse("stage=4,data=2", 8).expect("a mesh");
    let refused = |rules: &[(&str, &[&str])], f: &dyn Fn(Tensor, Tensor) -> Tensor| {
        let specs = (
            TensorSpec::new(S32, [STAGES]).with_axes(&["stages"]),
            TensorSpec::new(F32, [STAGES, 8, 8]).with_axes(&["stages", "rows", ""]),
        );
        let function = Function::trace("strays", specs, |inputs| map_parallel(inputs, |(which, x)| f(which, x)));
        let rules = Rules::from_pairs(rules).expect("rules");
        let rules = RuleSets::uniform(rules.with_declared_axes(["stage", "data"].map(str::to_owned)));
        let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
        let error = lower(function.expect("a program").graph(), &options).expect_err("it is refused");
        error.to_string().split("; at ").next().expect("a message").to_owned()
    };
    let over_stages: &[(&str, &[&str])] = &[("stages", &["stage"]), ("rows", &["data"]), ("inner", &["stage"])];
    let spans = refused(over_stages, &|which, x| {
        cond(which.greater(0.0), x, |x| (x * 2.0).with_axes(["rows", "inner"]).tanh(), |x| zeros(F32, x.dims()))
    });
    let permutes = refused(over_stages, &|which, x| cond(which.greater(0.0), x, |x| x.roll(0, 1), |x| x));
    insta::assert_snapshot!(format!("{spans}\n\n{permutes}"));
}
