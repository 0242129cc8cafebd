//! Whether the other processes of a run are alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshloom_pjrt::end_process;

use crate::crossing::GiveUp;
use crate::store::Store;

/// How long the store may tell nothing until it is asked again.
const AT_MOST: Duration = Duration::from_secs(10);

/// How long to wait for a store that does not answer.
const MOMENT: Duration = Duration::from_millis(500);

/// How long this process may take to end by an error of its own when another is lost, where collectives are told of
/// it: they and barriers notice it within a second. What notices nothing is ended with the process.
const GRACE: Duration = Duration::from_secs(20);

/// The same where a plugin does the collectives, and is not told: they wait until the process ends.
const GRACE_OF_PLUGINS: Duration = Duration::from_secs(2);

/// A thread that asks the store who is alive. When a process is lost, those that wait for it are told; and if this
/// process then does not end by itself, the thread ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Shared {
    fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Watch {
    /// `tells` says whether collectives are told of a loss.
    pub(crate) fn start(store: Arc<Store>, patience: Duration, tells: bool) -> Watch {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let grace = if tells { GRACE } else { GRACE_OF_PLUGINS };
        let watch = move || watch(&store, &own, grace);
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(watch);
        if let Err(error) = &thread {
            tracing::warn!("the other processes are not watched: {error}");
        }
        Watch { shared, patience }
    }

    /// What a collective that waits is to ask.
    pub(crate) fn give_up(&self) -> GiveUp {
        let (shared, patience) = (self.shared.clone(), self.patience);
        Box::new(move |waited| {
            let late = || format!("another process has kept a collective waiting for {} s", waited.as_secs());
            shared.reason().or_else(|| (waited > patience).then(late))
        })
    }

    /// Why the run cannot go on, once another process is lost.
    pub(crate) fn reason(&self) -> Option<String> {
        self.shared.reason()
    }

    /// Ends the watch: others may go now.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn watch(store: &Store, shared: &Shared, grace: Duration) {
    let is_stopped = || shared.stopped.load(Ordering::Acquire);
    let reason = loop {
        // If the store does not answer, it was asked again and again.
        let found = store.check_others();
        if is_stopped() {
            return;
        }
        if let Err(error) = found {
            break error.to_string();
        }
        if let Err(error) = store.wait_for_loss(AT_MOST) {
            tracing::debug!("{error}");
            std::thread::sleep(MOMENT);
        }
    };
    *shared.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.clone());
    std::thread::sleep(grace);
    if !is_stopped() {
        tracing::error!("{reason}; this process ends");
        end_process(1);
    }
}
