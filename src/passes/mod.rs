//! Passes that make a graph smaller without changing what it computes.
//!
//! Each is a free function from graph to graph. None changes the rounding of any result.
//!
//! | pass | what it does |
//! |---|---|
//! | [`eliminate_dead_code`] | drops nodes, and carries, slices and outputs of scans, that no output depends on |
//! | [`eliminate_common_subexpressions`] | merges nodes with the same op and operands |
//! | [`hoist_invariants`] | moves what every iteration of a scan computes alike in front of it |

mod cse;
mod dce;
mod hoist;

pub use cse::eliminate_common_subexpressions;
pub use dce::eliminate_dead_code;
pub use hoist::hoist_invariants;

use crate::ir::Graph;

/// What differentiation wants done first: invariants in front of loops, so that they are no residuals of an iteration;
/// and no dead code, so that nothing is differentiated in vain.
pub(crate) fn prepare(graph: &Graph) -> Graph {
    hoist_invariants(&eliminate_dead_code(graph))
}
