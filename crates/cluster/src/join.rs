//! Joining a run of several processes, and leaving it.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use meshloom_train::peers::{Peers, PeersError};

use crate::crossing::Links;
use crate::ending::Ending;
use crate::error::JoinError;
use crate::launch::{Launched, Launcher, own_variable};
use crate::mpi::{Incoming, Outgoing, World};
use crate::network::{bind_listeners, check_hosts, hosts_of_launcher, this_host};
use crate::pmi::Questions;
use crate::programs::{etcd_program, mpi_library};
use crate::store::{Server, Store, StoreOptions, Tls, User};
use crate::watch::Watch;

/// The options by which processes find each other.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The number of this process and the number of processes. `None` means the launcher's.
    pub place: Option<(usize, usize)>,
    /// The address of the etcd. `None` means the address in the environment (`MESHLOOM_STORE`), or that of an etcd
    /// which process 0 starts.
    pub store: Option<String>,
    /// Certificates for `https`.
    pub tls: Option<Tls>,
    /// A user of the etcd.
    pub user: Option<User>,
    /// Whether the user's password may travel in clear.
    pub insecure: bool,
    /// The network interface of this host at which MPI and NCCL listen; everybody in its network is trusted. `None`
    /// means loopback, and all processes are on one host.
    pub trusted_network: Option<String>,
    /// The name of the job, which tells its keys from those of other jobs. `None` means the launcher's.
    pub job: Option<String>,
    /// The number of the start, if a job is started again under its name.
    pub attempt: u64,
    /// The time within which the others must join.
    pub limit: Duration,
    /// The time without a sign of life after which the others take a process for dead.
    pub lease: Duration,
    /// The longest time that a live process may keep the others waiting, in a collective or at a barrier.
    pub patience: Duration,
    /// Whether collectives between processes use MPI. They do on CPUs, whose plugins have none of their own.
    pub mpi: bool,
    /// Whether process 0 starts an etcd if none answers. Its etcd ends with it.
    pub starts_store: bool,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        JoinOptions {
            place: None,
            store: None,
            tls: None,
            user: None,
            insecure: false,
            trusted_network: None,
            job: None,
            attempt: 0,
            limit: Duration::from_secs(300),
            lease: Duration::from_secs(10),
            patience: Duration::from_secs(1800),
            mpi: true,
            starts_store: true,
        }
    }
}

/// This process as part of a run of several.
#[derive(Debug)]
pub struct Member {
    number: usize,
    count: usize,
    watch: Watch,
    ending: Ending,
    links: Mutex<Option<Arc<Links>>>,
    store: Arc<Store>,
    patience: Duration,
    /// The server is dropped last, because the other fields need it.
    server: Option<OwnServer>,
}

/// An etcd that process 0 has started.
#[derive(Debug)]
struct OwnServer {
    server: Server,
    _folder: tempfile::TempDir,
}

/// The time that process 0 waits for the others to leave before it ends its etcd.
const LEAVING: Duration = Duration::from_secs(5);

/// The tag of messages with the address of the store.
const ADDRESS_TAG: u16 = 0;
/// The number of bytes of such a message.
const ADDRESS_BYTES: usize = 256;

impl Member {
    /// Joins the others, and returns when all are there.
    ///
    /// # Errors
    /// The number of this process or the address of the store is not known; the others do not join in time; MPI or the
    /// etcd cannot be found.
    pub fn join(options: &JoinOptions) -> Result<Member, JoinError> {
        let launched = options.place.is_none().then(|| Launched::detect(&own_variable)).transpose()?;
        let (number, count) = match (&launched, options.place) {
            (_, Some(place)) => place,
            (Some(launched), None) => (launched.process, launched.count),
            (None, None) => (0, 1),
        };
        let trusted = options.trusted_network.as_deref();
        bind_listeners(trusted)?;
        // MPICH's launcher tells MPI which processes there are. With other launchers the store does.
        let by_mpi = options.mpi && launched.as_ref().is_some_and(|launched| launched.launcher == Launcher::Mpich);
        if let Some(hosts) = hosts_of_launcher(count, &own_variable).filter(|_| by_mpi) {
            // Check before MPI tries to connect to the other hosts.
            check_hosts(hosts, trusted)?;
        }
        let questions = (options.mpi && !by_mpi && count > 1).then(|| Questions::expect(number, count)).transpose()?;
        let start = || {
            let world = World::start(&mpi_library()?)?;
            let (rank, size) = (world.rank(), world.size());
            if (rank, size) == (number, count) {
                Ok(world)
            } else {
                Err(JoinError::Ranks { number, count, rank, size })
            }
        };
        let world = by_mpi.then(start).transpose()?;
        let given = store_address(options.store.as_ref());
        let (address, server, own_job) = match (given, &world) {
            (Some(address), _) => {
                let server = if number == 0 && options.starts_store { start_at(&address)? } else { None };
                (address, server, None)
            }
            (None, Some(world)) => {
                let server = if number == 0 { Some(start_server(None)?) } else { None };
                let own = server.as_ref().map(|server| server.server.address().to_owned());
                let address = tell_all(world, own.unwrap_or_default(), options.limit)?;
                // Only these processes know this etcd, so any job name will do.
                (address, server, Some("run".to_owned()))
            }
            (None, None) => {
                let launcher = launched.as_ref().map_or("nobody".to_owned(), |launched| launched.launcher.to_string());
                return Err(JoinError::NoStore { launcher });
            }
        };
        let job = options.job.clone().or(own_job).or(launched.and_then(|launched| launched.job));
        let job = job.unwrap_or_else(|| "meshloom".to_owned());
        let store = Store::connect(StoreOptions {
            attempt: options.attempt,
            lease: options.lease,
            limit: options.limit.min(Duration::from_secs(60)),
            tls: options.tls.clone(),
            user: options.user.clone(),
            insecure: options.insecure,
            host: this_host(),
            ..StoreOptions::new(address, job, (number, count))
        })?;
        let store = Arc::new(store);
        store.barrier("joined", options.limit)?;
        check_hosts(store.hosts()?, trusted)?;
        let watch = Watch::start(store.clone(), options.patience, options.mpi);
        let world = match questions {
            Some(questions) => {
                questions.answer(store.clone(), number, count, options.limit)?;
                Some(start()?)
            }
            None if options.mpi && world.is_none() => Some(start()?),
            None => world,
        };
        let links = world.map(|world| Links::connect(world, watch.give_up()));
        let ending = Ending::start(store.clone(), (number, count), options.patience);
        tracing::debug!("process {number} of {count} has joined the others");
        Ok(Member { number, count, watch, ending, links: Mutex::new(links), store, patience: options.patience, server })
    }

    /// The store of the run.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    fn differs(&self, what: &str, (first, other, process): (&str, &str, usize), advice: &str) -> JoinError {
        let (what, first, other, advice) = (what.to_owned(), first.to_owned(), other.to_owned(), advice.to_owned());
        JoinError::Differs { what, first, other, process, advice }
    }

    /// Returns why the run cannot go on, if another process is known to be lost. Any other failure may follow from
    /// that.
    pub fn loss(&self) -> Option<String> {
        self.watch.reason()
    }

    /// Tells the others that this process ends, and why, so that they do not wait for it.
    pub fn fail(&self, reason: &str) {
        self.watch.stop();
        // If the store is gone, the others learn it from the end of the lease.
        if let Err(error) = self.store.fail(reason) {
            tracing::debug!("the others were not told: {error}");
        }
        if self.server.is_some() && self.count > 1 {
            // The store ends with this process, and the others must have read the reason by then.
            std::thread::sleep(Duration::from_secs(2));
        }
    }

    /// Leaves when all others do. No program with collectives across processes may run any more.
    ///
    /// # Errors
    /// A process is lost, or does not come.
    pub fn leave(&self) -> Result<(), JoinError> {
        self.store.barrier("done", self.patience)?;
        self.watch.stop();
        Links::disconnect();
        if let Some(links) = self.links.lock().unwrap_or_else(PoisonError::into_inner).take() {
            tracing::debug!("{} bytes were sent to other processes", links.sent_bytes());
            // MPI is finalized here, while the store can still answer its questions.
            drop(links);
        }
        // All processes have finished, so an error of the store changes nothing.
        if self.server.is_some() {
            let start = std::time::Instant::now();
            let left = || self.store.dead().is_ok_and(|left| left.len() + 1 >= self.count);
            while !left() && start.elapsed() < LEAVING {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if let Err(error) = self.store.leave() {
            tracing::debug!("{error}");
        }
        Ok(())
    }
}

impl Peers for Member {
    fn number(&self) -> usize {
        self.number
    }

    fn count(&self) -> usize {
        self.count
    }

    fn agree(&self, what: &str, own: &str, advice: &str) -> Result<(), PeersError> {
        let key = |process: usize| format!("agree/{what}/{process}");
        let decision = format!("agreed/{what}");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if self.number > 0 {
            self.store.put(&key(self.number), own.as_bytes())?;
            let decided = text(self.store.get_from_others(&decision, self.patience)?);
            let Some((process, rest)) = decided.split_once(' ') else { return Ok(()) };
            let (first, other) = rest.split_once(' ').unwrap_or((rest, ""));
            let process = process.parse().unwrap_or(0);
            return Err(self.differs(what, (first, other, process), advice).into());
        }
        for process in 1..self.count {
            let other = text(self.store.get_from_others(&key(process), self.patience)?);
            if other != own {
                self.store.put(&decision, format!("{process} {own} {other}").as_bytes())?;
                return Err(self.differs(what, (own, &other, process), advice).into());
            }
        }
        Ok(self.store.put(&decision, b"")?)
    }

    fn barrier(&self, name: &str) -> Result<(), PeersError> {
        Ok(self.store.barrier(name, self.patience)?)
    }

    fn ask_to_end(&self, why: &str) -> Result<(), PeersError> {
        Ok(Ending::ask(&self.store, why)?)
    }

    fn ends_after(&self, done: u64) -> Result<Option<String>, PeersError> {
        Ok(self.ending.after(done)?)
    }
}

/// Returns the address of the store: the given one, or that in the environment (`MESHLOOM_STORE`).
pub fn store_address(given: Option<&String>) -> Option<String> {
    given.cloned().or_else(|| own_variable("MESHLOOM_STORE"))
}

/// Starts an etcd at an address of this host, unless a server answers there already.
fn start_at(address: &str) -> Result<Option<OwnServer>, JoinError> {
    let Some(rest) = address.strip_prefix("http://") else { return Ok(None) };
    let is_loopback = rest.starts_with("127.0.0.1:") || rest.starts_with("localhost:");
    let Some(port) = rest.rsplit_once(':').and_then(|(_, port)| port.trim_end_matches('/').parse::<u16>().ok()) else {
        return Ok(None);
    };
    let mut places = rest.trim_end_matches('/').to_socket_addrs().into_iter().flatten();
    let answers = places.any(|place| TcpStream::connect_timeout(&place, Duration::from_secs(2)).is_ok());
    if !is_loopback || answers {
        return Ok(None);
    }
    start_server(Some(port)).map(Some)
}

fn start_server(port: Option<u16>) -> Result<OwnServer, JoinError> {
    let folder = tempfile::Builder::new().prefix("meshloom-etcd-").tempdir();
    let folder = folder.map_err(|error| JoinError::Folder { reason: error.to_string() })?;
    let program = etcd_program()?;
    let data: &Path = folder.path();
    let server = match port {
        Some(port) => Server::start_at(&program, data, port)?,
        None => Server::start(&program, data)?,
    };
    Ok(OwnServer { server, _folder: folder })
}

/// Sends the text of process 0 to all processes, and returns it on each.
fn tell_all(world: &World, own: String, limit: Duration) -> Result<String, JoinError> {
    let start = std::time::Instant::now();
    let give_up = |_: Duration| {
        let waited = start.elapsed();
        (waited > limit).then(|| format!("process 0 has not said where the store is for {} s", waited.as_secs()))
    };
    let mut message = own.into_bytes();
    message.resize(ADDRESS_BYTES, 0);
    if world.rank() == 0 {
        let bytes = Bytes::copy_from_slice(&message);
        let to = |to: usize| Outgoing { to, tag: ADDRESS_TAG, bytes: bytes.clone() };
        world.exchange((1..world.size()).map(to).collect(), vec![], &give_up)?;
    } else {
        let incoming = vec![Incoming { from: 0, tag: ADDRESS_TAG, bytes: message }];
        message = world.exchange(vec![], incoming, &give_up)?.pop().unwrap_or_default();
    }
    let length = message.iter().position(|&byte| byte == 0).unwrap_or(message.len());
    Ok(String::from_utf8_lossy(&message[..length]).into_owned())
}
