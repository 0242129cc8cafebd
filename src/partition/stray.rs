//! Exchanges that cannot stand where devices branch.

use std::fmt;

use super::fallback::write_place;
use crate::ir::Origin;

/// An exchange between devices that need not reach it together.
#[derive(Clone, Debug)]
pub struct Stray {
    /// Name of the collective.
    pub op: &'static str,
    /// Names of the mesh axes that it goes over.
    pub axes: Vec<String>,
    /// The reason why it cannot be there.
    pub reason: StrayReason,
    /// Names of the mesh axes along which devices branch.
    pub along: Vec<String>,
    /// The place in the user's program that it comes from.
    pub origin: Origin,
}

/// The reason why a collective cannot stand where devices branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayReason {
    /// Its groups have devices that take different branches.
    SpansBranches,
    /// It is a collective-permute, which waits for every device of the mesh.
    PermutesInBranch,
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, axes, along) = (self.op, self.axes.join(","), self.along.join(","));
        match self.reason {
            StrayReason::SpansBranches => write!(
                f,
                "{op} over {axes} is needed where devices branch by their place along {along}: those of one group \
                 would wait for others that never come; split nothing over {along} in there"
            )?,
            StrayReason::PermutesInBranch => write!(
                f,
                "{op} over {axes} is needed in a branch that devices take by their place along {along}: all devices \
                 would have to take part; split no dimension that has to be shifted or passed round in there"
            )?,
        }
        write_place(f, &self.origin, ";")
    }
}
