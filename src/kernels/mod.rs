//! Kernels: the choice of an implementation for each op that has several, and the implementations themselves.
//!
//! [`Attention`](crate::ops::Attention), its gradient and [`RaggedDot`](crate::ops::RaggedDot) stay single nodes until
//! a program is partitioned, so that every pass sees an op with rules. Then [`expand`] puts the implementation in their
//! place, for the shapes of one device: a loop over blocks, or a call of a kernel that the plugin compiles. An op that
//! remains is emitted in its plain form.
//!
//! Where a loop over blocks is chosen and one block holds the operands, the plain form takes its place.
//!
//! | op | implementation | on | what it holds |
//! |---|---|---|---|
//! | attention | [`AttentionKernel::Plain`] | every platform | all scores, `[queries, keys]` |
//! | attention | [`AttentionKernel::Blockwise`] | every platform | the scores of a block |
//! | attention | [`AttentionKernel::Mosaic`] | TPU | nothing beside its operands and results |
//! | attention | [`AttentionKernel::Cudnn`] | CUDA | a workspace that XLA sizes |
//! | grouped product | [`ExpertsKernel::Plain`] | every platform | a masked copy of the rows for each group |
//! | grouped product | [`ExpertsKernel::Blockwise`] | every platform | a block of rows |
//! | grouped product | [`ExpertsKernel::Mosaic`] | TPU | nothing beside its operands and results |
//! | grouped product | [`ExpertsKernel::RaggedDot`] | TPU | rows, padded to whole tiles |
//!
//! The user's own kernels ([`Kernel`](crate::trace::Kernel)) state their implementations themselves.

mod blockwise;
mod cudnn;
mod expand;
mod grouped;
mod mosaic;
mod pad;
mod ragged;
mod block_mask;
mod table;
mod traced;
mod nonzero;

#[doc(hidden)]
pub use cudnn::result_with_flow;
pub use expand::{KernelUse, expand};
pub use table::{AttentionKernel, Blocks, ExpertsKernel, Kernels, OwnKernels};
