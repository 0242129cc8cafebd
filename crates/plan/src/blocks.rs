//! The blocks that attention is cut into. A block's scores are bounded by their bytes, so fewer rows may have larger
//! blocks, which take less time: a plan that computes more rows at once need not be the faster one.

use meshloom::kernels::{AttentionKernel, Kernels};
use meshloom::ops::AttentionSizes;

use super::plan::{Plan, Shape};

/// How a model's attention is cut into blocks.
#[derive(Clone, Debug)]
pub(super) struct AttentionBlocks {
    pub(super) kernels: Kernels,
    pub(super) shape: Shape,
}

impl AttentionBlocks {
    /// Queries of a block, those of all kinds of layers added up: among plans that split a row alike, a plan with more
    /// has no smaller blocks.
    pub(super) fn of(&self, plan: &Plan) -> usize {
        if self.kernels.attention != AttentionKernel::Blockwise {
            return 0;
        }
        let Shape { rows, parts_of_rows, length, heads, .. } = &self.shape;
        let tensor = plan.size("tensor");
        let size = |&[queries, keys]: &[usize; 2]| {
            let kv_heads = (keys / tensor).max(1);
            let sizes = AttentionSizes {
                batch: [rows / (plan.pieces() * parts_of_rows).max(1)].into_iter().collect(),
                kv_heads,
                groups: queries / tensor / kv_heads,
                queries: length / plan.size("context"),
                keys: *length,
                width: 1,
                value_width: 1,
            };
            self.kernels.blocks_of(&sizes).queries
        };
        heads.iter().map(size).sum()
    }
}
