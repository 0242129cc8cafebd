//! Facts about a lowered program: its collectives and its memory.

use meshloom_analysis::{ModuleMemory, memory};

use super::{Error, Lowered};
use crate::partition::{Ledger, LedgerError};
use crate::sharding::{Explanation, Propagated, UnknownTensor, explain, propagate_with_sub_axes};

impl Lowered {
    /// Whether XLA decides where values live and what moves.
    fn partitioned_by_xla(&self) -> bool {
        self.partitioned().is_none() && self.mesh().is_some_and(|mesh| mesh.device_count() > 1)
    }

    /// Every collective of the program. If XLA partitions the program, every answer of the ledger is an error that says
    /// so; on one device, there are no collectives.
    pub fn collectives(&self) -> Ledger {
        if self.partitioned_by_xla() {
            return Ledger::failed(LedgerError::PartitionedByXla);
        }
        Ledger::of(self.emitted(), &self.emitted_mesh().cloned().unwrap_or_default())
    }

    /// The program's demand on each device's memory, estimated from the module by the model of
    /// [`analysis::memory`](mod@meshloom_analysis::memory).
    ///
    /// # Errors
    /// [`LedgerError::PartitionedByXla`] where XLA partitions the program; or the module is too large.
    pub fn memory(&self) -> Result<ModuleMemory, Error> {
        if self.partitioned_by_xla() {
            return Err(LedgerError::PartitionedByXla.into());
        }
        Ok(memory(&self.module.decode()?)?)
    }

    /// The reasons for the shardings of values: see [`explain`]. If XLA partitions the program, these are the decisions
    /// that meshloom would take. On one device, nothing is sharded.
    ///
    /// # Errors
    /// No tensor has this name.
    pub fn explain(&self, query: &str, most: usize) -> Result<Vec<Explanation>, UnknownTensor> {
        let mesh = self.mesh().cloned().unwrap_or_default();
        let Propagated { graph, mesh, shardings } = propagate_with_sub_axes(self.graph(), &mesh);
        explain(&graph, &shardings, &mesh, self.sharded().map(|sharded| &sharded.table), query, most)
    }
}
