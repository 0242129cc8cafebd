//! Checksums of what a run has read.

use std::io::{self, BufWriter, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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

pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A writer whose bytes are hashed on their way.
pub(crate) struct Hashing<W> {
    pub(crate) to: W,
    pub(crate) hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The bytes that are read and hashed at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The checksum of what was hashed so far and of what is left to be read.
pub(crate) fn hash_rest(hash: Sha256, from: &mut impl Read) -> io::Result<[u8; 32]> {
    let mut to = BufWriter::with_capacity(CHUNK_BYTES, Hashing { to: io::sink(), hash });
    io::copy(from, &mut to)?;
    Ok(to.into_inner().map_err(|error| error.into_error())?.hash.finalize().into())
}
