//! Kernels of ours for TPU, written as Mosaic text.

mod attention;
mod grouped;

use meshloom_mosaic::{CALL_TARGET, Kernel, KernelError};

pub(super) use attention::{attention, attention_gradient};
pub(super) use grouped::ragged_dot;

use crate::ir::Literal;
use crate::ops::CustomCall;
use crate::trace::{Tensor, TraceError, constant, custom_call};

fn run(kernel: &Kernel, operands: &[Tensor]) -> Vec<Tensor> {
    let call = CustomCall { config: kernel.config(), ..CustomCall::new(CALL_TARGET, kernel.results.clone()) };
    custom_call(call, operands)
}

/// Prefetched scalars that are known: a constant `s32`.
fn list(numbers: &[i32]) -> Tensor {
    constant(Literal::vector(numbers))
}

/// Returns the error of a kernel that a key of run configs asks for and that cannot be written.
fn refused(key: &str, error: &KernelError) -> TraceError {
    TraceError::other(format!("{key} = \"mosaic\": {error}; choose another with {key}"))
}
