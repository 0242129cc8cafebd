//! Attention by kernels of ours on TPU.
//!
//! The pairs of blocks that are computed stand in a list in scalar memory. Where places equal indices, the list is a
//! constant. Else each device makes it when the program runs, from the lowest and highest places and segments of its
//! blocks, and the number of pairs is the length of the kernel's grid. Element types that the kernels do not have, and
//! lists longer than scalar memory, are computed otherwise.

use meshloom_mosaic::attention::{Attention as Shape, Blocks, COMPUTE, EDGE, FIRST, LAST, Order};
use meshloom_mosaic::{Kernel, KernelError};

use super::super::block_mask::Sight;
use super::super::nonzero::nonzero;
use super::super::pad::{pad, pad_segments};
use super::super::traced::{describe_pairs_of_blocks, traced};
use super::super::{AttentionKernel, Kernels};
use super::{list, refused, run};
use crate::ir::{DType, TensorType};
use crate::ops::{Attention, AttentionForm, AttentionGradient, AttentionSizes, KernelImplementation, PlaceOrder};
use crate::trace::{Tensor, TraceError, arange};

/// The implementation of an attention. Returns `None` if the kernels do not compute this one.
pub(in super::super) fn attention(
    op: &Attention,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(call) = AttentionCall::new(op.0, types, kernels) else { return Ok(None) };
    let Some(forward) = call.kernel(Order::Queries, Shape::forward)? else { return Ok(None) };
    call.trace("attention", types, &forward, |operands| {
        let rows = call.rows(operands);
        let results = run(&forward.kernel, &[rows.lists(&forward), rows.operands.clone()].concat());
        let log_total = results[1].reshape(call.of_heads(&[call.shape.queries]));
        vec![call.of_queries(results[0]), call.of_queries(log_total)]
    })
}

/// The implementation of the gradient of an attention. Returns `None` if the kernels do not compute this one.
pub(in super::super) fn attention_gradient(
    op: &AttentionGradient,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(call) = AttentionCall::new(op.0, types, kernels) else { return Ok(None) };
    let Some(of_queries) = call.kernel(Order::Queries, Shape::backward_queries)? else { return Ok(None) };
    let Some(of_keys) = call.kernel(Order::Keys, Shape::backward_keys)? else { return Ok(None) };
    call.trace("attention_gradient", types, &of_queries, |operands| {
        let rows = call.rows(operands);
        let numbers = |x: Tensor| call.queries(x).reshape(call.of_heads(&[1, call.shape.queries]));
        let given = vec![call.queries(operands[9]), numbers(operands[7]), numbers(operands[8])];
        let run =
            |listed: &Listed| run(&listed.kernel, &[rows.lists(listed), rows.operands.clone(), given.clone()].concat());
        let (query_cts, key_cts) = (run(&of_queries), run(&of_keys));
        vec![call.of_queries(query_cts[0]), call.of_keys(key_cts[0]), call.of_keys(key_cts[1])]
    })
}

/// A kernel with its list of pairs.
struct Listed {
    kernel: Kernel,
    order: Order,
    /// The numbers that the kernel takes first, if they are known.
    known: Option<Vec<Vec<i32>>>,
}

/// Operands padded to whole blocks, as every kernel takes them.
struct KernelRows {
    /// Queries, keys, values, segments, and places where they are data.
    operands: Vec<Tensor>,
    /// The blocks that see each other, where places are data.
    sight: Option<Sight>,
}

impl KernelRows {
    /// The lists that a kernel takes first.
    fn lists(&self, listed: &Listed) -> Vec<Tensor> {
        match (&listed.known, &self.sight) {
            (Some(lists), _) => lists.iter().map(|numbers| list(numbers)).collect(),
            (None, Some(sight)) => pairs(sight, listed.order),
            (None, None) => Vec::new(),
        }
    }
}

/// The number of pairs of blocks that are visited, their blocks of queries and of keys, and their flags. As in the list
/// that [`Shape::pairs`] makes, a block that sees nothing has one pair, so that its result is written.
fn pairs(sight: &Sight, order: Order) -> Vec<Tensor> {
    let by_outer = |x: Tensor| if order == Order::Queries { x } else { x.transpose([1, 0]) };
    let number = |x: Tensor| x.convert(DType::S32);
    let (seen, partly) = (by_outer(sight.some()), by_outer(sight.partly()));
    let [outer, inner] = seen.shape();
    let spread = |x: Tensor| x.expand(1).broadcast_to([outer, inner]);
    let is_first_column = arange(DType::S32, inner).equal(0.0).expand(0).broadcast_to([outer, inner]);
    let visited = seen | (is_first_column & spread(number(seen).sum(-1)).equal(0.0));
    let reach = number(visited).cumsum(-1);
    let [is_first, is_last] = [reach.equal(1.0), reach.equal(spread(number(visited).sum(-1)))];
    let bits = [(is_first, FIRST), (is_last, LAST), (seen, COMPUTE), (seen & partly, EDGE)];
    let bits = bits.map(|(has, bit)| number(has) * f64::from(bit));
    let flags = (bits[0] + bits[1] + bits[2] + bits[3]).reshape([outer * inner]);
    let (places, count) = nonzero(visited.reshape([outer * inner]));
    let [first, second] = [places / inner as f64, places % inner as f64];
    let [query, key] = if order == Order::Queries { [first, second] } else { [second, first] };
    vec![count, query, key, flags.take(0, places)]
}

/// An attention as the kernels take it.
struct AttentionCall {
    form: AttentionForm,
    shape: Shape,
    sizes: AttentionSizes,
}

impl AttentionCall {
    /// Returns `None` if the kernels do not compute this one.
    fn new(form: AttentionForm, types: &[TensorType], kernels: &Kernels) -> Option<AttentionCall> {
        let dtype = types[0].dtype;
        let is_one = kernels.attention == AttentionKernel::Mosaic
            && form.dropout.is_none()
            && matches!(dtype, DType::BF16 | DType::F32)
            && types.iter().all(|ty| ty.element_count() > 0);
        let sizes = AttentionSizes::of(&types[0], &types[1], &types[2]);
        let AttentionSizes { kv_heads, groups, queries, keys, width, value_width, .. } = sizes;
        let blocks = Blocks::new(dtype, width, value_width, queries, keys);
        let shape = Shape {
            dtype,
            batch: sizes.batch.iter().product(),
            heads: kv_heads * groups,
            kv_heads,
            queries: blocks.padded_queries(queries),
            keys: blocks.padded_keys(keys),
            width,
            value_width,
            blocks,
            scale: form.scale.get() as f32,
            causal: form.causal,
            window: form.window,
            softcap: form.softcap.map(|cap| cap.get() as f32),
            segments: true,
            places: form.order == PlaceOrder::Any,
            sinks: false,
        };
        let call = AttentionCall { form, shape, sizes };
        let [query_blocks, key_blocks] = call.counts();
        // A list that is made from data has room for all pairs. The length of a known list is checked when it is made.
        let fits = !call.shape.places || query_blocks * key_blocks <= Shape::MOST_PAIRS;
        (is_one && fits).then_some(call)
    }

    fn counts(&self) -> [usize; 2] {
        let Shape { queries, keys, blocks, .. } = self.shape;
        [queries / blocks.query, keys / blocks.key]
    }

    /// Returns a kernel with its list, or `None` if scalar memory does not hold the list.
    fn kernel(
        &self,
        order: Order,
        write: impl FnOnce(&Shape, usize) -> Result<Kernel, KernelError>,
    ) -> Result<Option<Listed>, TraceError> {
        let listed = || -> Result<Listed, KernelError> {
            if self.shape.places {
                let [query_blocks, key_blocks] = self.counts();
                return Ok(Listed { kernel: write(&self.shape, query_blocks * key_blocks)?, order, known: None });
            }
            let [query_start, key_start] = self.shape.starts();
            let pairs = self.shape.pairs(&query_start, &key_start, order)?;
            let kernel = write(&self.shape, pairs.len())?;
            let known = vec![pairs.query_block, pairs.key_block, pairs.flags, query_start, key_start];
            Ok(Listed { kernel, order, known: Some(known) })
        };
        match listed() {
            Err(KernelError::Scalars { .. }) => Ok(None),
            listed => listed.map(Some).map_err(|error| refused("kernels.attention", &error)),
        }
    }

    fn trace(
        &self,
        name: &str,
        types: &[TensorType],
        listed: &Listed,
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Result<Option<KernelImplementation>, TraceError> {
        let Blocks { query, key } = self.shape.blocks;
        let how =
            describe_pairs_of_blocks([query, key], self.counts(), listed.known.as_ref().map(|lists| lists[0].len()));
        traced(AttentionKernel::Mosaic.name(), name, how, types, f).map(Some)
    }

    /// The dimensions `[batch, heads, ..]`.
    fn of_heads(&self, own: &[usize]) -> Vec<usize> {
        [&[self.shape.batch, self.shape.heads], own].concat()
    }

    /// Reshapes a value of each query, `[*b, kv_heads, groups, queries, ..]`, to whole blocks: `[batch, heads, T, ..]`.
    fn queries(&self, x: Tensor) -> Tensor {
        let own = &x.dims()[self.sizes.batch.len() + 2..];
        pad(x.reshape(self.of_heads(own)), 2, self.shape.queries, 0.0)
    }

    /// Reshapes a value of each key, `[*b, kv_heads, keys, ..]`, to whole blocks: `[batch, kv_heads, S, ..]`.
    fn keys(&self, x: Tensor) -> Tensor {
        let own = &x.dims()[self.sizes.batch.len() + 1..];
        pad(x.reshape([&[self.shape.batch, self.shape.kv_heads], own].concat()), 2, self.shape.keys, 0.0)
    }

    /// The inverse of [`AttentionCall::queries`].
    fn of_queries(&self, x: Tensor) -> Tensor {
        let AttentionSizes { ref batch, kv_heads, groups, queries, .. } = self.sizes;
        let x = x.slice(2, ..queries);
        x.reshape([&batch[..], &[kv_heads, groups], &x.dims()[2..]].concat())
    }

    /// The inverse of [`AttentionCall::keys`].
    fn of_keys(&self, x: Tensor) -> Tensor {
        let AttentionSizes { ref batch, keys, .. } = self.sizes;
        x.slice(2, ..keys).reshape_first(batch)
    }

    fn rows(&self, operands: &[Tensor]) -> KernelRows {
        let Shape { batch, queries, keys, .. } = self.shape;
        let lengths = [queries, keys];
        let both = |of: [usize; 2]| of.map(|index| operands[index].reshape([batch, operands[index].dim(-1)]));
        // Queries lie along lanes, keys along sublanes.
        let crossed = |[of_queries, of_keys]: [Tensor; 2]| {
            [of_queries.reshape([batch, 1, queries]), of_keys.reshape([batch, keys, 1])]
        };
        let segments = pad_segments(both([3, 4]), lengths);
        let mut all = vec![self.queries(operands[0]), self.keys(operands[1]), self.keys(operands[2])];
        all.extend(crossed(segments));
        let sight = self.shape.places.then(|| {
            let [of_queries, of_keys] = both([5, 6]);
            let places = [pad(of_queries, 1, queries, 0.0), pad(of_keys, 1, keys, 0.0)];
            all.extend(crossed(places));
            Sight::new(self.form, segments, places, self.counts())
        });
        KernelRows { operands: all, sight }
    }
}
