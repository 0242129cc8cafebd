//! The first process of a replica: it joins the run, decides with the others, and reads their messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshloom_train::peers::Judge;
use tokio::runtime::{Handle, Runtime};

use super::blobs::{Blob, BlobReader, Blobs, PeerTls, RunName, Unread};
use super::port::{Limits, Say};
use super::rounds::{BEGINNING, Decision, Keys, Present, Seat, Undecided, held_key, present_key, round_key, taken_key};
use super::{ReplicaError, ReplicaOptions, json, lock, message_name, system};
use crate::store::{Store, StoreError, StoreOptions};

#[derive(Debug)]
pub(super) struct First {
    options: ReplicaOptions,
    pub(super) store: Store,
    blobs: Blobs,
    reader: Arc<BlobReader>,
    pub(super) address: String,
    /// Whether other processes of this replica read from this one.
    has_others: bool,
    /// The name of the run, once it has begun.
    run: RunName,
    say: Reports,
    /// The last decision.
    last: Mutex<Option<Decision>>,
    /// The round under way.
    under_way: Mutex<Option<UnderWay>>,
}

/// The function that takes lines about refused readers.
struct Reports(Say);

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reports")
    }
}

#[derive(Debug)]
struct UnderWay {
    round: u64,
    thread: JoinHandle<Result<(Decision, Messages), ReplicaError>>,
}

pub(super) type Messages = BTreeMap<usize, Bytes>;

/// The time between two messages that name the replicas that are waited for.
const REMINDER: Duration = Duration::from_secs(30);
/// The time that a change of the store is waited for before it is read again.
const MOMENT: Duration = Duration::from_secs(1);

/// Connects as a replica. A replica that was started again waits until the store has forgotten its earlier start.
fn connect(options: &ReplicaOptions) -> Result<Store, ReplicaError> {
    let store = StoreOptions { process: options.number, count: options.count, ..options.store.clone() };
    let deadline = Instant::now() + 2 * store.lease + MOMENT;
    loop {
        match Store::connect(store.clone()) {
            Err(StoreError::AlreadyExists { .. }) if Instant::now() < deadline => std::thread::sleep(MOMENT / 4),
            connected => return Ok(connected?),
        }
    }
}

/// Warns of an etcd that may lose decisions: it outlives the replicas, and may be killed and started again.
fn warn_of_version(store: &Store) {
    const TAKEN_BACK: [&str; 3] = ["3.5.0", "3.5.1", "3.5.2"];
    match store.version() {
        Ok(version) if TAKEN_BACK.contains(&version.as_str()) => tracing::warn!(
            "the store is etcd {version}, which its maintainers took back: it may lose data when it is killed; install a \
             supported version"
        ),
        Ok(_) => {}
        Err(error) => tracing::debug!("the version of the store is not known: {error}"),
    }
}

impl First {
    /// Connects to the store, and listens.
    pub(super) fn connect(
        options: ReplicaOptions,
        runtime: &Runtime,
        (reader, run, tls): (Arc<BlobReader>, RunName, Option<&PeerTls>),
        (processes, say): (usize, Say),
    ) -> Result<First, ReplicaError> {
        if !options.listen.ip().is_loopback() && tls.is_none() && !options.insecure {
            return Err(ReplicaError::Open { address: options.listen });
        }
        if options.listen.ip().is_unspecified() && options.advertise.is_none() {
            let (address, reason) = (options.listen.to_string(), "others cannot tell which host that is".to_owned());
            return Err(ReplicaError::Listen { address, reason });
        }
        let store = connect(&options)?;
        warn_of_version(&store);
        let inside = runtime.enter();
        let limits = Limits::of(options.count + processes, options.patience);
        let (blobs, listening) = Blobs::listen(options.listen, tls, run.clone(), (limits, say.clone()))?;
        drop(inside);
        let address = options.advertise.clone().unwrap_or_else(|| listening.to_string());
        let (last, under_way, has_others) = (Mutex::default(), Mutex::default(), processes > 1);
        Ok(First { options, store, blobs, reader, address, has_others, run, say: Reports(say), last, under_way })
    }

    /// Offers the message of a round, and has those of the others read.
    pub(super) fn send(
        self: &Arc<First>,
        (round, use_at): (u64, u64),
        (message, judge): (Bytes, Judge),
        handle: &Handle,
    ) -> Result<(), ReplicaError> {
        self.blobs.retain(|name| !is_before(name, round));
        self.offer(message_name(round, self.options.number), message.clone());
        let (first, handle) = (self.clone(), handle.clone());
        let run = move || first.round((round, use_at), (message, judge), &handle);
        let thread = std::thread::Builder::new().name("round".to_owned()).spawn(run);
        let thread = thread.map_err(|error| system("no thread for a round", error))?;
        *lock(&self.under_way) = Some(UnderWay { round, thread });
        Ok(())
    }

    /// Returns the decision on a round that is under way, and the messages that this replica holds.
    pub(super) fn decided(&self, round: u64) -> Result<(Decision, Messages), ReplicaError> {
        let under_way = lock(&self.under_way).take().filter(|under_way| under_way.round == round);
        let failed = |reason: &str| ReplicaError::System { what: "a round", reason: reason.to_owned() };
        let UnderWay { thread, .. } = under_way.ok_or_else(|| failed("no message was sent"))?;
        let (decision, held) = thread.join().unwrap_or_else(|_| Err(failed("its thread panicked")))?;
        *lock(&self.last) = Some(decision.clone());
        Ok((decision, held))
    }

    /// Waits until the replicas that read this one's state have it, and ends.
    pub(super) fn leave(&self) -> Result<(), ReplicaError> {
        let start = Instant::now();
        let last = lock(&self.last).clone().filter(|last| last.is_given_by(self.options.number));
        let joins = |last: Decision| last.members.into_iter().filter(move |seat| last.joining.contains(&seat.replica));
        let given_to: Vec<Seat> = last.into_iter().flat_map(joins).collect();
        loop {
            let (entries, since) = self.store.entries("")?;
            let keys = Keys::of(&entries);
            let taken = |seat: &Seat| {
                entries.iter().any(|each| each.name == taken_key(seat.replica) && each.lease == seat.lease)
            };
            if given_to.iter().all(|seat| taken(seat) || !keys.lives(seat)) || start.elapsed() > self.options.patience {
                break;
            }
            self.store.wait_for_change("", since, MOMENT)?;
        }
        // The run is over, so an error of the store changes nothing.
        if let Err(error) = self.store.leave() {
            tracing::debug!("{error}");
        }
        Ok(())
    }

    /// Announces this replica, and returns the decision by which it takes part.
    pub(super) fn take_part(&self, form: &str, step: u64) -> Result<Decision, ReplicaError> {
        let ReplicaOptions { number, count, least, limit, .. } = self.options;
        let own = Present { address: self.address.clone(), step, form: form.to_owned() };
        self.store.put(&present_key(number), &json(&own))?;
        let (start, mut reminder, mut was_running) = (Instant::now(), Reminder::new(), false);
        loop {
            let (entries, since) = self.store.entries("")?;
            let keys = Keys::of(&entries);
            let decision = keys.newest();
            for (&other, (lease, present)) in &keys.present {
                // While a run goes on, other replicas that wait for it do not matter.
                let counts = |decision: &Decision| decision.members.iter().any(|seat| seat.lease == *lease);
                if decision.is_none_or(counts)
                    && let Err(differs) = self.check_form(form, other, &present.form)
                {
                    self.wait_to_be_seen(since)?;
                    return Err(differs);
                }
            }
            let lease = self.store.lease();
            let own = |seat: &Seat| seat.replica == number && seat.lease == lease;
            match decision {
                Some(decision) if decision.members.iter().any(own) => {
                    if decision.step < step {
                        return Err(ReplicaError::Ahead { number, step, others: decision.step });
                    }
                    self.store.share()?;
                    // It is set once, because a replica takes part in only one run.
                    let _ = self.run.set(decision.run.clone());
                    *lock(&self.last) = Some(decision.clone());
                    return Ok(decision.clone());
                }
                Some(decision) => {
                    was_running |= decision.members.iter().any(|seat| keys.lives(seat));
                    reminder.say(|| format!("replica {number} waits for the next round of the others"));
                }
                None if was_running => return Err(ReplicaError::Ended { number }),
                None => {
                    let here = keys.present.len();
                    let waited = start.elapsed() > limit;
                    let first = keys.first(number).filter(|_| here >= count || (waited && here >= least));
                    if let Some(decision) = first {
                        self.decide(BEGINNING, &decision)?;
                        continue;
                    }
                    let needed =
                        if waited { format!("{least} (diloco.apart.min_replicas)") } else { count.to_string() };
                    reminder.say(|| format!("{here} replicas are here; the run begins with {needed}"));
                }
            }
            self.store.wait_for_change("", since, MOMENT)?;
        }
    }

    /// Waits a moment before this replica leaves, because its keys end with it. Another replica that has not read them
    /// yet would wait for it, and not report the difference.
    fn wait_to_be_seen(&self, since: i64) -> Result<(), ReplicaError> {
        Ok(self.store.wait_for_change("replicas/", since, 2 * MOMENT)?)
    }

    fn check_form(&self, own: &str, other: usize, others: &str) -> Result<(), ReplicaError> {
        if own == others {
            return Ok(());
        }
        let number = self.options.number;
        let mut pairs = own.lines().zip(others.lines());
        let (own, others) = pairs.find(|(own, others)| own != others).unwrap_or(("another config", "one of its own"));
        Err(ReplicaError::Differs { number, own: own.to_owned(), other, others: others.to_owned() })
    }

    /// Writes a decision, unless another replica has.
    fn decide(&self, round: u64, decision: &Decision) -> Result<(), ReplicaError> {
        let written = self.store.put_shared(&round_key(round), &json(decision));
        match written {
            Err(StoreError::AlreadyExists { .. }) => Ok(()),
            written => Ok(written?),
        }
    }

    pub(super) fn offer(&self, name: String, bytes: Bytes) {
        self.blobs.offer(name, Blob::Bytes(bytes));
    }

    pub(super) fn offer_folder(&self, step: u64, folder: &Path) -> Result<(), ReplicaError> {
        let unreadable = |error| system("the folder of the outer state cannot be read", error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().map_err(unreadable)?.is_file() {
                self.blobs.offer(format!("state/{step}/{name}"), Blob::File(entry.path()));
                names.push(name);
            }
        }
        self.offer(format!("state/{step}"), json(&names).into());
        Ok(())
    }

    /// Reads the messages of a round, and returns the decision on it, with the messages that this replica holds.
    fn round(
        &self,
        (round, use_at): (u64, u64),
        (own, judge): (Bytes, Judge),
        handle: &Handle,
    ) -> Result<(Decision, Messages), ReplicaError> {
        let ReplicaOptions { number, least, patience, .. } = self.options;
        let failed = || ReplicaError::System { what: "a round", reason: "no run has begun".to_owned() };
        let before = lock(&self.last).clone().ok_or_else(failed)?;
        let members = &before.members;
        let start = Instant::now();
        // The messages of a round are of one form, so of one length.
        let mut held = self.messages((round, own.len() as u64), members, handle)?;
        held.insert(number, own);
        // All replicas leave out a message that one of them refuses, because not all of them hold it.
        let came = held.len();
        held.retain(|replica, message| match judge(message) {
            Ok(()) => true,
            Err(reason) => {
                (self.say.0)(&format!("the message of replica {replica} after step {round} is not taken: {reason}"));
                false
            }
        });
        let refused = came - held.len();
        if self.has_others {
            held.iter().for_each(|(&replica, message)| self.offer(message_name(round, replica), message.clone()));
        }
        let whose: BTreeSet<usize> = held.keys().copied().collect();
        self.store.put(&held_key(round, number), &json(&whose))?;
        let mut reminder = Reminder::new();
        let decision = loop {
            let (entries, since) = self.store.entries("")?;
            let keys = Keys::of(&entries);
            if let Some(decision) = keys.decision(round) {
                let decision = decision.clone();
                for old in keys.old_rounds() {
                    self.store.delete(&round_key(old))?;
                }
                break decision;
            }
            let is_late = start.elapsed() > patience;
            match keys.decide(number, (round, use_at), &before, (least, is_late)) {
                Ok(decision) => {
                    self.decide(round, &decision)?;
                    continue;
                }
                Err(Undecided::TooFew(here)) => reminder.say(|| {
                    format!("{here} replicas are here; the run goes on with {least} (diloco.apart.min_replicas)")
                }),
                Err(Undecided::Others) => reminder.say(|| format!("the others have not decided on step {round} yet")),
            }
            self.store.wait_for_change("", since, MOMENT)?;
        };
        self.store.delete(&held_key(round, number))?;
        let lease = self.store.lease();
        if !decision.members.iter().any(|seat| seat.replica == number && seat.lease == lease) {
            let reason = "it was too late, or taken for dead".to_owned();
            return Err(ReplicaError::LeftBehind { number, round, reason });
        }
        if decision.messages.is_empty() && refused == 0 {
            return Err(ReplicaError::Cut { round });
        }
        let gone = members.iter().filter(|seat| !decision.members.contains(seat));
        gone.for_each(|seat| tracing::warn!("replica {} is gone; the others go on after step {round}", seat.replica));
        for replica in &decision.joining {
            tracing::warn!("replica {replica} joins after step {use_at}");
        }
        tracing::debug!("the round after step {round} took {:.3} s", start.elapsed().as_secs_f64());
        Ok((decision, held))
    }

    /// Returns the messages of all members that live, as far as they come in time.
    fn messages(
        &self,
        (round, length): (u64, u64),
        members: &[Seat],
        handle: &Handle,
    ) -> Result<Messages, ReplicaError> {
        let (sender, arrived) = mpsc::channel();
        let number = self.options.number;
        // The reason why the last attempt to read from each replica failed.
        let reasons: Arc<Mutex<BTreeMap<usize, Unread>>> = Arc::default();
        let mut waiting: BTreeMap<usize, (Seat, tokio::task::JoinHandle<()>)> = BTreeMap::new();
        for seat in members.iter().filter(|seat| seat.replica != number) {
            let (seat, sender, reader) = (seat.clone(), sender.clone(), self.reader.clone());
            let (from, reasons) = (seat.clone(), reasons.clone());
            let (name, say) = (message_name(round, from.replica), self.say.0.clone());
            let task = handle.spawn(async move {
                loop {
                    let mut bytes = Vec::new();
                    let reason = match reader.read(&from.address, &name, length, &mut bytes).await {
                        // Sending fails only if the receiver has gone, and then the message is not needed.
                        Ok(read) if read == length => return drop(sender.send((from.replica, Bytes::from(bytes)))),
                        Ok(read) => Unread::Refused(format!("it has {read} bytes, and this run's have {length}")),
                        Err(reason) => reason,
                    };
                    let before = lock(&reasons).insert(from.replica, reason.clone());
                    if let Unread::Refused(_) = reason
                        && before.as_ref() != Some(&reason)
                    {
                        let (replica, address) = (from.replica, &from.address);
                        say(&format!("{name} of replica {replica} at {address} is refused: {reason}"));
                    }
                    tokio::time::sleep(MOMENT / 4).await;
                }
            });
            waiting.insert(seat.replica, (seat, task));
        }
        let (start, mut reminder) = (Instant::now(), Reminder::new());
        let mut held = Messages::new();
        while !waiting.is_empty() {
            if let Ok((replica, message)) = arrived.recv_timeout(MOMENT) {
                waiting.remove(&replica);
                held.insert(replica, message);
                continue;
            }
            let keys = Keys::of(&self.store.entries("")?.0);
            // Once the others have decided, they wait for no message, and keep none.
            let is_late = start.elapsed() > self.options.patience || keys.decision(round).is_some();
            waiting.retain(|replica, (seat, task)| {
                let goes_on = keys.lives(seat) && !is_late;
                if !goes_on {
                    tracing::warn!("no message of replica {replica} after step {round}: it is gone, or too late");
                    task.abort();
                }
                goes_on
            });
            reminder.say(|| {
                let reasons = lock(&reasons);
                let name = |(replica, (seat, _)): (&usize, &(Seat, _))| match reasons.get(replica) {
                    Some(reason) => format!("replica {replica} at {} ({reason})", seat.address),
                    None => format!("replica {replica} at {}", seat.address),
                };
                let names: Vec<String> = waiting.iter().map(name).collect();
                format!("the messages after step {round} are missing of {}", names.join(", "))
            });
        }
        Ok(held)
    }
}

/// Whether a name belongs to an earlier round, which all members of this one have used.
fn is_before(name: &str, round: u64) -> bool {
    let mut parts = name.split('/');
    let is_of_round = matches!(parts.next(), Some("message" | "decision"));
    is_of_round && parts.next().and_then(|text| text.parse().ok()).is_some_and(|of: u64| of < round)
}

/// The time of the next message that names the replicas that are waited for.
struct Reminder(Instant);

impl Reminder {
    fn new() -> Reminder {
        Reminder(Instant::now() + REMINDER / 10)
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if Instant::now() >= self.0 {
            tracing::warn!("{}", text());
            self.0 = Instant::now() + REMINDER;
        }
    }
}
