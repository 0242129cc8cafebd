//! The watch over the other processes of a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshloom_pjrt::end_process;

use crate::mpi::GiveUp;
use crate::store::Store;

/// The longest time without news from the store before it is asked again.
const AT_MOST: Duration = Duration::from_secs(10);

/// The pause after a question that the store did not answer.
const MOMENT: Duration = Duration::from_millis(500);

/// The time that this process may take to end by an error of its own when another is lost and collectives are told of
/// it. Collectives and barriers notice it within a second. A process in which nothing notices it is ended then.
const GRACE: Duration = Duration::from_secs(20);

/// The same time if the plugin does the collectives and is not told: they wait until the process ends.
const GRACE_OF_PLUGINS: Duration = Duration::from_secs(2);

/// A thread that asks the store whether the other processes live. When one is lost, calls that wait for it are told. If
/// this process then does not end by itself, the thread ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<WatchShared>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct WatchShared {
    stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl WatchShared {
    fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Watch {
    /// `tells` says whether collectives are told of a loss.
    pub(crate) fn start(store: Arc<Store>, patience: Duration, tells: bool) -> Watch {
        let shared = Arc::new(WatchShared::default());
        let own = shared.clone();
        let grace = if tells { GRACE } else { GRACE_OF_PLUGINS };
        let watch = move || watch(&store, &own, grace);
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(watch);
        if let Err(error) = &thread {
            tracing::warn!("the other processes are not watched: {error}");
        }
        Watch { shared, patience }
    }

    /// Returns the function that a waiting collective asks.
    pub(crate) fn give_up(&self) -> Box<GiveUp<'static>> {
        let (shared, patience) = (self.shared.clone(), self.patience);
        Box::new(move |waited| {
            let late = || format!("another process has kept a collective waiting for {} s", waited.as_secs());
            shared.reason().or_else(|| (waited > patience).then(late))
        })
    }

    /// The reason why the run cannot go on, once another process is lost.
    pub(crate) fn reason(&self) -> Option<String> {
        self.shared.reason()
    }

    /// Ends the watch, because the others may leave now.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn watch(store: &Store, shared: &WatchShared, grace: Duration) {
    let is_stopped = || shared.stopped.load(Ordering::Acquire);
    let reason = loop {
        // If the store did not answer, it was asked repeatedly.
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
