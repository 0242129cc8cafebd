//! Smallest cuts of networks, which choose what a backward pass keeps.

use meshloom::internals::{Network, UNBOUNDED};

/// Returns the source's side of a network of `count` further vertices, numbered from 2.
fn cut(count: usize, arcs: &[(usize, usize, u128)]) -> Vec<usize> {
    let mut network = Network::new();
    (0..count).for_each(|_| {
        network.vertex();
    });
    arcs.iter().for_each(|&(from, to, capacity)| network.arc(from, to, capacity));
    network.cut().iter().enumerate().filter_map(|(vertex, &near)| near.then_some(vertex)).collect()
}

#[test]
fn cuts_are_smallest() {
    assert_eq!(cut(1, &[(0, 2, 5), (2, 1, 3)]), [0, 2]);
    assert_eq!(cut(1, &[(0, 2, 3), (2, 1, 5)]), [0]);
    assert_eq!(cut(2, &[(0, 2, 9), (0, 3, 9), (2, 3, 9), (2, 1, 2), (3, 1, 4)]), [0, 2, 3]);
    // A path must give back what went the wrong way at first.
    let crossed = [(0, 2, 1), (0, 3, 1), (2, 4, 1), (2, 5, 1), (3, 4, 1), (4, 1, 1), (5, 1, 1)];
    assert_eq!(cut(4, &crossed), [0]);
    assert_eq!(cut(1, &[(0, 2, UNBOUNDED), (2, 1, 7)]), [0, 2]);
}
