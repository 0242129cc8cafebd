//! What only differentiation reads.
//!
//! Checkpoint policies refer to names, `stop-gradient` and custom VJPs tell differentiation what to do, and a
//! checkpoint what to keep. A graph that is lowered is not differentiated any more. (What a checkpoint asked for is by
//! then in the graph itself, as barriers and nodes in the recompute phase.) Without them, the passes after this one see
//! through.

use super::rewrite::{Rewrite, Rule};
use crate::ops::Op;

/// Drops names and gradient stops, and writes the bodies of checkpoints and custom VJPs in place.
pub(crate) const ERASE_MARKERS: Rewrite = Rewrite { inline: true, markers: Some(rules), ..Rewrite::NOTHING };

fn rules(op: &Op) -> &'static [Rule] {
    const MARKER: &[Rule] = &[Rule {
        name: "marker(x) = x",
        argument: "names and gradient stops compute nothing",
        apply: |node| Some(node.operand(0)),
    }];
    match op {
        Op::Named(_) | Op::StopGradient(_) => MARKER,
        _ => &[],
    }
}
