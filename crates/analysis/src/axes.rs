//! Device groups as axes of a mesh, and the mesh that a module names ([`mesh_of`]).
//!
//! HLO numbers devices; people name the directions in which devices lie. Over the mesh `data=2,fsdp=4`, the groups
//! `{{0,1,2,3},{4,5,6,7}}` lie along `fsdp`, and `{{0,2},{1,3},{4,6},{5,7}}` along its major half, `fsdp:(1)2`: the
//! part of size 2 with 1 step before it, in Shardy's notation.
//!
//! Groups in any form are decomposed into strides ([`Strides`]) once. For the iota form, that does not look at single
//! devices.

use std::fmt;

use serde::{Serialize, Serializer};

use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::mesh::{Mesh, MeshError};
use meshloom_hlo::proto::{HloModuleProto, MeshProto, OpSharding};

/// An axis of a mesh, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisPart {
    /// The axis.
    pub name: String,
    /// For a part: the product of the sizes of the parts of the axis before it (more major), and its own size.
    pub part: Option<(u64, u64)>,
}

impl AxisPart {
    /// Reads `fsdp`, or `fsdp:(1)2` for a part of it.
    ///
    /// # Errors
    /// The mesh has no such axis, or the axis no such part.
    pub fn parse(text: &str, mesh: &Mesh) -> Result<AxisPart, MeshError> {
        let part = AxisPart::named(text);
        // A mesh whose axes were split has their parts as axes of their own.
        let sizes = mesh.axes().filter(|&axis| mesh.parent_name(axis) == part.name).map(|axis| mesh.size(axis) as u64);
        let (count, size) = sizes.fold((0, 1), |(count, product), size| (count + 1, product * size));
        let divides = |(before, own): (u64, u64)| {
            let product = before.checked_mul(own).filter(|&product| product > 0);
            own > 1 && product.is_some_and(|product| size.is_multiple_of(product))
        };
        if count == 0 || !part.part.is_none_or(divides) {
            mesh.require_axis(text)?;
        }
        Ok(part)
    }

    /// Reads the name of an axis, which may be that of a part.
    fn named(text: &str) -> AxisPart {
        let part = text.split_once(":(").and_then(|(name, rest)| {
            let (before, size) = rest.split_once(')')?;
            Some((name, (before.parse().ok().filter(|&before: &u64| before > 0)?, size.parse().ok()?)))
        });
        match part {
            Some((name, part)) => AxisPart { name: name.to_owned(), part: Some(part) },
            None => AxisPart { name: text.to_owned(), part: None },
        }
    }

    /// Returns the part of the whole axis, if an axis of a mesh with split axes is named as a part: `tensor:(2)4`, and
    /// `tensor:(2)4:(2)2` of that.
    fn of_whole_axis(&self) -> AxisPart {
        let named = AxisPart::named(&self.name);
        let part = match (named.part, self.part) {
            (Some((before, _)), Some((within, size))) => Some((before.saturating_mul(within), size)),
            (outer, inner) => inner.or(outer),
        };
        AxisPart { name: named.name, part }
    }

    pub(super) fn whole_name(&self) -> String {
        self.of_whole_axis().name
    }

    /// Whether two parts of an axis have steps in common.
    pub fn overlaps(&self, other: &AxisPart) -> bool {
        let (own, other) = (self.of_whole_axis(), other.of_whole_axis());
        let steps = |(before, size): (u64, u64)| (before, before.saturating_mul(size));
        own.name == other.name
            && match (own.part.map(steps), other.part.map(steps)) {
                (Some(own), Some(other)) => own.0.max(other.0) < own.1.min(other.1),
                _ => true,
            }
    }

    /// Returns the place of a device along this axis; `None` for a device that the mesh does not have.
    pub fn place(&self, device: u64, mesh: &Mesh) -> Option<u64> {
        let device = usize::try_from(device).ok().filter(|&device| device < mesh.device_count())?;
        let along = mesh.axes().filter(|&axis| mesh.parent_name(axis) == self.name);
        let (place, size) = along.fold((0, 1), |(place, size), axis| {
            (place * mesh.size(axis) as u64 + mesh.axis_index(device, axis) as u64, size * mesh.size(axis) as u64)
        });
        Some(match self.part {
            None => place,
            Some((before, own)) => place / (size / before.saturating_mul(own)).max(1) % own.max(1),
        })
    }
}

impl fmt::Display for AxisPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            None => f.write_str(&self.name),
            Some((before, size)) => write!(f, "{}:({before}){size}", self.name),
        }
    }
}

impl Serialize for AxisPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Groups that are copies of one another: a group holds the devices `first + i * stride` for each `i` below a size,
/// along each of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strides(Vec<(u64, u64)>);

impl Strides {
    /// Returns the strides of groups, smallest first; `None` if the groups are not copies of one another, or not on
    /// such a grid.
    pub fn of(groups: &DeviceGroups, device_count: u64) -> Option<Strides> {
        match groups {
            DeviceGroups::One => Some(Strides(vec![(device_count, 1)])),
            DeviceGroups::Lists(lists) => Strides::of_lists(lists),
            DeviceGroups::Iota { group_size, dims, permutation } => Strides::of_iota(*group_size, dims, permutation),
            DeviceGroups::Unreadable => None,
        }
    }

    fn of_lists(lists: &[Vec<u64>]) -> Option<Strides> {
        let sorted = |list: &Vec<u64>| {
            let mut list = list.clone();
            list.sort_unstable();
            list
        };
        let first = sorted(lists.first()?);
        let base = *first.first()?;
        let offsets: Vec<u64> = first.iter().map(|&device| device - base).collect();
        let strides = Strides::of_offsets(&offsets)?;
        let is_copy = |list: &Vec<u64>| {
            let list = sorted(list);
            let Some(&base) = list.first() else { return false };
            let starts = strides.0.iter().all(|&(size, stride)| (base / stride).is_multiple_of(size));
            starts && list.len() == offsets.len() && list.iter().zip(&offsets).all(|(&at, &offset)| at - base == offset)
        };
        lists.iter().all(is_copy).then_some(strides)
    }

    /// Sorted offsets from the first device: each stride is the first offset that those before do not make.
    fn of_offsets(offsets: &[u64]) -> Option<Strides> {
        let mut strides = Vec::new();
        let mut made = 1usize;
        while made < offsets.len() {
            // A device that is named twice is 0 apart from itself.
            let stride = offsets.get(made).copied().filter(|&stride| stride > 0)?;
            // This many copies of the offsets so far follow at this distance.
            let follows = |copy: usize| {
                let shift = stride.checked_mul(copy as u64);
                (0..made).all(|at| {
                    let expected = shift.and_then(|shift| offsets[at].checked_add(shift));
                    expected.is_some() && offsets.get(copy * made + at).copied() == expected
                })
            };
            let copies = 1 + (1..).take_while(|&copy| follows(copy)).count();
            if copies == 1 {
                return None;
            }
            strides.push((copies as u64, stride));
            made *= copies;
        }
        (made == offsets.len()).then_some(Strides(strides))
    }

    /// Returns the strides of iota groups. A group is a row of the transposed array: the dimensions that make it up.
    fn of_iota(group_size: u64, dims: &[u64], permutation: &[usize]) -> Option<Strides> {
        let stride =
            |dim: usize| dims.get(dim + 1..)?.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let identity: Vec<usize>;
        let order = match permutation {
            [] => {
                identity = (0..dims.len()).collect();
                &identity
            }
            permutation => permutation,
        };
        let (mut left, mut strides) = (group_size, Vec::new());
        for &dim in order.iter().rev() {
            if left == 1 {
                break;
            }
            let size = *dims.get(dim)?;
            let taken = if size != 0 && left.is_multiple_of(size) { size } else { left };
            if taken == 0 || !size.is_multiple_of(taken) {
                return None;
            }
            strides.push((taken, stride(dim)?));
            left /= taken;
        }
        strides.retain(|&(size, _)| size > 1);
        strides.sort_unstable_by_key(|&(_, stride)| stride);
        // Two strides are one if the second begins where the first ends, as the parts of an axis are the axis.
        strides.dedup_by(|next, last| {
            let is_one = last.0.checked_mul(last.1) == Some(next.1);
            if is_one {
                last.0 = last.0.saturating_mul(next.0);
            }
            is_one
        });
        (left == 1).then_some(Strides(strides))
    }

    /// Returns the axes, or parts of axes, that the strides follow; `None` if they do not follow those of this mesh.
    pub fn axes(&self, mesh: &Mesh) -> Option<Vec<AxisPart>> {
        let mut left = self.0.iter().try_fold(1u64, |product, &(size, _)| product.checked_mul(size))?;
        let mut parts = Vec::new();
        let mut below = mesh.device_count() as u64;
        for axis in mesh.axes() {
            // The axis takes device numbers apart between these two strides.
            let size = mesh.size(axis) as u64;
            let (above, name) = (below, mesh.name(axis));
            below /= size;
            // The parts within this axis, major first.
            for &(count, stride) in self.0.iter().rev() {
                let (low, high) = (stride.max(below), stride.checked_mul(count)?.min(above));
                if low >= high {
                    continue;
                }
                let divides = high.is_multiple_of(low) && above.is_multiple_of(high) && low.is_multiple_of(below);
                if !divides {
                    return None;
                }
                left /= high / low;
                let part = (high != above || low != below).then_some((above / high, high / low));
                parts.push(AxisPart { name: name.to_owned(), part });
            }
        }
        (left == 1).then_some(parts)
    }
}

/// `4 apart by 2`, for each stride.
impl fmt::Display for Strides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (size, stride)) in self.0.iter().enumerate() {
            write!(f, "{}{size} apart by {stride}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// The axes along which pairs of source and target move values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairAxes {
    /// The axes, major to minor: those along which any source lies elsewhere than its target.
    pub axes: Vec<AxisPart>,
    /// The distance along a single axis, cyclically and the short way, if it is the same for all pairs: 1 to the next
    /// device, -1 to the one before.
    pub shift: Option<i64>,
}

/// Returns the axes along which pairs of source and target lie; `None` if a device is not of this mesh.
pub fn pair_axes(pairs: &[(u64, u64)], mesh: &Mesh) -> Option<PairAxes> {
    let count = mesh.device_count() as u64;
    if pairs.iter().any(|&(source, target)| source >= count || target >= count) {
        return None;
    }
    let moving = || pairs.iter().filter(|(source, target)| source != target);
    let step = |&(source, target): &(u64, u64), axis| {
        let size = mesh.size(axis);
        (mesh.axis_index(target as usize, axis) + size - mesh.axis_index(source as usize, axis)) % size
    };
    let crossed: Vec<_> = mesh.axes().filter(|&axis| moving().any(|pair| step(pair, axis) != 0)).collect();
    let shift = match crossed.as_slice() {
        &[axis] => {
            let mut steps = moving().map(|pair| step(pair, axis));
            let first = steps.next()?;
            steps.all(|step| step == first).then(|| {
                let (first, size) = (first as i64, mesh.size(axis) as i64);
                if 2 * first > size { first - size } else { first }
            })
        }
        _ => None,
    };
    let axes = crossed.iter().map(|&axis| AxisPart { name: mesh.name(axis).to_owned(), part: None }).collect();
    Some(PairAxes { axes, shift })
}

/// Returns the mesh that the module itself names, in Shardy's attributes or a named sharding. It is `None` if the
/// module names no mesh, if it names several that differ, or if the mesh's devices are not in their plain order.
pub fn mesh_of(module: &HloModuleProto) -> Option<Mesh> {
    let attributes = module.frontend_attributes.iter().flat_map(|attributes| attributes.map.get("xla.sdy.meshes"));
    let mut found: Vec<Mesh> = attributes.flat_map(|text| sdy_meshes(text)).collect();
    let shardings = module.computations.iter().flat_map(|computation| &computation.instructions).filter_map(|it| {
        let groups = it.mesh_axes_replica_group_list.as_ref().and_then(|list| list.mesh.as_ref());
        groups.or_else(|| it.sharding.as_deref().and_then(named_mesh))
    });
    for mesh in shardings.filter_map(plain_mesh) {
        if !found.contains(&mesh) {
            found.push(mesh);
        }
    }
    // A mesh of one device, or of none, means that a value lies on a single device. A mesh whose axes are called axis_0
    // and so on is XLA's own, for a single collective.
    let is_named = |mesh: &Mesh| {
        mesh.axis_names()
            .any(|name| !name.strip_prefix("axis_").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())))
    };
    found.retain(|mesh| mesh.device_count() > 1 && is_named(mesh));
    found.dedup();
    match found.as_slice() {
        [mesh] => Some(mesh.clone()),
        _ => None,
    }
}

fn named_mesh(sharding: &OpSharding) -> Option<&MeshProto> {
    let of = |sharding: &'_ OpSharding| sharding.named_sharding.as_ref().is_some_and(|named| named.mesh.is_some());
    let named = std::iter::once(sharding).chain(&sharding.tuple_shardings).find(|sharding| of(sharding))?;
    named.named_sharding.as_ref()?.mesh.as_ref()
}

fn plain_mesh(mesh: &MeshProto) -> Option<Mesh> {
    let in_order = mesh.device_ids.iter().enumerate().all(|(at, &device)| at as i64 == device);
    if !in_order || mesh.iota_transform.is_some() {
        return None;
    }
    let axes = mesh.axes.iter().map(|axis| Some((axis.name.as_str(), usize::try_from(axis.size).ok()?)));
    Mesh::new(axes.collect::<Option<Vec<_>>>()?).ok()
}

/// The meshes of `{mesh = #sdy.mesh<["data"=2, "fsdp"=4]>}`; one with a device order of its own is left out.
fn sdy_meshes(text: &str) -> Vec<Mesh> {
    let plain = named_sdy_meshes(text).into_iter().filter(|mesh| !mesh.has_order);
    plain.filter_map(|mesh| Mesh::new(mesh.axes.iter().map(|(name, size)| (name.as_str(), *size))).ok()).collect()
}

/// A mesh that Shardy's attribute of a module declares.
pub(super) struct SdyMesh {
    pub(super) name: String,
    pub(super) axes: Vec<(String, usize)>,
    /// Whether its devices are in an order of their own.
    has_order: bool,
}

/// The meshes of `{mesh = #sdy.mesh<["data"=2, "fsdp"=4]>, other = ...}`.
pub(super) fn named_sdy_meshes(text: &str) -> Vec<SdyMesh> {
    // The text may be a string within a string.
    let plain = |word: &str| word.trim().trim_matches(['\\', '"']).to_owned();
    let axis = |part: &str| {
        let (name, size) = part.split_once('=')?;
        Some((plain(name), size.trim().parse::<usize>().ok()?))
    };
    let mut meshes = Vec::new();
    for (before, definition) in text.split("sdy.mesh<").zip(text.split("sdy.mesh<").skip(1)) {
        let Some((axes, rest)) = definition.split_once(']') else { continue };
        let parts = axes.trim_start().trim_start_matches('[').split(',').filter(|part| !part.trim().is_empty());
        let Some(axes) = parts.map(axis).collect::<Option<Vec<_>>>() else { continue };
        let name = before.trim_end_matches(['#', ' ', '=']).rsplit([' ', ',', '{']).next().map(plain);
        let has_order = rest.trim_start().starts_with(',');
        meshes.push(SdyMesh { name: name.unwrap_or_default(), axes, has_order });
    }
    meshes
}
