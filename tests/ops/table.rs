//! The table: every op with its entries.

use std::collections::BTreeSet;

use meshloom::ops::*;

use crate::harness::Entry;
use crate::{control, elementwise, gathers, library, moves, reductions, regions, sources, windows};

/// The entries of one op's kind of op. A new op makes this fail to compile; one that is not asked for, because nothing
/// in [`samples`] is of its kind, makes [`every_op_is_in_the_table`] fail.
fn entries_like(op: &Op) -> Vec<Entry> {
    match op {
        Op::AllGather(_)
        | Op::AllReduce(_)
        | Op::AllToAll(_)
        | Op::AxisIndex(_)
        | Op::CollectivePermute(_)
        | Op::ReduceScatter(_) => Vec::new(),
        Op::ArgReduce(_) => ArgReduceKind::ALL.map(reductions::arg_reduce).into(),
        Op::ArgReduceWindow(_) => ArgReduceKind::ALL.map(windows::arg_reduce_window).into(),
        Op::Barrier(_) => vec![sources::barrier()],
        Op::Binary(_) => BinaryKind::ALL.iter().copied().map(elementwise::binary).collect(),
        Op::BitcastConvert(_) => vec![elementwise::bitcast_convert()],
        Op::BroadcastInDim(_) => vec![moves::broadcast()],
        Op::Call(_) => vec![regions::call()],
        Op::Checkpoint(_) => vec![regions::checkpoint()],
        Op::Clamp(_) => vec![elementwise::clamp()],
        Op::Compare(_) => Direction::ALL.map(elementwise::compare).into(),
        Op::Concatenate(_) => vec![moves::concatenate()],
        Op::Cond(_) => vec![control::cond()],
        Op::Constant(_) => vec![sources::constant()],
        Op::Convert(_) => vec![elementwise::convert()],
        Op::Convolution(_) => vec![library::convolution()],
        Op::CustomCall(_) => vec![library::custom_call()],
        Op::Cumulative(_) => CumulativeKind::ALL.map(windows::cumulative).into(),
        Op::CustomVjp(_) => vec![regions::custom_vjp()],
        Op::DotGeneral(_) => vec![reductions::dot_general()],
        Op::DynamicSlice(_) => vec![moves::dynamic_slice()],
        Op::DynamicUpdateSlice(_) => vec![moves::dynamic_update_slice()],
        Op::Gather(_) => vec![gathers::gather()],
        Op::Iota(_) => vec![sources::iota()],
        Op::MoveTo(_) => vec![sources::move_to()],
        Op::Named(_) => vec![sources::named()],
        Op::Pad(_) => vec![moves::pad()],
        Op::RaggedDot(_) => RaggedMode::ALL.map(library::ragged_dot).into(),
        Op::Reduce(_) => ReduceKind::ALL.map(reductions::reduce).into(),
        Op::ReduceWindow(_) => ReduceKind::ALL.map(windows::reduce_window).into(),
        Op::Reshape(_) => vec![moves::reshape()],
        Op::Reshard(_) => vec![sources::reshard()],
        Op::Reverse(_) => vec![moves::reverse()],
        Op::Roll(_) => vec![moves::roll()],
        Op::Scan(_) => vec![regions::scan()],
        Op::Scatter(_) => ScatterKind::ALL.map(gathers::scatter).into(),
        Op::Select(_) => vec![elementwise::select()],
        Op::Slice(_) => vec![moves::slice()],
        Op::Sort(_) => vec![library::sort()],
        Op::Splat(_) => vec![sources::splat()],
        Op::StopGradient(_) => vec![sources::stop_gradient()],
        Op::Threefry(_) => vec![library::threefry()],
        Op::TopK(_) => vec![library::top_k()],
        Op::Transpose(_) => vec![moves::transpose()],
        Op::Unary(_) => UnaryKind::ALL.iter().copied().map(elementwise::unary).collect(),
        Op::While(_) => vec![control::while_loop()],
        Op::WithAxes(_) => vec![sources::with_axes()],
    }
}

/// Ops that only a partitioned graph has; `tests/sharding/reshard.rs` is about them.
const OF_PARTITIONED_GRAPHS: [&str; 6] =
    ["AllGather", "AllReduce", "AllToAll", "AxisIndex", "CollectivePermute", "ReduceScatter"];

/// An op of every kind, out of the entries themselves.
fn samples() -> Vec<Op> {
    let entries = [
        reductions::arg_reduce(ArgReduceKind::Max),
        windows::arg_reduce_window(ArgReduceKind::Max),
        sources::barrier(),
        elementwise::binary(BinaryKind::Add),
        elementwise::bitcast_convert(),
        moves::broadcast(),
        regions::call(),
        regions::checkpoint(),
        elementwise::clamp(),
        elementwise::compare(Direction::Eq),
        moves::concatenate(),
        control::cond(),
        sources::constant(),
        elementwise::convert(),
        library::convolution(),
        library::custom_call(),
        windows::cumulative(CumulativeKind::Sum),
        regions::custom_vjp(),
        reductions::dot_general(),
        moves::dynamic_slice(),
        moves::dynamic_update_slice(),
        gathers::gather(),
        sources::iota(),
        sources::move_to(),
        sources::named(),
        moves::pad(),
        library::ragged_dot(RaggedMode::Rows),
        reductions::reduce(ReduceKind::Sum),
        windows::reduce_window(ReduceKind::Sum),
        moves::reshape(),
        sources::reshard(),
        moves::reverse(),
        moves::roll(),
        regions::scan(),
        gathers::scatter(ScatterKind::Add),
        elementwise::select(),
        moves::slice(),
        library::sort(),
        sources::splat(),
        sources::stop_gradient(),
        library::threefry(),
        library::top_k(),
        moves::transpose(),
        elementwise::unary(UnaryKind::Abs),
        control::while_loop(),
        sources::with_axes(),
    ];
    entries.into_iter().map(|entry| entry.accepts.into_iter().next().expect("an accepted signature").op).collect()
}

/// All entries.
pub fn entries() -> Vec<Entry> {
    samples().iter().flat_map(entries_like).collect()
}

#[test]
fn every_op_is_in_the_table() {
    let samples = samples();
    let found: BTreeSet<&str> = samples.iter().map(Op::variant).chain(OF_PARTITIONED_GRAPHS).collect();
    assert_eq!(found, Op::VARIANTS.iter().copied().collect());
    let mut names = BTreeSet::new();
    for entry in entries() {
        let name = &entry.name;
        assert!(names.insert(name.clone()), "two entries are called {name}");
        assert!(!entry.accepts.is_empty() && !entry.runs.is_empty(), "{name} is not run");
        assert!(!entry.rejects.is_empty() || name == "barrier", "{name} takes anything");
        let differentiated = !entry.gradients.is_empty();
        assert!(differentiated != entry.no_gradient.is_some(), "{name} has gradient cases or a reason why not");
        if name.starts_with("unary_") || name.starts_with("binary_") {
            let kind = entry.accepts[0].op.name();
            assert_eq!(name.split_once('_').unwrap().1, kind);
        }
    }
}
