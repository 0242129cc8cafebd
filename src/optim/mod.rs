//! Optimizers and schedules, written as ordinary users of [`trace`](crate::trace).
//!
//! An optimizer declares its state for a tree of parameters, and maps parameters, gradients and state to new ones:
//!
//! ```
//! use meshloom::ir::DType::{F32, S32};
//! use meshloom::optim::{AdamW, Decay, LearningRate};
//! use meshloom::trace::{Function, Init, Param, TensorSpec, grad};
//!
//! let params = (Param::new(F32, [8, 4], &["embed", "mlp"], Init::Normal(0.1)),);
//! let adamw = AdamW::default();
//! let schedule = LearningRate { peak: 1e-3, warmup: 10, steps: 100, floor: 0.1, decay: Decay::Cosine };
//! let state = adamw.state(&params);
//! let inputs = (&params, &state, TensorSpec::new(S32, []));
//! let function = Function::trace("update", inputs, |(weights, state, step)| {
//!     let gradients = grad(weights, |(weight,)| weight.square().sum(..));
//!     adamw.update(&params, &weights, &gradients, &state, step, schedule.rate(step))
//! })?;
//! # Ok::<(), meshloom::Error>(())
//! ```

mod adamw;
mod muon;
mod optimizer;
mod schedule;
mod sgd;
mod step;

pub use adamw::{AdamW, AdamWState, clip_by_global_norm, global_norm};
pub use muon::{Muon, MuonState};
pub use optimizer::{Optimizer, OptimizerState};
pub use schedule::{Decay, LearningRate};
pub use sgd::Sgd;
pub use step::UpdateStep;

use crate::trace::{CallSite, TraceErrorKind, fail};
use meshloom_hlo::message::counted;

/// Notes an error unless there are as many tensors in each list as there are parameters.
pub(crate) fn expect_one_for_each(function: &str, count: usize, lists: &[(&str, usize)], place: CallSite) {
    for (what, found) in lists.iter().filter(|(_, found)| *found != count) {
        let what = format!("the {what} of {function}");
        let expected = format!("one for each of {}", counted(count, "parameter"));
        fail(TraceErrorKind::Mismatch { what, expected, found: found.to_string() }, place);
    }
}
