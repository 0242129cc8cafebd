//! A key-value store for the processes of a run, in [etcd](https://etcd.io).
//!
//! | what | how |
//! |---|---|
//! | [`Store::put`] | writes a key once; a second time is [`StoreError::AlreadyExists`] |
//! | [`Store::get`] | waits until a key is written, up to a time limit |
//! | [`Store::try_get`] | reads a key that exists |
//! | [`Store::barrier`] | returns when all processes have come; names those that have not |
//! | [`Store::put_shared`] | writes a key once that ends not with this process, but with the last of all |
//! | [`Store::entries`] | reads all keys with a prefix, at one moment |
//! | [`Store::dead`] | the processes whose leases have ended |
//!
//! Keys lie under the names of the job and the attempt: two jobs do not meet, and an attempt does not see the keys of
//! an earlier one. All keys end with leases: that of the process that wrote them, which is kept alive while its store
//! exists; that of all processes that share one; or, for an open barrier, one that is not kept alive. Calls block and
//! may come from any number of threads, but not from a task of tokio.
//!
//! When etcd is away, calls wait for it up to their time limits. A put whose answer was lost is recognized.

mod barrier;
mod error;
mod etcd;
mod keys;
mod lease;
mod messages;
mod options;
mod server;

pub use error::StoreError;
#[cfg(feature = "training")]
pub(crate) use etcd::endpoint;
pub use keys::{Entry, Store};
pub use options::{StoreOptions, Tls, User};
pub use server::Server;
