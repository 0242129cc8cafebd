//! What data is, by its contents: checksums of what a run has read.

use serde::{Deserialize, Serialize};

/// What a key of the config named, by its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataDigest {
    /// The key.
    pub key: String,
    /// What it named: a source or a file.
    pub name: String,
    /// SHA-256 of the file; of a source, SHA-256 of those of its files in their order.
    pub sha256: String,
}

/// A checksum as text.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
