//! Tiles: which devices have which part of a value, as strides through the numbers of devices.
//!
//! A sharding lists its devices in the order of its tiles, and a collective those of its groups in the order of their
//! ranks. Both lists are decomposed into [`Stride`]s, major to minor. A mesh axis is one of them, or several where the
//! mesh is cut further, so that the order of axes within a dimension is kept.

use std::collections::BTreeSet;

use meshloom_hlo::device_groups::{DeviceGroups, transposed_iota};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{AxisRefProto, MeshProto, NamedShardingProto, OpSharding};

use crate::ir::Axes;

/// Some devices that follow each other at a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stride {
    pub(super) size: u64,
    pub(super) distance: u64,
}

/// A sharding as steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiles {
    /// For each dimension of the value, major to minor.
    pub(super) dims: Vec<Vec<Stride>>,
    /// The devices among which the program is written by hand.
    pub(super) manual: Vec<Stride>,
}

impl Tiles {
    /// The tiles of a sharding of a value of `rank` dimensions.
    pub(super) fn of(sharding: &OpSharding, rank: usize, devices: u64) -> Result<Tiles, String> {
        if let Some(named) = &sharding.named_sharding {
            return Tiles::named(named, rank);
        }
        let whole = || Tiles { dims: vec![Vec::new(); rank], manual: Vec::new() };
        match sharding.r#type() {
            Type::Replicated | Type::Unknown => Ok(whole()),
            Type::Manual => Ok(Tiles { manual: vec![Stride { size: devices, distance: 1 }], ..whole() }),
            Type::Maximal => Err("it lies on one device alone".to_owned()),
            Type::Tuple => Err("it is the sharding of a tuple".to_owned()),
            Type::Unreduced => Err("it is a sum over devices that is still to be made".to_owned()),
            Type::Other => Tiles::listed(sharding, rank, devices),
        }
    }

    fn listed(sharding: &OpSharding, rank: usize, devices: u64) -> Result<Tiles, String> {
        let sizes = sharding.tile_assignment_dimensions.iter().map(|&size| u64::try_from(size).ok());
        let sizes = sizes.collect::<Option<Vec<u64>>>().ok_or("a number of tiles is negative")?;
        let count = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let steps = match sharding.iota_reshape_dims.is_empty() {
            false => iota(sharding),
            true => list(&sharding.tile_assignment_devices),
        };
        let Some(mut left) = steps.filter(|steps| count == Some(devices) && product(steps) == devices) else {
            return Err(format!("its tiles are no regular arrangement of {devices} devices"));
        };
        let mut cut = vec![Vec::new(); sizes.len()];
        for (dim, &size) in sizes.iter().enumerate().rev() {
            cut[dim] = take_minor(&mut left, size).ok_or("its tiles do not follow the axes of a mesh")?;
        }
        let mut subgroups = cut.split_off(rank.min(cut.len())).into_iter();
        if cut.len() < rank {
            return Err(format!("it has {} dimensions, and its value {rank}", cut.len()));
        }
        let mut tiles = Tiles { dims: cut, manual: Vec::new() };
        if sharding.replicate_on_last_tile_dim {
            subgroups.next();
        }
        for kind in sharding.last_tile_dims() {
            let Some(steps) = subgroups.next() else {
                return Err("it names more subgroups than it has dimensions for".to_owned());
            };
            match kind {
                Type::Manual => tiles.manual.extend(steps),
                Type::Replicated => {}
                _ => return Err("it is a sum over devices that is still to be made".to_owned()),
            }
        }
        match subgroups.next() {
            None => Ok(tiles),
            Some(_) => Err(format!("it has more dimensions than its value, which has {rank}")),
        }
    }

    fn named(named: &NamedShardingProto, rank: usize) -> Result<Tiles, String> {
        if !named.unreduced_axes.is_empty() {
            return Err("it is a sum over devices that is still to be made".to_owned());
        }
        let mesh = named.mesh.as_ref().ok_or("it names no mesh")?;
        let in_order = mesh.device_ids.iter().enumerate().all(|(at, &device)| at as i64 == device);
        if !in_order || mesh.iota_transform.is_some() {
            return Err("its mesh has an order of devices of its own".to_owned());
        }
        let steps = |axes: &[AxisRefProto]| axes.iter().map(|axis| step(mesh, axis)).collect::<Option<Vec<Stride>>>();
        let of_dim = |dim: usize| named.dim_shardings.get(dim).map_or(Some(Vec::new()), |dim| steps(&dim.axes));
        let dims = (0..rank).map(of_dim).collect::<Option<Vec<_>>>();
        let (Some(dims), Some(manual)) = (dims, steps(&named.manual_axes)) else {
            return Err("it names an axis that its mesh does not have".to_owned());
        };
        Ok(Tiles { dims, manual })
    }

    /// All steps that split the value or are manual.
    pub(super) fn steps(&self) -> impl Iterator<Item = Stride> {
        self.dims.iter().flatten().chain(&self.manual).copied()
    }
}

/// The ranks of the groups of a collective as steps, major to minor; `None` for groups that differ in more than their
/// first device, or that leave devices out.
pub(super) fn group_steps(groups: &DeviceGroups, devices: u64) -> Option<Vec<Stride>> {
    let lists = match groups {
        DeviceGroups::One => return Some(vec![Stride { size: devices, distance: 1 }]),
        groups => groups.lists()?,
    };
    let first = lists.first()?;
    let base = *first.iter().min()?;
    let offsets: Vec<i64> = first.iter().map(|&device| i64::try_from(device - base)).collect::<Result<_, _>>().ok()?;
    let steps = list(&offsets)?;
    let is_copy = |group: &Vec<u64>| {
        let Some(&base) = group.first() else { return false };
        let is_first = steps.iter().all(|step| (base / step.distance).is_multiple_of(step.size));
        is_first && group.len() == offsets.len() && group.iter().zip(&offsets).all(|(&at, &by)| at == base + by as u64)
    };
    let members: BTreeSet<u64> = lists.iter().flatten().copied().collect();
    let is_all = members.len() as u64 == devices && members.last().is_some_and(|&last| last < devices);
    (is_all && lists.iter().all(is_copy)).then_some(steps)
}

/// The axes of a mesh that make up these steps, major to minor; `None` if the mesh is not cut there.
pub(super) fn axes(steps: &[Stride], mesh: &Mesh) -> Option<Axes> {
    let mut axes = Axes::new();
    for step in steps.iter().filter(|step| step.size > 1) {
        let end = step.distance.checked_mul(step.size)?;
        let within = |axis: &_| {
            let (size, stride) = (mesh.size(*axis) as u64, mesh.stride(*axis) as u64);
            size > 1 && stride >= step.distance && stride * size <= end
        };
        let own: Axes = mesh.axes().filter(within).collect();
        if own.iter().map(|&axis| mesh.size(axis) as u64).product::<u64>() != step.size {
            return None;
        }
        axes.extend(own);
    }
    let is_distinct = axes.iter().enumerate().all(|(at, axis)| !axes[..at].contains(axis));
    is_distinct.then_some(axes)
}

fn product(steps: &[Stride]) -> u64 {
    steps.iter().map(|step| step.size).product()
}

/// Takes the most minor steps that make up `size`, major to minor.
fn take_minor(steps: &mut Vec<Stride>, size: u64) -> Option<Vec<Stride>> {
    let (mut left, mut taken) = (size, Vec::new());
    while left > 1 {
        let step = steps.pop()?;
        if left.is_multiple_of(step.size) {
            left /= step.size;
            taken.push(step);
        } else if step.size.is_multiple_of(left) {
            taken.push(Stride { size: left, ..step });
            steps.push(Stride { size: step.size / left, distance: step.distance.checked_mul(left)? });
            left = 1;
        } else {
            return None;
        }
    }
    taken.reverse();
    Some(taken)
}

/// The steps of `<=[2,4]T(1,0)`.
fn iota(sharding: &OpSharding) -> Option<Vec<Stride>> {
    let dims = sharding.iota_reshape_dims.iter().map(|&size| u64::try_from(size).ok().filter(|&size| size > 0));
    let dims = dims.collect::<Option<Vec<u64>>>()?;
    let permutation = sharding.iota_transpose_perm.iter().map(|&dim| usize::try_from(dim).ok());
    let permutation = permutation.collect::<Option<Vec<usize>>>()?;
    // The order may be no permutation.
    transposed_iota(&dims, &permutation)?;
    let order = if permutation.is_empty() { (0..dims.len()).collect() } else { permutation };
    let stride = |dim: usize| dims[dim + 1..].iter().product();
    let steps = order.into_iter().map(|dim| Stride { size: dims[dim], distance: stride(dim) });
    Some(steps.filter(|step| step.size > 1).collect())
}

/// The steps of a list of devices that begins with device 0.
fn list(devices: &[i64]) -> Option<Vec<Stride>> {
    let devices: Vec<u64> = devices.iter().map(|&device| u64::try_from(device).ok()).collect::<Option<_>>()?;
    if devices.first() != Some(&0) {
        return None;
    }
    // Minor to major: each step repeats what the steps before it make.
    let mut steps: Vec<Stride> = Vec::new();
    let mut made = 1usize;
    while made < devices.len() {
        let stride = devices[made];
        let follows = |copy: usize| {
            let shift = stride.checked_mul(copy as u64);
            (0..made).all(|at| {
                let expected = shift.and_then(|shift| devices[at].checked_add(shift));
                expected.is_some() && devices.get(copy * made + at).copied() == expected
            })
        };
        let copies = 1 + (1..).take_while(|&copy| follows(copy)).count();
        if stride == 0 || copies == 1 {
            return None;
        }
        steps.push(Stride { size: copies as u64, distance: stride });
        made = made.checked_mul(copies)?;
    }
    steps.reverse();
    (made == devices.len()).then_some(steps)
}

fn step(mesh: &MeshProto, axis: &AxisRefProto) -> Option<Stride> {
    let index = usize::try_from(axis.mesh_axis_index).ok()?;
    let positive = |size: i64| u64::try_from(size).ok().filter(|&size| size > 0);
    let whole = positive(mesh.axes.get(index)?.size)?;
    let inner = mesh.axes[index + 1..].iter().try_fold(1u64, |product, axis| product.checked_mul(positive(axis.size)?));
    let (before, size) = match &axis.sub_axis_info {
        None => (1, whole),
        Some(part) => (positive(part.pre_size)?, positive(part.size)?),
    };
    let covered = before.checked_mul(size)?;
    let stride = whole.is_multiple_of(covered).then(|| inner?.checked_mul(whole / covered))??;
    Some(Stride { size, distance: stride })
}
