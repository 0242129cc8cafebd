//! The state of a module's partitioning: the program of one device, or one that XLA has yet to partition.
//!
//! Before XLA's partitioner, shapes are global and collectives are missing; after it, shapes are those of one device's
//! part. No field of XLA's modules states which. So [`Partitioning::of`] looks for traces of the partitioner, and for
//! things that it takes away:
//!
//! 1. A module of one partition has nothing to split; one with the attribute [`LOCAL_SHAPES`] is split.
//! 2. A schedule, a fusion, and in protos the shardings of parameters or result in the header
//!    (`spmd_parameters_shardings`, `spmd_output_sharding`) come from the partitioner or from a pass after it. That
//!    holds even if parameters keep their annotations, as they do in compiled modules.
//! 3. If nothing marks a manual region and nothing asks to be annotated (custom calls such as `Sharding`), only the
//!    partitioner puts in collectives and `partition-id`.
//! 4. Otherwise the module is to be partitioned, except for manual regions: values that are computed from the results
//!    of `SPMDFullToShardShape` or `xla.sdy.GlobalToLocalShape`, or have the sharding `{manual}`, up to
//!    `SPMDShardToFullShape` or `xla.sdy.LocalToGlobalShape`. A module that computes nothing outside of them is the
//!    program of one device, though its parameters and results have global shapes; meshloom emits such programs.
//!    Scalars are the same on both sides of a border, so arithmetic on scalars alone does not count. A region that is
//!    manual along some axes of the mesh only (`manual.rs`) is to be partitioned along the others.
//!
//! The text of a program that the partitioner has left without collectives and that is not compiled further looks like
//! one that the partitioner has not seen, and counts as one.

use rustc_hash::FxHashSet;

use super::devices::Devices;
use super::index::{Computation, Module};
use super::manual::{ManualAxes, MeshAxes};
use super::megascale::communication_of;
use meshloom_hlo::LOCAL_SHAPES;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, OpSharding, ShapeProto};

/// How far the partitioning of a module has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// The program is for one partition: there is nothing to split.
    Single,
    /// All shapes are those of one device's part: XLA has partitioned it, or meshloom wrote it so ([`LOCAL_SHAPES`]).
    Done,
    /// It computes in manual regions only: parameters and results have global shapes, and all other shapes are those of
    /// one device's part.
    Manual,
    /// XLA has yet to partition it: outside of manual regions shapes are global, and collectives are missing.
    Pending {
        /// The name of an instruction that is to be partitioned.
        instruction: String,
        /// The axes along which it is to be partitioned, if it is one device's part along all others; empty where the
        /// module does not name them.
        along: Option<Vec<String>>,
    },
}

impl Partitioning {
    /// Returns the partitioning of a module for these devices.
    pub fn of(module: &HloModuleProto, devices: Devices) -> Partitioning {
        if devices.partitions <= 1 {
            return Partitioning::Single;
        }
        if is_past_partitioner(module) || has_local_shapes(module) {
            return Partitioning::Done;
        }
        match first_global(&Module::new(module), &MeshAxes::of(module)) {
            None => Partitioning::Manual,
            Some(_) if is_communicating(module) => Partitioning::Done,
            Some((instruction, along)) => Partitioning::Pending { instruction: instruction.name.clone(), along },
        }
    }

    /// Whether XLA has yet to partition the module.
    pub fn is_pending(&self) -> bool {
        matches!(self, Partitioning::Pending { .. })
    }
}

/// A custom call that states how a value is cut into parts, and computes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Border {
    /// It states a sharding.
    Annotation,
    /// Its results are one device's parts of its operands: a manual region begins.
    IntoManual,
    /// Its operands are one device's parts of its results: a manual region ends.
    OutOfManual,
}

impl Border {
    pub(super) fn of(instruction: &HloInstructionProto) -> Option<Border> {
        match instruction.custom_call_target.as_str() {
            "Sharding" | "xla.sdy.FuncResultSharding" => Some(Border::Annotation),
            "SPMDFullToShardShape" | "xla.sdy.GlobalToLocalShape" => Some(Border::IntoManual),
            "SPMDShardToFullShape" | "xla.sdy.LocalToGlobalShape" => Some(Border::OutOfManual),
            _ => None,
        }
    }
}

fn instructions(module: &HloModuleProto) -> impl Iterator<Item = &HloInstructionProto> {
    module.computations.iter().flat_map(|computation| &computation.instructions)
}

fn is_past_partitioner(module: &HloModuleProto) -> bool {
    module.schedule.is_some()
        || module.spmd_output_sharding.is_some()
        || !module.spmd_parameters_shardings.is_empty()
        || instructions(module).any(|it| it.opcode == "fusion")
}

/// Whether meshloom wrote the module with the shapes of one device.
pub fn has_local_shapes(module: &HloModuleProto) -> bool {
    module.frontend_attributes.as_ref().is_some_and(|attributes| attributes.map.contains_key(LOCAL_SHAPES))
}

/// Whether a module communicates and nothing marks the parts of it that are to be partitioned.
fn is_communicating(module: &HloModuleProto) -> bool {
    let is_marked = |it: &HloInstructionProto| Border::of(it).is_some() || is_manual(it);
    instructions(module).any(|it| communication_of(it).is_some() || it.opcode == "partition-id")
        && !instructions(module).any(is_marked)
}

/// Whether an instruction has the sharding `{manual}`; for a tuple, any part of it.
pub(super) fn is_manual(instruction: &HloInstructionProto) -> bool {
    let is_manual = |sharding: &OpSharding| sharding.r#type() == Type::Manual;
    instruction.sharding.as_deref().is_some_and(|it| is_manual(it) || it.tuple_shardings.iter().any(is_manual))
}

/// The region that a value lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Region {
    /// The value may be on either side of a border: it is computed from nothing.
    Any,
    /// The value is one device's part along these axes. A value computed from it and from others is so too.
    Manual(ManualAxes),
}

impl Region {
    const GLOBAL: Region = Region::Manual(ManualAxes::NONE);

    fn join(self, other: Region) -> Region {
        match (self, other) {
            (Region::Any, region) | (region, Region::Any) => region,
            (Region::Manual(one), Region::Manual(other)) => Region::Manual(one.join(other)),
        }
    }

    fn axes(self) -> ManualAxes {
        match self {
            Region::Any => ManualAxes::NONE,
            Region::Manual(axes) => axes,
        }
    }
}

/// Returns the first instruction that computes outside of manual regions; if there is none, the first in a region that
/// is not manual along all axes, with the axes that are left.
fn first_global<'a>(module: &Module<'a>, meshes: &MeshAxes) -> Option<(&'a HloInstructionProto, Option<Vec<String>>)> {
    let borders = module.computations().iter().flat_map(Computation::instructions);
    // Without a manual region, a value that is computed from nothing is outside of them too.
    let of_nothing = match borders.into_iter().any(|it| Border::of(it) == Some(Border::IntoManual) || is_manual(it)) {
        true => Region::Any,
        false => Region::GLOBAL,
    };
    let mut in_part = None;
    let mut queue: Vec<(usize, Region)> = module.entry().map(|entry| (entry, Region::GLOBAL)).into_iter().collect();
    let mut seen: FxHashSet<(usize, Region)> = queue.iter().copied().collect();
    while let Some((number, parameters)) = queue.pop() {
        let computation = &module.computations()[number];
        let mut regions: Vec<Region> = Vec::with_capacity(computation.instructions().len());
        for it in computation.instructions() {
            let operands = it.operand_ids.iter().filter_map(|&id| regions.get(computation.position(id)?).copied());
            let around = operands.fold(Region::Any, Region::join);
            let region = match (Border::of(it), it.opcode.as_str()) {
                (Some(Border::IntoManual), _) => Region::Manual(meshes.entering_manual(it, around.axes())),
                (Some(Border::OutOfManual), _) => Region::Manual(meshes.out_of_manual(it, around.axes())),
                (_, "parameter") if !is_manual(it) => parameters,
                // A value computed from nothing joins the values that it is used with.
                _ => match (meshes.of_value(it), around) {
                    (Some(axes), around) => around.join(Region::Manual(axes)),
                    (None, Region::Any) => of_nothing,
                    (None, region) => region,
                },
            };
            regions.push(region);
            match (it.opcode.as_str(), region) {
                ("while" | "call" | "conditional" | "async-start", _) => {
                    let callees = it.called_computation_ids.iter().filter_map(|&id| module.number(id));
                    queue.extend(callees.map(|callee| (callee, region)).filter(|next| seen.insert(*next)));
                }
                (_, Region::Manual(axes)) if axes != ManualAxes::ALL && computes(computation, it) => match axes {
                    ManualAxes::NONE => return Some((it, None)),
                    _ => in_part = in_part.or_else(|| Some((it, Some(meshes.left(axes))))),
                },
                _ => {}
            }
        }
    }
    in_part
}

/// Whether an instruction computes a value of several elements from other values.
fn computes(computation: &Computation<'_>, instruction: &HloInstructionProto) -> bool {
    let is_scalar = || {
        let operands = computation.operands(instruction).flatten();
        operands.chain([instruction]).filter_map(|it| it.shape.as_ref()).all(is_scalar)
    };
    let same = || {
        let operand = computation.operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
        operand.map(|shape| &shape.dimensions) == instruction.shape.as_ref().map(|shape| &shape.dimensions)
    };
    match instruction.opcode.as_str() {
        "parameter" | "constant" | "tuple" | "get-tuple-element" | "bitcast" | "opt-barrier" | "after-all"
        | "add-dependency" | "domain" => false,
        "reshape" | "copy" => !same(),
        "custom-call" => {
            Border::of(instruction).is_none() && instruction.custom_call_target != "annotate_device_placement"
        }
        _ => !is_scalar(),
    }
}

pub(super) fn is_scalar(shape: &ShapeProto) -> bool {
    shape.dimensions.is_empty() && shape.tuple_shapes.is_empty()
}
