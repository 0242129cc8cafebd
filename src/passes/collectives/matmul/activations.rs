//! The values of a local graph that the step computes, as opposed to those that it is given.

use crate::ops::{Analysis, Class, Op, ValueFacts};

/// Whether a value is the result of computation: of a product, a sum over a dimension, a lookup. A value that is made
/// of inputs alone by moving, converting and exchanging elements, as weights are, is known long before it is needed, so
/// its gather can be started early. The gather of a value that was computed a moment ago cannot.
pub(super) struct Computed;

impl Analysis for Computed {
    type Fact = bool;

    const CARRY_IS_ONE: bool = false;

    fn join(&self, one: bool, other: &bool) -> bool {
        one || *other
    }

    fn transfer(&self, op: &Op, operands: &[bool], result_count: usize) -> ValueFacts<bool> {
        let facts = op.facts();
        if facts.is_separate {
            return operands.into();
        }
        let computes = matches!(facts.class, Class::Kernel | Class::Fold);
        ValueFacts::from_elem(computes || operands.contains(&true), result_count)
    }
}
