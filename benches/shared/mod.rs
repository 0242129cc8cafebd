//! Helpers of several benches.

pub mod copies;
pub mod jax;
pub mod rank;

use std::time::Instant;

use meshloom::ops::RematPolicy;
use meshloom::optim::{AdamW, Decay, LearningRate, Optimizer};
use meshloom_nn::{Architecture, DecoderConfig, GroupedConfig, LayerConfig, Stack};
use meshloom_train::run::{DropoutConfig, TrainStep};

/// The text of the default config, from whichever folder a bench is run in.
pub fn text() -> String {
    format!("data.sources=[{:?}]", concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/austen.txt"))
}

/// A decoder as wide as Llama 3 405B, with so many query heads and key heads, of 128, and this inner width.
pub fn wide_llama(
    [heads, kv_heads]: [usize; 2],
    mlp: usize,
    layers: usize,
    scan_layers: bool,
    remat: RematPolicy,
) -> DecoderConfig {
    let layer = LayerConfig::llama(GroupedConfig::llama(heads, kv_heads, 128, 500_000.0), mlp, 1e-5);
    let architecture = Architecture::llama(16384, 128256, Stack::uniform(layer, layers), 1e-5);
    DecoderConfig { scan_layers, remat, ..DecoderConfig::new(architecture) }
}

/// Llama 3 405B (arXiv 2407.21783, table 3) at 8192 tokens. The model has 126 layers.
pub fn llama_405b(layers: usize, scan_layers: bool, remat: RematPolicy) -> TrainStep {
    TrainStep {
        choice_bias_rate: 0.0,
        model: wide_llama([128, 8], 53248, layers, scan_layers, remat),
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

/// Iterations of the longer of two loops whose difference is measured: the other has one, so that what a run takes
/// besides is not in it.
pub const ITERATIONS: usize = 21;

/// Seconds of the fastest of five runs.
pub fn fastest(mut run: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut seconds = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        run()?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
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
