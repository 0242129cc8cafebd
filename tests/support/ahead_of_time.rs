//! Compiling ahead of time: targets, and what became of the worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use meshloom::pjrt::ahead_of_time::{self, DescribedTopology, Settings, WorkerFailure};
use meshloom::pjrt::{PjrtError, Topology};

use crate::counts;

pub fn topology(text: &str) -> Topology {
    Topology::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Asks a plugin to describe a topology. A test program asks once for each, by a worker that is the program itself.
pub fn described(target: &str) -> DescribedTopology {
    type Described = BTreeMap<String, Arc<OnceLock<DescribedTopology>>>;
    static DESCRIBED: Mutex<Described> = Mutex::new(Described::new());
    let mut all = DESCRIBED.lock().unwrap_or_else(PoisonError::into_inner);
    let own = all.entry(target.to_owned()).or_default().clone();
    drop(all);
    let describe = || {
        counts::started(1);
        let described = ahead_of_time::describe(&topology(target), &Settings::default());
        described.unwrap_or_else(|error| panic!("{target}: {error}"))
    };
    own.get_or_init(describe).clone()
}

/// Returns the text of the error, and the failure of the worker.
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

/// Returns the error with which the worker or its plugin refused.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, PjrtError>) -> PjrtError {
    match failure(result) {
        (_, WorkerFailure::Refused(error)) => error,
        (text, _) => panic!("not a refusal: {text}"),
    }
}
