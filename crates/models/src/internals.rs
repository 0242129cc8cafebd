//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

pub use crate::weights::decode::{decoder, e8m0};
pub use crate::weights::files::buffer;
pub use crate::weights::natural::natural;
pub use crate::weights::region::fits;
