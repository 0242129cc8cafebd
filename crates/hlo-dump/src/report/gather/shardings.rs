//! How values are sharded: of a run config by its rules, of other modules as they say it.

use meshloom::sharding::ShardingTable;
use meshloom_hlo::analysis::{AxisPart, ShardedValue, ValueKind, shardings};

use crate::input::Loaded;
use crate::report::ShardingRow;

pub fn rows(loaded: &Loaded) -> Vec<ShardingRow> {
    match loaded.run.as_ref().and_then(|run| run.lowered.sharded()).map(|sharded| &sharded.table) {
        Some(table) => of_rules(table),
        None => shardings(&loaded.module, loaded.mesh.as_ref()).iter().map(of_module).collect(),
    }
}

fn of_rules(table: &ShardingTable) -> Vec<ShardingRow> {
    let row = |row: &meshloom::sharding::ShardingRow| ShardingRow {
        value: row.name(),
        shape: row.ty.to_string(),
        sharding: row.spec.display(&table.mesh).to_string(),
        device_bytes: Some(table.bytes_per_device(row) as u64),
        whole_bytes: Some(row.ty.byte_count() as u64),
        origin: [table.origin(row), row.source()]
            .into_iter()
            .filter(|it| !it.is_empty())
            .collect::<Vec<_>>()
            .join(", "),
    };
    table.rows.iter().map(row).collect()
}

fn of_module(value: &ShardedValue) -> ShardingRow {
    let kind = match value.kind {
        ValueKind::Parameter => "argument",
        ValueKind::Result => "result",
        ValueKind::Annotated => "annotated",
    };
    let is_path = value.kind == ValueKind::Parameter && !value.op_name.is_empty();
    ShardingRow {
        value: if is_path { value.op_name.clone() } else { value.name.clone() },
        shape: value.shape.clone(),
        sharding: value.axes.as_ref().map_or_else(|| value.sharding.clone(), |axes| spec(axes)),
        device_bytes: value.device_bytes,
        whole_bytes: value.bytes,
        origin: value.source.as_ref().map_or(kind.to_owned(), |source| format!("{kind} at {source}")),
    }
}

/// As specs print: `[fsdp, _]`.
fn spec(axes: &[Vec<AxisPart>]) -> String {
    let dimension = |axes: &Vec<AxisPart>| match axes.as_slice() {
        [] => "_".to_owned(),
        [axis] => axis.to_string(),
        several => format!("({})", several.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
    };
    format!("[{}]", axes.iter().map(dimension).collect::<Vec<_>>().join(", "))
}
