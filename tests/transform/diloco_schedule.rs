//! The steps at which replicas synchronize, and the fragments that they exchange.

use meshloom::transform::diloco::{DilocoOptions, Event, Fragment, Streaming, SyncSchedule};

fn schedule(sync_period: usize, streaming: Option<Streaming>) -> SyncSchedule {
    DilocoOptions { sync_period, streaming, ..DilocoOptions::default() }.schedule().expect("options that go together")
}

/// Events after steps 1, 2, ..: what is sent, then what is applied; `-` for nothing, `*` for all.
fn events(schedule: SyncSchedule, steps: usize) -> String {
    let name = |fragment| match fragment {
        None => "-".to_owned(),
        Some(Fragment::Whole) => "*".to_owned(),
        Some(Fragment::Part(number)) => number.to_string(),
    };
    let events = (1..=steps).map(|step| schedule.after_step(step));
    events.map(|event| name(event.sent) + &name(event.applied)).collect::<Vec<_>>().join(" ")
}

#[test]
fn all_at_once() {
    assert_eq!(events(schedule(3, None), 7), "-- -- ** -- -- ** --");
    assert_eq!(schedule(3, None).period(), 3);
    assert_eq!(schedule(3, None).after_step(0), Event::default());
}

#[test]
fn in_turns() {
    let streaming = Streaming { fragments: 3, ..Streaming::default() };
    assert_eq!(events(schedule(6, Some(streaming)), 8), "-- 11 -- 22 -- 00 -- 11");
    let late = Streaming { overlap_steps: 1, ..streaming };
    assert_eq!(events(schedule(6, Some(late)), 9), "-- 1- -1 2- -2 0- -0 1- -1");
    // Several fragments may be under way.
    let later = Streaming { overlap_steps: 5, ..streaming };
    assert_eq!(events(schedule(6, Some(later)), 9), "-- 1- -- 2- -- 0- -1 1- -2");
}

#[test]
fn rounded_down() {
    let streaming = Streaming { fragments: 3, ..Streaming::default() };
    let schedule = schedule(20, Some(streaming));
    assert_eq!((schedule.every(), schedule.period()), (6, 18));
    assert_eq!(schedule.after_step(20), Event::default());
}
