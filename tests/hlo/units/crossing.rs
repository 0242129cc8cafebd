use meshloom::hlo::ReduceKind;
use meshloom::hlo::crossing::{Crossing, CrossingKind};

#[test]
fn a_text_says_what_a_crossing_is() {
    let kinds = [
        CrossingKind::AllGather,
        CrossingKind::AllReduce(ReduceKind::Max),
        CrossingKind::AllToAll,
        CrossingKind::CollectivePermute(vec![(0, 1), (3, 0)]),
        CrossingKind::CollectivePermute(Vec::new()),
        CrossingKind::ReduceScatter(ReduceKind::Sum),
    ];
    for kind in kinds {
        let crossing = Crossing { kind, axes: vec![2, 0], mesh: vec![2, 3, 2], processes: 2 };
        assert_eq!(crossing.to_string().parse(), Ok(crossing.clone()));
        assert_eq!(Crossing::of_backend_config(&crossing.backend_config()), Ok(crossing));
    }
    let wrong = [
        "all-reduce over 0 of 2x4 in 2 processes",
        "all-gather over 2 of 2x4 in 2 processes",
        "all-gather over 0,0 of 2x4 in 2 processes",
        "all-gather over 0 of 2x4 in 3 processes",
        "all-gather over 0 of 2x4 in 0 processes",
        "all-gather",
        "",
    ];
    for text in wrong {
        assert!(text.parse::<Crossing>().is_err(), "{text}");
    }
}

#[test]
fn groups_are_of_devices_that_differ_along_the_axes() {
    let over = |axes: &[usize]| Crossing {
        kind: CrossingKind::AllGather,
        axes: axes.to_vec(),
        mesh: vec![2, 3, 2],
        processes: 2,
    };
    assert_eq!(over(&[0]).group(7), (vec![1, 7], 1));
    assert_eq!(over(&[2, 0]).group(8), (vec![2, 8, 3, 9], 1));
    assert_eq!(over(&[0, 1, 2]).group(11), ((0..12).collect(), 11));
    assert_eq!(over(&[0]).devices(), 6);
}
