//! Attention: values mixed by the softmax of scaled products of queries and keys.
//!
//! The forward pass is one op and its gradient another, so that autodiff, remat policies, batching, propagation and the
//! partitioner see a kernel with rules, whatever its implementation is. The implementation is chosen after
//! partitioning, for the shapes of one device (`kernels`). The definitions here are in other ops: the plain form, which
//! every plugin takes.
//!
//! Operands of both begin with these, after any number of batch dimensions `*b`:
//!
//! | operand | dimensions | |
//! |---|---|---|
//! | query | `[*b, kv_heads, groups, queries, width]` | query head `h * groups + g` uses key and value head `h` |
//! | key | `[*b, kv_heads, keys, width]` | of the queries' type |
//! | value | `[*b, kv_heads, keys, value_width]` | of the queries' type |
//! | query segments | `s32` `[*b, queries]` | a query sees keys of its own segment |
//! | key segments | `s32` `[*b, keys]` | |
//! | query places | `s32` `[*b, queries]` | what [`AttentionForm::causal`] and [`AttentionForm::window`] compare |
//! | key places | `s32` `[*b, keys]` | |
//!
//! Scores and sums are `f32`, or `f64` for operands of that type. A query that sees no key gives zero.
//!
//! With [`AttentionForm::dropout`] both have one more operand, the last: a random word for each head of each row, `u32`
//! `[*b, kv_heads, groups]`. Whether a weight drops is drawn by [`Threefry`] from that word and the places of the query
//! and the key. So it is the same on every mesh, for every implementation, and when it is computed again.
//!
//! Source: Vaswani et al., arXiv 1706.03762; Ainslie et al., "GQA", arXiv 2305.13245; the gradient from the logarithm
//! of the sums: Dao et al., "FlashAttention", arXiv 2205.14135.

mod ring;

use smallvec::SmallVec;

use super::rules::*;
use super::{
    BinaryKind, Direction, DotDims, DotGeneral, Group, Number, Precision, ReduceKind, Select, Threefry, UnaryKind,
};

/// The score that stands for a key that is not seen. It is finite, so that nothing becomes NaN.
pub const UNSEEN: f64 = -1e30;

/// The least value that the highest score of a query counts as. It is so far above [`UNSEEN`] that the exponential of
/// an unseen score is zero, also for a query that sees no key.
pub const LOWEST: f64 = -1e25;

/// Whether places equal indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaceOrder {
    /// Query `i` and key `i` stand at place `i`: the pairs that see each other are known when the program is compiled.
    Index,
    /// Places are data, as in a sequence that is split over devices.
    Any,
}

crate::ir::word_attribute!(PlaceOrder { Index = "index", Any = "any" });

meshloom_hlo::words! {
    /// How queries meet keys of other devices, where the sequence is split.
    #[derive(Default)]
    pub enum KeyExchange {
        /// Each device gathers all keys and values.
        #[default]
        Gather = "gather",
        /// Keys and values travel around a ring of the devices.
        Ring = "ring",
    }
}

crate::ir::word_attribute!(KeyExchange);

/// The form of the scores, and the keys that a query sees in its own segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionForm {
    /// Factor of the products of queries and keys.
    pub scale: Number,
    /// Scaled scores `s` become `cap * tanh(s / cap)` (Gemma 2, arXiv 2408.00118).
    pub softcap: Option<Number>,
    /// Whether a query sees no key at a later place.
    pub causal: bool,
    /// The number of places that a query sees back: it stands less than this many places after the key.
    pub window: Option<usize>,
    /// Whether places equal indices.
    pub order: PlaceOrder,
    /// How queries meet keys of other devices.
    pub exchange: KeyExchange,
    /// The probability with which a weight drops, from 0 to less than 1; the kept weights are divided by one minus it.
    pub dropout: Option<Number>,
}

crate::ir::attributes!(AttentionForm {
    scale: key("scale"),
    softcap: optional("softcap", None),
    causal: flag("causal"),
    window: optional("window", None),
    order: optional("places", PlaceOrder::Index),
    exchange: optional("exchange", KeyExchange::Gather),
    dropout: optional("dropout", None),
});

/// `attention(query, key, value, segments, places)`, operands as above: for each query the values of the keys that it
/// sees, weighted by the softmax of their scores: `[*b, kv_heads, groups, queries, value_width]` of the operands' type;
/// and the logarithm of the sum of the exponentials of the scores: `[*b, kv_heads, groups, queries]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention(pub AttentionForm);

crate::ir::op_text!(Attention = "attention" { 0: several });

/// The cotangents of query, key and value of an [`Attention`], in their types. After the operands of that:
///
/// | operand | dimensions | |
/// |---|---|---|
/// | log total | `[*b, kv_heads, groups, queries]` | the second result of the attention |
/// | flow | the same | for each query what flows back through the sum of its weights: the sum of `mixed * cotangent`, less the cotangent of `log total` |
/// | cotangent | that of the first result | of the operands' type |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradient(pub AttentionForm);

crate::ir::op_text!(AttentionGradient = "attention-gradient" { 0: several });

/// The sizes of an attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Leading dimensions of everything.
    pub batch: Dims,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Number of query heads for each of those.
    pub groups: usize,
    /// Number of queries of a row.
    pub queries: usize,
    /// Number of keys of a row.
    pub keys: usize,
    /// Width of a query and of a key.
    pub width: usize,
    /// Width of a value.
    pub value_width: usize,
}

impl AttentionSizes {
    /// The sizes by the types of the first three operands.
    pub fn of(query: &TensorType, key: &TensorType, value: &TensorType) -> AttentionSizes {
        let b = query.rank() - 4;
        AttentionSizes {
            batch: query.dims[..b].into(),
            kv_heads: query.dims[b],
            groups: query.dims[b + 1],
            queries: query.dims[b + 2],
            keys: key.dims[b + 1],
            width: query.dims[b + 3],
            value_width: value.dims[b + 2],
        }
    }

    fn with_batch(&self, own: &[usize]) -> Dims {
        self.batch.iter().chain(own).copied().collect()
    }

    /// The dimensions of a tensor with a number for each query of each head.
    fn of_queries(&self) -> Dims {
        self.with_batch(&[self.kv_heads, self.groups, self.queries])
    }

    fn of_mixed(&self) -> Dims {
        self.with_batch(&[self.kv_heads, self.groups, self.queries, self.value_width])
    }
}

impl AttentionForm {
    /// Checks the operands that both ops have; the op has `count` without the random words of dropout.
    fn sizes(&self, operands: &[&TensorType], count: usize) -> Result<AttentionSizes, TypeError> {
        expect_operands(operands, count + usize::from(self.dropout.is_some()))?;
        let (query, key, value) = (operands[0], operands[1], operands[2]);
        if !query.dtype.is_float() {
            let expected = "a floating-point type".to_owned();
            return Err(TypeError::DType { operand: 0, expected, found: query.dtype });
        }
        refuse_if!(query.rank() < 4, "the query needs at least the 4 dimensions heads, groups, queries and width");
        let b = query.rank() - 4;
        for (operand, rank) in [(1, b + 3), (2, b + 3)] {
            expect_dtype(operand, operands[operand], query.dtype)?;
            expect_rank(operand, operands[operand], rank)?;
        }
        let sizes = AttentionSizes::of(query, key, value);
        expect_dims(1, key, &sizes.with_batch(&[sizes.kv_heads, sizes.keys, sizes.width]))?;
        expect_dims(2, value, &sizes.with_batch(&[sizes.kv_heads, sizes.keys, sizes.value_width]))?;
        for (operand, count) in [(3, sizes.queries), (4, sizes.keys), (5, sizes.queries), (6, sizes.keys)] {
            expect_dtype(operand, operands[operand], DType::S32)?;
            expect_dims(operand, operands[operand], &sizes.with_batch(&[count]))?;
        }
        let AttentionSizes { queries, keys, .. } = sizes;
        refuse_if!(
            self.order == PlaceOrder::Index && queries != keys,
            "{queries} queries and {keys} keys cannot stand at the places that their index says"
        );
        refuse_if!(
            self.exchange == KeyExchange::Ring && queries != keys,
            "{queries} queries and {keys} keys cannot be split alike for a ring"
        );
        refuse_if!(self.window == Some(0), "a window of 0 shows no key; 1 shows a query its own place");
        if let Some(rate) = self.dropout.map(Number::get) {
            refuse_if!(
                !(0.0..1.0).contains(&rate),
                "weights cannot drop with probability {rate}: it is 0 to less than 1"
            );
            expect_dtype(count, operands[count], DType::U32)?;
            expect_dims(count, operands[count], &sizes.with_batch(&[sizes.kv_heads, sizes.groups]))?;
        }
        Ok(sizes)
    }

    /// A draw below this drops a weight.
    pub(crate) fn drops_below(rate: Number) -> f64 {
        (rate.get() * 2f64.powi(32)).floor()
    }

    /// Returns the same form over parts of the sequence, whose keys are at hand.
    #[must_use]
    pub fn of_parts(self) -> AttentionForm {
        AttentionForm { order: PlaceOrder::Any, exchange: KeyExchange::Gather, ..self }
    }
}

/// The definitions, in other ops.
struct AttentionDefinition<'a> {
    builder: &'a mut GraphBuilder,
    form: AttentionForm,
    sizes: AttentionSizes,
    dtype: DType,
}

impl AttentionDefinition<'_> {
    fn new<'a>(builder: &'a mut GraphBuilder, form: AttentionForm, operands: &[Value]) -> AttentionDefinition<'a> {
        let [query, key, value] = [0, 1, 2].map(|index| builder.ty(operands[index]));
        let (sizes, dtype) = (AttentionSizes::of(query, key, value), query.dtype);
        AttentionDefinition { builder, form, sizes, dtype }
    }

    /// The numbers of the leading `count` dimensions of a tensor.
    fn leading(count: usize) -> SmallVec<[usize; 6]> {
        (0..count).collect()
    }

    /// A product over the batch and the heads, of a tensor with groups and one without, or of two with groups.
    fn dot(&mut self, lhs: Value, rhs: Value, contract: (&[usize], &[usize]), dtype: DType) -> Result<Value, OpError> {
        let b = self.sizes.batch.len() + 1;
        let batch = || (0..b).collect();
        let dims = DotDims {
            lhs_batch: batch(),
            rhs_batch: batch(),
            lhs_contract: contract.0.iter().map(|dim| b + dim).collect(),
            rhs_contract: contract.1.iter().map(|dim| b + dim).collect(),
        };
        self.builder.push1(DotGeneral { dims: Box::new(dims), dtype, precision: Precision::Default }, &[lhs, rhs])
    }

    /// Repeats a number of each query for each of its scores.
    fn by_score(&mut self, x: Value, scores: Value) -> Result<Value, OpError> {
        let dims = self.builder.ty(scores).dims.clone();
        self.builder.broadcast(x, &dims, &Self::leading(dims.len() - 1))
    }

    /// Products of queries and keys: `[*b, kv_heads, groups, queries, keys]`.
    fn products(&mut self, operands: &[Value]) -> Result<Value, OpError> {
        let wide = self.dtype.at_least_f32();
        if self.sizes.queries > 1 {
            return self.dot(operands[0], operands[1], (&[2], &[1]), wide);
        }
        // Keys first: XLA for CPU transposes the second factor, and the keys of a single query are by far the larger
        // factor.
        let products = self.dot(operands[1], operands[0], (&[1], &[2]), wide)?;
        let b = self.sizes.batch.len() + 1;
        let order: SmallVec<[usize; 6]> = (0..b).chain([b + 1, b + 2, b]).collect();
        self.builder.transpose(products, &order)
    }

    /// Scores before they are masked, after the cap: `[*b, kv_heads, groups, queries, keys]`; and whether each counts.
    fn scores(&mut self, operands: &[Value]) -> Result<(Value, Value), OpError> {
        let products = self.products(operands)?;
        let scaled = self.builder.scale(products, self.form.scale.get())?;
        let scores = match self.form.softcap {
            None => scaled,
            Some(cap) => {
                let part = self.builder.scale(scaled, 1.0 / cap.get())?;
                let part = self.builder.unary(UnaryKind::Tanh, part)?;
                self.builder.scale(part, cap.get())?
            }
        };
        let seen = self.seen(operands, scores)?;
        Ok((scores, seen))
    }

    /// Whether each score counts.
    fn seen(&mut self, operands: &[Value], scores: Value) -> Result<Value, OpError> {
        let AttentionSizes { ref batch, queries, keys, .. } = self.sizes;
        let b = batch.len();
        let dims = self.sizes.with_batch(&[queries, keys]);
        let of_queries = Self::leading(b + 1);
        let of_keys: SmallVec<[usize; 6]> = (0..b).chain([b + 1]).collect();
        let builder = &mut *self.builder;
        let mut pair = |index: usize| -> Result<(Value, Value), OpError> {
            let query = builder.broadcast(operands[index], &dims, &of_queries)?;
            Ok((query, builder.broadcast(operands[index + 1], &dims, &of_keys)?))
        };
        let (segments, places) = (pair(3)?, pair(5)?);
        let builder = &mut *self.builder;
        let mut seen = builder.compare(Direction::Eq, segments.0, segments.1)?;
        if self.form.causal {
            let earlier = builder.compare(Direction::Le, places.1, places.0)?;
            seen = builder.binary(BinaryKind::And, seen, earlier)?;
        }
        if let Some(window) = self.form.window {
            let distance = builder.sub(places.0, places.1)?;
            let limit = builder.splat_like(distance, window as f64);
            let near = builder.compare(Direction::Lt, distance, limit)?;
            seen = builder.binary(BinaryKind::And, seen, near)?;
        }
        let dims = builder.ty(scores).dims.clone();
        let mapping: SmallVec<[usize; 6]> = (0..b).chain([b + 2, b + 3]).collect();
        builder.broadcast(seen, &dims, &mapping)
    }

    fn masked(&mut self, scores: Value, seen: Value) -> Result<Value, OpError> {
        let unseen = self.builder.splat_like(scores, UNSEEN);
        self.builder.push1(Select, &[seen, scores, unseen])
    }

    /// Applies dropout to values like `scores`: kept ones are divided by the probability of being kept, dropped ones
    /// are zero.
    fn dropped(&mut self, operands: &[Value], scores: Value) -> Result<Value, OpError> {
        let (Some(rate), Some(&seeds)) = (self.form.dropout, operands.last()) else { return Ok(scores) };
        let b = self.sizes.batch.len();
        let dims = self.builder.ty(scores).dims.clone();
        let zero = self.builder.zeros_like(seeds);
        let of_head = Self::leading(b + 2);
        let place = |dim: usize| (0..b).chain([dim]).collect::<SmallVec<[usize; 6]>>();
        let (of_query, of_key) = (place(b + 2), place(b + 3));
        let sources = [(seeds, &of_head), (zero, &of_head), (operands[5], &of_query), (operands[6], &of_key)];
        let mut words = Values::new();
        for (source, mapping) in sources {
            let word = self.builder.convert(source, DType::U32)?;
            words.push(self.builder.broadcast(word, &dims, mapping)?);
        }
        let draw = self.builder.push(Threefry, &words)?[0];
        let limit = self.builder.splat_like(draw, AttentionForm::drops_below(rate));
        let is_kept = self.builder.compare(Direction::Ge, draw, limit)?;
        let scaled = self.builder.scale(scores, 1.0 / (1.0 - rate.get()))?;
        self.builder.or_zero(is_kept, scaled)
    }

    /// See [`Attention`].
    fn mixed(&mut self, operands: &[Value]) -> Result<[Value; 2], OpError> {
        let (scores, seen) = self.scores(operands)?;
        let scores = self.masked(scores, seen)?;
        let last = self.builder.ty(scores).rank() - 1;
        let highest = self.builder.reduce(ReduceKind::Max, &[last], scores)?;
        let lowest = self.builder.splat_like(highest, LOWEST);
        let highest = self.builder.binary(BinaryKind::Maximum, highest, lowest)?;
        let offset = self.by_score(highest, scores)?;
        let shifted = self.builder.sub(scores, offset)?;
        let weights = self.builder.unary(UnaryKind::Exponential, shifted)?;
        let total = self.builder.reduce(ReduceKind::Sum, &[last], weights)?;
        let least = self.builder.splat_like(total, f64::from(f32::MIN_POSITIVE));
        let total = self.builder.binary(BinaryKind::Maximum, total, least)?;
        let log_total = self.builder.unary(UnaryKind::Log, total)?;
        let log_total = self.builder.add(highest, log_total)?;
        let one = self.builder.splat_like(total, 1.0);
        let share = self.builder.div(one, total)?;
        let share = self.by_score(share, weights)?;
        let weights = self.builder.mul(weights, share)?;
        let weights = self.dropped(operands, weights)?;
        let weights = self.builder.convert(weights, self.dtype)?;
        let mixed = self.dot(weights, operands[2], (&[2], &[0]), self.dtype)?;
        Ok([mixed, log_total])
    }

    /// See [`AttentionGradient`].
    fn gradient(&mut self, operands: &[Value]) -> Result<[Value; 3], OpError> {
        let (log_total, flow, ct) = (operands[7], operands[8], operands[9]);
        let wide = self.dtype.at_least_f32();
        let (scores, seen) = self.scores(operands)?;
        let masked = self.masked(scores, seen)?;
        let log_total = self.by_score(log_total, scores)?;
        let weights = self.builder.sub(masked, log_total)?;
        let weights = self.builder.unary(UnaryKind::Exponential, weights)?;
        let weights_ct = self.dot(ct, operands[2], (&[2], &[1]), wide)?;
        let weights_ct = self.dropped(operands, weights_ct)?;
        let flow = self.by_score(flow, scores)?;
        let excess = self.builder.sub(weights_ct, flow)?;
        let mut scores_ct = self.builder.mul(weights, excess)?;
        if let Some(cap) = self.form.softcap {
            // The slope of the cap, `1 - tanh^2`.
            let part = self.builder.scale(scores, 1.0 / cap.get())?;
            let square = self.builder.mul(part, part)?;
            let slope = self.builder.reverse_sub(1.0, square)?;
            scores_ct = self.builder.mul(scores_ct, slope)?;
        }
        let scores_ct = self.builder.scale(scores_ct, self.form.scale.get())?;
        let scores_ct = self.builder.convert(scores_ct, self.dtype)?;
        let weights = self.dropped(operands, weights)?;
        let weights = self.builder.convert(weights, self.dtype)?;
        let query_ct = self.dot(scores_ct, operands[1], (&[2], &[0]), self.dtype)?;
        let key_ct = self.dot(scores_ct, operands[0], (&[0, 1], &[0, 1]), self.dtype)?;
        let value_ct = self.dot(weights, ct, (&[0, 1], &[0, 1]), self.dtype)?;
        Ok([query_ct, key_ct, value_ct])
    }
}

impl Attention {
    /// The plain form, which holds all scores. It takes this op's `operands` and returns its results.
    ///
    /// # Errors
    /// The operands are not those of the op.
    pub fn define(&self, builder: &mut GraphBuilder, operands: &[Value]) -> Result<Values, OpError> {
        Ok(AttentionDefinition::new(builder, self.0, operands).mixed(operands)?.into_iter().collect())
    }
}

impl AttentionGradient {
    /// The plain form, which holds all scores. It takes this op's `operands` and returns its results.
    ///
    /// # Errors
    /// The operands are not those of the op.
    pub fn define(&self, builder: &mut GraphBuilder, operands: &[Value]) -> Result<Values, OpError> {
        Ok(AttentionDefinition::new(builder, self.0, operands).gradient(operands)?.into_iter().collect())
    }
}

impl Primitive for Attention {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let sizes = self.0.sizes(operands, 7)?;
        let dtype = operands[0].dtype;
        let mixed = TensorType { dtype, dims: sizes.of_mixed() };
        let log_total = TensorType { dtype: dtype.at_least_f32(), dims: sizes.of_queries() };
        Ok([mixed, log_total].into_iter().collect())
    }

    rules!(facts: KERNEL, jvp: by_definition, batch: unchanged, emit: by_definition);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let (mixed, log_total) = (context.result(0), context.result(1));
        let (ct, log_total_ct) = (context.cotangent(0), context.cotangent(1));
        let builder = &mut *context.builder;
        let wide = builder.ty(log_total).dtype;
        let last = builder.ty(mixed).rank() - 1;
        let mut flow = match ct {
            None => builder.zeros_like(log_total),
            Some(ct) => {
                let [mixed, ct] = [builder.convert(mixed, wide)?, builder.convert(ct, wide)?];
                let product = builder.mul(mixed, ct)?;
                builder.reduce(ReduceKind::Sum, &[last], product)?
            }
        };
        if let Some(ct) = log_total_ct {
            flow = builder.sub(flow, ct)?;
        }
        let ct = match ct {
            Some(ct) => ct,
            None if log_total_ct.is_none() => return Ok(()),
            None => builder.zeros_like(mixed),
        };
        let own = (0..7).map(|index| context.operand(index));
        let seeds = (7..context.operand_count()).map(|index| context.operand(index));
        let operands: Values = own.chain([log_total, flow, ct]).chain(seeds).collect();
        let cotangents = context.builder.push(AttentionGradient(self.0), &operands)?;
        (0..3).for_each(|index| context.set(index, cotangents[index]));
        Ok(())
    }

    /// Keys are whole, since each device needs all keys that its queries see; or they are split as queries are, and
    /// travel.
    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let sizes = AttentionSizes::of(operands[0], operands[1], operands[2]);
        let mut rule = factors(self.0, &sizes, (operands, results), FactorKind::Parallel);
        let (b, width, value_width) = (sizes.batch.len(), sizes.width, sizes.value_width);
        rule.add(width, FactorKind::Replicated, &[(0, b + 3), (1, b + 2)], &[]);
        rule.add(value_width, FactorKind::Parallel, &[(2, b + 2)], &[(0, b + 3)]);
        rule
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        match key_axes(self.0, context) {
            Some(axes) => ring::attention(self.0, context, axes),
            None => context.apply(Attention(localized(self.0, context))),
        }
    }
}

impl Primitive for AttentionGradient {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let sizes = self.0.sizes(operands, 10)?;
        let dtype = operands[0].dtype;
        for operand in [7, 8] {
            expect_dtype(operand, operands[operand], dtype.at_least_f32())?;
            expect_dims(operand, operands[operand], &sizes.of_queries())?;
        }
        expect_dtype(9, operands[9], dtype)?;
        expect_dims(9, operands[9], &sizes.of_mixed())?;
        Ok(operands[..3].iter().map(|&ty| ty.clone()).collect())
    }

    rules!(facts: KERNEL, derivatives: by_definition, batch: unchanged, emit: by_definition);

    /// Cotangents of keys and values are sums over the queries that see them, and over the heads that share them.
    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let sizes = AttentionSizes::of(operands[0], operands[1], operands[2]);
        let mut rule = factors(self.0, &sizes, (operands, results), FactorKind::Reduction(ReduceKind::Sum));
        let (b, width, value_width) = (sizes.batch.len(), sizes.width, sizes.value_width);
        rule.add(width, FactorKind::Replicated, &[(0, b + 3), (1, b + 2)], &[(0, b + 3), (1, b + 2)]);
        rule.add(value_width, FactorKind::Replicated, &[(2, b + 2), (9, b + 3)], &[(2, b + 2)]);
        rule
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        match key_axes(self.0, context) {
            Some(axes) => ring::gradient(self.0, context, axes),
            None => context.apply(AttentionGradient(localized(self.0, context))),
        }
    }
}

/// The factors of both ops but those of the widths. `of_queries` says how the loops over groups and queries are split.
/// They are on all results if they are parallel, and on the cotangents of queries alone if those of keys are sums over
/// them.
fn factors(
    form: AttentionForm,
    sizes: &AttentionSizes,
    (operands, results): (&[&TensorType], &[&TensorType]),
    of_queries: FactorKind,
) -> FactorRule {
    use FactorKind::{Gathered, Parallel, Permutation};
    let mut rule = FactorRule::empty(operands, results);
    let &AttentionSizes { ref batch, kv_heads, groups, queries, keys, .. } = sizes;
    let (b, has_sums) = (batch.len(), of_queries != Parallel);
    // The dimension of the first `leading` operands and of all operands after the places, which have one number or more
    // for each head.
    let of_heads = |leading: usize, dim: usize| -> Places {
        (0..leading).chain(7..operands.len()).map(|operand| (operand, dim)).collect()
    };
    let on_results = |count: usize, dim: usize| -> Places { (0..count).map(|result| (result, dim)).collect() };
    for (dim, &size) in batch.iter().enumerate() {
        let all: Places = (0..operands.len()).map(|operand| (operand, dim)).collect();
        rule.add(size, Parallel, &all, &on_results(results.len(), dim));
    }
    rule.add(kv_heads, Parallel, &of_heads(3, b), &on_results(results.len(), b));
    let count = if has_sums { 1 } else { 2 };
    rule.add(groups, of_queries, &of_heads(1, b + 1), &on_results(count, b + 1));
    let of_query = [(0, b + 2), (3, b), (5, b), (7, b + 2), (8, b + 2), (9, b + 2)];
    let of_query = &of_query[..if has_sums { 6 } else { 3 }];
    let of_key = [(1, b + 1), (2, b + 1), (4, b), (6, b)];
    let key_results = &of_key[..if has_sums { 2 } else { 0 }];
    let query_results = on_results(count, b + 2);
    match form.exchange {
        KeyExchange::Gather => {
            rule.add(queries, of_queries, of_query, &query_results);
            rule.add(keys, Gathered, &of_key, key_results);
        }
        KeyExchange::Ring => {
            let both = [&query_results, key_results].concat();
            rule.add(queries, Permutation, &[of_query, &of_key].concat(), &both);
        }
    }
    rule
}

/// Dimensions of operands or of results.
type Places = SmallVec<[(usize, usize); 11]>;

/// The devices among which keys travel; `None` where all keys are at hand, as on a mesh axis of one device.
fn key_axes(form: AttentionForm, context: &PartitionContext<'_>) -> Option<Group> {
    let axes = context.operand_axes(1, context.operand_type(1).rank() - 2);
    let travels = form.exchange == KeyExchange::Ring && !axes.is_empty();
    travels.then(|| context.group(&axes)).filter(|group| group.size > 1)
}

/// The form for a device's part of the queries.
fn localized(form: AttentionForm, context: &PartitionContext<'_>) -> AttentionForm {
    let dim = context.operand_type(0).rank() - 2;
    if context.operand_dims(0)[dim] == context.operand_type(0).dims[dim] { form } else { form.of_parts() }
}

import!(Attention, AttentionGradient: in_parts);
