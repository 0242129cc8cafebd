//! The functions that calls share: each is differentiated once for all calls that ask the same of it.

use std::rc::Rc;
use std::sync::Arc;

use super::residual::Residual;
use crate::autodiff::keep::Copies;
use crate::ir::{Graph, Memo};
use crate::ops::RematPolicy;

/// A called function, differentiated.
#[derive(Debug)]
pub(super) struct CallHalves {
    pub(super) forward: Arc<Graph>,
    pub(super) backward: Arc<Graph>,
    pub(super) residuals: Vec<Residual>,
    /// Operands that get a cotangent.
    pub(super) inputs: Vec<usize>,
}

/// Functions differentiated or copied so far: calls that agree in all that the outcome depends on share it.
#[derive(Clone, Debug, Default)]
pub(super) struct CallCache {
    pub(super) halves: Rc<Memo<HalvesKey, Rc<CallHalves>>>,
    pub(super) copies: Copies,
}

/// The activity of a function's inputs, the demand for its outputs, and the policies by which values inside have been
/// kept.
pub(super) type HalvesKey = (Vec<bool>, Vec<bool>, Vec<RematPolicy>);
