//! Matrix products by groups of rows, in plain loops of `f64`.

use meshloom::ir::{Literal, TensorType};
use meshloom::ops::{RaggedDot, RaggedMode};

use super::number::packed;

/// Computes `RaggedForm::Masked`, a dot over rows masked by group: rows of no group are zero, and groups end with the
/// rows.
pub fn masked(op: &RaggedDot, operands: &[&Literal], ty: &TensorType) -> Literal {
    let [lhs, rhs, groups] = [0, 1, 2].map(|index| operands[index].to_f64_vec());
    let sizes = op.sizes(&operands.iter().map(|operand| operand.ty()).collect::<Vec<_>>());
    let (rows, inner, columns) = (sizes.rows, sizes.inner, sizes.columns);
    let blocks: usize = sizes.blocks.iter().product();
    let mut result = vec![0.0; ty.element_count()];
    for block in 0..sizes.batch.iter().product::<usize>() * blocks {
        let own = &groups[block * sizes.groups..][..sizes.groups];
        let group_of_row = own.iter().enumerate().flat_map(|(group, &size)| vec![group; size.max(0.0) as usize]);
        for (row, group) in group_of_row.take(rows).enumerate() {
            let matrix = (block / blocks * sizes.groups + group) * inner * columns;
            for k in 0..inner {
                let x = lhs[(block * rows + row) * inner + k];
                for n in 0..columns {
                    let of_row = (block * rows + row) * columns + n;
                    match op.mode {
                        RaggedMode::Rows => result[of_row] += x * rhs[matrix + k * columns + n],
                        RaggedMode::Transposed => result[of_row] += x * rhs[matrix + n * inner + k],
                        RaggedMode::Contracted => result[matrix + k * columns + n] += x * rhs[of_row],
                    }
                }
            }
        }
    }
    packed(ty, &result)
}

/// Computes `RaggedForm::Instruction`, XLA's `ragged-dot`. Rows of no group are NaN: libtpu does not write them.
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
