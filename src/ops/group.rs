//! Groups of devices: the participants of a collective.

use std::fmt;

use meshloom_hlo::mesh::{Mesh, MeshAxis};

use crate::ir::{Attribute, Axes, AxisSet, GraphTextError, Printer, Reader};

/// Devices that communicate: those that differ only in their positions along `axes`. Their ranks count along the axes;
/// the first axis is the most major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Mesh axes, major to minor.
    pub axes: Axes,
    /// Number of devices.
    pub size: usize,
}

impl Attribute for Group {
    fn write(&self, out: &mut Printer<'_>) {
        self.axes.write(out);
        out.push(" of ");
        self.size.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Group, GraphTextError> {
        let axes = Axes::read(reader)?;
        if !reader.eat_word("of") {
            return Err(reader.expected("`of` and the number of devices"));
        }
        Ok(Group { axes, size: usize::read(reader)? })
    }
}

impl Group {
    /// The groups along some axes of a mesh.
    pub fn new(mesh: &Mesh, axes: &[MeshAxis]) -> Group {
        Group { axes: axes.into(), size: axes.iter().map(|&axis| mesh.size(axis)).product() }
    }

    /// The axes, in no order.
    pub(crate) fn axis_set(&self) -> AxisSet {
        AxisSet::of(self.axes.iter().copied())
    }

    /// The devices of each group, in the order of their ranks.
    pub(crate) fn devices(&self, mesh: &Mesh) -> Vec<Vec<usize>> {
        let mut groups: std::collections::BTreeMap<Vec<usize>, Vec<(usize, usize)>> = Default::default();
        for device in 0..mesh.device_count() {
            let others = mesh.axes().filter(|axis| !self.axes.contains(axis));
            let place = others.map(|axis| mesh.axis_index(device, axis)).collect();
            let at = |rank: usize, &axis: &MeshAxis| rank * mesh.size(axis) + mesh.axis_index(device, axis);
            groups.entry(place).or_default().push((self.axes.iter().fold(0, at), device));
        }
        let in_order = |mut members: Vec<(usize, usize)>| {
            members.sort_unstable();
            members.into_iter().map(|(_, device)| device).collect()
        };
        groups.into_values().map(in_order).collect()
    }
}

/// The numbers of the axes: `axes=0,2 of 8`, where 8 is the number of devices in a group.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes.iter().map(|axis| axis.index().to_string()).collect();
        write!(f, "axes={} of {}", axes.join(","), self.size)
    }
}
