//! `debug_sharding`: the spec of every tensor with logical axes.

use std::fmt;

use indexmap::IndexMap;
use meshloom_hlo::table::Table;

use super::{Mesh, Role, RuleSets, Spec};
use crate::ir::{AxisNames, Origin, TensorType};

/// Every tensor of a program that rules sharded: its ports, and the values that were given axis names.
///
/// Its text is a table with type, logical axes, spec, bytes, source line and rules of each. A value inside a loop has
/// its type there. Where a line names a value and its cotangent differently, there is a row for each.
#[derive(Clone, Debug)]
pub struct ShardingTable {
    /// The mesh.
    pub mesh: Mesh,
    /// The rules.
    pub rules: RuleSets,
    /// The tensors: inputs in order, then named values in the order of the program.
    pub rows: Vec<ShardingRow>,
}

const NO_RULE: &str = "no rule for";
const NO_AXIS: &str = "another dimension has the axes of every rule for";

/// One tensor that rules sharded.
#[derive(Clone, Debug)]
pub struct ShardingRow {
    /// The kind of the tensor.
    pub kind: RowKind,
    /// The role whose rules sharded it.
    pub role: Role,
    /// Its global type.
    pub ty: TensorType,
    /// Its logical axis names; empty for a port without any.
    pub axes: AxisNames,
    /// Its spec.
    pub spec: Spec,
    /// For each dimension the place of its rule in the list of its role; `None` if no rule has the name, or none that
    /// has it could apply.
    pub by: Vec<Option<usize>>,
}

/// The kind of a row's tensor.
#[derive(Clone, Debug)]
pub enum RowKind {
    /// An input of the program.
    Input {
        /// Its path, or its number.
        path: String,
    },
    /// A value that was given names.
    Named(Origin),
}

impl ShardingRow {
    /// The path of an input, the scope of a named value.
    pub fn name(&self) -> String {
        match &self.kind {
            RowKind::Input { path } => path.clone(),
            RowKind::Named(origin) => origin.scope.path(),
        }
    }

    /// `FILE:LINE` of the call that gave it its names; empty for an input.
    pub fn source(&self) -> String {
        match &self.kind {
            RowKind::Input { .. } => String::new(),
            RowKind::Named(origin) => origin.source().unwrap_or_default(),
        }
    }
}

impl ShardingTable {
    /// Bytes of a row's tensor that each device holds.
    pub fn bytes_per_device(&self, row: &ShardingRow) -> usize {
        row.ty.byte_count() / row.spec.parts(&self.mesh).max(1)
    }

    /// Where the rules of a row were written, each once, and the names that no rule settled.
    pub fn origin(&self, row: &ShardingRow) -> String {
        if row.axes.is_empty() {
            return "no axis names".to_owned();
        }
        let rules = self.rules.get(row.role).rules();
        let mut parts: Vec<String> = Vec::new();
        for rule in row.by.iter().flatten().filter_map(|&place| rules.get(place)) {
            if !parts.contains(&rule.origin) {
                parts.push(rule.origin.clone());
            }
        }
        let open = row.axes.iter().zip(&row.by).filter(|(name, by)| !name.is_none() && by.is_none());
        let (without, lost): (Vec<String>, Vec<String>) =
            open.map(|(name, _)| name.text()).partition(|name| !self.has_rule(row, name));
        for (what, names) in [(NO_RULE, without), (NO_AXIS, lost)] {
            if !names.is_empty() {
                parts.push(format!("{what} {}", names.join(", ")));
            }
        }
        parts.join("; ")
    }

    /// The reason why no rule settled a name of a row.
    pub(super) fn without(&self, row: &ShardingRow, name: &str) -> String {
        format!("{} {name}", if self.has_rule(row, name) { NO_AXIS } else { NO_RULE })
    }

    fn has_rule(&self, row: &ShardingRow, name: &str) -> bool {
        self.rules.get(row.role).first_for(name).is_some()
    }

    fn cells(&self, row: &ShardingRow) -> [String; 7] {
        let dash = |name: String| if name.is_empty() { "-".to_owned() } else { name };
        let axes: Vec<String> = row.axes.iter().map(|name| dash(name.text())).collect();
        [
            row.name(),
            row.ty.to_string(),
            axes.join(" "),
            row.spec.display(&self.mesh).to_string(),
            self.bytes_per_device(row).to_string(),
            row.source(),
            self.origin(row),
        ]
    }

    /// Bytes of all inputs of a role that each device holds.
    pub fn input_bytes_per_device(&self, role: Role) -> usize {
        let of_role = |row: &&ShardingRow| row.role == role && matches!(row.kind, RowKind::Input { .. });
        self.rows.iter().filter(of_role).map(|row| self.bytes_per_device(row)).sum()
    }
}

impl fmt::Display for ShardingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values with the same names at one place, such as keys and values, are one row.
        let mut counts: IndexMap<[String; 7], usize> = IndexMap::new();
        self.rows.iter().for_each(|row| *counts.entry(self.cells(row)).or_default() += 1);
        let table = Table::of(&counts)
            .text("tensor", |(cells, _)| &cells[0])
            .text("type", |(cells, _)| &cells[1])
            .text("logical axes", |(cells, _)| &cells[2])
            .text("spec", |(cells, _)| &cells[3])
            .number("bytes per device", |(cells, _)| &cells[4])
            .text("source", |(cells, _)| &cells[5])
            .text("rules", |(cells, _)| &cells[6])
            .number("times", |(_, count)| *count);
        writeln!(f, "mesh {}\n{}", self.mesh, table.markdown())?;
        let bytes = |role| self.input_bytes_per_device(role);
        write!(
            f,
            "bytes per device: parameters {}, optimizer state {}, other inputs {}",
            bytes(Role::Params),
            bytes(Role::Optimizer),
            bytes(Role::Compute)
        )
    }
}
