//! gpt-oss, arXiv 2508.10925: a sink and biases in attention, every other layer slides, clamped gates, all routed.

use meshloom_nn::{
    Activation, Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, RmsNorm, Scoring, Stack,
};

use super::common::{epsilon, experts, grouped, head_dim, rope, windows};
use super::fields::Fields;
use super::keys::{Key, Missing, Shared};
use super::{ExpertNames, Family, FamilyError, LayerNames, llama};

pub(super) const GPT_OSS: Family = Family {
    model_type: "gpt_oss",
    shared: Shared::new([201_088, 2880, 2880, 36, 64, 131_072], 1e-5, 150_000.0, false),
    keys: &[
        Key::count("num_key_value_heads", 8),
        Key::count("head_dim", 64),
        Key::text("hidden_act", "silu"),
        Key::section(
            "rope_parameters",
            &[
                ("rope_type", Missing::Text("yarn")),
                ("factor", Missing::Number(32.0)),
                ("beta_fast", Missing::Number(32.0)),
                ("beta_slow", Missing::Number(1.0)),
                ("truncate", Missing::Flag(false)),
                ("original_max_position_embeddings", Missing::Count(4096)),
            ],
        ),
        Key::flag("attention_bias", true),
        Key::count("sliding_window", 128),
        Key::count("num_local_experts", 128),
        Key::count("num_experts_per_tok", 4),
        Key::number("swiglu_alpha", SLOPE),
        Key::number("swiglu_limit", 7.0),
    ],
    describe,
    names: LayerNames {
        router: "mlp.router",
        experts: ExpertNames::Together { within: "mlp.experts" },
        ..LayerNames::LLAMA
    },
};

/// The slope of the logistic function in gates, as [`Activation::Clamped`] has it.
const SLOPE: f64 = 1.702;

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    fields.one_of("hidden_act", &["silu"])?;
    fields.only("swiglu_alpha", SLOPE)?;
    let biased = fields.flag("attention_bias")?;
    let rope = rope(fields, head_dim(fields)?)?;
    let attention = GroupedConfig { bias: biased, output_bias: biased, sinks: true, ..grouped(fields, rope)? };
    let routed = MoeConfig {
        mlp: fields.count("intermediate_size")?,
        activation: Activation::Clamped { limit: fields.positive("swiglu_limit")? },
        // The softmax over the best logits alone: that over all, as shares of the sum of the best.
        scoring: Scoring::Softmax,
        normalize_weights: true,
        router_bias: true,
        biases: true,
        ..experts(fields, fields.named("num_local_experts", "num_experts"))?
    };
    // Published files have this key besides `num_experts_per_tok`. Transformers does not read it.
    if let Some(other) = fields.count_or_null("experts_per_token")?.filter(|&other| other != routed.experts_per_token) {
        let expected = format!("num_experts_per_tok, which is {}; leave it out", routed.experts_per_token);
        return Err(fields.out_of_range("experts_per_token", other, &expected));
    }
    let epsilon = epsilon(fields)?;
    let of_layer = |window| {
        let attention = GroupedConfig { window, ..attention.clone() };
        LayerConfig {
            feed_forward: FeedForwardConfig::Routed(routed.clone()),
            // Products with weights of norms are in f32, unlike Llama's.
            norm: RmsNorm::from(epsilon),
            ..LayerConfig::llama(attention, routed.mlp, epsilon)
        }
    };
    let windows = windows(fields, Some(fields.count("sliding_window")?), |number| number.is_multiple_of(2))?;
    let layers: Vec<LayerConfig> = windows.into_iter().map(of_layer).collect();
    let plain = llama::architecture(fields, Stack::of_layers(&layers))?;
    Ok(Architecture { final_norm: RmsNorm::from(epsilon), ..plain })
}
