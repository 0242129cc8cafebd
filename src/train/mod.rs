//! Training a decoder: the run config, the data, the step and the loop around it.

pub mod config;
pub mod data;
pub mod metrics;
pub mod sample;
pub mod step;
mod trainer;

pub use trainer::Trainer;
