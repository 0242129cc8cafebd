//! The forms in which reduce-scatters are emitted.

use meshloom::ir::Axes;
use meshloom::ops::{Group, ReduceScatter, ReduceScatterForm};

#[test]
fn forms_of_single_operands() {
    let form = |dims: &[usize], dim| {
        let group = Group { axes: Axes::default(), size: 4 };
        ReduceScatter { group, dim }.form_of_one(dims)
    };
    let merged = |dims: &[usize], dim| ReduceScatterForm::Merged { dims: dims.to_vec(), dim };
    let cases = [
        (form(&[8, 32, 256], 2), merged(&[256, 256], 1)),
        (form(&[256, 8, 32], 0), merged(&[256, 256], 0)),
        (form(&[8, 256, 256], 1), merged(&[8, 256, 256], 1)),
        (form(&[8, 256, 32], 1), ReduceScatterForm::Rows { columns: 1024 }),
        (form(&[1 << 19], 0), ReduceScatterForm::Rows { columns: 8192 }),
        (form(&[4096, 4096], 0), ReduceScatterForm::Rows { columns: 1 << 18 }),
        (form(&[4096, 4096], 1), merged(&[4096, 4096], 1)),
        (form(&[4096, 7168], 0), merged(&[4096, 7168], 0)),
        (form(&[1024, 512], 0), merged(&[1024, 512], 0)),
        (form(&[4096, 128256], 0), ReduceScatterForm::Merged { dims: vec![4096, 501, 256], dim: 0 }),
        (form(&[256128, 1152], 1), ReduceScatterForm::Rows { columns: 4610304 }),
        (form(&[256000, 1152], 1), merged(&[256000, 1152], 1)),
        (form(&[256128, 1024], 1), merged(&[256128, 1024], 1)),
        (form(&[65536, 128], 0), ReduceScatterForm::Rows { columns: 1 << 17 }),
        // One row for each device.
        (form(&[4, 1 << 22], 0), ReduceScatterForm::Rows { columns: 1 << 18 }),
        // Too small for rows.
        (form(&[12], 0), merged(&[12], 0)),
        (form(&[2, 8, 2, 3], 1), merged(&[2, 8, 6], 1)),
        (form(&[1, 128, 2, 64], 1), merged(&[128, 128], 0)),
        (form(&[3, 8, 0], 1), merged(&[3, 8, 0], 1)),
    ];
    for (index, (found, expected)) in cases.into_iter().enumerate() {
        assert_eq!(found, expected, "case {index}");
    }
}
