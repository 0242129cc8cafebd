//! Replicas of DiLoCo that run apart: each is a run of its own, with its own mesh, hosts and plugin. Only messages
//! travel between them, a few in a hundred steps, while they train on.
//!
//! | file | what |
//! |---|---|
//! | `rounds` | the keys in the store, and the decisions that follow from them: pure |
//! | `first` | joining, and the rounds: the work of the first process of a replica |
//! | `blobs` | bytes that processes read from each other, over gRPC |
//! | `port` | the limits on connections to that port |
//! | this one | the interface by which training uses a replica |
//!
//! **A round.** Each replica offers its message, reads those of all members, and says in the store whose it holds. The
//! living replica with the lowest number then writes the decision, once: the messages that all living members hold
//! count. So nothing has to be read after a decision, whichever replica dies, and all add up the same messages.
//!
//! **The members** stand in each decision. A replica that has died is not in the next one. A replica that waits is
//! taken in, and reads the outer state from the member with the lowest number. A run goes on while it has enough
//! members; otherwise it waits.
//!
//! **A replica of several processes.** The first process does all this, and the others read from it what it has read.

mod blobs;
mod first;
pub(crate) mod alone;
pub(crate) mod port;
pub(crate) mod rounds;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use meshloom_train::peers::{Beginning, Judge, Peers, ReplicaLink, ReplicaLinkError, Round};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

use crate::Member;
use crate::store::{StoreError, StoreOptions, Tls};
use blobs::{BlobReader, PeerTls, RunName, Unread};
use first::First;
use port::Say;
use rounds::{Decision, Seat, taken_key};

/// The options of a replica among those of a run.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// The number of the replica, from 0.
    pub number: usize,
    /// The most replicas that there may be.
    pub count: usize,
    /// The least number of replicas; with fewer the run waits.
    pub least: usize,
    /// The address of the store, and the way to reach it. The store must outlive every replica.
    pub store: StoreOptions,
    /// The address where others read. Port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// `HOST:PORT` by which others reach the replica. `None` means the address where it listens.
    pub advertise: Option<String>,
    /// All three certificates by which replicas know each other. If this is `None`, messages are not encrypted, and
    /// anyone who reaches the port may read them.
    pub tls: Option<Tls>,
    /// Whether the replica may listen beyond loopback without certificates.
    pub insecure: bool,
    /// The most bytes of the files of an outer state that a replica reads when it joins.
    pub state_bytes: u64,
    /// The time that a run waits for all replicas before it begins with those that are present.
    pub limit: Duration,
    /// The longest time that a live replica may keep the others waiting.
    pub patience: Duration,
}

/// The reason why a replica is not part of a run, or no longer is.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ReplicaError {
    /// The store reports an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The number of the replica is too large.
    #[error("--replica {number} is not one of {count} replicas (diloco.replicas), which count from 0")]
    Number { number: usize, count: usize },
    /// The replica cannot listen at an address.
    #[error(
        "the replica cannot listen at {address}: {reason}; give another address by --listen, or how others reach it by --advertise"
    )]
    Listen { address: String, reason: String },
    /// Anyone could connect.
    #[error(
        "the port of this replica would listen at {address}, which other hosts can reach, and nothing says who may \
         connect: give --store-ca, --store-cert and --store-key (`meshloom certificates DIR` makes them), or --insecure \
         in a network in which everybody is trusted"
    )]
    Open { address: SocketAddr },
    /// Some certificates are given, but not all.
    #[error(
        "replicas know each other by three files, and not all are given: --store-ca, --store-cert and --store-key \
         (`meshloom certificates DIR` makes them)"
    )]
    Certificates,
    /// A setting differs between two replicas.
    #[error("replica {number} has {own}, but replica {other} has {others}; give all replicas the same run config")]
    Differs { number: usize, own: String, other: usize, others: String },
    /// The others went on without it.
    #[error(
        "the others went on without replica {number} in the round after step {round}: {reason}; start it again, and it takes the outer \
         parameters from them"
    )]
    LeftBehind { number: usize, round: u64, reason: String },
    /// It has done more steps than the others.
    #[error(
        "replica {number} has done {step} steps, but the others are at step {others}: start all replicas with --resume, or this one without"
    )]
    Ahead { number: usize, step: u64, others: u64 },
    /// The run of the others has ended.
    #[error("the run of the others has ended before it took in replica {number}")]
    Ended { number: usize },
    /// Messages do not arrive.
    #[error("no message of the round after step {round} has reached all replicas: the network between them is cut")]
    Cut { round: u64 },
    /// Something cannot be read from another process.
    #[error("{what} cannot be read from {from}: {reason}")]
    Read { what: String, from: String, reason: String },
    /// The system of this machine reports an error.
    #[error("{what}: {reason}")]
    System { what: &'static str, reason: String },
}

meshloom_hlo::debug_is_message!(ReplicaError);

impl From<ReplicaError> for ReplicaLinkError {
    fn from(error: ReplicaError) -> ReplicaLinkError {
        ReplicaLinkError(Arc::new(error))
    }
}

impl From<StoreError> for ReplicaLinkError {
    fn from(error: StoreError) -> ReplicaLinkError {
        ReplicaLinkError(Arc::new(error))
    }
}

/// This replica among those of its run.
#[derive(Debug)]
pub struct Replicas {
    number: usize,
    part: ProcessRole,
    reader: Arc<BlobReader>,
    run: RunName,
    /// The number of bytes of the message of the round under way, which is the same for all replicas.
    message_bytes: AtomicU64,
    state_bytes: u64,
    runtime: Runtime,
    /// The folder with the state that a joining replica has read, until the state is on the devices.
    folder: Mutex<Option<tempfile::TempDir>>,
}

/// A process of a replica.
#[derive(Debug)]
enum ProcessRole {
    /// The first process, which speaks with the other replicas.
    First { first: Arc<First>, member: Option<Arc<Member>> },
    /// Another process, which reads from the first at an address.
    Other { address: String, member: Arc<Member> },
}

/// The name under which processes of a replica find its first.
const FIRST: &str = "replica";
/// The name under which the first process tells the others how the replica begins.
const BEGIN: &str = "replica-begin";
/// The most bytes of a decision, or of a list of files.
const LARGEST_LIST: u64 = 4 << 20;
/// The time that a question to the first process waits before the other processes are checked.
const REMINDER: Duration = Duration::from_secs(30);

impl Replicas {
    /// Connects to the store, and listens. `member` is this process among those of the replica, if it has several.
    ///
    /// # Errors
    /// The store does not answer; another process has this number; the system does not allow listening at the address.
    pub fn connect(options: ReplicaOptions, member: Option<&Arc<Member>>) -> Result<Replicas, ReplicaError> {
        let number = options.number;
        Replicas::connect_saying(options, member, Arc::new(move |line| tracing::warn!("replica {number}: {line}")))
    }

    /// Connects in the same way. `say` takes the lines about refused readers.
    pub(crate) fn connect_saying(
        options: ReplicaOptions,
        member: Option<&Arc<Member>>,
        say: Say,
    ) -> Result<Replicas, ReplicaError> {
        // The threads that read files for other processes.
        const BLOCKING_THREADS: usize = 8;
        let ReplicaOptions { number, count, state_bytes, .. } = options;
        if number >= count {
            return Err(ReplicaError::Number { number, count });
        }
        let tls = options.tls.as_ref().map(|tls| PeerTls::of(tls).ok_or(ReplicaError::Certificates)).transpose()?;
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(2).max_blocking_threads(BLOCKING_THREADS).enable_all().thread_name("replicas");
        let runtime = runtime.build().map_err(|error| system("no threads for replicas", error))?;
        let run = RunName::default();
        let reader = Arc::new(BlobReader::new(tls.clone(), run.clone()));
        let part = match member.filter(|member| member.number() > 0) {
            Some(member) => {
                let address = member.store().get_from_others(FIRST, options.patience)?;
                let address = String::from_utf8_lossy(&address).into_owned();
                ProcessRole::Other { address, member: member.clone() }
            }
            None => {
                let processes = member.map_or(1, |member| member.count());
                let reading = (reader.clone(), run.clone(), tls.as_ref());
                let first = First::connect(options, &runtime, reading, (processes, say))?;
                if let Some(member) = member {
                    member.store().put(FIRST, first.address.as_bytes())?;
                }
                ProcessRole::First { first: Arc::new(first), member: member.cloned() }
            }
        };
        let message_bytes = AtomicU64::new(0);
        Ok(Replicas { number, part, reader, run, message_bytes, state_bytes, runtime, folder: Mutex::default() })
    }

    /// Tells the others at once that this replica is lost.
    pub fn fail(&self) {
        if let ProcessRole::First { first, .. } = &self.part
            && let Err(error) = first.store.leave()
        {
            tracing::debug!("the other replicas were not told: {error}");
        }
    }

    /// Reads bytes that the first process of this replica offers.
    fn read_from_first(&self, name: &str, most: u64) -> Result<Bytes, ReplicaError> {
        let ProcessRole::Other { address, member } = &self.part else { return Ok(Bytes::new()) };
        let mut bytes = Vec::new();
        let mut reading = Box::pin(self.reader.read(address, name, most, &mut bytes));
        let read = loop {
            // Reading may take long, so the other processes are checked meanwhile.
            let turn = self.runtime.block_on(async { tokio::time::timeout(REMINDER, reading.as_mut()).await });
            member.store().check_others()?;
            if let Ok(read) = turn {
                break read;
            }
        };
        drop(reading);
        let (what, from) = (name.to_owned(), format!("process 0 at {address}"));
        read.map_err(|reason| ReplicaError::Read { what, from, reason: reason.to_string() })?;
        Ok(bytes.into())
    }

    /// Reads the files of an outer state.
    fn download(&self, from: &Seat, step: u64) -> Result<PathBuf, ReplicaError> {
        let folder = tempfile::Builder::new().prefix("meshloom-outer-").tempdir();
        let folder = folder.map_err(|error| system("no folder for the outer state", error))?;
        let failed = |what: &str, reason: String| {
            let from = format!("replica {} at {}", from.replica, from.address);
            ReplicaError::Read { what: what.to_owned(), from, reason }
        };
        let list = format!("state/{step}");
        let names = Replicas::insist(|| {
            let mut names = Vec::new();
            let read = self.runtime.block_on(self.reader.read(&from.address, &list, LARGEST_LIST, &mut names));
            let failed = |reason: Unread| failed("the list of files of the outer state", reason.to_string());
            read.map(|_| names).map_err(failed)
        })?;
        let names: Vec<String> = serde_json::from_slice(&names).map_err(|error| unreadable(&error))?;
        let mut left = self.state_bytes;
        for name in &names {
            let is_plain = !name.contains(['/', '\\']) && !name.starts_with('.');
            if !is_plain {
                return Err(failed(name, "that is not the name of a file of a checkpoint".to_owned()));
            }
            left -= Replicas::insist(|| {
                let file = std::fs::File::create(folder.path().join(name));
                let file = file.map_err(|error| system("no file for the outer state", error))?;
                let whole = format!("{list}/{name}");
                let read = self.runtime.block_on(self.reader.read(&from.address, &whole, left, file));
                read.map_err(|reason| failed(name, reason.to_string()))
            })?;
        }
        let path = folder.path().to_owned();
        *lock(&self.folder) = Some(folder);
        Ok(path)
    }

    /// Tries again if a connection has broken.
    fn insist<T>(mut read: impl FnMut() -> Result<T, ReplicaError>) -> Result<T, ReplicaError> {
        const TIMES: usize = 5;
        for _ in 1..TIMES {
            match read() {
                Err(ReplicaError::Read { reason, .. }) => tracing::warn!("the outer state is read again: {reason}"),
                read => return read,
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        read()
    }
}

impl ReplicaLink for Replicas {
    fn number(&self) -> usize {
        self.number
    }

    fn begin(&self, form: &str, step: u64) -> Result<Beginning, ReplicaLinkError> {
        match &self.part {
            ProcessRole::First { first, member } => {
                let decision = first.take_part(form, step)?;
                let joins = decision.joining.contains(&self.number);
                let taken = match decision.giver().filter(|_| joins) {
                    Some(giver) => Some(self.download(giver, decision.step)?),
                    None => None,
                };
                if taken.is_some() {
                    first.store.put(&taken_key(self.number), b"")?;
                }
                let beginning = Beginning { step: decision.step, gives: decision.is_given_by(self.number), taken };
                if let Some(folder) = &beginning.taken {
                    first.offer_folder(decision.step, folder)?;
                }
                if let Some(member) = member {
                    member.store().put(BEGIN, &json(&(&decision.run, &beginning)))?;
                }
                Ok(beginning)
            }
            ProcessRole::Other { address, member } => {
                // The wait has no limit, because the replica may wait for others as long.
                let told = loop {
                    match member.store().get_from_others(BEGIN, REMINDER) {
                        Err(StoreError::DeadlineExceeded { .. }) => {}
                        told => break told?,
                    }
                };
                let told = serde_json::from_slice(&told).map_err(|error| unreadable(&error))?;
                let (run, mut beginning): (String, Beginning) = told;
                // It is set once, because a process begins once.
                let _ = self.run.set(run);
                if beginning.taken.is_some() {
                    let first = Seat { replica: self.number, lease: 0, address: address.clone() };
                    beginning.taken = Some(self.download(&first, beginning.step)?);
                }
                Ok(beginning)
            }
        }
    }

    fn send(&self, round: u64, use_at: u64, message: Vec<u8>, judge: Judge) -> Result<(), ReplicaLinkError> {
        // By now the state is on the devices, so the folder is not needed any more.
        lock(&self.folder).take();
        self.message_bytes.store(message.len() as u64, Ordering::Relaxed);
        let ProcessRole::First { first, .. } = &self.part else { return Ok(()) };
        Ok(first.send((round, use_at), (message.into(), judge), self.runtime.handle())?)
    }

    fn receive(&self, round: u64) -> Result<Round, ReplicaLinkError> {
        let decision_name = format!("decision/{round}");
        match &self.part {
            ProcessRole::First { first, .. } => {
                let (decision, held) = first.decided(round)?;
                first.offer(decision_name, json(&decision).into());
                let number = self.number;
                let message = |replica: &usize| {
                    let reason = format!("it does not hold the message of replica {replica}");
                    let message = held.get(replica).map(|message| message.to_vec());
                    message.ok_or(ReplicaError::LeftBehind { number, round, reason })
                };
                let messages = decision.messages.iter().map(message).collect::<Result<_, _>>()?;
                Ok(Round { messages, gives: decision.is_given_by(number) })
            }
            ProcessRole::Other { .. } => {
                let bytes = self.read_from_first(&decision_name, LARGEST_LIST)?;
                let decision: Decision = serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?;
                let most = self.message_bytes.load(Ordering::Relaxed);
                let read =
                    |&replica: &usize| self.read_from_first(&message_name(round, replica), most).map(Vec::<u8>::from);
                let messages = decision.messages.iter().map(read).collect::<Result<_, _>>()?;
                Ok(Round { messages, gives: decision.is_given_by(self.number) })
            }
        }
    }

    fn give(&self, step: u64, folder: &Path) -> Result<(), ReplicaLinkError> {
        match &self.part {
            ProcessRole::First { first, .. } => Ok(first.offer_folder(step, folder)?),
            ProcessRole::Other { .. } => Ok(()),
        }
    }

    fn leave(&self) -> Result<(), ReplicaLinkError> {
        let ProcessRole::First { first, .. } = &self.part else { return Ok(()) };
        Ok(first.leave()?)
    }
}

fn message_name(round: u64, replica: usize) -> String {
    format!("message/{round}/{replica}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes JSON. It cannot fail, because all keys here are strings.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn system(what: &'static str, error: std::io::Error) -> ReplicaError {
    ReplicaError::System { what, reason: error.to_string() }
}

fn unreadable(error: &serde_json::Error) -> ReplicaError {
    ReplicaError::System { what: "another version of meshloom answers", reason: error.to_string() }
}
