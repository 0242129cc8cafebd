//! Pipelines over a mesh axis: every stage holds some layers of each repeat, and microbatches travel through the
//! stages.
//!
//! [`pipeline`] runs a layer function on stacked weights. The result is an ordinary program in global view, in which
//! stages are a dimension: named `activation_stage` in activations and `layers` in weights, and split over the mesh
//! axis that the rules give these names. A [roll](crate::ops::Roll) along it moves results from stage to stage, which
//! becomes a collective-permute.
//!
//! | module | what it says |
//! |---|---|
//! | `options` | the options of a pipeline, and which combinations are possible |
//! | `input`, `batch_slots` | what goes into a pipeline, and how microbatches lie before it and behind it |
//! | `stage`, `stage_weights` | the layers of all stages with both halves of their derivative; how weights are gathered |
//! | `lock_step` | all stages do the same in every iteration: GPipe and circular pipelines |
//! | `schedule` | tables of what each stage does when, where stages branch |
//! | `by_table` | the loop that runs a table, which contains the loss |
//! | `with_loss` | a pipeline and the loss behind it, under any schedule |
//! | `timeline` | any schedule as data |
//!
//! Sources: GPipe (Huang et al., arXiv 1811.06965), circular pipelines as in MaxText (maxtext.layers.pipeline),
//! PipeDream-Flush's 1F1B (Narayanan et al., arXiv 2104.04473).

mod batch_slots;
mod by_table;
mod input;
mod lock_step;
mod options;
mod schedule;
mod stage;
mod stage_weights;
mod timeline;
mod with_loss;

pub use input::{PipelineInput, PipelineLoss, StackedWeights};
pub use lock_step::{IterationPhase, Task, WeightUse, pipeline};
pub use options::{PipelineError, PipelineOptions, Schedule, WeightPlan};
pub use schedule::{
    Cell, Columns, Cost, Costs, Item, Placement, Route, ScheduleError, Shape, Simulated, Slots, Table, Work,
};
pub use stage::{LayerPlace, STAGE};
pub use timeline::{Column, Counts, GradientScatter, Timeline, WeightWindow};
pub use with_loss::pipeline_with_loss;
