//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

use safetensors::Dtype;

use crate::weights::WeightsError;
use crate::weights::header::Stored;

pub use crate::weights::decode::{decoder, e8m0};
pub use crate::weights::natural::natural;
pub use crate::weights::positioned::{read_exact_at, seeking, write_all_at};
pub use crate::weights::region::{elements, fits, index, runs};

/// Allocates a buffer of zeros for the elements of a tensor of this name.
///
/// # Errors
/// There is not enough memory.
pub fn buffer(name: &str, length: usize) -> Result<Vec<f32>, WeightsError> {
    let tensor = Stored { name: name.to_owned(), dtype: Dtype::F32, shape: Vec::new(), file: 0, bytes: 0..0 };
    crate::weights::files::buffer(&tensor, length)
}
