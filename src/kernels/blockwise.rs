//! Attention that never holds all scores: it goes over blocks of queries and keys, with a softmax that is corrected as
//! blocks come.
//!
//! One loop runs over the pairs of blocks in which some query may see some key. Where places equal indices, the list of
//! pairs is a constant, so the trip count is known to every analysis. Else the pairs are found from the lowest and
//! highest places and segments of each block when the program runs. Blocks that no query sees are not computed in
//! either case. The memory grows with the length, not with its square.
//!
//! Source: Milakov and Gimelshein, arXiv 1805.02867 (online softmax); Dao, "FlashAttention-2", arXiv 2307.08691.

use std::ops::Range;

use super::block_mask::Sight;
use super::nonzero::nonzero;
use super::pad::{pad, pad_segments};
use super::traced::{describe_pairs_of_blocks, traced};
use super::{AttentionKernel, Blocks, Kernels};
use crate::ir::{DType, Literal, TensorType};
use crate::ops::{
    Attention, AttentionForm, AttentionGradient, AttentionSizes, KernelImplementation, LOWEST, Often, PlaceOrder,
    UNSEEN,
};
use crate::trace::{Tensor, TensorTree, TraceError, constant, einsum_with, full, scan, while_at_most, words_of, zeros};

/// The implementation of an attention. Returns `None` if one block holds it all, for which the plain form is best.
pub(super) fn attention(
    op: &Attention,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(cut) = AttentionCut::new(op.0, types, kernels, Outer::Queries) else { return Ok(None) };
    cut.trace("attention", types, |operands| {
        let (mixed, log_total) = cut.forward(&cut.rows(operands));
        vec![cut.whole_batch(mixed), cut.whole_batch(log_total)]
    })
}

pub(super) fn attention_gradient(
    op: &AttentionGradient,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(cut) = AttentionCut::new(op.0, types, kernels, Outer::Keys) else { return Ok(None) };
    cut.trace("attention_gradient", types, |operands| {
        let [log_total, flow, ct] = [7, 8, 9].map(|index| cut.one_batch(operands[index]));
        let cotangents = cut.backward(&cut.rows(operands), log_total, flow, ct);
        cotangents.map(|x| cut.whole_batch(x)).to_vec()
    })
}

/// Queries, keys and values, padded to whole blocks, or those of a pair of blocks. The batch is one dimension.
struct Rows {
    /// `[batch, kv_heads, groups, queries, width]`.
    query: Tensor,
    /// `[batch, kv_heads, keys, width]`.
    key: Tensor,
    /// `[batch, kv_heads, keys, value_width]`.
    value: Tensor,
    /// The segments of queries and keys, `[batch, ..]`.
    segments: [Tensor; 2],
    /// The places of queries and keys, `[batch, ..]`.
    places: [Tensor; 2],
    /// The random words from which the dropping of weights is drawn, `u32` `[batch, kv_heads, groups]`.
    seeds: Option<Tensor>,
}

/// A pair of blocks that is to be computed: scalars `s32`.
#[derive(Clone, Copy)]
struct BlockStep {
    /// The first query and the first key.
    at: [Tensor; 2],
    /// Whether the block that the loop stays with differs from that of the step before: `pred`.
    is_first: Tensor,
}

/// The blocks that the loop stays with while it goes through the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outer {
    Queries,
    Keys,
}

/// How a call is cut into blocks.
struct AttentionCut {
    form: AttentionForm,
    sizes: AttentionSizes,
    blocks: Blocks,
    dtype: DType,
    /// The type of scores and sums.
    wide: DType,
    outer: Outer,
    /// The pairs of blocks in which a query sees a key of its own segment, where places equal indices.
    known: Option<Vec<[usize; 2]>>,
}

impl AttentionCut {
    /// Returns `None` if one block holds it all, or the plain form is asked for.
    fn new(form: AttentionForm, types: &[TensorType], kernels: &Kernels, outer: Outer) -> Option<AttentionCut> {
        let sizes = AttentionSizes::of(&types[0], &types[1], &types[2]);
        let blocks = kernels.cut_of(&sizes)?;
        let dtype = types[0].dtype;
        let known = (form.order == PlaceOrder::Index).then(|| known_pairs(form, &sizes, blocks, outer));
        Some(AttentionCut { form, sizes, blocks, dtype, wide: dtype.at_least_f32(), outer, known })
    }

    fn trace(
        &self,
        name: &str,
        types: &[TensorType],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Result<Option<KernelImplementation>, TraceError> {
        let Blocks { queries, keys } = self.blocks;
        let how = describe_pairs_of_blocks([queries, keys], self.counts(), self.known.as_ref().map(Vec::len));
        traced(AttentionKernel::Blockwise.name(), name, how, types, f).map(Some)
    }

    fn batch(&self) -> usize {
        self.sizes.batch.iter().product()
    }

    /// Merges the batch into one dimension.
    fn one_batch(&self, x: Tensor) -> Tensor {
        x.reshape([&[self.batch()], &x.dims()[self.sizes.batch.len()..]].concat())
    }

    /// Splits the batch into all its dimensions.
    fn whole_batch(&self, x: Tensor) -> Tensor {
        x.reshape_first(&self.sizes.batch)
    }

    fn counts(&self) -> [usize; 2] {
        [self.sizes.queries.div_ceil(self.blocks.queries), self.sizes.keys.div_ceil(self.blocks.keys)]
    }

    /// Lengths of queries and keys, padded to whole blocks.
    fn lengths(&self) -> [usize; 2] {
        let [queries, keys] = self.counts();
        [queries * self.blocks.queries, keys * self.blocks.keys]
    }

    fn rows(&self, operands: &[Tensor]) -> Rows {
        let [queries, keys] = self.lengths();
        let merged = |index: usize| self.one_batch(operands[index]);
        Rows {
            query: pad(merged(0), 3, queries, 0.0),
            key: pad(merged(1), 2, keys, 0.0),
            value: pad(merged(2), 2, keys, 0.0),
            segments: pad_segments([merged(3), merged(4)], [queries, keys]),
            places: [pad(merged(5), 1, queries, 0.0), pad(merged(6), 1, keys, 0.0)],
            seeds: self.form.dropout.map(|_| merged(operands.len() - 1)),
        }
    }

    fn pair(&self, rows: &Rows, at: [Tensor; 2]) -> Rows {
        let Blocks { queries, keys } = self.blocks;
        let both = |[of_queries, of_keys]: [Tensor; 2]| {
            [of_queries.dynamic_slice_along(1, at[0], queries), of_keys.dynamic_slice_along(1, at[1], keys)]
        };
        Rows {
            query: rows.query.dynamic_slice_along(3, at[0], queries),
            key: rows.key.dynamic_slice_along(2, at[1], keys),
            value: rows.value.dynamic_slice_along(2, at[1], keys),
            segments: both(rows.segments),
            places: both(rows.places),
            seeds: rows.seeds,
        }
    }

    /// Scores `[batch, kv_heads, groups, queries, keys]`, unseen ones masked; and the slope of the cap, if the form has
    /// one.
    fn scores(&self, pair: &Rows) -> (Tensor, Option<Tensor>) {
        let scaled = einsum_with("bkgtd,bksd->bkgts", &[pair.query, pair.key], self.wide) * self.form.scale.get();
        let (scores, slope) = match self.form.softcap {
            None => (scaled, None),
            Some(cap) => {
                let part = (scaled / cap.get()).tanh();
                (part * cap.get(), Some(1.0 - part.square()))
            }
        };
        let dims = [self.batch(), self.blocks.queries, self.blocks.keys];
        let spread = |[of_queries, of_keys]: [Tensor; 2]| {
            [of_queries.expand(2).broadcast_to(dims), of_keys.expand(1).broadcast_to(dims)]
        };
        let [query_segment, key_segment] = spread(pair.segments);
        let [query_place, key_place] = spread(pair.places);
        let mut seen = query_segment.equal(key_segment);
        if self.form.causal {
            seen = seen & key_place.less_equal(query_place);
        }
        if let Some(window) = self.form.window {
            seen = seen & (query_place - key_place).less(window as f64);
        }
        (seen.broadcast_like(scores, [0, 3, 4]).select(scores, UNSEEN), slope)
    }

    /// Applies dropout to values like the scores of a pair: kept ones are divided by the probability of being kept,
    /// dropped ones are zero.
    fn dropped(&self, pair: &Rows, scores: Tensor) -> Tensor {
        let (Some(rate), Some(seeds)) = (self.form.dropout, pair.seeds) else { return scores };
        let [query_place, key_place] = pair.places.map(|x| x.convert(DType::U32));
        let seeds = seeds.broadcast_like(scores, [0, 1, 2]);
        let key = [seeds, seeds.zeros_like()];
        let counters = [query_place.broadcast_like(scores, [0, 3]), key_place.broadcast_like(scores, [0, 4])];
        let [draw, _] = words_of(key, counters);
        let is_kept = draw.greater_equal(AttentionForm::drops_below(rate));
        is_kept.select(scores * (1.0 / (1.0 - rate.get())), 0.0)
    }

    /// Runs `step` for each pair of blocks in which a query may see a key.
    fn run<C: TensorTree>(&self, rows: &Rows, carry: C, step: impl FnOnce(C, BlockStep) -> C) -> C {
        if let Some(pairs) = &self.known {
            let (carry, ()) = scan(carry, self.known_steps(pairs), |carry, (at, is_first)| {
                (step(carry, BlockStep { at: [at.0, at.1], is_first }), ())
            });
            return carry;
        }
        let (pairs, count) = self.found_pairs(rows);
        let start = (zeros(DType::S32, []), full(DType::S32, [], -1.0), carry);
        let most: usize = self.counts().iter().product();
        let (_, _, carry) = while_at_most(
            (most, Often::default()),
            start,
            |(index, _, _)| index.less(count),
            |(index, before, carry)| {
                let pair = pairs.dynamic_index(0, index);
                let inner = self.counts()[usize::from(self.outer == Outer::Queries)];
                let [first, second] = [pair / inner as f64, pair % inner as f64];
                let step_at = match self.outer {
                    Outer::Queries => [first, second],
                    Outer::Keys => [second, first],
                };
                let at = [step_at[0] * self.blocks.queries as f64, step_at[1] * self.blocks.keys as f64];
                (index + 1.0, first, step(carry, BlockStep { at, is_first: first.not_equal(before) }))
            },
        );
        carry
    }

    /// The known steps as constants: the first query and key of each pair, and whether the pair begins another block.
    fn known_steps(&self, pairs: &[[usize; 2]]) -> ((Tensor, Tensor), Tensor) {
        let stays_with = |index: usize| pairs[index][usize::from(self.outer == Outer::Keys)];
        let first = |index: usize| index == 0 || stays_with(index) != stays_with(index - 1);
        let places = |side: usize, block: usize| {
            let places: Vec<i32> =
                pairs.iter().map(|pair| i32::try_from(pair[side] * block).unwrap_or(i32::MAX)).collect();
            constant(Literal::vector(&places))
        };
        let begins = Literal::from_fn(TensorType::new(DType::Pred, &[pairs.len()]), |index| f64::from(first(index)));
        ((places(0, self.blocks.queries), places(1, self.blocks.keys)), constant(begins))
    }

    /// The pairs of blocks in which a query may see a key, by the lowest and highest places and segments of each block:
    /// numbers `first * count of others + second`, the valid ones first; and the number of valid ones.
    fn found_pairs(&self, rows: &Rows) -> (Tensor, Tensor) {
        let counts = self.counts();
        let seen = Sight::new(self.form, rows.segments, rows.places, counts).some();
        let seen = if self.outer == Outer::Queries { seen } else { seen.transpose([1, 0]) };
        nonzero(seen.reshape([counts[0] * counts[1]]))
    }

    /// The result, and the logarithm of each query's sum of exponentials.
    fn forward(&self, rows: &Rows) -> (Tensor, Tensor) {
        let Blocks { queries, .. } = self.blocks;
        let [batch, kv_heads, groups, padded, _] = rows.query.shape();
        let width = rows.value.dim(3);
        let of_block = [batch, kv_heads, groups, queries];
        let of_all = [batch, kv_heads, groups, padded];
        let start = (
            // The sums for the block of queries that the loop is with.
            (
                zeros(self.wide, [batch, kv_heads, groups, queries, width]),
                full(self.wide, of_block, LOWEST),
                zeros(self.wide, of_block),
            ),
            // The results for all queries.
            (zeros(self.dtype, [batch, kv_heads, groups, padded, width]), full(self.wide, of_all, LOWEST)),
        );
        let (_, (mixed, log_total)) = self.run(rows, start, |(block, all), step| {
            let pair = self.pair(rows, step.at);
            let (scores, _) = self.scores(&pair);
            let begun = |x: Tensor, value: f64| {
                step.is_first.broadcast_to(x.dims()).select(full(x.dtype(), x.dims(), value), x)
            };
            let (mixed, highest, total) = (begun(block.0, 0.0), begun(block.1, LOWEST), begun(block.2, 0.0));
            let now = highest.maximum(scores.max(-1));
            let weights = (scores - now.broadcast_like(scores, [0, 1, 2, 3])).exp();
            let correction = (highest - now).exp();
            let kept = self.dropped(&pair, weights).convert(self.dtype);
            let added = einsum_with("bkgts,bksd->bkgtd", &[kept, pair.value], self.wide);
            let mixed = mixed * correction.broadcast_like(mixed, [0, 1, 2, 3]) + added;
            let total = total * correction + weights.sum(-1);
            // The value after the last pair of a block is the one that stays.
            let least = total.maximum(f64::from(f32::MIN_POSITIVE));
            let share = (mixed / least.broadcast_like(mixed, [0, 1, 2, 3])).convert(self.dtype);
            let all = (
                all.0.dynamic_update_along(3, share, step.at[0]),
                all.1.dynamic_update_along(3, now + least.log(), step.at[0]),
            );
            ((mixed, now, total), all)
        });
        (mixed.slice(3, ..self.sizes.queries), log_total.slice(3, ..self.sizes.queries))
    }

    /// Cotangents of queries, keys and values. Scores are computed again from the logarithms of their sums.
    fn backward(&self, rows: &Rows, log_total: Tensor, flow: Tensor, ct: Tensor) -> [Tensor; 3] {
        let Blocks { queries, keys } = self.blocks;
        let [log_total, flow, ct] = [log_total, flow, ct].map(|x| pad(x, 3, self.lengths()[0], 0.0));
        let empty = |x: Tensor, dtype: DType| zeros(dtype, x.dims());
        let block_of = |x: Tensor| {
            let mut dims = x.dims();
            dims[2] = keys;
            zeros(self.wide, dims)
        };
        let start = (
            // The block of keys that the loop is with.
            (block_of(rows.key), block_of(rows.value)),
            (empty(rows.query, self.wide), empty(rows.key, self.dtype), empty(rows.value, self.dtype)),
        );
        let (_, (query_ct, key_ct, value_ct)) = self.run(rows, start, |(block, all), step| {
            let pair = self.pair(rows, step.at);
            let (scores, slope) = self.scores(&pair);
            let [log_total, flow, ct] = [log_total, flow, ct].map(|x| x.dynamic_slice_along(3, step.at[0], queries));
            let by_score = |x: Tensor| x.broadcast_like(scores, [0, 1, 2, 3]);
            let weights = (scores - by_score(log_total)).exp();
            let weights_ct = einsum_with("bkgtd,bksd->bkgts", &[ct, pair.value], self.wide);
            let scores_ct = weights * (self.dropped(&pair, weights_ct) - by_score(flow));
            let scores_ct = slope.map_or(scores_ct, |slope| scores_ct * slope) * self.form.scale.get();
            let [weights, scores_ct] = [self.dropped(&pair, weights), scores_ct].map(|x| x.convert(self.dtype));
            let begun = |x: Tensor| step.is_first.broadcast_to(x.dims()).select(x.zeros_like(), x);
            let key_ct = begun(block.0) + einsum_with("bkgts,bkgtd->bksd", &[scores_ct, pair.query], self.wide);
            let value_ct = begun(block.1) + einsum_with("bkgts,bkgtd->bksd", &[weights, ct], self.wide);
            let added = einsum_with("bkgts,bksd->bkgtd", &[scores_ct, pair.key], self.wide);
            let query_ct = all.0.dynamic_slice_along(3, step.at[0], queries) + added;
            let all = (
                all.0.dynamic_update_along(3, query_ct, step.at[0]),
                all.1.dynamic_update_along(2, key_ct.convert(self.dtype), step.at[1]),
                all.2.dynamic_update_along(2, value_ct.convert(self.dtype), step.at[1]),
            );
            ((key_ct, value_ct), all)
        });
        [
            query_ct.slice(3, ..self.sizes.queries).convert(self.dtype),
            key_ct.slice(2, ..self.sizes.keys),
            value_ct.slice(2, ..self.sizes.keys),
        ]
    }
}

/// The pairs of blocks in which a query sees a key of its own segment, where places equal indices.
fn known_pairs(form: AttentionForm, sizes: &AttentionSizes, blocks: Blocks, outer: Outer) -> Vec<[usize; 2]> {
    let Blocks { queries, keys } = blocks;
    let length = sizes.queries;
    let keys_of = |block: usize| {
        let (first, last) = (block * queries, ((block + 1) * queries).min(length));
        // The first query of the block sees furthest back.
        let from = form.window.map_or(0, |window| (first + 1).saturating_sub(window)) / keys;
        let to = if form.causal { last } else { length };
        from..to.div_ceil(keys)
    };
    let ranges: Vec<Range<usize>> = (0..length.div_ceil(queries)).map(keys_of).collect();
    let mut pairs = Vec::with_capacity(ranges.iter().map(Range::len).sum());
    match outer {
        Outer::Queries => {
            for (query_block, range) in ranges.into_iter().enumerate() {
                pairs.extend(range.map(|key_block| [query_block, key_block]));
            }
        }
        Outer::Keys => {
            for key_block in 0..length.div_ceil(keys) {
                for (query_block, range) in ranges.iter().enumerate() {
                    if range.contains(&key_block) {
                        pairs.push([query_block, key_block]);
                    }
                }
            }
        }
    }
    pairs
}
