//! Mistral and Mixtral, arXiv 2310.06825 and 2401.04088: Llama with a window, and with routed experts.

use meshloom::nn::{Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, Scoring, Stack};

use super::fields::Fields;
use super::qwen2::with_attention;
use super::{ExpertNames, Family, FamilyError, Names, llama};

pub(super) const MISTRAL: Family = Family { model_type: "mistral", describe, names: Names::LLAMA };

pub(super) const MIXTRAL: Family = Family {
    model_type: "mixtral",
    describe: describe_routed,
    names: Names {
        router: "block_sparse_moe.gate",
        experts: ExpertNames::Each { within: "block_sparse_moe.experts", gate: "w1", up: "w3", down: "w2" },
        ..Names::LLAMA
    },
};

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let layer = layer(fields)?;
    llama::architecture(fields, Stack::uniform(layer, fields.layer_count()?), false)
}

fn layer(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    let window = fields.count("sliding_window")?;
    Ok(with_attention(&llama::layer(fields)?, |grouped| GroupedConfig { window, ..grouped }))
}

fn describe_routed(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let layer = layer(fields)?;
    let routed = MoeConfig {
        experts: fields.needed_count("num_local_experts")?,
        experts_per_token: fields.needed_count("num_experts_per_tok")?,
        mlp: fields.needed_count("intermediate_size")?,
        scoring: Scoring::Softmax,
        normalize_weights: true,
        ..MoeConfig::default()
    };
    let layer = LayerConfig { feed_forward: FeedForwardConfig::Routed(routed), ..layer };
    llama::architecture(fields, Stack::uniform(layer, fields.layer_count()?), false)
}
