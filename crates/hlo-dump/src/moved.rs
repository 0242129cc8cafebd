//! Sums over collectives.

use meshloom_analysis::Bounds;
use serde::Serialize;

/// Executions and bytes of collectives: the most, where branches differ, and the least.
#[derive(Serialize)]
pub struct Moved {
    executions: Option<u64>,
    moved_bytes: Option<u64>,
    executions_least: u64,
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
