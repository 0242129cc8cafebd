//! The reasons for which a run ends before its last step: signals and notices.
//!
//! | event | while training | before and after |
//! |---|---|---|
//! | the first SIGTERM, SIGINT or SIGHUP | the step ends, then the run, its state saved | the process ends |
//! | the second | the process ends | |
//! | the deadline of `--grace` | the process ends | |
//!
//! The exit code is 128 and the number of the signal, as that of a program which the signal ends: 143 of SIGTERM, 130
//! of SIGINT. Slurm sends SIGTERM `KillWait` before it kills, or as `sbatch --signal` says; Kubernetes sends it
//! `terminationGracePeriodSeconds` before. A process with the number 1, as in a container, is not ended by a signal
//! that it does not handle, so the process handles them from its start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use meshloom::pjrt::{end_process, is_ignored};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use meshloom_train::peers::Peers;

/// The signals that end a run, with their names.
const SIGNALS: [(i32, &str); 3] = [(SIGTERM, "SIGTERM"), (SIGINT, "SIGINT"), (SIGHUP, "SIGHUP")];

/// How often Google's metadata server is asked.
pub(crate) const ASKED_EVERY: Duration = Duration::from_secs(5);

/// The variable that names another metadata server, as for Google's own libraries.
const METADATA_HOST: &str = "GCE_METADATA_HOST";

/// Returns the name of Google's metadata server.
pub(crate) fn metadata_host() -> String {
    std::env::var(METADATA_HOST).unwrap_or_else(|_| "metadata.google.internal".to_owned())
}

/// Whether a run is asked to end before its last step, and why.
#[derive(Clone, Debug, Default)]
pub struct Interrupts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    trains: AtomicBool,
    grace: Mutex<Option<Duration>>,
    asked: Mutex<Option<Interrupt>>,
}

/// A reason to end a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The exit code.
    pub code: u8,
    /// The reason, to be shown.
    pub reason: String,
}

impl Interrupt {
    fn to_text(&self) -> String {
        format!("{} {}", self.code, self.reason)
    }

    fn of_text(text: &str) -> Interrupt {
        let (code, reason) = text.split_once(' ').unwrap_or(("1", text));
        Interrupt { code: code.parse().unwrap_or(1), reason: reason.to_owned() }
    }
}

impl Interrupts {
    /// Handles the signals of this process from now on, except for those that its parent process ignores.
    ///
    /// # Errors
    /// The system refuses.
    pub fn of_process() -> std::io::Result<Interrupts> {
        let interrupts = Interrupts::default();
        let handled = SIGNALS.iter().map(|(signal, _)| *signal).filter(|&signal| !is_ignored(signal));
        let mut signals = Signals::new(handled)?;
        let own = interrupts.clone();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let name = SIGNALS.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name);
                // The numbers of signals end at 64.
                let code = u8::try_from(128 + signal).unwrap_or(u8::MAX);
                if !own.ask(Interrupt { code, reason: name.to_owned() }) {
                    end_process(code.into());
                }
            }
        })?;
        Ok(interrupts)
    }

    /// Asks the run to end after the step that it is in. Returns false if there is no such run, or if it has been asked
    /// already: a second request ends the run at once.
    pub fn ask(&self, interrupt: Interrupt) -> bool {
        let shared = &self.0;
        let mut asked = shared.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !shared.trains.load(Ordering::Acquire) || asked.is_some() {
            return false;
        }
        eprintln!("{}: the step ends and the state is saved; a second signal ends the run at once", interrupt.reason);
        let (code, grace) = (interrupt.code, *shared.grace.lock().unwrap_or_else(PoisonError::into_inner));
        *asked = Some(interrupt);
        if let Some(grace) = grace {
            let own = self.clone();
            // Without the thread, the sender of the signal ends the process later.
            let _ = thread::Builder::new().name("grace".to_owned()).spawn(move || {
                thread::sleep(grace);
                if own.0.trains.load(Ordering::Acquire) {
                    eprintln!("error: the state was not saved within --grace {} s", grace.as_secs());
                    end_process(code.into());
                }
            });
        }
        true
    }

    /// The reason to end, if there is one.
    pub fn asked(&self) -> Option<Interrupt> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has signals end the run behind a step until the value is dropped, at most so much later.
    pub fn training(&self, grace: Option<Duration>) -> Training<'_> {
        *self.0.grace.lock().unwrap_or_else(PoisonError::into_inner) = grace;
        self.0.trains.store(true, Ordering::Release);
        Training { interrupts: self, told: false }
    }

    /// Ends the run when Google's metadata server says that the machine is about to be stopped or is preempted. It is
    /// asked again after each such time. Source: Compute Engine's `instance/maintenance-event` and
    /// `instance/preempted`.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn heed_google(&self, host: &str, every: Duration) -> Result<()> {
        let host = host.to_owned();
        let first = google_notice(&host).with_context(|| {
            format!("--notices google: the metadata server {host} does not answer; {METADATA_HOST} names another")
        })?;
        let own = self.clone();
        thread::Builder::new().name("notices".to_owned()).spawn(move || {
            let mut notice = first;
            loop {
                if let Some(reason) = notice {
                    let interrupt = Interrupt { code: u8::try_from(128 + SIGTERM).unwrap_or(u8::MAX), reason };
                    // Before the first step there is nothing to save, so the notice stands until the run begins.
                    if own.ask(interrupt) {
                        return;
                    }
                }
                thread::sleep(every);
                notice = google_notice(&host).unwrap_or_else(|error| {
                    tracing::debug!("the metadata server does not answer: {error}");
                    None
                });
            }
        })?;
        Ok(())
    }
}

/// The notice that a machine of Google's has now, if it has one.
fn google_notice(host: &str) -> Result<Option<String>> {
    let ask = |what: &str| -> Result<String> {
        let url = format!("http://{host}/computeMetadata/v1/instance/{what}");
        let answer = minreq::get(&url).with_header("Metadata-Flavor", "Google").with_timeout(5).send()?;
        if answer.status_code != 200 {
            bail!("{url}: status {}", answer.status_code);
        }
        Ok(answer.as_str()?.trim().to_owned())
    };
    // Machines that migrate go on.
    let event = ask("maintenance-event")?;
    if event.starts_with("TERMINATE") {
        return Ok(Some(format!("Google's notice {event}")));
    }
    Ok((ask("preempted")? == "TRUE").then(|| "Google's notice of preemption".to_owned()))
}

/// A run that signals end behind a step.
#[derive(Debug)]
pub struct Training<'a> {
    interrupts: &'a Interrupts,
    told: bool,
}

impl Training<'_> {
    /// The reason to end after so many steps, the same on all processes of a run.
    ///
    /// # Errors
    /// Another process is gone.
    pub fn ends_after(&mut self, done: u64, peers: Option<&dyn Peers>) -> Result<Option<Interrupt>> {
        let asked = self.interrupts.asked();
        let Some(peers) = peers else { return Ok(asked) };
        if let Some(interrupt) = asked.filter(|_| !self.told) {
            self.tell(&interrupt, peers)?;
        }
        Ok(peers.ends_after(done)?.map(|text| Interrupt::of_text(&text)))
    }

    /// Asks all processes to end.
    ///
    /// # Errors
    /// The others cannot be reached.
    pub fn tell(&mut self, interrupt: &Interrupt, peers: &dyn Peers) -> Result<()> {
        self.told = true;
        let reason = format!("{} of process {}", interrupt.reason, peers.number());
        Ok(peers.ask_to_end(&Interrupt { reason, ..interrupt.clone() }.to_text())?)
    }
}

impl Drop for Training<'_> {
    fn drop(&mut self) {
        self.interrupts.0.trains.store(false, Ordering::Release);
    }
}
