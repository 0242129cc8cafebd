//! The optimizers among which a run chooses.

use std::panic::Location;

use super::adamw::{AdamW, AdamWState};
use super::muon::{Muon, MuonState};
use super::step::UpdateStep;
use crate::trace::{MapTree, Operand, Param, Tensor, TraceErrorKind, Tree, fail};

/// An optimizer.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimizer {
    /// AdamW for all parameters.
    AdamW(AdamW),
    /// Muon for parameters that are matrices, beside AdamW for the others.
    Muon(Muon),
}

crate::tree! {
    /// The state of an optimizer, for parameters of the tree type `P` with leaves `T`. Paths are those of the variant:
    /// `first.embedding`, `momentum.layers.mlp.up`, `others.first.embedding`.
    pub enum OptimizerState<T, P> {
        /// The state of AdamW.
        AdamW(AdamWState<P>),
        /// The state of Muon.
        Muon(MuonState<T>),
    }
}

impl Optimizer {
    /// The constants of AdamW, for all parameters or for those that are not matrices.
    pub fn adamw(&self) -> &AdamW {
        match self {
            Optimizer::AdamW(adamw) => adamw,
            Optimizer::Muon(muon) => &muon.adamw,
        }
    }

    /// The state's declaration.
    pub fn state<P: Tree<Leaf = Param> + MapTree<Param, Mapped = P>>(&self, params: &P) -> OptimizerState<Param, P> {
        match self {
            Optimizer::AdamW(adamw) => OptimizerState::AdamW(adamw.state(params)),
            Optimizer::Muon(muon) => OptimizerState::Muon(muon.state(params)),
        }
    }

    /// One step, as [`AdamW::update`] and [`Muon::update`]. The state must be this optimizer's; else the trace notes an
    /// error.
    #[track_caller]
    pub fn update<P: Tree<Leaf = Tensor> + Clone>(
        &self,
        declared: &impl Tree<Leaf = Param>,
        (params, gradients): (&P, &P),
        state: &OptimizerState<Tensor, P>,
        step: impl Into<UpdateStep>,
        rate: impl Operand,
    ) -> (P, OptimizerState<Tensor, P>) {
        match (self, state) {
            (Optimizer::AdamW(adamw), OptimizerState::AdamW(state)) => {
                let (params, state) = adamw.update(declared, params, gradients, state, step, rate);
                (params, OptimizerState::AdamW(state))
            }
            (Optimizer::Muon(muon), OptimizerState::Muon(state)) => {
                let (params, state) = muon.update(declared, params, gradients, state, step, rate);
                (params, OptimizerState::Muon(state))
            }
            (_, state) => {
                let kind = TraceErrorKind::Mismatch {
                    what: "the optimizer's state".to_owned(),
                    expected: "the state that it declares".to_owned(),
                    found: "that of another optimizer".to_owned(),
                };
                fail(kind, Location::caller());
                (params.clone(), state.clone())
            }
        }
    }
}
