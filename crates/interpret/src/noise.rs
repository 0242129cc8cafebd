//! Rounding errors, drawn at random: how far they may move the results of a graph.
//!
//! Two back ends that are both right differ in the last digit of a function, and in the order of a sum. Where a result
//! is the small difference of large numbers, it differs by much more. Monte Carlo arithmetic (Parker, 1997) shows by
//! how much: every number that is rounded is moved by a unit in the last place, up or down.

use std::cell::Cell;

use meshloom::ir::{DType, Graph, Literal};
use meshloom::ops::{BinaryKind, Op, ReduceKind};

use super::interpret;

thread_local! {
    /// The state of the generator while noise is added.
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The outputs of a graph in which all sums, products and functions of f32 and f64 are off by a unit in the last place.
/// Another seed moves them in other directions.
pub fn interpret_with_noise(graph: &Graph, inputs: &[Literal], seed: u64) -> Vec<Literal> {
    STATE.set(Some(seed));
    let results = interpret(graph, inputs);
    STATE.set(None);
    results
}

/// The results of an op, moved if noise is asked for and the op rounds.
pub fn added(op: &Op, results: Vec<Literal>) -> Vec<Literal> {
    if STATE.get().is_none() || !rounds(op) { results } else { results.into_iter().map(moved).collect() }
}

fn moved(literal: Literal) -> Literal {
    let unit = match literal.ty().dtype {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F64 => f64::EPSILON,
        _ => return literal,
    };
    let mut state = STATE.get().unwrap_or_default();
    let mut moved = literal.to_f64_vec().into_iter().map(|number| {
        // The constants of Knuth's linear congruential generator (MMIX).
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        number * if state >> 63 == 0 { 1.0 + unit } else { 1.0 - unit }
    });
    let moved = super::literal(literal.ty(), &mut moved);
    STATE.set(Some(state));
    moved
}

fn rounds(op: &Op) -> bool {
    match op {
        Op::Unary(_) => !op.facts().is_cheap,
        Op::Binary(op) => !matches!(op.0, BinaryKind::Maximum | BinaryKind::Minimum | BinaryKind::Remainder),
        Op::Reduce(op) => matches!(op.kind, ReduceKind::Sum | ReduceKind::Prod),
        Op::DotGeneral(_) => true,
        _ => false,
    }
}
