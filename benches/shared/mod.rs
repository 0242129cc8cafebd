//! What several benches use.

pub mod jax;

use meshloom::ir::DType;
use meshloom::nn::DecoderConfig;
use meshloom::ops::RematPolicy;
use meshloom::optim::{AdamW, Decay, LearningRate, Optimizer};
use meshloom_train::step::{DropoutConfig, TrainStep};

/// The text of the default config, from whichever folder a bench is run in.
pub fn text() -> String {
    format!("data.sources=[{:?}]", concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/austen.txt"))
}

/// Llama 3 405B (arXiv 2407.21783, table 3) at 8192 tokens. The model has 126 layers.
pub fn llama_405b(layers: usize, scan_layers: bool, remat: RematPolicy) -> TrainStep {
    TrainStep {
        model: DecoderConfig {
            layers,
            embed: 16384,
            heads: 128,
            kv_heads: 8,
            head_dim: 128,
            mlp: 53248,
            vocab: 128256,
            tied_embeddings: false,
            param_dtype: DType::F32,
            compute_dtype: DType::F32,
            scan_layers,
            remat,
            pipeline: None,
            exchange: meshloom::ops::KeyExchange::Gather,
            order: meshloom::nn::TokenOrder::default(),
            rope_theta: 500_000.0,
            norm_epsilon: 1e-5,
            z_loss: 0.0,
            loss_chunks: 1,
            parts: Default::default(),
        },
        optimizer: Optimizer::AdamW(AdamW::default()),
        schedule: LearningRate { peak: 8e-5, warmup: 8000, steps: 1_200_000, floor: 0.01, decay: Decay::Cosine },
        clip_norm: 1.0,
        batch: 4,
        seq: 8192,
        microbatches: 1,
        dropout: DropoutConfig::default(),
        master_copies: true,
    }
}

/// The smallest and the median of some measurements.
pub fn smallest_and_median(measured: &[f64]) -> (f64, f64) {
    (measured.iter().copied().fold(f64::INFINITY, f64::min), median(measured))
}

/// The median of some measurements.
pub fn median(measured: &[f64]) -> f64 {
    let mut sorted = measured.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
