//! The sites where a module communicates, and the instructions that are parts of one collective.
//!
//! libtpu writes an asynchronous collective as a chain of fusions: one that starts it, those that compute meanwhile,
//! and one that ends it. The fusions in between may be in loops. The collective is in each of them, with the same
//! channel and `chain_id`. The first and the last have a custom call (`AsyncCollectiveStart`, `AsyncCollectiveDone`)
//! that marks them. libtpu 0.0.51 was seen to write this; it is undocumented.

use std::iter::successors;

use rustc_hash::FxHashMap;

use super::index::attribute;
use super::megascale::communication_of;
use super::walk::{Step, Via, Walk};
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto};

/// The end of an asynchronous collective that a fusion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Start,
    Done,
}

impl End {
    pub(super) fn of(fusion: &HloComputationProto) -> Option<End> {
        fusion.instructions.iter().find_map(|instruction| match instruction.custom_call_target.as_str() {
            "AsyncCollectiveStart" => Some(End::Start),
            "AsyncCollectiveDone" => Some(End::Done),
            _ => None,
        })
    }
}

/// Whether an instruction of a fusion is the collective of a chain, or marks its start or end: values go through it,
/// and the links move them.
pub(super) fn is_in_chain(instruction: &HloInstructionProto) -> bool {
    matches!(instruction.custom_call_target.as_str(), "AsyncCollectiveStart" | "AsyncCollectiveDone")
        || attribute(instruction, "chain_id").is_some() && communication_of(instruction).is_some()
}

/// An instruction that communicates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// The number of its collective, in the order of the walk.
    pub(super) collective: usize,
    /// Whether the collective starts here; otherwise it is only continued.
    pub(super) starts: bool,
    /// Whether it is the first fusion of a chain.
    pub(super) starts_chain: bool,
}

/// The instructions of a walk that communicate.
pub(super) struct Sites {
    /// The sites, by place and position.
    at: FxHashMap<(usize, usize), Site>,
}

impl Sites {
    pub(super) fn of(walk: &Walk<'_>) -> Sites {
        let mut at = FxHashMap::default();
        let mut open: FxHashMap<(usize, i64, &str), usize> = FxHashMap::default();
        let mut count = 0;
        for step in walk.steps().filter(|step| communication_of(step.instruction).is_some()) {
            let around = step.place.caller.filter(|caller| caller.via == Via::Fusion).map(|caller| caller.place);
            let end = around.and_then(|_| End::of(step.place.computation));
            let (channel, name) = chain(step.instruction);
            let mut places = successors(around, |&place| Some(walk.places()[place].caller?.place));
            let continued = match end {
                Some(End::Start) => None,
                Some(End::Done) => around.and_then(|place| open.remove(&(place, channel, name))),
                None => places.find_map(|place| open.get(&(place, channel, name)).copied()),
            };
            let starts_chain = end == Some(End::Start);
            if let Some(place) = around.filter(|_| starts_chain) {
                open.insert((place, channel, name), count);
            }
            let collective = continued.unwrap_or(count);
            count += usize::from(continued.is_none());
            let site = Site { collective, starts: continued.is_none(), starts_chain };
            at.insert((step.place_number, step.position), site);
        }
        Sites { at }
    }

    pub(super) fn at(&self, place: usize, position: usize) -> Option<Site> {
        self.at.get(&(place, position)).copied()
    }

    pub(super) fn starting(&self, step: Step<'_, '_>) -> Option<Site> {
        self.at(step.place_number, step.position).filter(|site| site.starts)
    }

    /// Returns each collective, by number, with the place and position where it starts.
    pub(super) fn starts(&self) -> impl Iterator<Item = (usize, (usize, usize))> {
        self.at.iter().filter(|(_, site)| site.starts).map(|(&at, site)| (site.collective, at))
    }

    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.at.keys().map(|&(place, _)| place)
    }
}

/// Returns the channel and the chain that the parts of an asynchronous collective have in common.
fn chain(collective: &HloInstructionProto) -> (i64, &str) {
    (collective.channel_id, attribute(collective, "chain_id").unwrap_or_default())
}
