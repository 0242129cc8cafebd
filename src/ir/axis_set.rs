//! Sets of mesh axes.

use std::ops::{BitAnd, BitOr, BitOrAssign};

use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// A set of mesh axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AxisSet(u32);

// An axis is a bit.
const _: () = assert!(Mesh::MAX_AXES <= u32::BITS as usize);

impl AxisSet {
    /// The axes of any mesh.
    pub(crate) const ALL: AxisSet = AxisSet(u32::MAX);

    pub(crate) fn of(axes: impl IntoIterator<Item = MeshAxis>) -> AxisSet {
        AxisSet(axes.into_iter().fold(0, |set, axis| set | 1 << axis.index()))
    }

    pub(crate) fn contains(self, axis: MeshAxis) -> bool {
        !(self & AxisSet::of([axis])).is_empty()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn without(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & !other.0)
    }

    pub(crate) fn union(sets: &[AxisSet]) -> AxisSet {
        sets.iter().fold(AxisSet::default(), |all, &set| all | set)
    }
}

impl BitOr for AxisSet {
    type Output = AxisSet;

    fn bitor(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 | other.0)
    }
}

impl BitOrAssign for AxisSet {
    fn bitor_assign(&mut self, other: AxisSet) {
        *self = *self | other;
    }
}

impl BitAnd for AxisSet {
    type Output = AxisSet;

    fn bitand(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & other.0)
    }
}
