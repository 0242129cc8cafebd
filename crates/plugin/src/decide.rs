//! Has a [`Rewrite`] decide, so that whatever happens there stays there.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

use super::request::Request;
use super::rewrite::{Decision, Reason, Rewrite};

/// The stack in bytes that a decision has. Memory is taken as it is used.
const STACK: usize = 64 << 20;

/// Decides about a program. Also returns the milliseconds that it took.
pub(crate) fn decide(rewrite: &dyn Rewrite, request: &Request<'_>) -> (Decision, f64) {
    let start = Instant::now();
    let decision = thread::scope(|scope| {
        let decide = || catch_unwind(AssertUnwindSafe(|| rewrite.rewrite(request)));
        let thread = thread::Builder::new().name("meshloom".into()).stack_size(STACK).spawn_scoped(scope, decide);
        match thread.map(|thread| thread.join().and_then(|decided| decided)) {
            Ok(Ok(decision)) => decision,
            Ok(Err(panic)) => Decision::passed_on(Reason::Panicked(message(&*panic))),
            Err(error) => Decision::passed_on(Reason::NoThread(error.to_string())),
        }
    });
    (decision, milliseconds(start))
}

/// The milliseconds since then.
pub(crate) fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// The message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it does not say why".to_owned())
}
