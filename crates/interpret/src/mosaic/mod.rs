//! An interpreter of kernels: it reads the text that goes to the chip, and computes what the chip would compute.
//!
//! It knows the ops that [`Body`](meshloom_mosaic::text::Body) writes, and refuses others. It makes visible what a
//! program may not rely on: results, blocks of results and scratch memory are NaN until they are written; a block of a
//! result is NaN again when the grid returns to it after another; and scratch memory is NaN at each new index of a
//! parallel axis, as another core may run it. Blocks and scalars out of range are errors, and so are integers that
//! overflow.
//!
//! Numbers are computed in `f64` and rounded to the type of each value: `f32` or `bf16`.

mod grid;
mod ops;
mod parse;
mod value;

use meshloom::hlo::{DType, TensorType};
use meshloom_mosaic::Kernel;

pub use value::Array;

/// The reason why a kernel could not be run.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// The text is not that of a kernel.
    #[error("line {line}: expected {expected}, found `{found}`")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The text that should be there.
        expected: String,
        /// The text that is there.
        found: String,
    },
    /// An op is unknown, or does not fit its operands.
    #[error("line {line}: {op}: {problem}")]
    Op {
        /// The line, from 1.
        line: usize,
        /// The name of the op.
        op: String,
        /// The problem.
        problem: String,
    },
    /// An operand or the grid does not fit the kernel.
    #[error("{0}")]
    Call(String),
}

meshloom::hlo::debug_is_message!(InterpretError);

/// Runs the module of a kernel on whole arrays. Operands are the counts of a grid, prefetched scalars, then inputs.
/// Elements that no step writes are NaN.
///
/// # Errors
/// [`InterpretError`] if the text is not understood, does not fit the operands, or leaves its blocks.
pub fn run(text: &str, operands: &[Array], results: &[TensorType]) -> Result<Vec<Array>, InterpretError> {
    grid::run(&parse::module(text)?, operands, results)
}

/// Runs a kernel, see [`run`].
///
/// # Errors
/// As for [`run`]; and if an operand is not of the kernel's type.
pub fn run_kernel(kernel: &Kernel, operands: &[Array]) -> Result<Vec<Array>, InterpretError> {
    if operands.len() != kernel.operands.len() {
        let problem = format!("{} operands, expected {}", operands.len(), kernel.operands.len());
        return Err(InterpretError::Call(problem));
    }
    for (expected, actual) in kernel.operands.iter().zip(operands) {
        if expected.ty != *actual.ty() {
            let show = |ty: &TensorType| format!("{}{:?}", ty.dtype.name(), ty.dims);
            let (expected_type, actual) = (show(&expected.ty), show(actual.ty()));
            return Err(InterpretError::Call(format!("{} is {actual}, expected {expected_type}", expected.name)));
        }
    }
    run(&kernel.text, operands, &kernel.results)
}

/// Rounds a number to a type of HLO, if kernels have it.
fn rounded(dtype: DType, number: f64) -> f64 {
    match dtype {
        DType::BF16 => half::bf16::from_f64(number).to_f64(),
        DType::F32 => f64::from(number as f32),
        _ => number,
    }
}
