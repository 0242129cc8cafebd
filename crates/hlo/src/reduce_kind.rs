//! The ways of combining elements, which reductions and collectives share.

use crate::{DType, words};

words! {
    /// How two elements become one. Its name is HLO's opcode.
    #[derive(PartialOrd, Ord)]
    pub enum ReduceKind {
        /// Logical or bitwise and.
        And = "and",
        /// Maximum; NaN if any element is.
        Max = "maximum",
        /// Minimum; NaN if any element is.
        Min = "minimum",
        /// Logical or bitwise or.
        Or = "or",
        /// Product.
        Prod = "multiply",
        /// Sum.
        Sum = "add",
    }
}

impl ReduceKind {
    /// The element that changes nothing.
    pub fn identity(self, dtype: DType) -> f64 {
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
