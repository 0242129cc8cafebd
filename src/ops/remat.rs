//! Checkpoint policies: the intermediate values that are kept for the backward pass, and the memory they are kept in.

use super::{Class, Op};
use crate::ir::Name;

/// The intermediate values of its body that a checkpoint keeps for the backward pass; all others are computed again.
///
/// A policy looks into scans, calls, branches, hand-written forward rules and checkpoints inside the body: the values
/// that it keeps there are kept, whatever policy an inner checkpoint has for its own boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum RematPolicy {
    /// Everything: as if there were no checkpoint.
    #[default]
    None,
    /// Nothing but the operands.
    Full,
    /// Results of dots.
    Dots,
    /// Results of dots without batch dimensions: of weights with activations, but not of activations with each other.
    DotsWithoutBatch,
    /// Values given one of these names with `Tensor::named`.
    Save(Vec<Name>),
    /// Values given one of these names, in the host's memory.
    Offload(Vec<Name>),
    /// Everything but the values given one of these names, and but those that cost nothing to repeat (constants,
    /// broadcasts).
    SaveExcept(Vec<Name>),
    /// The values that any of these policies keeps. The first policy that keeps a value also chooses the memory.
    Any(Vec<RematPolicy>),
}

impl crate::ir::Attribute for RematPolicy {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        match self {
            RematPolicy::None | RematPolicy::Full | RematPolicy::Dots | RematPolicy::DotsWithoutBatch => {
                out.push(self.name());
            }
            RematPolicy::Save(names) | RematPolicy::Offload(names) | RematPolicy::SaveExcept(names) => {
                out.call(self.name(), names);
            }
            RematPolicy::Any(policies) => out.call(self.name(), policies),
        }
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<RematPolicy, crate::ir::GraphTextError> {
        let mut policy = reader.one_of(RematPolicy::KINDS.into_iter().map(|kind| (kind.name(), kind)))?;
        match &mut policy {
            RematPolicy::None | RematPolicy::Full | RematPolicy::Dots | RematPolicy::DotsWithoutBatch => {}
            RematPolicy::Save(names) | RematPolicy::Offload(names) | RematPolicy::SaveExcept(names) => {
                *names = reader.list("(", ")", crate::ir::Attribute::read)?;
            }
            RematPolicy::Any(policies) => *policies = reader.list("(", ")", RematPolicy::read)?,
        }
        Ok(policy)
    }
}

/// The memory where a value waits for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The device's own memory.
    Device,
    /// The host's memory.
    Host,
}

impl RematPolicy {
    /// One of each kind, with empty lists.
    pub const KINDS: [RematPolicy; 8] = [
        RematPolicy::None,
        RematPolicy::Full,
        RematPolicy::Dots,
        RematPolicy::DotsWithoutBatch,
        RematPolicy::Save(Vec::new()),
        RematPolicy::Offload(Vec::new()),
        RematPolicy::SaveExcept(Vec::new()),
        RematPolicy::Any(Vec::new()),
    ];

    /// The name of its kind, as in graphs as text and in run configs.
    pub fn name(&self) -> &'static str {
        match self {
            RematPolicy::None => "none",
            RematPolicy::Full => "full",
            RematPolicy::Dots => "dots",
            RematPolicy::DotsWithoutBatch => "dots-without-batch",
            RematPolicy::Save(_) => "save",
            RematPolicy::Offload(_) => "offload",
            RematPolicy::SaveExcept(_) => "save-except",
            RematPolicy::Any(_) => "any",
        }
    }

    /// Whether every value is kept, so that none is computed again.
    pub fn keeps_all(&self) -> bool {
        match self {
            RematPolicy::None => true,
            RematPolicy::Any(policies) => policies.iter().any(RematPolicy::keeps_all),
            _ => false,
        }
    }

    /// Whether nothing is kept.
    pub fn keeps_nothing(&self) -> bool {
        match self {
            RematPolicy::Full => true,
            RematPolicy::Save(names) | RematPolicy::Offload(names) => names.is_empty(),
            RematPolicy::Any(policies) => policies.iter().all(RematPolicy::keeps_nothing),
            _ => false,
        }
    }

    /// The memory in which the results of an op are kept, if they are. `names` are those that its result is given.
    pub fn keeps(&self, op: &Op, names: &[Name]) -> Option<Memory> {
        let named = |listed: &[Name]| {
            names.iter().any(|name| listed.contains(name))
                || matches!(op, Op::Named(named) if listed.contains(&named.0))
        };
        let (kept, memory) = match self {
            RematPolicy::None => (true, Memory::Device),
            RematPolicy::Full => (false, Memory::Device),
            RematPolicy::Dots => (matches!(op, Op::DotGeneral(_) | Op::Attention(_)), Memory::Device),
            RematPolicy::DotsWithoutBatch => {
                (matches!(op, Op::DotGeneral(dot) if dot.dims.lhs_batch.is_empty()), Memory::Device)
            }
            RematPolicy::Save(names) => (named(names), Memory::Device),
            RematPolicy::Offload(names) => (named(names), Memory::Host),
            RematPolicy::SaveExcept(names) => (!named(names) && !is_free(op.facts().class), Memory::Device),
            RematPolicy::Any(policies) => return policies.iter().find_map(|policy| policy.keeps(op, names)),
        };
        kept.then_some(memory)
    }
}

/// Whether repeating an op costs nothing, so that keeping its result would only fill memory.
fn is_free(class: Class) -> bool {
    matches!(class, Class::Broadcast | Class::Source)
}
