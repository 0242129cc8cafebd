//! Where the part of each device begins, and how that depends on the place of the device in the mesh.

use std::collections::BTreeMap;

use meshloom_hlo::mesh::Mesh;
use rustc_hash::FxHashMap;

use crate::ir::AxisSet;

/// The first element of each device's part along a dimension, by number in [`Layouts`].
pub(super) type Begin = u32;

/// The parts of all devices begin with the first element.
pub(super) const FIRST: Begin = 0;

/// The value is the same along the dimension, so that a part may begin anywhere.
pub(super) const ANYWHERE: Begin = u32::MAX;

/// All beginnings that occur in a proof, each once.
pub(super) struct Layouts {
    pub(super) mesh: Mesh,
    begins: Vec<Vec<i64>>,
    numbers: FxHashMap<Vec<i64>, Begin>,
    /// The axes that each of them depends on.
    axes: Vec<AxisSet>,
}

impl Layouts {
    pub(super) fn new(mesh: Mesh) -> Layouts {
        let mut layouts = Layouts { mesh, begins: Vec::new(), numbers: FxHashMap::default(), axes: Vec::new() };
        layouts.number(vec![0; layouts.mesh.device_count()]);
        layouts
    }

    /// The number of the beginnings on the devices.
    pub(super) fn number(&mut self, begins: Vec<i64>) -> Begin {
        if let Some(&number) = self.numbers.get(&begins) {
            return number;
        }
        let mut axes = AxisSet::default();
        for axis in self.mesh.axes() {
            let base = |device: usize| device - self.mesh.axis_index(device, axis) * self.mesh.stride(axis);
            if (0..begins.len()).any(|device| begins[device] != begins[base(device)]) {
                axes |= AxisSet::of([axis]);
            }
        }
        let number = self.begins.len() as Begin;
        self.begins.push(begins.clone());
        self.axes.push(axes);
        self.numbers.insert(begins, number);
        number
    }

    /// Where the part of each device begins; zeros for [`ANYWHERE`].
    pub(super) fn begins(&self, begin: Begin) -> &[i64] {
        self.begins.get(begin as usize).unwrap_or(&self.begins[0])
    }

    /// The axes along which devices have other beginnings.
    pub(super) fn axes(&self, begin: Begin) -> AxisSet {
        self.axes.get(begin as usize).copied().unwrap_or_default()
    }

    /// The numbers that fit parts of this size in a dimension.
    pub(super) fn fitting(&self, part: usize, size: usize) -> Vec<Begin> {
        let fits = |begins: &Vec<i64>| begins.iter().all(|&begin| begin >= 0 && begin as usize + part <= size);
        (0..).zip(&self.begins).filter(|(_, begins)| fits(begins)).map(|(number, _)| number).collect()
    }

    /// Whether the parts of the devices that differ in their place along `axes` make up a dimension, each element once.
    pub(super) fn covers(&self, begin: Begin, part: usize, size: usize, axes: AxisSet) -> bool {
        let mut groups: BTreeMap<Vec<usize>, Vec<i64>> = BTreeMap::new();
        for (device, &begin) in self.begins(begin).iter().enumerate() {
            let others = self.mesh.axes().filter(|&axis| !axes.contains(axis));
            let place = others.map(|axis| self.mesh.axis_index(device, axis)).collect();
            groups.entry(place).or_default().push(begin);
        }
        groups.into_values().all(|mut begins| {
            begins.sort_unstable();
            part * begins.len() == size && (0..).zip(&begins).all(|(index, &begin)| begin == index * part as i64)
        })
    }
}
