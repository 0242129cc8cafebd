//! What the rules of ops with regions ask of the walks over graphs.
//!
//! To differentiate such an op is to differentiate its bodies. The walks (`tape.rs`) stand above the rules, and hand themselves
//! down to them as a [`Recorder`].

use std::fmt::Debug;

use super::keep::Kept;
use crate::ir::{Graph, GraphBuilder, OpError, Value, ValueMap};

/// Records graphs.
pub(super) trait Recorder {
    /// Copies `graph` into the builder, where `map` holds the inputs, in such a way that cotangents can be pulled back
    /// through it: from outputs marked wanted to inputs marked active. What checkpoints have kept is not computed again.
    fn record<'g>(
        &self,
        builder: &mut GraphBuilder,
        graph: &'g Graph,
        map: ValueMap,
        active: &[bool],
        wanted: &[bool],
        kept: &[Kept],
    ) -> Result<Box<dyn Recorded + 'g>, OpError>;
}

/// A graph that has been recorded.
pub(super) trait Recorded: Debug {
    /// What the graph's outputs are in the builder.
    fn outputs(&self) -> Vec<Value>;

    /// From one cotangent for each output (`None` for zero) to one for each input.
    fn pullback(&self, builder: &mut GraphBuilder, cotangents: &[Option<Value>])
    -> Result<Vec<Option<Value>>, OpError>;
}
