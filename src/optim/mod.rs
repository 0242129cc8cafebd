//! Optimizers and schedules, written as ordinary users of [`trace`](crate::trace).

mod adamw;
mod schedule;

pub use adamw::{AdamW, AdamWState, clip_by_global_norm, global_norm};
pub use schedule::WarmupCosine;
