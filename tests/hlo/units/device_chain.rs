use meshloom::analysis::internals::DeviceChain;

#[test]
fn lines_are_told_from_other_permutes() {
    let line = |devices: &[u64], backward, closed| Some(DeviceChain { devices: devices.to_vec(), backward, closed });
    type Case = (&'static [(u64, u64)], Option<DeviceChain>);
    let cases: [Case; 10] = [
        (&[(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)], line(&[0, 1, 2, 3], false, true)),
        (&[(1, 0), (2, 1), (3, 2), (0, 3)], line(&[0, 1, 2, 3], true, true)),
        (&[(0, 1), (1, 2), (2, 3)], line(&[0, 1, 2, 3], false, false)),
        (&[(0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)], line(&[0, 2, 4, 6], false, false)),
        (&[(3, 2), (2, 1), (1, 0), (7, 6), (6, 5), (5, 4)], line(&[0, 1, 2, 3], true, false)),
        (&[(0, 1), (1, 0)], line(&[0, 1], false, true)),
        // One line shorter than the other, a jump, two that send to the same, nothing at all.
        (&[(0, 1), (1, 2), (4, 5)], None),
        (&[(0, 1), (1, 3)], None),
        (&[(0, 1), (2, 1)], None),
        (&[], None),
    ];
    for (pairs, expected) in cases {
        assert_eq!(DeviceChain::of(pairs), expected, "{pairs:?}");
    }
}
