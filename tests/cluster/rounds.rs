//! Decisions of replicas on a round, made from the entries of the store.

use meshloom_cluster::internals::{Keys, Present, Undecided, held_key, present_key, round_key};
use meshloom_cluster::store::Entry;
use serde::Serialize;

fn entry(name: &str, value: &impl Serialize, lease: i64) -> Entry {
    Entry { name: name.to_owned(), value: serde_json::to_vec(value).expect("JSON"), lease }
}

fn present(replica: usize, lease: i64, step: u64) -> Entry {
    let present = Present { address: format!("host-{replica}:1"), step, form: "a = 1".to_owned() };
    entry(&present_key(replica), &present, lease)
}

fn held(round: u64, replica: usize, whose: &[usize]) -> Entry {
    entry(&held_key(round, replica), &whose, 0)
}

#[test]
fn a_run_begins_with_those_who_have_done_most() {
    let keys = Keys::of(&[present(0, 10, 4), present(1, 11, 8), present(2, 12, 8)]);
    assert_eq!(keys.first(1), None);
    let first = keys.first(0).expect("a decision");
    assert_eq!((first.step, &first.joining[..], first.members.len()), (8, &[0][..], 3));
    assert_eq!(first.giver().map(|seat| seat.replica), Some(1));
}

#[test]
fn what_all_hold_counts() {
    let all = [present(0, 10, 0), present(1, 11, 0), present(2, 12, 0)];
    let before = Keys::of(&all).first(0).expect("a decision");
    let with = |more: &[Entry]| Keys::of(&[&all[..], more].concat());
    // Replica 2 has not said what it holds.
    let two = [held(6, 0, &[0, 1, 2]), held(6, 1, &[0, 1])];
    assert_eq!(with(&two).decide(0, (6, 9), &before, (1, false)), Err(Undecided::Others));
    let late = with(&two).decide(0, (6, 9), &before, (1, true)).expect("a decision");
    assert_eq!((&late.messages[..], late.members.len(), &late.joining[..]), (&[0, 1][..], 2, &[][..]));
    assert_eq!(late.left, [12]);
    // The next decision does not take it in either.
    let next = [held(12, 0, &[0, 1]), held(12, 1, &[0, 1]), entry(&round_key(6), &late, 0)];
    let next = with(&next).decide(0, (12, 15), &late, (1, false)).expect("a decision");
    assert_eq!((&next.joining[..], &next.left[..]), (&[][..], &[12][..]));
    let three = [&two[..], &[held(6, 2, &[0, 1, 2])]].concat();
    assert_eq!(with(&three).decide(1, (6, 9), &before, (1, false)), Err(Undecided::Others));
    let decision = with(&three).decide(0, (6, 9), &before, (1, false)).expect("a decision");
    assert_eq!((&decision.messages[..], decision.members.len(), decision.step), (&[0, 1][..], 3, 9));
}

#[test]
fn who_is_gone_is_left_out_and_comes_back_as_another() {
    let before = [present(0, 10, 0), present(1, 11, 0)];
    let before = Keys::of(&before).first(0).expect("a decision");
    // Replica 0 has died, and been started again; its message was there before.
    let now = [present(0, 20, 0), present(1, 11, 0), held(6, 1, &[0, 1])];
    let keys = Keys::of(&now);
    assert!(!keys.lives(&before.members[0]) && keys.lives(&before.members[1]));
    let decision = keys.decide(1, (6, 6), &before, (2, false)).expect("a decision");
    assert_eq!((&decision.messages[..], &decision.joining[..]), (&[0, 1][..], &[0][..]));
    assert_eq!(decision.giver().map(|seat| seat.replica), Some(1));
    // No other replica takes its place, so there are too few.
    let keys = Keys::of(&now[1..]);
    assert_eq!(keys.decide(1, (6, 6), &before, (2, false)), Err(Undecided::TooFew(1)));
}
