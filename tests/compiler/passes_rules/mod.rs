//! Every rule of constant folding and algebra: what it makes of a graph, that it does not go further than it says, and
//! that values stay the same in every bit, interpreted and on the CPU plugin.

mod arithmetic;
mod folding;
mod movement;

use std::collections::BTreeSet;

use meshloom::ir::{DType, Graph, GraphBuilder, Literal, PortInfo, TensorType, Value, verify};
use meshloom::ops::*;
use meshloom::passes::{algebra_rules, eliminate_dead_code, fold_constants, simplify};
use support::interpret::{interpret, literal, same_bits};

type Build = fn(&mut GraphBuilder, &[Value]) -> Value;

/// One program: the rule it is for, its input types, and what is left of it.
struct Case {
    rule: &'static str,
    inputs: &'static str,
    build: Build,
    after: &'static str,
}

const fn case(rule: &'static str, inputs: &'static str, build: Build, after: &'static str) -> Case {
    Case { rule, inputs, build, after }
}

fn push(b: &mut GraphBuilder, op: impl Into<Op>, operands: &[Value]) -> Value {
    b.push1(op, operands).unwrap_or_else(|error| panic!("{error}"))
}

/// A splat of the type of a value.
fn number(b: &mut GraphBuilder, like: Value, number: f64) -> Value {
    let ty = b.ty(like).clone();
    push(b, Splat::new(ty, number), &[])
}

fn unary(b: &mut GraphBuilder, kind: UnaryKind, x: Value) -> Value {
    push(b, Unary(kind), &[x])
}

fn binary(b: &mut GraphBuilder, kind: BinaryKind, x: Value, y: Value) -> Value {
    push(b, Binary(kind), &[x, y])
}

/// A binary op of a value and a number.
fn with(b: &mut GraphBuilder, kind: BinaryKind, x: Value, y: f64) -> Value {
    let y = number(b, x, y);
    binary(b, kind, x, y)
}

fn neg(b: &mut GraphBuilder, x: Value) -> Value {
    unary(b, UnaryKind::Negate, x)
}

fn dims(b: &GraphBuilder, x: Value) -> Vec<usize> {
    b.ty(x).dims.to_vec()
}

/// The first dimension's range; all of the others.
fn slice(b: &mut GraphBuilder, x: Value, start: usize, limit: usize, stride: usize) -> Value {
    let mut ranges: Vec<SliceDim> = dims(b, x).iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
    ranges[0] = SliceDim { start, limit, stride };
    push(b, Slice { ranges: ranges.into() }, &[x])
}

/// Borders of the first dimension.
fn pad(b: &mut GraphBuilder, x: Value, value: Value, low: i64, high: i64, interior: usize) -> Value {
    let mut padding = vec![PadDim { low: 0, high: 0, interior: 0 }; dims(b, x).len()];
    padding[0] = PadDim { low, high, interior };
    push(b, Pad { padding: padding.into() }, &[x, value])
}

fn broadcast(b: &mut GraphBuilder, x: Value, dims: &[usize], mapping: &[usize]) -> Value {
    push(b, BroadcastInDim { dims: dims.into(), mapping: mapping.into() }, &[x])
}

fn reduce(b: &mut GraphBuilder, kind: ReduceKind, x: Value, axes: &[usize]) -> Value {
    push(b, Reduce { kind, axes: axes.into() }, &[x])
}

fn scalar(b: &mut GraphBuilder, dtype: DType, x: f64) -> Value {
    push(b, Splat::new(TensorType::scalar(dtype), x), &[])
}

fn ty(text: &str) -> TensorType {
    let (dtype, dims) = text.trim_end_matches(']').split_once('[').expect("a type with brackets");
    let dims: Vec<usize> = dims.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().unwrap()).collect();
    TensorType::new(DType::from_name(dtype).expect("an element type"), &dims)
}

fn graph(inputs: &str, build: impl Fn(&mut GraphBuilder, &[Value]) -> Value) -> Graph {
    let mut builder = GraphBuilder::new("case");
    let inputs: Vec<Value> =
        inputs.split_whitespace().map(|text| builder.input(ty(text), PortInfo::default())).collect();
    let output = build(&mut builder, &inputs);
    builder.finish(vec![output], vec![PortInfo::default()])
}

/// The nodes of a graph in one line, without types.
fn brief(graph: &Graph) -> String {
    let text = graph.to_string();
    let lines = text.lines().skip(1).take_while(|line| *line != "}");
    lines.map(|line| line.split(" : ").next().unwrap_or(line).trim()).collect::<Vec<_>>().join("; ")
}

/// What arithmetic treats in a way of its own, for each kind of type; `turn` shifts them, so that pairs of operands
/// differ.
fn numbers(ty: &TensorType, turn: usize) -> Literal {
    const FLOATS: [f64; 8] = [0.0, -0.0, 1.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.3];
    const WHOLE: [f64; 8] = [0.0, 1.0, -1.0, f64::MIN, f64::MAX, 7.0, -7.0, 2.0];
    let list = if ty.dtype.is_float() { FLOATS } else { WHOLE };
    // Shifted by an odd number in every round, all pairs meet.
    literal(ty, &mut (0..ty.element_count()).map(|index| list[(index + turn * (1 + index / 8)) % 8]))
}

/// Runs every program before and after on the CPU plugin, all in one module each.
fn expect_same_on_plugin(pairs: &[(Graph, Graph)]) {
    let together = |pick: fn(&(Graph, Graph)) -> &Graph| {
        let mut builder = GraphBuilder::new("together");
        let mut arguments = Vec::new();
        for pair in pairs {
            for input in pick(pair).input_types() {
                arguments.push(builder.input(input.clone(), PortInfo::default()));
            }
        }
        let mut rest = &arguments[..];
        let mut outputs = Vec::new();
        for pair in pairs {
            let graph = pick(pair);
            let (own, others) = rest.split_at(graph.inputs().len());
            rest = others;
            let call = Call { function: std::sync::Arc::new(graph.clone()) };
            outputs.extend(builder.push(call, own).expect("a call"));
        }
        let info = vec![PortInfo::default(); outputs.len()];
        builder.finish(outputs, info)
    };
    let (before, after) = (together(|pair| &pair.0), together(|pair| &pair.1));
    let (compiled, compiled_after) = (support::compile(&before), support::compile(&after));
    for turn in 0..4 {
        let inputs: Vec<Literal> =
            before.input_types().enumerate().map(|(index, ty)| numbers(ty, turn * (index % 2))).collect();
        let (found, expected) = (compiled_after.run(&inputs), compiled.run(&inputs));
        for ((found, expected), (before, after)) in found.iter().zip(&expected).zip(pairs) {
            assert!(same_bits(found, expected), "{found:?}\n{expected:?}\n{before}\n{after}");
        }
    }
}

fn algebra_cases() -> impl Iterator<Item = &'static Case> {
    arithmetic::CASES.iter().chain(movement::CASES)
}

#[test]
fn algebra() {
    let mut pairs = Vec::new();
    let mut wrong = Vec::new();
    for case in algebra_cases() {
        let before = graph(case.inputs, case.build);
        let after = eliminate_dead_code(&simplify(&before));
        verify(&after).unwrap_or_else(|error| panic!("{error}"));
        if brief(&after) != case.after {
            wrong.push(format!("{}: {} became {}, expected {}", case.rule, brief(&before), brief(&after), case.after));
        }
        assert_eq!(simplify(&after).to_string(), after.to_string(), "not idempotent");
        for turn in 0..8 {
            let inputs: Vec<Literal> =
                before.input_types().enumerate().map(|(index, ty)| numbers(ty, turn * index)).collect();
            let (expected, found) = (interpret(&before, &inputs), interpret(&after, &inputs));
            assert!(same_bits(&found[0], &expected[0]), "{}: {found:?} {expected:?}", case.rule);
        }
        pairs.push((before, after));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let tested: BTreeSet<&str> = algebra_cases().map(|case| case.rule).filter(|rule| !rule.is_empty()).collect();
    let all: BTreeSet<&str> = algebra_rules().map(|rule| rule.name).collect();
    assert_eq!(tested, all);
    expect_same_on_plugin(&pairs);
}

#[test]
fn folding() {
    let mut wrong = Vec::new();
    let mut pairs = Vec::new();
    for case in folding::CASES {
        let before = graph(case.inputs, case.build);
        let after = eliminate_dead_code(&fold_constants(&before));
        verify(&after).unwrap_or_else(|error| panic!("{error}"));
        if brief(&after) != case.after {
            wrong.push(format!("{} became {}, expected {}", brief(&before), brief(&after), case.after));
        }
        assert_eq!(fold_constants(&after).to_string(), after.to_string(), "not idempotent");
        if before.ty(before.outputs()[0]).element_count() < 10_000 {
            pairs.push((before, after));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    expect_same_on_plugin(&pairs);
}

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
                outputs.push(push(&mut builder, op.clone(), &ports[..arity]));
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
