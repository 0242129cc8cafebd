//! The gradient: weights are computed again from the scores and the logarithm of their total.

use super::{Attention, Call, FIRST, LAST, Order};
use crate::text::{Argument, Body, Comparison, Product, Refs, Value};
use crate::{Kernel, KernelError};

/// The operands that only the gradient has.
#[derive(Clone, Copy)]
struct Cotangents {
    cotangent: Argument,
    log_total: Argument,
    flow: Argument,
}

/// The results of a pair of blocks, `[keys, queries]`, `f32`.
struct Flows {
    /// The weight of each key's value.
    weights: Value,
    /// The cotangent of the products of queries and keys, but for the scale.
    products: Value,
}

fn cotangents(call: &mut Call<'_>) -> Cotangents {
    let cotangent = call.by_query("cotangent", call.of.value_width);
    let (log_total, flow) = (call.of_query("log_total"), call.of_query("flow"));
    Cotangents {
        cotangent: call.program.input(cotangent),
        log_total: call.program.input(log_total),
        flow: call.program.input(flow),
    }
}

impl Attention {
    /// The kernel of the cotangent of the queries, for a list of this number of pairs sorted by queries.
    ///
    /// # Errors
    /// [`KernelError`] where shapes, blocks or options do not fit.
    pub fn backward_queries(&self, pairs: usize) -> Result<Kernel, KernelError> {
        let mut call = Call::new(self, "attention_backward_queries", Order::Queries, pairs)?;
        let given = cotangents(&mut call);
        let result = call.by_query("query_cotangent", self.width);
        let result = call.program.output(result);
        let sum = call.program.scratch(&[self.width, self.blocks.query]);
        let bytes = self.dtype.byte_count();
        let widths = self.width + self.value_width;
        let resident = self.batch * self.heads * self.queries * ((widths + self.width) * bytes + 8);
        let cost = self.cost(pairs, widths + self.width, self.blocks.key * widths * bytes, resident);
        call.program.write(cost, |b, refs| {
            let flags = call.flags(b, refs);
            let is_first = b.has_bits(&flags, FIRST);
            b.when(&is_first, |b| b.clear(&refs[sum]));
            call.compute(b, &flags, |b, is_edge| {
                let flows = call.flows(b, refs, given, is_edge);
                let (key, so_far) = (b.load(&refs[call.operands[1]]), b.load(&refs[sum]));
                let products = b.convert(&flows.products, call.element);
                let so_far = b.product(Product::LeftTransposed, &key, &products, &so_far);
                b.store(&so_far, &refs[sum]);
            });
            let is_last = b.has_bits(&flags, LAST);
            b.when(&is_last, |b| {
                let (total, scale) = (b.load(&refs[sum]), b.float(self.scale));
                let total = b.mul(&total, &scale);
                let total = b.transpose(&total);
                let total = b.convert(&total, call.element);
                b.store(&total, &refs[result]);
            });
        })
    }

    /// The kernel of the cotangents of keys and values, for a list of this number of pairs sorted by keys. The query
    /// heads that share a key head are added up in `f32`.
    ///
    /// # Errors
    /// [`KernelError`] where shapes, blocks or options do not fit.
    pub fn backward_keys(&self, pairs: usize) -> Result<Kernel, KernelError> {
        let mut call = Call::new(self, "attention_backward_keys", Order::Keys, pairs)?;
        let given = cotangents(&mut call);
        let results = [call.by_key("key_cotangent", self.width), call.by_key("value_cotangent", self.value_width)];
        let results = results.map(|window| call.program.output(window));
        let sums = [self.width, self.value_width].map(|width| call.program.scratch(&[self.blocks.key, width]));
        let bytes = self.dtype.byte_count();
        let widths = self.width + self.value_width;
        let resident = 2 * self.batch * self.kv_heads * self.keys * widths * bytes;
        let cost = self.cost(pairs, 2 * widths, self.blocks.query * (widths * bytes + 8), resident);
        call.program.write(cost, |b, refs| {
            let flags = call.flags(b, refs);
            let is_first = call.at_head(b, refs, &flags, FIRST, 0);
            b.when(&is_first, |b| sums.into_iter().for_each(|sum| b.clear(&refs[sum])));
            call.compute(b, &flags, |b, is_edge| {
                let flows = call.flows(b, refs, given, is_edge);
                let factors = [(flows.products, call.operands[0]), (flows.weights, given.cotangent)];
                for (sum, (of_pair, other)) in sums.into_iter().zip(factors) {
                    let (other, so_far) = (b.load(&refs[other]), b.load(&refs[sum]));
                    let of_pair = b.convert(&of_pair, call.element);
                    let so_far = b.product(Product::Plain, &of_pair, &other, &so_far);
                    b.store(&so_far, &refs[sum]);
                }
            });
            let is_last = call.at_head(b, refs, &flags, LAST, self.group() - 1);
            b.when(&is_last, |b| {
                for ((sum, result), scale) in sums.into_iter().zip(results).zip([Some(self.scale), None]) {
                    let mut total = b.load(&refs[sum]);
                    if let Some(scale) = scale {
                        let scale = b.float(scale);
                        total = b.mul(&total, &scale);
                    }
                    let total = b.convert(&total, call.element);
                    b.store(&total, &refs[result]);
                }
            });
        })
    }
}

impl Call<'_> {
    /// Whether a pair has a flag and the step is that of one head of the group.
    fn at_head(&self, b: &mut Body, refs: &Refs, flags: &Value, flag: i32, head: usize) -> Value {
        let has_flag = b.has_bits(flags, flag);
        let head = b.int(head as i32);
        let is_head = b.compare(Comparison::Equal, &refs.grid.axes[self.axes.group], &head);
        b.and(&has_flag, &is_head)
    }

    /// The weights of a pair, and what flows back into its products.
    fn flows(&self, b: &mut Body, refs: &Refs, given: Cotangents, is_edge: bool) -> Flows {
        let scores = self.scores(b, refs, is_edge);
        let log_total = b.load(&refs[given.log_total]);
        let weights = b.sub(&scores.masked, &log_total);
        let weights = b.exp(&weights);
        let (value, cotangent) = (b.load(&refs[self.operands[2]]), b.load(&refs[given.cotangent]));
        let start = b.full(0.0, &self.dims());
        let of_weights = b.product(Product::RightTransposed, &value, &cotangent, &start);
        let flow = b.load(&refs[given.flow]);
        let apart = b.sub(&of_weights, &flow);
        let mut products = b.mul(&weights, &apart);
        if let Some(bent) = scores.bent {
            // The derivative of the hyperbolic tangent.
            let (one, square) = (b.float(1.0), b.mul(&bent, &bent));
            let slope = b.sub(&one, &square);
            products = b.mul(&products, &slope);
        }
        Flows { weights, products }
    }
}
