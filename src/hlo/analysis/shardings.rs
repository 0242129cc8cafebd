//! How a module says that its values are sharded, whatever dialect it says it in.
//!
//! There are three: tiles of devices (GSPMD: `{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}`), axes of a mesh (Shardy's
//! attribute `#sdy.sharding<@mesh, [{"fsdp"}, {}]>`) and named shardings, which are those axes in the proto itself. All become the axes
//! along which each dimension is split, where the mesh is known and they are axes of it.

use serde::Serialize;

use super::axes::{AxisPart, Strides};
use super::groups::{DeviceGroups, device_ids, transposed_iota};
use super::size::{array_bytes, shape_bytes};
use super::source::{Sources, op_name};
use crate::hlo::proto::op_sharding::Type;
use crate::hlo::proto::{
    AxisRefProto, HloInstructionProto, HloModuleProto, NamedShardingProto, OpSharding, PrimitiveType, ShapeProto,
};
use crate::hlo::text::{Layouts, print_shape};
use crate::sharding::Mesh;

/// What a sharded value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardedValue {
    /// An argument of the program.
    Argument,
    /// A result of the program.
    Result,
    /// Any other value.
    Value,
}

/// How one dimension is split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Into how many parts.
    pub parts: u64,
    /// Along which axes of the mesh; `None` where the mesh is not known, or the parts do not lie along its axes.
    pub axes: Option<Vec<AxisPart>>,
}

/// A value that says how it is sharded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueSharding {
    /// The name that the program has for an argument, else that of the instruction.
    pub name: String,
    /// What it is.
    pub value: ShardedValue,
    /// The shape of the module, which after partitioning is that of one device.
    pub shape: String,
    /// How each dimension is split.
    pub dimensions: Vec<Split>,
    /// Bytes on one device, the last part of a dimension as large as the others.
    pub device_bytes: Option<u64>,
    /// Bytes of the whole value.
    pub whole_bytes: Option<u64>,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
}

/// `[fsdp, _]`, as meshloom's specs print; a split along no axis that is known by its parts, `[4 parts, _]`.
impl std::fmt::Display for ValueSharding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (index, split) in self.dimensions.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            match split.axes.as_deref() {
                _ if split.parts <= 1 => f.write_str("_")?,
                Some([axis]) => write!(f, "{axis}")?,
                Some(axes) => {
                    write!(f, "({})", axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))?;
                }
                None => write!(f, "{} parts", split.parts)?,
            }
        }
        f.write_str("]")
    }
}

/// The values of a module that say how they are sharded: arguments, results, then others in the order of the module. Values of which a
/// device's program is written by hand (`manual`) say nothing of the whole, and are left out.
pub fn shardings(module: &HloModuleProto, mesh: Option<&Mesh>) -> Vec<ValueSharding> {
    let reader = Reader { mesh, sources: Sources::of(module), local: has_local_shapes(module) };
    let Some(entry) = module.computations.iter().find(|computation| computation.id == module.entry_computation_id) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for instruction in entry.instructions.iter().filter(|instruction| instruction.opcode == "parameter") {
        reader.push(&mut found, instruction, ShardedValue::Argument, instruction.sharding.as_deref());
    }
    if let Some(root) = entry.instructions.iter().find(|instruction| instruction.id == entry.root_id) {
        let sharding = root.sharding.as_deref().or(module.spmd_output_sharding.as_ref());
        reader.push(&mut found, root, ShardedValue::Result, sharding);
    }
    for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
        let seen = instruction.opcode == "parameter" || instruction.id == entry.root_id && found_root(entry, instruction);
        if !seen {
            reader.push(&mut found, instruction, ShardedValue::Value, instruction.sharding.as_deref());
        }
    }
    found
}

fn found_root(entry: &crate::hlo::proto::HloComputationProto, instruction: &HloInstructionProto) -> bool {
    entry.instructions.iter().any(|other| std::ptr::eq(other, instruction))
}

/// Whether shapes are those of one device. Before partitioning a module has annotations, or custom calls that go from whole values to
/// parts; a partitioned one communicates, or asks which device it is on.
fn has_local_shapes(module: &HloModuleProto) -> bool {
    if module.spmd_output_sharding.is_some() || !module.spmd_parameters_shardings.is_empty() {
        return true;
    }
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let is_whole = |instruction: &HloInstructionProto| {
        const TARGETS: [&str; 3] = ["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"];
        let target = instruction.custom_call_target.as_str();
        TARGETS.contains(&target) || target.starts_with("xla.sdy.")
    };
    if instructions.clone().any(is_whole) {
        return false;
    }
    instructions.any(|instruction| {
        instruction.opcode == "partition-id" || super::collectives::communication(&instruction.opcode).is_some()
    })
}

struct Reader<'a> {
    mesh: Option<&'a Mesh>,
    sources: Sources<'a>,
    local: bool,
}

impl<'a> Reader<'a> {
    /// Adds the value of an instruction, or each part of a tuple.
    fn push(
        &self,
        found: &mut Vec<ValueSharding>,
        instruction: &'a HloInstructionProto,
        value: ShardedValue,
        sharding: Option<&OpSharding>,
    ) {
        let Some(shape) = &instruction.shape else { return };
        if shape.element_type() == PrimitiveType::Tuple {
            let shardings = sharding.map(|sharding| sharding.tuple_shardings.as_slice()).unwrap_or_default();
            // Results alone: what else is a tuple carries values that say it themselves.
            if value == ShardedValue::Result {
                for (index, (shape, sharding)) in shape.tuple_shapes.iter().zip(shardings).enumerate() {
                    let name = format!("result {index}");
                    let dimensions = self.tiles(shape, sharding);
                    found.extend(dimensions.map(|it| self.value(instruction, name, value, shape, it)));
                }
            }
            return;
        }
        let attributes = instruction.frontend_attributes.as_ref().map(|attributes| &attributes.map);
        let sdy = attributes.and_then(|map| map.get("xla.sdy.sharding"));
        let dimensions = sdy
            .and_then(|text| self.sdy(text, shape.dimensions.len()))
            .or_else(|| sharding.and_then(|sharding| self.tiles(shape, sharding)));
        let name = match op_name(instruction) {
            path if value == ShardedValue::Argument && !path.is_empty() => path.to_owned(),
            _ => instruction.name.clone(),
        };
        found.extend(dimensions.map(|it| self.value(instruction, name, value, shape, it)));
    }

    fn value(
        &self,
        instruction: &'a HloInstructionProto,
        name: String,
        value: ShardedValue,
        shape: &ShapeProto,
        dimensions: Vec<Split>,
    ) -> ValueSharding {
        let resized = |part: bool| {
            let sizes = shape.dimensions.iter().zip(&dimensions).map(|(&size, split)| {
                let parts = i64::try_from(split.parts).unwrap_or(i64::MAX).max(1);
                if part { size.max(0).saturating_add(parts - 1) / parts } else { size.saturating_mul(parts) }
            });
            array_bytes(shape.element_type, &sizes.collect::<Vec<_>>())
        };
        let own = shape_bytes(shape);
        let (device_bytes, whole_bytes) = if self.local { (own, resized(false)) } else { (resized(true), own) };
        ValueSharding {
            name,
            value,
            shape: print_shape(shape, Layouts::None),
            dimensions,
            device_bytes,
            whole_bytes,
            source: self.sources.line(instruction).map(|line| line.to_string()),
        }
    }

    /// `#sdy.sharding<@mesh, [{"data", "fsdp":(1)2}, {}]>`, or the same of a list of one value.
    fn sdy(&self, text: &str, rank: usize) -> Option<Vec<Split>> {
        let list = text.split_once('[').map(|(_, list)| list)?;
        // A list of values begins with a bracket of its own.
        let list = list.trim_start().strip_prefix('<').map_or(Some(list), |value| Some(value.split_once('[')?.1))?;
        let mut splits = Vec::new();
        let mut rest = list;
        while splits.len() < rank {
            let (dimension, after) = rest.split_once('{')?.1.split_once('}')?;
            splits.push(self.sdy_dimension(dimension)?);
            rest = after;
        }
        Some(splits)
    }

    fn sdy_dimension(&self, text: &str) -> Option<Split> {
        let mut axes = Vec::new();
        let mut parts = 1u64;
        for axis in text.split(',').map(str::trim).filter(|axis| !axis.is_empty() && *axis != "?") {
            let (name, part) = axis.split_once(":(").map_or((axis, None), |(name, part)| (name, Some(part)));
            let name = name.trim_matches(['\\', '"', ' ']);
            let axis = self.mesh?.axis(name)?;
            let part = match part {
                Some(part) => {
                    let (before, size) = part.split_once(')')?;
                    Some((before.trim().parse().ok()?, size.trim().parse().ok()?))
                }
                None => None,
            };
            parts = parts.checked_mul(part.map_or(self.mesh?.size(axis) as u64, |(_, size)| size))?;
            axes.push(AxisPart { name: name.to_owned(), part });
        }
        Some(Split { parts, axes: Some(axes) })
    }

    /// Tiles of devices, or axes in the proto.
    fn tiles(&self, shape: &ShapeProto, sharding: &OpSharding) -> Option<Vec<Split>> {
        let rank = shape.dimensions.len();
        if let Some(named) = &sharding.named_sharding {
            return self.named(named, rank);
        }
        match sharding.r#type() {
            Type::Replicated => return Some(vec![Split { parts: 1, axes: Some(Vec::new()) }; rank]),
            Type::Other => {}
            _ => return None,
        }
        // A part of the devices runs a program of its own, and the tiles are those of the others.
        if sharding.last_tile_dims().any(|kind| kind == Type::Manual) {
            return None;
        }
        let sizes: Vec<u64> =
            sharding.tile_assignment_dimensions.iter().map(|&size| u64::try_from(size).ok()).collect::<Option<_>>()?;
        let devices = tiled_devices(sharding, &sizes);
        let split = |dimension: usize| {
            let parts = *sizes.get(dimension)?;
            let groups = devices.as_ref().and_then(|devices| along(devices, &sizes, dimension));
            let axes = groups.zip(self.mesh).and_then(|(groups, mesh)| {
                Strides::of(&DeviceGroups::Lists(groups), mesh.device_count() as u64)?.axes(mesh)
            });
            Some(Split { parts, axes })
        };
        (0..rank).map(split).collect()
    }

    fn named(&self, sharding: &NamedShardingProto, rank: usize) -> Option<Vec<Split>> {
        if !sharding.manual_axes.is_empty() {
            return None;
        }
        let mesh = sharding.mesh.as_ref()?;
        let axis = |axis: &AxisRefProto| {
            let found = mesh.axes.get(usize::try_from(axis.mesh_axis_index).ok()?)?;
            let part = match &axis.sub_axis_info {
                Some(part) => Some((u64::try_from(part.pre_size).ok()?, u64::try_from(part.size).ok()?)),
                None => None,
            };
            let parts = part.map_or(u64::try_from(found.size).ok()?, |(_, size)| size);
            Some((parts, AxisPart { name: found.name.clone(), part }))
        };
        // A mesh of another order of devices has axes of its own, which are not those that people named.
        let own = device_ids(mesh).is_some_and(|order| order.is_none());
        let split = |dimension: usize| {
            let references = sharding.dim_shardings.get(dimension).map(|it| it.axes.as_slice()).unwrap_or_default();
            let (parts, axes): (Vec<u64>, Vec<AxisPart>) =
                references.iter().map(axis).collect::<Option<Vec<_>>>()?.into_iter().unzip();
            let parts = parts.into_iter().try_fold(1u64, u64::checked_mul)?;
            let known = |axis: &AxisPart| self.mesh.is_some_and(|mesh| mesh.axis(&axis.name).is_some());
            Some(Split { parts, axes: (own && axes.iter().all(known)).then_some(axes) })
        };
        (0..rank).map(split).collect()
    }
}

/// More devices than a program has.
const MOST_DEVICES: u64 = 1 << 16;

/// The devices of all tiles, in order.
fn tiled_devices(sharding: &OpSharding, sizes: &[u64]) -> Option<Vec<u64>> {
    let count = sizes.iter().try_fold(1u64, |count, &size| count.checked_mul(size).filter(|&it| it > 0))?;
    if count > MOST_DEVICES {
        return None;
    }
    let devices: Vec<u64> = if sharding.iota_reshape_dims.is_empty() {
        sharding.tile_assignment_devices.iter().map(|&device| u64::try_from(device).ok()).collect::<Option<_>>()?
    } else {
        let dims: Vec<u64> =
            sharding.iota_reshape_dims.iter().map(|&size| u64::try_from(size).ok()).collect::<Option<_>>()?;
        let order: Vec<usize> = match sharding.iota_transpose_perm.is_empty() {
            true => (0..dims.len()).collect(),
            false => {
                sharding.iota_transpose_perm.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?
            }
        };
        transposed_iota(&dims, &order)?
    };
    (devices.len() as u64 == count).then_some(devices)
}

/// The devices that hold different parts of one dimension, and the same of all others: a group for each.
fn along(devices: &[u64], sizes: &[u64], dimension: usize) -> Option<Vec<Vec<u64>>> {
    let size = usize::try_from(*sizes.get(dimension)?).ok().filter(|&size| size > 0)?;
    let inner = usize::try_from(sizes[dimension + 1..].iter().product::<u64>()).ok()?;
    let group = |outer: &[u64], at: usize| (0..size).map(|step| outer[step * inner + at]).collect();
    let groups = devices.chunks_exact(size * inner).flat_map(|outer| (0..inner).map(move |at| group(outer, at)));
    Some(groups.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::proto::{FrontendAttributes, HloComputationProto, MeshProto, mesh_proto, named_sharding_proto};

    fn argument(sharding: Option<OpSharding>, sdy: Option<&str>) -> HloInstructionProto {
        let attribute = |text: &str| FrontendAttributes { map: [("xla.sdy.sharding".to_owned(), text.to_owned())].into() };
        let shape = ShapeProto {
            element_type: PrimitiveType::F32.into(),
            dimensions: vec![16, 48],
            ..ShapeProto::default()
        };
        HloInstructionProto {
            name: "x".into(),
            opcode: "parameter".into(),
            shape: Some(shape),
            sharding: sharding.map(Box::new),
            frontend_attributes: sdy.map(attribute),
            ..HloInstructionProto::default()
        }
    }

    fn of(instruction: HloInstructionProto) -> Vec<ValueSharding> {
        let entry = HloComputationProto { id: 1, root_id: 9, instructions: vec![instruction], ..Default::default() };
        let module = HloModuleProto { entry_computation_id: 1, computations: vec![entry], ..Default::default() };
        shardings(&module, Some(&Mesh::parse("data=2,fsdp=4", 8).expect("a mesh")))
    }

    fn tiled(dimensions: &[i64], reshape: &[i64], order: &[i32]) -> OpSharding {
        OpSharding {
            r#type: Type::Other.into(),
            tile_assignment_dimensions: dimensions.to_vec(),
            iota_reshape_dims: reshape.to_vec(),
            iota_transpose_perm: order.to_vec(),
            replicate_on_last_tile_dim: dimensions.len() > 2,
            ..OpSharding::default()
        }
    }

    fn check(found: &[ValueSharding], expected: &str, device_bytes: u64) {
        let [found] = found else { panic!("{found:?}") };
        assert_eq!((found.to_string().as_str(), found.device_bytes), (expected, Some(device_bytes)));
        assert_eq!(found.whole_bytes, Some(16 * 48 * 4));
    }

    #[test]
    fn every_dialect_is_read() {
        let tiles = |dimensions: &[i64], reshape: &[i64], order: &[i32]| of(argument(Some(tiled(dimensions, reshape, order)), None));
        check(&tiles(&[4, 1, 2], &[2, 4], &[1, 0]), "[fsdp, _]", 768);
        check(&tiles(&[1, 2, 4], &[8], &[]), "[_, data]", 1536);
        check(&tiles(&[8, 1], &[8], &[]), "[(data,fsdp), _]", 384);
        check(&tiles(&[2, 4], &[8], &[]), "[data, fsdp]", 384);
        check(&tiles(&[1, 2, 4], &[2, 2, 2], &[1, 0, 2]), "[_, fsdp:(1)2]", 1536);
        // Fives of 16 are four, the last one padded.
        check(&tiles(&[5, 1], &[5], &[]), "[5 parts, _]", 768);
        check(&of(argument(Some(OpSharding::default()), None)), "[_, _]", 3072);
        check(&of(argument(None, Some("#sdy.sharding<@mesh, [{\"data\", \"fsdp\"}, {}]>"))), "[(data,fsdp), _]", 384);
        check(&of(argument(None, Some(r#"#sdy.sharding_per_value<[<@mesh, [{}, {\"fsdp\":(2)2, ?}]>]>"#))), "[_, fsdp:(2)2]", 1536);
        let axis = |name: &str, size| mesh_proto::MeshAxis { name: name.into(), size };
        let along = |axis: Option<i64>| named_sharding_proto::DimensionSharding {
            axes: axis.map(|mesh_axis_index| AxisRefProto { mesh_axis_index, sub_axis_info: None }).into_iter().collect(),
            is_closed: true,
        };
        let named = NamedShardingProto {
            mesh: Some(MeshProto { axes: vec![axis("data", 2), axis("fsdp", 4)], ..MeshProto::default() }),
            dim_shardings: vec![along(Some(1)), along(None)],
            ..NamedShardingProto::default()
        };
        let sharding = OpSharding { named_sharding: Some(named), ..OpSharding::default() };
        check(&of(argument(Some(sharding), None)), "[fsdp, _]", 768);
    }

    #[test]
    fn nonsense_is_passed_over() {
        let huge = tiled(&[1 << 40, 1 << 40], &[1 << 40, 1 << 40], &[]);
        assert_eq!(of(argument(Some(huge), None))[0].dimensions[0].axes, None);
        for text in ["", "[", "[{", "#sdy.sharding<@mesh, [{\"nowhere\"}, {}]>", "[<", "[{\"fsdp\":(x)2}, {}]"] {
            assert_eq!(of(argument(None, Some(text))), [], "{text}");
        }
        assert_eq!(of(argument(Some(tiled(&[4], &[4], &[])), None)), []);
        assert_eq!(of(argument(Some(tiled(&[-4, 1], &[4], &[])), None)), []);
    }
}
