//! Keys that are written once and waited for.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::error::StoreError;
use super::etcd::Etcd;
use super::lease::Lease;
use super::messages::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use super::options::{StoreOptions, prefix_of};

/// A connection of a process to the store of its run.
pub struct Store {
    pub(crate) lease: Lease,
    pub(crate) etcd: Arc<Etcd>,
    pub(crate) options: StoreOptions,
    /// The lease of keys that [`Store::put_shared`] writes.
    shared: Mutex<Option<Lease>>,
    /// The processes that have been present.
    seen: Mutex<BTreeSet<usize>>,
    /// The tasks of the leases run on it, so it goes last: fields are dropped in the order of declaration.
    runtime: Runtime,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("address", &self.options.address).field("job", &self.options.job).finish()
    }
}

/// A key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The rest of the key, behind the prefix of the question.
    pub name: String,
    /// The value of the key.
    pub value: Vec<u8>,
    /// The lease with which it ends. It names the process that wrote it ([`Store::lease`]).
    pub lease: i64,
}

/// The value of a key, with its lease and revision.
pub(crate) struct StoredValue {
    pub(crate) value: Vec<u8>,
    /// The lease of the key.
    lease: i64,
    /// The number of the store's change that wrote it.
    pub(crate) revision: i64,
}

impl From<KeyValue> for StoredValue {
    fn from(KeyValue { value, lease, mod_revision, .. }: KeyValue) -> StoredValue {
        StoredValue { value, lease, revision: mod_revision }
    }
}

/// The outcome of an attempt to write a new key.
enum Put {
    /// The key was written, by the change with this number.
    Written(i64),
    /// The key was there already.
    Found(StoredValue),
}

impl Store {
    /// Connects, and writes that this process is present.
    ///
    /// # Errors
    /// The store does not answer within [`StoreOptions::limit`]; it refuses the user; another process of this attempt
    /// has this number.
    pub fn connect(options: StoreOptions) -> Result<Store, StoreError> {
        let other =
            |error: std::io::Error| StoreError::Other { address: options.address.clone(), reason: error.to_string() };
        let runtime =
            Builder::new_multi_thread().worker_threads(2).enable_all().thread_name("store").build().map_err(other)?;
        let etcd = {
            let _inside = runtime.enter();
            Arc::new(Etcd::new(&options)?)
        };
        let deadline = Instant::now() + options.limit;
        let lease = runtime.block_on(insist(deadline, || Lease::grant(etcd.clone(), options.lease, left(deadline))))?;
        let store = Store { lease, etcd, options, shared: Mutex::default(), seen: Mutex::default(), runtime };
        store.put(&member_key(store.options.process), store.options.host.as_bytes())?;
        Ok(store)
    }

    /// Returns the version of etcd, such as `3.6.1`.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn version(&self) -> Result<String, StoreError> {
        let deadline = Instant::now() + self.options.limit;
        let call = || self.etcd.call("/etcdserverpb.Maintenance/Status", StatusRequest {}, left(deadline));
        self.runtime.block_on(insist(deadline, call)).map(|status: StatusResponse| status.version)
    }

    /// Returns the number of hosts of the processes that are present, by their [`StoreOptions::host`].
    ///
    /// # Errors
    /// The store does not answer.
    pub fn hosts(&self) -> Result<usize, StoreError> {
        let (members, _) = self.entries("members/")?;
        Ok(members.into_iter().map(|member| member.value).collect::<BTreeSet<_>>().len())
    }

    /// Writes a key.
    ///
    /// # Errors
    /// A process has written it before; the store does not answer.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.lease.check()?;
        self.runtime.block_on(self.put_once(key, value)).map(drop)
    }

    /// Writes a key that outlives this process: it stays until all processes that have written such a key, or called
    /// [`Store::share`], are gone.
    ///
    /// # Errors
    /// The same as for [`Store::put`].
    pub fn put_shared(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let lease = self.share()?;
        self.runtime.block_on(self.put_under(lease, key, value)).map(drop)
    }

    /// Keeps alive the keys that [`Store::put_shared`] writes. Returns their lease.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn share(&self) -> Result<i64, StoreError> {
        self.lease.check()?;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match &*shared {
            Some(lease) if lease.check().is_ok() => Ok(lease.id),
            _ => Ok(shared.insert(self.runtime.block_on(self.shared_lease())?).id),
        }
    }

    async fn shared_lease(&self) -> Result<Lease, StoreError> {
        let deadline = Instant::now() + self.options.limit;
        loop {
            if let Some(found) = insist(deadline, || self.read(SHARED, left(deadline))).await? {
                let id = String::from_utf8_lossy(&found.value).parse().unwrap_or(0);
                return Ok(Lease::keep(self.etcd.clone(), id, self.options.lease));
            }
            let grant = || Lease::grant(self.etcd.clone(), self.options.lease, left(deadline));
            let own = insist(deadline, grant).await?;
            match self.put_under(own.id, SHARED, own.id.to_string().as_bytes()).await {
                Err(StoreError::AlreadyExists { .. }) => own.revoke(&self.etcd, left(deadline)).await?,
                written => return written.map(|_| own),
            }
        }
    }

    /// Deletes a key, if it is there.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn delete(&self, key: &str) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.options.limit;
        let question = DeleteRangeRequest { key: self.full(key) };
        let call = || self.etcd.call("/etcdserverpb.KV/DeleteRange", question.clone(), left(deadline));
        self.runtime.block_on(insist(deadline, call)).map(|DeleteRangeResponse {}| ())
    }

    /// Returns all keys with a prefix at one moment, and the number of that moment.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn entries(&self, prefix: &str) -> Result<(Vec<Entry>, i64), StoreError> {
        self.lease.check()?;
        let deadline = Instant::now() + self.options.limit;
        self.runtime.block_on(insist(deadline, || self.entries_under(prefix, left(deadline))))
    }

    /// Returns when a key with a prefix has changed since a moment of [`Store::entries`], or when the time is over.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn wait_for_change(&self, prefix: &str, since: i64, limit: Duration) -> Result<(), StoreError> {
        let range = WatchCreateRequest { start_revision: since + 1, ..self.changes(prefix) };
        match self.runtime.block_on(async { tokio::time::timeout(limit, self.watch_range(range)).await }) {
            // The next call to the store waits for it.
            Ok(Err(StoreError::Unreachable { .. })) | Err(_) => Ok(()),
            Ok(changed) => changed,
        }
    }

    /// Returns the lease of this process. No other process has its number, not even an earlier one with the same
    /// process number.
    pub fn lease(&self) -> i64 {
        self.lease.id
    }

    /// Returns the value of a key, as soon as it is written.
    ///
    /// # Errors
    /// It is not written in time; the store does not answer.
    pub fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, StoreError> {
        self.lease.check()?;
        self.runtime.block_on(self.wait_for(key, limit))
    }

    /// Returns the value of a key that has been written.
    ///
    /// # Errors
    /// The key does not exist; the store does not answer.
    pub fn try_get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.lease.check()?;
        let deadline = Instant::now() + self.options.limit;
        let found = self.runtime.block_on(insist(deadline, || self.read(key, left(deadline))))?;
        found.map(|found| found.value).ok_or_else(|| StoreError::NotFound { key: key.to_owned() })
    }

    /// Returns the processes that this one has seen, by this call or at a barrier, and whose leases have ended.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn dead(&self) -> Result<Vec<usize>, StoreError> {
        self.lease.check()?;
        let deadline = Instant::now() + self.options.limit;
        self.runtime.block_on(insist(deadline, || self.look_for_dead(left(deadline))))
    }

    /// Tells the others that this process ends, and why.
    ///
    /// # Errors
    /// This process has done so before; the store does not answer.
    pub fn fail(&self, reason: &str) -> Result<(), StoreError> {
        self.lease.check()?;
        let (key, late) = (format!("{FAILED}{}", self.options.process), "it is not waited for any longer".to_owned());
        let telling = self.put_once(&key, reason.as_bytes());
        let late = |_| StoreError::Unreachable { address: self.options.address.clone(), reason: late };
        self.runtime.block_on(async { tokio::time::timeout(ENDING, telling).await.map_err(late)? }).map(drop)
    }

    /// Returns the other processes that have said that they end, and their reasons.
    async fn look_for_failed(&self, deadline: Instant) -> Result<Vec<(usize, String)>, StoreError> {
        let found = insist(deadline, || self.entries_under(FAILED, left(deadline))).await?;
        let process = |Entry { name, value, .. }: Entry| {
            let process = name.parse().ok().filter(|&process| process != self.options.process)?;
            Some((process, String::from_utf8_lossy(&value).into_owned()))
        };
        Ok(found.0.into_iter().filter_map(process).collect())
    }

    pub(crate) async fn look_for_dead(&self, limit: Duration) -> Result<Vec<usize>, StoreError> {
        let names = self.names_under("members/", limit).await?;
        let present: BTreeSet<usize> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(&present);
        Ok(seen.difference(&present).copied().collect())
    }

    /// Works like [`Store::get`] for a key that another process of the run writes: it fails as soon as a process is
    /// lost.
    ///
    /// # Errors
    /// The same as for [`Store::get`] and [`Store::check_others`].
    pub fn get_from_others(&self, key: &str, limit: Duration) -> Result<Vec<u8>, StoreError> {
        const MOMENT: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + limit;
        loop {
            match self.get(key, left(deadline).min(MOMENT)) {
                Err(StoreError::DeadlineExceeded { .. }) if !left(deadline).is_zero() => self.check_others()?,
                Err(StoreError::DeadlineExceeded { key, .. }) => {
                    return Err(StoreError::DeadlineExceeded { key, waited: limit });
                }
                found => return found,
            }
        }
    }

    /// Checks that all other processes that have been present still are.
    ///
    /// # Errors
    /// A process has said that it ends, or has died; the store does not answer.
    pub fn check_others(&self) -> Result<(), StoreError> {
        self.lease.check()?;
        self.runtime.block_on(self.look_for_losses(Instant::now() + self.options.limit))
    }

    pub(crate) async fn look_for_losses(&self, deadline: Instant) -> Result<(), StoreError> {
        if let Some((process, reason)) = self.look_for_failed(deadline).await?.into_iter().next() {
            return Err(StoreError::Failed { process, reason });
        }
        let dead = insist(deadline, || self.look_for_dead(left(deadline))).await?;
        if dead.is_empty() { Ok(()) } else { Err(StoreError::Died { dead }) }
    }

    /// Notes that all processes have been present.
    pub(crate) fn all_were_there(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(0..self.options.count);
    }

    /// Returns when a process has died or failed since this store was last read, or when the time is over. Meanwhile
    /// nothing is asked: the store reports it.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn wait_for_loss(&self, limit: Duration) -> Result<(), StoreError> {
        self.runtime.block_on(async {
            tokio::select! {
                found = self.watch_range(self.deaths()) => found,
                found = self.watch_range(self.changes(FAILED)) => found,
                () = tokio::time::sleep(limit) => Ok(()),
            }
        })
    }

    /// Ends the lease of this process, and with it all keys that it has written.
    ///
    /// # Errors
    /// The store does not answer; the lease then ends by itself.
    pub fn leave(&self) -> Result<(), StoreError> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.runtime.block_on(async {
            self.lease.revoke(&self.etcd, ENDING).await?;
            // Other processes keep the shared lease alive, if there are any. The last process to leave sees no
            // others.
            match shared {
                Some(shared) if self.count_under("members/", ENDING).await? == 0 => {
                    shared.revoke(&self.etcd, ENDING).await
                }
                _ => Ok(()),
            }
        })
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The whole key, with the names of the job and the attempt.
    pub(crate) fn full(&self, key: &str) -> Vec<u8> {
        let StoreOptions { job, attempt, .. } = &self.options;
        format!("{}{attempt}/{key}", prefix_of(job)).into_bytes()
    }

    /// Writes a key that ends with this process. Returns the number of the change that wrote it.
    pub(crate) async fn put_once(&self, key: &str, value: &[u8]) -> Result<i64, StoreError> {
        self.put_under(self.lease.id, key, value).await
    }

    async fn put_under(&self, lease: i64, key: &str, value: &[u8]) -> Result<i64, StoreError> {
        let deadline = Instant::now() + self.options.limit;
        let mut may_be_written = false;
        loop {
            match self.put_now((key, lease), value, left(deadline)).await {
                Ok(Put::Written(revision)) => return Ok(revision),
                // An earlier attempt wrote the key, and only its answer was lost.
                Ok(Put::Found(found)) if may_be_written && found.lease == lease && found.value == value => {
                    return Ok(found.revision);
                }
                Ok(Put::Found(_)) => return Err(StoreError::AlreadyExists { key: key.to_owned() }),
                Err(error @ StoreError::Unreachable { .. }) => {
                    may_be_written = true;
                    pause(deadline, error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes a key if it does not exist; else returns what it has.
    async fn put_now(&self, (key, lease): (&str, i64), value: &[u8], limit: Duration) -> Result<Put, StoreError> {
        let key = self.full(key);
        // EQUAL and CREATE.
        let is_new = Compare { result: 0, target: 1, key: key.clone(), create_revision: Some(0) };
        let put = PutRequest { key: key.clone(), value: value.to_vec(), lease };
        let read = RangeRequest { key, ..RangeRequest::default() };
        let question = TxnRequest {
            compare: vec![is_new],
            success: vec![RequestOp { put: Some(put), range: None }],
            failure: vec![RequestOp { range: Some(read), put: None }],
        };
        let answer: TxnResponse = self.etcd.call("/etcdserverpb.KV/Txn", question, limit).await?;
        if answer.succeeded {
            return Ok(Put::Written(answer.header.map_or(0, |header| header.revision)));
        }
        let found = answer.responses.into_iter().find_map(|response| response.range?.kvs.into_iter().next());
        Ok(Put::Found(found.unwrap_or_default().into()))
    }

    pub(crate) async fn read(&self, key: &str, limit: Duration) -> Result<Option<StoredValue>, StoreError> {
        Ok(self.read_with_revision(key, limit).await?.0)
    }

    /// Returns a key, and the revision at which it was read.
    pub(crate) async fn read_with_revision(
        &self,
        key: &str,
        limit: Duration,
    ) -> Result<(Option<StoredValue>, i64), StoreError> {
        let question = RangeRequest { key: self.full(key), ..RangeRequest::default() };
        let answer: RangeResponse = self.etcd.call("/etcdserverpb.KV/Range", question, limit).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        Ok((answer.kvs.into_iter().next().map(StoredValue::from), revision))
    }

    /// Returns the number of keys with a prefix.
    pub(crate) async fn count_under(&self, prefix: &str, limit: Duration) -> Result<usize, StoreError> {
        let key = self.full(prefix);
        let question = RangeRequest { range_end: behind(&key), key, count_only: true };
        let answer: RangeResponse = self.etcd.call("/etcdserverpb.KV/Range", question, limit).await?;
        Ok(usize::try_from(answer.count).unwrap_or(0))
    }

    /// Returns the rest of all keys with a prefix.
    pub(crate) async fn names_under(&self, prefix: &str, limit: Duration) -> Result<Vec<String>, StoreError> {
        Ok(self.entries_under(prefix, limit).await?.0.into_iter().map(|entry| entry.name).collect())
    }

    /// Returns all keys with a prefix, with their values, and the revision at which they were read.
    async fn entries_under(&self, prefix: &str, limit: Duration) -> Result<(Vec<Entry>, i64), StoreError> {
        let key = self.full(prefix);
        let question = RangeRequest { range_end: behind(&key), key: key.clone(), count_only: false };
        let answer: RangeResponse = self.etcd.call("/etcdserverpb.KV/Range", question, limit).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        let entry = |found: KeyValue| {
            let name = String::from_utf8(found.key.get(key.len()..)?.to_vec()).ok()?;
            Some(Entry { name, value: found.value, lease: found.lease })
        };
        Ok((answer.kvs.into_iter().filter_map(entry).collect(), revision))
    }

    async fn wait_for(&self, key: &str, limit: Duration) -> Result<Vec<u8>, StoreError> {
        let deadline = Instant::now() + limit;
        let late = || StoreError::DeadlineExceeded { key: key.to_owned(), waited: limit };
        loop {
            // Even without time left a busy store gets a moment to answer.
            let one_call = left(deadline).min(self.options.limit).max(Duration::from_millis(100));
            match self.read_with_revision(key, one_call).await {
                Ok((Some(found), _)) => return Ok(found.value),
                Ok((None, revision)) => {
                    let watching = self.watch(key, revision + 1);
                    match tokio::time::timeout(left(deadline), watching).await {
                        // The key may have been written and ended in between: read again.
                        Ok(Ok(())) => {}
                        Ok(Err(error @ StoreError::Unreachable { .. })) => {
                            pause(deadline, error).await.map_err(|_| late())?
                        }
                        Ok(Err(error)) => return Err(error),
                        Err(_) => return Err(late()),
                    }
                }
                Err(error @ StoreError::Unreachable { .. }) => pause(deadline, error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns when a key changes, from a revision on.
    pub(crate) async fn watch(&self, key: &str, start_revision: i64) -> Result<(), StoreError> {
        self.watch_range(WatchCreateRequest { key: self.full(key), start_revision, ..WatchCreateRequest::default() })
            .await
    }

    /// The question for changes below a prefix.
    fn changes(&self, prefix: &str) -> WatchCreateRequest {
        let key = self.full(prefix);
        WatchCreateRequest { range_end: behind(&key), key, ..WatchCreateRequest::default() }
    }

    /// The question for processes that go.
    pub(crate) fn deaths(&self) -> WatchCreateRequest {
        // NOPUT: new members are of no interest.
        WatchCreateRequest { filters: vec![0], ..self.changes("members/") }
    }

    pub(crate) async fn watch_range(&self, create: WatchCreateRequest) -> Result<(), StoreError> {
        let question = WatchRequest { create: Some(create) };
        let (_questions, mut answers) =
            self.etcd.stream::<_, WatchResponse>("/etcdserverpb.Watch/Watch", question).await?;
        loop {
            match answers.message().await {
                Ok(Some(answer)) if answer.canceled || !answer.events.is_empty() => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => {
                    let (address, reason) = (self.etcd.address().to_owned(), "the watch has ended".to_owned());
                    return Err(StoreError::Unreachable { address, reason });
                }
                Err(status) => return Err(self.etcd.error(&status)),
            }
        }
    }
}

/// The prefix of the keys of processes that end with an error.
const FAILED: &str = "failed/";
/// The time that a process that ends waits for the store.
const ENDING: Duration = Duration::from_secs(5);
/// The key with the number of the lease that processes share.
const SHARED: &str = "shared";

/// The key that says that a process is present.
pub(crate) fn member_key(process: usize) -> String {
    format!("members/{process}")
}

/// The first key behind all keys with a prefix.
pub(crate) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// The time until a deadline.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Waits a moment for etcd to be back. Returns the error if there is no time left.
async fn pause(deadline: Instant, error: StoreError) -> Result<(), StoreError> {
    const MOMENT: Duration = Duration::from_millis(100);
    if left(deadline) <= MOMENT {
        return Err(error);
    }
    tokio::time::sleep(MOMENT).await;
    Ok(())
}

/// Asks again while the store does not answer, until a deadline.
pub(crate) async fn insist<T, F: Future<Output = Result<T, StoreError>>>(
    deadline: Instant,
    ask: impl Fn() -> F,
) -> Result<T, StoreError> {
    loop {
        match ask().await {
            Err(error @ StoreError::Unreachable { .. }) => pause(deadline, error).await?,
            answer => return answer,
        }
    }
}
