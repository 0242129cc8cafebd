//! The collectives that one partitioner has and the other has not, by scope, kind and axes.
//!
//! Names of instructions mean nothing here. Two transfers of one kind over the same axes that send as much are the same
//! one, wherever each compiler says that it comes from.

use std::cmp::Reverse;

use indexmap::IndexMap;
use meshloom_analysis::ModuleCollective;
use schemars::JsonSchema;
use serde::Serialize;

use super::sides::PartitionedSide;
use crate::collectives::{axes_of, where_from};
use crate::moved::Moved;

/// The collectives of one kind, over the same axes, in one scope.
#[derive(JsonSchema, Serialize)]
pub struct Difference {
    /// The kind: `all-gather`, `all-reduce` and others.
    pub kind: &'static str,
    /// The mesh axes, or else the devices in short.
    pub axes: String,
    /// The shape of the whole value that the largest of them moves.
    pub tensor: String,
    /// The scope path and op of that one.
    pub op_name: String,
    /// Its source line as `file:line`, if the module has it.
    pub source: Option<String>,
    /// Where it comes from, in the words of tables.
    #[serde(skip)]
    pub from: String,
    /// The sums of meshloom's program.
    pub ours: Moved,
    /// The sums of XLA's program.
    pub theirs: Moved,
    /// The bytes that a device sends with XLA's beyond those with ours; less than 0 where ours sends more. Null if they
    /// are not known.
    pub more_bytes: Option<i64>,
}

/// A scope, a kind and axes.
type Key = (String, &'static str, String);

/// The collectives of a key, ours and theirs.
type Pair = [Vec<ModuleCollective>; 2];

/// Returns the differences, first those where XLA sends most beyond ours.
pub fn differences(ours: &PartitionedSide, theirs: &PartitionedSide) -> Vec<Difference> {
    let mut groups: IndexMap<Key, Pair> = IndexMap::new();
    for (side, found) in [ours, theirs].into_iter().enumerate() {
        for entry in &found.found.entries {
            let key = (scope(&entry.op_name), entry.kind.name(), axes_of(entry));
            groups.entry(key).or_default()[side].push(entry.clone());
        }
    }
    let bytes = |[own, other]: &Pair| {
        let most = |side: &PartitionedSide, entries: &Vec<ModuleCollective>| {
            side.found.some(entries.clone()).moved_bounds().most
        };
        [most(ours, own), most(theirs, other)]
    };
    groups.retain(|_, pair| !matches!(bytes(pair), [Some(own), Some(other)] if own == other));
    drop_moved(&mut groups, &bytes);
    let sums = |side: &PartitionedSide, entries: Vec<ModuleCollective>| {
        let found = side.found.some(entries);
        Moved::of(found.execution_bounds(), found.moved_bounds())
    };
    let difference = |((_, kind, axes), [own, other]): (Key, Pair)| {
        let (side, entries) = if other.is_empty() { (ours, &own) } else { (theirs, &other) };
        let largest = entries.iter().max_by_key(|it| it.total_moved_bytes().bound().unwrap_or(u64::MAX));
        let tensor = largest.map(|it| side.tensor(it.place, &it.name).to_owned()).unwrap_or_default();
        let op_name = largest.map(|it| it.op_name.clone()).unwrap_or_default();
        let from = largest.map(where_from).unwrap_or_default();
        let source = largest.and_then(|it| it.source.clone());
        let (ours, theirs) = (sums(ours, own), sums(theirs, other));
        let signed = |moved: &Moved| moved.moved_bytes().most.and_then(|bytes| i64::try_from(bytes).ok());
        let more_bytes = signed(&theirs).zip(signed(&ours)).map(|(theirs, ours)| theirs.saturating_sub(ours));
        Difference { kind, axes, tensor, op_name, source, from, ours, theirs, more_bytes }
    };
    let mut found: Vec<Difference> = groups.into_iter().map(difference).collect();
    found.sort_by_key(|it| Reverse(it.more_bytes.unwrap_or(i64::MAX)));
    found
}

/// Drops collectives of one kind over the same axes that send as much in different scopes: one by one, or all together.
fn drop_moved(groups: &mut IndexMap<Key, Pair>, bytes: &impl Fn(&Pair) -> [Option<u64>; 2]) {
    let alone = |pair: &Pair, side: usize| pair[1 - side].is_empty().then(|| bytes(pair)[side]).flatten();
    let mut gone: Vec<Key> = Vec::new();
    for (key, pair) in &*groups {
        let Some(own) = alone(pair, 0) else { continue };
        let is_same = |(other, pair): &(&Key, &Pair)| {
            other.1 == key.1 && other.2 == key.2 && alone(pair, 1) == Some(own) && !gone.contains(other)
        };
        let same = groups.iter().find(is_same).map(|(other, _)| other.clone());
        gone.extend(same.into_iter().flat_map(|other| [key.clone(), other]));
    }
    groups.retain(|key, _| !gone.contains(key));
    let mut sums: IndexMap<(&'static str, String), Option<[u64; 2]>> = IndexMap::new();
    for ((_, kind, axes), pair) in &*groups {
        let sum = sums.entry((kind, axes.clone())).or_insert(Some([0, 0]));
        *sum = match (*sum, bytes(pair)) {
            (Some([own, other]), [Some(more), Some(more_other)]) => {
                Some([own.saturating_add(more), other.saturating_add(more_other)])
            }
            _ => None,
        };
    }
    groups.retain(
        |(_, kind, axes), _| !matches!(sums.get(&(*kind, axes.clone())), Some(Some([own, other])) if own == other),
    );
}

/// Returns the scopes of a collective without those that only one of the compilers keeps: calls of functions that JAX
/// made.
fn scope(op_name: &str) -> String {
    let path = op_name.split_once('[').map_or(op_name, |(path, _)| path);
    let scopes: Vec<&str> = path.rsplit_once('/').map_or("", |(scopes, _)| scopes).split('/').collect();
    let is_call = |name: &str| matches!(name, "call" | "closed_call") || name.starts_with("jit(");
    let kept = scopes.iter().enumerate().filter(|(at, name)| *at == 0 || !is_call(name)).map(|(_, name)| *name);
    kept.collect::<Vec<_>>().join("/")
}
