//! The order in which a person lists names: `layers.2` before `layers.10`.

use std::cmp::Ordering;

/// Compares names, each run of digits in them as one number. Only equal names are equal: `a1` comes before `a01`.
pub fn natural(a: &str, b: &str) -> Ordering {
    parts(a).cmp(parts(b)).then_with(|| a.len().cmp(&b.len())).then_with(|| a.cmp(b))
}

/// The bytes, and each run of digits as one, which stands where digits do among bytes. A number may have more digits
/// than an integer type holds, so that leading zeros are left out and the longer one is the larger.
fn parts(name: &str) -> impl Iterator<Item = (u8, usize, &[u8])> {
    name.as_bytes().chunk_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit()).map(|part| {
        if !part[0].is_ascii_digit() {
            return (part[0], 0, &part[1..]);
        }
        let zeros = part.iter().take_while(|digit| **digit == b'0').count();
        (b'0', part.len() - zeros, &part[zeros..])
    })
}
