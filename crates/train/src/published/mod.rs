//! Published models as those of runs: where their parameters come from, and what becomes a checkpoint or is exported.

mod folder;
mod import_export;
mod parameter_source;

pub use folder::StoredModel;
pub use import_export::{Imported, export, import};
pub(crate) use parameter_source::{ParameterSource, with_parameters};
