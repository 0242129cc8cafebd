//! Boxes of tensors, as runs of elements.

use std::ops::Range;

use meshloom_models::internals::{elements, fits, index, runs};
use meshloom_models::weights::whole;

#[test]
fn runs_are_as_long_as_they_can_be() {
    let said = |shape: &[usize], region: &[Range<usize>]| format!("{:?}", runs(shape, region).collect::<Vec<_>>());
    let shape = [4, 3, 5];
    assert_eq!(said(&shape, &whole(&shape)), "[0..60]");
    assert_eq!(said(&shape, &[1..3, 0..3, 0..5]), "[15..45]");
    assert_eq!(said(&shape, &[1..3, 1..3, 0..5]), "[20..30, 35..45]");
    assert_eq!(said(&shape, &[0..2, 2..3, 1..3]), "[11..13, 26..28]");
    assert_eq!(said(&[4, 1, 1], &[1..3, 0..1, 0..1]), "[1..3]");
    assert_eq!(said(&[], &[]), "[0..1]");
    assert_eq!(said(&shape, &[0..4, 1..1, 0..5]), "[]");
    assert_eq!(said(&[0, 7], &[0..0, 0..7]), "[]");
}

#[test]
fn runs_are_the_elements_of_the_box_in_order() {
    let (shape, region) = ([3, 4, 2, 5], [1..3, 0..3, 1..2, 2..5]);
    let found: Vec<usize> = runs(&shape, &region).flatten().collect();
    let expected: Vec<usize> = (0..elements(&region))
        .map(|number| index(&region, number).iter().zip(shape).fold(0, |position, (at, size)| position * size + at))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn boxes_that_do_not_fit() {
    assert!(fits(&[2, 3], &[0..2, 3..3]) && fits(&[], &[]));
    let reversed = Range { start: 2, end: 1 };
    for region in [Vec::new(), vec![0..2, 0..4], vec![0..2, reversed], vec![0..2, 0..3, 0..1]] {
        assert!(!fits(&[2, 3], &region), "{region:?}");
    }
}
