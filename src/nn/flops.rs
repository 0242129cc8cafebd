//! What a decoder must compute, whatever it is compiled to.

use super::layer::{AttentionConfig, LayerConfig};
use super::layer_path::{LayerPath, further_path};
use super::{Architecture, DecoderConfig};
use crate::trace::Tree;

impl DecoderConfig {
    /// Floating-point operations of a train step for each token of rows of `length` tokens: of the matrix products
    /// alone, twice their multiplications, in the forward pass and twice as many in the backward pass. What a
    /// rematerialization computes again does not count, nor does a lookup in the embedding; of routed experts, those
    /// that a token goes through. Attention counts as if every token saw the whole row, or
    /// its whole window.
    ///
    /// The share of a chip's peak that this is, is model FLOPs utilization (MFU). Source: Chowdhery et al., "PaLM",
    /// arXiv 2204.02311, appendix B: `6 N + 12 L H Q T`.
    pub fn flops_per_token(&self, length: usize) -> f64 {
        let params = self.parameters();
        let Architecture { stack, tied_embeddings, .. } = &self.architecture;
        let further = self.further_layers();
        let is_lookup = |path: &str| path == "embedding" && !tied_embeddings;
        let is_head = |path: &str| path == if *tied_embeddings { "embedding" } else { "head" };
        let products = params.paths().into_iter().zip(params.leaves()).filter_map(|(path, param)| {
            // Tables over the vocabulary are no matrices to optimizers, but products with them are.
            let is_matrix = param.matrix.is_some() || path == "head" || path == "embedding";
            let (numbers, depth) =
                (LayerPath::of(&path, param.stacked_dims > 0).numbers, further_path(&path).map(|(depth, _)| depth));
            let routed = || match (depth, numbers) {
                (Some(depth), _) => further.get(depth)?.routed(),
                (None, numbers) => stack.layers().nth(numbers?.first)?.routed(),
            };
            let is_expert = param.spec.axes.iter().any(|name| name.text() == "exp");
            let share = match is_expert.then(routed).flatten() {
                Some(routed) => routed.experts_per_token as f64 / routed.experts as f64,
                None => 1.0,
            };
            // Each further token goes through the head again.
            let times = if is_head(&path) { 1.0 + further.len() as f64 } else { 1.0 };
            let is_left_out = depth.is_some() && further.is_empty();
            (is_matrix && !is_lookup(&path) && !is_left_out)
                .then(|| param.spec.ty.element_count() as f64 * share * times)
        });
        let of_attention = |layer: &LayerConfig| match &layer.attention {
            AttentionConfig::Grouped(grouped) => {
                2 * grouped.heads * grouped.head_dim * grouped.window.map_or(length, |window| window.min(length))
            }
            AttentionConfig::Latent(latent) => {
                latent.heads * (latent.nope_head_dim + latent.rope_head_dim + latent.v_head_dim) * length
            }
        };
        let of_layers = |layers: &[LayerConfig]| layers.iter().map(of_attention).sum::<usize>() as f64;
        let attention =
            of_layers(&stack.prefix) + of_layers(&stack.cycle) * stack.cycles as f64 + of_layers(&stack.suffix);
        let attention = attention + of_layers(further);
        6.0 * (products.sum::<f64>() + attention)
    }
}

#[cfg(test)]
mod tests {
    use crate::nn::{Architecture, DecoderConfig, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, Stack};

    fn config(layer: LayerConfig) -> DecoderConfig {
        DecoderConfig::new(Architecture::llama(8, 32, Stack::uniform(layer, 3), 1e-5))
    }

    fn layer() -> LayerConfig {
        LayerConfig::llama(GroupedConfig::llama(4, 2, 2, 1e4), 10, 1e-5)
    }

    /// Counted by hand: a layer has wq and wo of 8 x 8, wk and wv of 8 x 4, gate, up and down of 8 x 10.
    #[test]
    fn operations_of_a_token() {
        let of_layer = 2.0 * 64.0 + 2.0 * 32.0 + 3.0 * 80.0;
        // Products of queries with keys, and of weights with values: 4 heads of 2, over 16 tokens.
        let attention = 2.0 * 4.0 * 2.0 * 16.0;
        let head = 8.0 * 32.0;
        let expected = 6.0 * (3.0 * (of_layer + attention) + head);
        assert_eq!(config(layer()).flops_per_token(16), expected);
        assert_eq!(DecoderConfig { scan_layers: false, ..config(layer()) }.flops_per_token(16), expected);
        let mut tied = config(layer());
        tied.architecture.tied_embeddings = true;
        assert_eq!(tied.flops_per_token(16), expected);
        let routed = MoeConfig { experts: 8, experts_per_token: 2, mlp: 6, ..MoeConfig::default() };
        let experts = 2.0 * 64.0 + 2.0 * 32.0 + 8.0 * 8.0 + 2.0 * 3.0 * 8.0 * 6.0;
        let expected = 6.0 * (3.0 * (experts + attention) + head);
        let of_experts = LayerConfig { feed_forward: FeedForwardConfig::Routed(routed), ..layer() };
        assert_eq!(config(of_experts.clone()).flops_per_token(16), expected);
        // A layer that predicts a further token: its own products, the projection of two vectors, the head again.
        let mut further = config(of_experts.clone());
        further.architecture.further = vec![of_experts];
        assert_eq!(further.flops_per_token(16), expected, "where the loss does not ask for it");
        further.further_weight = 0.3;
        let more = experts + attention + 2.0 * 64.0 + head;
        assert_eq!(further.flops_per_token(16), expected + 6.0 * more);
    }
}
