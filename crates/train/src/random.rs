//! Random numbers on the host, for the order of data and for sampling.

/// SplitMix64 (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators"): the next 64 random bits.
pub fn next_bits(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in (0, 1]: never 0, so that its logarithm is finite.
pub(crate) fn uniform(state: &mut u64) -> f64 {
    ((next_bits(state) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}
