//! From a graph of global shapes to the program of one device: local shapes and explicit collectives.
//!
//! The graph is walked once. Each op gets its operands in the specs that its [factor rule](crate::ops::FactorRule) and
//! the specs around it ask for ([`resolve`](crate::sharding)), runs on its part, and gives results whose spec follows
//! from the rule: over a reduction factor that is split, a sum is left partial (`unreduced`). Partial sums pass through
//! linear ops and loops and are added up once, where a spec is demanded or an op is not linear. Changes of a spec are
//! planned (`plan.rs`) and carried out (`reshard.rs`); a version of a value that has been made is used again.

mod error;
mod fallback;
mod ledger;
mod linear;
mod manual;
mod parallel;
mod plan;
mod primitive;
mod region;
mod reshard;
mod stray;
mod uneven;
mod walk;

use crate::ir::Axes;
use meshloom_hlo::mesh::MeshAxis;

pub use error::PartitionError;
pub(crate) use error::boxed;
pub use fallback::Fallback;
pub use ledger::{Collective, Ledger, LedgerError, collective_of};
pub use meshloom_analysis::{Amount, Bounds, Branch};
pub use meshloom_hlo::CollectiveKind;
pub use plan::{ReshardPlan, Step, plan};
pub use reshard::reshard;
pub use stray::{Stray, StrayReason};
pub use uneven::pad_uneven;
pub use walk::{LocalProgram, partition};

/// Returns those of `axes` that are in `others`.
fn shared(axes: &[MeshAxis], others: &[MeshAxis]) -> Axes {
    axes.iter().copied().filter(|axis| others.contains(axis)).collect()
}

/// Returns those of `axes` that are not in `others`.
fn without(axes: &[MeshAxis], others: &[MeshAxis]) -> Axes {
    axes.iter().copied().filter(|axis| !others.contains(axis)).collect()
}
