//! The names of tensors in a folder: those of a decoder by itself, or within a model that also sees.

use crate::families::Published;
use crate::weights::{Tensor, Weights};

/// The prefixes of the names of a decoder's tensors where it is a part of a larger model. They stand in place of
/// `model.` and of no prefix. The first pair is as published, the second as transformers 5 writes it.
const WITHIN: [(&str, &str); 2] = [("language_model.model.", "language_model."), ("model.language_model.", "")];

/// Tensors of older files that a model computes by itself.
const COMPUTED: &str = "*.rotary_emb.inv_freq";

/// How a folder names the tensors of a decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// The prefixes in place of `model.` and of no prefix, if the decoder is a part of a larger model.
    within: Option<(&'static str, &'static str)>,
}

impl Names {
    /// Returns the names of a folder, by the name of its embedding table.
    pub(super) fn of(weights: &Weights) -> Names {
        let has = |prefix: &str| {
            let table = format!("{prefix}embed_tokens.weight");
            weights.tensors().iter().map(Tensor::name).any(|name| name == table)
        };
        Names { within: WITHIN.into_iter().find(|(model, _)| has(model)) }
    }

    pub(super) fn in_folder(self, name: &str) -> String {
        match (self.within, name.strip_prefix("model.")) {
            (None, _) => name.to_owned(),
            (Some((model, _)), Some(rest)) => format!("{model}{rest}"),
            (Some((_, outside)), None) => format!("{outside}{name}"),
        }
    }

    /// Returns the patterns of the tensors that a model leaves out: values that it computes, a head that is the
    /// embedding table, layers that predict further tokens if it has none, copies of tensors, and the part that sees.
    pub(super) fn skipped(self, published: &Published) -> Vec<String> {
        let mut patterns = vec![COMPUTED.to_owned()];
        if published.architecture.tied_embeddings {
            patterns.push(self.in_folder("lm_head.weight"));
        }
        let layers = published.architecture.stack.layer_count();
        let left_out = layers + published.architecture.further.len()..layers + published.further.len();
        patterns.extend(left_out.map(|layer| self.in_folder(&format!("model.layers.{layer}."))));
        patterns.extend(published.copies().iter().map(|(copy, _)| self.in_folder(copy)));
        if self.within.is_some() {
            let parts = ["vision_tower.", "multi_modal_projector.", "visual."];
            patterns.extend(parts.iter().flat_map(|part| [(*part).to_owned(), format!("model.{part}")]));
        }
        patterns
    }
}
