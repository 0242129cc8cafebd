//! An etcd of a test's own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use meshloom_store::{Server, Store, StoreOptions};

/// How long anything may take that is not to fail.
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

impl Etcd {
    pub fn start() -> Etcd {
        let ports = [0, 1].map(|_| {
            let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
            bound.expect("a port").port()
        });
        let folder = tempfile::tempdir().expect("a folder");
        let mut etcd = Etcd { server: None, address: String::new(), ports, folder };
        etcd.start_again();
        etcd
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
