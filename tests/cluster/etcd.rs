//! An etcd of a test's own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use meshloom_cluster::store::{Server, Store, StoreOptions};

/// The time limit of calls that are not to fail.
pub const LONG: Duration = Duration::from_secs(20);

/// The program.
fn program() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| meshloom_cluster::etcd_program().unwrap_or_else(|error| panic!("{error}")))
}

/// A server that ends with the test, and its data.
pub struct Etcd {
    server: Option<Server>,
    address: String,
    ports: [u16; 2],
    folder: tempfile::TempDir,
}

/// Returns a server that tests share if their processes leave it alone; each uses its own jobs. The server ends with
/// the last of these tests.
pub fn shared() -> Arc<Etcd> {
    static SHARED: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(etcd) = shared.upgrade() {
        return etcd;
    }
    let etcd = Arc::new(Etcd::start());
    *shared = Arc::downgrade(&etcd);
    etcd
}

impl Etcd {
    /// On ports that are free. Another program may take one before etcd does: then on others.
    pub fn start() -> Etcd {
        let mut last = None;
        for _ in 0..8 {
            let bound = [0, 1].map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
            let ports = bound.each_ref().map(|listener| listener.local_addr().expect("its port").port());
            drop(bound);
            let folder = tempfile::tempdir().expect("a folder");
            match Server::start_on(program(), folder.path(), ports) {
                Ok(server) => {
                    let address = server.address().to_owned();
                    return Etcd { server: Some(server), address, ports, folder };
                }
                Err(error) => last = Some(error),
            }
        }
        panic!("{}", last.expect("an error"));
    }

    /// Starts what [`Etcd::kill`] has killed, with its data.
    pub fn start_again(&mut self) {
        let server = Server::start_on(program(), self.folder.path(), self.ports);
        let server = self.server.insert(server.unwrap_or_else(|error| panic!("{error}")));
        self.address = server.address().to_owned();
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.server = None;
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// A process of a job, whose death is seen after two seconds.
    pub fn options(&self, job: &str, process: usize, count: usize) -> StoreOptions {
        let lease = Duration::from_secs(2);
        StoreOptions { lease, limit: LONG, ..StoreOptions::new(&self.address, job, (process, count)) }
    }

    pub fn connect(&self, job: &str, process: usize, count: usize) -> Store {
        Store::connect(self.options(job, process, count)).unwrap_or_else(|error| panic!("{error}"))
    }
}
