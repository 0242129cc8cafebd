//! Values that devices put together, or add up, only for each of them to keep a part.
//!
//! XLA's partitioner gets a value from one sharding to another this way where it knows no better one. It calls it
//! "involuntary full rematerialization", and prints a warning without a line of the source. In the partitioned module,
//! it is a gather, or a sum of pieces that are zero elsewhere, and all of its readers are slices whose place follows
//! from `partition-id`. Another sum with such readers is a reduce-scatter that was not made one, or not yet.
//!
//! Values are followed through instructions that only move them and into fusions, and within one computation otherwise.

use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::axes::AxisPart;
use crate::collectives::{ModuleCollective, ModuleCollectives};
use crate::index::{Computation, Module};
use crate::size::shape_bytes;
use crate::{Amount, Communication};
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::is_tuple;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom_hlo::text::{Layouts, print_shape};

/// The way in which devices come to hold a whole value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WholeBy {
    /// A gather of the parts: XLA's involuntary full rematerialization.
    Gather,
    /// A sum of pieces that are zero but for the part of each device: the same.
    MaskedSum,
    /// A sum that is split over the devices that add it up. Later passes for TPU and GPU make a reduce-scatter of it,
    /// which sends half.
    ScatteredSum,
    /// A sum over more devices than it is then split over, or of parts that overlap: it stays.
    Sum,
}

/// A value that devices come to hold whole, though each reads a part alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlicedWhole {
    /// How it becomes whole.
    pub by: WholeBy,
    /// The shape of the whole value on a device.
    pub whole: String,
    /// The shape of the part that a device reads, of the first slice.
    pub part: String,
    /// The mesh axes along which devices take part; null if they are not known.
    pub axes: Option<Vec<AxisPart>>,
    /// The number of executions in one run of the program.
    pub executions: Amount,
    /// The bytes that one device sends in them for this value.
    pub moved_bytes: Amount,
    /// The name of the collective's instruction.
    pub name: String,
    /// The scope path and op of its metadata.
    pub op_name: String,
    /// The source line of its metadata as `file:line`, if it has one.
    pub source: Option<String>,
}

/// Returns the values of a partitioned module that are whole only to be sliced, what sends most first. The collectives
/// are those of the module.
pub fn sliced_wholes(module: &HloModuleProto, collectives: &ModuleCollectives) -> Vec<SlicedWhole> {
    let index = Module::new(module);
    let readers: Vec<Vec<Vec<usize>>> = index.computations().iter().map(Computation::readers).collect();
    let mut found: Vec<SlicedWhole> = Vec::new();
    for entry in &collectives.entries {
        let number = index.computations().iter().position(|it| it.proto().name == entry.computation);
        let Some(number) = number else { continue };
        let search =
            SliceSearch { index: &index, computation: &index.computations()[number], readers: &readers[number] };
        found.extend(search.of(entry));
    }
    found.sort_by_key(|it| std::cmp::Reverse(it.moved_bytes.bound().unwrap_or(u64::MAX)));
    found
}

/// Whether an instruction passes its first operand on, moved or converted.
fn passes(instruction: &HloInstructionProto) -> bool {
    const PASSING: [&str; 9] = [
        "all-gather-done",
        "all-reduce-done",
        "bitcast",
        "convert",
        "copy",
        "get-tuple-element",
        "opt-barrier",
        "reshape",
        "transpose",
    ];
    PASSING.contains(&instruction.opcode.as_str())
}

/// Returns the number of elements of an array.
fn elements(instruction: &HloInstructionProto) -> u64 {
    let dimensions = instruction.shape.iter().flat_map(|shape| &shape.dimensions);
    dimensions.fold(1, |product: u64, &size| product.saturating_mul(u64::try_from(size).unwrap_or(0)))
}

/// Returns the offsets of a slice of this value; none if the value is an offset itself.
fn offsets(slice: &HloInstructionProto, value: i64) -> &[i64] {
    match slice.operand_ids.split_first() {
        Some((&sliced, offsets)) if sliced == value => offsets,
        _ => &[],
    }
}

/// A computation in which slices are looked for.
struct SliceSearch<'m, 'a> {
    index: &'m Module<'a>,
    computation: &'m Computation<'a>,
    readers: &'m [Vec<usize>],
}

impl<'a> SliceSearch<'_, 'a> {
    /// The values of a collective, which may have several.
    fn of(&self, entry: &ModuleCollective) -> Vec<SlicedWhole> {
        let Communication::Collective(kind @ (CollectiveKind::AllGather | CollectiveKind::AllReduce)) = entry.kind
        else {
            return Vec::new();
        };
        let Some(collective) = self.computation.instructions().iter().find(|it| it.name == entry.name) else {
            return Vec::new();
        };
        let is_tuple = collective.shape.as_ref().is_some_and(is_tuple);
        let elements = self.read_by(collective).filter(|it| is_tuple && it.opcode == "get-tuple-element");
        let values = elements.map(|it| (it, usize::try_from(it.tuple_index).unwrap_or(usize::MAX)));
        let values: Vec<_> = if is_tuple { values.collect() } else { vec![(collective, 0)] };
        values.into_iter().filter_map(|(value, at)| self.of_value(entry, kind, value, (collective, at))).collect()
    }

    fn of_value(
        &self,
        entry: &ModuleCollective,
        kind: CollectiveKind,
        value: &'a HloInstructionProto,
        (collective, operand): (&'a HloInstructionProto, usize),
    ) -> Option<SlicedWhole> {
        let mut slices = Vec::new();
        if !self.only_sliced(value, &mut slices) {
            return None;
        }
        let slice = slices.first()?;
        let size = entry.group_size?;
        let by = match kind {
            CollectiveKind::AllGather => WholeBy::Gather,
            _ if self.is_masked(collective, operand) => WholeBy::MaskedSum,
            _ if elements(slice).saturating_mul(size) == elements(value) => WholeBy::ScatteredSum,
            _ => WholeBy::Sum,
        };
        let shape = |it: &HloInstructionProto| it.shape.as_ref().map(|shape| print_shape(shape, Layouts::None));
        let whole_bytes = value.shape.as_ref().and_then(shape_bytes)?;
        let sent = if kind == CollectiveKind::AllGather { whole_bytes / size.max(1) } else { whole_bytes };
        Some(SlicedWhole {
            by,
            whole: shape(value)?,
            part: shape(slice)?,
            axes: entry.axes.clone(),
            executions: entry.executions,
            moved_bytes: entry.executions.times(kind.moved_bytes(sent, size)),
            name: entry.name.clone(),
            op_name: entry.op_name.clone(),
            source: entry.source.clone(),
        })
    }

    fn read_by(&self, value: &HloInstructionProto) -> impl Iterator<Item = &'a HloInstructionProto> + use<'_, 'a> {
        let readers = self.computation.position(value.id).map_or(&[] as &[usize], |at| &self.readers[at]);
        readers.iter().map(|&reader| &self.computation.instructions()[reader])
    }

    /// Whether every reader of a value takes a part of it that the number of the device chooses. These are added.
    fn only_sliced(&self, value: &'a HloInstructionProto, slices: &mut Vec<&'a HloInstructionProto>) -> bool {
        let mut seen = FxHashSet::default();
        let mut values = vec![value];
        while let Some(value) = values.pop() {
            if value.id == self.computation.proto().root_id {
                return false;
            }
            for reader in self.read_by(value) {
                if !seen.insert(reader.id) {
                    continue;
                }
                match reader.opcode.as_str() {
                    "dynamic-slice" if self.is_of_device(offsets(reader, value.id)) => slices.push(reader),
                    "fusion" if self.is_slicing_fusion(reader, value.id) => slices.push(reader),
                    _ if passes(reader) => values.push(reader),
                    _ => return false,
                }
            }
        }
        !slices.is_empty()
    }

    /// Whether one of these values follows from the number of the device.
    fn is_of_device(&self, values: &[i64]) -> bool {
        let mut seen: FxHashSet<i64> = FxHashSet::default();
        let mut left = values.to_vec();
        while let Some(id) = left.pop() {
            let Some(value) = self.computation.instruction(id).filter(|_| seen.insert(id)) else { continue };
            // A larger value than an index may be anything.
            let is_small = value.shape.as_ref().is_some_and(|shape| shape.dimensions.iter().product::<i64>() <= 1);
            match value.opcode.as_str() {
                "partition-id" => return true,
                "fusion" if is_small && self.calls_partition_id(value) => return true,
                _ if is_small => left.extend(&value.operand_ids),
                _ => {}
            }
        }
        false
    }

    fn calls_partition_id(&self, fusion: &HloInstructionProto) -> bool {
        self.index.callee(fusion, 0).is_some_and(|it| it.instructions().iter().any(|it| it.opcode == "partition-id"))
    }

    /// Whether a fusion slices the operand that this value is, at a place that the number of the device chooses.
    fn is_slicing_fusion(&self, fusion: &HloInstructionProto, value: i64) -> bool {
        let Some(inner) = self.index.callee(fusion, 0) else { return false };
        let places = |id: i64| (0i64..).zip(&fusion.operand_ids).filter(move |(_, operand)| **operand == id);
        let parameter = |number: i64| {
            inner.instructions().iter().find(|it| it.opcode == "parameter" && it.parameter_number == number)
        };
        let readers = inner.readers();
        let search = SliceSearch { index: self.index, computation: inner, readers: &readers };
        places(value).all(|(number, _)| {
            let Some(parameter) = parameter(number) else { return false };
            let mut values = vec![parameter];
            let mut is_sliced = false;
            while let Some(value) = values.pop() {
                for reader in search.read_by(value) {
                    match reader.opcode.as_str() {
                        "dynamic-slice" if search.reads_device(offsets(reader, value.id), self, fusion) => {
                            is_sliced = true;
                        }
                        _ if passes(reader) && reader.id != inner.proto().root_id => values.push(reader),
                        _ => return false,
                    }
                }
            }
            is_sliced
        })
    }

    /// As [`SliceSearch::is_of_device`], of values in a fusion, whose parameters are values around it.
    fn reads_device(&self, values: &[i64], around: &SliceSearch<'_, 'a>, fusion: &HloInstructionProto) -> bool {
        if self.is_of_device(values) {
            return true;
        }
        let mut seen: FxHashSet<i64> = FxHashSet::default();
        let mut left = values.to_vec();
        while let Some(id) = left.pop() {
            let Some(value) = self.computation.instruction(id).filter(|_| seen.insert(id)) else { continue };
            let operand = usize::try_from(value.parameter_number).ok().and_then(|at| fusion.operand_ids.get(at));
            match (value.opcode.as_str(), operand) {
                ("parameter", Some(&operand)) if around.is_of_device(&[operand]) => return true,
                _ => left.extend(&value.operand_ids),
            }
        }
        false
    }

    /// Whether an all-reduce adds up pieces that are zero but for the part of each device.
    fn is_masked(&self, all_reduce: &HloInstructionProto, operand: usize) -> bool {
        let mut value = self.computation.operand(all_reduce, operand);
        while let Some(passing) = value.filter(|it| passes(it)) {
            value = self.computation.operand(passing, 0);
        }
        let Some(value) = value else { return false };
        let is_zero = |at: usize| {
            let broadcast = self.computation.operand(value, at).filter(|it| it.opcode == "broadcast");
            let constant = broadcast.and_then(|it| self.computation.operand(it, 0));
            constant.is_some_and(|it| it.opcode == "constant")
        };
        match value.opcode.as_str() {
            "dynamic-update-slice" => is_zero(0) && self.is_of_device(value.operand_ids.get(2..).unwrap_or_default()),
            "select" => is_zero(1) || is_zero(2),
            _ => false,
        }
    }
}
