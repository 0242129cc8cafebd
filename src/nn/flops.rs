//! What a decoder must compute, whatever it is compiled to.

use super::DecoderConfig;
use crate::trace::Tree;

impl DecoderConfig {
    /// Floating-point operations of a train step for each token of rows of `length` tokens: of the matrix products
    /// alone, twice their multiplications, in the forward pass and twice as many in the backward pass. What a
    /// rematerialization computes again does not count, nor does a lookup in the embedding; of routed experts, those
    /// that a token goes through. Attention counts as if every token saw the whole row.
    ///
    /// The share of a chip's peak that this is, is model FLOPs utilization (MFU). Source: Chowdhery et al., "PaLM",
    /// arXiv 2204.02311, appendix B: `6 N + 12 L H Q T`.
    pub fn flops_per_token(&self, length: usize) -> f64 {
        let params = self.parameters();
        let is_lookup = |path: &str| path == "embedding" && !self.tied_embeddings;
        let products = params.paths().into_iter().zip(params.leaves()).filter_map(|(path, param)| {
            let is_matrix = param.unstacked_rank() >= 2 && !is_lookup(&path);
            let is_expert = param.spec.axes.iter().any(|name| name.text() == "exp");
            let routed = &self.parts.routed;
            let share = if is_expert { routed.experts_per_token as f64 / routed.experts as f64 } else { 1.0 };
            is_matrix.then(|| param.spec.ty.element_count() as f64 * share)
        });
        let (keys, values) = match &self.parts.latent {
            Some(latent) => (latent.nope_head_dim + latent.rope_head_dim, latent.v_head_dim),
            None => (self.head_dim, self.head_dim),
        };
        let attention = (self.layers * self.heads * (keys + values) * length) as f64;
        6.0 * (products.sum::<f64>() + attention)
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::DType;
    use crate::nn::{DecoderConfig, LayerParts, MoeConfig};
    use crate::ops::RematPolicy;

    fn config() -> DecoderConfig {
        DecoderConfig {
            layers: 3,
            embed: 8,
            heads: 4,
            kv_heads: 2,
            head_dim: 2,
            mlp: 10,
            vocab: 32,
            tied_embeddings: false,
            param_dtype: DType::F32,
            compute_dtype: DType::F32,
            scan_layers: true,
            remat: RematPolicy::None,
            pipeline: None,
            exchange: crate::ops::KeyExchange::Gather,
            order: crate::nn::TokenOrder::default(),
            rope_theta: 1e4,
            norm_epsilon: 1e-5,
            z_loss: 0.0,
            loss_chunks: 1,
            parts: LayerParts::default(),
        }
    }

    /// Counted by hand: a layer has wq and wo of 8 x 8, wk and wv of 8 x 4, gate, up and down of 8 x 10.
    #[test]
    fn operations_of_a_token() {
        let layer = 2.0 * 64.0 + 2.0 * 32.0 + 3.0 * 80.0;
        // Products of queries with keys, and of weights with values: 4 heads of 2, over 16 tokens.
        let attention = 2.0 * 4.0 * 2.0 * 16.0;
        let head = 8.0 * 32.0;
        let expected = 6.0 * (3.0 * (layer + attention) + head);
        assert_eq!(config().flops_per_token(16), expected);
        assert_eq!(DecoderConfig { scan_layers: false, ..config() }.flops_per_token(16), expected);
        assert_eq!(DecoderConfig { tied_embeddings: true, ..config() }.flops_per_token(16), expected);
        let routed = MoeConfig { experts: 8, experts_per_token: 2, mlp: 6, ..MoeConfig::default() };
        let experts = 2.0 * 64.0 + 2.0 * 32.0 + 8.0 * 8.0 + 2.0 * 3.0 * 8.0 * 6.0;
        let expected = 6.0 * (3.0 * (experts + attention) + head);
        let config = DecoderConfig { parts: LayerParts { routed, ..LayerParts::default() }, ..config() };
        assert_eq!(config.flops_per_token(16), expected);
    }
}
