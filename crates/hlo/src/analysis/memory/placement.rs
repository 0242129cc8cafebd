//! Where values that are live at different times share memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A value with the time in which it is live, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// Its class.
    pub(super) class: u32,
    pub(super) bytes: u64,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// Memory that is there from start to end because a result of the program ends up in it: values that fit in may use it
/// while it is free (`BufferAssigner::AssignSingleHloBuffer`, buffer_assignment.cc in XLA).
#[derive(Clone, Debug)]
pub(super) struct Reusable {
    pub(super) bytes: u64,
    /// Start and end of what is in it, which do not overlap.
    used: BTreeMap<u32, u32>,
}

impl Reusable {
    pub(super) fn new(bytes: u64, used: impl IntoIterator<Item = (u32, u32)>) -> Reusable {
        let mut reusable = Reusable { bytes, used: BTreeMap::new() };
        for (start, end) in used {
            let end = reusable.used.get(&start).map_or(end, |&other| end.max(other));
            reusable.used.insert(start, end);
        }
        reusable
    }

    fn is_free(&self, start: u32, end: u32) -> bool {
        // Of what starts no later than the end, the last is the one that may overlap.
        self.used.range(..=end).next_back().is_none_or(|(_, &until)| until < start)
    }
}

/// Places values in memory that is there anyway, the largest first, and gives back those that have no room. Each takes
/// the smallest memory that fits.
pub(super) fn reuse(mut values: Vec<Lifetime>, mut reusable: Vec<Reusable>) -> Vec<Lifetime> {
    /// Trying each value in each memory takes long for large modules: then the rest gets memory of its own.
    const MOST_TRIES: usize = 1 << 24;
    values.sort_by_key(|value| (Reverse(value.bytes), value.start));
    reusable.sort_by_key(|reusable| Reverse(reusable.bytes));
    let mut tries = 0;
    let mut has_no_room = |value: &Lifetime| {
        let fitting = reusable.partition_point(|reusable| reusable.bytes >= value.bytes);
        for memory in reusable[..fitting].iter_mut().rev() {
            tries += 1;
            if tries > MOST_TRIES {
                return true;
            }
            if memory.is_free(value.start, value.end) {
                memory.used.insert(value.start, value.end);
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
            .filter(|(_, other)| other.start <= value.end && value.start <= other.end)
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
    for value in values.iter().filter(|value| (value.start as usize) < times) {
        made[value.start as usize] = made[value.start as usize].saturating_add(value.bytes);
        let end = (value.end as usize + 1).min(times);
        freed[end] = freed[end].saturating_add(value.bytes);
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
    use super::{Lifetime, Reusable, heap_size, live_bytes, reuse};

    fn value(bytes: u64, start: u32, end: u32) -> Lifetime {
        Lifetime { class: 0, bytes, start, end }
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
        let result = || vec![Reusable::new(100, [(5, 9)])];
        assert_eq!(reuse(vec![value(100, 0, 4)], result()), []);
        assert_eq!(reuse(vec![value(101, 0, 4)], result()), [value(101, 0, 4)]);
        assert_eq!(reuse(vec![value(50, 0, 5)], result()), [value(50, 0, 5)]);
        // One after the other.
        assert_eq!(reuse(vec![value(50, 0, 2), value(60, 3, 4), value(10, 2, 3)], result()), [value(10, 2, 3)]);
    }
}
