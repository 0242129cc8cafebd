//! Compiling ahead of time: targets, and what became of the worker.

use meshloom::pjrt::ahead_of_time::WorkerFailure;
use meshloom::pjrt::{PjrtError, Topology};

pub fn topology(text: &str) -> Topology {
    Topology::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// What became of the worker.
pub fn failure<T: std::fmt::Debug>(result: Result<T, PjrtError>) -> (String, WorkerFailure) {
    match result.expect_err("this must fail") {
        error @ PjrtError::Worker { .. } => {
            let text = error.to_string();
            let PjrtError::Worker { failure, .. } = error else { unreachable!() };
            (text, *failure)
        }
        error => panic!("not about the worker: {error}"),
    }
}

/// What the worker or its plugin refused.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, PjrtError>) -> PjrtError {
    match failure(result) {
        (_, WorkerFailure::Refused(error)) => error,
        (text, _) => panic!("not a refusal: {text}"),
    }
}
