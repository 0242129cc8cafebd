//! The reason why a value of a foreign module has its sharding, as far as the module states it.
//!
//! A module states some shardings and leaves the others to propagation inside XLA, which keeps no record of where each
//! came from. So this analysis finds stated shardings: at the value itself, or else at the nearest values that it is
//! computed from or that are computed from it, with the operations in between (`stated.rs`). Propagation starts there.

mod stated;

use std::collections::BTreeSet;

use serde::Serialize;

use super::axes::AxisPart;
use super::index::{Computation, Module};
use super::shardings::{axes_of, is_partitioned};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, OpSharding};
use meshloom_hlo::source::{Sources, op_name};
use meshloom_hlo::suggest::did_you_mean;
use meshloom_hlo::text::{Layouts, print_shape, print_sharding};
use stated::StatedShardings;

/// An instruction on the way to a stated sharding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TracedStep {
    /// Its name.
    pub name: String,
    /// Its opcode.
    pub opcode: String,
    /// Its shape.
    pub shape: String,
    /// The sharding that it states, if any.
    pub sharding: Option<String>,
    /// For each dimension, the mesh axes that split it by that sharding, where the mesh is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axes: Option<Vec<Vec<AxisPart>>>,
    /// The scopes and the op of its metadata.
    pub op_name: String,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
}

/// The way from a value to a stated sharding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatedFrom {
    /// The steps from the value to the instruction that states a sharding, if one was found.
    pub steps: Vec<TracedStep>,
    /// Whether the module is already partitioned. Shapes are then local, and stated shardings are those that were asked
    /// for.
    pub partitioned: bool,
}

/// The error for a name that no value has.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no tensor is called \"{query}\"{suggestion}; name an instruction (dot.5), its op_name \
     (attention/dot_general), a part of either, or a line (model.py:42)"
)]
pub struct UnknownValue {
    /// The name that was asked for.
    pub query: String,
    /// A similar name, as part of a sentence; empty if there is none.
    pub suggestion: String,
}

meshloom_hlo::debug_is_message!(UnknownValue);

/// Traces the shardings of the values with this name. The name may be an instruction's name; the `op_name` of its
/// metadata or the end of that; `file:line`; or else words of the `op_name` (`qkv` of `p['qkv']`), words of the name
/// (`w` of `w.1`), or any part of either. The first of these that finds anything counts. At most `most` values are
/// traced.
///
/// # Errors
/// No value has the name.
pub fn trace_sharding(
    module: &HloModuleProto,
    mesh: Option<&Mesh>,
    query: &str,
    most: usize,
) -> Result<Vec<StatedFrom>, UnknownValue> {
    let (index, sources, partitioned) = (Module::new(module), Sources::of(module), is_partitioned(module));
    let query = query.trim_start_matches('%');
    let is_described = |it: &HloInstructionProto| {
        let name = op_name(it);
        let at_line = || {
            sources.line(it).is_some_and(|line| {
                let line = line.to_string();
                line == query || line.ends_with(&format!("/{query}"))
            })
        };
        name == query || name.ends_with(&format!("/{query}")) || at_line()
    };
    let find = |is_it: &dyn Fn(&HloInstructionProto) -> bool| -> Vec<(usize, &HloInstructionProto)> {
        let all = index.computations().iter().enumerate();
        all.flat_map(|(number, it)| it.instructions().iter().map(move |instruction| (number, instruction)))
            .filter(|(_, instruction)| is_it(instruction))
            .take(most)
            .collect()
    };
    type IsIt<'f> = &'f dyn Fn(&HloInstructionProto) -> bool;
    let ways: [IsIt<'_>; 6] = [
        &|it| it.name == query,
        &is_described,
        &|it| has_words(op_name(it), query),
        &|it| has_words(&it.name, query),
        &|it| op_name(it).contains(query),
        &|it| it.name.contains(query),
    ];
    // An empty text is part of every text.
    let found = ways.iter().filter(|_| !query.is_empty()).map(|way| find(way)).find(|found| !found.is_empty());
    let Some(found) = found else {
        let all = || index.computations().iter().flat_map(Computation::instructions);
        let names = all().flat_map(|it| [it.name.as_str(), op_name(it)].into_iter().chain(words(op_name(it))));
        let names: BTreeSet<&str> = names.collect();
        return Err(UnknownValue { query: query.to_owned(), suggestion: did_you_mean(query, names) });
    };
    let search = StatedShardings::of(module, &index);
    let trace = |(number, instruction): (usize, &HloInstructionProto)| {
        let way = search.nearest(number, instruction);
        let steps = way.into_iter().map(|(it, sharding)| step(it, sharding, mesh, sources)).collect();
        StatedFrom { steps, partitioned }
    };
    Ok(found.into_iter().map(trace).collect())
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter| !is_word(letter)).filter(|word| !word.is_empty())
}

/// Whether a text contains another, with no letter before or after it that would make another word of it.
fn has_words(text: &str, query: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(is_word);
    !query.is_empty()
        && text.match_indices(query).any(|(at, _)| !text[..at].ends_with(is_word) && ends(&text[at + query.len()..]))
}

fn step(
    instruction: &HloInstructionProto,
    sharding: Option<&OpSharding>,
    mesh: Option<&Mesh>,
    sources: Sources<'_>,
) -> TracedStep {
    let rank = instruction.shape.as_ref().map_or(0, |shape| shape.dimensions.len());
    TracedStep {
        name: instruction.name.clone(),
        opcode: instruction.opcode.clone(),
        shape: instruction.shape.as_ref().map(|shape| print_shape(shape, Layouts::None)).unwrap_or_default(),
        sharding: sharding.map(print_sharding),
        axes: sharding.zip(mesh).and_then(|(sharding, mesh)| axes_of(sharding, rank, mesh)),
        op_name: op_name(instruction).to_owned(),
        source: sources.line(instruction).map(|line| line.to_string()),
    }
}
