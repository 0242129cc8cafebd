//! Counts what a test program costs: compilations by XLA in its process, and the processes that it starts.
//!
//! The counts are printed when the program ends. In the small tier a program that exceeds its budget fails. Raising a
//! budget, like raising a tolerance, needs a reason.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshloom::pjrt::COMPILATION;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The least size in bytes of a module that counts as a whole step. The step of a decoder of two layers has 200 KB;
/// single ops and small functions have less than 20 KB.
const WHOLE_STEP: u64 = 60_000;

static STEPS: AtomicUsize = AtomicUsize::new(0);
static MODULES: AtomicUsize = AtomicUsize::new(0);
static PROCESSES: AtomicUsize = AtomicUsize::new(0);

/// The most that a test program may cost in the small tier.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Compilations of large modules by XLA in the process.
    pub steps: usize,
    /// Compilations of small modules by XLA in the process.
    pub modules: usize,
    /// Processes that the program starts.
    pub processes: usize,
}

/// Returns a command that starts a process, and counts it.
pub fn process(program: impl AsRef<OsStr>) -> Command {
    PROCESSES.fetch_add(1, Ordering::Relaxed);
    Command::new(program)
}

/// Counts processes that a library has started, such as workers.
pub fn started(count: usize) {
    PROCESSES.fetch_add(count, Ordering::Relaxed);
}

/// Counts compilations from here on.
pub(crate) fn count_compilations() {
    // The test process may also be another program, such as a worker, which may have its own subscriber.
    let _ = tracing::subscriber::set_global_default(Compilations);
}

/// Prints the counts, and ends the process with a failure if they exceed the budget. Libtest has ended by then.
pub(crate) fn report(program: &str, budget: Budget) {
    let counts = [&STEPS, &MODULES, &PROCESSES].map(|count| count.load(Ordering::Relaxed));
    let [steps, modules, processes] = counts;
    if counts == [0; 3] {
        return;
    }
    let limits = [budget.steps, budget.modules, budget.processes];
    eprintln!(
        "{program}: {steps} of {} whole steps and {modules} of {} small modules compiled, {processes} of {} processes \
         started",
        budget.steps, budget.modules, budget.processes
    );
    let exceeds = counts.iter().zip(limits).any(|(&count, limit)| count > limit);
    if exceeds && !crate::cases::more_than_few() {
        eprintln!("{program}: FAILED: it exceeds its budget, which is stated beside its modules");
        meshloom::pjrt::end_process(1);
    }
}

/// A subscriber that counts the events of compilations and nothing else.
struct Compilations;

impl Subscriber for Compilations {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == COMPILATION
    }

    fn event(&self, event: &Event<'_>) {
        struct Size(u64);
        impl Visit for Size {
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

            fn record_u64(&mut self, field: &Field, value: u64) {
                if field.name() == "bytes" {
                    self.0 = value;
                }
            }
        }
        let mut size = Size(0);
        event.record(&mut size);
        let count = if size.0 >= WHOLE_STEP { &STEPS } else { &MODULES };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
