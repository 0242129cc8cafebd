//! Batches whose tokens are arranged as the model wants them.

use super::data::DataError;
use crate::Error;
use meshloom::ir::Literal;
use meshloom::nn::TokenOrder;

/// The leaves of a batch `[rows, length, ..]` with their tokens in this order. What has no second dimension belongs to
/// rows, and stays.
///
/// # Errors
/// The length does not suit the order.
pub(super) fn arranged(order: TokenOrder, leaves: Vec<Literal>) -> Result<Vec<Literal>, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use meshloom::ir::{DType, TensorType};
    use meshloom::nn::ContextOrder;

    /// What stands at an index is the token of that index's place, in every row and with all of its elements.
    #[test]
    fn rows_are_arranged_by_places() {
        let of_rows = Literal::from_fn(TensorType::new(DType::F32, &[2]), |index| index as f64);
        for (order, parts, length) in [(ContextOrder::TwoChunk, 2, 12), (ContextOrder::Striped, 3, 6)] {
            let order = TokenOrder::new(order, parts);
            let rows = Literal::from_fn(TensorType::new(DType::S32, &[2, length, 3]), |index| index as f64);
            let places = order.places(length).expect("a length that divides");
            let leaves = arranged(order, vec![rows.clone(), of_rows.clone()]).expect("it divides");
            for (index, &found) in leaves[0].to_vec::<i32>().expect("s32").iter().enumerate() {
                let (row, token, element) = (index / (3 * length), index / 3 % length, index % 3);
                assert_eq!(found as usize, (row * length + places[token]) * 3 + element, "{order:?} {length}");
            }
            assert_ne!(leaves[0].bytes(), rows.bytes());
            assert_eq!(leaves[1].bytes(), of_rows.bytes());
        }
    }

    #[test]
    fn rows_of_another_length_are_refused() {
        let rows = Literal::from_fn(TensorType::new(DType::S32, &[2, 6]), |index| index as f64);
        let error = arranged(TokenOrder::new(ContextOrder::TwoChunk, 2), vec![rows]).expect_err("it does not divide");
        assert!(error.to_string().ends_with("their length must be a multiple of 4"), "{error}");
    }
}
