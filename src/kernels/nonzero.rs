//! The places where a vector is true.

use crate::ir::DType;
use crate::trace::{Tensor, arange, zeros};

/// The places where a vector is true, in order, and then zeros: `s32` of its length; and the number of these places.
///
/// The place of each true element goes to the first free position of the result. A sort would do as well, but XLA's
/// partitioners end the process over sorts of vectors in a manual region: on CPUs over a sort of several operands, on
/// TPUs over a sort of a single operand.
pub(super) fn nonzero(x: Tensor) -> (Tensor, Tensor) {
    let count = x.dim(0);
    let reach = x.convert(DType::S32).cumsum(0);
    let place = x.select(reach - 1.0, count as f64);
    let numbers = zeros(DType::S32, [count]).at(&[place]).set(arange(DType::S32, count));
    (numbers, reach.max(..))
}
