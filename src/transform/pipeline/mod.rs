//! Pipelines over a mesh axis: every stage holds some layers of each repeat, and microbatches go round the stages.
//!
//! Source: GPipe (Huang et al., arXiv 1811.06965), circular pipelines as MaxText has them, PipeDream-Flush's 1F1B (Narayanan et al.,
//! arXiv 2104.04473).

mod options;
mod phases;
mod timeline;

pub use options::{PipelineError, PipelineOptions, Schedule, WeightPlan};
pub use phases::{Phase, Task, WeightUse};
pub use timeline::{Column, Counts, Scatter, Timeline, WeightWindow};
