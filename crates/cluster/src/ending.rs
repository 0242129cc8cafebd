//! The agreement on the step after which all processes end, when one of them asks for it.
//!
//! Processes begin the same calls in the same order, but not at the same time. A process that waits in a collective
//! needs the others to begin theirs. So a process that learns of the request begins no further call until it has
//! written which call it has begun last, and has read the same of all others. The run ends before the first call that
//! no process has begun. A thread does this, because the process itself may wait in a call.
//!
//! | key | written by | says |
//! |---|---|---|
//! | `ending/asked` | the first process that asks | why |
//! | `ending/begun/N` | process N | the steps that were done before the last call that it has begun; -1 before the first |

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::store::{Store, StoreError};

const ASKED: &str = "ending/asked";

/// The time after which the store is asked again.
const AT_MOST: Duration = Duration::from_secs(10);

/// The part of the agreement on the last step that this process knows.
#[derive(Debug, Default)]
pub(crate) struct Ending(Arc<Shared>);

#[derive(Debug)]
struct Progress {
    /// The steps that were done before the last call that has begun.
    begun: i64,
    /// The largest such number of all processes, and the reason why they end.
    decided: Option<Result<(i64, String), StoreError>>,
    stopped: bool,
}

#[derive(Debug)]
struct Shared(Mutex<Progress>);

impl Default for Shared {
    fn default() -> Shared {
        Shared(Mutex::new(Progress { begun: -1, decided: None, stopped: false }))
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ending {
    /// Begins to wait for a request. `patience` is the time that other processes may take to answer it.
    pub(crate) fn start(store: Arc<Store>, place: (usize, usize), patience: Duration) -> Ending {
        let ending = Ending::default();
        let shared = ending.0.clone();
        let wait = move || wait_for_wish(&store, &shared, place, patience);
        if let Err(error) = std::thread::Builder::new().name("ending".to_owned()).spawn(wait) {
            tracing::warn!("the run does not end behind a step when a process is asked to: {error}");
        }
        ending
    }

    /// Asks all to end.
    pub(crate) fn ask(store: &Store, why: &str) -> Result<(), StoreError> {
        match store.put(ASKED, why.as_bytes()) {
            Err(StoreError::AlreadyExists { .. }) => Ok(()),
            written => written,
        }
    }

    /// Returns why all processes end after `done` steps; `None` if the next call begins.
    pub(crate) fn after(&self, done: u64) -> Result<Option<String>, StoreError> {
        let done = i64::try_from(done).unwrap_or(i64::MAX);
        let mut progress = self.0.lock();
        match &progress.decided {
            Some(Err(error)) => return Err(error.clone()),
            Some(Ok((last, why))) if done > *last => return Ok(Some(why.clone())),
            _ => {}
        }
        progress.begun = done;
        Ok(None)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
    }
}

fn wait_for_wish(store: &Store, shared: &Shared, (number, count): (usize, usize), patience: Duration) {
    let why = loop {
        match store.get(ASKED, AT_MOST) {
            Ok(why) => break String::from_utf8_lossy(&why).into_owned(),
            Err(StoreError::DeadlineExceeded { .. }) => {}
            // The watch finds out whether the store is lost.
            Err(error) => {
                tracing::debug!("{error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        if shared.lock().stopped {
            return;
        }
    };
    // The lock is held until all have answered, so that no call begins meanwhile.
    let mut progress = shared.lock();
    let key = |process: usize| format!("ending/begun/{process}");
    let decide = || {
        store.put(&key(number), progress.begun.to_string().as_bytes())?;
        let mut last = progress.begun;
        for other in (0..count).filter(|&other| other != number) {
            let begun = store.get_from_others(&key(other), patience)?;
            last = last.max(String::from_utf8_lossy(&begun).parse().unwrap_or(-1));
        }
        Ok((last, why.clone()))
    };
    let decided = decide();
    progress.decided = Some(decided);
}
