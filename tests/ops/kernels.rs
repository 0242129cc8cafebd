//! Calls of kernels, each with a factor rule of another kind, against plain loops.

use std::sync::LazyLock;

use meshloom::ir::DType::{self, *};
use meshloom::ops::*;
use meshloom::trace::{self, Kernel, ResultDType};

use crate::harness::*;

const EPSILON: f64 = 0.1;

fn row_of(w: trace::Tensor, x: trace::Tensor) -> trace::Tensor {
    w.expand(-2).broadcast_to(x.dims())
}

fn column_of(s: trace::Tensor, x: trace::Tensor) -> trace::Tensor {
    s.expand(-1).broadcast_to(x.dims())
}

/// `y = x s w` with `s = (mean(x²) + ε)^(-1/2)` of each row; returns both. The gradient is written by hand. A device
/// needs whole rows.
static SCALED: LazyLock<KernelRef> = LazyLock::new(|| {
    let kernel = Kernel::new("test_ops_scaled", "...td,...d->...td,...t | whole d", |operands| {
        let (x, w) = (operands[0], operands[1]);
        let s = (x.square().mean(-1) + EPSILON).rsqrt();
        vec![x * column_of(s, x) * row_of(w, x), s]
    });
    let kernel = kernel.expect("a rule").with_gradient(|operands, results, cotangents| {
        let (x, w, s) = (operands[0], operands[1], results[1]);
        let (y_ct, s_ct) = (cotangents[0], cotangents[1]);
        let direct = y_ct * row_of(w, x);
        // Through `s`, whose derivative is `-s³ x / d`.
        let of_s = (direct * x).sum(-1) + s_ct;
        let slope = of_s * s * s * s * (-1.0 / x.dim(-1) as f64);
        let x_ct = direct * column_of(s, x) + x * column_of(slope, x);
        let w_ct = (y_ct * x * column_of(s, x)).sum(-2);
        vec![Some(x_ct), Some(w_ct)]
    });
    kernel.register().expect("a name of its own")
});

/// Sums of rows times a vector, and sums of squares of columns: each result is a sum over what the other has. The
/// gradient is that of the definition.
static SUMS: LazyLock<KernelRef> = LazyLock::new(|| {
    let kernel = Kernel::new("test_ops_sums", "...td,...d->...t,...d | sum t d", |operands| {
        let (x, w) = (operands[0], operands[1]);
        vec![(x * row_of(w, x)).sum(-1), x.square().sum(-2)]
    });
    kernel.expect("a rule").register().expect("a name of its own")
});

/// The largest of each row, in as many columns as the second operand has rows.
static LARGEST: LazyLock<KernelRef> = LazyLock::new(|| {
    let kernel = Kernel::new("test_ops_largest", "...td,...u1->...tu | max d", |operands| {
        let (x, u) = (operands[0], operands[1]);
        let dims = [&x.dims()[..x.rank() - 1], &u.dims()[u.rank() - 2..u.rank() - 1]].concat();
        let of_rows = x.max(-1).expand(-1).broadcast_to(&dims);
        let of_columns = u.sum(-1).expand(-2).broadcast_to(&dims);
        vec![of_rows + of_columns.convert(x.dtype()) * 0.0]
    });
    let kernel = kernel.expect("a rule").with_result_dtypes([ResultDType::OfOperand(0)]);
    kernel.register().expect("a name of its own")
});

fn call(kernel: &LazyLock<KernelRef>) -> KernelCall {
    KernelCall { kernel: (*kernel).clone() }
}

fn sum_over(of: usize, term: impl Fn(usize) -> f64) -> f64 {
    (0..of).map(term).sum()
}

fn with_last(index: &[usize], last: usize) -> Vec<usize> {
    [index, &[last]].concat()
}

fn scaled(x: &Tensor, w: &Tensor) -> [Tensor; 2] {
    let (dtype, rank, width) = (x.ty.dtype, x.dims().len(), x.dims()[x.dims().len() - 1]);
    let scale =
        |row: &[usize]| (sum_over(width, |d| x.at(&with_last(row, d)).powi(2)) / width as f64 + EPSILON).sqrt().recip();
    let y = Tensor::from_fn(dtype, x.dims(), |index| {
        let weight = w.at(&with_last(&index[..rank - 2], index[rank - 1]));
        x.at(index) * scale(&index[..rank - 1]) * weight
    });
    [y, Tensor::from_fn(dtype, &x.dims()[..rank - 1], |row| scale(row))]
}

fn sums(x: &Tensor, w: &Tensor) -> [Tensor; 2] {
    let (dtype, rank) = (x.ty.dtype, x.dims().len());
    let (rows, width) = (x.dims()[rank - 2], x.dims()[rank - 1]);
    let of_rows = Tensor::from_fn(dtype, &x.dims()[..rank - 1], |row| {
        sum_over(width, |d| x.at(&with_last(row, d)) * w.at(&with_last(&row[..rank - 2], d)))
    });
    let of_columns = Tensor::from_fn(dtype, w.dims(), |index| {
        let (leading, d) = (&index[..rank - 2], index[rank - 2]);
        sum_over(rows, |t| x.at(&[leading, &[t, d]].concat()).powi(2))
    });
    [of_rows, of_columns]
}

pub fn kernel_call() -> Entry {
    let operands = |dtype: DType, dims: &[usize]| {
        let of_w = [&dims[..dims.len() - 2], &dims[dims.len() - 1..]].concat();
        [random(dtype, dims, -2.0, 2.0), random(dtype, &of_w, -1.5, 1.5)]
    };
    let mut entry = Entry::new("kernel_call")
        .accept(call(&SCALED), "f32[4,6] f32[6] -> f32[4,6] f32[4]")
        .accept(call(&SCALED), "bf16[2,3,4,6] bf16[2,3,6] -> bf16[2,3,4,6] bf16[2,3,4]")
        .accept(call(&SUMS), "f64[3,4,6] f64[3,6] -> f64[3,4] f64[3,6]")
        .accept(call(&LARGEST), "f32[4,6] s32[5,1] -> f32[4,5]")
        .reject(call(&SCALED), "f32[4,6]", "expected 2 operands, found 1")
        .reject(call(&SCALED), "f32[6] f32[6]", "operand 0 must have at least 2 dimensions, found 1")
        .reject(call(&SCALED), "f32[4,6] f32[5]", "dimension 0 of operand 1 must have size 6, found 5")
        .reject(
            call(&SCALED),
            "f32[3,4,6] f32[2,6]",
            "operand 1 of type f32[2,6] has the leading dimensions [2] for `...`",
        )
        .reject(call(&LARGEST), "f32[4,6] s32[5,2]", "dimension 1 of operand 1 must have size 1, found 2");
    for dims in [&[4, 6][..], &[1, 1], &[2, 2, 8], &[2, 4, 3, 5]] {
        let [x, w] = operands(F32, dims);
        entry = entry.run(call(&SCALED), &[x.clone(), w.clone()], scaled(&x, &w), 1e-5).run(
            call(&SUMS),
            &[x.clone(), w.clone()],
            sums(&x, &w),
            1e-5,
        );
    }
    for dims in [&[3, 4][..], &[2, 2, 3]] {
        entry = entry.gradient(call(&SCALED), &operands(F64, dims)).gradient(call(&SUMS), &operands(F64, dims));
    }
    let (x, u) = (distinct(F32, &[2, 4, 6]), Tensor::from_fn(S32, &[2, 5, 1], |index| index[1] as f64));
    let largest = Tensor::from_fn(F32, &[2, 4, 5], |index| {
        (0..6).map(|d| x.at(&[index[0], index[1], d])).fold(f64::NEG_INFINITY, f64::max)
    });
    entry.run(call(&LARGEST), &[x, u], [largest], 0.0).with_vjp_snapshot()
}
