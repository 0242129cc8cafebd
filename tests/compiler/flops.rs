//! The operations that a decoder needs for each token.

use meshloom_nn::{Architecture, DecoderConfig, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, Stack};

fn config(layer: LayerConfig) -> DecoderConfig {
    DecoderConfig::new(Architecture::llama(8, 32, Stack::uniform(layer, 3), 1e-5))
}

fn layer() -> LayerConfig {
    LayerConfig::llama(GroupedConfig::llama(4, 2, 2, 1e4), 10, 1e-5)
}

/// The numbers are counted by hand: a layer has wq and wo of 8 x 8, wk and wv of 8 x 4, gate, up and down of 8 x 10.
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
