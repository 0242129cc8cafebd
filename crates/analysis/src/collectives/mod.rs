//! Every collective of a module, and what it moves.
//!
//! The walk finds them in everything that the module runs ([`Walk`]). A collective counts once for each way it is
//! reached, as many times as the loops on that way run. An asynchronous pair (`all-gather-start` and `-done`) counts
//! where it starts, and so does a chain of libtpu's asynchronous fusions. The bytes moved follow from operand bytes and
//! group size, as in the ledger of a partitioned program, so a compiled module can be compared with the program it was
//! made from.
//!
//! Only one branch of a conditional runs. Where the number of the device decides which, executions are exact. Otherwise
//! a sum is not over all branches: it lies between the branch that moves least and the one that moves most
//! ([`ModuleCollectives::moved_bounds`]), and [`executions`](crate::executions) finds the branch that a step takes.
//!
//! The analysis counts what the compiler made of a collective, with one exception: a TPU compiler writes a
//! reduce-scatter as a fusion of an all-reduce and a slice, which counts as a reduce-scatter.
//!
//! A custom call is a collective where it states its devices (`custom_collectives.rs`). Another custom call may
//! communicate too; what it sends is not counted, and [`ModuleCollectives::uncounted`] names it.

mod executions;

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::async_collectives::Sites;
use crate::axes::{AxisPart, Strides, pair_axes};
use crate::communication::Communication;
use crate::custom_collectives::{CallDevices, may_communicate};
use crate::device_walk::DeviceWalk;
use crate::devices::Devices;
use crate::executions::DeviceExecutions;
use crate::index::{Computation, attribute};
use crate::megascale::{SliceTransfer, communication_of, slices_of};
use crate::size::{array_bytes, shape_bytes};
use crate::walk::{Place, Step, Via, Walk};
use crate::{Amount, Bounds, Branch};
pub use executions::Together;
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, PrimitiveType};
use meshloom_hlo::source::{Sources, op_name};

/// One collective of a module. Serialized, an element of what `hlo-dump collectives --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleCollective {
    /// The kind of communication.
    pub kind: Communication,
    /// The devices that take part; [`DeviceGroups::One`] for a permute, which has `pairs` instead.
    #[serde(skip)]
    pub groups: DeviceGroups,
    /// The pairs of sender and receiver, for an instruction that lists them.
    pub pairs: Vec<(u64, u64)>,
    /// The mesh axes along which devices take part, major to minor; `None` before [`ModuleCollectives::along`], and for
    /// devices that do not lie along axes of the mesh.
    pub axes: Option<Vec<AxisPart>>,
    /// How far a permute moves values along its axis, cyclically and the short way, if all of its pairs agree: 1 to the
    /// next device, -1 to the one before.
    pub shift: Option<i64>,
    /// Devices of a group; `None` for a permute, and where the module does not say.
    pub group_size: Option<u64>,
    /// The number of values that it moves at once.
    pub operand_count: usize,
    /// Bytes of the operands on one device, in one execution; `None` for a type of no known size. A ragged all-to-all
    /// has one operand in this sense: the values. The buffer that it writes into, offsets and sizes do not count.
    pub bytes: Option<u64>,
    /// Bytes that one device sends in one execution, by [`CollectiveKind::moved_bytes`]; `None` where they are not
    /// known.
    pub moved_bytes: Option<u64>,
    /// How often it runs in one run of the program.
    pub executions: Amount,
    /// Whether it is in a branch, which may not be taken: then `executions` is the most.
    pub in_branch: bool,
    /// The branches that it is in, outermost first; empty where ways through the module are merged.
    pub branches: Vec<Branch>,
    /// Number of the [place](Walk::places) that it is in.
    #[serde(skip)]
    pub place: usize,
    /// Loops around it.
    pub loop_depth: usize,
    /// Whether it has two halves, between which the device may do other things.
    pub asynchronous: bool,
    /// Name of the instruction.
    pub name: String,
    /// Name of the computation it is in.
    pub computation: String,
    /// The scope path and op of its metadata.
    pub op_name: String,
    /// The source line of its metadata as `file:line`, if it has one.
    pub source: Option<String>,
    /// The function of that line, as `file:function` without folders; the file if the function is not known, and empty
    /// without a line.
    #[serde(skip)]
    pub function: String,
}

/// The collectives of a module, in the order of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleCollectives {
    /// Each of them.
    #[serde(rename = "collectives")]
    pub entries: Vec<ModuleCollective>,
    /// Whether the module had too many ways to keep apart ([`Walk::is_merged`]), so that an entry represents all
    /// executions of an instruction.
    pub merged: bool,
    /// The conditionals of the module, each once for each way to it: see [`Branch::conditional`].
    #[serde(skip)]
    pub conditionals: Vec<Conditional>,
    /// The custom calls that may communicate, in a module for several devices; what they send is in no sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncounted: Vec<UncountedCall>,
    /// The executions on each device where the device numbers decide them; else bounds for all branches.
    #[serde(skip)]
    given: Arc<DeviceExecutions>,
}

/// A custom call that may communicate, for all that is known. Only its target defines what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UncountedCall {
    /// The function that it calls.
    pub target: String,
    /// Name of the instruction.
    pub name: String,
    /// Name of the computation it is in.
    pub computation: String,
    /// The scope path and op of its metadata.
    pub op_name: String,
    /// The source line of its metadata as `file:line`, if it has one.
    pub source: Option<String>,
    /// How often it runs in one run of the program.
    pub executions: Amount,
}

/// A conditional, which runs one of its branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conditional {
    /// Name of the instruction.
    pub name: String,
    /// Name of the computation it is in.
    pub computation: String,
    /// The scope path and op of its metadata.
    pub op_name: String,
    /// The source line of its metadata as `file:line`, if it has one.
    pub source: Option<String>,
    /// How often it runs in one run of the program.
    pub executions: Amount,
    /// When each branch runs: `true` and `false`, or the value of the selector; the last also runs for every other
    /// value.
    pub branches: Vec<String>,
}

impl Conditional {
    fn of<'a>(
        walk: &Walk<'a>,
        sources: Sources<'a>,
        (place, instruction): (&Place<'a>, &'a HloInstructionProto),
    ) -> Conditional {
        let selector = walk.computation(place).operand(instruction, 0).and_then(|selector| selector.shape.as_ref());
        let on_truth = selector.is_some_and(|shape| shape.element_type == i32::from(PrimitiveType::Pred));
        let count = instruction.called_computation_ids.len();
        let name = |branch: usize| match (on_truth, branch) {
            (true, 0) => "true".to_owned(),
            (true, _) => "false".to_owned(),
            (false, branch) => branch.to_string(),
        };
        Conditional {
            name: instruction.name.clone(),
            computation: place.computation.name.clone(),
            op_name: op_name(instruction).to_owned(),
            source: sources.line(instruction).map(|line| line.to_string()),
            executions: place.executions,
            branches: (0..count).map(name).collect(),
        }
    }
}

impl ModuleCollectives {
    /// Returns the collectives of one kind.
    pub fn kind(&self, kind: CollectiveKind) -> impl Iterator<Item = &ModuleCollective> {
        self.entries.iter().filter(move |entry| entry.kind == Communication::Collective(kind))
    }

    /// Returns the same analysis with some collectives of the module only.
    #[must_use]
    pub fn some(&self, entries: Vec<ModuleCollective>) -> ModuleCollectives {
        let (conditionals, uncounted) = (self.conditionals.clone(), self.uncounted.clone());
        ModuleCollectives { entries, conditionals, uncounted, given: self.given.clone(), ..*self }
    }

    /// Returns the same collectives with the axes of a mesh over whose devices the module runs.
    #[must_use]
    pub fn along(mut self, mesh: &Mesh) -> ModuleCollectives {
        // A module has few groupings and many collectives.
        let mut known: FxHashMap<DeviceGroups, Option<Vec<AxisPart>>> = FxHashMap::default();
        for entry in &mut self.entries {
            if !entry.pairs.is_empty() {
                let found = pair_axes(&entry.pairs, mesh);
                entry.shift = found.as_ref().and_then(|found| found.shift);
                entry.axes = found.map(|found| found.axes);
                continue;
            }
            if entry.group_size.is_none() {
                continue;
            }
            entry.axes = match known.get(&entry.groups) {
                Some(axes) => axes.clone(),
                None => {
                    let strides = Strides::of(&entry.groups, mesh.device_count() as u64);
                    let axes = strides.and_then(|strides| strides.axes(mesh));
                    known.insert(entry.groups.clone(), axes.clone());
                    axes
                }
            };
        }
        self
    }

    /// Returns how often collectives run in one run of the program, in all; where branches differ, the most.
    pub fn executions(&self) -> Amount {
        self.execution_bounds().amount()
    }

    /// Returns how often collectives run at least and at most, whichever branches are taken.
    pub fn execution_bounds(&self) -> Bounds {
        self.given.total(&self.entries, |_| Some(1))
    }

    /// Returns the bytes that one device sends in one run of the program; where branches differ, the most.
    pub fn moved_bytes(&self) -> Amount {
        self.moved_bounds().amount()
    }

    /// Returns the bytes that one device sends at least and at most, whichever branches are taken.
    pub fn moved_bounds(&self) -> Bounds {
        self.given.moved_bytes(&self.entries)
    }

    /// Returns the sum of a number for each execution of the collectives in a branch of a conditional: as often as
    /// devices take it, where that is known, else as if it were taken each time that the conditional runs.
    pub fn total_in_branch(
        &self,
        (conditional, branch): (usize, usize),
        of_one: impl Fn(&ModuleCollective) -> Option<u64>,
    ) -> Bounds {
        let inside = self.entries.iter().filter_map(|entry| {
            let at = entry.branches.iter().position(|it| (it.conditional, it.branch) == (conditional, branch))?;
            Some((entry, &entry.branches[..=at]))
        });
        self.given.total_beyond(inside, of_one)
    }

    /// Returns whether the devices of each group run a collective together, that is, whether no group lies on both
    /// sides of a branch.
    pub fn together(&self, entry: &ModuleCollective) -> Together {
        self.given.together(entry)
    }
}

impl ModuleCollective {
    /// Returns the bytes that one device sends in all executions of this collective.
    pub fn total_moved_bytes(&self) -> Amount {
        self.moved_bytes.map_or(Amount::Unknown, |bytes| self.executions.times(bytes))
    }

    /// Returns whether devices of a group differ in their place along an axis of a mesh, or a part of one; `None` where
    /// the module does not say which devices take part.
    pub fn crosses(&self, axis: &AxisPart, mesh: &Mesh) -> Option<bool> {
        if let Some(axes) = &self.axes {
            return Some(axes.iter().any(|part| part.overlaps(axis)));
        }
        if !self.pairs.is_empty() {
            return Some(
                self.pairs.iter().any(|&(source, target)| axis.place(source, mesh) != axis.place(target, mesh)),
            );
        }
        let lists = self.group_size.and_then(|_| self.groups.lists())?;
        let differs = |list: &Vec<u64>| {
            let mut places = list.iter().map(|&device| axis.place(device, mesh));
            let first = places.next();
            places.any(|place| Some(place) != first)
        };
        Some(lists.iter().any(differs))
    }
}

/// Returns the collectives of a module that runs on these devices.
pub fn collectives(module: &HloModuleProto, devices: Devices) -> ModuleCollectives {
    collectives_of_walk(&DeviceWalk::of(module, devices), Sources::of(module))
}

/// The collectives of a module that has been walked.
pub fn collectives_of_walk(walk: &DeviceWalk<'_>, sources: Sources<'_>) -> ModuleCollectives {
    collectives_at(&Sites::of(walk.walk()), walk, sources)
}

pub(crate) fn collectives_at(sites: &Sites, device_walk: &DeviceWalk<'_>, sources: Sources<'_>) -> ModuleCollectives {
    let (walk, given) = (device_walk.walk(), device_walk.executions().clone());
    let devices = given.devices();
    let slices = slices_of(walk.module().computations().iter().flat_map(Computation::instructions));
    let entry = |step: Step<'_, '_>| {
        let site = sites.starting(step)?;
        let (kind, asynchronous) = communication_of(step.instruction)?;
        let mut entry = entry(walk, step, kind, devices);
        entry.asynchronous |= asynchronous || site.starts_chain;
        entry.within_slice(slices, devices);
        if let Some(line) = sources.line(step.instruction) {
            (entry.source, entry.function) = (Some(line.to_string()), line.origin());
        }
        Some(entry)
    };
    let conditionals = walk.conditionals().map(|conditional| Conditional::of(walk, sources, conditional)).collect();
    let entries = walk.steps().filter_map(entry).collect();
    let is_alone = devices.replicas.saturating_mul(devices.partitions) <= 1;
    let uncounted = match is_alone {
        true => Vec::new(),
        false => {
            walk.steps().filter(|step| may_communicate(step.instruction)).map(|it| uncounted(it, sources)).collect()
        }
    };
    ModuleCollectives { entries, merged: walk.is_merged(), conditionals, uncounted, given }
}

fn uncounted(step: Step<'_, '_>, sources: Sources<'_>) -> UncountedCall {
    let Step { place, instruction, .. } = step;
    UncountedCall {
        target: instruction.custom_call_target.clone(),
        name: instruction.name.clone(),
        computation: place.computation.name.clone(),
        op_name: op_name(instruction).to_owned(),
        source: sources.line(instruction).map(|line| line.to_string()),
        executions: place.executions,
    }
}

fn entry(walk: &Walk<'_>, step: Step<'_, '_>, kind: Communication, devices: Devices) -> ModuleCollective {
    let Step { place, instruction, .. } = step;
    let computation = walk.computation(place);
    let permutes = kind == Communication::Collective(CollectiveKind::CollectivePermute);
    let stated = CallDevices::of(instruction);
    let is_stated = stated.is_some();
    let CallDevices { groups, pairs } =
        stated.unwrap_or_else(|| CallDevices { groups: DeviceGroups::of(instruction), pairs: pairs(instruction) });
    let group_size = match permutes {
        true => None,
        false if is_stated => groups.size(),
        false => group_size(instruction, kind, &groups, devices),
    };
    let moves = pairs.iter().any(|(source, target)| source != target);
    let is_ragged = kind == Communication::Other("ragged-all-to-all");
    let mut entry = ModuleCollective {
        kind,
        groups,
        pairs,
        axes: None,
        shift: None,
        group_size,
        operand_count: if is_ragged { 1 } else { instruction.operand_ids.len() },
        bytes: operand_bytes(computation, instruction, is_ragged),
        moved_bytes: None,
        executions: place.executions,
        in_branch: matches!(place.executions, Amount::AtMost(_)),
        branches: place.branches.clone(),
        place: step.place_number,
        loop_depth: place.loop_depth,
        asynchronous: place.asynchronous,
        name: instruction.name.clone(),
        computation: place.computation.name.clone(),
        op_name: op_name(instruction).to_owned(),
        source: None,
        function: String::new(),
    };
    if let Some(transfer) = SliceTransfer::of(instruction) {
        // The other operand is a token.
        (entry.groups, entry.group_size) = transfer.groups();
        entry.operand_count = 1;
    }
    match permutes && !moves {
        true => entry.moved_bytes = Some(0),
        false if is_fused_reduce_scatter(computation, step) => {
            entry.become_kind(Communication::Collective(CollectiveKind::ReduceScatter));
        }
        false => entry.become_kind(kind),
    }
    entry
}

impl ModuleCollective {
    /// In a program that is written for the devices of one slice, a collective of all devices is one of those.
    fn within_slice(&mut self, slices: u64, devices: Devices) {
        if slices > 1 && self.groups == DeviceGroups::One && self.group_size.is_some() {
            let in_slice = devices.partitions / slices;
            self.groups =
                DeviceGroups::Iota { group_size: in_slice, dims: vec![slices, in_slice], permutation: vec![0, 1] };
            self.group_size = Some(in_slice);
            self.become_kind(self.kind);
        }
    }

    fn become_kind(&mut self, kind: Communication) {
        self.kind = kind;
        self.moved_bytes = match (kind, self.bytes, self.group_size) {
            (Communication::Collective(CollectiveKind::CollectivePermute), bytes, _) => bytes,
            (Communication::Other("send"), bytes, _) => bytes,
            // The bytes that it receives are counted at the sender.
            (Communication::Other("recv"), ..) => Some(0),
            (Communication::Collective(kind), Some(bytes), Some(size)) => Some(kind.moved_bytes(bytes, size)),
            _ => None,
        };
    }
}

/// The pairs of sender and receiver. For sends and receives between devices, an attribute that XLA's pipeline
/// parallelism writes has them.
fn pairs(instruction: &HloInstructionProto) -> Vec<(u64, u64)> {
    let device = |id: i64| u64::try_from(id).unwrap_or(0);
    if let Some(text) = attribute(instruction, "_xla_send_recv_source_target_pairs") {
        let numbers: Vec<u64> =
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
        return numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    }
    instruction.source_target_pairs.iter().map(|pair| (device(pair.source), device(pair.target))).collect()
}

/// Devices of a group (`GetCollectiveOpGroupMode`, collective_ops_utils.cc in XLA): without a channel, groups are of
/// replicas; with one and `use_global_device_ids`, of devices; with one alone, of replicas with all their partitions
/// for the kinds that have that attribute, else of partitions.
fn group_size(
    instruction: &HloInstructionProto,
    kind: Communication,
    groups: &DeviceGroups,
    devices: Devices,
) -> Option<u64> {
    let is_point_to_point = matches!(kind, Communication::Other("send" | "recv"));
    if *groups == DeviceGroups::Unreadable || is_point_to_point {
        return None;
    }
    let listed = groups.size();
    let Devices { replicas, partitions } = devices;
    let across_partitions = instruction.channel_id > 0;
    if !across_partitions {
        return Some(listed.unwrap_or(replicas));
    }
    if instruction.use_global_device_ids {
        return Some(listed.unwrap_or(replicas.saturating_mul(partitions)));
    }
    use CollectiveKind as Kind;
    match kind {
        Communication::Collective(Kind::AllGather | Kind::AllReduce | Kind::ReduceScatter) => {
            Some(listed.unwrap_or(replicas).saturating_mul(partitions))
        }
        _ => Some(listed.unwrap_or(partitions)),
    }
}

fn operand_bytes(computation: &Computation<'_>, instruction: &HloInstructionProto, is_ragged: bool) -> Option<u64> {
    // The others are the buffer that it writes into, and where the parts begin and how long they are.
    if is_ragged {
        return shape_bytes(computation.operand(instruction, 0)?.shape.as_ref()?);
    }
    // A permute into a buffer that exists takes slices of it: its operands are the whole buffers and the offsets.
    if instruction.opcode.starts_with("collective-permute") && !instruction.dynamic_slice_sizes.is_empty() {
        let source = computation.operand(instruction, 0)?.shape.as_ref()?;
        return array_bytes(source.element_type, &instruction.dynamic_slice_sizes);
    }
    let mut operands = computation.operands(instruction);
    operands.try_fold(0u64, |sum, operand| Some(sum.saturating_add(shape_bytes(operand?.shape.as_ref()?)?)))
}

/// Whether an instruction is the only all-reduce of a fusion in which each device keeps a part.
fn is_fused_reduce_scatter(computation: &Computation<'_>, step: Step<'_, '_>) -> bool {
    let Some(root) = computation.root() else { return false };
    let is = |found: &HloInstructionProto| found.opcode == "all-reduce";
    step.place.caller.is_some_and(|caller| caller.via == Via::Fusion)
        && is(step.instruction)
        && root.opcode == "dynamic-slice"
        && root.operand_ids.first() == Some(&step.instruction.id)
        && computation.instructions().iter().filter(|found| is(found)).nth(1).is_none()
}
