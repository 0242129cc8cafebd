//! `--processes` and what belongs to it: this process as one of several.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use meshloom::pjrt::{Client, PlatformKind, ProcessPlace};
use meshloom_cluster::{Crossing, JoinOptions, Launched, Member, OwnEnvironment, StoreForClients, Tls};

/// Flags of a run of several processes.
#[derive(Args)]
#[command(next_help_heading = "Several processes")]
pub struct Processes {
    /// Runs as one of several processes, as the launcher that started it says: mpiexec, srun, a Kubernetes indexed job,
    /// or GKE with TPUs
    #[arg(long, value_name = "auto", value_parser = ["auto"], conflicts_with_all = ["process_id", "process_count"])]
    processes: Option<String>,
    /// Number of this process, from 0, where no launcher says it
    #[arg(long, value_name = "N", requires = "process_count")]
    process_id: Option<usize>,
    /// How many processes there are
    #[arg(long, value_name = "N", requires = "process_id", value_parser = parse_count)]
    process_count: Option<usize>,
    /// The etcd through which they find each other, http://HOST:PORT or https://HOST:PORT; on this host, process 0
    /// starts one if none is there. Also MESHLOOM_STORE. Not needed with mpiexec on one host
    #[arg(long, value_name = "ADDRESS")]
    store: Option<String>,
    /// Certificate (PEM) of the authority behind the store's certificate
    #[arg(long, value_name = "FILE")]
    store_ca: Option<PathBuf>,
    /// Certificate (PEM) of this process for the store
    #[arg(long, value_name = "FILE", requires = "store_key")]
    store_cert: Option<PathBuf>,
    /// Key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// User of the store; the password is in MESHLOOM_STORE_PASSWORD
    #[arg(long, value_name = "NAME")]
    store_user: Option<String>,
    /// Name of the job, which tells its keys from those of others in the store
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Number of the start, counted over restarts of the job under its name
    #[arg(long, value_name = "N", default_value_t = 0)]
    attempt: u64,
    /// Longest time that processes wait for each other when they begin, save and end
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    join_limit: u64,
    /// How long a process may give no sign of life before the others take it for dead
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    lease: u64,
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

impl Processes {
    /// Whether this is one of several processes.
    pub fn given(&self) -> bool {
        self.processes.is_some() || self.process_id.is_some()
    }

    /// The number of this process, and how many there are.
    pub fn place(&self) -> Result<Option<(usize, usize)>> {
        if let (Some(number), Some(count)) = (self.process_id, self.process_count) {
            if number >= count {
                bail!("--process-id {number} is not one of {count} processes, which count from 0");
            }
            return Ok(Some((number, count)));
        }
        if self.processes.is_none() {
            return Ok(None);
        }
        let launched = Launched::detect(&OwnEnvironment)?;
        Ok(Some((launched.process, launched.count)))
    }

    /// Joins the others, if there are any.
    pub fn join(&self, on: PlatformKind) -> Result<Option<Arc<Member>>> {
        if !self.given() {
            return Ok(None);
        }
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let identity = match (&self.store_cert, &self.store_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let authority = self.store_ca.as_ref().map(read).transpose()?;
        let user = match &self.store_user {
            Some(name) => {
                let password = std::env::var("MESHLOOM_STORE_PASSWORD");
                Some((name.clone(), password.context("--store-user needs the password in MESHLOOM_STORE_PASSWORD")?))
            }
            None => None,
        };
        let options = JoinOptions {
            place: self.process_id.zip(self.process_count),
            store: self.store.clone(),
            tls: (authority.is_some() || identity.is_some()).then_some(Tls { authority, identity }),
            user,
            job: self.job.clone(),
            attempt: self.attempt,
            limit: Duration::from_secs(self.join_limit),
            lease: Duration::from_secs(self.lease),
            mpi: on == PlatformKind::Cpu,
            ..JoinOptions::default()
        };
        Ok(Some(Arc::new(Member::join(&options)?)))
    }
}

/// Where a client of this process is among those of the others.
pub fn place(member: &Member) -> ProcessPlace {
    let store = Arc::new(StoreForClients(member.store().clone()));
    ProcessPlace { number: member.number(), count: member.count(), store }
}

/// Has programs of a client call the collectives between processes, where its plugin has none.
pub fn register(client: &Client) -> Result<()> {
    if client.platform().kind() == PlatformKind::Cpu {
        client.plugin().register::<Crossing>()?;
    }
    Ok(())
}
