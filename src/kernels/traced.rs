//! Implementations of kernels are written as functions of tensors, and describe how they work: both steps are here.

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

/// Describes, for people, how an implementation of attention goes over pairs of blocks, and how many it computes where
/// that is known.
pub(super) fn describe_pairs_of_blocks(
    [queries, keys]: [usize; 2],
    counts: [usize; 2],
    known: Option<usize>,
) -> String {
    let all = counts[0] * counts[1];
    match known {
        Some(known) => format!("blocks of {queries} queries and {keys} keys, {known} of {all} pairs"),
        None => format!("blocks of {queries} queries and {keys} keys, those of {all} pairs that data say"),
    }
}
