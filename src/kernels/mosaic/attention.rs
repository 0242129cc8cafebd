//! Attention by kernels of ours on TPU, written as Mosaic text.
//!
//! Which pairs of blocks are computed is a constant operand of a kernel, made from the places that indices say.
//! Attention whose places are data, and element types that the kernels do not have, are computed otherwise.

use meshloom_mosaic::attention::{Attention as Shape, Blocks, Order, Pairs};
use meshloom_mosaic::{CALL_TARGET, Kernel, KernelError};

use super::expand::Implementation;
use super::{AttentionKernel, Kernels};
use crate::ir::{DType, Literal, Name, TensorType};
use crate::ops::{Attention, AttentionForm, AttentionGradient, AttentionSizes, CustomCall, CustomCallApi, PlaceOrder};
use crate::trace::{Function, Tensor, TensorSpec, TraceError, constant, custom_call};

/// The segment of keys that only fill a block: no query is of it.
const NO_SEGMENT: f64 = i32::MIN as f64;

/// What computes an attention; none if the kernels do not compute this one.
pub(super) fn attention(
    op: &Attention,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<Implementation>, TraceError> {
    let Some(call) = Call::new(op.0, types, kernels) else { return Ok(None) };
    let forward = call.kernel(Order::Queries, |shape, pairs| shape.forward(pairs))?;
    call.trace("attention", types, |operands| {
        let results = forward.run(&call.operands(operands));
        let log_total = results[1].reshape(call.of_heads(&[call.shape.queries]));
        vec![call.of_queries(results[0]), call.of_queries(log_total)]
    })
}

/// What computes the gradient of an attention; none if the kernels do not compute this one.
pub(super) fn attention_gradient(
    op: &AttentionGradient,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<Implementation>, TraceError> {
    let Some(call) = Call::new(op.0, types, kernels) else { return Ok(None) };
    let of_queries = call.kernel(Order::Queries, |shape, pairs| shape.backward_queries(pairs))?;
    let of_keys = call.kernel(Order::Keys, |shape, pairs| shape.backward_keys(pairs))?;
    call.trace("attention_gradient", types, |operands| {
        let mut inputs = call.operands(operands);
        let numbers = |x: Tensor| call.queries(x).reshape(call.of_heads(&[1, call.shape.queries]));
        inputs.extend([call.queries(operands[9]), numbers(operands[7]), numbers(operands[8])]);
        let query_ct = of_queries.run(&inputs)[0];
        let key_cts = of_keys.run(&inputs);
        vec![call.of_queries(query_ct), call.of_keys(key_cts[0]), call.of_keys(key_cts[1])]
    })
}

/// A kernel with its list of pairs.
struct Listed {
    kernel: Kernel,
    lists: Vec<Vec<i32>>,
}

impl Listed {
    /// The results, from the operands after the lists.
    fn run(&self, operands: &[Tensor]) -> Vec<Tensor> {
        let list = |numbers: &Vec<i32>| {
            let ty = TensorType::new(DType::S32, &[numbers.len()]);
            constant(Literal::from_fn(ty, |index| f64::from(numbers[index])))
        };
        let operands: Vec<Tensor> = self.lists.iter().map(list).chain(operands.iter().copied()).collect();
        let call = CustomCall {
            target: Name::new(CALL_TARGET),
            results: self.kernel.results.clone().into(),
            config: self.kernel.config(),
            api: CustomCallApi::Original,
            has_side_effect: false,
            aliases: Box::default(),
        };
        custom_call(call, &operands)
    }
}

/// An attention as the kernels take it.
struct Call {
    shape: Shape,
    sizes: AttentionSizes,
}

impl Call {
    /// None if the kernels do not compute this one.
    fn new(form: AttentionForm, types: &[TensorType], kernels: &Kernels) -> Option<Call> {
        let dtype = types[0].dtype;
        let is_one = kernels.attention == AttentionKernel::Mosaic
            && form.order == PlaceOrder::Index
            && matches!(dtype, DType::BF16 | DType::F32);
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
            sinks: false,
        };
        is_one.then_some(Call { shape, sizes })
    }

    fn pairs(&self, order: Order) -> Result<Pairs, KernelError> {
        let [query_start, key_start] = self.shape.starts();
        self.shape.pairs(&query_start, &key_start, order)
    }

    fn kernel(
        &self,
        order: Order,
        write: impl FnOnce(&Shape, usize) -> Result<Kernel, KernelError>,
    ) -> Result<Listed, TraceError> {
        let listed = || -> Result<Listed, KernelError> {
            let pairs = self.pairs(order)?;
            let kernel = write(&self.shape, pairs.len())?;
            let [query_start, key_start] = self.shape.starts();
            let lists = vec![pairs.query_block, pairs.key_block, pairs.flags, query_start, key_start];
            Ok(Listed { kernel, lists })
        };
        listed().map_err(|error| TraceError::other(format!("kernels.attention = \"mosaic\": {error}")))
    }

    fn trace(
        &self,
        name: &str,
        types: &[TensorType],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Result<Option<Implementation>, TraceError> {
        let specs: Vec<TensorSpec> = types.iter().map(|ty| TensorSpec::new(ty.dtype, &ty.dims[..])).collect();
        let function = Function::trace(name, specs, |operands: Vec<Tensor>| f(&operands))?;
        let Shape { queries, keys, blocks, .. } = self.shape;
        let pairs = self.pairs(Order::Queries).map_or(0, |pairs| pairs.len());
        let all = queries / blocks.query * (keys / blocks.key);
        let how = format!("blocks of {} queries and {} keys, {pairs} of {all} pairs", blocks.query, blocks.key);
        let implementation = AttentionKernel::Mosaic.name();
        Ok(Some(Implementation { implementation, how, graph: (**function.graph()).clone() }))
    }

    /// `[batch, heads, ..]`.
    fn of_heads(&self, own: &[usize]) -> Vec<usize> {
        [&[self.shape.batch, self.shape.heads], own].concat()
    }

    /// Something of each query, `[*b, kv_heads, groups, queries, ..]`, with whole blocks: `[batch, heads, T, ..]`.
    fn queries(&self, x: Tensor) -> Tensor {
        let own = &x.dims()[self.sizes.batch.len() + 2..];
        pad(x.reshape(self.of_heads(own)), 2, self.shape.queries, 0.0)
    }

    /// Something of each key, `[*b, kv_heads, keys, ..]`, with whole blocks: `[batch, kv_heads, S, ..]`.
    fn keys(&self, x: Tensor) -> Tensor {
        let own = &x.dims()[self.sizes.batch.len() + 1..];
        pad(x.reshape([&[self.shape.batch, self.shape.kv_heads], own].concat()), 2, self.shape.keys, 0.0)
    }

    /// What [`Call::queries`] was made of.
    fn of_queries(&self, x: Tensor) -> Tensor {
        let AttentionSizes { ref batch, kv_heads, groups, queries, .. } = self.sizes;
        let x = x.slice(2, ..queries);
        x.reshape([&batch[..], &[kv_heads, groups], &x.dims()[2..]].concat())
    }

    /// What [`Call::keys`] was made of.
    fn of_keys(&self, x: Tensor) -> Tensor {
        let AttentionSizes { ref batch, keys, .. } = self.sizes;
        let x = x.slice(2, ..keys);
        x.reshape([&batch[..], &x.dims()[1..]].concat())
    }

    /// Queries, keys, values and segments, as every kernel takes them.
    fn operands(&self, operands: &[Tensor]) -> Vec<Tensor> {
        let Shape { batch, queries, keys, .. } = self.shape;
        let segments = |x: Tensor, length: usize| pad(x.reshape([batch, x.dim(-1)]), 1, length, NO_SEGMENT);
        vec![
            self.queries(operands[0]),
            self.keys(operands[1]),
            self.keys(operands[2]),
            segments(operands[3], queries).reshape([batch, 1, queries]),
            // What fills queries and what fills keys must not see each other either.
            (segments(operands[4], keys).maximum(NO_SEGMENT + 1.0)).reshape([batch, keys, 1]),
        ]
    }
}

/// Padded along an axis to a length.
fn pad(x: Tensor, axis: i32, length: usize, filling: f64) -> Tensor {
    let missing = length - x.dim(axis);
    if missing == 0 { x } else { x.pad(axis, 0, missing as i64, filling) }
}
