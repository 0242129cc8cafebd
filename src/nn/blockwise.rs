//! Attention without its scores: over blocks of queries and keys, with a softmax that is corrected as blocks come.
//!
//! One loop runs over the pairs of blocks in which some query sees some key. The list of pairs is a constant, so blocks
//! above the diagonal or before a window are not computed at all, and the trip count is known to every analysis. What
//! is kept for the backward pass grows with the length, not with its square.
//!
//! Source: Milakov and Gimelshein, arXiv 1805.02867 (online softmax); Dao, "FlashAttention-2", arXiv 2307.08691.

use crate::ir::{DType, Literal, TensorType};
use crate::trace::{Tensor, constant, custom_vjp, einsum_with, full, iota, scan, zeros};

/// What a masked score counts as. Finite, so that a block in which a query sees nothing gives no NaN.
const MASKED: f64 = -1e30;

/// Which keys a query sees beside its segment's: those at its own position and before, of these the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causal {
    /// How many keys a query sees, its own among them; all for none.
    pub window: Option<usize>,
}

/// How many queries and keys a block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Queries.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
}

/// The shape of a call: how it is cut, and which pairs of blocks are computed.
#[derive(Clone, Debug)]
struct Cut {
    causal: Causal,
    blocks: Blocks,
    scale: f64,
    /// Queries and keys, before they are padded to whole blocks.
    length: usize,
    /// Blocks of queries and keys, queries first.
    pairs: Vec<(usize, usize)>,
}

impl Cut {
    fn new(length: usize, causal: Causal, blocks: Blocks, scale: f64) -> Cut {
        let blocks =
            Blocks { queries: blocks.queries.clamp(1, length.max(1)), keys: blocks.keys.clamp(1, length.max(1)) };
        let rows = 0..length.div_ceil(blocks.queries);
        let of_row = |row: usize| {
            let (first, last) = (row * blocks.queries, ((row + 1) * blocks.queries).min(length));
            // The first query of the block sees furthest back.
            let from = causal.window.map_or(0, |window| (first + 1).saturating_sub(window)) / blocks.keys;
            (from..last.div_ceil(blocks.keys)).map(move |column| (row, column))
        };
        let pairs = rows.flat_map(of_row).collect();
        Cut { causal, blocks, scale, length, pairs }
    }

    /// The first query and the first key of each pair.
    fn starts(&self) -> [Tensor; 2] {
        let ty = TensorType::new(DType::S32, &[self.pairs.len()]);
        let queries = Literal::from_fn(ty.clone(), |index| (self.pairs[index].0 * self.blocks.queries) as f64);
        let keys = Literal::from_fn(ty, |index| (self.pairs[index].1 * self.blocks.keys) as f64);
        [constant(queries), constant(keys)]
    }

    /// Padded to whole blocks along an axis.
    fn padded(&self, x: Tensor, axis: i32, block: usize, value: f64) -> Tensor {
        let missing = self.length.next_multiple_of(block) - self.length;
        if missing == 0 { x } else { x.pad(axis, 0, missing as i64, value) }
    }

    /// Scaled scores `[batch, kv_heads, groups, queries, keys]` in `f32`, and where they count.
    fn scores(&self, query: Tensor, key: Tensor, segments: [Tensor; 2], at: [Tensor; 2]) -> (Tensor, Tensor) {
        let scores = einsum_with("bkgtd,bksd->bkgts", &[query, key], DType::F32) * self.scale;
        let [batch, _, _, queries, keys] = scores.shape();
        let position = |axis: i32, first: Tensor| {
            let positions = iota(DType::S32, [queries, keys], axis);
            positions + first.broadcast_to([queries, keys])
        };
        let (row, column) = (position(0, at[0]), position(1, at[1]));
        let mut seen = column.less_equal(row) & column.less(full(DType::S32, [queries, keys], self.length as f64));
        if let Some(window) = self.causal.window {
            seen = seen & (row - column).less(full(DType::S32, [queries, keys], window as f64));
        }
        let dims = [batch, queries, keys];
        let [of_queries, of_keys] = segments;
        let same = of_queries.expand(2).broadcast_to(dims).equal(of_keys.expand(1).broadcast_to(dims));
        let seen = (same & seen.expand(0).broadcast_to(dims)).broadcast_like(scores, [0, 3, 4]);
        (seen.select(scores, MASKED), seen)
    }
}

/// Values mixed by the softmax of scaled scores, as [`attend`](super::attention::attend) does it: queries
/// `[batch, kv_heads, groups, length, head_dim]`, keys `[batch, kv_heads, length, head_dim]` and values
/// `[batch, kv_heads, length, value_dim]` give `[batch, kv_heads, groups, length, value_dim]`. A query sees keys of its
/// own segment (`segments` is `[batch, length]`, `s32`) as `causal` says. Scores, softmax and sums in `f32`.
pub fn blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Tensor,
    (causal, blocks): (Causal, Blocks),
    scale: f64,
) -> Tensor {
    let cut = Cut::new(query.dim(3), causal, blocks, scale);
    let (again, back) = (cut.clone(), cut.clone());
    custom_vjp(
        (query, key, value, segments),
        move |(query, key, value, segments)| forward(&cut, query, key, value, segments).0,
        move |(query, key, value, segments)| {
            let (mixed, log_total) = forward(&again, query, key, value, segments);
            (mixed, (query, key, value, segments, mixed, log_total))
        },
        move |(query, key, value, segments, mixed, log_total), ct| {
            let (query_ct, key_ct, value_ct) = backward(&back, (query, key, value, segments), (mixed, log_total), ct);
            (query_ct, key_ct, value_ct, segments)
        },
    )
}

/// The result, and the logarithm of each query's sum of exponentials: `[batch, kv_heads, groups, length]`.
fn forward(cut: &Cut, query: Tensor, key: Tensor, value: Tensor, segments: Tensor) -> (Tensor, Tensor) {
    let Blocks { queries, keys } = cut.blocks;
    let dtype = query.dtype();
    let query = cut.padded(query, 3, queries, 0.0);
    let [key, value] = [key, value].map(|x| cut.padded(x, 2, keys, 0.0));
    let of_queries = cut.padded(segments, 1, queries, 0.0);
    let of_keys = cut.padded(segments, 1, keys, 0.0);
    let [batch, kv_heads, groups, padded, _] = query.shape();
    let sums = [batch, kv_heads, groups, padded];
    let mixed = zeros(DType::F32, [batch, kv_heads, groups, padded, value.dim(3)]);
    let carry = (mixed, full(DType::F32, sums, MASKED), zeros(DType::F32, sums));
    let (carry, ()) = scan(carry, cut.starts(), |(mixed, highest, total), at| {
        let block = query.dynamic_slice_along(3, at[0], queries);
        let [key, value] = [key, value].map(|x| x.dynamic_slice_along(2, at[1], keys));
        let segments = [of_queries.dynamic_slice_along(1, at[0], queries), of_keys.dynamic_slice_along(1, at[1], keys)];
        let (scores, seen) = cut.scores(block, key, segments, at);
        let before = highest.dynamic_slice_along(3, at[0], queries);
        let now = before.maximum(scores.max(-1));
        let weights = seen.select((scores - now.broadcast_like(scores, [0, 1, 2, 3])).exp(), 0.0);
        let correction = (before - now).exp();
        let of_block = mixed.dynamic_slice_along(3, at[0], queries);
        let added = einsum_with("bkgts,bksd->bkgtd", &[weights.convert(dtype), value], DType::F32);
        let of_block = of_block * correction.broadcast_like(of_block, [0, 1, 2, 3]) + added;
        let sum = total.dynamic_slice_along(3, at[0], queries) * correction + weights.sum(-1);
        let next = (
            mixed.dynamic_update_along(3, of_block, at[0]),
            highest.dynamic_update_along(3, now, at[0]),
            total.dynamic_update_along(3, sum, at[0]),
        );
        (next, ())
    });
    let (mixed, highest, total) = carry;
    // A padded query may see nothing.
    let total = total.maximum(f64::from(f32::MIN_POSITIVE));
    let mixed = (mixed / total.broadcast_like(mixed, [0, 1, 2, 3])).convert(dtype);
    let log_total = highest + total.log();
    (mixed.slice(3, ..cut.length), log_total.slice(3, ..cut.length))
}

/// Cotangents of queries, keys and values. Scores are computed again from the logarithms of their sums.
fn backward(
    cut: &Cut,
    (query, key, value, segments): (Tensor, Tensor, Tensor, Tensor),
    (mixed, log_total): (Tensor, Tensor),
    ct: Tensor,
) -> (Tensor, Tensor, Tensor) {
    let Blocks { queries, keys } = cut.blocks;
    let dtype = query.dtype();
    let (query_len, key_len) = (cut.length, cut.length);
    // What flows back through the sum of a query's weights.
    let flow = (mixed.convert(DType::F32) * ct.convert(DType::F32)).sum(-1);
    let [query, ct] = [query, ct].map(|x| cut.padded(x, 3, queries, 0.0));
    let [log_total, flow] = [log_total, flow].map(|x| cut.padded(x, 3, queries, 0.0));
    let [key, value] = [key, value].map(|x| cut.padded(x, 2, keys, 0.0));
    let of_queries = cut.padded(segments, 1, queries, 0.0);
    let of_keys = cut.padded(segments, 1, keys, 0.0);
    let wide = |x: Tensor| zeros(DType::F32, x.dims());
    let carry = (wide(query), wide(key), wide(value));
    let (carry, ()) = scan(carry, cut.starts(), |(query_ct, key_ct, value_ct), at| {
        let [block, ct] = [query, ct].map(|x| x.dynamic_slice_along(3, at[0], queries));
        let [log_total, flow] = [log_total, flow].map(|x| x.dynamic_slice_along(3, at[0], queries));
        let [key, value] = [key, value].map(|x| x.dynamic_slice_along(2, at[1], keys));
        let segments = [of_queries.dynamic_slice_along(1, at[0], queries), of_keys.dynamic_slice_along(1, at[1], keys)];
        let (scores, seen) = cut.scores(block, key, segments, at);
        let weights = seen.select((scores - log_total.broadcast_like(scores, [0, 1, 2, 3])).exp(), 0.0);
        let weights_ct = einsum_with("bkgtd,bksd->bkgts", &[ct, value], DType::F32);
        let scores_ct = weights * (weights_ct - flow.broadcast_like(scores, [0, 1, 2, 3])) * cut.scale;
        let [weights, scores_ct] = [weights, scores_ct].map(|x| x.convert(dtype));
        let add = |sum: Tensor, axis: i32, first: Tensor, added: Tensor| {
            let size = added.dim(axis);
            sum.dynamic_update_along(axis, sum.dynamic_slice_along(axis, first, size) + added, first)
        };
        let next = (
            add(query_ct, 3, at[0], einsum_with("bkgts,bksd->bkgtd", &[scores_ct, key], DType::F32)),
            add(key_ct, 2, at[1], einsum_with("bkgts,bkgtd->bksd", &[scores_ct, block], DType::F32)),
            add(value_ct, 2, at[1], einsum_with("bkgts,bkgtd->bksd", &[weights, ct], DType::F32)),
        );
        (next, ())
    });
    let (query_ct, key_ct, value_ct) = carry;
    (
        query_ct.slice(3, ..query_len).convert(dtype),
        key_ct.slice(2, ..key_len).convert(dtype),
        value_ct.slice(2, ..key_len).convert(dtype),
    )
}

#[cfg(test)]
mod tests {
    use super::{Blocks, Causal, Cut};

    fn pairs(length: usize, window: Option<usize>, queries: usize, keys: usize) -> Vec<(usize, usize)> {
        Cut::new(length, Causal { window }, Blocks { queries, keys }, 1.0).pairs
    }

    /// Exactly those pairs are computed in which a query sees a key.
    #[test]
    fn pairs_are_those_that_are_seen() {
        for length in 1..20 {
            for (queries, keys) in [(1, 1), (2, 3), (3, 2), (4, 4), (5, 7), (64, 64)] {
                for window in [None, Some(1), Some(2), Some(5), Some(40)] {
                    let (rows, columns) = (queries.min(length), keys.min(length));
                    let mut expected: Vec<(usize, usize)> = (0..length)
                        .flat_map(|row| (0..=row).map(move |column| (row, column)))
                        .filter(|(row, column)| window.is_none_or(|window| row - column < window))
                        .map(|(row, column)| (row / rows, column / columns))
                        .collect();
                    expected.sort_unstable();
                    expected.dedup();
                    assert_eq!(pairs(length, window, queries, keys), expected, "{length} {queries} {keys} {window:?}");
                }
            }
        }
    }
}
