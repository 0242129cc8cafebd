//! The address of a store, and how to reach it.

use std::fmt;
use std::time::Duration;

/// Certificates, in PEM. The key is not printed.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificate of the only authority that may have signed etcd's certificate. Without it, the authorities that
    /// browsers trust are accepted.
    pub authority: Option<Vec<u8>>,
    /// The certificate and the key by which this process authenticates itself.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (authority, identity) = (self.authority.is_some(), self.identity.is_some());
        f.debug_struct("Tls").field("authority", &authority).field("identity", &identity).finish()
    }
}

/// A user of etcd. The password is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The address of the store, and the process that asks.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub address: String,
    /// The name of the job. No other job that uses this etcd at the same time has it.
    pub job: String,
    /// The number of the attempt: that of the start, counted over restarts.
    pub attempt: u64,
    /// The number of this process.
    pub process: usize,
    /// The number of processes.
    pub count: usize,
    /// The time without a sign of life after which the others take this process for dead.
    pub lease: Duration,
    /// The longest time of a call that waits only for etcd.
    pub limit: Duration,
    /// Certificates, for https.
    pub tls: Option<Tls>,
    /// A user of etcd.
    pub user: Option<User>,
    /// Whether the user's password may travel unencrypted, by `http`.
    pub insecure: bool,
    /// A text that tells the host of this process from others: processes with the same text share a host.
    pub host: String,
}

impl StoreOptions {
    /// A process of a job, with a lease of 15 seconds, and 60 seconds for etcd to answer.
    pub fn new(address: impl Into<String>, job: impl Into<String>, (process, count): (usize, usize)) -> StoreOptions {
        StoreOptions {
            address: address.into(),
            job: job.into(),
            attempt: 0,
            process,
            count,
            lease: Duration::from_secs(15),
            limit: Duration::from_secs(60),
            tls: None,
            user: None,
            insecure: false,
            host: String::new(),
        }
    }
}

/// Returns the text with which all keys of a job begin.
pub(crate) fn prefix_of(job: &str) -> String {
    format!("meshloom/{job}/")
}
