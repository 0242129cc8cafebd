//! The ledger: every collective of a partitioned program, with its bytes, its frequency and the line that caused it.
//!
//! It is read off the local graph, so it is known before XLA sees the program. The graph is walked in the order in
//! which it is emitted; collectives are numbered as their channels are, so that an entry has the name of its
//! instruction in the module. A function that is called twice is emitted once: it has an entry for each call, under one
//! name.
//!
//! [`Ledger`] is data to assert on:
//!
//! ```
//! # use meshloom::compile::{LowerOptions, lower};
//! # use meshloom::ir::DType::F32;
//! # use meshloom::partition::CollectiveKind;
//! # use meshloom::sharding::{Mesh, RuleSets, Rules};
//! # use meshloom::trace::{Function, TensorSpec};
//! # fn main() -> Result<(), meshloom::Error> {
//! # let rules = RuleSets::uniform(Rules::from_pairs(&[("rows", &["data"])])?);
//! # let spec = TensorSpec::new(F32, [16, 4]).with_axes(&["rows", ""]);
//! # let function = Function::trace("total", spec, |x| x.square().sum(..))?;
//! let mesh = Mesh::parse("data=8", 8)?;
//! let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
//! let ledger = lower(function.graph(), &options)?.collectives();
//! assert_eq!(ledger.kind(CollectiveKind::AllReduce).over("data").outside_loops().count()?, 1);
//! assert!(ledger.over("dta").count().is_err());
//! # Ok(())
//! # }
//! ```

mod select;
mod walk;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

pub use select::LedgerError;

use meshloom_analysis::{Amount, Branch};
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::table::Table;

use crate::ir::Phase;
use crate::ops::{Devices, Group, Op};

/// The kind of an op, with the devices that take part; `None` for an op that is no collective.
pub fn collective_of(op: &Op) -> Option<(CollectiveKind, &Group)> {
    match op.facts().devices {
        Devices::Exchange(kind, group) => Some((kind, group)),
        Devices::Alone | Devices::Rank(_) | Devices::Unknown => None,
    }
}

/// One collective of a program. Serialized, an element of what `hlo-dump collectives --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collective {
    /// The kind of the collective.
    pub kind: CollectiveKind,
    /// The mesh axes along which devices take part, major to minor.
    pub axes: Vec<String>,
    /// Devices of a group.
    pub group_size: usize,
    /// Values that it moves at once.
    #[serde(skip)]
    pub operand_count: usize,
    /// Bytes of all operands on one device, in one execution.
    pub bytes: u64,
    /// Bytes that one device sends in one execution, by [`CollectiveKind::moved_bytes`].
    #[serde(skip)]
    pub moved_bytes: u64,
    /// How often it runs in one run of the program: the product of the trip counts around it.
    pub executions: Amount,
    /// The branches of conditionals that it is in, outermost first. `executions` is the number where all of them are
    /// taken.
    #[serde(skip)]
    pub branches: Vec<Branch>,
    /// Loops around it.
    pub loop_depth: usize,
    /// The part of a training step for whose sake it runs: that of the op which reads its result or makes its operand.
    #[serde(skip)]
    pub phase: Phase,
    /// Names of nested scopes, joined by `/`.
    #[serde(skip)]
    pub scope: String,
    /// Name of the instruction in the emitted module.
    pub name: String,
    /// The user's source line as `file:line`, if a user wrote it.
    pub source: Option<String>,
}

/// The collectives of a program, or a selection of them: see the methods that filter.
///
/// A filter that names an axis, or a scope, which the program does not have makes a ledger whose every answer is that
/// error.
#[derive(Clone, Debug)]
pub struct Ledger {
    entries: Vec<Arc<Collective>>,
    names: Arc<Names>,
    error: Option<LedgerError>,
}

/// The names that filters may use.
#[derive(Debug, Default)]
struct Names {
    mesh: String,
    axes: Vec<String>,
    /// The scopes of all nodes, whether they communicate or not.
    scopes: Vec<String>,
}

/// A table with a row for each collective, or the error.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = match self.iter() {
            Ok(entries) => entries,
            Err(error) => return write!(f, "{error}"),
        };
        let table = Table::of(entries)
            .text("collective", |entry| &entry.name)
            .text("axes", |entry| entry.axes.join(","))
            .number("devices", |entry| entry.group_size)
            .number("bytes", |entry| entry.bytes)
            .number("moved", |entry| entry.moved_bytes)
            .number("times", |entry| entry.executions)
            .number("loops", |entry| entry.loop_depth)
            .text("phase", |entry| format!("{:?}", entry.phase).to_lowercase())
            .text("source", |entry| entry.source.as_deref().unwrap_or_default());
        write!(f, "{table}")
    }
}

/// The object that `hlo-dump collectives --json` prints.
impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries: Vec<&Collective> = self.iter().map_err(serde::ser::Error::custom)?.collect();
        let mut object = serializer.serialize_struct("Ledger", 2)?;
        object.serialize_field("schema", &Ledger::SCHEMA)?;
        object.serialize_field("collectives", &entries)?;
        object.end()
    }
}
