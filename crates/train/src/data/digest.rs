//! Checksums of what a run has read.

use serde::{Deserialize, Serialize};

/// The contents of what a key of the config named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataDigest {
    /// The key.
    pub key: String,
    /// The source or file that it named.
    pub name: String,
    /// SHA-256 of the file; of a source, SHA-256 of those of its files in their order.
    pub sha256: String,
}

/// A checksum as text.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
