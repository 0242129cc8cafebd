//! The changes that make a program need less memory, and how much less.
//!
//! Each remedy is applied to the module or to its values, and the peak computed again: [`Remedy::saves`] is the
//! difference, also where the peak moves to another instruction. A compiler that gets the changed program fuses and
//! orders it anew, so the figures are estimates.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::{LiveBuffer, MemoryError, Settled, remat};
use crate::axes::AxisPart;
use crate::shardings::{axes_of, is_partitioned};
use crate::size::{padded_bytes, shape_bytes};
use crate::walk::Walk;
use meshloom_hlo::is_tuple;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, ShapeProto};
use meshloom_hlo::source::{Sources, op_name};

/// A way to make a program smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RemedyKind {
    /// The forward pass of a scope is computed again in the backward pass: `jax.checkpoint`.
    Remat,
    /// An argument is donated: an output lies in its memory.
    Donation,
    /// An argument that devices along a mesh axis hold several times is split over the axis.
    MeshAxis,
    /// Arrays whose tiles are mostly padding get other dimensions.
    Padding,
}

/// A way to make a program smaller, and what it saves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Remedy {
    /// The way.
    pub kind: RemedyKind,
    /// The part of the program that it is applied to: a scope, in which numbers are `*`; an argument; an array.
    pub of: String,
    /// The mesh axis, if it is one of a mesh axis.
    pub axis: Option<String>,
    /// The number of values that it changes.
    pub values: u64,
    /// The bytes that it saves of the peak.
    pub saves: u64,
    /// The peak that is left.
    pub peak: u64,
}

/// Returns the remedies that save something at the peak, the best first. Their savings are taken off `peak`, which a
/// compiler may know better than the estimate; without it, off the estimated one. The mesh, and the program before its
/// compiler, whose parameters state how they are split, are needed for [`RemedyKind::MeshAxis`].
///
/// # Errors
/// The module is too large.
pub fn remedies(
    module: &HloModuleProto,
    peak: Option<u64>,
    before: Option<&HloModuleProto>,
    mesh: Option<&Mesh>,
) -> Result<Vec<Remedy>, MemoryError> {
    let walk = Walk::of(module);
    let mut settled = Settled::of(module, &walk, &[])?;
    let heap = settled.ports.heap(&mut settled.flow, &settled.handovers);
    let scopes = remat::scopes(&mut settled.flow, &heap);
    let now = Settled::of(module, &walk, &[])?.memory(Sources::of(module));
    let mut found: Vec<Remedy> = Vec::new();
    for scope in scopes {
        let saves = scope.before - scope.after;
        found.push(Remedy {
            kind: RemedyKind::Remat,
            of: scope.path,
            axis: None,
            values: scope.values as u64,
            saves,
            peak: now.peak.saturating_sub(saves),
        });
    }
    found.extend(donations(module, &walk, now.peak)?);
    if let Some(mesh) = mesh {
        found.extend(split_arguments(module, before.unwrap_or(module), mesh, now.peak));
    }
    found.extend(padded(&now.live_at_peak, now.peak));
    found.retain(|remedy| remedy.saves > 0);
    let peak = peak.unwrap_or(now.peak);
    found.iter_mut().for_each(|remedy| remedy.peak = peak.saturating_sub(remedy.saves));
    found.sort_by(|a, b| (Reverse(a.saves), a.kind, &a.of, &a.axis).cmp(&(Reverse(b.saves), b.kind, &b.of, &b.axis)));
    Ok(found)
}

/// Returns the scopes of an `op_name`, with numbers as `*`.
pub fn folded(op_name: &str) -> String {
    remat::names(op_name).into_iter().map(remat::folded_name).collect::<Vec<_>>().join("/")
}

/// Returns the entry's parameters by number.
fn parameters(module: &HloModuleProto) -> BTreeMap<i64, &HloInstructionProto> {
    let entry = module.computations.iter().find(|computation| computation.id == module.entry_computation_id);
    let instructions = entry.map_or(&[][..], |entry| &entry.instructions);
    let parameters = instructions.iter().filter(|instruction| instruction.opcode == "parameter");
    parameters.map(|parameter| (parameter.parameter_number, parameter)).collect()
}

/// Returns the argument of the traced function that a parameter is of: `state` of `state.params['w']`.
fn argument(parameter: &HloInstructionProto) -> String {
    let path = op_name(parameter);
    let root = path.split(['[', '.']).next().unwrap_or_default();
    if root.is_empty() { parameter.name.clone() } else { root.to_owned() }
}

/// An output that could lie in an argument: its position in the result, and the number of the parameter.
pub(super) type Pairing = (i64, i64);

/// Returns by argument the outputs of its type that lie in no argument yet.
fn donatable(module: &HloModuleProto, donated: &[Pairing]) -> BTreeMap<String, Vec<Pairing>> {
    type Type<'m> = (i32, &'m [i64]);
    fn of(shape: &ShapeProto) -> Type<'_> {
        (shape.element_type, &shape.dimensions)
    }
    let entry = module.computations.iter().find(|computation| computation.id == module.entry_computation_id);
    let root = entry.and_then(|entry| entry.instructions.iter().find(|it| it.id == entry.root_id));
    let Some(shape) = root.and_then(|root| root.shape.as_ref()) else { return BTreeMap::new() };
    let outputs: Vec<(i64, &ShapeProto)> =
        if is_tuple(shape) { (0..).zip(&shape.tuple_shapes).collect() } else { vec![(0, shape)] };
    let entries = module.input_output_alias.iter().flat_map(|alias| &alias.entries);
    let stated = entries.map(|it| (it.output_shape_index.first().copied().unwrap_or(0), it.parameter_number));
    let (used, given): (FxHashSet<i64>, FxHashSet<i64>) = stated.chain(donated.iter().copied()).unzip();
    let mut free: FxHashMap<Type<'_>, Vec<i64>> = FxHashMap::default();
    for (index, shape) in outputs.into_iter().filter(|(index, shape)| !is_tuple(shape) && !used.contains(index)) {
        free.entry(of(shape)).or_default().push(index);
    }
    let mut by_argument: BTreeMap<String, Vec<(i64, &ShapeProto)>> = BTreeMap::new();
    for (number, parameter) in parameters(module) {
        if let Some(shape) = parameter.shape.as_ref().filter(|shape| !given.contains(&number) && !is_tuple(shape)) {
            by_argument.entry(argument(parameter)).or_default().push((number, shape));
        }
    }
    let mut pairs = BTreeMap::new();
    for (argument, parameters) in by_argument {
        let mut taken: FxHashMap<Type<'_>, usize> = FxHashMap::default();
        let mut found: Vec<Pairing> = Vec::new();
        for (number, shape) in parameters {
            let nth = taken.entry(of(shape)).or_default();
            if let Some(&output) = free.get(&of(shape)).and_then(|outputs| outputs.get(*nth)) {
                *nth += 1;
                found.push((output, number));
            }
        }
        if !found.is_empty() {
            pairs.insert(argument, found);
        }
    }
    pairs
}

/// Donates each argument that an output could lie in, and all of them together.
fn donations(module: &HloModuleProto, walk: &Walk<'_>, peak: u64) -> Result<Vec<Remedy>, MemoryError> {
    /// The most arguments that are tried one by one: for each the whole peak is computed.
    const MOST_ARGUMENTS: usize = 4;
    let by_number = parameters(module);
    let bytes = |pairs: &[Pairing]| {
        let shapes = pairs.iter().filter_map(|(_, number)| by_number.get(number)?.shape.as_ref());
        shapes.fold(0u64, |sum, shape| sum.saturating_add(padded_bytes(shape).unwrap_or(0)))
    };
    let mut tried: Vec<(String, Vec<Pairing>)> = donatable(module, &[]).into_iter().collect();
    tried.sort_by_key(|(_, pairs)| Reverse(bytes(pairs)));
    tried.truncate(MOST_ARGUMENTS);
    let mut all: Vec<Pairing> = Vec::new();
    let mut names = Vec::new();
    for (name, _) in &tried {
        // Two arguments may want the same outputs: each output lies in one of them.
        if let Some(pairs) = donatable(module, &all).remove(name) {
            all.extend(pairs);
            names.push(name.as_str());
        }
    }
    if names.len() > 1 {
        let names = names.join(", ");
        tried.push((names, all));
    }
    let remedy = |(of, pairs): (String, Vec<Pairing>)| {
        let then = Settled::of(module, walk, &pairs)?.memory(Sources::of(module));
        let (values, saves) = (pairs.len() as u64, peak.saturating_sub(then.peak));
        Ok(Remedy { kind: RemedyKind::Donation, of, axis: None, values, saves, peak: peak - saves })
    };
    tried.into_iter().map(remedy).collect()
}

/// Splits the arguments that devices along a mesh axis hold several times. An output that has the type of such an
/// argument, and lies in no argument, is split with it.
fn split_arguments(module: &HloModuleProto, stated: &HloModuleProto, mesh: &Mesh, peak: u64) -> Vec<Remedy> {
    let is_local = is_partitioned(stated);
    let shapes = parameters(module);
    let outputs: FxHashMap<i64, i64> =
        donatable(module, &[]).into_values().flatten().map(|(output, number)| (number, output)).collect();
    let mut found: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for (number, parameter) in parameters(stated) {
        let Some((sharding, shape)) = parameter.sharding.as_deref().zip(parameter.shape.as_ref()) else { continue };
        let Some(axes) = axes_of(sharding, shape.dimensions.len(), mesh) else { continue };
        // The memory of a device: the compiled module says so, if there is one.
        let held = shapes.get(&number).and_then(|it| it.shape.as_ref()).unwrap_or(shape);
        let bytes = padded_bytes(held).or_else(|| shape_bytes(held)).unwrap_or(0);
        for axis in mesh.axes().filter(|&axis| mesh.size(axis) > 1) {
            let (name, size) = (mesh.name(axis), mesh.size(axis) as u64);
            let is_split = axes.iter().flatten().any(|part| part.name == name);
            if is_split || !divides(shape, &axes, mesh, is_local, size) {
                continue;
            }
            let copies = 1 + u64::from(outputs.contains_key(&number));
            let saves = (bytes - bytes / size).saturating_mul(copies);
            let (values, sum) = found.entry((argument(parameter), name.to_owned())).or_default();
            (*values, *sum) = (*values + 1, sum.saturating_add(saves));
        }
    }
    let remedy = |((of, axis), (values, saves)): ((String, String), (u64, u64))| {
        let saves = saves.min(peak);
        Remedy { kind: RemedyKind::MeshAxis, of, axis: Some(axis), values, saves, peak: peak - saves }
    };
    found.into_iter().map(remedy).collect()
}

/// Whether a dimension of an argument, as a device holds it, can be split once more.
fn divides(shape: &ShapeProto, axes: &[Vec<AxisPart>], mesh: &Mesh, is_local: bool, size: u64) -> bool {
    let parts = |axes: &[AxisPart]| {
        let sizes = axes.iter().map(|axis| match axis.part {
            Some((_, size)) => size,
            None => mesh.axis(&axis.name).map_or(1, |axis| mesh.size(axis) as u64),
        });
        if is_local { 1 } else { sizes.fold(1, u64::saturating_mul).max(1) }
    };
    let whole = [];
    shape.dimensions.iter().enumerate().any(|(nth, &dimension)| {
        let dimension = u64::try_from(dimension).unwrap_or(0);
        let parts = parts(axes.get(nth).map_or(&whole[..], Vec::as_slice));
        dimension > 0 && dimension.is_multiple_of(parts.saturating_mul(size))
    })
}

/// Returns the arrays at the peak that are padded most, by type.
pub(super) fn padded(live: &[LiveBuffer], peak: u64) -> Vec<Remedy> {
    let mut found: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    // A tenth is what sizes that are no powers of two need.
    for buffer in live.iter().filter(|buffer| buffer.padding > buffer.bytes / 10) {
        let (values, sum) = found.entry(&buffer.shape).or_default();
        (*values, *sum) = (*values + 1, sum.saturating_add(buffer.padding));
    }
    let remedy = |(of, (values, saves)): (&str, (u64, u64))| {
        let saves = saves.min(peak);
        Remedy { kind: RemedyKind::Padding, of: of.to_owned(), axis: None, values, saves, peak: peak - saves }
    };
    found.into_iter().map(remedy).collect()
}
