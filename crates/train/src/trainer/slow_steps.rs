//! Steps that take much longer than those before: who waits for a run is told while they still run.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The multiple of the median of the steps before from which on a step counts as slow.
const FACTOR: f64 = 20.0;

/// A median needs this many steps at least. Before them, no step is reported.
const FEWEST: usize = 5;

/// A median is that of this many steps at most: the last ones.
const MOST: usize = 64;

/// A call of one or several steps that still runs after much more time than those before took.
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

/// The function that is told of a slow step.
type Listener = Box<dyn Fn(SlowStep) + Send + Sync>;

/// Times calls, and tells of one that takes too long.
pub struct SlowStepWatch {
    recent: VecDeque<Duration>,
    /// The time before which no call is reported, however short the calls before it were.
    pub patience: Duration,
    listener: Option<Listener>,
}

impl Default for SlowStepWatch {
    fn default() -> SlowStepWatch {
        SlowStepWatch { recent: VecDeque::new(), patience: Duration::from_secs(1), listener: None }
    }
}

impl SlowStepWatch {
    /// Sets the listener that is told of slow steps.
    pub fn listen(&mut self, listener: impl Fn(SlowStep) + Send + Sync + 'static) {
        self.listener = Some(Box::new(listener));
    }

    /// Runs a call of so many steps that begins with a step.
    pub fn call<R>(&mut self, step: u64, count: usize, run: impl FnOnce() -> R) -> R {
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
