//! Attention over blocks of queries and keys, with grouped heads: the forward pass and its gradient.
//!
//! Query head `h` uses key head `h / (heads / kv_heads)`. A query sees the keys of its own segment, at places that
//! [`Attention::causal`] and [`Attention::window`] admit. Scores, weights and sums are `f32`.
//!
//! # Which blocks are computed
//! A kernel goes through a list of pairs of blocks, in scalar memory: nothing is fetched or computed for other pairs.
//! The list is an operand, so devices may have different ones of the same length. [`Attention::pairs`] makes it on the
//! host from the places of the first token of each block. Within a block, places go up by one.
//!
//! With [`Attention::places`], the place of each token is an operand instead, and another operand is the number of
//! pairs of the list that are visited. So a device may make the list when the program runs. The rest of the list is not
//! read.
//!
//! Each pair has flags: [`FIRST`] and [`LAST`] of the pairs of the block that the list is sorted by, [`COMPUTE`] if
//! there is something to see, [`EDGE`] if places hide something. Every block that the list is sorted by must occur,
//! else its result is never written. Pairs without flags that repeat the blocks of the pair before cost next to
//! nothing.
//!
//! # Operands and results
//! All are row-major. `T` queries and `S` keys are whole blocks; keys that only fill a block get a segment that no
//! query has. The kernels of one call take these, in this order:
//!
//! | operand | type | of |
//! |---|---|---|
//! | `count` | `s32[]`, at least 1 | all, with [`Attention::places`] |
//! | `query_block`, `key_block`, `flags` | `s32[pairs]` | all |
//! | `query_start` | `s32[T / query block]` | all, without [`Attention::places`] |
//! | `key_start` | `s32[S / key block]` | all, without [`Attention::places`] |
//! | `query` | `[batch, heads, T, width]` | all |
//! | `key` | `[batch, kv_heads, S, width]` | all |
//! | `value` | `[batch, kv_heads, S, value_width]` | all |
//! | `query_segments` | `s32[batch, 1, T]` | all, with [`Attention::segments`] |
//! | `key_segments` | `s32[batch, S, 1]` | all, with [`Attention::segments`] |
//! | `query_places` | `s32[batch, 1, T]` | all, with [`Attention::places`] |
//! | `key_places` | `s32[batch, S, 1]` | all, with [`Attention::places`] |
//! | `sinks` | `f32[heads, 1, 1]` | forward, with [`Attention::sinks`] |
//! | `cotangent` | that of `mixed` | backward |
//! | `log_total`, `flow` | `f32[batch, heads, 1, T]` | backward |
//!
//! | kernel | pairs sorted by | results |
//! |---|---|---|
//! | [`Attention::forward`] | queries | `mixed [batch, heads, T, value_width]`, `log_total f32[batch, heads, 1, T]` |
//! | [`Attention::backward_queries`] | queries | the cotangent of `query` |
//! | [`Attention::backward_keys`] | keys | the cotangents of `key` and `value` |
//!
//! `log_total` is the logarithm of the sum of the exponentials of the scores, and of the sink. A query that sees
//! nothing gets zeros, and a `log_total` of about [`LOWEST`] (with sinks, the sink). `flow` is the sum of
//! `mixed * cotangent` over the width, less the cotangent of `log_total`. The cotangent of a head's sink is
//! `-sum(exp(sink - log_total) * flow)` over its queries.
//!
//! # How
//! Scores are computed transposed, keys by queries. So the numbers that belong to a query, such as its highest score,
//! lie along lanes: as `[1, T]` they fill memory, where `[T, 1]` would be padded to 128 lanes; and they meet all keys
//! without moving.
//!
//! Source: Milakov and Gimelshein, arXiv 1805.02867 (online softmax); Dao, "FlashAttention-2", arXiv 2307.08691; the
//! sinks: Xiao et al., arXiv 2309.17453, as gpt-oss has them.

mod backward;
mod forward;
mod pairs;

use meshloom_hlo::DType;

use crate::text::{
    Argument, Axis, Body, Comparison, Element, GridPosition, Product, Program, Refs, SCALAR_LIMIT, Value, Window,
};
use crate::{Cost, KernelError};

pub use pairs::{COMPUTE, EDGE, FIRST, LAST, Order, Pairs};

/// The score of a key that is not seen. It is finite, so that nothing becomes NaN.
pub const UNSEEN: f32 = -1e30;

/// The least value that the highest score of a query counts as. It is so far above [`UNSEEN`] that the exponential of
/// what is not seen is zero, also for a query that sees nothing.
pub const LOWEST: f32 = -1e25;

/// The number of queries and of keys in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// Queries: a multiple of 128, or all.
    pub query: usize,
    /// Keys: a multiple of 16 (8 for `f32`), or all.
    pub key: usize,
}

impl Blocks {
    /// Blocks that all kernels compile with for every TPU from v4 on, for these widths of heads. `queries` and `keys`
    /// are the lengths before padding: blocks are chosen so that little padding is needed.
    pub fn new(dtype: DType, width: usize, value_width: usize, queries: usize, keys: usize) -> Blocks {
        let limit = match (dtype, width.max(value_width)) {
            (DType::BF16, ..=256) => 512,
            (DType::BF16, _) | (_, ..=128) => 256,
            _ => 128,
        };
        Blocks { query: block(limit, queries), key: block(limit, keys) }
    }

    /// A number of queries rounded up to whole blocks.
    pub const fn padded_queries(&self, queries: usize) -> usize {
        queries.next_multiple_of(self.query)
    }

    /// A number of keys rounded up to whole blocks.
    pub const fn padded_keys(&self, keys: usize) -> usize {
        keys.next_multiple_of(self.key)
    }
}

/// The size up to a limit that pads a length least; of several, the largest. Small blocks cost more than padding, so
/// half the limit is the least.
fn block(limit: usize, length: usize) -> usize {
    let whole = length.max(1).next_multiple_of(128);
    let sizes = (limit / 2..=limit).rev().filter(|size| size % 128 == 0);
    if whole <= limit { whole } else { sizes.min_by_key(|size| length.next_multiple_of(*size)).unwrap_or(128) }
}

/// An attention whose kernels can be written. See the [module](self) for operands and results.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The type of queries, keys, values and results but `log_total`: `bf16` or `f32`.
    pub dtype: DType,
    /// Number of independent attentions.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Queries `T`, a multiple of the block's.
    pub queries: usize,
    /// Keys `S`, a multiple of the block's.
    pub keys: usize,
    /// Width of a query and of a key.
    pub width: usize,
    /// Width of a value.
    pub value_width: usize,
    /// The sizes of blocks.
    pub blocks: Blocks,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// Whether a query sees no key at a later place.
    pub causal: bool,
    /// The number of places that a query sees: its own, and those just before it.
    pub window: Option<usize>,
    /// Scaled scores `s` become `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// Whether there are segments.
    pub segments: bool,
    /// Whether the place of each token and the number of pairs are operands. Otherwise places go up by one from the
    /// first token of each block.
    pub places: bool,
    /// Whether each head has one more score, which weighs no value.
    pub sinks: bool,
}

impl Attention {
    /// The longest list of pairs that scalar memory holds with [`Attention::places`].
    pub const MOST_PAIRS: usize = SCALAR_LIMIT / 3;

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    fn check(&self) -> Result<(), KernelError> {
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(KernelError::Heads { heads: self.heads, kv_heads: self.kv_heads });
        }
        let range = |what, actual: String, expected| Err(KernelError::Range { what, actual, expected });
        match (self.softcap, self.window) {
            (Some(cap), _) if !(cap > 0.0 && cap.is_finite()) => {
                range("the softcap", cap.to_string(), "greater than 0")
            }
            _ if !self.scale.is_finite() => range("the scale", self.scale.to_string(), "finite"),
            (_, Some(window)) if window == 0 || i32::try_from(window).is_err() => {
                range("the window", window.to_string(), "from 1 to 2^31 - 1")
            }
            _ if self.blocks.query == 0 || self.blocks.key == 0 => range("a block", "0".into(), "at least 1"),
            _ => Ok(()),
        }
    }

    /// The cost of a kernel that computes `products` numbers for each score, and fetches `fetched` bytes for each pair.
    fn cost(&self, pairs: usize, products: usize, fetched: usize, resident: usize) -> Cost {
        let steps = (self.batch * self.heads * pairs) as u64;
        let scores = steps * (self.blocks.query * self.blocks.key) as u64;
        Cost {
            flops: 2 * scores * products as u64,
            transcendentals: scores * (1 + u64::from(self.softcap.is_some())),
            bytes: steps * fetched as u64 + resident as u64,
        }
    }
}

/// The grid's axes of heads and pairs.
#[derive(Clone, Copy)]
struct Axes {
    group: usize,
    pair: usize,
    group_size: usize,
}

impl Axes {
    /// The query head of a step.
    fn head(self, b: &mut Body, grid: &GridPosition) -> Value {
        let size = b.int(self.group_size as i32);
        let first = b.mul(&grid.axes[1], &size);
        b.add(&first, &grid.axes[self.group])
    }

    /// The block of a step, by its list.
    fn block(self, b: &mut Body, grid: &GridPosition, list: Argument) -> Value {
        b.scalar(&grid[list], &grid.axes[self.pair])
    }
}

/// A kernel of attention: what all of them have.
struct Call<'a> {
    of: &'a Attention,
    element: Element,
    axes: Axes,
    program: Program,
    lists: PairLists,
    /// Queries, keys and values.
    operands: Vec<Argument>,
    /// The segments of queries and of keys.
    segments: Option<[Argument; 2]>,
    places: Option<[Argument; 2]>,
}

/// The prefetched scalars.
#[derive(Clone, Copy)]
struct PairLists {
    query_block: Argument,
    key_block: Argument,
    flags: Argument,
    /// The places of the first tokens of blocks of queries and of keys, if they say all places.
    starts: Option<[Argument; 2]>,
}

/// The scores of a pair of blocks, `[keys, queries]`.
struct Scores {
    /// The scores, [`UNSEEN`] where nothing is seen.
    masked: Value,
    /// The hyperbolic tangents of the softcap.
    bent: Option<Value>,
}

impl<'a> Call<'a> {
    /// The kernel with the operands that all have.
    fn new(of: &'a Attention, name: &'static str, order: Order, pairs: usize) -> Result<Call<'a>, KernelError> {
        of.check()?;
        let element = Element::of(of.dtype)?;
        let group_size = of.group();
        let (parallel, sequential) = (Axis::Parallel, Axis::Sequential);
        let of_pairs = if of.places { Axis::Counted(pairs) } else { Axis::Sequential(pairs) };
        let (grid, axes) = match order {
            Order::Queries => {
                let grid = [parallel(of.batch), parallel(of.kv_heads), parallel(group_size), of_pairs];
                (grid, Axes { group: 2, pair: 3, group_size })
            }
            // A block of keys adds up all queries of all heads that share it.
            Order::Keys => {
                let grid = [parallel(of.batch), parallel(of.kv_heads), of_pairs, sequential(group_size)];
                (grid, Axes { group: 3, pair: 2, group_size })
            }
        };
        let mut program = Program::new(name, &grid);
        let lists = PairLists {
            query_block: program.scalars("query_block", pairs),
            key_block: program.scalars("key_block", pairs),
            flags: program.scalars("flags", pairs),
            starts: (!of.places).then(|| {
                let counts = [of.queries / of.blocks.query, of.keys / of.blocks.key];
                [program.scalars("query_start", counts[0]), program.scalars("key_start", counts[1])]
            }),
        };
        let (operands, segments, places) = (Vec::new(), None, None);
        let mut call = Call { of, element, axes, program, lists, operands, segments, places };
        let (query, key) = (call.by_query("query", of.width), call.by_key("key", of.width));
        for window in [query, key, call.by_key("value", of.value_width)] {
            call.operands.push(call.program.input(window));
        }
        call.segments = of.segments.then(|| call.of_tokens(["query_segments", "key_segments"]));
        call.places = of.places.then(|| call.of_tokens(["query_places", "key_places"]));
        Ok(call)
    }

    /// A window on an array of queries.
    fn by_query(&self, name: &'static str, width: usize) -> Window {
        let (of, axes, list) = (self.of, self.axes, self.lists.query_block);
        let (dims, block) = ([of.batch, of.heads, of.queries, width], [1, 1, of.blocks.query, width]);
        Window::new(name, self.element, &dims, &block, move |b, grid| {
            let (head, block, zero) = (axes.head(b, grid), axes.block(b, grid, list), b.int(0));
            vec![grid.axes[0].clone(), head, block, zero]
        })
    }

    /// A window on an array of keys.
    fn by_key(&self, name: &'static str, width: usize) -> Window {
        let (of, axes, list) = (self.of, self.axes, self.lists.key_block);
        let (dims, block) = ([of.batch, of.kv_heads, of.keys, width], [1, 1, of.blocks.key, width]);
        Window::new(name, self.element, &dims, &block, move |b, grid| {
            let (block, zero) = (axes.block(b, grid, list), b.int(0));
            vec![grid.axes[0].clone(), grid.axes[1].clone(), block, zero]
        })
    }

    /// Inputs of a number for each token: of queries a row, and of keys a column, so they meet as the scores do.
    fn of_tokens(&mut self, names: [&'static str; 2]) -> [Argument; 2] {
        let (of, axes, lists) = (self.of, self.axes, self.lists);
        let (query, key) = ([1, 1, of.blocks.query], [1, of.blocks.key, 1]);
        let windows = [
            Window::new(names[0], Element::I32, &[of.batch, 1, of.queries], &query, move |b, grid| {
                let (block, zero) = (axes.block(b, grid, lists.query_block), b.int(0));
                vec![grid.axes[0].clone(), zero, block]
            }),
            Window::new(names[1], Element::I32, &[of.batch, of.keys, 1], &key, move |b, grid| {
                let (block, zero) = (axes.block(b, grid, lists.key_block), b.int(0));
                vec![grid.axes[0].clone(), block, zero]
            }),
        ];
        windows.map(|window| self.program.input(window))
    }

    /// A window on a number for each query of each head, `f32[batch, heads, 1, queries]`.
    fn of_query(&self, name: &'static str) -> Window {
        let (of, axes, list) = (self.of, self.axes, self.lists.query_block);
        let (dims, block) = ([of.batch, of.heads, 1, of.queries], [1, 1, 1, of.blocks.query]);
        Window::new(name, Element::F32, &dims, &block, move |b, grid| {
            let (head, block, zero) = (axes.head(b, grid), axes.block(b, grid, list), b.int(0));
            vec![grid.axes[0].clone(), head, zero, block]
        })
    }

    /// Runs `step` for a pair in which there is something to see. Places are compared only where they matter.
    fn compute(&self, b: &mut Body, flags: &Value, step: impl Fn(&mut Body, bool)) {
        let is_seen = b.has_bits(flags, COMPUTE);
        b.when(&is_seen, |b| {
            // Nothing is hidden.
            if !self.of.causal && self.of.window.is_none() {
                return step(b, false);
            }
            let (bits, none) = (b.int(EDGE), b.int(0));
            let edge = b.and(flags, &bits);
            let is_edge = b.compare(Comparison::Unequal, &edge, &none);
            b.when(&is_edge, |b| step(b, true));
            let is_inner = b.compare(Comparison::Equal, &edge, &none);
            b.when(&is_inner, |b| step(b, false));
        });
    }

    fn dims(&self) -> [usize; 2] {
        [self.of.blocks.key, self.of.blocks.query]
    }

    fn flags(&self, b: &mut Body, refs: &Refs) -> Value {
        b.scalar(&refs[self.lists.flags], &refs.grid.axes[self.axes.pair])
    }

    /// The scores of a pair.
    fn scores(&self, b: &mut Body, refs: &Refs, is_edge: bool) -> Scores {
        let [query, key] = [0, 1].map(|index| b.load(&refs[self.operands[index]]));
        let start = b.full(0.0, &self.dims());
        let products = b.product(Product::RightTransposed, &key, &query, &start);
        let scale = b.float(self.of.scale);
        let scaled = b.mul(&products, &scale);
        let (scores, bent) = match self.of.softcap {
            Some(cap) => {
                let (factor, inverse) = (b.float(cap), b.float(cap.recip()));
                let small = b.mul(&scaled, &inverse);
                let bent = b.tanh(&small);
                (b.mul(&bent, &factor), Some(bent))
            }
            None => (scaled, None),
        };
        let masked = match self.seen(b, refs, is_edge) {
            Some(seen) => {
                let unseen = b.float(UNSEEN);
                b.select(&seen, &scores, &unseen)
            }
            None => scores,
        };
        Scores { masked, bent }
    }

    /// The keys that each query sees; `None` if it sees all.
    fn seen(&self, b: &mut Body, refs: &Refs, is_edge: bool) -> Option<Value> {
        let mut tests = Vec::new();
        if let Some(segments) = self.segments {
            let [query, key] = segments.map(|segments| b.load(&refs[segments]));
            tests.push(b.compare(Comparison::Equal, &key, &query));
        }
        if is_edge {
            let distance = self.distance(b, refs);
            if self.of.causal {
                let zero = b.int(0);
                tests.push(b.compare(Comparison::AtLeast, &distance, &zero));
            }
            if let Some(window) = self.of.window {
                let window = b.int(i32::try_from(window).unwrap_or(i32::MAX));
                tests.push(b.compare(Comparison::Less, &distance, &window));
            }
        }
        tests.into_iter().reduce(|a, c| b.and(&a, &c))
    }

    /// How many places each query stands behind each key, `i32`.
    fn distance(&self, b: &mut Body, refs: &Refs) -> Value {
        let apart = self.lists.starts.map(|[query_start, key_start]| {
            let start = |b: &mut Body, list, starts| {
                let block = self.axes.block(b, &refs.grid, list);
                b.scalar(&refs[starts], &block)
            };
            let PairLists { query_block, key_block, .. } = self.lists;
            let (query, key) = (start(b, query_block, query_start), start(b, key_block, key_start));
            b.sub(&query, &key)
        });
        let [key, query] = match self.places {
            Some([query, key]) => [key, query].map(|places| b.load(&refs[places])),
            None => [0, 1].map(|dimension| b.iota(&self.dims(), dimension)),
        };
        let within = b.sub(&query, &key);
        apart.map_or_else(|| within.clone(), |apart| b.add(&within, &apart))
    }
}
