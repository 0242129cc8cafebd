//! The ways of combining elements, which reductions, collectives and factor rules share.

use crate::ir::DType;

/// The way in which [`Reduce`](super::Reduce) and [`AllReduce`](super::AllReduce) combine elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceKind {
    /// Logical or bitwise and.
    And,
    /// Maximum; NaN if any element is.
    Max,
    /// Minimum; NaN if any element is.
    Min,
    /// Logical or bitwise or.
    Or,
    /// Product.
    Prod,
    /// Sum.
    Sum,
}

impl ReduceKind {
    /// Every kind.
    pub const ALL: [ReduceKind; 6] =
        [ReduceKind::And, ReduceKind::Max, ReduceKind::Min, ReduceKind::Or, ReduceKind::Prod, ReduceKind::Sum];

    /// The element that changes nothing.
    pub(crate) fn identity(self, dtype: DType) -> f64 {
        match self {
            ReduceKind::Or | ReduceKind::Sum => 0.0,
            ReduceKind::Prod => 1.0,
            ReduceKind::Max => dtype.lowest(),
            ReduceKind::Min => dtype.highest(),
            // All bits set: -1 for signed types, the largest value for the others.
            ReduceKind::And if dtype.is_signed_integer() => -1.0,
            ReduceKind::And => dtype.highest(),
        }
    }
}
