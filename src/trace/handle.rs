//! The handle of a tensor. The other modules of `trace` implement its operations.

use crate::ir::Value;

/// A tensor of a trace under way: a small, copyable handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub(super) frame: u32,
    pub(super) value: Value,
}
