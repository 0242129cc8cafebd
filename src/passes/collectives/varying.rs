//! The mesh axes along which a value of a local graph may differ from device to device.
//!
//! Shapes of a local graph do not say whether devices hold parts of a value or copies. This analysis does: from the
//! specs of the inputs through every op, loops to a fixed point. It errs on one side: along an axis that is not in the
//! set, all devices hold the same bits.

use smallvec::SmallVec;

use crate::ir::{AxisSet, PortInfo};
use crate::ops::{Analysis, Devices, Group, Op, ValueFacts};
use meshloom_hlo::CollectiveKind;

/// Whether no axis of a group is in a set.
pub(super) fn is_same_within(set: AxisSet, group: &Group) -> bool {
    (set & group.axis_set()).is_empty()
}

/// One set for each result or input.
pub(super) type Sets = ValueFacts<AxisSet>;

/// The sets of a program's inputs: the axes that split them. Inputs without a spec are copies.
pub(super) fn of_inputs(info: &[PortInfo]) -> Sets {
    let set = |info: &PortInfo| match &info.spec {
        Some(spec) => AxisSet::of(spec.used_axes().chain(spec.unreduced().iter().copied())),
        None => AxisSet::default(),
    };
    info.iter().map(set).collect()
}

/// The analysis of the axes along which each value differs.
pub(super) struct Varying;

impl Analysis for Varying {
    type Fact = AxisSet;

    const CARRY_IS_ONE: bool = false;

    fn join(&self, one: AxisSet, other: &AxisSet) -> AxisSet {
        one | *other
    }

    /// Where devices take different branches or numbers of iterations, every result may differ.
    fn controlled(&self, set: AxisSet, control: &AxisSet) -> AxisSet {
        set | *control
    }

    fn transfer(&self, op: &Op, operands: &[AxisSet], result_count: usize) -> Sets {
        let facts = op.facts();
        match facts.devices {
            Devices::Alone if facts.is_separate => operands.into(),
            Devices::Alone => SmallVec::from_elem(AxisSet::union(operands), result_count),
            Devices::Unknown => SmallVec::from_elem(AxisSet::ALL, result_count),
            Devices::Rank(group) => SmallVec::from_elem(group.axis_set(), result_count),
            Devices::Exchange(CollectiveKind::AllGather | CollectiveKind::AllReduce, group) => {
                each(operands, |set| set.without(group.axis_set()))
            }
            Devices::Exchange(
                CollectiveKind::AllToAll | CollectiveKind::CollectivePermute | CollectiveKind::ReduceScatter,
                group,
            ) => each(operands, |set| set | group.axis_set()),
        }
    }
}

fn each(sets: &[AxisSet], f: impl Fn(AxisSet) -> AxisSet) -> Sets {
    sets.iter().map(|&set| f(set)).collect()
}
