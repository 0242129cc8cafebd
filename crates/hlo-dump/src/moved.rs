//! Sums over collectives.

use meshloom_analysis::Bounds;
use schemars::JsonSchema;
use serde::Serialize;

/// Executions and bytes of collectives: the most, where branches differ, and the least.
#[derive(JsonSchema, Serialize)]
pub struct Moved {
    /// The most executions in one run of the program; null if the number is not known.
    executions: Option<u64>,
    /// The most bytes that one device sends in them; null if the number is not known.
    moved_bytes: Option<u64>,
    /// The fewest executions, whichever branches are taken.
    executions_least: u64,
    /// The fewest bytes that one device sends, whichever branches are taken.
    moved_bytes_least: u64,
}

impl Moved {
    pub fn of(executions: Bounds, moved: Bounds) -> Moved {
        Moved {
            executions: executions.most,
            moved_bytes: moved.most,
            executions_least: executions.least,
            moved_bytes_least: moved.least,
        }
    }

    pub fn executions(&self) -> Bounds {
        Bounds { least: self.executions_least, most: self.executions }
    }

    pub fn moved_bytes(&self) -> Bounds {
        Bounds { least: self.moved_bytes_least, most: self.moved_bytes }
    }
}
