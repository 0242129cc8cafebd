//! Steps that take much longer than those before: who waits for a run is told while they still run.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How many times the median of the steps before is told of.
const FACTOR: f64 = 20.0;

/// Steps until a median says something; and of how many it is taken.
const FEWEST: usize = 5;
const MOST: usize = 64;

/// Steps that still run after much more time than those before took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowStep {
    /// The first of them, from 1.
    pub step: u64,
    /// The time so far.
    pub elapsed: Duration,
    /// The median of the time that steps before took.
    pub median: Duration,
}

impl fmt::Display for SlowStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [elapsed, median] = [self.elapsed, self.median].map(|time| time.as_secs_f64());
        write!(f, "step {} still runs after {elapsed:.1} s; steps before took {median:.2} s (median)", self.step)
    }
}

/// Who is told.
type Listener = Box<dyn Fn(SlowStep) + Send + Sync>;

/// Times calls, and tells of one that takes too long.
pub(super) struct Watch {
    recent: VecDeque<Duration>,
    /// A call is not told of before this, however short those before were.
    patience: Duration,
    listener: Option<Listener>,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { recent: VecDeque::new(), patience: Duration::from_secs(1), listener: None }
    }
}

impl Watch {
    pub(super) fn listen(&mut self, listener: impl Fn(SlowStep) + Send + Sync + 'static) {
        self.listener = Some(Box::new(listener));
    }

    /// Runs a call of so many steps that begins with a step.
    pub(super) fn call<R>(&mut self, step: u64, count: usize, run: impl FnOnce() -> R) -> R {
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let (start, median) = (Instant::now(), self.median());
        let told = self.listener.as_ref().zip(median);
        let result = thread::scope(|scope| {
            // Dropped when the call ends, however it does.
            let (_ended, running) = channel::<()>();
            if let Some((listener, median)) = told {
                let limit = median.mul_f64(FACTOR * f64::from(count)).max(self.patience);
                scope.spawn(move || {
                    if running.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                        listener(SlowStep { step, elapsed: start.elapsed(), median });
                    }
                });
            }
            run()
        });
        self.recent.push_back(start.elapsed() / count);
        self.recent.drain(..self.recent.len().saturating_sub(MOST));
        result
    }

    fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.len() >= FEWEST).then(|| sorted[sorted.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Calls of several steps are compared with as many steps.
    #[test]
    fn calls_are_measured_by_their_steps() {
        let told: Arc<Mutex<Vec<u64>>> = Arc::default();
        let mut watch = Watch { patience: Duration::ZERO, ..Watch::default() };
        let seen = told.clone();
        watch.listen(move |slow| seen.lock().expect("nobody panicked").push(slow.step));
        (1..6).for_each(|step| watch.call(step, 1, || thread::sleep(Duration::from_millis(10))));
        watch.call(6, 100, || thread::sleep(Duration::from_millis(400)));
        assert!(told.lock().expect("nobody panicked").is_empty());
    }

    #[test]
    fn a_slow_call_is_told_of_once() {
        let told: Arc<Mutex<Vec<u64>>> = Arc::default();
        let mut watch = Watch { patience: Duration::from_millis(40), ..Watch::default() };
        let seen = told.clone();
        watch.listen(move |slow| seen.lock().expect("nobody panicked").push(slow.step));
        // The first ones have nothing to be compared with.
        watch.call(1, 1, || thread::sleep(Duration::from_millis(100)));
        (2..8).for_each(|step| watch.call(step, 1, || ()));
        assert!(told.lock().expect("nobody panicked").is_empty());
        watch.call(8, 1, || thread::sleep(Duration::from_secs(1)));
        assert_eq!(*told.lock().expect("nobody panicked"), [8]);
        let failed: Result<(), ()> = watch.call(9, 1, || Err(()));
        assert_eq!((failed, told.lock().expect("nobody panicked").len()), (Err(()), 1));
    }
}
