use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use meshloom_train::internals::SlowStepWatch;

/// Calls of several steps are compared with as many steps.
#[test]
fn calls_are_measured_by_their_steps() {
    let told: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut watch = SlowStepWatch::default();
    watch.patience = Duration::ZERO;
    let seen = told.clone();
    watch.listen(move |slow| seen.lock().expect("nobody panicked").push(slow.step));
    (1..6).for_each(|step| watch.call(step, 1, || thread::sleep(Duration::from_millis(10))));
    watch.call(6, 100, || thread::sleep(Duration::from_millis(400)));
    assert!(told.lock().expect("nobody panicked").is_empty());
}

#[test]
fn a_slow_call_is_told_of_once() {
    let told: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut watch = SlowStepWatch::default();
    watch.patience = Duration::from_millis(300);
    let seen = told.clone();
    watch.listen(move |slow| seen.lock().expect("nobody panicked").push(slow.step));
    // The first ones have nothing to be compared with.
    watch.call(1, 1, || thread::sleep(Duration::from_millis(500)));
    (2..8).for_each(|step| watch.call(step, 1, || ()));
    assert!(told.lock().expect("nobody panicked").is_empty());
    watch.call(8, 1, || thread::sleep(Duration::from_secs(1)));
    assert_eq!(*told.lock().expect("nobody panicked"), [8]);
    let failed: Result<(), ()> = watch.call(9, 1, || Err(()));
    assert_eq!((failed, told.lock().expect("nobody panicked").len()), (Err(()), 1));
}
