//! An interpreter of kernels: it reads the text that goes to the chip, and computes what the chip would compute.
//!
//! It knows the ops that [`Body`](meshloom_mosaic::text::Body) writes, and panics at others. It makes visible what a
//! program may not rely on: results, blocks of results and scratch memory are NaN until they are written; a block of a
//! result is NaN again when the grid returns to it after another; and scratch memory is NaN at each new index of a
//! parallel axis, as another core may run it. It panics at blocks and scalars out of range, and at integers that
//! overflow.
//!
//! Numbers are computed in `f64` and rounded to the type of each value: `f32` or `bf16`.

mod grid;
mod ops;
mod parse;
mod value;

use meshloom::hlo::TensorType;
use meshloom_mosaic::Kernel;

pub use value::Array;

/// Runs the module of a kernel on whole arrays. Operands are the counts of a grid, prefetched scalars, then inputs.
/// Elements that no step writes are NaN.
pub fn run(text: &str, operands: &[Array], results: &[TensorType]) -> Vec<Array> {
    grid::run(&parse::functions(text), operands, results)
}

/// Runs a kernel on operands of its types, see [`run`].
pub fn run_kernel(kernel: &Kernel, operands: &[Array]) -> Vec<Array> {
    let expected = kernel.operands.iter().map(|operand| &operand.ty);
    assert!(expected.eq(operands.iter().map(Array::ty)), "expected {:?}", kernel.operands);
    run(&kernel.text, operands, &kernel.results)
}
