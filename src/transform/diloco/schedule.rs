//! What is sent and applied after which step: plain data, without a program.
//!
//! The transform, the reference loop of the tests and the traffic profile all use it.

use super::options::{DilocoError, DilocoOptions};

/// A part of the parameters that syncs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// All parameters.
    Whole,
    /// Fragment 0 is everything outside the layers, each other one a share of the layers.
    Part(usize),
}

/// What happens after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its pseudo-gradients are reduced over the replicas, and its outer parameters and momentum replaced.
    pub sent: Option<Fragment>,
    /// Its outer parameters come into those of the replicas. After the sending, where both are of one step.
    pub applied: Option<Fragment>,
}

/// When fragments are sent, and when they are applied.
///
/// ```
/// use meshloom::transform::diloco::{DilocoOptions, Fragment, Streaming};
///
/// let streaming = Some(Streaming { fragments: 3, overlap_steps: 1, ..Streaming::default() });
/// let schedule = DilocoOptions { sync_period: 6, streaming, ..DilocoOptions::default() }.schedule()?;
/// assert_eq!(schedule.after_step(2).sent, Some(Fragment::Part(1)));
/// assert_eq!(schedule.after_step(3).applied, Some(Fragment::Part(1)));
/// assert_eq!(schedule.after_step(6).sent, Some(Fragment::Part(0)));
/// # Ok::<(), meshloom::transform::diloco::DilocoError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Steps from one sync to the next, k.
    every: usize,
    /// P; none if everything syncs at once.
    fragments: Option<usize>,
    /// Steps from sending to applying, tau.
    overlap: usize,
}

impl DilocoOptions {
    /// The schedule.
    ///
    /// # Errors
    /// As of [`DilocoOptions::validate`].
    pub fn schedule(&self) -> Result<Schedule, DilocoError> {
        self.validate()?;
        Ok(match self.streaming {
            None => Schedule { every: self.sync_period, fragments: None, overlap: 0 },
            Some(streaming) => Schedule {
                every: self.sync_period / streaming.fragments,
                fragments: Some(streaming.fragments),
                overlap: streaming.overlap_steps,
            },
        })
    }
}

impl Schedule {
    /// Steps from one sync to the next, of whatever fragment, k.
    pub fn every(&self) -> usize {
        self.every
    }

    /// Steps from sending to applying, tau.
    pub fn overlap(&self) -> usize {
        self.overlap
    }

    /// Number of fragments: 1 if everything syncs at once.
    pub fn fragment_count(&self) -> usize {
        self.fragments.unwrap_or(1)
    }

    /// The fragments, by number.
    pub fn fragments(&self) -> impl Iterator<Item = Fragment> + use<> {
        let streaming = self.fragments.is_some();
        (0..self.fragment_count()).map(move |number| if streaming { Fragment::Part(number) } else { Fragment::Whole })
    }

    /// Steps from one sync of a fragment to its next: then all repeats.
    pub fn period(&self) -> usize {
        self.every * self.fragment_count()
    }

    /// What happens after step `step`. Steps count from 1: nothing happens after step 0, which is the start.
    pub fn after_step(&self, step: usize) -> Event {
        Event { sent: self.sent(step), applied: step.checked_sub(self.overlap).and_then(|step| self.sent(step)) }
    }

    fn sent(&self, step: usize) -> Option<Fragment> {
        let syncs = step > 0 && step.is_multiple_of(self.every);
        syncs.then(|| match self.fragments {
            None => Fragment::Whole,
            Some(_) => Fragment::Part(step % self.period() / self.every),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Streaming;
    use super::*;

    fn schedule(sync_period: usize, streaming: Option<Streaming>) -> Schedule {
        DilocoOptions { sync_period, streaming, ..DilocoOptions::default() }
            .schedule()
            .expect("options that go together")
    }

    /// Events after steps 1, 2, ..: what is sent, then what is applied; `-` for nothing, `*` for all.
    fn events(schedule: Schedule, steps: usize) -> String {
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
}
