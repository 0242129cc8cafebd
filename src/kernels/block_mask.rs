//! The blocks of queries and the blocks of keys that see each other, where places are data.
//!
//! The choice goes by the lowest and highest place and segment of each block, over all rows of the batch. So a pair
//! that is left out sees nothing, and a pair that is kept may see something.

use super::pad::is_token;
use crate::ops::AttentionForm;
use crate::trace::Tensor;

/// Distances are compared with places between these: blocks without tokens have none.
const FAR: f64 = 1e9;

/// The lowest and highest value of each block of queries or keys, `s32` `[query blocks, key blocks]`.
struct BlockBounds {
    low: Tensor,
    high: Tensor,
}

/// The places and segments of blocks, of queries and of keys.
pub(super) struct Sight {
    form: AttentionForm,
    segments: [BlockBounds; 2],
    places: [BlockBounds; 2],
}

impl Sight {
    /// Creates the bounds from segments and places of queries and keys, `[batch, ..]`, which are whole blocks, as many
    /// as `counts` says.
    pub(super) fn new(form: AttentionForm, segments: [Tensor; 2], places: [Tensor; 2], counts: [usize; 2]) -> Sight {
        let bounds = |pair: [Tensor; 2], axis: usize| {
            let x = pair[axis];
            let dims = [x.dim(0), counts[axis], x.dim(1) / counts[axis]];
            let by_block = x.reshape(dims);
            // Elements that only fill a block are left out: they belong to no token.
            let is_token = is_token(segments[axis]).reshape(dims);
            let low = is_token.select(by_block, f64::from(i32::MAX)).min([0, 2]);
            let high = is_token.select(by_block, f64::from(i32::MIN)).max([0, 2]);
            let spread = |x: Tensor| x.expand(1 - axis as i32).broadcast_to(counts);
            BlockBounds { low: spread(low), high: spread(high) }
        };
        Sight {
            form,
            segments: [0, 1].map(|axis| bounds(segments, axis)),
            places: [0, 1].map(|axis| bounds(places, axis)),
        }
    }

    /// Whether some query of a block may see some key of another: `pred` `[query blocks, key blocks]`.
    pub(super) fn some(&self) -> Tensor {
        let [query, key] = &self.segments;
        let mut seen = key.low.less_equal(query.high) & query.low.less_equal(key.high);
        let [query, key] = &self.places;
        if self.form.causal {
            seen = seen & key.low.less_equal(query.high);
        }
        if let Some(window) = self.form.window {
            // Blocks without tokens are out already.
            let distance = query.low.minimum(FAR) - key.high.maximum(-FAR);
            seen = seen & distance.less(window as f64);
        }
        seen
    }

    /// Whether the causal order or the window may hide some key of a block from some query of another: `pred`
    /// `[query blocks, key blocks]`.
    pub(super) fn partly(&self) -> Tensor {
        let [query, key] = &self.places;
        let after = key.high.greater(query.low);
        let far = |window: usize| {
            let distance = query.high.maximum(-FAR) - key.low.minimum(FAR);
            distance.greater_equal(window as f64)
        };
        match (self.form.causal, self.form.window) {
            (true, Some(window)) => after | far(window),
            (true, None) => after,
            (false, Some(window)) => far(window),
            (false, None) => after.zeros_like(),
        }
    }
}
