//! Limits on the size of inputs, whatever their form.

/// The limits on what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the input.
    pub input_bytes: u64,
    /// Bytes of a compressed input after decompression. The limit is lower than for other inputs: a small file must not
    /// make its reader take a large one.
    pub decompressed_bytes: u64,
    /// The memory that a decoded input may take, as a multiple of the input's size. Real modules take seven times
    /// theirs, and up to twelve where instructions have no metadata.
    pub decoded_ratio: u64,
    /// Bytes that any input may take in memory when it is decoded.
    pub decoded_bytes: u64,
    /// How deep computations may call each other: loops in branches in loops.
    pub call_depth: usize,
}

impl Limits {
    /// The memory that an input of this number of bytes may take when it is decoded.
    pub(crate) fn decoded_limit(&self, bytes: usize) -> u64 {
        (bytes as u64).saturating_mul(self.decoded_ratio).max(self.decoded_bytes)
    }

    /// All sizes at most `bytes`, whatever the ratios.
    pub fn up_to(bytes: u64) -> Limits {
        let usual = Limits::default();
        Limits { input_bytes: bytes, decompressed_bytes: bytes, decoded_bytes: bytes.max(usual.decoded_bytes), ..usual }
    }
}

impl Default for Limits {
    /// The limits are the 2 GiB that a protobuf may have, 256 MiB for compressed input, and decoded 20 times the size,
    /// or 40 MiB.
    fn default() -> Limits {
        Limits {
            input_bytes: 2 << 30,
            decompressed_bytes: 256 << 20,
            decoded_ratio: 20,
            decoded_bytes: 40 << 20,
            call_depth: 1000,
        }
    }
}
