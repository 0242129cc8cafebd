//! Reports of a run: the metrics of its steps, its summary, event files for TensorBoard, and profiles of steps.

mod metrics;
#[cfg(feature = "tensorboard")]
mod profile;
mod summary;
#[cfg(feature = "tensorboard")]
mod tensorboard;

pub use metrics::{Evaluation, MetricsError, MetricsWriter, StepMetrics, beside_entropy, thousands};
#[cfg(feature = "tensorboard")]
pub use profile::{ProfileError, StepProfile};
pub use summary::{MemoryUse, Summary};
#[cfg(feature = "tensorboard")]
pub use tensorboard::{EventWriter, EventsError};
#[cfg(feature = "tensorboard")]
pub(crate) use tensorboard::{first_record, scalars_record, start_record};
