//! The differences in meaning between two modules.
//!
//! These differences mean nothing: names, ids, the order of independent instructions, channel numbers, the form of
//! device groups, default layouts, and the ways in which versions of XLA state an attribute. The comparison covers:
//!
//! | part | compared by |
//! |---|---|
//! | collectives | kind, devices (mesh axes where there is a mesh), bytes; how many there are, how often they run |
//! | operations | opcode, shapes, attributes, constants; how many there are, how often they run; also inside fusions |
//! | names | the `op_name` of operations that are otherwise the same |
//! | wiring | a hash of every value's expression, down to the parameters: equal operations may be connected differently |
//!
//! A fusion boundary that moves is a difference of the fusions, not of their contents.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use prost::Message;
use rustc_hash::{FxHashMap, FxHasher};
use serde::Serialize;

use super::axes::Strides;
use super::collectives::{ModuleCollective, ModuleCollectives};
use super::index::{Computation, Module};
use super::walk::Walk;
use crate::Amount;
use meshloom_hlo::proto::result_accuracy::Specs;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, LayoutProto, PrimitiveType, ShapeProto};
use meshloom_hlo::sort;
use meshloom_hlo::source::{Sources, op_name};
use meshloom_hlo::text::{Layouts, print_shape};
use meshloom_hlo::wire;

/// How often something occurs in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Occurrence {
    /// The number of times in the text of the program.
    pub count: usize,
    /// The number of times in a run of the program.
    pub executions: Amount,
}

impl Default for Occurrence {
    fn default() -> Occurrence {
        Occurrence { count: 0, executions: Amount::Exactly(0) }
    }
}

impl Occurrence {
    fn add(&mut self, executions: Amount) {
        self.count += 1;
        self.executions = self.executions.plus(executions);
    }
}

/// A change in the number of equal collectives, or in how often they run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollectiveChange {
    /// The kind.
    pub kind: String,
    /// The mesh axes, or the devices.
    pub axes: String,
    /// Bytes of the operands on one device, in one execution.
    pub bytes: Option<u64>,
    /// The bytes in the second module, if the same collective moves another number there.
    pub new_bytes: Option<u64>,
    /// The occurrences in the first module.
    pub before: Occurrence,
    /// The occurrences in the second module.
    pub after: Occurrence,
    /// The source of one of them: scope and op, and the line.
    pub from: String,
}

/// A change in the number of equal operations, or in how often they run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpChange {
    /// The opcode.
    pub opcode: String,
    /// The shape of the result, and those of the operands.
    pub shape: String,
    /// The shapes in the second module, if operations with the same names have other shapes there. If the shapes are
    /// the same as well, the attributes differ: a precision, a constant's value.
    pub new_shape: Option<String>,
    /// The occurrences in the first module.
    pub before: Occurrence,
    /// The occurrences in the second module.
    pub after: Occurrence,
    /// The source of one of them.
    pub from: String,
}

/// An operation whose name has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NameChange {
    /// The opcode.
    pub opcode: String,
    /// Its `op_name` in the first module.
    pub before: String,
    /// Its `op_name` in the second.
    pub after: String,
    /// The number of operations with this change.
    pub count: usize,
}

/// The differences between two modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleDiff {
    /// Collectives, the largest change of bytes first.
    pub collectives: Vec<CollectiveChange>,
    /// Operations, the largest change of executions first.
    pub operations: Vec<OpChange>,
    /// Names, the most frequent change first.
    pub names: Vec<NameChange>,
    /// Whether the modules compute their results by the same expressions of their parameters.
    pub same_wiring: bool,
}

impl ModuleDiff {
    /// Whether the modules mean the same; names and source lines may differ.
    pub fn is_empty(&self) -> bool {
        self.same_wiring && self.collectives.is_empty() && self.operations.is_empty()
    }
}

/// Compares two modules whose collectives are known (with axes, if there is a mesh).
pub fn diff(before: (&HloModuleProto, &ModuleCollectives), after: (&HloModuleProto, &ModuleCollectives)) -> ModuleDiff {
    let [walk_before, walk_after] = [before.0, after.0].map(Walk::of);
    let [signatures_before, signatures_after] = [&walk_before, &walk_after].map(|walk| Signatures::of(walk.module()));
    let operations_before = Operations::of(before.0, &walk_before, &signatures_before);
    let operations_after = Operations::of(after.0, &walk_after, &signatures_after);
    let wiring_before = fingerprint(before.0, walk_before.module(), &signatures_before);
    ModuleDiff {
        collectives: collective_changes(before.1, after.1),
        operations: operations_before.changes(&operations_after),
        names: operations_before.name_changes(&operations_after),
        same_wiring: wiring_before == fingerprint(after.0, walk_after.module(), &signatures_after),
    }
}

/// Kind, devices and bytes.
type CollectiveKey = (String, String, Option<u64>);

fn collective_changes(before: &ModuleCollectives, after: &ModuleCollectives) -> Vec<CollectiveChange> {
    let mut found: BTreeMap<CollectiveKey, CollectiveChange> = BTreeMap::new();
    for (entries, is_before) in [(&before.entries, true), (&after.entries, false)] {
        for entry in entries {
            let key = (entry.kind.name().to_owned(), devices(entry), entry.bytes);
            let change = found.entry(key.clone()).or_insert_with(|| CollectiveChange {
                kind: key.0,
                axes: key.1,
                bytes: key.2,
                new_bytes: None,
                before: Occurrence::default(),
                after: Occurrence::default(),
                from: from(entry.op_name.as_str(), entry.source.as_deref()),
            });
            if is_before { &mut change.before } else { &mut change.after }.add(entry.executions);
        }
    }
    let changes: Vec<_> = found.into_values().filter(|change| change.before != change.after).collect();
    let mut changes = paired(
        changes,
        |change| (change.before, change.after),
        |change| (change.kind.clone(), change.axes.clone(), change.from.clone()),
        |gone, new| CollectiveChange { new_bytes: new.bytes, after: new.after, ..gone },
    );
    let moved = |occurrence: &Occurrence, bytes: Option<u64>| {
        occurrence.executions.bound().unwrap_or(u64::MAX).saturating_mul(bytes.unwrap_or(1))
    };
    let difference = |change: &CollectiveChange| {
        moved(&change.before, change.bytes).abs_diff(moved(&change.after, change.new_bytes.or(change.bytes)))
    };
    sort::by_key(&mut changes, |change| Reverse(difference(change)));
    changes
}

/// Makes one change of two: something has gone, and something like it has come as often.
fn paired<T, K: Ord>(
    changes: Vec<T>,
    occurrences: impl Fn(&T) -> (Occurrence, Occurrence),
    key: impl Fn(&T) -> K,
    pair: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut gone: BTreeMap<(K, usize), Vec<T>> = BTreeMap::new();
    let (mut new, mut changed) = (Vec::new(), Vec::new());
    for change in changes {
        match occurrences(&change) {
            (before, after) if after.count == 0 => gone.entry((key(&change), before.count)).or_default().push(change),
            (before, after) if before.count == 0 => new.push((after, change)),
            _ => changed.push(change),
        }
    }
    for (after, change) in new {
        let same_often = |other: &T| occurrences(other).0.executions == after.executions;
        let found = gone.get_mut(&(key(&change), after.count));
        let at = found.as_ref().and_then(|found| found.iter().position(same_often));
        changed.push(match (found, at) {
            (Some(found), Some(at)) => pair(found.remove(at), change),
            _ => change,
        });
    }
    changed.extend(gone.into_values().flatten());
    changed
}

/// Returns the devices of a collective in one form, whichever form the module uses.
fn devices(entry: &ModuleCollective) -> String {
    if let Some(axes) = &entry.axes {
        let names: Vec<_> = axes.iter().map(ToString::to_string).collect();
        let shift = entry.shift.map(|shift| format!(" {shift:+}")).unwrap_or_default();
        return format!("{}{shift}", names.join(","));
    }
    if !entry.pairs.is_empty() {
        let mut pairs = entry.pairs.clone();
        pairs.sort_unstable();
        return pairs.iter().map(|(from, to)| format!("{from}>{to}")).collect::<Vec<_>>().join(",");
    }
    let size = entry.group_size.map_or("?".to_owned(), |size| size.to_string());
    match Strides::of(&entry.groups, entry.group_size.unwrap_or(0)) {
        Some(strides) => format!("groups of {size}, {strides}"),
        None => format!("{:?}", entry.groups.lists()),
    }
}

fn from(op_name: &str, source: Option<&str>) -> String {
    [source.unwrap_or_default(), op_name].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ")
}

/// The operations of a module by what they do.
struct Operations<'a> {
    by_kind: FxHashMap<u64, Alike<'a>>,
}

/// Operations that do the same to operands of the same shapes.
struct Alike<'a> {
    example: &'a HloInstructionProto,
    shape: String,
    occurrence: Occurrence,
    source: Option<String>,
    names: FxHashMap<&'a str, usize>,
}

impl<'a> Operations<'a> {
    fn of(module: &'a HloModuleProto, walk: &Walk<'a>, signatures: &Signatures) -> Operations<'a> {
        let sources = Sources::of(module);
        let mut by_kind: FxHashMap<u64, Alike<'a>> = FxHashMap::default();
        let mut known: FxHashMap<(usize, usize), u64> = FxHashMap::default();
        for step in walk.steps() {
            let instruction = step.instruction;
            if is_plumbing(&instruction.opcode) {
                continue;
            }
            let computation = walk.computation(step.place);
            let at = (step.place.number(), step.position);
            let key = *known.entry(at).or_insert_with(|| {
                let mut hasher = FxHasher::default();
                signatures.0[at.0][at.1].hash(&mut hasher);
                for operand in computation.operands(instruction).flatten() {
                    operand.shape.as_ref().map(plain_shape).map(|shape| shape.encode_to_vec()).hash(&mut hasher);
                }
                hasher.finish()
            });
            let alike = by_kind.entry(key).or_insert_with(|| Alike {
                example: instruction,
                shape: shapes(computation, instruction),
                occurrence: Occurrence::default(),
                source: sources.line(instruction).map(|line| line.to_string()),
                names: FxHashMap::default(),
            });
            alike.occurrence.add(step.place.executions);
            *alike.names.entry(op_name(instruction)).or_default() += 1;
        }
        Operations { by_kind }
    }

    fn changes(&self, after: &Operations<'a>) -> Vec<OpChange> {
        let new = after.by_kind.keys().filter(|key| !self.by_kind.contains_key(*key));
        let change = |key: &u64| {
            let both = [self.by_kind.get(key), after.by_kind.get(key)];
            let [before, after] = both.map(|it| it.map_or(Occurrence::default(), |alike| alike.occurrence));
            Some(both[0].or(both[1])?.change(before, after)).filter(|_| before != after)
        };
        let mut changes: Vec<OpChange> = self.by_kind.keys().chain(new).filter_map(change).collect();
        let size = |change: &OpChange| {
            let bound = |occurrence: Occurrence| occurrence.executions.bound().unwrap_or(u64::MAX);
            bound(change.before).abs_diff(bound(change.after))
        };
        // Maps have no order; the answer has.
        sort::by(&mut changes, |a, b| (&a.opcode, &a.shape, &a.from).cmp(&(&b.opcode, &b.shape, &b.from)));
        let mut changes = paired(
            changes,
            |change| (change.before, change.after),
            |change| (change.opcode.clone(), change.from.clone()),
            |gone, new| OpChange {
                new_shape: (new.shape != gone.shape).then_some(new.shape),
                after: new.after,
                ..gone
            },
        );
        // Operations that are new or gone come before operations with another shape or attribute.
        let is_new = |change: &OpChange| change.before.count == 0 || change.after.count == 0;
        sort::by(&mut changes, |a, b| {
            let key = |change: &OpChange| (!is_new(change), Reverse(size(change)));
            key(a).cmp(&key(b)).then_with(|| (&a.opcode, &a.shape, &a.from).cmp(&(&b.opcode, &b.shape, &b.from)))
        });
        changes
    }

    /// Returns the names that differ, for operations that occur equally often in both modules.
    fn name_changes(&self, after: &Operations<'_>) -> Vec<NameChange> {
        let mut changes: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        for (key, alike) in &self.by_kind {
            let Some(other) = after.by_kind.get(key).filter(|it| it.occurrence.count == alike.occurrence.count) else {
                continue;
            };
            let only_in = |these: &Alike<'_>, those: &Alike<'_>| {
                let mut names: Vec<String> = Vec::new();
                for (name, count) in &these.names {
                    let more = count.saturating_sub(those.names.get(name).copied().unwrap_or(0));
                    names.extend(std::iter::repeat_n((*name).to_owned(), more));
                }
                names.sort_unstable();
                names
            };
            for (before, after) in only_in(alike, other).into_iter().zip(only_in(other, alike)) {
                *changes.entry((alike.example.opcode.clone(), before, after)).or_default() += 1;
            }
        }
        let mut changes: Vec<NameChange> = changes
            .into_iter()
            .map(|((opcode, before, after), count)| NameChange { opcode, before, after, count })
            .collect();
        sort::by_key(&mut changes, |change| Reverse(change.count));
        changes
    }
}

impl Alike<'_> {
    fn change(&self, before: Occurrence, after: Occurrence) -> OpChange {
        OpChange {
            opcode: self.example.opcode.clone(),
            shape: self.shape.clone(),
            new_shape: None,
            before,
            after,
            from: from(op_name(self.example), self.source.as_deref()),
        }
    }
}

/// Whether an opcode only carries values about, which has no part in the meaning.
fn is_plumbing(opcode: &str) -> bool {
    matches!(opcode, "parameter" | "tuple" | "get-tuple-element" | "bitcast" | "copy" | "copy-start" | "copy-done")
}

/// `f32[8,4] (f32[8,2], f32[2,4])`.
fn shapes(computation: &Computation<'_>, instruction: &HloInstructionProto) -> String {
    let text = |instruction: &HloInstructionProto| {
        instruction.shape.as_ref().map(|shape| print_shape(shape, Layouts::None)).unwrap_or_default()
    };
    let operands: Vec<String> = computation.operands(instruction).flatten().map(text).collect();
    if operands.is_empty() { text(instruction) } else { format!("{} ({})", text(instruction), operands.join(", ")) }
}

/// A hash of the operation of each instruction, by the numbers of its computation and its position.
struct Signatures(Vec<Vec<u64>>);

impl Signatures {
    fn of(module: &Module<'_>) -> Signatures {
        let of = |computation: &Computation<'_>| -> Vec<u64> {
            let instructions = computation.instructions().iter();
            instructions
                .map(|instruction| {
                    let mut hasher = FxHasher::default();
                    signature(computation, instruction, &mut hasher);
                    hasher.finish()
                })
                .collect()
        };
        Signatures(module.computations().iter().map(of).collect())
    }
}

/// Hashes the operation of an instruction, without its name and its operands.
fn signature(computation: &Computation<'_>, instruction: &HloInstructionProto, hasher: &mut FxHasher) {
    /// Numbers of the fields of `HloInstructionProto` that do not describe the operation (name, metadata, ids, control
    /// predecessors, channels, backend configs, frontend attributes, statistics, original values, the version of a
    /// custom call's interface), and of those that are compared separately (shapes, literal, devices, called
    /// computations, the type and order of a comparison).
    const LEFT_OUT: [u64; 25] =
        [1, 3, 7, 8, 26, 29, 35, 36, 37, 38, 43, 45, 49, 52, 57, 68, 72, 77, 82, 87, 88, 92, 93, 99, 102];
    let shapes = instruction.shape.iter().chain(instruction.outfeed_shape.as_deref());
    for shape in shapes.chain(&instruction.operand_shapes_with_layout) {
        plain_shape(shape).encode_to_vec().hash(hasher);
    }
    is_total_order(computation, instruction).hash(hasher);
    for field in wire::fields(&instruction.encode_to_vec()).flatten() {
        // XLA writes messages without content.
        let is_empty = field.bytes.is_some_and(<[u8]>::is_empty);
        if !is_empty && !LEFT_OUT.contains(&field.number) && !says_nothing(instruction, field.number) {
            field.raw.hash(hasher);
        }
    }
    let Some(literal) = &instruction.literal else { return };
    literal.shape.as_ref().map(|shape| plain_shape(shape).encode_to_vec()).hash(hasher);
    for field in wire::fields(&literal.encode_to_vec()).flatten().filter(|field| field.number != 1) {
        field.raw.hash(hasher);
    }
}

/// Whether the field of this number has the value that it has where it is left out.
fn says_nothing(instruction: &HloInstructionProto, field: u64) -> bool {
    match field {
        50 => instruction.feature_group_count == 1,
        51 => instruction.precision_config.as_ref().is_some_and(|config| {
            config.algorithm == 0 && config.operand_precision.iter().all(|&precision| precision == 0)
        }),
        58 => instruction.batch_group_count == 1,
        79 => instruction.async_execution_thread == "main",
        91 => {
            let specs = instruction.result_accuracy.as_ref().and_then(|accuracy| accuracy.specs.as_ref());
            specs.is_none_or(|specs| *specs == Specs::Mode(0))
        }
        _ => false,
    }
}

/// Whether a comparison of floating-point numbers orders all of them, NaN too. Versions of XLA state it as a type, as
/// an order, or as both; comparisons of other numbers always do, and state it or not.
fn is_total_order(computation: &Computation<'_>, instruction: &HloInstructionProto) -> bool {
    let says = instruction.comparison_type == "TOTALORDER" || instruction.comparison_order.starts_with("TOTAL");
    let operand = computation.operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
    let of = operand.and_then(|shape| PrimitiveType::try_from(shape.element_type).ok()).unwrap_or_default();
    says && instruction.opcode == "compare" && of.as_str_name().contains('F')
}

/// Returns a shape without the layouts that are the default.
fn plain_shape(shape: &ShapeProto) -> ShapeProto {
    let is_plain = |layout: &LayoutProto| {
        let default = LayoutProto {
            minor_to_major: (0..shape.dimensions.len() as i64).rev().collect(),
            ..LayoutProto::default()
        };
        let stated = LayoutProto {
            tail_padding_alignment_in_elements: layout.tail_padding_alignment_in_elements & !1,
            ..layout.clone()
        };
        stated == default
    };
    ShapeProto {
        layout: shape.layout.clone().filter(|layout| !is_plain(layout)),
        is_dynamic_dimension: if shape.is_dynamic_dimension.contains(&true) {
            shape.is_dynamic_dimension.clone()
        } else {
            Vec::new()
        },
        tuple_shapes: shape.tuple_shapes.iter().map(plain_shape).collect(),
        ..shape.clone()
    }
}

/// Returns a hash of the expressions by which a module computes its results.
fn fingerprint(module: &HloModuleProto, index: &Module<'_>, signatures: &Signatures) -> u64 {
    let mut computations: FxHashMap<i64, u64> = FxHashMap::default();
    // Callees come before callers; a computation that calls itself counts as nothing.
    let mut stack = vec![(module.entry_computation_id, false)];
    let mut entered = rustc_hash::FxHashSet::default();
    while let Some((id, is_left)) = stack.pop() {
        let Some(number) = index.number(id) else { continue };
        let computation = &index.computations()[number];
        if is_left {
            let hash = expression(computation, &signatures.0[number], &computations);
            computations.insert(id, hash);
        } else if entered.insert(id) {
            stack.push((id, true));
            let callees = computation.instructions().iter().flat_map(|instruction| &instruction.called_computation_ids);
            stack.extend(callees.map(|&callee| (callee, false)));
        }
    }
    let mut hasher = FxHasher::default();
    computations.get(&module.entry_computation_id).hash(&mut hasher);
    // A proto may state an empty list of aliases, where text leaves it out.
    module.input_output_alias.as_ref().map(|alias| alias.encode_to_vec()).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn expression(computation: &Computation<'_>, signatures: &[u64], computations: &FxHashMap<i64, u64>) -> u64 {
    let mut values: FxHashMap<i64, u64> = FxHashMap::default();
    // An instruction with an effect counts even if no instruction reads it.
    let mut effects = 0u64;
    for (instruction, signature) in computation.instructions().iter().zip(signatures) {
        let mut hasher = FxHasher::default();
        signature.hash(&mut hasher);
        instruction.operand_ids.iter().for_each(|id| values.get(id).hash(&mut hasher));
        instruction.called_computation_ids.iter().for_each(|id| computations.get(id).hash(&mut hasher));
        let value = hasher.finish();
        if matches!(instruction.opcode.as_str(), "outfeed" | "send" | "custom-call") {
            effects = effects.wrapping_add(value);
        }
        values.insert(instruction.id, value);
    }
    let root = computation.root().and_then(|root| values.get(&root.id).copied()).unwrap_or(0);
    root.wrapping_mul(31).wrapping_add(effects)
}
