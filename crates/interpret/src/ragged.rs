//! XLA's `ragged-dot` by what it is documented to compute, in plain loops of `f64`. Rows of no group are NaN: libtpu
//! does not write them.

use meshloom::ir::{Literal, TensorType};
use meshloom::ops::{RaggedDot, RaggedMode};

pub fn apply(op: &RaggedDot, operands: &[&Literal], ty: &TensorType) -> Literal {
    let [lhs, rhs, sizes] = [0, 1, 2].map(|index| operands[index].to_f64_vec());
    let (rows, inner) = (operands[0].ty().dims[0], operands[0].ty().dims[1]);
    let columns = ty.dims[ty.dims.len() - 1];
    assert_eq!(rows % 8, 0, "libtpu makes other numbers of rows a dot over masked rows");
    assert!(sizes.iter().all(|&size| size >= 0.0) && sizes.iter().sum::<f64>() <= rows as f64, "groups {sizes:?}");
    let is_by_row = op.mode != RaggedMode::Contracted;
    let mut result = vec![if is_by_row { f64::NAN } else { 0.0 }; ty.element_count()];
    let mut row = 0;
    for (group, &size) in sizes.iter().enumerate() {
        for row in row..row + size as usize {
            for column in 0..columns {
                let products = (0..inner).map(|k| match op.mode {
                    RaggedMode::Rows => lhs[row * inner + k] * rhs[(group * inner + k) * columns + column],
                    RaggedMode::Transposed => lhs[row * inner + k] * rhs[(group * columns + column) * inner + k],
                    RaggedMode::Contracted => 0.0,
                });
                let sum: f64 = products.sum();
                match is_by_row {
                    true => result[row * columns + column] = sum,
                    false => (0..inner).for_each(|k| {
                        let product = lhs[row * inner + k] * rhs[row * columns + column];
                        result[(group * inner + k) * columns + column] += product;
                    }),
                }
            }
        }
        row += size as usize;
    }
    Literal::from_fn(ty.clone(), |index| result[index])
}
