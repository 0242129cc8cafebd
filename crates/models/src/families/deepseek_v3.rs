//! DeepSeek-V3, arXiv 2412.19437: latent attention, many routed experts with a bias for the choice, dense layers first.

use meshloom_nn::{
    Architecture, AttentionConfig, FeedForwardConfig, LatentConfig, LayerConfig, MoeConfig, RmsNorm, Rope, RopePairs,
    RouterGroups, Scoring, Stack,
};

use super::common::{activation, epsilon, experts, rope, rope_section, rope_type, yarn_magnitude};
use super::fields::{Fields, MOST_LAYERS, fits};
use super::keys::{Key, Shared};
use super::{Family, FamilyError, LayerNames, llama};

pub(super) const DEEPSEEK_V3: Family = Family {
    model_type: "deepseek_v3",
    shared: Shared::new([129_280, 7168, 18_432, 61, 128, 4096], 1e-6, 1e4, false),
    keys: &[
        Key::count("moe_intermediate_size", 2048),
        Key::count("num_key_value_heads", 128).or_null(),
        Key::count("n_shared_experts", 1),
        Key::count("n_routed_experts", 256),
        Key::number("routed_scaling_factor", 2.5),
        Key::count("kv_lora_rank", 512),
        Key::count("q_lora_rank", 1536).or_null(),
        Key::count("qk_rope_head_dim", 64),
        Key::count("qk_nope_head_dim", 128),
        Key::count("v_head_dim", 128),
        Key::count("n_group", 8),
        Key::count("topk_group", 4),
        Key::count("num_experts_per_tok", 8),
        Key::count("first_k_dense_replace", 3),
        Key::flag("norm_topk_prob", true).or_null(),
        Key::text("hidden_act", "silu"),
        Key::flag("rope_interleave", true).or_null(),
        Key::flag("attention_bias", false),
        // Not of transformers, which leaves these layers out.
        Key::count(FURTHER, 0).or_null(),
    ],
    describe,
    names: LayerNames { router: "mlp.gate", ..LayerNames::LLAMA },
};

/// The number of layers that predict further tokens.
const FURTHER: &str = "num_nextn_predict_layers";

/// The epsilon of the norms of narrow vectors, whatever the others have (`modeling_deepseek_v3.py`).
const LATENT_EPSILON: f64 = 1e-6;

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    fields.one_of("scoring_func", &["sigmoid"])?;
    fields.one_of("topk_method", &["noaux_tc"])?;
    // transformers has experts in every layer behind the first, whatever this says.
    fields.only("moe_layer_freq", 1.0)?;
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
        mlp: fields.count("intermediate_size")?,
        activation: activation(fields, "hidden_act")?,
    });
    let routed = with(FeedForwardConfig::Routed(routed(fields)?));
    let first = fields.number_of("first_k_dense_replace")?;
    let of_layer = |number: usize| if number >= first { routed.clone() } else { dense.clone() };
    let count = fields.layer_count()?;
    let layers: Vec<LayerConfig> = (0..count).map(of_layer).collect();
    // Layers of transformers do not include them, and neither does their number; published weights do.
    let further = fields.number_of_or_null(FURTHER)?.unwrap_or_default();
    if further > MOST_LAYERS {
        return Err(fields.out_of_range(FURTHER, further, &format!("at most {MOST_LAYERS}")));
    }
    let further = (count..count + further).map(of_layer).collect();
    Ok(Architecture { further, ..llama::architecture(fields, Stack::of_layers(&layers))? })
}

fn attention(fields: &Fields<'_>) -> Result<LatentConfig, FamilyError> {
    let (nope, turned) = (fields.count("qk_nope_head_dim")?, fields.count("qk_rope_head_dim")?);
    // Written by transformers 5; both follow from the others.
    if fields.has("head_dim") && fields.count("head_dim")? != turned {
        let expected = format!("qk_rope_head_dim, which is {turned}; leave it out");
        return Err(fields.out_of_range("head_dim", fields.count("head_dim")?, &expected));
    }
    fields.only("qk_head_dim", (nope + turned) as f64)?;
    if !turned.is_multiple_of(2) {
        return Err(fields.out_of_range("qk_rope_head_dim", turned, "an even number"));
    }
    let heads = fields.count("num_attention_heads")?;
    if let Some(kv_heads) = fields.count_or_null("num_key_value_heads")?.filter(|&kv_heads| kv_heads != heads) {
        let expected = format!("num_attention_heads, which is {heads}: every head has keys and values of its own");
        return Err(fields.out_of_range("num_key_value_heads", kv_heads, &expected));
    }
    let interleaved = fields.flag("rope_interleave")?;
    let pairs = if interleaved { RopePairs::Neighbours } else { RopePairs::Halves };
    Ok(LatentConfig {
        heads,
        q_lora: fields.count_or_null("q_lora_rank")?.unwrap_or(0),
        kv_lora: fields.count("kv_lora_rank")?,
        nope_head_dim: nope,
        rope_head_dim: turned,
        v_head_dim: fields.count("v_head_dim")?,
        scale: ((nope + turned) as f64).powf(-0.5) * sharper(fields)?,
        rope: Rope { pairs, ..rope(fields, turned)? },
        norm: RmsNorm::llama(LATENT_EPSILON),
    })
}

/// By what scores are sharper where positions are stretched.
fn sharper(fields: &Fields<'_>) -> Result<f64, FamilyError> {
    let Some(section) = rope_section(fields)? else { return Ok(1.0) };
    let weight = section.number_or_null("mscale_all_dim")?.filter(|&weight| weight != 0.0);
    let Some(weight) = weight else { return Ok(1.0) };
    if rope_type(&section)? == "default" {
        return Ok(1.0);
    }
    let sharper = yarn_magnitude(section.positive("factor")?, weight).powi(2);
    match fits(sharper) {
        true => Ok(sharper),
        false => Err(section.wrong(
            "mscale_all_dim",
            &weight.to_string(),
            "one that scales scores by a number that f32 can hold",
        )),
    }
}

fn routed(fields: &Fields<'_>) -> Result<MoeConfig, FamilyError> {
    let key = fields.named("n_routed_experts", "num_local_experts");
    let routed = experts(fields, key)?;
    let (experts, per_token) = (routed.experts, routed.experts_per_token);
    let (count, chosen) = (fields.count("n_group")?, fields.count("topk_group")?);
    if !experts.is_multiple_of(count) || (count > 1 && experts / count < 2) {
        let expected = format!("a divisor of {key}, which is {experts}, that leaves two or more in a group");
        return Err(fields.out_of_range("n_group", count, &expected));
    }
    if chosen > count {
        return Err(fields.out_of_range("topk_group", chosen, &format!("at most n_group, which is {count}")));
    }
    let candidates = experts / count * chosen;
    if per_token > candidates {
        let expected = format!("at most the {candidates} experts in topk_group = {chosen} groups");
        return Err(fields.out_of_range("num_experts_per_tok", per_token, &expected));
    }
    Ok(MoeConfig {
        mlp: fields.count("moe_intermediate_size")?,
        shared_experts: fields.number_of("n_shared_experts")?,
        activation: activation(fields, "hidden_act")?,
        scoring: Scoring::Sigmoid,
        choice_bias: true,
        groups: (count > 1).then_some(RouterGroups { count, chosen }),
        normalize_weights: fields.flag("norm_topk_prob")?,
        weight_scale: fields.positive("routed_scaling_factor")?,
        ..routed
    })
}
