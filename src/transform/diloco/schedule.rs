//! The fragments that are sent and applied after each step: plain data, without a program.
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

/// The events after one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The fragment that is sent: its pseudo-gradients are reduced over the replicas, and its outer parameters and
    /// momentum are replaced.
    pub sent: Option<Fragment>,
    /// The fragment that is applied: its outer parameters come into those of the replicas. This happens after the
    /// sending if both belong to the same step.
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
pub struct SyncSchedule {
    /// Steps from one sync to the next, k.
    every: usize,
    /// The number of fragments, P; `None` if everything syncs at once.
    fragments: Option<usize>,
    /// Steps from sending to applying, tau.
    overlap: usize,
}

impl DilocoOptions {
    /// The schedule.
    ///
    /// # Errors
    /// The errors of [`DilocoOptions::validate`].
    pub fn schedule(&self) -> Result<SyncSchedule, DilocoError> {
        self.validate()?;
        Ok(match self.streaming {
            None => SyncSchedule { every: self.sync_period, fragments: None, overlap: 0 },
            Some(streaming) => SyncSchedule {
                every: self.sync_period / streaming.fragments,
                fragments: Some(streaming.fragments),
                overlap: streaming.overlap_steps,
            },
        })
    }
}

impl SyncSchedule {
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

    /// Steps from one sync of a fragment to its next, after which the schedule repeats.
    pub fn period(&self) -> usize {
        self.every * self.fragment_count()
    }

    /// The events after step `step`. Steps count from 1: nothing happens after step 0, which is the start.
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
