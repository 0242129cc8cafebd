//! Differentiation over the IR: reverse mode, forward mode, and transposes of linear functions.
//!
//! Reverse mode takes two walks. [`Tape::record`] copies the graph forwards into a builder, and lets ops with regions
//! leave behind the values that their backward pass needs: a scan stacks residuals, a checkpoint notes what its policy
//! keeps (`keep.rs`). [`Tape::pullback`] then walks the graph backwards and asks each op's `vjp` rule for the
//! cotangents of its operands. Both walks only append nodes, so differentiating the result again gives second
//! derivatives.
//!
//! Forward mode ([`jvp`]) takes one walk, which carries tangents along and keeps nothing. The two may be mixed: the
//! forward-mode derivative of a gradient is the product of a Hessian with a vector. [`transpose`] is reverse mode for a
//! function that is checked to be linear, without a point to take it at.
//!
//! A cotangent or tangent is absent rather than zero where none flows, so nothing is computed for paths that do not
//! matter.
//!
//! The bodies of scans, branches and calls are differentiated as one joint graph which is then cut in two
//! (`reverse/split.rs`): the values that the backward half reads from the forward half are the residuals.
//!
//! The backward half of a whole function can be cut once more ([`Halves::split`], `weight_split.rs`): the cotangents of
//! its inputs now, those of its weights later, as pipelines without bubbles want them.
//!
//! | region op | reverse mode | forward mode |
//! |---|---|---|
//! | scan | residuals stacked; a scan the other way round | tangents carried and stacked like values |
//! | while | none: how often it runs is not known | tangents carried |
//! | cond | residuals of all branches share slots by type | all branches return the tangents that any has |
//! | call | both halves made once for calls alike | made once for calls alike |
//! | checkpoint | recorded again from what the policy keeps | a checkpoint of values and tangents |
//! | custom VJP | the hand-written rule | the transpose of the hand-written rule |

mod activity;
mod min_cut;
mod error;
mod forward;
mod forward_regions;
mod keep;
mod linear;
pub(crate) mod max_flow;
mod reverse;
mod weight_split;

pub use error::GradientError;
pub use forward::jvp;
pub use linear::{check as check_linear, transpose};
pub(crate) use reverse::gradient_of_first;
pub use reverse::{Halves, Tape, value_and_grad};
pub use weight_split::{HeldRead, KeptBytes, SplitBackward};
