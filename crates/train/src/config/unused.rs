//! Keys that have no effect beside others, where no row can say which keys it needs.

use super::{Auto, RunConfig};
use meshloom::kernels::AttentionKernel;
use meshloom::ops::RematPolicy;

impl RunConfig {
    /// The keys, each with the reason. `has_validation` says of another model's own dataset what `validation.sources`
    /// does not.
    pub(super) fn unused_keys(&self, has_validation: bool) -> Vec<(&'static str, String)> {
        let mut unused = self.unused_of_model();
        if let Some(remat) = self.own_remat_of_all_layers() {
            unused.extend(
                ["remat.policy", "remat.names"]
                    .map(|key| (key, format!("pipeline.remat.policy is {:?}", remat.name()))),
            );
        }
        if !has_validation {
            unused.extend(
                ["validation.batches", "checkpoint.keep_best"]
                    .map(|key| (key, "there is no validation set".to_owned())),
            );
        }
        if self.is_apart() {
            unused.push(("diloco.check_replicas", "the replicas are apart, by [diloco.apart]".to_owned()));
        }
        if self.data.sources.iter().chain(&self.validation.sources).all(|source| is_plain_text(source)) {
            let why = "no name in data.sources and validation.sources is one of JSON Lines";
            unused.push(("data.field", why.to_owned()));
            // Bytes may be any; a tokenizer's text must be UTF-8.
            if self.data.tokenizer == "bytes" {
                unused.push(("data.bad_lines", format!("{why} and data.tokenizer is \"bytes\"")));
            }
        }
        unused
    }

    fn unused_of_model(&self) -> Vec<(&'static str, String)> {
        let kind = || self.published_by().unwrap_or_else(|| format!("model.family is {:?}", self.model.family.name()));
        let mut unused = Vec::new();
        if !self.has_experts() {
            let keys =
                ["model.load_balance_weight", "model.expert_capacity", "kernels.experts", "kernels.experts_exchange"];
            unused.extend(keys.map(|key| (key, format!("{}, without routed experts", kind()))));
        }
        if !self.has_choice_bias() {
            unused.push(("train.choice_bias_rate", format!("{}, without biases of choices", kind())));
        }
        if self.kernels.attention == Auto::Chosen(AttentionKernel::Mosaic) && self.model.attention_dropout > 0.0 {
            let rate = self.model.attention_dropout;
            let why =
                format!("its kernels drop no weights and model.attention_dropout is {rate}: attention is blockwise");
            unused.push(("kernels.attention", why));
        }
        if self.has_latent_attention() {
            unused.push(("kernels.context", kind()));
        }
        if let Some(pipeline) = self.pipeline.as_ref().filter(|pipeline| pipeline.schedule.branches()) {
            let why =
                format!("pipeline.schedule is {:?}: layers in its branches gather keys", pipeline.schedule.name());
            unused.push(("kernels.context", why));
        }
        if let Some(why) = self.rows_are_whole() {
            unused.extend(["kernels.context", "kernels.context_order"].map(|key| (key, why.clone())));
        }
        unused
    }

    /// The policy of a pipeline's own, if no layer runs outside of the pipeline.
    fn own_remat_of_all_layers(&self) -> Option<&RematPolicy> {
        let pipeline = self.pipeline.as_ref()?;
        let stack = self.stack();
        let are_all = [0, stack.cycle.len() * stack.cycles].contains(&pipeline.layers)
            && stack.prefix.is_empty()
            && stack.suffix.is_empty();
        pipeline.remat.as_ref().filter(|_| are_all && !self.predicts_further())
    }
}

/// Returns whether files of this name, or files that match it as a glob, are text and not JSON Lines. The contents of a
/// folder are not known.
fn is_plain_text(source: &str) -> bool {
    let name = source.to_ascii_lowercase();
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    name.ends_with(".txt") || name.ends_with(".md")
}
