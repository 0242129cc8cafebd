//! The memory that rematerialization of a named scope would save.
//!
//! JAX states in `op_name` which instructions belong to the backward pass: `transpose(jvp(layer))/mlp/dot_general`. A
//! value that the forward pass makes and the backward pass reads is saved in between. `jax.checkpoint` of its scope
//! computes it again instead: it is then in memory only in the forward pass and, again, from the time at which the
//! backward pass comes to that scope. A value that the backward pass of another scope reads too is kept, as
//! `jax.checkpoint` keeps the inputs of what follows.
//!
//! The layers of a model are the same scope (`layers_0`, `layers_1`), each computed again by itself. In a loop over
//! layers the saved values lie in stacks, which the loop writes slice by slice; of these one slice is left.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::HeapValues;
use super::dataflow::{Flow, add_range};
use super::placement::{self, Lifetime};
use crate::index::Computation;
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::source::op_name;

/// A scope that could be computed again, and what that changes.
pub(super) struct RematScope {
    /// The path of its names, in which numbers are `*`.
    pub(super) path: String,
    /// The saved values that it would not keep.
    pub(super) values: usize,
    /// The bytes of the heap at its peak, and then.
    pub(super) before: u64,
    pub(super) after: u64,
}

/// The names of an instruction's scopes, and the pass that it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PassScope {
    names: Vec<String>,
    is_backward: bool,
}

/// Whether a name says that an instruction is of the backward pass.
fn is_backward(name: &str) -> bool {
    name.starts_with("transpose(") || name == "rematted_computation"
}

/// Returns the names of the scopes of an `op_name`, without those that JAX adds for its own transformations.
pub(super) fn names(op_name: &str) -> Vec<&str> {
    /// The names that JAX gives the parts of its control flow and of differentiated functions.
    const OWN: [&str; 11] = [
        "while",
        "body",
        "cond",
        "scan",
        "checkpoint",
        "remat",
        "rematted_computation",
        "closed_call",
        "core_call",
        "shard_map",
        "custom_jvp_call",
    ];
    let path = op_name.split_once('[').map_or(op_name, |(path, _)| path);
    let Some((path, _)) = path.rsplit_once('/') else { return Vec::new() };
    let of = |mut name| {
        // The body of a loop over layers, as a whole.
        if name == "eval_jaxpr" {
            return Some("(body)");
        }
        for outer in ["transpose(", "jvp(", "vmap("] {
            if let Some(inner) = str::strip_prefix(name, outer).and_then(|name| name.strip_suffix(')')) {
                name = inner;
            }
        }
        let is_own = OWN.contains(&name) || name.starts_with("branch_") || name.starts_with("custom_vjp_call");
        let is_function = name.starts_with("jit(") || name.starts_with("pjit(");
        (!name.is_empty() && !is_own && !is_function).then_some(name)
    };
    path.split('/').filter_map(of).collect()
}

/// Returns a name with its numbers as `*`, so that layers have one name.
pub(super) fn folded_name(name: &str) -> String {
    let mut folded = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter.is_ascii_digit() {
            true if folded.ends_with('*') => {}
            true => folded.push('*'),
            false => folded.push(letter),
        }
    }
    folded
}

fn scope_of(name: &str) -> PassScope {
    let is_backward = name.split('/').any(is_backward);
    PassScope { names: names(name).into_iter().map(str::to_owned).collect(), is_backward }
}

/// Returns the name of a fusion that states none: that of the last of its instructions that has scopes.
fn name_within<'a>(fused: &Computation<'a>) -> &'a str {
    let named = fused.instructions().iter().rev().map(op_name);
    named.into_iter().find(|name| !names(name).is_empty()).unwrap_or_default()
}

/// When a value is written and read, and in which scopes.
#[derive(Default)]
struct Uses {
    writes: BTreeSet<(u32, u32)>,
    reads: BTreeSet<(u32, u32)>,
    /// For a stack that a loop writes: the scope of its slices, and their number.
    stack: Option<(u32, u64)>,
}

/// The most readers of a value that are readers of what it is computed from.
const MOST_READERS: usize = 64;

/// A value that the forward pass saves for the backward pass.
struct Saved {
    /// Its position in the heap.
    position: usize,
    scope: u32,
    slices: u64,
    last_forward: u32,
    first_backward: u32,
    backward_readers: BTreeSet<u32>,
}

/// Returns the scopes whose rematerialization makes the heap smaller at its peak, by path.
pub(super) fn scopes(flow: &mut Flow<'_, '_>, heap: &HeapValues) -> Vec<RematScope> {
    /// The most scopes that are tried: each takes time as the program has instructions.
    const MOST_SCOPES: usize = 64;
    let times = flow.schedule.point_count();
    let (scopes, saved) = Scopes::saved(flow, &heap.values);
    let mut by_path: BTreeMap<Vec<String>, (u64, Vec<usize>)> = BTreeMap::new();
    for (nth, value) in saved.iter().enumerate() {
        let names = &scopes.all[value.scope as usize].names;
        for depth in 1..=names.len() {
            let path = names[..depth].iter().map(|name| folded_name(name)).collect();
            let (bytes, of) = by_path.entry(path).or_default();
            *bytes = bytes.saturating_add(heap.values[value.position].bytes);
            of.push(nth);
        }
    }
    let mut largest: Vec<_> = by_path.into_iter().collect();
    largest.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    largest.truncate(MOST_SCOPES);
    let all: Vec<Lifetime> = heap.values.iter().chain(&heap.scratch).cloned().collect();
    let most = |values: &[Lifetime]| placement::live_bytes(values, times).into_iter().max().unwrap_or(0);
    let before = most(&all);
    let mut found = Vec::new();
    for (path, (_, of)) in largest {
        let of: Vec<&Saved> = of.into_iter().map(|nth| &saved[nth]).collect();
        let changed = scopes.again(&all, &of, path.len());
        let mut values = all.clone();
        let count = changed.len();
        changed.into_iter().for_each(|(position, value)| values[position] = value);
        let after = most(&values);
        if after < before {
            found.push(RematScope { path: path.join("/"), values: count, before, after });
        }
    }
    found
}

/// The scopes of a program's instructions.
#[derive(Default)]
struct Scopes {
    all: Vec<PassScope>,
    numbers: FxHashMap<PassScope, u32>,
    /// The scope of each point.
    of_points: Vec<u32>,
}

impl Scopes {
    fn number(&mut self, scope: PassScope) -> u32 {
        let next = self.all.len() as u32;
        *self.numbers.entry(scope).or_insert_with_key(|scope| {
            self.all.push(scope.clone());
            next
        })
    }

    /// Finds the scope of each point. An instruction of the compiler's own is of the scope of what it reads.
    fn of_points(&mut self, flow: &Flow<'_, '_>) {
        self.of_points = vec![self.number(PassScope::default()); flow.schedule.point_count()];
        let mut within: FxHashMap<i64, &str> = FxHashMap::default();
        for time in 0..flow.schedule.point_count() {
            let point = flow.schedule.point_at(time);
            let instruction = flow.instruction(point);
            let mut name = op_name(instruction);
            let fused = flow.walk.module().callee(instruction, 0).filter(|_| instruction.opcode == "fusion");
            if let Some(fused) = fused.filter(|_| !name.contains('/')) {
                name = within.entry(fused.proto().id).or_insert_with(|| name_within(fused));
            }
            let scope = match name.contains('/') {
                true => Some(self.number(scope_of(name))),
                false => flow.operand(point, 0).map(|operand| self.of_points[operand]),
            };
            self.of_points[point] = scope.unwrap_or(self.of_points[point]);
        }
    }

    /// Returns the scopes, and the values of the heap that are saved for the backward pass.
    fn saved(flow: &mut Flow<'_, '_>, values: &[Lifetime]) -> (Scopes, Vec<Saved>) {
        let mut scopes = Scopes::default();
        scopes.of_points(flow);
        let mut uses: FxHashMap<u32, Uses> = FxHashMap::default();
        for time in (0..flow.schedule.point_count() as u32).rev() {
            scopes.note(flow, time, &mut uses);
        }
        // A loop's stack may be copied before another loop reads it.
        for time in 0..flow.schedule.point_count() {
            let point = flow.schedule.point_at(time);
            let copied = flow.operand(point, 0).filter(|_| flow.instruction(point).opcode == "copy");
            let Some(operand) = copied.map(|operand| flow.nodes(operand).start) else { continue };
            let (node, operand) = (flow.nodes(point).start, flow.find(operand));
            if let Some(stack) = uses.get(&operand).and_then(|found| found.stack) {
                uses.entry(flow.find(node)).or_default().stack.get_or_insert(stack);
            }
        }
        let saved = values.iter().enumerate().filter_map(|(position, value)| {
            let found = uses.get(&value.class)?;
            let is_backward = |&(_, scope): &(u32, u32)| scopes.all[scope as usize].is_backward;
            let first_backward = found.reads.iter().filter(|read| is_backward(read)).map(|&(time, _)| time).min()?;
            let forward = |uses: &BTreeSet<(u32, u32)>| {
                let before = uses.iter().filter(|read| !is_backward(read) && read.0 < first_backward);
                before.copied().collect::<Vec<(u32, u32)>>()
            };
            let (writes, reads) = (forward(&found.writes), forward(&found.reads));
            let &(written, made_in) = writes.iter().max()?;
            let last_forward = reads.iter().map(|&(time, _)| time).max().unwrap_or(0).max(written);
            let (scope, slices) = found.stack.unwrap_or((made_in, 1));
            // A result of the backward pass may take over the memory: what reads that one is no reader of the value.
            let taken = found.writes.iter().filter(|write| is_backward(write)).map(|&(time, _)| time).min();
            let backward =
                found.reads.iter().filter(|read| is_backward(read) && taken.is_none_or(|taken| read.0 <= taken));
            let backward_readers = backward.map(|&(_, scope)| scope).collect();
            Some(Saved { position, scope, slices, last_forward, first_backward, backward_readers })
        });
        let saved = saved.collect();
        (scopes, saved)
    }

    /// Notes what the instruction at a time writes and reads. Instructions come from the last to the first: a value
    /// that has no memory is read where its readers run.
    fn note(&mut self, flow: &mut Flow<'_, '_>, time: u32, uses: &mut FxHashMap<u32, Uses>) {
        const CARRIERS: [&str; 10] = [
            "bitcast",
            "call",
            "conditional",
            "constant",
            "get-tuple-element",
            "opt-barrier",
            "parameter",
            "tuple",
            "while",
            "add-dependency",
        ];
        let point = flow.schedule.point_at(time as usize);
        let instruction = flow.instruction(point);
        if CARRIERS.contains(&instruction.opcode.as_str()) {
            return;
        }
        let scope = self.of_points[point];
        let results: Vec<u32> = flow.nodes(point).map(|node| flow.find(node)).collect();
        let stacks = self.stacks(flow, point);
        for &class in &results {
            let found = uses.entry(class).or_default();
            found.writes.insert((time, scope));
            let stack = stacks.iter().find(|(of, _)| *of == class).map(|&(_, stack)| stack);
            found.stack = found.stack.or(stack);
        }
        let read_on = |class: &u32| uses.get(class).map(|found| &found.reads).filter(|reads| !reads.is_empty());
        let first = results.first().copied();
        let read_at: Vec<(u32, u32)> = match first.and_then(|class| Some((class, read_on(&class)?))) {
            // The first and the last decide; a value with thousands of readers is no saved one.
            Some((class, reads)) if flow.class(class).is_virtual => {
                reads.iter().take(MOST_READERS).chain(reads.iter().rev().take(MOST_READERS)).copied().collect()
            }
            // A slice of a stack has no scope of its own: it is read for its readers.
            Some((_, reads)) if self.all[scope as usize].names.is_empty() => {
                reads.iter().take(MOST_READERS).map(|&(_, scope)| (time, scope)).collect()
            }
            _ => vec![(time, scope)],
        };
        let operands: Vec<usize> = flow.operands(point).flatten().collect();
        for operand in operands {
            for node in flow.nodes(operand) {
                let class = flow.find(node);
                // A slice that is written into a stack is no reader of it.
                if self.all[scope as usize].is_backward || !results.contains(&class) {
                    uses.entry(class).or_default().reads.extend(&read_at);
                }
            }
        }
    }

    /// Returns the stacks that an instruction in a loop writes a slice of: by class, the scope of the slice and the
    /// number of slices.
    fn stacks(&mut self, flow: &mut Flow<'_, '_>, point: usize) -> Vec<(u32, (u32, u64))> {
        let instruction = flow.instruction(point);
        let (place, _) = flow.schedule.instruction(point);
        if flow.walk.places()[place].innermost_loop.is_none() {
            return Vec::new();
        }
        let fused = if instruction.opcode == "fusion" { flow.walk.module().callee(instruction, 0) } else { None };
        let around = flow.walk.computation(&flow.walk.places()[place]);
        let inside = fused.unwrap_or(around);
        let roots: Vec<(Option<i64>, &HloInstructionProto)> = match fused.map(|fused| (fused, fused.root())) {
            Some((fused, Some(root))) if root.opcode == "tuple" => {
                let elements = (0..).zip(fused.operands(root));
                elements.filter_map(|(nth, element)| Some((Some(nth), element?))).collect()
            }
            Some((_, root)) => root.map(|root| (None, root)).into_iter().collect(),
            None => vec![(None, instruction)],
        };
        let mut found = Vec::new();
        for (element, root) in roots {
            let update = Some(behind(inside, root)).filter(is_update);
            let Some(slice) = update.and_then(|update| inside.operand(update, 1)) else { continue };
            let elements = |of: &HloInstructionProto| of.shape.as_ref().map_or(0, crate::size::elements);
            let count = elements(root) / elements(slice).max(1);
            let node = element.map_or(flow.nodes(point).start, |element| flow.element(point, element).start);
            if count > 1 && flow.nodes(point).contains(&node) {
                let scope = self.scope_of_slice(flow, point, fused, behind(inside, slice));
                found.push((flow.find(node), (scope, count)));
            }
        }
        found
    }

    /// Returns the scope of a slice: of what makes it, inside the fusion that writes it or before.
    fn scope_of_slice(
        &mut self,
        flow: &mut Flow<'_, '_>,
        point: usize,
        fused: Option<&Computation<'_>>,
        slice: &HloInstructionProto,
    ) -> u32 {
        let position = match fused {
            Some(_) if slice.opcode == "parameter" => usize::try_from(slice.parameter_number).ok(),
            Some(_) => None,
            None => Some(1),
        };
        if let Some(operand) = position.and_then(|position| flow.operand(point, position)) {
            return self.scope_of_value(flow, operand);
        }
        let own = scope_of(op_name(slice));
        match fused.filter(|_| own.names.is_empty()) {
            Some(fused) => self.number(scope_of(name_within(fused))),
            None => self.number(own),
        }
    }

    /// Returns the scope of what makes a value: around a call, or before what only gives it another form.
    fn scope_of_value(&self, flow: &mut Flow<'_, '_>, mut point: usize) -> u32 {
        /// More than any compiler writes in a row.
        const MOST: usize = 16;
        for _ in 0..MOST {
            let node = flow.nodes(point).start;
            point = flow.class(node).definer as usize;
            let is_form = matches!(
                flow.instruction(point).opcode.as_str(),
                "bitcast" | "reshape" | "broadcast" | "copy" | "convert" | "transpose"
            );
            let is_named = !self.all[self.of_points[point] as usize].names.is_empty();
            match flow.operand(point, 0).filter(|_| is_form && !is_named) {
                Some(operand) => point = operand,
                None => break,
            }
        }
        self.of_points[point]
    }

    /// Returns the values that change if the scopes of some saved values are computed again, by position.
    fn again(&self, all: &[Lifetime], saved: &[&Saved], depth: usize) -> Vec<(usize, Lifetime)> {
        let names = |value: &Saved| &self.all[value.scope as usize].names[..depth];
        let mut starts: BTreeMap<&[String], u32> = BTreeMap::new();
        for value in saved {
            let start = starts.entry(names(value)).or_insert(value.first_backward);
            *start = (*start).min(value.first_backward);
        }
        let mut changed = Vec::new();
        for value in saved {
            let is_other = |&reader: &u32| {
                // An instruction without a scope reads for others that have one.
                let reader = &self.all[reader as usize].names;
                !reader.is_empty() && !reader.starts_with(names(value))
            };
            if value.backward_readers.iter().any(is_other) {
                continue;
            }
            let old = &all[value.position];
            let again = starts[names(value)].max(value.last_forward.saturating_add(1));
            let new = match value.slices {
                1 => old.without(value.last_forward, again),
                slices => Lifetime::new(old.class, old.bytes / slices, old.without(value.last_forward, again).ranges()),
            };
            changed.push((value.position, new));
        }
        changed
    }
}

fn is_update(instruction: &&HloInstructionProto) -> bool {
    instruction.opcode == "dynamic-update-slice"
}

/// Returns the instruction behind others that only change a value's form.
fn behind<'a>(computation: &Computation<'a>, mut value: &'a HloInstructionProto) -> &'a HloInstructionProto {
    /// More than any compiler writes in a row.
    const MOST: usize = 16;
    for _ in 0..MOST {
        let passes = matches!(value.opcode.as_str(), "bitcast" | "reshape" | "copy" | "convert" | "transpose");
        let own = passes && names(op_name(value)).is_empty();
        match computation.operand(value, 0).filter(|_| own || value.opcode == "bitcast") {
            Some(next) => value = next,
            None => break,
        }
    }
    value
}

impl Lifetime {
    /// Returns the buffer with no life after one time and before another.
    fn without(&self, after: u32, before: u32) -> Lifetime {
        let mut ranges = super::dataflow::Ranges::new();
        for (start, end) in self.ranges() {
            if start <= after {
                add_range(&mut ranges, (start, end.min(after)));
            }
            if end >= before {
                add_range(&mut ranges, (start.max(before), end));
            }
        }
        Lifetime::new(self.class, self.bytes, ranges)
    }
}
