//! The values that every device holds whole, though there are several devices.

use meshloom_analysis::has_local_shapes;
use meshloom_analysis::{ShardedValue, ValueKind, shardings};

use crate::input::Loaded;
use crate::output::human_bytes;

/// Returns parameters of at least `least` bytes that are not split at all, and values that our partitioner had to
/// gather for an op. A module that does not state how its parameters are split is one finding.
pub fn found(loaded: &Loaded, least: u64) -> Vec<String> {
    if loaded.device_count() == 1 {
        return Vec::new();
    }
    let values = shardings(&loaded.module, loaded.mesh.as_ref());
    let parameters: Vec<&ShardedValue> = values.iter().filter(|value| value.kind == ValueKind::Parameter).collect();
    let mut found: Vec<String> = match parameters.is_empty() {
        true if has_local_shapes(&loaded.module) => {
            vec!["the module is in the local form, which does not say how its parameters are split".to_owned()]
        }
        true if has_parameters(loaded) => vec!["the module does not say how its parameters are split".to_owned()],
        _ => parameters.iter().filter(|value| is_whole(value, least)).map(|value| describe(value)).collect(),
    };
    if let Some(run) = &loaded.run {
        found.extend(run.gathered_for_ops());
    }
    found
}

fn has_parameters(loaded: &Loaded) -> bool {
    let entry = loaded.module.entry_computation_id;
    let computation = loaded.module.computations.iter().find(|computation| computation.id == entry);
    computation.is_some_and(|it| it.instructions.iter().any(|instruction| instruction.opcode == "parameter"))
}

fn is_whole(value: &ShardedValue, least: u64) -> bool {
    value.parts == 1 && value.bytes.is_some_and(|bytes| bytes >= least)
}

fn describe(value: &ShardedValue) -> String {
    let path = if value.op_name.is_empty() { format!("%{}", value.name) } else { value.op_name.clone() };
    let bytes = value.bytes.map_or("?".to_owned(), human_bytes);
    format!("parameter {path} {} is whole on every device ({bytes})", value.shape)
}
