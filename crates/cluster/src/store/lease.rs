//! The heartbeat of a process: a lease that is kept alive until the process ends.
//!
//! Keys under the lease end with it, so a process that watches them learns that this one has gone: at once if it gave
//! the lease back, else after the length of the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::error::StoreError;
use super::etcd::Etcd;
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse,
};

/// A lease that is kept alive by a task.
pub(crate) struct Lease {
    pub(crate) id: i64,
    length: Duration,
    ended: Arc<AtomicBool>,
    /// The task ends when this is dropped.
    _stop: watch::Sender<()>,
}

impl Lease {
    /// Asks for a lease and begins to keep it alive.
    pub(crate) async fn grant(etcd: Arc<Etcd>, length: Duration, limit: Duration) -> Result<Lease, StoreError> {
        let (id, length) = grant(&etcd, length, limit).await?;
        Ok(Lease::keep(etcd, id, length))
    }

    /// Begins to keep an existing lease alive.
    pub(crate) fn keep(etcd: Arc<Etcd>, id: i64, length: Duration) -> Lease {
        let ended = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = watch::channel(());
        tokio::spawn(keep_alive(etcd, id, length, ended.clone(), stopped));
        Lease { id, length, ended, _stop: stop }
    }

    /// Returns an error once the others take this process for dead.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.ended.load(Ordering::Acquire) { Err(StoreError::LeaseEnded(self.length)) } else { Ok(()) }
    }

    /// Gives the lease back, so that its keys end now.
    pub(crate) async fn revoke(&self, etcd: &Etcd, limit: Duration) -> Result<(), StoreError> {
        let question = LeaseRevokeRequest { id: self.id };
        etcd.call::<_, LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", question, limit).await.map(drop)
    }
}

/// Asks for a lease without keeping it alive. Returns its number, and the length that etcd grants.
pub(crate) async fn grant(etcd: &Etcd, length: Duration, limit: Duration) -> Result<(i64, Duration), StoreError> {
    let question = LeaseGrantRequest { ttl: length.as_secs().max(1).cast_signed() };
    let granted: LeaseGrantResponse = etcd.call("/etcdserverpb.Lease/LeaseGrant", question, limit).await?;
    if !granted.error.is_empty() {
        return Err(StoreError::Other { address: etcd.address().to_owned(), reason: granted.error });
    }
    Ok((granted.id, Duration::from_secs(granted.ttl.max(1).cast_unsigned())))
}

/// Renews a lease three times in its length, over a stream that is opened again when it breaks, until the lease has
/// ended or is dropped.
async fn keep_alive(
    etcd: Arc<Etcd>,
    id: i64,
    mut length: Duration,
    ended: Arc<AtomicBool>,
    mut stopped: watch::Receiver<()>,
) {
    let (mut renewed, mut has_warned) = (Instant::now(), false);
    loop {
        let asked = Instant::now();
        let answer = tokio::select! {
            answer = renew(&etcd, id, length / 3) => answer,
            _ = stopped.changed() => return,
        };
        match answer {
            // The length counts from the moment when etcd got the question, which is not before it was asked.
            Ok(Some(granted)) => (renewed, has_warned, length) = (asked, false, granted),
            Ok(None) => return ended.store(true, Ordering::Release),
            // The lease may outlive its length if etcd was away for as long. etcd tells when it is back.
            Err(error) if !has_warned => {
                has_warned = true;
                tracing::warn!("the lease of this process is not renewed: {error}");
            }
            Err(error) => {
                tracing::debug!(
                    "the lease of this process is not renewed for {} s: {error}",
                    renewed.elapsed().as_secs()
                );
            }
        }
        tokio::select! {
            () = tokio::time::sleep((length / 3).saturating_sub(asked.elapsed()).max(length / 12)) => {}
            _ = stopped.changed() => return,
        }
    }
}

/// Renews a lease. Returns the length that etcd grants, or `None` if the lease has ended.
async fn renew(etcd: &Etcd, id: i64, limit: Duration) -> Result<Option<Duration>, StoreError> {
    let renewing = async {
        let question = LeaseKeepAliveRequest { id };
        let (_questions, mut answers) =
            etcd.stream::<_, LeaseKeepAliveResponse>("/etcdserverpb.Lease/LeaseKeepAlive", question).await?;
        match answers.message().await {
            Ok(Some(answer)) => Ok((answer.ttl > 0).then(|| Duration::from_secs(answer.ttl.cast_unsigned()))),
            Ok(None) => Err(StoreError::Unreachable {
                address: etcd.address().to_owned(),
                reason: "the stream of heartbeats has ended".to_owned(),
            }),
            Err(status) => Err(etcd.error(&status)),
        }
    };
    let late = || StoreError::Unreachable {
        address: etcd.address().to_owned(),
        reason: format!("no answer within {} s", limit.as_secs_f64()),
    };
    tokio::time::timeout(limit, renewing).await.unwrap_or_else(|_| Err(late()))
}
