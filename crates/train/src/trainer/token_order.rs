//! Batches whose tokens are arranged as the model wants them.

use crate::Error;
use crate::data::DataError;
use meshloom::ir::Literal;
use meshloom_nn::TokenOrder;

/// Returns the leaves of a batch `[rows, length, ..]` with their tokens in this order. A leaf without a second
/// dimension belongs to rows, and stays as it is.
///
/// # Errors
/// The length does not suit the order.
pub fn arranged(order: TokenOrder, leaves: Vec<Literal>) -> Result<Vec<Literal>, Error> {
    if order.is_natural() {
        return Ok(leaves);
    }
    // All leaves of a batch have one length.
    let mut places = Vec::new();
    let mut arrange = |leaf: &Literal| -> Result<Literal, DataError> {
        let &[rows, length, ..] = &leaf.ty().dims[..] else { return Ok(leaf.clone()) };
        if places.len() != length {
            places = order.places(length)?;
        }
        arranged_leaf(leaf, rows, &places)
    };
    Ok(leaves.iter().map(&mut arrange).collect::<Result<_, _>>()?)
}

fn arranged_leaf(leaf: &Literal, rows: usize, places: &[usize]) -> Result<Literal, DataError> {
    let bytes = leaf.bytes();
    let width = bytes.len() / (rows * places.len()).max(1);
    let mut found = Vec::with_capacity(bytes.len());
    for row in bytes.chunks_exact((places.len() * width).max(1)) {
        places.iter().for_each(|place| found.extend_from_slice(&row[place * width..(place + 1) * width]));
    }
    let (expected, count) = (leaf.ty().clone(), found.len());
    Literal::from_bytes(expected.clone(), found).map_err(|_| DataError::Bytes { expected, found: count })
}
