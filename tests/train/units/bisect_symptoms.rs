use meshloom::ir::Literal;
use meshloom_cli::internals::{Kind, Symptom};
use meshloom_cli::internals::{difference, not_finite};

#[test]
fn nan_is_equal_to_nan_alone() {
    let of = |numbers: &[f32]| vec![Literal::vector(numbers)];
    assert_eq!(difference(&of(&[1.0, f32::NAN]), &of(&[1.0, f32::NAN]), 1e-4), None);
    assert_eq!(difference(&of(&[1.0, 2.0]), &of(&[1.0001, 2.0]), 1e-4), None);
    let found = difference(&of(&[1.0, 2.0, 3.0]), &of(&[1.0, f32::NAN, 4.0]), 1e-4);
    assert!(matches!(found, Some(Symptom::Differs { element: 1, count: 2, of: 3, .. })), "{found:?}");
    assert!(not_finite(&of(&[1.0, f32::INFINITY])).is_some_and(|it| it.kind() == Kind::NotFinite));
    assert_eq!(not_finite(&[Literal::vector(&[1i32])]), None);
}

#[test]
fn checks_are_told_apart_by_their_place() {
    let crash = |said: &str| Symptom::Crash { signal: 6, said: Some(said.to_owned()) };
    let first = crash("F0000 00:00:1.1 7 b.cc:2] Check failed: x == y (1 vs. 2)");
    assert!(first.is_like(&crash("F0000 00:00:9.9 8 b.cc:2] Check failed: x == y (3 vs. 2)")));
    assert!(!first.is_like(&crash("F0000 00:00:9.9 8 c.cc:2] Check failed: x == y (3 vs. 2)")));
    assert_eq!(first.to_string(), "the process ends by signal 6: b.cc:2] Check failed: x == y (1 vs. 2)");
}
