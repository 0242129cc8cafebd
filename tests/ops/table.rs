//! The table: every op with its entries.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use meshloom::ops::*;

use crate::harness::Entry;
use crate::{attention, control, elementwise, gathers, kernels, library, moves, reductions, regions, sources, windows};

/// All entries.
pub fn entries() -> Vec<&'static Entry> {
    VARIANTS.iter().flat_map(|variant| entries_of(variant)).collect()
}

/// A line for each op, in order of names: its test, which `cargo test --test ops clamp` runs alone, and the entries of
/// its kind of op.
macro_rules! table {
    (tested { $($variant:ident $test:ident => $entries:expr,)* } elsewhere { $($other:ident)* }) => {
        const VARIANTS: &[&str] = &[$(stringify!($variant)),*];

        /// Returns the entries of an op, which are made once.
        fn entries_of(variant: &str) -> Vec<&'static Entry> {
            let entries = match variant {
                $(stringify!($variant) => {
                    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| Vec::from($entries));
                    &*ENTRIES
                })*
                _ => panic!("{variant} is not in the table"),
            };
            entries.iter().collect()
        }

        /// The tests, one for each op.
        mod op {
            $(#[test]
            fn $test() {
                crate::check::check_op(&super::entries_of(stringify!($variant)));
            })*
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
        ArgReduce arg_reduce => ArgReduceKind::ALL.map(reductions::arg_reduce),
        Attention attention => [attention::attention()],
        AttentionGradient attention_gradient => [attention::gradient()],
        ArgReduceWindow arg_reduce_window => ArgReduceKind::ALL.map(windows::arg_reduce_window),
        Barrier barrier => [sources::barrier()],
        Binary binary => BinaryKind::ALL.iter().copied().map(elementwise::binary).collect::<Vec<_>>(),
        BitcastConvert bitcast_convert => [elementwise::bitcast_convert()],
        BroadcastInDim broadcast_in_dim => [moves::broadcast()],
        Call call => [regions::call()],
        Checkpoint checkpoint => [regions::checkpoint()],
        Clamp clamp => [elementwise::clamp()],
        Compare compare => Direction::ALL.map(elementwise::compare),
        Concatenate concatenate => [moves::concatenate()],
        Cond cond => [control::cond()],
        Constant constant => [sources::constant()],
        Convert convert => [elementwise::convert()],
        Convolution convolution => [library::convolution()],
        CustomCall custom_call => [library::custom_call()],
        Cumulative cumulative => CumulativeKind::ALL.map(windows::cumulative),
        CustomVjp custom_vjp => [regions::custom_vjp()],
        DotGeneral dot_general => [reductions::dot_general()],
        DynamicSlice dynamic_slice => [moves::dynamic_slice()],
        DynamicUpdateSlice dynamic_update_slice => [moves::dynamic_update_slice()],
        Gather gather => [gathers::gather()],
        Iota iota => [sources::iota()],
        KernelCall kernel_call => [kernels::kernel_call()],
        MoveTo move_to => [sources::move_to()],
        Named named => [sources::named()],
        Pad pad => [moves::pad()],
        RaggedDot ragged_dot => RaggedMode::ALL.map(library::ragged_dot),
        Reduce reduce => ReduceKind::ALL.map(reductions::reduce),
        ReduceWindow reduce_window => ReduceKind::ALL.map(windows::reduce_window),
        Reshape reshape => [moves::reshape()],
        Reshard reshard => [sources::reshard()],
        Reverse reverse => [moves::reverse()],
        Roll roll => [moves::roll()],
        Scan scan => [regions::scan()],
        Scatter scatter => ScatterKind::ALL.map(gathers::scatter),
        Select select => [elementwise::select()],
        Slice slice => [moves::slice()],
        Sort sort => [library::sort()],
        Splat splat => [sources::splat()],
        StopGradient stop_gradient => [sources::stop_gradient()],
        Threefry threefry => [library::threefry()],
        TopK top_k => [library::top_k()],
        Transpose transpose => [moves::transpose()],
        Unary unary => UnaryKind::ALL.iter().copied().map(elementwise::unary).collect::<Vec<_>>(),
        While while_loop => [control::while_loop()],
        WithAxes with_axes => [sources::with_axes()],
    }
    // The ops of partitioned graphs are tested in `tests/sharding/reshard.rs`, those that only imported programs have
    // in `tests/partition/foreign.rs`.
    elsewhere { AllGather AllReduce AllToAll AxisIndex CollectivePermute ManualBorder Opaque ReduceScatter }
}

#[test]
fn every_op_is_in_the_table() {
    let mut names = BTreeSet::new();
    for &variant in VARIANTS {
        for entry in entries_of(variant) {
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
