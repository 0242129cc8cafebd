//! Implementations that are written as functions of tensors.

use crate::ir::TensorType;
use crate::ops::KernelImplementation;
use crate::trace::{Function, Tensor, TensorSpec, TraceError};

/// Traces `f` over operands of these types as the graph `graph_name`, which is the implementation `name`.
///
/// # Errors
/// An operation in `f` refuses its operands.
pub(super) fn traced(
    name: &str,
    graph_name: &str,
    how: String,
    types: &[TensorType],
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Result<KernelImplementation, TraceError> {
    let specs: Vec<TensorSpec> = types.iter().map(|ty| TensorSpec::new(ty.dtype, &ty.dims[..])).collect();
    let function = Function::trace(graph_name, specs, |operands: Vec<Tensor>| f(&operands))?;
    Ok(KernelImplementation { name: name.to_owned(), how, graph: (**function.graph()).clone() })
}
