//! The tracing language: ordinary Rust over [`Tensor`] handles becomes a graph.
//!
//! ```
//! use meshloom::trace::{Function, TensorSpec, value_and_grad};
//! use meshloom::ir::DType::F32;
//!
//! # fn main() -> Result<(), meshloom::Error> {
//! let (x, w) = (TensorSpec::new(F32, [4, 8]), TensorSpec::new(F32, [8, 2]));
//! let function = Function::trace("least_squares", (x, w), |(x, w)| {
//!     value_and_grad(w, |w| x.matmul(w).tanh().square().mean(..))
//! })?;
//! println!("{}", function.graph());
//! # Ok(())
//! # }
//! ```
//!
//! Rules of the language:
//! - **Shapes are strict.** Elementwise operators take two tensors of the same dimensions, or one without dimensions
//!   (or a Rust number), which is repeated. Anything else is broadcast explicitly ([`Tensor::broadcast_to`],
//!   [`Tensor::broadcast_like`]). Element types never convert by themselves, except that a Rust number takes the
//!   tensor's. A number that the type cannot hold, such as 0.5 in an `s32`, is an error, never rounded to an integer.
//! - **Errors come at the end.** A wrong operation poisons its result; [`Function::trace`] returns the first error,
//!   with the source line and scope of the call that was wrong.
//! - **Closures capture.** The closures of [`scan`], [`while_loop`], [`cond`], [`checkpoint`], [`value_and_grad`],
//!   [`vmap`] may use outer tensors.
//! - **Axes count from the front (0, 1, ..) or from the back (-1, -2, ..).**

mod batching;
mod context;
mod control;
mod einsum;
mod error;
mod function;
mod functions;
mod graphs;
mod handle;
mod indexing;
mod init;
mod kernel;
mod layer_path;
mod library;
mod operators;
mod random;
mod tensor;
mod transform;
mod tree;
mod windows;

pub use batching::{MappedAxes, VmapOptions, vmap, vmap_with};
pub(crate) use context::{CallSite, unreachable_body};
pub use context::{composite, fail_internal};
pub(crate) use control::{Branch, change_if, switch_between, while_at_most};
pub use control::{
    ScanOptions, checkpoint, cond, custom_vjp, fori_loop, map, map_parallel, scan, scan_with, switch, while_loop,
};
pub use einsum::{DotOptions, einsum, einsum_with};
pub use error::{InitError, TraceError, TraceErrorKind, TransformError};
pub(crate) use error::{called, called_all};
pub use function::{Function, StepFunction};
pub(crate) use graphs::{
    barrier, differentiate, fail, graph_at, graph_of, inline, label_from, origin_of, split_backward,
};
pub use handle::Tensor;
pub use indexing::At;
pub use init::{first_values, initialize};
pub use kernel::{Kernel, KernelBody, ResultDType};
pub use layer_path::{LayerNumbers, LayerPath};
pub(crate) use library::ragged_dot_by;
pub use library::{attention_over, causal_depthwise_convolution, convolution, custom_call, ragged_dot, sort_together};
pub use operators::{Broadcast, KeepDims, Operand};
pub(crate) use random::words_of;
pub use random::{Fold, Key};
pub use tensor::{
    Axes, Index, Indices, Init, MatrixDims, Param, TensorSpec, Update, arange, concatenate, constant, full, iota,
    scope, stack, zeros,
};
pub(crate) use transform::value_and_grad_at;
pub use transform::{grad, jvp, linear_transpose, linearize, value_and_grad, value_and_grad_aux, vjp};
pub(crate) use tree::refill;
pub use tree::{Inputs, LeafCountError, MapTree, Path, PathPart, Specs, Subtree, TensorTree, Tree};
