//! `--processes` and what belongs to it: this process as one of several.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use meshloom::pjrt::{Client, PlatformKind, ProcessPlace};
use meshloom_cluster::{
    Crossing, JoinOptions, Launched, Member, OwnEnvironment, ReplicaOptions, Replicas, StoreForClients, StoreOptions,
    Tls, store_address,
};
use meshloom_train::config::RunConfig;

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
    /// Number of this replica, from 0, where each of diloco.replicas is a run of its own. They meet in the store, which
    /// must outlive them
    #[arg(long, value_name = "N", help_heading = "Replicas apart", conflicts_with_all = FLAGS_THAT_RUN_NOTHING)]
    replica: Option<usize>,
    /// Where other replicas may read this one's messages [default: 127.0.0.1 and a free port]
    #[arg(long, value_name = "IP:PORT", help_heading = "Replicas apart", requires = "replica")]
    listen: Option<SocketAddr>,
    /// How other replicas reach that, where it is not the same
    #[arg(long, value_name = "HOST:PORT", help_heading = "Replicas apart", requires = "replica")]
    advertise: Option<String>,
}

/// Flags of `train` that run nothing.
const FLAGS_THAT_RUN_NOTHING: [&str; 2] = ["target", "debug_sharding"];

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

impl Processes {
    /// Whether this is one of several processes.
    pub fn given(&self) -> bool {
        self.processes.is_some() || self.process_id.is_some()
    }

    /// The number of this replica, if it is apart from others.
    pub fn replica(&self) -> Option<usize> {
        self.replica
    }

    /// Connects to the other replicas, if they are apart.
    pub fn replicas(&self, config: &RunConfig, member: Option<&Arc<Member>>) -> Result<Option<Arc<Replicas>>> {
        let (Some(number), Some(diloco)) = (self.replica, &config.diloco) else { return Ok(None) };
        let Some(address) = store_address(self.store.as_ref()) else {
            bail!(
                "--replica needs a store in which replicas meet: give --store http://HOST:PORT of an etcd, or set MESHLOOM_STORE"
            );
        };
        let tls = self.tls()?;
        let lease = Duration::from_secs(self.lease);
        let store = StoreOptions {
            lease,
            limit: Duration::from_secs(self.join_limit.min(60)),
            tls: tls.clone(),
            user: self.user()?,
            ..StoreOptions::new(address, self.job_or_default(), (number, diloco.replicas))
        };
        let options = ReplicaOptions {
            number,
            count: diloco.replicas,
            least: diloco.min_replicas,
            store,
            listen: self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))),
            advertise: self.advertise.clone(),
            tls: tls.filter(|tls| tls.identity.is_some() && tls.authority.is_some()),
            limit: Duration::from_secs(self.join_limit),
            patience: JoinOptions::default().patience,
        };
        Ok(Some(Arc::new(Replicas::connect(options, member)?)))
    }

    fn job_or_default(&self) -> String {
        self.job.clone().unwrap_or_else(|| "meshloom".to_owned())
    }

    fn tls(&self) -> Result<Option<Tls>> {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let identity = match (&self.store_cert, &self.store_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let authority = self.store_ca.as_ref().map(read).transpose()?;
        Ok((authority.is_some() || identity.is_some()).then_some(Tls { authority, identity }))
    }

    fn user(&self) -> Result<Option<(String, String)>> {
        let Some(name) = &self.store_user else { return Ok(None) };
        let password = std::env::var("MESHLOOM_STORE_PASSWORD");
        Ok(Some((name.clone(), password.context("--store-user needs the password in MESHLOOM_STORE_PASSWORD")?)))
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
        // The processes of a replica meet apart from those of others.
        let of_replica = self.replica.map(|number| format!("{}.replica-{number}", self.job_or_default()));
        let options = JoinOptions {
            place: self.process_id.zip(self.process_count),
            store: self.store.clone(),
            tls: self.tls()?,
            user: self.user()?,
            job: of_replica.or_else(|| self.job.clone()),
            attempt: self.attempt,
            limit: Duration::from_secs(self.join_limit),
            lease: Duration::from_secs(self.lease),
            mpi: on == PlatformKind::Cpu,
            starts_store: self.replica.is_none(),
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
