//! Attention without its scores: over blocks of queries and keys, with a softmax that is corrected as blocks come.
//!
//! One loop runs over the pairs of blocks in which some query may see some key. Where places are what their index says,
//! the list of pairs is a constant, so the trip count is known to every analysis. Else the pairs are found from the
//! lowest and highest places and segments of each block when the program runs. Blocks that nobody sees are not computed
//! in either case. What is held grows with the length, not with its square.
//!
//! Source: Milakov and Gimelshein, arXiv 1805.02867 (online softmax); Dao, "FlashAttention-2", arXiv 2307.08691.

use super::expand::{Implementation, true_places};
use super::{AttentionKernel, Blocks, Kernels};
use crate::ir::{DType, Literal, TensorType};
use crate::ops::{
    Attention, AttentionForm, AttentionGradient, AttentionSizes, LOWEST, PlaceOrder, UNSEEN, score_dtype,
};
use crate::trace::{
    Function, Tensor, TensorSpec, TensorTree, TraceError, constant, einsum_with, full, scan, while_loop, words_of, zeros,
};

/// The segment of keys and queries that only fill a block: no token is of it.
const NO_SEGMENT: f64 = i32::MIN as f64;

/// What computes an attention: none if one block holds it all, for which the plain form is best.
pub(super) fn attention(
    op: &Attention,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<Implementation>, TraceError> {
    let Some(cut) = Cut::new(op.0, types, kernels) else { return Ok(None) };
    cut.trace("attention", types, |operands| {
        let (mixed, log_total) = cut.forward(&cut.rows(operands));
        vec![cut.whole_batch(mixed), cut.whole_batch(log_total)]
    })
}

/// What computes the gradient of an attention.
pub(super) fn attention_gradient(
    op: &AttentionGradient,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<Implementation>, TraceError> {
    let Some(cut) = Cut::new(op.0, types, kernels) else { return Ok(None) };
    cut.trace("attention_gradient", types, |operands| {
        let [log_total, flow, ct] = [7, 8, 9].map(|index| cut.one_batch(operands[index]));
        let cotangents = cut.backward(&cut.rows(operands), log_total, flow, ct);
        cotangents.map(|x| cut.whole_batch(x)).to_vec()
    })
}

/// Queries, keys and values of rows, padded to whole blocks; the batch is one dimension.
struct RowBlocks {
    /// `[batch, kv_heads, groups, queries, width]`.
    query: Tensor,
    /// `[batch, kv_heads, keys, width]`.
    key: Tensor,
    /// `[batch, kv_heads, keys, value_width]`.
    value: Tensor,
    /// Of queries and keys, `[batch, ..]`.
    segments: [Tensor; 2],
    /// Of queries and keys, `[batch, ..]`.
    places: [Tensor; 2],
    /// From which weights drop, `u32` `[batch, kv_heads, groups]`.
    seeds: Option<Tensor>,
}

/// One pair of blocks.
struct Pair {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: [Tensor; 2],
    places: [Tensor; 2],
    seeds: Option<Tensor>,
}

/// A pair of blocks that is to be computed: scalars `s32`.
#[derive(Clone, Copy)]
struct Step {
    /// The first query and the first key.
    at: [Tensor; 2],
    /// Whether the block that the loop stays with is another than before: `pred`.
    is_first: Tensor,
}

/// With which block the loop stays while it goes through the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outer {
    Queries,
    Keys,
}

/// How a call is cut into blocks.
struct Cut {
    form: AttentionForm,
    sizes: AttentionSizes,
    blocks: Blocks,
    dtype: DType,
    /// Of scores and sums.
    wide: DType,
}

impl Cut {
    /// None if one block holds it all, or the plain form is asked for.
    fn new(form: AttentionForm, types: &[TensorType], kernels: &Kernels) -> Option<Cut> {
        let sizes = AttentionSizes::of(&types[0], &types[1], &types[2]);
        let dtype = types[0].dtype;
        Some(Cut { form, blocks: kernels.cut_of(&sizes)?, sizes, dtype, wide: score_dtype(dtype) })
    }

    fn trace(
        &self,
        name: &str,
        types: &[TensorType],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Result<Option<Implementation>, TraceError> {
        let specs: Vec<TensorSpec> = types.iter().map(|ty| TensorSpec::new(ty.dtype, &ty.dims[..])).collect();
        let function = Function::trace(name, specs, |operands: Vec<Tensor>| f(&operands))?;
        let Blocks { queries, keys } = self.blocks;
        let [query_blocks, key_blocks] = self.counts();
        let all = query_blocks * key_blocks;
        let pairs = match self.form.order {
            PlaceOrder::Index => format!("{} of {all} pairs", self.known_pairs(Outer::Queries).len()),
            PlaceOrder::Any => format!("those of {all} pairs that data say"),
        };
        let implementation = AttentionKernel::Blockwise.name();
        let how = format!("blocks of {queries} queries and {keys} keys, {pairs}");
        Ok(Some(Implementation { implementation, how, graph: (**function.graph()).clone() }))
    }

    fn batch(&self) -> usize {
        self.sizes.batch.iter().product()
    }

    /// With one dimension for the batch.
    fn one_batch(&self, x: Tensor) -> Tensor {
        x.reshape([&[self.batch()], &x.dims()[self.sizes.batch.len()..]].concat())
    }

    /// With all dimensions of the batch.
    fn whole_batch(&self, x: Tensor) -> Tensor {
        x.reshape([&self.sizes.batch[..], &x.dims()[1..]].concat())
    }

    /// Blocks of queries and of keys.
    fn counts(&self) -> [usize; 2] {
        [self.sizes.queries.div_ceil(self.blocks.queries), self.sizes.keys.div_ceil(self.blocks.keys)]
    }

    /// Queries padded to whole blocks along an axis.
    fn pad_queries(&self, x: Tensor, axis: i32, filling: f64) -> Tensor {
        pad(x, axis, self.blocks.queries, filling)
    }

    fn rows(&self, operands: &[Tensor]) -> RowBlocks {
        let keys = |x: Tensor, axis, filling| pad(x, axis, self.blocks.keys, filling);
        let merged = |index: usize| self.one_batch(operands[index]);
        RowBlocks {
            query: self.pad_queries(merged(0), 3, 0.0),
            key: keys(merged(1), 2, 0.0),
            value: keys(merged(2), 2, 0.0),
            // Neither sees the other: what fills keys is of no query's segment.
            segments: [self.pad_queries(merged(3), 1, NO_SEGMENT), keys(merged(4), 1, NO_SEGMENT + 1.0)],
            places: [self.pad_queries(merged(5), 1, 0.0), keys(merged(6), 1, 0.0)],
            seeds: self.form.dropout.map(|_| merged(operands.len() - 1)),
        }
    }

    fn pair(&self, rows: &RowBlocks, at: [Tensor; 2]) -> Pair {
        let Blocks { queries, keys } = self.blocks;
        let both = |[of_queries, of_keys]: [Tensor; 2]| {
            [of_queries.dynamic_slice_along(1, at[0], queries), of_keys.dynamic_slice_along(1, at[1], keys)]
        };
        Pair {
            query: rows.query.dynamic_slice_along(3, at[0], queries),
            key: rows.key.dynamic_slice_along(2, at[1], keys),
            value: rows.value.dynamic_slice_along(2, at[1], keys),
            segments: both(rows.segments),
            places: both(rows.places),
            seeds: rows.seeds,
        }
    }

    /// Scores `[batch, kv_heads, groups, queries, keys]`, unseen ones masked; and the slope of the cap, where there is
    /// one.
    fn scores(&self, pair: &Pair) -> (Tensor, Option<Tensor>) {
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

    /// What is like the scores of a pair, where weights are kept, divided by the probability of that; zero where they
    /// drop.
    fn dropped(&self, pair: &Pair, scores: Tensor) -> Tensor {
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
    fn run<C: TensorTree>(&self, rows: &RowBlocks, outer: Outer, carry: C, step: impl FnOnce(C, Step) -> C) -> C {
        if self.form.order == PlaceOrder::Index {
            let (carry, ()) = scan(carry, self.known_steps(outer), |carry, (at, is_first)| {
                (step(carry, Step { at: [at.0, at.1], is_first }), ())
            });
            return carry;
        }
        let (pairs, count) = self.found_pairs(rows, outer);
        let start = (zeros(DType::S32, []), full(DType::S32, [], -1.0), carry);
        let (_, _, carry) = while_loop(
            start,
            |(index, _, _)| index.less(count),
            |(index, before, carry)| {
                let pair = pairs.dynamic_index(0, index);
                let [_, inner] = self.nested_counts(outer);
                let [first, second] = [pair / inner as f64, pair % inner as f64];
                let step_at = match outer {
                    Outer::Queries => [first, second],
                    Outer::Keys => [second, first],
                };
                let at = [step_at[0] * self.blocks.queries as f64, step_at[1] * self.blocks.keys as f64];
                (index + 1.0, first, step(carry, Step { at, is_first: first.not_equal(before) }))
            },
        );
        carry
    }

    /// Number of blocks that the loop stays with, and goes through.
    fn nested_counts(&self, outer: Outer) -> [usize; 2] {
        let [queries, keys] = self.counts();
        if outer == Outer::Queries { [queries, keys] } else { [keys, queries] }
    }

    /// The pairs of blocks in which a query sees a key of its own segment, where places are what their index says.
    fn known_pairs(&self, outer: Outer) -> Vec<[usize; 2]> {
        let Blocks { queries, keys } = self.blocks;
        let length = self.sizes.queries;
        let of_queries = |block: usize| {
            let (first, last) = (block * queries, ((block + 1) * queries).min(length));
            // The first query of the block sees furthest back.
            let from = self.form.window.map_or(0, |window| (first + 1).saturating_sub(window)) / keys;
            let to = if self.form.causal { last } else { length };
            (from..to.div_ceil(keys)).map(move |key_block| [block, key_block])
        };
        let mut pairs: Vec<[usize; 2]> = (0..self.counts()[0]).flat_map(of_queries).collect();
        if outer == Outer::Keys {
            pairs.sort_unstable_by_key(|&[query_block, key_block]| [key_block, query_block]);
        }
        pairs
    }

    /// As constants: the first query and key of each pair, and whether it begins another block.
    fn known_steps(&self, outer: Outer) -> ((Tensor, Tensor), Tensor) {
        let pairs = self.known_pairs(outer);
        let stays_with = |index: usize| pairs[index][usize::from(outer == Outer::Keys)];
        let list = |dtype: DType, number: &dyn Fn(usize) -> f64| {
            constant(Literal::from_fn(TensorType::new(dtype, &[pairs.len()]), number))
        };
        let first = |index: usize| f64::from(index == 0 || stays_with(index) != stays_with(index - 1));
        let queries = list(DType::S32, &|index| (pairs[index][0] * self.blocks.queries) as f64);
        let keys = list(DType::S32, &|index| (pairs[index][1] * self.blocks.keys) as f64);
        ((queries, keys), list(DType::Pred, &first))
    }

    /// The pairs of blocks in which a query may see a key, by the lowest and highest places and segments of each block:
    /// numbers `first * count of others + second`, those that count in front; and how many they are.
    fn found_pairs(&self, rows: &RowBlocks, outer: Outer) -> (Tensor, Tensor) {
        let counts = self.counts();
        let bounds = |pair: [Tensor; 2], axis: usize| {
            let x = pair[axis];
            let dims = [self.batch(), counts[axis], x.dim(1) / counts[axis]];
            let by_block = x.reshape(dims);
            // What fills a block counts for nothing: it is in no segment of its own side's tokens.
            let is_token = rows.segments[axis].reshape(dims).greater(NO_SEGMENT + 1.0);
            let low = is_token.select(by_block, f64::from(i32::MAX)).min([0, 2]);
            let high = is_token.select(by_block, f64::from(i32::MIN)).max([0, 2]);
            (low, high)
        };
        let dims = counts;
        let row = |x: Tensor| x.expand(1).broadcast_to(dims);
        let column = |x: Tensor| x.expand(0).broadcast_to(dims);
        let [of_queries, of_keys] = [0, 1].map(|axis| bounds(rows.segments, axis));
        let mut seen =
            column(of_keys.0).less_equal(row(of_queries.1)) & row(of_queries.0).less_equal(column(of_keys.1));
        let [of_queries, of_keys] = [0, 1].map(|axis| bounds(rows.places, axis));
        if self.form.causal {
            seen = seen & column(of_keys.0).less_equal(row(of_queries.1));
        }
        if let Some(window) = self.form.window {
            // The lowest place of a query less the highest of a key: blocks without tokens are out already.
            let distance = row(of_queries.0.minimum(1e9)) - column(of_keys.1.maximum(-1e9));
            seen = seen & distance.less(window as f64);
        }
        let seen = if outer == Outer::Queries { seen } else { seen.transpose([1, 0]) };
        true_places(seen.reshape([counts[0] * counts[1]]))
    }

    /// The result, and the logarithm of each query's sum of exponentials.
    fn forward(&self, rows: &RowBlocks) -> (Tensor, Tensor) {
        let Blocks { queries, .. } = self.blocks;
        let [batch, kv_heads, groups, padded, _] = rows.query.shape();
        let width = rows.value.dim(3);
        let of_block = [batch, kv_heads, groups, queries];
        let of_all = [batch, kv_heads, groups, padded];
        let start = (
            // Of the block of queries that the loop is with.
            (
                zeros(self.wide, [batch, kv_heads, groups, queries, width]),
                full(self.wide, of_block, LOWEST),
                zeros(self.wide, of_block),
            ),
            // Of all.
            (zeros(self.dtype, [batch, kv_heads, groups, padded, width]), full(self.wide, of_all, LOWEST)),
        );
        let (_, (mixed, log_total)) = self.run(rows, Outer::Queries, start, |(block, all), step| {
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
            // What the last pair of a block leaves is what counts.
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
    fn backward(&self, rows: &RowBlocks, log_total: Tensor, flow: Tensor, ct: Tensor) -> [Tensor; 3] {
        let Blocks { queries, keys } = self.blocks;
        let [log_total, flow, ct] = [log_total, flow, ct].map(|x| self.pad_queries(x, 3, 0.0));
        let empty = |x: Tensor, dtype: DType| zeros(dtype, x.dims());
        let block_of = |x: Tensor| {
            let mut dims = x.dims();
            dims[2] = keys;
            zeros(self.wide, dims)
        };
        let start = (
            // Of the block of keys that the loop is with.
            (block_of(rows.key), block_of(rows.value)),
            (empty(rows.query, self.wide), empty(rows.key, self.dtype), empty(rows.value, self.dtype)),
        );
        let (_, (query_ct, key_ct, value_ct)) = self.run(rows, Outer::Keys, start, |(block, all), step| {
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

/// Padded to whole blocks along an axis.
fn pad(x: Tensor, axis: i32, block: usize, filling: f64) -> Tensor {
    let size = x.dim(axis);
    let missing = size.next_multiple_of(block) - size;
    if missing == 0 { x } else { x.pad(axis, 0, missing as i64, filling) }
}
