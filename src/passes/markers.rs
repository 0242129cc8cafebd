//! Removes the markers that only differentiation reads.
//!
//! Names serve checkpoint policies; `stop-gradient`, custom VJPs and checkpoints serve differentiation. A graph that is
//! lowered is not differentiated any more (a checkpoint has then left barriers and nodes in the recompute phase in the
//! graph itself). Without the markers, the later passes see more.

use super::rewrite::{Rewrite, RewriteRule};
use crate::ops::Op;

/// Drops names and gradient stops, and writes the bodies of checkpoints and custom VJPs in place.
pub(crate) const ERASE_MARKERS: Rewrite = Rewrite { markers: Some(rules), ..Rewrite::NOTHING };

fn rules(op: &Op) -> &'static [RewriteRule] {
    const MARKER: &[RewriteRule] = &[RewriteRule {
        name: "marker(x) = x",
        argument: "names and gradient stops compute nothing",
        apply: |node| Some(node.operand(0)),
    }];
    match op {
        Op::Named(_) | Op::StopGradient(_) => MARKER,
        _ => &[],
    }
}
