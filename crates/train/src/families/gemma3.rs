//! Gemma 3, its text part, arXiv 2503.19786: five layers with a window to one without, each kind with its own rotary
//! frequencies, and norms of queries and keys.

use meshloom::nn::{Architecture, GroupedConfig, LayerConfig, RmsNorm, Rope};

use super::common::{FULL, SLIDING, epsilon, grouped, head_dim, rope, sliding_layers};
use super::fields::Fields;
use super::gemma2::{architecture, layer, score_scale};
use super::{Family, FamilyError, Names};

pub(super) const GEMMA3: Family = Family { model_type: "gemma3_text", describe, names: Names::GEMMA };

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let window = fields.count("sliding_window")?.unwrap_or(4096);
    let pattern = fields.count("sliding_window_pattern")?.or(fields.count("_sliding_window_pattern")?).unwrap_or(6);
    let dim = head_dim(fields)?;
    let (global, local) = (rope(fields, Some(FULL), dim, 1e6)?, local_rope(fields, dim)?);
    let attention = |slides: bool| -> Result<GroupedConfig, FamilyError> {
        Ok(GroupedConfig {
            window: slides.then_some(window),
            softcap: fields.positive("attn_logit_softcapping")?,
            scale: score_scale(fields)?,
            head_norms: Some(RmsNorm::gemma(epsilon(fields)?)),
            ..grouped(fields, if slides { local.clone() } else { global.clone() })?
        })
    };
    let sliding = sliding_layers(fields, |number| !(number + 1).is_multiple_of(pattern))?;
    let layers: Vec<LayerConfig> =
        sliding.into_iter().map(|slides| layer(fields, attention(slides)?)).collect::<Result<_, _>>()?;
    Ok(Architecture { logit_cap: fields.positive("final_logit_softcapping")?, ..architecture(fields, &layers)? })
}

/// How layers with a window turn heads: published files have a base for them, and never stretch it.
fn local_rope(fields: &Fields<'_>, dim: usize) -> Result<Rope, FamilyError> {
    let theta = fields.positive("rope_local_base_freq")?.unwrap_or(1e4);
    match fields.section("rope_parameters")? {
        Some(_) => rope(fields, Some(SLIDING), dim, theta),
        None => Ok(Rope::new(dim, theta)),
    }
}
