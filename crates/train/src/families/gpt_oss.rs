//! gpt-oss, arXiv 2508.10925: a sink and biases in attention, every other layer slides, clamped gates, all routed.

use meshloom::nn::{
    Activation, Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, RmsNorm, Scoring, Stack,
};

use super::common::{epsilon, grouped, head_dim, rope, sliding_layers};
use super::fields::Fields;
use super::{ExpertNames, Family, FamilyError, Names, llama};

pub(super) const GPT_OSS: Family = Family {
    model_type: "gpt_oss",
    describe,
    names: Names { router: "mlp.router", experts: ExpertNames::Together { within: "mlp.experts" }, ..Names::LLAMA },
};

/// The slope of the logistic function in gates, as [`Activation::Clamped`] has it.
const SLOPE: f64 = 1.702;

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    fields.one_of("hidden_act", &["silu"])?;
    let window = fields.count("sliding_window")?.unwrap_or(128);
    let biased = fields.flag("attention_bias", true)?;
    let rope = rope(fields, None, head_dim(fields)?, 150_000.0)?;
    let attention = GroupedConfig { bias: biased, output_bias: biased, sinks: true, ..grouped(fields, rope)? };
    // transformers 5 writes the slope of the logistic function, which published files leave out.
    if let Some(slope) = fields.positive("swiglu_alpha")?.filter(|&slope| slope != SLOPE) {
        return Err(fields.unsupported("swiglu_alpha", &slope.to_string(), &SLOPE.to_string()));
    }
    // Another name of `num_experts_per_tok`.
    fields.count("experts_per_token")?;
    let routed = MoeConfig {
        experts: fields.needed_count("num_local_experts")?,
        experts_per_token: fields.needed_count("num_experts_per_tok")?,
        mlp: fields.needed_count("intermediate_size")?,
        activation: Activation::Clamped { limit: fields.positive("swiglu_limit")?.unwrap_or(7.0) },
        // The softmax over the best logits alone: that over all, as shares of the sum of the best.
        scoring: Scoring::Softmax,
        normalize_weights: true,
        router_bias: true,
        biases: true,
        ..MoeConfig::default()
    };
    let epsilon = epsilon(fields)?;
    let of_layer = |slides: bool| {
        let attention = GroupedConfig { window: slides.then_some(window), ..attention.clone() };
        LayerConfig {
            feed_forward: FeedForwardConfig::Routed(routed.clone()),
            // Products with weights of norms are in f32, unlike Llama's.
            norm: RmsNorm::from(epsilon),
            ..LayerConfig::llama(attention, routed.mlp, epsilon)
        }
    };
    let sliding = sliding_layers(fields, |number| number.is_multiple_of(2))?;
    let layers: Vec<LayerConfig> = sliding.into_iter().map(of_layer).collect();
    let plain = llama::architecture(fields, Stack::of_layers(&layers), false)?;
    Ok(Architecture { final_norm: RmsNorm::from(epsilon), ..plain })
}
