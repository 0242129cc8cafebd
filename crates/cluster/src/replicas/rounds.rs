//! The keys that replicas write to the store, and the decisions that follow from them: the members of the next round,
//! and the messages that count.
//!
//! | key | written by | says |
//! |---|---|---|
//! | `replicas/N` | replica N, when it comes | where it is read, the steps that it has done, what it trains |
//! | `held/ROUND/N` | replica N | whose messages of the round it holds |
//! | `taken/N` | replica N, when it joins | that it has the outer state of the others |
//! | `rounds/ROUND` | the living replica with the lowest number | the decision, once; that on the beginning is round 0 |
//!
//! All but the last end with the lease of their replica. The two newest decisions stay while any replica is there.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::store::Entry;

/// A replica that is present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Present {
    /// `HOST:PORT`.
    pub address: String,
    /// The number of steps that it has done.
    pub step: u64,
    /// The settings that all replicas must share, one on each line.
    pub form: String,
}

/// A replica that takes part. One that is started again under its number has another lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its number.
    pub replica: usize,
    /// The lease of its keys.
    pub lease: i64,
    /// The address where its messages are read.
    pub address: String,
}

/// The outcome of a round, the same for all replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The name of the run. No other run has it, not even the same job when it is started again.
    pub run: String,
    /// The step after which the outer parameters come in.
    pub step: u64,
    /// The replicas whose messages count, in order.
    pub messages: Vec<usize>,
    /// The members of the next round, in order.
    pub members: Vec<Seat>,
    /// The members that begin in that round.
    pub joining: Vec<usize>,
    /// The leases of replicas that live, but have kept the others waiting for too long. They are not taken in again.
    pub left: Vec<i64>,
}

impl Decision {
    /// Whether this replica gives its outer state to others.
    pub fn is_given_by(&self, replica: usize) -> bool {
        !self.joining.is_empty() && self.giver().is_some_and(|seat| seat.replica == replica)
    }

    /// The member that gives the outer state to those that join.
    pub fn giver(&self) -> Option<&Seat> {
        self.members.iter().find(|seat| !self.joining.contains(&seat.replica))
    }
}

/// The keys of a run at one moment.
#[derive(Debug, Default)]
pub struct Keys {
    /// The replicas that are present, with their leases.
    pub present: BTreeMap<usize, (i64, Present)>,
    held: BTreeMap<u64, BTreeMap<usize, BTreeSet<usize>>>,
    rounds: BTreeMap<u64, Decision>,
}

/// The key under which a replica says that it is present.
pub fn present_key(replica: usize) -> String {
    format!("replicas/{replica}")
}

/// The key under which a replica says which messages of a round it holds.
pub fn held_key(round: u64, replica: usize) -> String {
    format!("held/{round}/{replica}")
}

/// The key under which a replica says that it has joined.
pub fn taken_key(replica: usize) -> String {
    format!("taken/{replica}")
}

/// The round of the first decision. Other rounds have the number of a step.
pub const BEGINNING: u64 = 0;

/// The key of the decision on a round.
pub fn round_key(round: u64) -> String {
    format!("rounds/{round}")
}

impl Keys {
    /// Reads the keys of a run from the entries of a store.
    pub fn of(entries: &[Entry]) -> Keys {
        let mut keys = Keys::default();
        for Entry { name, value, lease } in entries {
            let parts: Vec<&str> = name.split('/').collect();
            // The store has other keys beside these.
            let _ = keys.add(&parts, value, *lease);
        }
        keys
    }

    fn add(&mut self, parts: &[&str], value: &[u8], lease: i64) -> Option<()> {
        match parts {
            ["replicas", replica] => {
                self.present.insert(replica.parse().ok()?, (lease, serde_json::from_slice(value).ok()?));
            }
            ["held", round, replica] => {
                let of_round = self.held.entry(round.parse().ok()?).or_default();
                of_round.insert(replica.parse().ok()?, serde_json::from_slice(value).ok()?);
            }
            ["rounds", round] => {
                self.rounds.insert(round.parse().ok()?, serde_json::from_slice(value).ok()?);
            }
            _ => {}
        }
        Some(())
    }

    /// Returns the decision on a round.
    pub fn decision(&self, round: u64) -> Option<&Decision> {
        self.rounds.get(&round)
    }

    /// Returns the newest decision.
    pub fn newest(&self) -> Option<&Decision> {
        self.rounds.values().next_back()
    }

    /// Returns the rounds that are decided, without the two newest.
    pub fn old_rounds(&self) -> impl Iterator<Item = u64> {
        self.rounds.keys().rev().skip(2).copied()
    }

    /// Whether a member is still present.
    pub fn lives(&self, seat: &Seat) -> bool {
        self.present.get(&seat.replica).is_some_and(|(lease, _)| *lease == seat.lease)
    }

    fn seat(&self, replica: usize) -> Option<Seat> {
        let (lease, present) = self.present.get(&replica)?;
        Some(Seat { replica, lease: *lease, address: present.address.clone() })
    }

    /// Returns the first decision, if `own` is to make it. The replicas with the most steps begin, and the others take
    /// their state.
    pub fn first(&self, own: usize) -> Option<Decision> {
        let step = self.present.values().map(|(_, present)| present.step).max()?;
        let members = self.present.keys().filter_map(|&replica| self.seat(replica)).collect();
        let behind = self.present.iter().filter(|(_, (_, present))| present.step < step);
        let joining = behind.map(|(&replica, _)| replica).collect();
        // A store never gives the number of a lease twice.
        let run = format!("{:x}", self.present.get(&own)?.0);
        let decision = Decision { run, step, messages: Vec::new(), members, joining, left: Vec::new() };
        (self.present.keys().next() == Some(&own)).then_some(decision)
    }

    /// Returns the decision of `own` on the round that follows this decision, or the reason why there is none yet. The
    /// run needs at least `least` replicas. If the round is late, they go on without those that have not said what they
    /// hold.
    pub fn decide(
        &self,
        own: usize,
        (round, step): (u64, u64),
        before: &Decision,
        (least, is_late): (usize, bool),
    ) -> Result<Decision, Undecided> {
        let Decision { run, members, .. } = before;
        let empty = BTreeMap::new();
        let held = self.held.get(&round).unwrap_or(&empty);
        // A replica that keeps the others waiting for too long counts as gone.
        let counts = |seat: &&Seat| self.lives(seat) && (!is_late || held.contains_key(&seat.replica));
        let living: Vec<&Seat> = members.iter().filter(counts).collect();
        if living.first().is_none_or(|seat| seat.replica != own) {
            return Err(Undecided::Others);
        }
        let sets: Option<Vec<&BTreeSet<usize>>> = living.iter().map(|seat| held.get(&seat.replica)).collect();
        let Some(sets) = sets else { return Err(Undecided::Others) };
        // Only messages that all living members hold count, so no replica needs to ask for one after the decision.
        let messages: Vec<usize> = members
            .iter()
            .map(|seat| seat.replica)
            .filter(|replica| sets.iter().all(|held| held.contains(replica)))
            .collect();
        let own_form = self.present.get(&own).map(|(_, present)| &present.form);
        let is_late = |seat: &&Seat| self.lives(seat) && !living.contains(seat);
        let late = members.iter().filter(is_late).map(|seat| seat.lease);
        let newest = self.newest().into_iter().flat_map(|decision| decision.left.iter().copied());
        let is_there = |lease: &i64| self.present.values().any(|(present, _)| present == lease);
        let left: Vec<i64> = late.chain(newest).filter(is_there).collect();
        let may_join = |&(replica, (lease, present)): &(&usize, &(i64, Present))| {
            let is_member = living.iter().any(|seat| seat.replica == *replica);
            !is_member && !left.contains(lease) && Some(&present.form) == own_form
        };
        let joining: Vec<usize> = self.present.iter().filter(may_join).map(|(&replica, _)| replica).collect();
        let next: BTreeSet<usize> = living.iter().map(|seat| seat.replica).chain(joining.iter().copied()).collect();
        if next.len() < least {
            return Err(Undecided::TooFew(next.len()));
        }
        let members = next.into_iter().filter_map(|replica| self.seat(replica)).collect();
        Ok(Decision { run: run.clone(), step, messages, members, joining, left })
    }
}

/// The reason why a round is not decided yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Other replicas decide, or have not said what they hold.
    Others,
    /// Too few replicas are present: this many.
    TooFew(usize),
}
