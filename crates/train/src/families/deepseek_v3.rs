//! DeepSeek-V3, arXiv 2412.19437: latent attention, many routed experts with a bias for the choice, dense layers first.

use meshloom::nn::{
    Architecture, AttentionConfig, FeedForwardConfig, LatentConfig, LayerConfig, MoeConfig, RmsNorm, Rope, RopePairs,
    RouterGroups, Scoring, Stack,
};

use super::common::{epsilon, rope, rope_section, yarn_magnitude};
use super::fields::Fields;
use super::{Family, FamilyError, Names, llama};

pub(super) const DEEPSEEK_V3: Family =
    Family { model_type: "deepseek_v3", describe, names: Names { router: "mlp.gate", ..Names::LLAMA } };

/// The epsilon of the norms of narrow vectors, whatever the others have (`modeling_deepseek_v3.py`).
const LATENT_EPSILON: f64 = 1e-6;

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    fields.one_of("hidden_act", &["silu"])?;
    fields.one_of("scoring_func", &["sigmoid"])?;
    fields.one_of("topk_method", &["noaux_tc"])?;
    let attention = attention(fields)?;
    let norm = RmsNorm::llama(epsilon(fields)?);
    let with = |feed_forward: FeedForwardConfig| LayerConfig {
        attention: AttentionConfig::Latent(attention.clone()),
        feed_forward,
        norm,
        norms_behind: false,
        residual_scale: 1.0,
    };
    let dense = with(FeedForwardConfig::Dense {
        mlp: fields.needed_count("intermediate_size")?,
        activation: Default::default(),
    });
    let routed = with(FeedForwardConfig::Routed(routed(fields)?));
    let first = fields.number_of("first_k_dense_replace")?.unwrap_or(0);
    let every = fields.count("moe_layer_freq")?.unwrap_or(1);
    let of_layer = |number: usize| {
        let is_routed = number >= first && number.is_multiple_of(every);
        if is_routed { routed.clone() } else { dense.clone() }
    };
    let layers: Vec<LayerConfig> = (0..fields.layer_count()?).map(of_layer).collect();
    llama::architecture(fields, Stack::of_layers(&layers), false)
}

fn attention(fields: &Fields<'_>) -> Result<LatentConfig, FamilyError> {
    let (nope, turned) = (fields.needed_count("qk_nope_head_dim")?, fields.needed_count("qk_rope_head_dim")?);
    // Written by transformers 5; both follow from the others.
    for key in ["head_dim", "qk_head_dim"] {
        fields.count(key)?;
    }
    if !turned.is_multiple_of(2) {
        return Err(fields.out_of_range("qk_rope_head_dim", turned, "an even number".to_owned()));
    }
    let interleaved = fields.flag("rope_interleave", true)?;
    let pairs = if interleaved { RopePairs::Neighbours } else { RopePairs::Halves };
    // Scores are not only of a narrower softmax where positions are stretched, but sharper.
    let sharper = match rope_section(fields, None)? {
        Some(section) => match (section.positive("factor")?, section.number("mscale_all_dim")?) {
            (Some(factor), Some(weight)) if weight != 0.0 => yarn_magnitude(factor, weight).powi(2),
            _ => 1.0,
        },
        None => 1.0,
    };
    Ok(LatentConfig {
        heads: fields.needed_count("num_attention_heads")?,
        q_lora: fields.count("q_lora_rank")?.unwrap_or(0),
        kv_lora: fields.needed_count("kv_lora_rank")?,
        nope_head_dim: nope,
        rope_head_dim: turned,
        v_head_dim: fields.needed_count("v_head_dim")?,
        scale: ((nope + turned) as f64).powf(-0.5) * sharper,
        rope: Rope { pairs, ..rope(fields, None, turned, 1e4)? },
        norm: RmsNorm::llama(LATENT_EPSILON),
    })
}

fn routed(fields: &Fields<'_>) -> Result<MoeConfig, FamilyError> {
    let experts = fields.needed_count("n_routed_experts")?;
    let (count, chosen) = (fields.count("n_group")?.unwrap_or(1), fields.count("topk_group")?.unwrap_or(1));
    if !experts.is_multiple_of(count) || (count > 1 && experts / count < 2) {
        let expected = format!("a divisor of n_routed_experts, which is {experts}, that leaves two or more in a group");
        return Err(fields.out_of_range("n_group", count, expected));
    }
    if chosen > count {
        return Err(fields.out_of_range("topk_group", chosen, format!("at most n_group, which is {count}")));
    }
    Ok(MoeConfig {
        experts,
        experts_per_token: fields.needed_count("num_experts_per_tok")?,
        mlp: fields.needed_count("moe_intermediate_size")?,
        shared_experts: fields.number_of("n_shared_experts")?.unwrap_or(0),
        scoring: Scoring::Sigmoid,
        choice_bias: true,
        groups: (count > 1).then_some(RouterGroups { count, chosen }),
        normalize_weights: fields.flag("norm_topk_prob", true)?,
        weight_scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0),
        ..MoeConfig::default()
    })
}
