//! The operations that a decoder needs, whatever it is compiled to.

use meshloom::trace::{LayerPath, Tree};

use super::layer::{AttentionConfig, LayerConfig};
use super::multi_token::further_path;
use super::{Architecture, DecoderConfig};

impl DecoderConfig {
    /// Floating-point operations of a train step for each token of rows of `length` tokens: of the matrix products
    /// alone, twice their multiplications, in the forward pass and twice as many in the backward pass. Values that are
    /// computed again by rematerialization do not count, nor does a lookup in the embedding. Only those
    /// routed experts count that a token goes through. Attention counts as if every token saw the whole row, or its
    /// whole window.
    ///
    /// Divided by the peak of a chip, this gives model FLOPs utilization (MFU). Source: Chowdhery et al., "PaLM",
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
