use meshloom::ir::{DType, Literal, TensorType};
use meshloom_nn::{ContextOrder, TokenOrder};
use meshloom_train::internals::arranged;

/// Each index holds the token of its place, in every row and with all of its elements.
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
