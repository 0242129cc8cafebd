//! The port of a replica by itself, for the project's own tests.

use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

use super::blobs::{Blob, Blobs, RunName};
use super::port::{Limits, Say};
use super::{ReplicaError, ReplicaOptions, Replicas, system};

/// A port that offers bytes to readers.
#[derive(Debug)]
pub struct Port {
    blobs: Blobs,
    address: SocketAddr,
    _runtime: Runtime,
}

impl Port {
    /// Listens on loopback, as a replica of a run would.
    ///
    /// # Errors
    /// The system does not allow listening.
    pub fn listen(run: &str, limits: Limits, say: Say) -> Result<Port, ReplicaError> {
        let runtime = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(8).enable_all().build();
        let runtime = runtime.map_err(|error| system("no threads for a port", error))?;
        let inside = runtime.enter();
        let name = RunName::default();
        let _ = name.set(run.to_owned());
        let (blobs, address) = Blobs::listen(SocketAddr::from(([127, 0, 0, 1], 0)), None, name, (limits, say))?;
        drop(inside);
        Ok(Port { blobs, address, _runtime: runtime })
    }

    /// Offers bytes under a name.
    pub fn offer(&self, name: &str, bytes: Vec<u8>) {
        self.blobs.offer(name.to_owned(), Blob::Bytes(bytes.into()));
    }

    /// The address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.blobs.connections()
    }
}

/// Connects a replica of one process; `say` takes the lines about refused readers.
///
/// # Errors
/// The same as for [`Replicas::connect`].
pub fn connect(options: ReplicaOptions, say: Say) -> Result<Replicas, ReplicaError> {
    Replicas::connect_saying(options, None, say)
}
