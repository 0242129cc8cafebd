//! An etcd of meshloom's own, for runs on one machine.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::error::StoreError;

/// The time within which it must start.
const START: Duration = Duration::from_secs(30);

/// A running etcd, which listens only on loopback and ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
    folder: PathBuf,
}

impl Server {
    /// Starts the program etcd on free ports, with its data in a folder.
    ///
    /// # Errors
    /// The program cannot be started, or is not ready within 30 seconds.
    pub fn start(program: &Path, folder: &Path) -> Result<Server, StoreError> {
        // Between the choice and the start, another program may take a port.
        const TRIES: usize = 4;
        let start = |try_: usize| Server::start_on(program, &folder.join(try_.to_string()), free_ports()?);
        (0..TRIES - 1).find_map(|again| start(again).ok()).map_or_else(|| start(TRIES - 1), Ok)
    }

    /// Starts it on a given port for clients.
    ///
    /// # Errors
    /// The same as for [`Server::start`].
    pub fn start_at(program: &Path, folder: &Path, port: u16) -> Result<Server, StoreError> {
        let [peers, _] = free_ports()?;
        Server::start_on(program, folder, [port, peers])
    }

    /// Starts it on given ports: for clients and for other servers.
    ///
    /// # Errors
    /// The same as for [`Server::start`].
    pub fn start_on(program: &Path, folder: &Path, [clients, peers]: [u16; 2]) -> Result<Server, StoreError> {
        let address = format!("http://127.0.0.1:{clients}");
        let peer = format!("http://127.0.0.1:{peers}");
        let failed = |reason: String| StoreError::Other { address: address.clone(), reason };
        let mut command = Command::new(program);
        command
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
            .stderr(Stdio::piped());
        // Ctrl-C is for this process, which then saves its state and needs the store for that.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        // If this process were killed, etcd would otherwise listen on its port forever.
        let started = meshloom_process::spawn(command);
        let mut child = started.map_err(|error| failed(format!("{} does not start: {error}", program.display())))?;
        let errors = child.stderr.take();
        let mut server = Server { child, address, folder: folder.to_owned() };
        // Its log is read, because it would stop when the pipe is full.
        if let Some(errors) = errors {
            let log = move || {
                BufReader::new(errors).lines().map_while(Result::ok).for_each(|line| tracing::debug!("etcd: {line}"))
            };
            std::thread::Builder::new()
                .name("etcd".to_owned())
                .spawn(log)
                .map_err(|error| server.failed(error.to_string()))?;
        }
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

    /// The address where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The bytes of memory that it holds, if the system tells.
    pub fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    }

    /// The folder of its data.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing fails only if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns two ports that are free now.
fn free_ports() -> Result<[u16; 2], StoreError> {
    let none = |error: std::io::Error| StoreError::Other {
        address: "http://127.0.0.1".to_owned(),
        reason: format!("no free port: {error}"),
    };
    let bind = || TcpListener::bind(("127.0.0.1", 0)).map_err(none);
    // Both are held until both are known, so they differ.
    let (one, other) = (bind()?, bind()?);
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port()).map_err(none);
    Ok([port(&one)?, port(&other)?])
}
