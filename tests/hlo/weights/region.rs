//! Boxes of tensors.

use std::ops::Range;

use meshloom_models::internals::fits;

#[test]
fn boxes_that_do_not_fit() {
    assert!(fits(&[2, 3], &[0..2, 3..3]) && fits(&[], &[]));
    let reversed = Range { start: 2, end: 1 };
    for region in [Vec::new(), vec![0..2, 0..4], vec![0..2, reversed], vec![0..2, 0..3, 0..1]] {
        assert!(!fits(&[2, 3], &region), "{region:?}");
    }
}
