//! The table: every op with its entries.

use std::collections::BTreeSet;

use meshloom::ops::*;

use crate::harness::Entry;
use crate::{attention, control, elementwise, gathers, kernels, library, moves, reductions, regions, sources, windows};

/// A line for each op: the entries of its kind of op, in order of names.
macro_rules! table {
    (tested { $($variant:ident => $entries:expr,)* } elsewhere { $($other:ident)* }) => {
        /// All entries.
        pub fn entries() -> Vec<Entry> {
            by_op().into_iter().flat_map(|(_, entries)| entries).collect()
        }

        fn by_op() -> Vec<(&'static str, Vec<Entry>)> {
            vec![$((stringify!($variant), Vec::from($entries)),)*]
        }

        /// An op without a line makes this fail to compile.
        const _: fn(&Op) = |op| match op {
            $(Op::$variant(_) => {})*
            $(Op::$other(_) => {})*
        };
    };
}

table! {
    tested {
        ArgReduce => ArgReduceKind::ALL.map(reductions::arg_reduce),
        Attention => [attention::attention()],
        AttentionGradient => [attention::gradient()],
        ArgReduceWindow => ArgReduceKind::ALL.map(windows::arg_reduce_window),
        Barrier => [sources::barrier()],
        Binary => BinaryKind::ALL.iter().copied().map(elementwise::binary).collect::<Vec<_>>(),
        BitcastConvert => [elementwise::bitcast_convert()],
        BroadcastInDim => [moves::broadcast()],
        Call => [regions::call()],
        Checkpoint => [regions::checkpoint()],
        Clamp => [elementwise::clamp()],
        Compare => Direction::ALL.map(elementwise::compare),
        Concatenate => [moves::concatenate()],
        Cond => [control::cond()],
        Constant => [sources::constant()],
        Convert => [elementwise::convert()],
        Convolution => [library::convolution()],
        CustomCall => [library::custom_call()],
        Cumulative => CumulativeKind::ALL.map(windows::cumulative),
        CustomVjp => [regions::custom_vjp()],
        DotGeneral => [reductions::dot_general()],
        DynamicSlice => [moves::dynamic_slice()],
        DynamicUpdateSlice => [moves::dynamic_update_slice()],
        Gather => [gathers::gather()],
        Iota => [sources::iota()],
        KernelCall => [kernels::kernel_call()],
        MoveTo => [sources::move_to()],
        Named => [sources::named()],
        Pad => [moves::pad()],
        RaggedDot => RaggedMode::ALL.map(library::ragged_dot),
        Reduce => ReduceKind::ALL.map(reductions::reduce),
        ReduceWindow => ReduceKind::ALL.map(windows::reduce_window),
        Reshape => [moves::reshape()],
        Reshard => [sources::reshard()],
        Reverse => [moves::reverse()],
        Roll => [moves::roll()],
        Scan => [regions::scan()],
        Scatter => ScatterKind::ALL.map(gathers::scatter),
        Select => [elementwise::select()],
        Slice => [moves::slice()],
        Sort => [library::sort()],
        Splat => [sources::splat()],
        StopGradient => [sources::stop_gradient()],
        Threefry => [library::threefry()],
        TopK => [library::top_k()],
        Transpose => [moves::transpose()],
        Unary => UnaryKind::ALL.iter().copied().map(elementwise::unary).collect::<Vec<_>>(),
        While => [control::while_loop()],
        WithAxes => [sources::with_axes()],
    }
    // Of partitioned graphs: `tests/sharding/reshard.rs`.
    elsewhere { AllGather AllReduce AllToAll AxisIndex CollectivePermute ReduceScatter }
}

#[test]
fn every_op_is_in_the_table() {
    let mut names = BTreeSet::new();
    for (variant, entries) in by_op() {
        for entry in entries {
            let name = &entry.name;
            let first = entry.accepts.first();
            assert!(first.is_none_or(|case| case.op.variant() == variant), "{name} stands in the line of {variant}");
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
}
