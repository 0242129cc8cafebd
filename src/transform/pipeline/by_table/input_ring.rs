//! How inputs come to the first stage, and how their cotangents go back to where the inputs were.
//!
//! Inputs lie in slots `[S, Q, mb, ..]`, with microbatch `r Q + i` in slot `i` of stage `r`. A turn moves one slot by a
//! stage to the left, and turns take the slots in order. So before turn `m` the first stage has microbatch `m`, and
//! takes it. The slot that this turn carries from the first stage to the last is then free, and holds the cotangent of
//! an earlier input. If turn `k + lag` always carries the cotangent of microbatch `k`, then after `S Q + lag` turns
//! each cotangent is where its input was, but for a shift of slots.
//!
//! Inputs are taken when the table says so, and cotangents are there when it says so: some have to wait for their turn
//! at the first stage. Where microbatches do not fill the slots, turns without an input go on to the end.

use super::super::schedule::{Columns, Shape};

/// The turn of a tick. -1 means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RingTurn {
    /// The slot that turns at the end of the tick.
    pub(super) slot: i32,
    /// The slot where the cotangent that is computed in the tick waits.
    pub(super) exits: i32,
    /// The slot where the cotangent that is carried has waited.
    pub(super) taken: i32,
}

/// All turns of a table.
pub(in super::super) struct InputRing {
    /// One for each tick of the table, or more.
    pub(in super::super) ticks: Vec<RingTurn>,
    /// The cotangent of microbatch `k` is carried by turn `k + lag`.
    pub(super) lag: usize,
    /// The largest number of cotangents that wait at one time.
    pub(super) waiting: usize,
}

impl InputRing {
    /// The number of turns.
    pub(in super::super) fn count(&self) -> usize {
        self.ticks.iter().filter(|turn| turn.slot >= 0).count()
    }

    pub(in super::super) fn of(columns: &Columns, shape: Shape) -> InputRing {
        let (stages, count) = (shape.stages, shape.microbatches);
        let slots = count.div_ceil(stages);
        let ticks_of = |column: &[i32]| -> Vec<usize> {
            column.iter().enumerate().filter(|(_, microbatch)| **microbatch >= 0).map(|(tick, _)| tick).collect()
        };
        let (entries, exits) = (ticks_of(&columns.enters), ticks_of(&columns.exits));
        // The first turn that is not before a cotangent is there.
        let first_turn = |exit: &usize| entries.partition_point(|entry| entry < exit);
        let lag = exits.iter().enumerate().map(|(k, exit)| first_turn(exit).saturating_sub(k)).max().unwrap_or(0);
        let mut turns = entries;
        for turn in count..stages * slots + lag {
            let after = turns.last().map_or(0, |last| last + 1);
            let there = turn.checked_sub(lag).and_then(|microbatch| exits.get(microbatch));
            turns.push(there.map_or(after, |&there| there.max(after)));
        }
        let length = turns.last().map_or(0, |last| last + 1).max(columns.forward.len());
        // The number of cotangents that wait when one has come, including that one.
        let carried = |microbatch: usize| turns[microbatch + lag];
        let waiting = |k: usize| (0..=k).filter(|&other| carried(other) >= exits[k]).count();
        let waiting = (0..exits.len()).map(waiting).max().unwrap_or(0).max(1);
        let mut ticks = vec![RingTurn { slot: -1, exits: -1, taken: -1 }; length];
        for (turn, &tick) in turns.iter().enumerate() {
            ticks[tick].slot = (turn % slots) as i32;
        }
        for (microbatch, &tick) in exits.iter().enumerate() {
            ticks[tick].exits = (microbatch % waiting) as i32;
            ticks[carried(microbatch)].taken = (microbatch % waiting) as i32;
        }
        InputRing { ticks, lag, waiting }
    }
}
