//! The shardings that a module states, as specs over one mesh.
//!
//! The mesh is the one that the module names, cut where a sharding or a group splits a part of an axis. A module that
//! names none, or several, gets an axis `devices`, cut in the same way: so the axes are found again from tiles.

use std::cell::RefCell;
use std::collections::BTreeSet;

use meshloom_analysis::{Devices, device_count, mesh_of};
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, OpSharding};
use meshloom_hlo::stablehlo::{ShardyText, ShardyValue};
use prost::Message;
use rustc_hash::FxHashMap;

use super::ImportError;
use super::tiles::{Stride, Tiles, axes, group_steps};
use crate::ir::{Axes, Spec, TensorType};
use crate::ops::Group;

/// The frontend attributes in which Shardy's exporter states the shardings of values.
const SHARDING: &str = "xla.sdy.sharding";
const ENTERS: &str = "xla.sdy.in_shardings";
const LEAVES: &str = "xla.sdy.out_shardings";
/// The target of the custom calls by which values enter a manual region of Shardy's.
const ENTERS_SHARDY: &str = "xla.sdy.GlobalToLocalShape";
const MANUAL_AXES: &str = "xla.sdy.manual_axes";

/// A sharding that a module states.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    pub(super) spec: Spec,
    /// For each dimension, whether it may be split further.
    pub(super) open: Vec<bool>,
    /// The axes along which the program is written by hand.
    pub(super) manual: Axes,
}

/// Tiles, or the reason why there are none, by the bytes of a sharding and the rank.
type KnownTiles = FxHashMap<(Vec<u8>, usize), Result<Tiles, String>>;

/// The mesh of a module, and how its shardings are read.
pub(super) struct Constraints {
    pub(super) mesh: Option<Mesh>,
    devices: u64,
    shardy: ShardyText,
    /// The shardings seen before.
    seen: RefCell<KnownTiles>,
}

impl Constraints {
    pub(super) fn of(module: &HloModuleProto) -> Result<Constraints, ImportError> {
        let Devices { replicas, mut partitions } = device_count(module, None);
        if replicas > 1 {
            return Err(ImportError::Replicas { replicas });
        }
        // A program all of whose work is in manual regions need not split its ports.
        if partitions == 1 && instructions(module).any(|it| it.custom_call_target == ENTERS_SHARDY) {
            partitions = mesh_of(module).map_or(1, |mesh| mesh.device_count() as u64);
        }
        let shardy = ShardyText::of(module).map_err(|error| ImportError::Meshes { why: error.to_string() })?;
        let mut constraints =
            Constraints { mesh: None, devices: partitions.max(1), shardy, seen: RefCell::new(FxHashMap::default()) };
        if partitions > 1 {
            let named = mesh_of(module).filter(|mesh| mesh.device_count() as u64 == partitions);
            let whole = || Mesh::new([("devices", usize::try_from(partitions).ok()?)]).ok();
            let Some(mesh) = named.or_else(whole) else { return Err(ImportError::TooManyDevices { partitions }) };
            constraints.mesh = Some(constraints.cut(module, &mesh));
        }
        Ok(constraints)
    }

    /// The shardings of a module that is the program of one device of a mesh.
    pub(super) fn over(module: &HloModuleProto, mesh: &Mesh) -> Result<Constraints, ImportError> {
        let shardy = ShardyText::of(module).map_err(|error| ImportError::Meshes { why: error.to_string() })?;
        let devices = mesh.device_count() as u64;
        Ok(Constraints { mesh: Some(mesh.clone()), devices, shardy, seen: RefCell::new(FxHashMap::default()) })
    }

    /// The mesh with axes cut where the module splits a part of one.
    fn cut(&self, module: &HloModuleProto, mesh: &Mesh) -> Mesh {
        let mut borders = BTreeSet::new();
        let mut add = |step: Stride| borders.extend([step.distance, step.distance.saturating_mul(step.size)]);
        for instruction in instructions(module) {
            // A sharding that cannot be read is reported where it is used.
            for sharding in own_shardings(instruction) {
                let rank = instruction.shape.as_ref().map_or(0, |shape| shape.dimensions.len());
                let rank = if sharding.r#type() == Type::Other { tile_rank(sharding) } else { rank };
                self.tiles(sharding, rank)
                    .into_iter()
                    .flat_map(|tiles| tiles.steps().collect::<Vec<_>>())
                    .for_each(&mut add);
            }
            for value in [ENTERS, LEAVES].iter().filter_map(|key| self.shardy_values(instruction, key).ok()?).flatten()
            {
                for (sharding, rank) in [(&value.tiles, value.open.len()), (&value.manual, 1)] {
                    self.tiles(sharding, rank)
                        .into_iter()
                        .flat_map(|tiles| tiles.steps().collect::<Vec<_>>())
                        .for_each(&mut add);
                }
            }
            if CollectiveKind::named(&instruction.opcode).is_some() {
                group_steps(&DeviceGroups::of(instruction), self.devices).into_iter().flatten().for_each(&mut add);
            }
        }
        let sizes: Vec<Vec<usize>> = mesh
            .axes()
            .map(|axis| {
                let stride = mesh.stride(axis) as u64;
                let end = stride * mesh.size(axis) as u64;
                let (mut below, mut sizes) = (stride, Vec::new());
                // A border that does not divide what is above it would not be one of a mesh.
                for &border in borders.iter().filter(|&&border| stride < border && border < end) {
                    if border.is_multiple_of(below) && end.is_multiple_of(border) {
                        sizes.insert(0, (border / below) as usize);
                        below = border;
                    }
                }
                sizes.insert(0, (end / below) as usize);
                sizes
            })
            .collect();
        mesh.cut_into(&sizes).map_or_else(|| mesh.clone(), |(cut, _)| cut)
    }

    fn tiles(&self, sharding: &OpSharding, rank: usize) -> Result<Tiles, String> {
        let key = (sharding.encode_to_vec(), rank);
        if let Some(known) = self.seen.borrow().get(&key) {
            return known.clone();
        }
        let tiles = Tiles::of(sharding, rank, self.devices);
        self.seen.borrow_mut().insert(key, tiles.clone());
        tiles
    }

    fn shardy_values(&self, instruction: &HloInstructionProto, key: &str) -> Result<Option<Vec<ShardyValue>>, String> {
        let attributes = instruction.frontend_attributes.as_ref().map(|attributes| &attributes.map);
        let Some(text) = attributes.and_then(|map| map.get(key)) else { return Ok(None) };
        let manual = attributes.and_then(|map| map.get(MANUAL_AXES));
        self.shardy.values(text, manual.map(String::as_str)).map(Some).map_err(|error| error.to_string())
    }

    /// The sharding of each array of an instruction; `None` where the module leaves it open.
    pub(super) fn stated(
        &self,
        instruction: &HloInstructionProto,
        types: &[TensorType],
    ) -> Result<Vec<Option<Stated>>, String> {
        let Some(mesh) = &self.mesh else { return Ok(vec![None; types.len()]) };
        let Some(sharding) = instruction.sharding.as_deref() else {
            // Shardy's text stands alone where a result of the program is stated.
            let alone = self.shardy_values(instruction, SHARDING)?.filter(|values| values.len() == types.len());
            let read =
                |value: ShardyValue| read(&self.tiles(&value.tiles, value.open.len())?, value.open, mesh).map(Some);
            return alone.map_or(Ok(vec![None; types.len()]), |values| values.into_iter().map(read).collect());
        };
        let own: Vec<&OpSharding> = match sharding.r#type() {
            Type::Tuple => sharding.tuple_shardings.iter().collect(),
            _ => vec![sharding; types.len()],
        };
        if own.len() != types.len() {
            return Err(format!("it has {} shardings for {} arrays", own.len(), types.len()));
        }
        // Shardy's own text adds the open dimensions. A parameter has none.
        let shardy = match instruction.opcode.as_str() {
            "parameter" => None,
            _ => self.shardy_values(instruction, SHARDING)?,
        };
        let open = |index: usize| shardy.as_ref().and_then(|values| Some(values.get(index)?.open.clone()));
        let stated = |(index, (sharding, ty)): (usize, (&OpSharding, &TensorType))| {
            if sharding.r#type() == Type::Unknown {
                return Ok(None);
            }
            read(&self.tiles(sharding, ty.rank())?, open(index).unwrap_or_default(), mesh).map(Some)
        };
        own.into_iter().zip(types).enumerate().map(stated).collect()
    }

    /// The shardings with which the values of an instruction enter a manual region or leave it, in Shardy's form.
    pub(super) fn at_border(&self, instruction: &HloInstructionProto) -> Result<Vec<Stated>, String> {
        let Some(mesh) = &self.mesh else { return Err("the module has one device".to_owned()) };
        let mut values = None;
        for key in [ENTERS, LEAVES] {
            values = values.or(self.shardy_values(instruction, key)?);
        }
        let values = values.ok_or("it states no shardings of its values")?;
        let stated = |value: ShardyValue| {
            let tiles = self.tiles(&value.tiles, value.open.len())?;
            let manual = self.tiles(&value.manual, 1)?.dims.concat();
            read(&Tiles { manual, ..tiles }, value.open, mesh)
        };
        values.into_iter().map(stated).collect()
    }

    /// The devices that communicate in a collective between partitions; `None` if they are not those along axes.
    pub(super) fn group(&self, instruction: &HloInstructionProto) -> Option<Group> {
        let mesh = self.mesh.as_ref()?;
        let axes = axes(&group_steps(&DeviceGroups::of(instruction), self.devices)?, mesh)?;
        Some(Group::new(mesh, &axes))
    }

    /// The fewest axes along which a permute sends, and its pairs of ranks; `None` if a pair names no device.
    pub(super) fn permutation(&self, instruction: &HloInstructionProto) -> Option<(Group, Vec<(u32, u32)>)> {
        let mesh = self.mesh.as_ref()?;
        let device = |id: i64| usize::try_from(id).ok().filter(|&id| (id as u64) < self.devices);
        let pairs = instruction.source_target_pairs.iter().map(|it| Some((device(it.source)?, device(it.target)?)));
        let pairs = pairs.collect::<Option<Vec<(usize, usize)>>>()?;
        let differs =
            |axis: &_| pairs.iter().any(|&(from, to)| mesh.axis_index(from, *axis) != mesh.axis_index(to, *axis));
        let rank = |axes: &Axes, id: usize| {
            axes.iter().fold(0, |rank, &axis| rank * mesh.size(axis) + mesh.axis_index(id, axis)) as u32
        };
        let all: Axes = mesh.axes().collect();
        for axes in [all.iter().copied().filter(differs).collect(), all.clone()] {
            let others: Axes = all.iter().copied().filter(|axis| !axes.contains(axis)).collect();
            let mut of_group: FxHashMap<u32, BTreeSet<(u32, u32)>> = FxHashMap::default();
            for &(from, to) in &pairs {
                of_group.entry(rank(&others, from)).or_default().insert((rank(&axes, from), rank(&axes, to)));
            }
            let group = Group::new(mesh, &axes);
            let mut sets = of_group.values();
            let first = sets.next().cloned().unwrap_or_default();
            // Every group must send alike.
            let is_alike = of_group.is_empty() || of_group.len() * group.size == mesh.device_count();
            if is_alike && sets.all(|set| *set == first) {
                return Some((group, first.into_iter().collect()));
            }
        }
        None
    }
}

/// The spec that a sharding is; `None` where it leaves the value open.
pub(crate) fn stated_spec(sharding: &OpSharding, ty: &TensorType, mesh: &Mesh) -> Result<Option<Spec>, String> {
    if sharding.r#type() == Type::Unknown {
        return Ok(None);
    }
    let tiles = Tiles::of(sharding, ty.rank(), mesh.device_count() as u64)?;
    read(&tiles, Vec::new(), mesh).map(|stated| Some(stated.spec))
}

fn read(tiles: &Tiles, open: Vec<bool>, mesh: &Mesh) -> Result<Stated, String> {
    let along = |steps: &Vec<Stride>| {
        axes(steps, mesh).ok_or_else(|| format!("its tiles do not follow the axes of the mesh {mesh}"))
    };
    let dims = tiles.dims.iter().map(along).collect::<Result<Vec<Axes>, String>>()?;
    Ok(Stated { spec: Spec::new(dims), open, manual: along(&tiles.manual)? })
}

fn instructions(module: &HloModuleProto) -> impl Iterator<Item = &HloInstructionProto> {
    module.computations.iter().flat_map(|computation| &computation.instructions)
}

/// The shardings of an instruction's arrays.
fn own_shardings(instruction: &HloInstructionProto) -> impl Iterator<Item = &OpSharding> {
    let sharding = instruction.sharding.as_deref();
    let of_tuple = sharding.into_iter().flat_map(|sharding| &sharding.tuple_shardings);
    sharding.into_iter().filter(|sharding| sharding.r#type() != Type::Tuple).chain(of_tuple)
}

/// The rank of a value with this sharding in tiles.
fn tile_rank(sharding: &OpSharding) -> usize {
    let subgroups = usize::from(sharding.replicate_on_last_tile_dim) + sharding.last_tile_dims.len();
    sharding.tile_assignment_dimensions.len().saturating_sub(subgroups)
}
