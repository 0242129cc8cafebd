//! Stochastic gradient descent, with momentum and Nesterov's.

use std::panic::Location;

use super::adamw::moment;
use super::expect_one_for_each;
use crate::ir::DType;
use crate::trace::{MapTree, Operand, Param, Tensor, Tree, composite, refill};

/// SGD's constants.
///
/// With a velocity `v`, zero at first, momentum `mu` and gradient `g`, in `f32`:
///
/// ```text
/// v := mu * v + g
/// p := p - rate * (if nesterov { g + mu * v } else { v })
/// ```
///
/// So the velocity is not scaled by the rate, and the gradient comes into it whole (no dampening). These are the
/// semantics of PyTorch's `torch.optim.SGD(momentum, nesterov)` and of optax's `sgd(momentum, nesterov)`. Source of the
/// second form: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The share of the velocity that is kept, mu.
    pub momentum: f64,
    /// Whether a step looks ahead along the velocity.
    pub nesterov: bool,
}

impl Sgd {
    /// The velocity's declaration: like the parameters, in `f32`, zero at first.
    pub fn state<P: Tree<Leaf = Param> + MapTree<Param, Mapped = P>>(&self, params: &P) -> P {
        params.map(|_, param| moment(param))
    }

    /// One step: new parameters, of the types that they have, and velocities, `f32`. `rate` is an `f32` scalar, such as
    /// that of a [schedule](super::LearningRate), or a number.
    /// All trees have as many leaves as the parameters; else the trace notes an error.
    #[track_caller]
    pub fn update<P: Tree<Leaf = Tensor>>(
        &self,
        params: &P,
        gradients: &P,
        velocity: &P,
        rate: impl Operand,
    ) -> (P, P) {
        let place = Location::caller();
        let lists = [("gradients", gradients.leaves().len()), ("velocities", velocity.leaves().len())];
        expect_one_for_each("SGD", params.leaves().len(), &lists, place);
        composite(place, || {
            let leaves = params.leaves().into_iter().zip(gradients.leaves()).zip(velocity.leaves());
            let (mut new_params, mut new_velocity) = (Vec::new(), Vec::new());
            for ((param, gradient), velocity) in leaves {
                let gradient = gradient.convert(DType::F32);
                let velocity = velocity * self.momentum + gradient;
                let change = if self.nesterov { gradient + velocity * self.momentum } else { velocity };
                new_params.push((param.convert(DType::F32) - change * rate).convert(param.dtype()));
                new_velocity.push(velocity);
            }
            let refilled = |leaves: Vec<Tensor>| refill(params, &mut leaves.into_iter());
            (refilled(new_params), refilled(new_velocity))
        })
    }
}
