//! The step of an optimizer, which may be left out.

use crate::trace::Tensor;

/// The number of an optimizer's step, and whether the step is done at all.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// The number of steps done before, an integer scalar.
    pub number: Tensor,
    /// A `pred` scalar: where it is false, parameters and state stay as they are, to the bit. With `None` the step is
    /// done.
    pub only_if: Option<Tensor>,
}

impl From<Tensor> for UpdateStep {
    fn from(number: Tensor) -> UpdateStep {
        UpdateStep { number, only_if: None }
    }
}

impl UpdateStep {
    /// Returns the new value where the step is done, else the old one. State is chosen before parameters are made of
    /// it: otherwise old and new state would be needed at the same time, and neither could take the place of the other.
    pub fn kept(self, new: Tensor, old: Tensor) -> Tensor {
        self.only_if.map_or(new, |done| done.select(new, old))
    }
}
