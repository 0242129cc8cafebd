//! The placement of values that are live at different times in the same memory.

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};

use super::dataflow::{Ranges, add_range, after_start, before_end, is_apart};

/// A buffer with the times in which it is live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Its class.
    pub class: u32,
    /// Its size.
    pub bytes: u64,
    start: u32,
    end: u32,
    ranges: Ranges,
}

impl Lifetime {
    /// Returns a buffer of a class, with the ranges of time in which it is live.
    pub fn new(class: u32, bytes: u64, ranges: Ranges) -> Lifetime {
        let start = ranges.keys().next().copied().unwrap_or(0);
        let end = ranges.values().next_back().copied().unwrap_or(0);
        Lifetime { class, bytes, start, end, ranges }
    }

    /// Returns the times in which it is live.
    pub(super) fn ranges(&self) -> Ranges {
        self.ranges.clone()
    }

    /// Whether it is live at a time.
    pub fn is_live(&self, time: u32) -> bool {
        self.ranges.range(..=time).next_back().is_some_and(|(_, &until)| until >= time)
    }

    /// Whether both are live at a time, if the times from first to last have one in common.
    fn overlaps(&self, other: &Lifetime) -> bool {
        let are_whole = self.ranges.len() == 1 && other.ranges.len() == 1;
        are_whole || !is_apart(&self.ranges, &other.ranges)
    }
}

/// Memory that exists from start to end because a result of the program ends up in it: values that fit in may use it
/// while it is free (`BufferAssigner::AssignSingleHloBuffer`, buffer_assignment.cc in XLA).
#[derive(Clone, Debug)]
pub struct Reusable {
    /// Its size.
    pub bytes: u64,
    classes: FxHashSet<u32>,
    /// The times at which it is used.
    used: Ranges,
}

impl Reusable {
    /// Returns memory that nothing uses yet.
    pub fn new(bytes: u64) -> Reusable {
        Reusable { bytes, classes: FxHashSet::default(), used: Ranges::new() }
    }

    /// Puts a class in for the times at which it is live.
    pub fn put(&mut self, class: u32, ranges: &Ranges) {
        self.classes.insert(class);
        ranges.iter().for_each(|(&start, &end)| add_range(&mut self.used, (start, end)));
    }

    /// Whether a value has room: it may take over from a class in the memory, and the other way round.
    fn has_room(&self, value: &Lifetime, handovers: &[Takeover]) -> bool {
        let mut here = handovers.iter().filter(|handover| self.classes.contains(&handover.other)).peekable();
        if here.peek().is_none() {
            return is_apart(&value.ranges, &self.used);
        }
        let ranges = here.fold(value.ranges.clone(), |ranges, handover| match handover.is_result {
            true => after_start(ranges, handover.time),
            false => before_end(ranges, handover.time),
        });
        is_apart(&ranges, &self.used)
    }
}

/// A time at which a class may take over from another, or the other from it.
#[derive(Clone, Copy, Debug)]
pub struct Takeover {
    /// The time at which it may take over.
    pub time: u32,
    /// The other class.
    pub other: u32,
    /// Whether it takes over from the other.
    pub is_result: bool,
}

/// Places values in memory that exists anyway, the largest first, and gives back those that have no room. Each takes
/// the smallest memory that fits.
pub fn reuse(
    mut values: Vec<Lifetime>,
    mut reusable: Vec<Reusable>,
    handovers: &FxHashMap<u32, Vec<Takeover>>,
) -> Vec<Lifetime> {
    /// Trying each value in each memory takes long for large modules: after this many tries the rest gets memory of its
    /// own.
    const MOST_TRIES: usize = 1 << 24;
    values.sort_by_key(|value| (Reverse(value.bytes), value.start));
    reusable.sort_by_key(|reusable| Reverse(reusable.bytes));
    let mut tries = 0;
    let mut has_no_room = |value: &Lifetime| {
        let fitting = reusable.partition_point(|reusable| reusable.bytes >= value.bytes);
        let handovers = handovers.get(&value.class).map_or(&[][..], Vec::as_slice);
        for memory in reusable[..fitting].iter_mut().rev() {
            tries += 1;
            if tries > MOST_TRIES {
                return true;
            }
            if memory.has_room(value, handovers) {
                memory.put(value.class, &value.ranges);
                return false;
            }
        }
        true
    };
    values.retain(&mut has_no_room);
    values
}

/// The start of every value in a heap is a multiple of this.
pub const ALIGNMENT: u64 = 64;

/// Returns the size of a heap for values such that values live at the same time do not overlap. Each goes into the
/// tightest gap (`GlobalDecreasingSizeBestFitHeap`, heap_simulator.cc in XLA), ordered by size or by lifetime,
/// whichever needs less. The result is `None` for too many values, since the time is quadratic in their number.
pub fn heap_size(values: &[Lifetime]) -> Option<u64> {
    /// The most values that are placed.
    const MOST_VALUES: usize = 6000;
    if values.len() > MOST_VALUES {
        return None;
    }
    let length = |value: &Lifetime| Reverse(value.end.saturating_sub(value.start));
    let mut sorted: Vec<&Lifetime> = values.iter().collect();
    sorted.sort_by_key(|value| (Reverse(value.bytes), length(value), value.start));
    let largest_first = heap_size_in_order(&sorted);
    sorted.sort_by_key(|value| (length(value), Reverse(value.bytes), value.start));
    Some(largest_first.min(heap_size_in_order(&sorted)))
}

fn heap_size_in_order(values: &[&Lifetime]) -> u64 {
    // First and last times lie together: they tell most pairs apart.
    let mut times: Vec<(u32, u32)> = Vec::with_capacity(values.len());
    let mut placed: Vec<(u64, &Lifetime)> = Vec::with_capacity(values.len());
    let mut around: Vec<(u64, u64)> = Vec::new();
    let mut size = 0;
    for value in values {
        around.clear();
        for (nth, _) in times.iter().enumerate().filter(|(_, time)| time.0 <= value.end && value.start <= time.1) {
            let (offset, other) = placed[nth];
            if other.overlaps(value) {
                around.push((offset, offset.saturating_add(other.bytes)));
            }
        }
        around.sort_unstable();
        let offset = tightest_gap(&around, value.bytes);
        size = size.max(offset.saturating_add(value.bytes));
        times.push((value.start, value.end));
        placed.push((offset, value));
    }
    size
}

/// Returns the start of the smallest gap that fits between the neighbours, given by start and end; after them if none
/// fits.
fn tightest_gap(around: &[(u64, u64)], bytes: u64) -> u64 {
    let align = |offset: u64| offset.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
    let (mut free, mut best): (u64, Option<(u64, u64)>) = (0, None);
    for &(from, until) in around {
        let offset = align(free);
        if from >= offset && from - offset >= bytes {
            let slack = from - offset - bytes;
            best = best.filter(|&(least, _)| least <= slack).or(Some((slack, offset)));
        }
        free = free.max(until);
    }
    best.map_or_else(|| align(free), |(_, offset)| offset)
}

/// Returns the number of live bytes at each time.
pub fn live_bytes(values: &[Lifetime], times: usize) -> Vec<u64> {
    let (mut made, mut freed) = (vec![0u64; times + 1], vec![0u64; times + 1]);
    for value in values {
        for (&start, &end) in value.ranges.iter().filter(|&(&start, _)| (start as usize) < times) {
            made[start as usize] = made[start as usize].saturating_add(value.bytes);
            let end = (end as usize + 1).min(times);
            freed[end] = freed[end].saturating_add(value.bytes);
        }
    }
    let mut live = 0u64;
    (0..times)
        .map(|time| {
            live = live.saturating_add(made[time]).saturating_sub(freed[time]);
            live
        })
        .collect()
}
