//! What a training run needs beside the model: its config, its data and its metrics.

pub mod config;
pub mod data;
pub mod metrics;
