//! DiLoCo: replicas of a model that train on their own and sync now and then, all at once or fragment by fragment.

mod options;
mod schedule;

pub use options::{DilocoError, DilocoOptions, LayerOrder, Streaming, Transport};
pub use schedule::{Event, Fragment, Schedule};
