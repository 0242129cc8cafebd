//! What replicas write to the store, and what follows from it: who takes part, and whose messages count.
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

use meshloom_store::Entry;
use serde::{Deserialize, Serialize};

/// A replica that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Present {
    /// `HOST:PORT`.
    pub(super) address: String,
    /// Steps that it has done.
    pub(super) step: u64,
    /// What replicas have alike, a line each.
    pub(super) form: String,
}

/// A replica that takes part. One that is started again under its number has another lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) replica: usize,
    pub(super) lease: i64,
    pub(super) address: String,
}

/// What all replicas do about a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decision {
    /// The steps after which the outer parameters come in.
    pub(super) step: u64,
    /// Whose messages count, in order.
    pub(super) messages: Vec<usize>,
    /// Who takes part in the next round, in order.
    pub(super) members: Vec<Seat>,
    /// Those of them who begin there.
    pub(super) joining: Vec<usize>,
    /// The leases of those who live, but have kept the others waiting for too long: they are not taken in again.
    pub(super) left: Vec<i64>,
}

impl Decision {
    /// Whether this replica gives its outer state to others.
    pub(super) fn is_given_by(&self, replica: usize) -> bool {
        !self.joining.is_empty() && self.giver().is_some_and(|seat| seat.replica == replica)
    }

    /// Who gives the outer state to those who join.
    pub(super) fn giver(&self) -> Option<&Seat> {
        self.members.iter().find(|seat| !self.joining.contains(&seat.replica))
    }
}

/// The keys of a run at one moment.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) present: BTreeMap<usize, (i64, Present)>,
    held: BTreeMap<u64, BTreeMap<usize, BTreeSet<usize>>>,
    rounds: BTreeMap<u64, Decision>,
}

pub(super) fn present_key(replica: usize) -> String {
    format!("replicas/{replica}")
}

pub(super) fn held_key(round: u64, replica: usize) -> String {
    format!("held/{round}/{replica}")
}

pub(super) fn taken_key(replica: usize) -> String {
    format!("taken/{replica}")
}

/// The round of the first decision: others are after a step.
pub(super) const BEGINNING: u64 = 0;

pub(super) fn round_key(round: u64) -> String {
    format!("rounds/{round}")
}

impl Keys {
    pub(super) fn of(entries: &[Entry]) -> Keys {
        let mut keys = Keys::default();
        for Entry { name, value, lease } in entries {
            let parts: Vec<&str> = name.split('/').collect();
            // Other keys of the store lie beside these.
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

    /// The decision on a round.
    pub(super) fn decision(&self, round: u64) -> Option<&Decision> {
        self.rounds.get(&round)
    }

    /// The newest one.
    pub(super) fn newest(&self) -> Option<&Decision> {
        self.rounds.values().next_back()
    }

    /// Rounds that are decided, but for the two newest.
    pub(super) fn old_rounds(&self) -> impl Iterator<Item = u64> {
        self.rounds.keys().rev().skip(2).copied()
    }

    /// Whether who takes part is still there.
    pub(super) fn lives(&self, seat: &Seat) -> bool {
        self.present.get(&seat.replica).is_some_and(|(lease, _)| *lease == seat.lease)
    }

    fn seat(&self, replica: usize) -> Option<Seat> {
        let (lease, present) = self.present.get(&replica)?;
        Some(Seat { replica, lease: *lease, address: present.address.clone() })
    }

    /// The first decision, if `own` is to make it: those who have done most steps begin, the others take their state.
    pub(super) fn first(&self, own: usize) -> Option<Decision> {
        let step = self.present.values().map(|(_, present)| present.step).max()?;
        let members = self.present.keys().filter_map(|&replica| self.seat(replica)).collect();
        let behind = self.present.iter().filter(|(_, (_, present))| present.step < step);
        let joining = behind.map(|(&replica, _)| replica).collect();
        let decision = Decision { step, messages: Vec::new(), members, joining, left: Vec::new() };
        (self.present.keys().next() == Some(&own)).then_some(decision)
    }

    /// What `own` decides on a round in which these take part, or why it does not yet: so that at least `least` go on,
    /// and, if it is late, without those who have not said what they hold.
    pub(super) fn decide(
        &self,
        own: usize,
        (round, step): (u64, u64),
        members: &[Seat],
        (least, is_late): (usize, bool),
    ) -> Result<Decision, Undecided> {
        let empty = BTreeMap::new();
        let held = self.held.get(&round).unwrap_or(&empty);
        // Who keeps the others waiting for too long counts as gone.
        let counts = |seat: &&Seat| self.lives(seat) && (!is_late || held.contains_key(&seat.replica));
        let living: Vec<&Seat> = members.iter().filter(counts).collect();
        if living.first().is_none_or(|seat| seat.replica != own) {
            return Err(Undecided::Others);
        }
        let sets: Option<Vec<&BTreeSet<usize>>> = living.iter().map(|seat| held.get(&seat.replica)).collect();
        let Some(sets) = sets else { return Err(Undecided::Others) };
        // What all hold who live: nobody needs to be asked for anything any more.
        let messages: Vec<usize> = members
            .iter()
            .map(|seat| seat.replica)
            .filter(|replica| sets.iter().all(|held| held.contains(replica)))
            .collect();
        let own_form = self.present.get(&own).map(|(_, present)| &present.form);
        let is_late = |seat: &&Seat| self.lives(seat) && !living.contains(seat);
        let late = members.iter().filter(is_late).map(|seat| seat.lease);
        let before = self.newest().into_iter().flat_map(|decision| decision.left.iter().copied());
        let is_there = |lease: &i64| self.present.values().any(|(present, _)| present == lease);
        let left: Vec<i64> = late.chain(before).filter(is_there).collect();
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
        Ok(Decision { step, messages, members, joining, left })
    }
}

/// Why a round is not decided yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undecided {
    /// Others decide, or have not said what they hold.
    Others,
    /// So few replicas are there.
    TooFew(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, value: &impl Serialize, lease: i64) -> Entry {
        Entry { name: name.to_owned(), value: serde_json::to_vec(value).expect("JSON"), lease }
    }

    fn present(replica: usize, lease: i64, step: u64) -> Entry {
        let present = Present { address: format!("host-{replica}:1"), step, form: "a = 1".to_owned() };
        entry(&present_key(replica), &present, lease)
    }

    fn held(round: u64, replica: usize, whose: &[usize]) -> Entry {
        entry(&held_key(round, replica), &whose, 0)
    }

    #[test]
    fn a_run_begins_with_those_who_have_done_most() {
        let keys = Keys::of(&[present(0, 10, 4), present(1, 11, 8), present(2, 12, 8)]);
        assert_eq!(keys.first(1), None);
        let first = keys.first(0).expect("a decision");
        assert_eq!((first.step, &first.joining[..], first.members.len()), (8, &[0][..], 3));
        assert_eq!(first.giver().map(|seat| seat.replica), Some(1));
    }

    #[test]
    fn what_all_hold_counts() {
        let all = [present(0, 10, 0), present(1, 11, 0), present(2, 12, 0)];
        let members = Keys::of(&all).first(0).expect("a decision").members;
        let with = |more: &[Entry]| Keys::of(&[&all[..], more].concat());
        // Replica 2 has not said what it holds.
        let two = [held(6, 0, &[0, 1, 2]), held(6, 1, &[0, 1])];
        assert_eq!(with(&two).decide(0, (6, 9), &members, (1, false)), Err(Undecided::Others));
        let late = with(&two).decide(0, (6, 9), &members, (1, true)).expect("a decision");
        assert_eq!((&late.messages[..], late.members.len(), &late.joining[..]), (&[0, 1][..], 2, &[][..]));
        assert_eq!(late.left, [12]);
        // Neither is it taken in by the next.
        let next = [held(12, 0, &[0, 1]), held(12, 1, &[0, 1]), entry(&round_key(6), &late, 0)];
        let next = with(&next).decide(0, (12, 15), &late.members, (1, false)).expect("a decision");
        assert_eq!((&next.joining[..], &next.left[..]), (&[][..], &[12][..]));
        let three = [&two[..], &[held(6, 2, &[0, 1, 2])]].concat();
        assert_eq!(with(&three).decide(1, (6, 9), &members, (1, false)), Err(Undecided::Others));
        let decision = with(&three).decide(0, (6, 9), &members, (1, false)).expect("a decision");
        assert_eq!((&decision.messages[..], decision.members.len(), decision.step), (&[0, 1][..], 3, 9));
    }

    #[test]
    fn who_is_gone_is_left_out_and_comes_back_as_another() {
        let before = [present(0, 10, 0), present(1, 11, 0)];
        let members = Keys::of(&before).first(0).expect("a decision").members;
        // Replica 0 has died, and been started again; its message was there before.
        let now = [present(0, 20, 0), present(1, 11, 0), held(6, 1, &[0, 1])];
        let keys = Keys::of(&now);
        assert!(!keys.lives(&members[0]) && keys.lives(&members[1]));
        let decision = keys.decide(1, (6, 6), &members, (2, false)).expect("a decision");
        assert_eq!((&decision.messages[..], &decision.joining[..]), (&[0, 1][..], &[0][..]));
        assert_eq!(decision.giver().map(|seat| seat.replica), Some(1));
        // Nobody in its place: too few.
        let keys = Keys::of(&now[1..]);
        assert_eq!(keys.decide(1, (6, 6), &members, (2, false)), Err(Undecided::TooFew(1)));
    }
}
