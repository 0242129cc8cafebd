//! Attention by cuDNN on CUDA: the calls that XLA builds cuDNN's graphs from when it compiles on a machine with a GPU.
//!
//! | target | operands | results |
//! |---|---|---|
//! | `__cudnn$fmhaSoftmax` | q, k, v | o, stats, workspace |
//! | `__cudnn$fmhaSoftmaxBackward` | q, k, v, stats, cotangent of o, o | cotangents of q, k and v, workspace |
//!
//! q and o are `[batch, heads, queries, width]`, k and v `[batch, kv_heads, keys, width]`. The stats are `f32`
//! `[batch, heads, queries]`: the logarithm of each query's sum of exponentials, as the second result of
//! [`Attention`](crate::ops::Attention). XLA sizes the workspace, which is `u8[0]` here.
//!
//! cuDNN is asked for by name, so an attention that it does not compute exactly as the op does is refused, and not
//! computed otherwise. cuDNN's backward pass reads o in one place, the sum of `o * cotangent` of each query. The
//! operands of [`AttentionGradient`] have that sum less the cotangent of the stats (`flow`), and no o. So cuDNN gets an
//! o with that sum: [`result_with_flow`].
//!
//! Source: NVIDIA, "cuDNN Frontend: Attention" (SDPA forward and backward); XLA,
//! `xla/service/gpu/backend_configs.proto`; JAX, `jax/_src/cudnn/fused_attention_stablehlo.py` (limits of widths,
//! meaning of the window); Dao, "FlashAttention-2", arXiv 2307.08691 (the sum that the backward pass reads).
//!
//! [`AttentionGradient`]: crate::ops::AttentionGradient

use serde_json::{Value as Json, json};

use super::AttentionKernel;
use super::traced::traced;
use crate::ir::{DType, TensorType, TypeError};
use crate::ops::{
    AttentionForm, AttentionSizes, CustomCall, CustomCallApi, KernelCost, KernelImplementation, PlaceOrder,
};
use crate::trace::{Tensor, TraceError, custom_call};
use meshloom_hlo::PlatformKind;

const FORWARD: &str = "__cudnn$fmhaSoftmax";
const BACKWARD: &str = "__cudnn$fmhaSoftmaxBackward";

/// The widest head. From Hopper on it is 256, but a platform does not say which GPU it is.
const WIDEST: usize = 128;

/// The width of a head is a multiple of this.
const WIDTH_STEP: usize = 8;

/// An attention as cuDNN takes it.
pub(super) struct CudnnCall {
    sizes: AttentionSizes,
    dtype: DType,
    scale: f64,
    causal: bool,
    /// How far back a query sees, if that is less than the whole row.
    window: Option<usize>,
}

impl CudnnCall {
    /// The attention of operands of these types; `has_one_segment` says whether no segment can mask.
    ///
    /// # Errors
    /// cuDNN does not compute it. The message names each property that is in the way.
    pub(super) fn new(
        form: AttentionForm,
        types: &[TensorType],
        platform: PlatformKind,
        has_one_segment: bool,
    ) -> Result<CudnnCall, TypeError> {
        let sizes = AttentionSizes::of(&types[0], &types[1], &types[2]);
        let dtype = types[0].dtype;
        let window = form.window.filter(|&window| window < sizes.keys);
        let AttentionSizes { width, value_width, .. } = sizes;
        let obstacles = [
            (platform != PlatformKind::Cuda).then(|| format!("the program is for {platform}, cuDNN for cuda")),
            (!matches!(dtype, DType::BF16 | DType::F16))
                .then(|| format!("operands are {dtype}, and must be bf16 or f16")),
            types.iter().any(|ty| ty.element_count() == 0).then(|| "an operand has no elements".to_owned()),
            (width != value_width)
                .then(|| format!("keys are {width} wide and values {value_width}, and must be alike")),
            (!width.is_multiple_of(WIDTH_STEP) || width > WIDEST).then(|| {
                format!("heads are {width} wide, and must be a multiple of {WIDTH_STEP} and at most {WIDEST}")
            }),
            (form.order != PlaceOrder::Index)
                .then(|| "places are data, as where a device has a part of the queries".to_owned()),
            form.softcap.map(|cap| format!("scores are capped at {}", cap.get())),
            form.dropout.map(|rate| format!("weights drop with probability {}", rate.get())),
            window.filter(|_| !form.causal).map(|window| format!("a window of {window} is not causal")),
            (!has_one_segment).then(|| "segments are data, by which cuDNN cannot mask".to_owned()),
        ];
        let obstacles: Vec<String> = obstacles.into_iter().flatten().collect();
        if obstacles.is_empty() {
            return Ok(CudnnCall { sizes, dtype, scale: form.scale.get(), causal: form.causal, window });
        }
        let key = "kernels.attention";
        let chosen = AttentionKernel::Cudnn.name();
        let reason = obstacles.join("; ");
        Err(TypeError::Attribute(format!("{key} = \"{chosen}\": {reason}; choose {key} = \"auto\"")))
    }

    pub(super) fn forward(&self, types: &[TensorType]) -> Result<KernelImplementation, TraceError> {
        let results = [self.of_heads(&types[0]), self.stats(), workspace()];
        self.trace("attention", types, |operands| {
            let found = self.run(FORWARD, &results, 2, &self.rows(operands));
            let log_total = found[1].reshape(&types[0].dims[..types[0].rank() - 1]);
            vec![found[0].reshape(&types[0].dims), log_total]
        })
    }

    pub(super) fn backward(&self, types: &[TensorType]) -> Result<KernelImplementation, TraceError> {
        let [query, key, value] = [0, 1, 2].map(|index| self.of_heads(&types[index]));
        let results = [query, key, value, workspace()];
        self.trace("attention_gradient", types, |operands| {
            let stats = |x: Tensor| x.reshape(&self.stats().dims);
            let ct = operands[9].reshape(&results[0].dims);
            let mixed = result_with_flow(stats(operands[8]), ct).convert(self.dtype);
            let given = [self.rows(operands), vec![stats(operands[7]), ct, mixed]].concat();
            let found = self.run(BACKWARD, &results, 5, &given);
            (0..3).map(|index| found[index].reshape(&types[index].dims)).collect()
        })
    }

    fn trace(
        &self,
        name: &str,
        types: &[TensorType],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Result<KernelImplementation, TraceError> {
        let window = self.window.map_or(String::new(), |window| format!(", window {window}"));
        let how = format!("mask {}{window}", self.mask());
        traced(AttentionKernel::Cudnn.name(), name, how, types, f)
    }

    /// Calls a target, which multiplies the pairs of queries and keys by `products` matrices.
    fn run(&self, target: &str, results: &[TensorType], products: u64, operands: &[Tensor]) -> Vec<Tensor> {
        let AttentionSizes { width, .. } = self.sizes;
        let pairs = self.pairs();
        let operand_bytes: usize = operands.iter().map(|x| x.ty().byte_count()).sum();
        let result_bytes: usize = results.iter().map(TensorType::byte_count).sum();
        let cost = KernelCost {
            operations: products * 2 * pairs * width as u64,
            transcendentals: pairs,
            bytes: (operand_bytes + result_bytes) as u64,
            // The workspace is known where XLA compiles with the device at hand.
            scratch: 0,
        };
        let call = CustomCall {
            config: self.config(target).to_string(),
            api: CustomCallApi::StatusReturning,
            cost: Some(cost),
            ..CustomCall::new(target, results)
        };
        custom_call(call, operands)
    }

    /// The number of keys that all queries of all heads and rows see.
    fn pairs(&self) -> u64 {
        let AttentionSizes { queries, keys, .. } = self.sizes;
        let seen_by = |query: usize| if self.causal { (query + 1).min(self.window.unwrap_or(keys)) } else { keys };
        let of_head: usize = (0..queries).map(seen_by).sum();
        (of_head * self.batch() * self.heads()) as u64
    }

    fn batch(&self) -> usize {
        self.sizes.batch.iter().product()
    }

    fn heads(&self) -> usize {
        self.sizes.kv_heads * self.sizes.groups
    }

    fn mask(&self) -> &'static str {
        if self.causal { "CAUSAL" } else { "NO_MASK" }
    }

    /// The type of queries, keys, values or their cotangents with one dimension of rows and one of heads.
    fn of_heads(&self, ty: &TensorType) -> TensorType {
        let b = self.sizes.batch.len();
        let [length, width] = [ty.dims[ty.rank() - 2], ty.dims[ty.rank() - 1]];
        let heads: usize = ty.dims[b..ty.rank() - 2].iter().product();
        TensorType::new(ty.dtype, &[self.batch(), heads, length, width])
    }

    fn stats(&self) -> TensorType {
        TensorType::new(DType::F32, &[self.batch(), self.heads(), self.sizes.queries])
    }

    /// Queries, keys and values.
    fn rows(&self, operands: &[Tensor]) -> Vec<Tensor> {
        operands[..3].iter().map(|x| x.reshape(&self.of_heads(&x.ty()).dims)).collect()
    }

    /// The configuration that XLA builds the graph from. Numbers of 64 bits are strings, as in the JSON form of
    /// protocol buffers.
    fn config(&self, target: &str) -> Json {
        let AttentionSizes { queries, keys, .. } = self.sizes;
        let scores = [self.batch(), self.heads(), queries, keys].map(|size| size.to_string());
        let dtype = if self.dtype == DType::BF16 { "BF16" } else { "F16" };
        let mut config = json!({
            "algorithm": {
                "algo_id": "0",
                "math_type": "TENSOR_OP_MATH",
                "tuning_knobs": {"17": "1", "24": "0"},
                "is_cudnn_frontend": true,
                "workspace_size": "0",
            },
            "fmha_scale": self.scale,
            "intermediate_tensor_shape": {
                "element_type": dtype,
                "dimensions": scores,
                "layout": {"minor_to_major": ["3", "2", "1", "0"]},
                "is_dynamic_dimension": [false, false, false, false],
            },
            "is_flash_attention": true,
            "mask_type": self.mask(),
            "dropout_rate": 0.0,
            "seed": 42,
            "sliding_window_length": self.window.unwrap_or(0),
            "max_seg_per_batch": 1,
            "is_paged_attention": false,
        });
        for (name, left, right) in products(target) {
            config[*name] = json!({
                "lhs_contracting_dimensions": [left],
                "rhs_contracting_dimensions": [right],
                "lhs_batch_dimensions": ["0", "1"],
                "rhs_batch_dimensions": ["0", "1"],
            });
        }
        json!({"operation_queue_id": "0", "cudnn_fmha_backend_config": config})
    }
}

/// The products of a target, and the dimensions they contract.
fn products(target: &str) -> &'static [(&'static str, &'static str, &'static str)] {
    if target == FORWARD {
        return &[("bmm1_dot_dimension_numbers", "3", "3"), ("bmm2_dot_dimension_numbers", "3", "2")];
    }
    &[
        ("bmm1_grad_gemm1_dot_dimension_numbers", "2", "2"),
        ("bmm1_grad_gemm2_dot_dimension_numbers", "3", "2"),
        ("bmm2_grad_gemm1_dot_dimension_numbers", "2", "2"),
        ("bmm2_grad_gemm2_dot_dimension_numbers", "3", "3"),
    ]
}

/// Memory that XLA sizes.
fn workspace() -> TensorType {
    TensorType::new(DType::U8, &[0])
}

/// A result of attention, `[batch, heads, queries, width]`, with a given sum of `result * cotangent` of each query, the
/// `flow` `[batch, heads, queries]`. It is the cotangent times `flow / sum(cotangent^2)`, in the type of the flow.
///
/// Rows of the cotangent are scaled by their greatest element first, so that no square overflows or vanishes. All terms
/// of the sum have one sign: where the result is rounded to `bf16` or `f16`, the sum is off by that rounding at most.
///
/// A row whose cotangent is zero gives zero, and so a flow of zero. That is right unless the stats of that row have a
/// cotangent, which is lost then.
#[doc(hidden)]
pub fn result_with_flow(flow: Tensor, ct: Tensor) -> Tensor {
    let ct = ct.convert(flow.dtype());
    let by_element = |x: Tensor| x.broadcast_like(ct, [0, 1, 2]);
    let greatest = ct.abs().max(-1);
    let greatest = greatest.equal(0.0).select(1.0, greatest);
    let direction = ct / by_element(greatest);
    // At least 1 but for a row of zeros, as its greatest element is 1.
    let squares = direction.square().sum(-1).maximum(1.0);
    direction * by_element(flow / squares / greatest)
}
