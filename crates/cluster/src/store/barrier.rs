//! Barriers, at which all processes wait for one another.
//!
//! Each process writes that it has come, and counts the arrivals. The process that counts all of them opens the
//! barrier. The others wait for that alone, so the cost of a barrier grows with the number of processes and not with
//! its square.
//!
//! All keys of a barrier end with leases. An arrival is known as long as its process lives. The key that opens the
//! barrier outlives the process that wrote it, which may leave at once: it stays for twice the time within which a
//! process gives a sign of life, and waiting processes look every two seconds.
//!
//! A run may be started again while keys of its earlier start are still there. So a key opens a barrier only for
//! processes that came to it before that key was written.

use std::time::{Duration, Instant};

use super::error::StoreError;
use super::keys::{Store, insist, left};
use super::lease::grant;
use super::messages::{PutRequest, PutResponse};

impl Store {
    /// Waits until all processes of the attempt have come. Each name is for one use only.
    ///
    /// Some have not come in time ([`StoreError::Missing`] names them); a process that was present has died; this
    /// process has come before; the store does not answer.
    pub fn barrier(&self, name: &str, limit: Duration) -> Result<(), StoreError> {
        self.lease.check()?;
        self.block_on(self.meet(name, limit))
    }

    async fn meet(&self, name: &str, limit: Duration) -> Result<(), StoreError> {
        let (deadline, count) = (Instant::now() + limit, self.options.count);
        let (arrivals, open) = (format!("barriers/{name}/"), format!("open/{name}"));
        let came = self.put_once(&format!("{arrivals}{}", self.options.process), b"").await?;
        // The last process to come sees all arrivals, because it counts after writing its own.
        let here = insist(deadline, || self.count_under(&arrivals, left(deadline))).await?;
        if here == count {
            self.all_were_there();
            return self.open(&open, deadline).await;
        }
        loop {
            // A process may leave as soon as the barrier is open. So losses are read first: a process that leaves after
            // all have come is no loss.
            let losses = self.look_for_losses(deadline).await;
            let (found, revision) = insist(deadline, || self.read_with_revision(&open, left(deadline))).await?;
            if found.is_some_and(|found| found.revision > came) {
                self.all_were_there();
                return Ok(());
            }
            losses?;
            // A death between reading and watching is found by reading again, which happens after a while in any case.
            let moment = left(deadline).min(Duration::from_secs(2));
            tokio::select! {
                found = self.watch(&open, revision + 1) => self.unless_away(found).await?,
                found = self.watch_range(self.deaths()) => self.unless_away(found).await?,
                () = tokio::time::sleep(moment) => {}
            }
            if left(deadline).is_zero() {
                return Err(self.missing(name, &arrivals, limit).await);
            }
        }
    }

    /// Waits a moment if etcd does not answer.
    async fn unless_away(&self, found: Result<(), StoreError>) -> Result<(), StoreError> {
        match found {
            Err(StoreError::Unreachable { .. }) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(())
            }
            other => other,
        }
    }

    /// Returns the error that names the processes that have not come.
    async fn missing(&self, barrier: &str, arrivals: &str, waited: Duration) -> StoreError {
        let count = self.options.count;
        match self.names_under(arrivals, Duration::from_secs(5)).await {
            Ok(names) => {
                let missing = (0..count).filter(|process| !names.contains(&process.to_string())).collect();
                StoreError::Missing { barrier: barrier.to_owned(), count, missing, waited }
            }
            Err(error) => error,
        }
    }

    /// Opens the barrier for all.
    async fn open(&self, key: &str, deadline: Instant) -> Result<(), StoreError> {
        let granted = insist(deadline, || grant(&self.etcd, 2 * self.options.lease, left(deadline))).await?;
        let put = PutRequest { key: self.full(key), value: Vec::new(), lease: granted.0 };
        insist(deadline, || self.etcd.call::<_, PutResponse>("/etcdserverpb.KV/Put", put.clone(), left(deadline)))
            .await
            .map(drop)
    }
}
