//! The forward pass.

use super::{Attention, Call, FIRST, LAST, LOWEST, Order};
use crate::text::{Argument, Body, Element, Product, Reduction, Refs, Window};
use crate::{Kernel, KernelError};

/// The least value that a total counts as. The total of a query that sees something is 1 or more.
const TINY: f32 = 1e-30;

/// The sums that a block of queries keeps from pair to pair.
#[derive(Clone, Copy)]
struct Sums {
    /// The mixed values, transposed: `[value_width, queries]`.
    mixed: Argument,
    /// The highest score, `[1, queries]`.
    highest: Argument,
    /// The sum of the weights, `[1, queries]`.
    total: Argument,
}

impl Attention {
    /// The kernel of the forward pass, for a list of this number of pairs sorted by queries. Results: `mixed` and
    /// `log_total`.
    ///
    /// # Errors
    /// [`KernelError`] where shapes, blocks or options do not fit.
    pub fn forward(&self, pairs: usize) -> Result<Kernel, KernelError> {
        let mut call = Call::new(self, "attention", Order::Queries, pairs)?;
        let sinks = self.sinks.then(|| sink_window(&call)).map(|window| call.program.input(window));
        let (mixed, log_total) = (call.by_query("mixed", self.value_width), call.of_query("log_total"));
        let (mixed, log_total) = (call.program.output(mixed), call.program.output(log_total));
        let row = [1, self.blocks.query];
        let sums = Sums {
            mixed: call.program.scratch(&[self.value_width, self.blocks.query]),
            highest: call.program.scratch(&row),
            total: call.program.scratch(&row),
        };
        let bytes = self.dtype.byte_count();
        let widths = self.width + self.value_width;
        let resident = self.batch * self.heads * self.queries * (widths * bytes + 4);
        let cost = self.cost(pairs, widths, self.blocks.key * widths * bytes, resident);
        call.program.write(cost, |b, refs| {
            let flags = call.flags(b, refs);
            let is_first = b.has_bits(&flags, FIRST);
            b.when(&is_first, |b| call.start(b, refs, sums, sinks));
            call.compute(b, &flags, |b, is_edge| call.add(b, refs, sums, is_edge));
            let is_last = b.has_bits(&flags, LAST);
            b.when(&is_last, |b| finish(b, refs, sums, [mixed, log_total], call.element));
        })
    }
}

/// The sinks, `f32[heads, 1, 1]`.
fn sink_window(call: &Call<'_>) -> Window {
    let axes = call.axes;
    Window::new("sinks", Element::F32, &[call.of.heads, 1, 1], &[1, 1, 1], move |b, grid| {
        let (head, zero) = (axes.head(b, grid), b.int(0));
        vec![head, zero.clone(), zero]
    })
}

impl Call<'_> {
    /// Nothing is mixed yet. A sink is a score that has been seen.
    fn start(&self, b: &mut Body, refs: &Refs, sums: Sums, sinks: Option<Argument>) {
        let row = [1, self.of.blocks.query];
        let (highest, total) = match sinks {
            Some(sinks) => {
                let sink = b.load(&refs[sinks]);
                (b.broadcast(&sink, &row), b.full(1.0, &row))
            }
            None => (b.full(LOWEST, &row), b.full(0.0, &row)),
        };
        b.clear(&refs[sums.mixed]);
        b.store(&highest, &refs[sums.highest]);
        b.store(&total, &refs[sums.total]);
    }

    /// Adds the keys of a pair. Sums that were added up under a lower highest score are scaled down.
    fn add(&self, b: &mut Body, refs: &Refs, sums: Sums, is_edge: bool) {
        let scores = self.scores(b, refs, is_edge).masked;
        let before = b.load(&refs[sums.highest]);
        let of_block = b.reduce_rows(Reduction::Max, &scores);
        let highest = b.max(&before, &of_block);
        let apart = b.sub(&before, &highest);
        let shrink = b.exp(&apart);
        let below = b.sub(&scores, &highest);
        let weights = b.exp(&below);
        let total = b.load(&refs[sums.total]);
        let total = b.mul(&total, &shrink);
        let of_block = b.reduce_rows(Reduction::Sum, &weights);
        let total = b.add(&total, &of_block);
        let value = b.load(&refs[self.operands[2]]);
        let mixed = b.load(&refs[sums.mixed]);
        let mixed = b.mul(&mixed, &shrink);
        let weights = b.convert(&weights, value.element());
        let mixed = b.product(Product::LeftTransposed, &value, &weights, &mixed);
        b.store(&mixed, &refs[sums.mixed]);
        b.store(&highest, &refs[sums.highest]);
        b.store(&total, &refs[sums.total]);
    }
}

/// Writes the results of a block of queries.
fn finish(b: &mut Body, refs: &Refs, sums: Sums, [mixed, log_total]: [Argument; 2], element: Element) {
    let tiny = b.float(TINY);
    let total = b.load(&refs[sums.total]);
    let total = b.max(&total, &tiny);
    let sum = b.load(&refs[sums.mixed]);
    let mean = b.div(&sum, &total);
    let mean = b.transpose(&mean);
    let mean = b.convert(&mean, element);
    b.store(&mean, &refs[mixed]);
    let highest = b.load(&refs[sums.highest]);
    let log = b.log(&total);
    let log = b.add(&highest, &log);
    b.store(&log, &refs[log_total]);
}
