//! Parts of the program that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

use clap::CommandFactory;
use meshloom_analysis::Bounds;
use meshloom_analysis::{ScopeGraph, StepTraffic};

use crate::report::graph::{Edge, Scope, ScopeTree};
use crate::traffic::series::{StepRow, spread};

pub use crate::arguments::parse_bytes;
pub use crate::folder::{named as module_named, parts as parts_of_name};
pub use crate::markup::chart::{Area, byte_ticks, fitting, shortened, ticks};
pub use crate::markup::html::{Cell, document, json, table};
pub use crate::output::{clipped, human_bytes, human_count, seconds, thousands};
pub use crate::report::costs::{common_scopes, squarified};
pub use crate::report::lanes::{Span, visible};
pub use crate::traffic::series::overrides;
pub use crate::traffic::{BAR, bar};

/// Checks the definition of the command line.
///
/// # Panics
/// It contradicts itself.
pub fn check_command_line() {
    crate::Arguments::command().debug_assert();
}

/// Returns the scopes of a program of this name, each with the scope around it and its count of instructions, and the
/// edges between scopes with their bytes.
#[allow(clippy::type_complexity)]
pub fn scope_tree(name: &str, graph: &ScopeGraph) -> (Vec<(String, Option<usize>, usize)>, Vec<(usize, usize, u64)>) {
    let ScopeTree { scopes, edges, .. } = ScopeTree::of(name, graph);
    let scope = |Scope { name, parent, instructions, .. }| (name, parent, instructions);
    let edge = |Edge { from, to, bytes, .. }| (from, to, bytes);
    (scopes.into_iter().map(scope).collect(), edges.into_iter().map(edge).collect())
}

/// Returns the bytes that cross a link at each step, if what is sent after a step is spread over the steps of the
/// overlap.
pub fn spread_bytes(sent: &[u64], overlap: usize, period: usize) -> Vec<Option<f64>> {
    let exactly = |bytes| Bounds { least: bytes, most: Some(bytes) };
    let row = |(counter, &bytes): (u64, &u64)| {
        let (executions, moved_bytes, moved_in_loops) = (exactly(1), exactly(bytes), exactly(0));
        StepRow::of(&StepTraffic { counter, executions, moved_bytes, moved_in_loops }, (None, None))
    };
    let mut rows: Vec<StepRow> = (0..).zip(sent).map(row).collect();
    spread(&mut rows, overlap, period);
    rows.iter().map(|row| row.spread_bytes).collect()
}
