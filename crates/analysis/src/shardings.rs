//! The shardings that a module states: of parameters, results, and annotated values in between.
//!
//! A sharding is read in either form: tiles (`devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate`) or axes of a mesh
//! (`OpSharding.named_sharding`). Shardy's attributes are not read, since whatever writes them also writes tiles.
//!
//! Shapes are global before XLA's partitioner and local after it: [`Partitioning`] describes how the two are told
//! apart.

use serde::Serialize;

use super::axes::{AxisPart, Strides};
use super::devices::device_count;
use super::partitioning::Partitioning;
use super::size::shape_bytes;
use meshloom_hlo::device_groups::{DeviceGroups, transposed_iota};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{AxisRefProto, HloModuleProto, NamedShardingProto, OpSharding, ShapeProto};
use meshloom_hlo::sort;
use meshloom_hlo::source::{Sources, op_name};
use meshloom_hlo::text::{Layouts, print_shape, print_sharding};

/// The role of a value in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// A parameter of the program.
    Parameter,
    /// The result of the program, or one of several.
    Result,
    /// A value whose sharding an annotation states.
    Annotated,
}

/// A value with a sharding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardedValue {
    /// Its role.
    pub kind: ValueKind,
    /// The name of its instruction; for one of several results, with its position.
    pub name: String,
    /// Its shape, as the module has it.
    pub shape: String,
    /// Its sharding, as HLO text has it.
    pub sharding: String,
    /// For each dimension, the mesh axes that split it, major to minor; `None` without a mesh, and for a sharding that
    /// does not follow the mesh's axes.
    pub axes: Option<Vec<Vec<AxisPart>>>,
    /// The number of different parts into which it is split; 1 for a value that every device holds whole.
    pub parts: u64,
    /// Bytes of the whole value; `None` for a type of no known size.
    pub bytes: Option<u64>,
    /// Bytes of it on each device.
    pub device_bytes: Option<u64>,
    /// The scopes and the op of its metadata; for a parameter, mostly its path.
    pub op_name: String,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
}

/// Returns the shardings that a module states, parameters first.
pub fn shardings(module: &HloModuleProto, mesh: Option<&Mesh>) -> Vec<ShardedValue> {
    let (sources, local) = (Sources::of(module), is_partitioned(module));
    let mut values = Vec::new();
    for computation in &module.computations {
        let is_entry = computation.id == module.entry_computation_id;
        for instruction in &computation.instructions {
            let (Some(whole), Some(shape)) = (instruction.sharding.as_deref(), instruction.shape.as_ref()) else {
                continue;
            };
            let kind = match instruction.opcode.as_str() {
                "parameter" if is_entry => ValueKind::Parameter,
                _ if is_entry && instruction.id == computation.root_id => ValueKind::Result,
                _ => ValueKind::Annotated,
            };
            for (index, (shape, sharding)) in parts_of(shape, whole).into_iter().enumerate() {
                let is_tuple = whole.r#type() == Type::Tuple;
                let name = if is_tuple { format!("{} [{index}]", instruction.name) } else { instruction.name.clone() };
                let source = sources.line(instruction).map(|line| line.to_string());
                values.push(ShardedValue {
                    kind,
                    name,
                    op_name: op_name(instruction).to_owned(),
                    source,
                    ..value(shape, sharding, mesh, local)
                });
            }
        }
    }
    sort::by_key(&mut values, |value| match value.kind {
        ValueKind::Parameter => 0,
        ValueKind::Result => 1,
        ValueKind::Annotated => 2,
    });
    values
}

/// Returns for each dimension the mesh axes that split it, major to minor; `None` for a sharding that does not follow
/// the mesh's axes.
pub fn axes_of(sharding: &OpSharding, rank: usize, mesh: &Mesh) -> Option<Vec<Vec<AxisPart>>> {
    splits(sharding, rank).iter().map(|split| split.axes(mesh)).collect()
}

/// Whether every shape of a module is that of one device's part, whoever partitioned it ([`Partitioning::Done`]).
pub(super) fn is_partitioned(module: &HloModuleProto) -> bool {
    Partitioning::of(module, device_count(module, None)) == Partitioning::Done
}

/// Returns a tuple's elements with their shardings; for any other shape, the shape itself.
fn parts_of<'a>(shape: &'a ShapeProto, sharding: &'a OpSharding) -> Vec<(&'a ShapeProto, &'a OpSharding)> {
    match sharding.r#type() {
        Type::Tuple => shape.tuple_shapes.iter().zip(&sharding.tuple_shardings).collect(),
        _ => vec![(shape, sharding)],
    }
}

fn value(shape: &ShapeProto, sharding: &OpSharding, mesh: Option<&Mesh>, local: bool) -> ShardedValue {
    let splits = splits(sharding, shape.dimensions.len());
    let parts = splits.iter().fold(1u64, |product, split| product.saturating_mul(split.count.max(1)));
    let found = shape_bytes(shape);
    let (bytes, device_bytes) = match local {
        true => (found.map(|bytes| bytes.saturating_mul(parts)), found),
        // Sizes of parts are rounded up: a dimension that does not divide is padded.
        false => (found, local_bytes(shape, &splits).or(found)),
    };
    let axes = mesh.and_then(|mesh| splits.iter().map(|split| split.axes(mesh)).collect());
    ShardedValue {
        kind: ValueKind::Annotated,
        name: String::new(),
        shape: print_shape(shape, Layouts::None),
        sharding: print_sharding(sharding),
        axes,
        parts,
        bytes,
        device_bytes,
        op_name: String::new(),
        source: None,
    }
}

fn local_bytes(shape: &ShapeProto, splits: &[Split]) -> Option<u64> {
    let mut part = shape.clone();
    for (size, split) in part.dimensions.iter_mut().zip(splits) {
        *size = i64::try_from(u64::try_from(*size).ok()?.div_ceil(split.count.max(1))).ok()?;
    }
    shape_bytes(&part)
}

/// How a dimension is split.
struct Split {
    count: u64,
    how: How,
}

enum How {
    /// The devices that differ in this dimension alone.
    Strides(Option<Strides>),
    /// Axes by name.
    Named(Vec<AxisPart>),
}

impl Split {
    fn none() -> Split {
        Split { count: 1, how: How::Named(Vec::new()) }
    }

    fn axes(&self, mesh: &Mesh) -> Option<Vec<AxisPart>> {
        match &self.how {
            How::Named(axes) => Some(axes.clone()),
            How::Strides(strides) => strides.as_ref()?.axes(mesh),
        }
    }
}

fn splits(sharding: &OpSharding, rank: usize) -> Vec<Split> {
    let none = || (0..rank).map(|_| Split::none()).collect();
    if let Some(named) = &sharding.named_sharding {
        return named_splits(named, rank);
    }
    if sharding.r#type() != Type::Other {
        return none();
    }
    let tiles: Vec<u64> =
        sharding.tile_assignment_dimensions.iter().map(|&size| u64::try_from(size).unwrap_or(0).max(1)).collect();
    let split = |dim: usize| match tiles.get(dim) {
        None | Some(1) => Split::none(),
        Some(&count) => Split { count, how: How::Strides(strides_along(sharding, &tiles, dim)) },
    };
    (0..rank).map(split).collect()
}

/// Returns the strides of the devices along one dimension of a tile assignment.
fn strides_along(sharding: &OpSharding, tiles: &[u64], dim: usize) -> Option<Strides> {
    // With the dimension moved to the end, its rows are groups.
    let mut order: Vec<usize> = (0..tiles.len()).filter(|&other| other != dim).collect();
    order.push(dim);
    /// The most devices that are looked at: more than any real mesh has, and still quick.
    const MOST_DEVICES: u64 = 1 << 20;
    let count = tiles.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
    if count > MOST_DEVICES {
        return None;
    }
    let devices = devices_in_order(sharding, count)?;
    let places = transposed_iota(tiles, &order)?;
    let members: Vec<u64> = places.iter().map(|&place| devices[place as usize]).collect();
    Strides::of(&DeviceGroups::Lists(members.chunks(tiles[dim] as usize).map(<[u64]>::to_vec).collect()), count)
}

/// Returns the devices of a tile assignment, row-major.
fn devices_in_order(sharding: &OpSharding, count: u64) -> Option<Vec<u64>> {
    let devices = if sharding.iota_reshape_dims.is_empty() {
        sharding.tile_assignment_devices.iter().map(|&device| u64::try_from(device).ok()).collect::<Option<Vec<_>>>()?
    } else {
        let dims = sharding.iota_reshape_dims.iter().map(|&size| u64::try_from(size).ok());
        let permutation = sharding.iota_transpose_perm.iter().map(|&dim| usize::try_from(dim).ok());
        transposed_iota(&dims.collect::<Option<Vec<_>>>()?, &permutation.collect::<Option<Vec<_>>>()?)?
    };
    (devices.len() as u64 == count).then_some(devices)
}

fn named_splits(named: &NamedShardingProto, rank: usize) -> Vec<Split> {
    let mesh = named.mesh.as_ref();
    let part = |axis: &AxisRefProto| {
        let of_mesh = mesh?.axes.get(usize::try_from(axis.mesh_axis_index).ok()?)?;
        let size = |size: i64| u64::try_from(size).unwrap_or(0).max(1);
        let part = axis.sub_axis_info.as_ref().map(|part| (size(part.pre_size), size(part.size)));
        let count = part.map_or(size(of_mesh.size), |(_, size)| size);
        Some((AxisPart { name: of_mesh.name.clone(), part }, count))
    };
    let split = |dim: usize| {
        let axes = named.dim_shardings.get(dim).map_or(&[] as &[_], |dim| &dim.axes);
        let parts: Vec<(AxisPart, u64)> = axes.iter().filter_map(part).collect();
        let count = parts.iter().fold(1u64, |product, (_, count)| product.saturating_mul(*count));
        Split { count, how: How::Named(parts.into_iter().map(|(part, _)| part).collect()) }
    };
    (0..rank).map(split).collect()
}
