//! A key-value store for the processes of a run, in [etcd](https://etcd.io).
//!
//! | what | how |
//! |---|---|
//! | [`Store::put`] | writes a key once; a second time is [`StoreError::AlreadyExists`] |
//! | [`Store::get`] | waits until a key is written, up to a time limit |
//! | [`Store::try_get`] | reads a key that is there |
//! | [`Store::barrier`] | returns when all processes have come; names those who have not |
//! | [`Store::put_shared`] | writes a key once that does not end with this process, but with the last of all |
//! | [`Store::entries`] | reads all keys that begin so, at one moment |
//! | [`Store::dead`] | the processes whose leases have ended |
//!
//! Keys lie under the names of the job and the attempt: two jobs do not meet, and an attempt does not see what one
//! before it has left. All of them end with leases: of the process that wrote them, which is kept alive while the store
//! is there; of all processes that share one; or, where a barrier was opened, with one that nobody keeps alive. Calls
//! block and may come from any number of threads; none of them may be in a task of tokio.
//!
//! When etcd is away, calls wait for it up to their time limits, and a put that may have been lost is found again.

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
