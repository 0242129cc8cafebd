//! The parts that the rows of `hlo-dump plan` have in common: traffic and memory.

use anyhow::{Context, Result};
use indexmap::IndexMap;
use meshloom::partition::{CollectiveKind, Ledger};
use serde::Serialize;

use crate::output;

/// Collectives of one kind over the same mesh axes.
#[derive(Serialize)]
pub struct Traffic {
    kind: &'static str,
    axes: Vec<String>,
    /// Bytes of the operands on one device, in all executions of one step.
    bytes: u64,
    /// Bytes that one device sends.
    moved_bytes: u64,
}

/// The memory of a device, in bytes.
#[derive(Serialize)]
pub struct Needs {
    pub arguments: u64,
    pub outputs: u64,
    pub temporaries: u64,
}

/// Adds up the collectives of a step by kind and axes.
pub fn traffic(collectives: &Ledger) -> Result<Vec<Traffic>> {
    let mut by_axes: IndexMap<(CollectiveKind, &[String]), Traffic> = IndexMap::new();
    for it in collectives.iter()? {
        // Loops of a train step have known lengths; code that may not run counts as if it did.
        let times =
            it.executions.bound().with_context(|| format!("the number of executions of {} is not known", it.name))?;
        let nothing = Traffic { kind: it.kind.name(), axes: it.axes.clone(), bytes: 0, moved_bytes: 0 };
        let entry = by_axes.entry((it.kind, &it.axes)).or_insert(nothing);
        entry.bytes += it.bytes * times;
        entry.moved_bytes += it.moved_bytes * times;
    }
    Ok(by_axes.into_values().collect())
}

/// Returns the bytes that a device sends in a step, by axes: `fsdp 3.00 MiB, stage 34.0 MiB`.
pub fn sent(traffic: &[Traffic]) -> String {
    let mut by_axes: IndexMap<String, u64> = IndexMap::new();
    for it in traffic {
        *by_axes.entry(it.axes.join(",")).or_default() += it.moved_bytes;
    }
    by_axes.sort_keys();
    by_axes.iter().map(|(axes, bytes)| format!("{axes} {}", output::human_bytes(*bytes))).collect::<Vec<_>>().join(", ")
}
