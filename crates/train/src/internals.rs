//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

pub use crate::trainer::slow_steps::SlowStepWatch;
pub use crate::trainer::token_order::arranged;

/// Encodes the records of event files.
#[cfg(feature = "tensorboard")]
pub mod records {
    use crate::report;

    /// The first record of a file.
    pub fn first(wall_time: f64) -> Vec<u8> {
        report::first_record(wall_time)
    }

    /// The record that says that a run begins at a step.
    pub fn start(wall_time: f64, step: u64) -> Vec<u8> {
        report::start_record(wall_time, step)
    }

    /// The record of the numbers of a step, by name.
    pub fn scalars(wall_time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
        report::scalars_record(wall_time, step, values)
    }
}
