//! Sorting where the time of a build counts more than that of a sort: the standard library's is compiled anew for each
//! type and comparison, and is large.

use std::cmp::Ordering;

/// Sorts by a comparison. Equal items keep their order.
pub fn by<T>(items: &mut Vec<T>, compare: impl Fn(&T, &T) -> Ordering) {
    let mut order: Vec<usize> = (0..items.len()).collect();
    places(&mut order, &|one, other| compare(&items[one], &items[other]));
    let mut unsorted: Vec<Option<T>> = items.drain(..).map(Some).collect();
    items.extend(order.into_iter().filter_map(|place| unsorted[place].take()));
}

/// Sorts by a key. Items with equal keys keep their order.
pub fn by_key<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K) {
    by(items, |one, other| key(one).cmp(&key(other)));
}

fn places(order: &mut [usize], compare: &dyn Fn(usize, usize) -> Ordering) {
    order.sort_by(|&one, &other| compare(one, other));
}
