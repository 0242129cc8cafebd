//! The kinds of collectives, and what each sends.

use serde::Serialize;

use crate::words;

words! {
    /// The kind of a collective. Its name is HLO's opcode.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum CollectiveKind {
        /// Joins the parts of a group.
        AllGather = "all-gather",
        /// Combines the values of a group.
        AllReduce = "all-reduce",
        /// Exchanges parts within a group.
        AllToAll = "all-to-all",
        /// Sends values from device to device.
        CollectivePermute = "collective-permute",
        /// Adds up the values of a group, and gives each device its part.
        ReduceScatter = "reduce-scatter",
    }
}

impl CollectiveKind {
    /// Bytes that one device sends in one execution along a ring, rounded up. `bytes` are those of the operands on one
    /// device, `size` is the number of devices in a group. Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms
    /// for clusters of workstations" (2009), show that no algorithm sends less.
    pub fn moved_bytes(self, bytes: u64, size: u64) -> u64 {
        let others = size.saturating_sub(1);
        let part = |times: u64| bytes.saturating_mul(times).saturating_mul(others).div_ceil(size.max(1));
        match self {
            // A device passes on every part but the last that reaches it.
            CollectiveKind::AllGather => bytes.saturating_mul(others),
            // A reduce-scatter, and an all-gather of what it leaves.
            CollectiveKind::AllReduce => part(2),
            CollectiveKind::AllToAll | CollectiveKind::ReduceScatter => part(1),
            CollectiveKind::CollectivePermute => bytes,
        }
    }
}
