//! Keys that have no effect with the model of a config.

use super::RunConfig;

impl RunConfig {
    /// The keys, each with the reason.
    pub(super) fn unused_of_model(&self) -> Vec<(&'static str, String)> {
        let kind = || self.published_by().unwrap_or_else(|| format!("model.family is {:?}", self.model.family.name()));
        let mut unused = Vec::new();
        if !self.has_experts() {
            let keys =
                ["model.load_balance_weight", "model.expert_capacity", "kernels.experts", "kernels.experts_exchange"];
            unused.extend(keys.map(|key| (key, format!("{}, without routed experts", kind()))));
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
}
