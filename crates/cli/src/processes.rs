//! The flag `--processes` and those around it: a run as one of several processes, or of several replicas that are
//! apart.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use meshloom::pjrt::{Client, ProcessPlace};

use meshloom_train::config::RunConfig;
use meshloom_train::peers::{Peers, ReplicaLink};

/// Makes the run one of several processes or replicas, from the flags and all words of the command line.
pub type Join = fn(&ProcessFlags, &[OsString]) -> Result<Box<dyn Several>>;

/// The actions of a program that concern other processes and hosts, given the flags and all words of the command line.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Makes the run one of several processes or replicas.
    pub join: Join,
    /// Makes the certificates with which the hosts of a run know each other, and returns what to do with them.
    pub certify: fn(&CertificateFlags, &[OsString]) -> Result<String>,
}

/// A process that is one of several, or a run that is one of several replicas that are apart.
pub trait Several {
    /// Returns the number of this process and the count of all; `None` if the replica has no other process.
    fn place(&self) -> Option<(usize, usize)>;

    /// Joins the others and calls `train` for the part of this process. Then it leaves them, or tells them why it
    /// cannot go on.
    ///
    /// # Errors
    /// The others do not come, one is lost, or `train` fails.
    fn train(&self, config: &RunConfig, train: &dyn Fn(Membership) -> Result<()>) -> Result<()>;
}

/// The other processes and replicas, as a run knows them.
pub struct Membership {
    /// The processes of its mesh, and the place of this one among them; `None` if there is no other process.
    pub process: Option<(Arc<dyn Peers>, ProcessPlace)>,
    /// The other replicas, if they are apart.
    pub link: Option<Arc<dyn ReplicaLink>>,
    /// Makes programs of a client call the collectives between processes, where its plugin has none.
    pub prepare: fn(&Client) -> Result<()>,
}

/// Flags of a run of several processes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Several processes")]
pub struct ProcessFlags {
    /// Runs as one of several processes, as the launcher that started it says: mpiexec, srun, a Kubernetes indexed job,
    /// or GKE with TPUs
    #[arg(long, value_name = "auto", value_parser = ["auto"], conflicts_with_all = ["process_id", "process_count"])]
    pub processes: Option<String>,
    /// Number of this process, from 0, where no launcher says it
    #[arg(long, value_name = "N", requires = "process_count")]
    pub process_id: Option<usize>,
    /// How many processes there are
    #[arg(long, value_name = "N", requires = "process_id", value_parser = parse_count)]
    pub process_count: Option<usize>,
    /// The etcd through which they find each other, http://HOST:PORT or https://HOST:PORT; on this host, process 0
    /// starts one if none is there. Also MESHLOOM_STORE. Not needed with mpiexec on one host
    #[arg(long, value_name = "ADDRESS")]
    pub store: Option<String>,
    /// Certificate (PEM) of the authority behind the store's certificate, and between replicas behind those of all.
    /// `meshloom certificates` makes these three files
    #[arg(long, value_name = "FILE")]
    pub store_ca: Option<PathBuf>,
    /// Certificate (PEM) of this process for the store, and for other replicas
    #[arg(long, value_name = "FILE", requires = "store_key")]
    pub store_cert: Option<PathBuf>,
    /// Key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    pub store_key: Option<PathBuf>,
    /// User of the store; the password is in --store-password-file, or in MESHLOOM_STORE_PASSWORD
    #[arg(long, value_name = "NAME")]
    pub store_user: Option<String>,
    /// File whose first line is the password of --store-user
    #[arg(long, value_name = "FILE", requires = "store_user")]
    pub store_password_file: Option<PathBuf>,
    /// Name of the job, which tells its keys from those of others in the store: all begin with meshloom/NAME/
    #[arg(long, value_name = "NAME", value_parser = parse_job)]
    pub job: Option<String>,
    /// Number of the start, counted over restarts of the job under its name
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub attempt: u64,
    /// Longest time that processes wait for each other when they begin, save and end
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub join_limit: u64,
    /// How long a process may give no sign of life before the others take it for dead
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub lease: u64,
    /// Lets a replica listen beyond loopback without certificates, and sends a password without TLS: for a network in
    /// which everybody is trusted
    #[arg(long)]
    pub insecure: bool,
    /// Network interface of this host for MPI and NCCL, which let anybody connect: needed where processes are on
    /// several hosts, in a network in which everybody is trusted
    #[arg(long, value_name = "INTERFACE")]
    pub trusted_network: Option<String>,
    /// Number of this replica, from 0, where each of diloco.replicas is a run of its own. They meet in the store, which
    /// must outlive them
    #[arg(long, value_name = "N", help_heading = "Replicas apart", conflicts_with = "debug_sharding")]
    pub replica: Option<usize>,
    /// Where other replicas may read this one's messages [default: 127.0.0.1 and a free port]. Beyond loopback it needs
    /// --store-ca, --store-cert and --store-key, or --insecure
    #[arg(long, value_name = "IP:PORT", help_heading = "Replicas apart", requires = "replica")]
    pub listen: Option<SocketAddr>,
    /// How other replicas reach that, where it is not the same
    #[arg(long, value_name = "HOST:PORT", help_heading = "Replicas apart", requires = "replica")]
    pub advertise: Option<String>,
}

impl ProcessFlags {
    /// Whether this is one of several processes.
    pub fn is_one_of_several(&self) -> bool {
        self.processes.is_some() || self.process_id.is_some()
    }
}

pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|&count| count > 0);
    count.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

fn parse_job(text: &str) -> Result<String, String> {
    const LONGEST: usize = 128;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-@:".contains(letter);
    // A slash would make it lie below another job's keys.
    if text.is_empty() || text.len() > LONGEST || !text.chars().all(is_plain) {
        return Err(format!("it must be up to {LONGEST} letters, digits, and `.`, `_`, `-`, `@` or `:`"));
    }
    Ok(text.to_owned())
}

/// Makes an authority and a certificate of its own, with which the hosts of a run and its etcd know each other
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  meshloom certificates run-7 --host node1.example.org --host 10.0.0.2
      Writes ca.pem, ca.key, run.pem and run.key, and prints the flags for etcd and for each process
  meshloom certificates local
      For localhost, 127.0.0.1 and ::1")]
pub struct CertificateFlags {
    /// The folder to write to: it must be empty, or not be there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// A name or an IP address by which a host of the run is reached; may be given more than once [default: localhost,
    /// 127.0.0.1 and ::1]
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// How long the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}
