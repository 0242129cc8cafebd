//! An etcd of one's own, for runs on one machine.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::StoreError;

/// How long it may take to start.
const START: Duration = Duration::from_secs(30);

/// A running etcd, which listens on loopback alone and ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
    folder: PathBuf,
}

impl Server {
    /// Starts a program of etcd on free ports, with its data in a folder.
    ///
    /// # Errors
    /// The program cannot be started, or is not ready within 30 seconds.
    pub fn start(program: &Path, folder: &Path) -> Result<Server, StoreError> {
        Server::start_on(program, folder, [free_port()?, free_port()?])
    }

    /// The same, on a given port for clients.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_at(program: &Path, folder: &Path, port: u16) -> Result<Server, StoreError> {
        Server::start_on(program, folder, [port, free_port()?])
    }

    /// The same, on given ports: for clients and for other servers.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_on(program: &Path, folder: &Path, [clients, peers]: [u16; 2]) -> Result<Server, StoreError> {
        let address = format!("http://127.0.0.1:{clients}");
        let peer = format!("http://127.0.0.1:{peers}");
        let failed = |reason: String| StoreError::Other { address: address.clone(), reason };
        let started = Command::new(program)
            .arg("--name=meshloom")
            .arg(format!("--data-dir={}", folder.display()))
            .arg(format!("--listen-client-urls={address}"))
            .arg(format!("--advertise-client-urls={address}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=meshloom={peer}"))
            .args(["--log-level=warn", "--unsafe-no-fsync"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = started.map_err(|error| failed(format!("{} does not start: {error}", program.display())))?;
        // What it says is read, or it would stop when the pipe is full.
        if let Some(errors) = child.stderr.take() {
            let log = move || {
                BufReader::new(errors).lines().map_while(Result::ok).for_each(|line| tracing::debug!("etcd: {line}"))
            };
            std::thread::Builder::new()
                .name("etcd".to_owned())
                .spawn(log)
                .map_err(|error| failed(error.to_string()))?;
        }
        let mut server = Server { child, address, folder: folder.to_owned() };
        let deadline = Instant::now() + START;
        while std::net::TcpStream::connect(("127.0.0.1", clients)).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(server.failed(format!("{} has ended with {status}", program.display())));
            }
            if Instant::now() >= deadline {
                return Err(server.failed(format!("{} is not ready after {} s", program.display(), START.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn failed(&self, reason: String) -> StoreError {
        StoreError::Other { address: self.address.clone(), reason }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where its data are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A process that is gone already cannot be killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16, StoreError> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|error| StoreError::Other {
        address: "http://127.0.0.1".to_owned(),
        reason: format!("no free port: {error}"),
    })
}
