//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

pub use crate::placement::orders;
pub use crate::plan::factorizations;
