//! The axes of the mesh along which a value is one device's part, inside of manual regions.
//!
//! A region of `shard_map` may be manual along some axes only: along the others its shapes are still whole, and XLA has
//! yet to partition it. Shardy's borders name the axes (`xla.sdy.manual_axes`); a tiled sharding states how many
//! devices are manual (`last_tile_dims={manual}`), and not which axes those are.

use super::axes::named_sdy_meshes;
use super::index::attribute;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, NamedShardingProto, OpSharding};

/// A set of axes, one bit each: those along which a value is one device's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ManualAxes(u64);

impl ManualAxes {
    /// The value is whole.
    pub(super) const NONE: ManualAxes = ManualAxes(0);
    /// The value is one device's part.
    pub(super) const ALL: ManualAxes = ManualAxes(u64::MAX);
    /// Some axes, and it is not known which.
    const SOME: ManualAxes = ManualAxes(1 << 63);

    /// Returns the set of one axis. More axes than any mesh has are one.
    fn axis(at: usize) -> ManualAxes {
        ManualAxes(1 << at.min(62))
    }

    pub(super) fn join(self, other: ManualAxes) -> ManualAxes {
        ManualAxes(self.0 | other.0)
    }

    fn has(self, other: ManualAxes) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The meshes that a module declares, with the bits of their axes. Axes of one device do not count.
pub(super) struct MeshAxes {
    names: Vec<String>,
    meshes: Vec<(String, ManualAxes)>,
}

impl MeshAxes {
    pub(super) fn of(module: &HloModuleProto) -> MeshAxes {
        let attributes = module.frontend_attributes.iter().flat_map(|attributes| attributes.map.get("xla.sdy.meshes"));
        let mut found = MeshAxes { names: Vec::new(), meshes: Vec::new() };
        for mesh in attributes.flat_map(|text| named_sdy_meshes(text)) {
            let mut axes = ManualAxes::NONE;
            for (name, _) in mesh.axes.into_iter().filter(|(_, size)| *size > 1) {
                let at = found.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    found.names.push(name);
                    found.names.len() - 1
                });
                axes = axes.join(ManualAxes::axis(at));
            }
            found.meshes.push((mesh.name, axes));
        }
        found
    }

    /// Returns the axes along which the results of a border are one device's part, from those of its operands.
    pub(super) fn entering_manual(&self, border: &HloInstructionProto, around: ManualAxes) -> ManualAxes {
        let Some((added, mesh)) = self.stated(border) else {
            return self.of_value(border).unwrap_or(ManualAxes::ALL);
        };
        let axes = around.join(added);
        if axes.has(mesh) { ManualAxes::ALL } else { axes }
    }

    /// Returns the same for the border at the end of a region.
    pub(super) fn out_of_manual(&self, border: &HloInstructionProto, inside: ManualAxes) -> ManualAxes {
        match self.stated(border) {
            Some((removed, mesh)) => ManualAxes(inside.0 & mesh.0 & !removed.0),
            None => self.of_value(border).filter(|&axes| axes != ManualAxes::ALL).unwrap_or(ManualAxes::NONE),
        }
    }

    /// Returns the axes along which a value is manual by its own sharding; `None` if it states nothing of the kind.
    pub(super) fn of_value(&self, instruction: &HloInstructionProto) -> Option<ManualAxes> {
        let sharding = instruction.sharding.as_deref()?;
        let each = std::iter::once(sharding).chain(&sharding.tuple_shardings);
        each.filter_map(|sharding| self.of_sharding(sharding)).reduce(ManualAxes::join)
    }

    fn of_sharding(&self, sharding: &OpSharding) -> Option<ManualAxes> {
        if sharding.r#type() == Type::Manual {
            return Some(ManualAxes::ALL);
        }
        if let Some(named) = sharding.named_sharding.as_ref().filter(|named| !named.manual_axes.is_empty()) {
            return Some(self.of_named(named));
        }
        let kinds = &sharding.last_tile_dims;
        let dims = &sharding.tile_assignment_dimensions;
        if !kinds.contains(&Type::Manual.into()) {
            return None;
        }
        let of_kinds = dims.len().saturating_sub(kinds.len());
        let is_whole = dims[..of_kinds].iter().all(|&size| size == 1)
            && dims[of_kinds..].iter().zip(kinds).all(|(&size, &kind)| size == 1 || kind == i32::from(Type::Manual));
        Some(if is_whole { ManualAxes::ALL } else { ManualAxes::SOME })
    }

    fn of_named(&self, named: &NamedShardingProto) -> ManualAxes {
        let Some(mesh) = &named.mesh else { return ManualAxes::ALL };
        let is_manual =
            |at: usize| named.manual_axes.iter().any(|axis| usize::try_from(axis.mesh_axis_index) == Ok(at));
        let all = || mesh.axes.iter().enumerate();
        if all().all(|(at, axis)| axis.size <= 1 || is_manual(at)) {
            return ManualAxes::ALL;
        }
        let known = all().filter(|(at, _)| is_manual(*at)).filter_map(|(_, axis)| self.bit(&axis.name));
        known.fold(ManualAxes::SOME, ManualAxes::join)
    }

    /// Returns the names of the axes along which a value is still whole; empty if they are not known.
    pub(super) fn left(&self, axes: ManualAxes) -> Vec<String> {
        let known = ManualAxes(axes.0 & !ManualAxes::SOME.0);
        let mesh = self.meshes.iter().map(|(_, mesh)| *mesh).find(|mesh| known != ManualAxes::NONE && mesh.has(known));
        let is_left = |at: usize| mesh.is_some_and(|mesh| mesh.0 & !known.0 & ManualAxes::axis(at).0 != 0);
        self.names.iter().enumerate().filter(|(at, _)| is_left(*at)).map(|(_, name)| name.clone()).collect()
    }

    fn bit(&self, name: &str) -> Option<ManualAxes> {
        self.names.iter().position(|known| known == name).map(ManualAxes::axis)
    }

    /// Returns the axes that a border of Shardy's names, and those of its mesh; `None` if it names none, or if the
    /// module does not declare the mesh.
    fn stated(&self, border: &HloInstructionProto) -> Option<(ManualAxes, ManualAxes)> {
        let text = attribute(border, "xla.sdy.manual_axes")?;
        // The text may be a string within a string.
        let named = || text.split('"').skip(1).step_by(2).map(|name| name.trim_end_matches('\\'));
        let shardings = ["xla.sdy.in_shardings", "xla.sdy.out_shardings"].map(|key| attribute(border, key));
        let says = |mesh: &str| {
            let is_here = |text: &str| [',', '>'].iter().any(|end| text.contains(&format!("@{mesh}{end}")));
            shardings.iter().flatten().any(|text| is_here(text))
        };
        let axes = named().filter_map(|name| self.bit(name)).fold(ManualAxes::NONE, ManualAxes::join);
        let holding = || self.meshes.iter().filter(|(_, mesh)| mesh.has(axes));
        let (_, mesh) = holding().find(|(name, _)| says(name)).or_else(|| holding().next())?;
        Some((axes, *mesh))
    }
}
