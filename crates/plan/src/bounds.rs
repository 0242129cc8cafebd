//! Lower bounds of the time and memory of a plan, which need no lowering.

use super::Hardware;
use super::plan::{Plan, Residual};
use meshloom::analysis::Arithmetic;
use meshloom::analysis::estimate::{Dimension, Wire};
use meshloom::ops::RematPolicy;
use meshloom::transform::pipeline::{Schedule, WeightPlan};

/// The facts that all plans of a model share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    /// Operations of a step, of products alone, on all devices.
    pub(super) flops: f64,
    pub(super) parameters: f64,
    /// The parameters among these that only experts have.
    pub(super) of_experts: f64,
    pub(super) parameter_bytes: f64,
    /// Bytes of the optimizer's state for each parameter.
    pub(super) moment_bytes: f64,
    /// Bytes of a number that is computed with.
    pub(super) compute_bytes: f64,
    pub(super) tokens: f64,
    /// Width of the residual stream, and layers.
    pub(super) width: f64,
    pub(super) layers: f64,
    /// The values that the layers compute for a token in the width that `tensor` splits, over all layers.
    pub(super) kept: Kept,
    pub(super) arithmetic: Arithmetic,
}

/// Numbers that the backward pass needs of a token, as far as they are known of every model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// Results of products with weights: queries, keys and values, and the two inner products of gated blocks.
    pub(super) of_products: f64,
    pub(super) of_attention: f64,
}

/// The lower bounds of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of a device.
    pub bytes: f64,
}

impl Model {
    /// Returns the bounds of a plan: the time of its products at the rate that programs reach, and the least traffic
    /// over its wires. The estimate of a lowered program is never below them.
    pub(super) fn bounds(&self, plan: &Plan, hardware: &Hardware) -> Bounds {
        let size = |axis: &str| plan.size(axis) as f64;
        let devices = hardware.device_count() as f64;
        let products = hardware.chip.matrix_rate(self.arithmetic).unwrap_or(f64::INFINITY) * hardware.reached.products;
        // A forward pass is a third of a step.
        let again = if plan.remat == RematPolicy::Full { 4.0 / 3.0 } else { 1.0 };
        let computing = self.flops * again / devices / products / (1.0 - least_bubble(plan));
        let dense = self.parameters - self.of_experts;
        let shard = size("stage") * size("tensor");
        let split = shard * size("fsdp");
        // `replica` splits the optimizer's state alone.
        let of_state = self.parameter_bytes + self.moment_bytes / size("replica");
        let state = of_state * self.parameters / (split * size("expert"));
        // Gathered forwards, and their gradients scattered; a device has what its stage and its part of heads need.
        let held = dense / shard + self.of_experts / (shard * size("expert"));
        let gathered = size("fsdp") * if self.of_experts > 0.0 { 1.0 } else { size("expert") };
        let times = if plan.pipeline.is_some() { 1.0 } else { plan.accumulate as f64 };
        let of_weights = 2.0 * times * held * self.compute_bytes * (gathered - 1.0) / gathered;
        let of_rows = self.tokens / (plan.rows_split() as f64 * size("context"));
        let tensor = size("tensor");
        // Two gathers and two scatters of the residual stream in a layer, forwards and backwards.
        let layers = self.layers / size("stage");
        let of_activations = 8.0 * layers * of_rows * self.width * self.compute_bytes * (tensor - 1.0) / tensor;
        let links = hardware.dimensions.iter().filter(|it| it.wire != Wire::Network);
        // In shared memory a reduction reads and writes once what two passes would send.
        let rate = |it: &Dimension| if it.wire == Wire::Memory { 2.0 } else { 1.0 } * hardware.rate(it);
        let links: f64 = links.map(rate).sum();
        let fastest = if links > 0.0 { links } else { f64::INFINITY };
        let bytes = state + self.activations(plan) + self.gathered_ahead(plan, held);
        Bounds { seconds: computing.max(of_weights / fastest).max(of_activations / fastest), bytes }
    }
}

impl Model {
    /// Bytes that a device keeps for the backward pass at its peak.
    fn activations(&self, plan: &Plan) -> f64 {
        let size = |axis: &str| plan.size(axis) as f64;
        let stream = self.width * self.layers / if plan.residual == Residual::Split { size("tensor") } else { 1.0 };
        let Kept { of_products, of_attention } = self.kept;
        // The input of a layer; stages may keep less.
        let input = if plan.pipeline.is_none() { stream } else { 0.0 };
        let numbers = match plan.remat {
            // Both products with the residual stream need their normalized input.
            RematPolicy::None => (of_products + of_attention) / size("tensor") + 2.0 * stream,
            RematPolicy::Dots => of_products / size("tensor"),
            RematPolicy::Save(_) if plan.keeps_products() => (of_products + of_attention) / size("tensor") + input,
            RematPolicy::Save(_) => of_attention / size("tensor") + input,
            _ => input,
        };
        let rows = self.tokens / (plan.rows_split() as f64 * size("context"));
        let parts = plan.parts() as f64;
        let held = match plan.pipeline.as_ref().map(|pipeline| pipeline.schedule) {
            None => rows / parts,
            Some(Schedule::Gpipe | Schedule::Circular) => rows,
            Some(Schedule::ZeroBubbleVee | Schedule::Searched) => rows / parts * size("stage") / 2.0,
            Some(_) => rows / parts * size("stage"),
        };
        SURELY_KEPT * numbers / size("stage") * held * self.compute_bytes
    }

    /// Bytes of weights that are gathered before the loop of a pipeline.
    fn gathered_ahead(&self, plan: &Plan, held: f64) -> f64 {
        let Some(pipeline) = &plan.pipeline else { return 0.0 };
        let are_kept = pipeline.keep_gathered || pipeline.weights == WeightPlan::GatherOnce;
        if are_kept && plan.size("fsdp") > 1 { held * self.compute_bytes } else { 0.0 }
    }
}

/// The part of what the backward pass needs that no compiler computes again.
const SURELY_KEPT: f64 = 0.8;

/// The part of the time that stages wait at least.
pub(super) fn least_bubble(plan: &Plan) -> f64 {
    let Some(pipeline) = &plan.pipeline else { return 0.0 };
    let (stages, microbatches) = (plan.size("stage") as f64, pipeline.microbatches as f64);
    let parts = (pipeline.repeats * pipeline.chunks) as f64;
    let ends = match pipeline.schedule {
        // The first stages of a synchronous step cannot be busy; the last ones may have gradients left.
        Schedule::ZeroBubbleOne | Schedule::ZeroBubbleVee | Schedule::Searched => (stages - 1.0) / parts / 6.0,
        _ => (stages - 1.0) / parts,
    };
    ends / (microbatches + ends)
}
