//! Where values that are live at different times share memory.

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};

use super::dataflow::{Ranges, add_range, after_start, before_end, is_apart};

/// A buffer with the times in which it is live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// Its class.
    pub(super) class: u32,
    pub(super) bytes: u64,
    start: u32,
    end: u32,
    ranges: Ranges,
}

impl Lifetime {
    pub(super) fn new(class: u32, bytes: u64, ranges: Ranges) -> Lifetime {
        let start = ranges.keys().next().copied().unwrap_or(0);
        let end = ranges.values().next_back().copied().unwrap_or(0);
        Lifetime { class, bytes, start, end, ranges }
    }

    pub(super) fn is_live(&self, time: u32) -> bool {
        self.ranges.range(..=time).next_back().is_some_and(|(_, &until)| until >= time)
    }

    fn overlaps(&self, other: &Lifetime) -> bool {
        let is_within = other.start <= self.end && self.start <= other.end;
        is_within && !is_apart(&self.ranges, &other.ranges)
    }
}

/// Memory that is there from start to end because a result of the program ends up in it: values that fit in may use it
/// while it is free (`BufferAssigner::AssignSingleHloBuffer`, buffer_assignment.cc in XLA).
#[derive(Clone, Debug)]
pub(super) struct Reusable {
    pub(super) bytes: u64,
    /// The classes in it.
    classes: FxHashSet<u32>,
    /// When it is used.
    used: Ranges,
}

impl Reusable {
    pub(super) fn new(bytes: u64) -> Reusable {
        Reusable { bytes, classes: FxHashSet::default(), used: Ranges::new() }
    }

    pub(super) fn put(&mut self, class: u32, ranges: &Ranges) {
        self.classes.insert(class);
        ranges.iter().for_each(|(&start, &end)| add_range(&mut self.used, (start, end)));
    }

    /// Whether a value has room: it may take over from what is in the memory, and the other way round.
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
pub(super) struct Takeover {
    pub(super) time: u32,
    pub(super) other: u32,
    /// Whether it takes over from the other.
    pub(super) is_result: bool,
}

/// Places values in memory that is there anyway, the largest first, and gives back those that have no room. Each takes
/// the smallest memory that fits.
pub(super) fn reuse(
    mut values: Vec<Lifetime>,
    mut reusable: Vec<Reusable>,
    handovers: &FxHashMap<u32, Vec<Takeover>>,
) -> Vec<Lifetime> {
    /// Trying each value in each memory takes long for large modules: then the rest gets memory of its own.
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

/// Where values start in a heap is a multiple of this.
pub(super) const ALIGNMENT: u64 = 64;

/// The size of a heap for values such that values live at the same time do not overlap. Each goes into the tightest gap
/// (`GlobalDecreasingSizeBestFitHeap`, heap_simulator.cc in XLA), ordered by size or by lifetime, whichever needs less.
/// `None` for too many values, since the time is quadratic in their number.
pub(super) fn heap_size(values: &[Lifetime]) -> Option<u64> {
    /// More are not placed.
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
    let mut placed: Vec<(u64, &Lifetime)> = Vec::with_capacity(values.len());
    let mut size = 0;
    for value in values {
        let mut around: Vec<(u64, u64)> = placed
            .iter()
            .filter(|(_, other)| other.overlaps(value))
            .map(|&(offset, other)| (offset, offset.saturating_add(other.bytes)))
            .collect();
        around.sort_unstable();
        let offset = tightest_gap(&around, value.bytes);
        size = size.max(offset.saturating_add(value.bytes));
        placed.push((offset, value));
    }
    size
}

/// The start of the smallest gap that fits between the neighbours, given by start and end; after them if none fits.
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

/// How many bytes are live at each time.
pub(super) fn live_bytes(values: &[Lifetime], times: usize) -> Vec<u64> {
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

#[cfg(test)]
mod tests {
    use rustc_hash::FxHashMap;

    use super::{Lifetime, Ranges, Reusable, heap_size, live_bytes, reuse};

    fn value(bytes: u64, start: u32, end: u32) -> Lifetime {
        Lifetime::new(0, bytes, Ranges::from([(start, end)]))
    }

    #[test]
    fn live_bytes_are_sums() {
        let values = [value(10, 0, 1), value(5, 1, 2), value(3, 3, 9)];
        assert_eq!(live_bytes(&values, 4), [10, 15, 5, 3]);
        assert_eq!(live_bytes(&[], 2), [0, 0]);
    }

    #[test]
    fn a_heap_shares_what_is_not_live_together() {
        assert_eq!(heap_size(&[value(640, 0, 1), value(640, 2, 3)]), Some(640));
        assert_eq!(heap_size(&[value(640, 0, 2), value(640, 2, 3)]), Some(1280));
        // 128 and 192 bytes in the place of 320, side by side.
        assert_eq!(heap_size(&[value(320, 0, 1), value(128, 2, 3), value(192, 3, 4)]), Some(320));
        assert_eq!(heap_size(&[]), Some(0));
    }

    #[test]
    fn memory_of_results_is_used_before() {
        let left = |values: Vec<Lifetime>| {
            let mut result = Reusable::new(100);
            result.put(9, &Ranges::from([(5, 9)]));
            reuse(values, vec![result], &FxHashMap::default())
        };
        assert_eq!(left(vec![value(100, 0, 4)]), []);
        assert_eq!(left(vec![value(101, 0, 4)]), [value(101, 0, 4)]);
        assert_eq!(left(vec![value(50, 0, 5)]), [value(50, 0, 5)]);
        // One after the other.
        assert_eq!(left(vec![value(50, 0, 2), value(60, 3, 4), value(10, 2, 3)]), [value(10, 2, 3)]);
    }

    #[test]
    fn a_result_takes_over_at_the_time_it_is_made() {
        let left = |other, is_result, value: Lifetime| {
            let mut result = Reusable::new(100);
            result.put(9, &Ranges::from([(5, 9), (20, 30)]));
            let handovers = FxHashMap::from_iter([(
                0,
                vec![super::Takeover { time: value_time(&value, is_result), other, is_result }],
            )]);
            reuse(vec![value], vec![result], &handovers).len()
        };
        fn value_time(value: &Lifetime, is_result: bool) -> u32 {
            if is_result { value.start } else { value.end }
        }
        assert_eq!(left(9, true, value(50, 9, 12)), 0);
        assert_eq!(left(9, false, value(50, 12, 20)), 0);
        // What is in another memory, or still live, is not taken over from.
        assert_eq!(left(7, true, value(50, 9, 12)), 1);
        assert_eq!(left(9, true, value(50, 8, 12)), 1);
        assert_eq!(left(9, true, value(50, 9, 21)), 1);
    }

    #[test]
    fn a_heap_uses_the_gaps_of_a_buffer() {
        let carry = Lifetime::new(0, 640, Ranges::from([(0, 2), (6, 9)]));
        assert_eq!(heap_size(&[carry.clone(), value(640, 3, 5)]), Some(640));
        assert_eq!(heap_size(&[carry.clone(), value(640, 2, 5)]), Some(1280));
        assert_eq!(live_bytes(&[carry], 10), [640, 640, 640, 0, 0, 0, 640, 640, 640, 640]);
    }
}
