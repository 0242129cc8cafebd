use std::collections::BTreeMap;

use meshloom::analysis::internals::{Lifetime, Reusable, Takeover, heap_size, live_bytes, reuse};

fn value(bytes: u64, start: u32, end: u32) -> Lifetime {
    Lifetime::new(0, bytes, BTreeMap::from([(start, end)]))
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
        result.put(9, &BTreeMap::from([(5, 9)]));
        reuse(values, vec![result], &Default::default())
    };
    assert_eq!(left(vec![value(100, 0, 4)]), []);
    assert_eq!(left(vec![value(101, 0, 4)]), [value(101, 0, 4)]);
    assert_eq!(left(vec![value(50, 0, 5)]), [value(50, 0, 5)]);
    // One after the other.
    assert_eq!(left(vec![value(50, 0, 2), value(60, 3, 4), value(10, 2, 3)]), [value(10, 2, 3)]);
}

#[test]
fn a_result_takes_over_at_the_time_it_is_made() {
    let left = |other, is_result, (bytes, start, end): (u64, u32, u32)| {
        let mut result = Reusable::new(100);
        result.put(9, &BTreeMap::from([(5, 9), (20, 30)]));
        let time = if is_result { start } else { end };
        let handovers = [(0, vec![Takeover { time, other, is_result }])].into_iter().collect();
        reuse(vec![value(bytes, start, end)], vec![result], &handovers).len()
    };
    assert_eq!(left(9, true, (50, 9, 12)), 0);
    assert_eq!(left(9, false, (50, 12, 20)), 0);
    // A value does not take over from one that is in another memory, or still live.
    assert_eq!(left(7, true, (50, 9, 12)), 1);
    assert_eq!(left(9, true, (50, 8, 12)), 1);
    assert_eq!(left(9, true, (50, 9, 21)), 1);
}

#[test]
fn a_heap_uses_the_gaps_of_a_buffer() {
    let carry = Lifetime::new(0, 640, BTreeMap::from([(0, 2), (6, 9)]));
    assert_eq!(heap_size(&[carry.clone(), value(640, 3, 5)]), Some(640));
    assert_eq!(heap_size(&[carry.clone(), value(640, 2, 5)]), Some(1280));
    assert_eq!(live_bytes(&[carry], 10), [640, 640, 640, 0, 0, 0, 640, 640, 640, 640]);
}
