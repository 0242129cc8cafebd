//! Passes: the cases that cannot be written in `tests/filetests`. Phases of nodes, whole programs, the table of passes,
//! and folding compared with the back end.

use meshloom::Error;
use meshloom::compile::{LowerOptions, PASSES, lower};
use meshloom::ir::DType::F64;
use meshloom::ir::{DType, Graph, GraphBuilder, Literal, Phase, PortInfo, TensorType, verify};
use meshloom::ops::{Binary, BinaryKind, Compare, Convert, Direction, Op, RematPolicy, Unary, UnaryKind};
use meshloom::passes::{
    eliminate_common_subexpressions, eliminate_dead_code, hoist_invariants, hoist_small_invariants, probe,
};
use meshloom::trace::{
    Function, ScanOptions, Tensor, TensorSpec, checkpoint, cond, custom_vjp, full, grad, scan, scan_with,
    value_and_grad,
};
use support::anchored::run;
use support::interpret::{literal, same_bits};
use support::*;

type Program = fn(&[Tensor]) -> Vec<Tensor>;
type Pass = fn(&Graph) -> Graph;

const SHAPES: &[&[usize]] = &[&[3], &[4, 3], &[3, 3]];

fn traced(program: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Graph {
    let specs: Vec<TensorSpec> = SHAPES.iter().map(|dims| TensorSpec::new(F64, *dims)).collect();
    let function = Function::trace("program", specs, |x| program(&x)).unwrap_or_else(|error| panic!("{error}"));
    function.graph().as_ref().clone()
}

/// Runs a pass; the graph stays valid, its results the same, and running the pass again changes nothing.
fn check(graph: &Graph, pass: Pass) -> Graph {
    let after = pass(graph);
    verify(&after).unwrap_or_else(|error| panic!("{error}\n{graph}\n{after}"));
    let inputs = inputs_of(graph);
    assert_eq!(run(graph, &inputs), run(&after, &inputs), "{graph}\n{after}");
    assert_eq!(pass(&after).to_string(), after.to_string(), "not idempotent");
    assert_eq!(after.input_info(), graph.input_info());
    assert_eq!(after.output_info(), graph.output_info());
    after
}

fn layers(x: &[Tensor], policy: RematPolicy) -> Tensor {
    let body = |h: Tensor, w: Tensor| {
        let scale = x[2].exp().sum(0);
        checkpoint(policy, (h, w), |(h, w)| ((h * w).matmul(x[2]) * scale).tanh())
    };
    scan(x[0], x[1], |h, w| (body(h, w), ())).0.sum(..)
}

#[test]
fn every_program_keeps_its_results() {
    let programs: &[Program] = &[
        |x| vec![x[0].sin() + x[0].sin(), x[0].cos()],
        |x| vec![layers(x, RematPolicy::Full)],
        |x| grad(x.to_vec(), |x| layers(&x, RematPolicy::Full)),
        |x| grad(x.to_vec(), |x| layers(&x, RematPolicy::Dots)),
        |x| {
            let (value, gradient) =
                value_and_grad(x[0], |h| grad(h, |h| layers(&[h, x[1], x[2]], RematPolicy::Full)).sum(..));
            vec![value, gradient]
        },
        |x| vec![custom_vjp(x[0], |x| x.exp(), |x| (x.exp(), x), |x, ct| ct * x.exp()), x[1].max(0)],
    ];
    for program in programs {
        let graph = traced(program);
        let merged = check(&graph, eliminate_common_subexpressions);
        let hoisted = check(&merged, hoist_invariants);
        let small = check(&hoisted, eliminate_dead_code);
        assert!(small.total_node_count() <= hoisted.total_node_count());
    }
}

#[test]
fn passes_keep_phases() {
    let graph = traced(|x| grad(x.to_vec(), |x| layers(&x, RematPolicy::Full) + layers(&x, RematPolicy::Dots)));
    let phases = |graph: &Graph| {
        let mut numbers = [0; 3];
        walk(graph, &mut |_, node| {
            if matches!(node.op(), Op::DotGeneral(_) | Op::Unary(_)) {
                numbers[node.origin().phase as usize] += 1;
            }
        });
        numbers
    };
    let before = phases(&graph);
    assert_eq!(before, phases(&hoist_invariants(&graph)));
    let alive = phases(&eliminate_dead_code(&graph));
    assert!((0..3).all(|phase| alive[phase] <= before[phase] && alive[phase] > 0), "{before:?} {alive:?}");
    let forward = eliminate_dead_code(&graph);
    assert!(forward.nodes().next().is_some_and(|node| node.origin().phase == Phase::Forward));
}

#[test]
fn recomputation_stays_in_the_loop() {
    let graph = traced(|x| {
        grad(vec![x[0], x[2]], |p| {
            scan(p[0], x[1], |h, w| (checkpoint(RematPolicy::Full, (h, p[1]), |(h, m)| (h * w).matmul(m.sin())), ()))
                .0
                .sum(..)
        })
    });
    let sines = |graph: &Graph| {
        scans(graph)
            .iter()
            .map(|(scan, _)| scan.body.nodes().filter(|node| node.op().name() == "sine").count())
            .collect::<Vec<_>>()
    };
    let after = check(&graph, |graph| eliminate_dead_code(&hoist_small_invariants(graph)));
    // The checkpoint keeps nothing but its operands: its backward pass computes the sine again.
    assert_eq!(sines(&after)[1], sines(&graph)[1]);
    assert!(sines(&after)[1] > 0);
}

// The table of passes.

#[test]
fn passes_can_be_switched_off() {
    // For each pass, a program in which it alone removes something, and the op by which one sees it.
    let programs: &[(&str, &str, Program)] = &[
        ("unroll", "scan", |x| {
            let options = ScanOptions { unroll: 4, ..ScanOptions::default() };
            vec![scan_with(options, x[0], x[1], |h, w| (h * w, ())).0]
        }),
        ("markers", "name", |x| vec![x[0].named("x").sin()]),
        ("constant-folding", "multiply", |x| vec![x[0].sin() + full(F64, [3], 2.0) * full(F64, [3], 1.5)]),
        ("algebra", "negate", |x| vec![-(-x[0])]),
        ("scan-operands", "broadcast", |x| vec![scan(x[0], x[0].broadcast_to([4, 3]), |h, w| (h * w, ())).0]),
        ("common-subexpressions", "sine", |x| vec![x[0].sin() * x[0].sin()]),
        ("dead-code", "sine", |x| {
            let _ = x[0].sin();
            vec![x[0]]
        }),
    ];
    for &(pass, op, program) in programs {
        let graph = traced(program);
        let left = |without: &[&str]| {
            let options = LowerOptions { without, ..LowerOptions::default() };
            count(lower(&graph, &options).expect("it lowers").graph(), op)
        };
        assert!(left(&[pass]) > left(&[]), "{pass}");
    }
    let graph = traced(|x| vec![scan(x[0], x[1], |h, w| (h * w + x[2].sin().sum(0), ())).0]);
    let options = LowerOptions { without: &["loop-invariants"], ..LowerOptions::default() };
    let inside = |graph: &Graph| scans(graph)[0].0.body.nodes().filter(|node| node.op().name() == "sine").count();
    assert_eq!(
        [
            inside(lower(&graph, &options).expect("it lowers").graph()),
            inside(lower(&graph, &LowerOptions::default()).expect("it lowers").graph())
        ],
        [1, 0]
    );
    let mut tested: Vec<&str> = programs.iter().map(|program| program.0).collect();
    tested.insert(5, "loop-invariants");
    let all: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    assert_eq!(tested, all, "each pass needs a program in which it alone removes something");
}

#[test]
fn an_unknown_pass_is_an_error() {
    let graph = traced(|x| vec![x[0]]);
    let options = LowerOptions { without: &["dead-cod"], ..LowerOptions::default() };
    let error = lower(&graph, &options).expect_err("there is no such pass");
    assert!(matches!(error, Error::UnknownPass { .. }));
    assert_eq!(
        error.to_string(),
        "there is no pass `dead-cod` (did you mean \"dead-code\"?); the passes are listed in `compile::PASSES`"
    );
}

// Folding.

/// Every elementwise op on every pair of numbers that are treated in a way of their own: what is folded is what the
/// plugin computes at run time from inputs.
#[test]
fn folded_arithmetic_is_the_back_ends() {
    let dtypes =
        [DType::F32, DType::F64, DType::BF16, DType::F16, DType::S8, DType::S32, DType::U8, DType::U32, DType::Pred];
    let mut builder = GraphBuilder::new("arithmetic");
    let (mut inputs, mut expected, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let mut outputs = Vec::new();
    for dtype in dtypes {
        let values: &[f64] = match dtype {
            DType::Pred => &[0.0, 1.0],
            DType::U8 => &[0.0, 1.0, 2.0, 7.0, 8.0, 9.0, 127.0, 128.0, 255.0],
            DType::S8 => &[0.0, 1.0, -1.0, 2.0, 7.0, 8.0, 9.0, -3.0, 127.0, -128.0],
            DType::S32 => &[0.0, 1.0, -1.0, 2.0, 31.0, 32.0, 33.0, -7.0, i32::MAX as f64, i32::MIN as f64],
            DType::U32 => &[0.0, 1.0, 2.0, 31.0, 32.0, 33.0, 4e9, u32::MAX as f64],
            _ => &[0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.5, 1e4, f64::INFINITY, f64::NEG_INFINITY, f64::NAN],
        };
        let pairs: Vec<(f64, f64)> = values.iter().flat_map(|&x| values.iter().map(move |&y| (x, y))).collect();
        let ty = TensorType::new(dtype, &[pairs.len()]);
        let x = literal(&ty, &mut pairs.iter().map(|pair| pair.0));
        let y = literal(&ty, &mut pairs.iter().map(|pair| pair.1));
        let ports = [&x, &y].map(|_| builder.input(ty.clone(), PortInfo::default()));
        let unary =
            UnaryKind::ALL.iter().filter(|kind| kind.class().contains(dtype)).map(|&kind| (Op::from(Unary(kind)), 1));
        let binary =
            BinaryKind::ALL.iter().filter(|kind| kind.class().contains(dtype)).map(|&kind| (Op::from(Binary(kind)), 2));
        let compare = Direction::ALL.iter().map(|&direction| (Op::from(Compare(direction)), 2));
        let convert = dtypes.iter().map(|&to| (Op::from(Convert(to)), 1));
        for (op, arity) in unary.chain(binary).chain(compare).chain(convert) {
            // Element by element, as it is declined for some: those stay what the back end makes of them.
            let element = |literal: &Literal, index: usize| {
                let width = dtype.byte_count();
                Literal::from_bytes(TensorType::scalar(dtype), &literal.bytes()[index * width..][..width]).unwrap()
            };
            let folded: Vec<Option<Literal>> = (0..pairs.len())
                .map(|index| {
                    let operands = [element(&x, index), element(&y, index)];
                    let operands: Vec<&Literal> = operands[..arity].iter().collect();
                    meshloom::passes::evaluate(&op, &operands)
                })
                .collect();
            if folded.iter().any(Option::is_some) {
                outputs.push(builder.push1(op.clone(), &ports[..arity]).expect("a node"));
                labels.push(format!("{} {dtype} {op:?}", op.name()));
                expected.push(folded);
            }
        }
        inputs.extend([x, y]);
    }
    let info = vec![PortInfo::default(); outputs.len()];
    let found = support::run(&builder.finish(outputs, info), &inputs);
    let mut folded_count = 0;
    for ((found, expected), label) in found.iter().zip(&expected).zip(&labels) {
        let width = found.ty().dtype.byte_count();
        for (index, expected) in expected.iter().enumerate() {
            let Some(expected) = expected else { continue };
            folded_count += 1;
            let own = Literal::from_bytes(expected.ty().clone(), &found.bytes()[index * width..][..width]).unwrap();
            assert!(same_bits(&own, expected), "{label} at {index}: folded {expected:?}, computed {own:?}");
        }
    }
    assert!(folded_count > 10_000, "{folded_count} were folded");
}

/// A probe of each level says of each value whether a number is infinite or NaN, in which iteration of a loop that runs
/// backwards, and in which branch.
#[test]
fn a_probe_says_what_is_not_finite() {
    let graph = traced(|x| {
        let options = ScanOptions { reverse: true, ..ScanOptions::default() };
        let body = |sum: Tensor, row: Tensor| {
            let is_large = row.slice(0, ..1).reshape([]).greater(1.0);
            let part = cond(is_large, row, |row| row.exp() - row.exp() * 2.0, |row| row * 2.0);
            (sum + part, ())
        };
        vec![scan_with(options, x[0], x[1], body).0]
    });
    // Row 1 is the third of four that run.
    let rows = |row: usize| if row == 1 { 1e3 } else { 0.5 };
    let inputs = [
        Literal::from_fn(TensorType::new(F64, &[3]), |_| 1.0),
        Literal::from_fn(TensorType::new(F64, &[4, 3]), |index| rows(index / 3)),
        Literal::from_fn(TensorType::new(F64, &[3, 3]), |_| 1.0),
    ];
    // For each value of a level, by its op: what it is in each iteration.
    let kinds = |way: &probe::Way| {
        let level = probe::level(&graph, way).expect("a body");
        let probe = probe::probe(&graph, way).expect("a probe");
        verify(&probe.graph).unwrap_or_else(|error| panic!("{error}\n{}", probe.graph));
        let found = support::interpret::interpret(&probe.graph, &inputs);
        let name = |value| level.defining_node(value).map_or("input", |node| node.op().name());
        let each = probe.values.iter().zip(found).map(|(&value, kinds)| (name(value), kinds.to_f64_vec()));
        each.filter(|(_, kinds)| kinds.iter().any(|kind| *kind != probe::FINITE)).collect::<Vec<_>>()
    };
    let [scan] = graph.nodes().map(|node| node.id).collect::<Vec<_>>()[..] else { panic!("{graph}") };
    assert_eq!(kinds(&[]), [("scan", vec![probe::NAN])]);
    let level = probe::level(&graph, &[(scan, 0)]).expect("a body");
    let branch = level.nodes().find(|node| node.op().name() == "cond").expect("a branch").id;
    // The sum stays what it has become: of rows 1 and 0, which come last.
    let (here, since) = (vec![0.0, probe::NAN, 0.0, 0.0], vec![probe::NAN, probe::NAN, 0.0, 0.0]);
    assert_eq!(kinds(&[(scan, 0)]), [("cond", here.clone()), ("add", since)]);
    let infinite = vec![0.0, probe::INFINITE, 0.0, 0.0];
    let of_branch = ["exponential", "exponential", "multiply"].map(|name| (name, infinite.clone()));
    let of_branch = [&of_branch[..], &[("subtract", here)]].concat();
    assert_eq!(kinds(&[(scan, 0), (branch, 1)]), of_branch);
    assert_eq!(kinds(&[(scan, 0), (branch, 0)]), []);
}
