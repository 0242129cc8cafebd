//! Messages between processes over MPI, loaded at run time: any library with the standard ABI of MPI 5.0, such as
//! MPICH's `libmpi_abi.so`. No header and no compiler of MPI is needed.
//!
//! MPI only moves bytes here and computes nothing: [`World::exchange`] sends some messages and receives others, and
//! returns when all have arrived. The caller builds collectives from that. So no communicator is made for a group of
//! processes, and sums are of any type, in an order that the caller chooses.
//!
//! MPI reads and writes memory until a message has arrived, and a message that waits for a lost process never does. So
//! an exchange owns its bytes. A failed exchange cancels its receives; memory that MPI then still holds is never freed.
//!
//! Calls may come from any thread. Between two processes, messages of one tag arrive in the order in which they were
//! sent. Threads without an order between them use different tags.
#![allow(unsafe_code)]

mod abi;
#[cfg(feature = "training")]
mod variables;

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

#[cfg(feature = "training")]
pub(crate) use variables::set_variables;

use abi::{
    BYTE, COMM_SELF, COMM_WORLD, ERRORS_RETURN, Functions, Handle, LONGEST_ERROR, REQUEST_NULL, THREAD_MULTIPLE, handle,
};

/// The reason why a request to MPI failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum MpiError {
    /// The library cannot be loaded, or lacks the standard ABI.
    #[error(
        "{} cannot be used as MPI: {reason}; expected a library with the standard ABI of MPI 5.0, such as libmpi_abi.so of MPICH",
        path.display()
    )]
    Library { path: PathBuf, reason: String },
    /// The library does not allow calls from several threads.
    #[error(
        "this MPI allows no calls from several threads at once (MPI_THREAD_MULTIPLE), which collectives of several devices need"
    )]
    Threads,
    /// A call has failed.
    #[error("{call} of MPI has failed: {reason}")]
    Call { call: &'static str, reason: String },
    /// The caller gave up an exchange.
    #[error("{reason}")]
    GivenUp { reason: String },
}

meshloom_hlo::debug_is_message!(MpiError);

/// Checks that a file, or a name that the loader knows, is a library with the standard ABI. The check loads it, and it
/// stays loaded: MPI's libraries do not support unloading.
///
/// # Errors
/// The library cannot be loaded, or lacks a function of the ABI.
pub fn check(library: &Path) -> Result<(), MpiError> {
    Functions::load(library).map(drop)
}

/// Processes that send messages to each other. MPI is initialized with the value and finalized when it is dropped,
/// unless an exchange failed: with a lost process, finalizing could wait forever.
pub struct World {
    raw: Handle,
    rank: usize,
    size: usize,
    has_failed: AtomicBool,
    functions: Functions,
}

// SAFETY: the library was initialized for calls from any thread.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// A function that returns why an exchange that has waited for the given time should fail, or `None` if it should go
/// on.
pub type GiveUp<'a> = dyn Fn(Duration) -> Option<String> + Send + Sync + 'a;

/// A message to a process.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The process that gets it.
    pub to: usize,
    /// The tag, which tells it from other messages between the two processes.
    pub tag: u16,
    /// Its contents.
    pub bytes: Bytes,
}

/// A message from a process.
#[derive(Debug)]
pub struct Incoming {
    /// The process that sends it.
    pub from: usize,
    /// The tag, which tells it from other messages between the two processes.
    pub tag: u16,
    /// The buffer that the message fills. The message has exactly its length.
    pub bytes: Vec<u8>,
}

impl World {
    /// Returns all processes that one launcher of MPI has started, or this one alone if none has. It initializes the
    /// library, so it is called once in a process.
    ///
    /// # Errors
    /// The library cannot be loaded or initialized, or allows only one thread.
    pub fn start(library: &Path) -> Result<World, MpiError> {
        let functions = Functions::load(library)?;
        let mut provided = 0;
        // SAFETY: MPI takes null for the arguments of the process.
        let code = unsafe {
            (functions.init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), THREAD_MULTIPLE, &raw mut provided)
        };
        checked(&functions, "MPI_Init_thread", code)?;
        let mut world =
            World { raw: handle(COMM_WORLD), rank: 0, size: 1, has_failed: AtomicBool::new(false), functions };
        if provided < THREAD_MULTIPLE {
            return Err(MpiError::Threads);
        }
        // SAFETY: the handle is a communicator. Communicators that this process makes later report errors, too.
        let code = unsafe { (world.functions.comm_set_errhandler)(handle(COMM_SELF), handle(ERRORS_RETURN)) };
        world.check("MPI_Comm_set_errhandler", code)?;
        world.become_one_of(handle(COMM_WORLD))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is a communicator. Messages of other users of MPI in this process do not meet those of the
        // duplicate.
        let code = unsafe { (world.functions.comm_dup)(handle(COMM_WORLD), &raw mut raw) };
        world.check("MPI_Comm_dup", code)?;
        world.become_one_of(raw)?;
        Ok(world)
    }

    fn become_one_of(&mut self, raw: Handle) -> Result<(), MpiError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the handle is a communicator of this library.
        let codes = unsafe {
            [
                ("MPI_Comm_set_errhandler", (self.functions.comm_set_errhandler)(raw, handle(ERRORS_RETURN))),
                ("MPI_Comm_rank", (self.functions.comm_rank)(raw, &raw mut rank)),
                ("MPI_Comm_size", (self.functions.comm_size)(raw, &raw mut size)),
            ]
        };
        codes.into_iter().try_for_each(|(call, code)| self.check(call, code))?;
        let number = |number: c_int| usize::try_from(number).unwrap_or(0);
        (self.raw, self.rank, self.size) = (raw, number(rank), number(size));
        Ok(())
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        let checked = checked(&self.functions, call, code);
        if checked.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        checked
    }

    /// Whether a request has ended, so that MPI no longer touches its buffer.
    fn has_ended(&self, request: &mut Handle) -> bool {
        let mut done = 0;
        // SAFETY: it is a request of this library, or the null request, which has ended; a null pointer stands for an
        // unused status. A request that ends becomes the null request, even if MPI reports an error.
        let _ = unsafe { (self.functions.test)(request, &raw mut done, std::ptr::null_mut()) };
        *request == handle(REQUEST_NULL)
    }

    /// The number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether a call has failed: processes are lost, or not in step.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Sends messages and receives others. When all have arrived, it returns the received ones, in the order of
    /// `incoming`. While it waits, it asks `give_up` ten times a second, and fails with the reason that it returns.
    ///
    /// # Errors
    /// MPI reports an error, or the exchange was given up.
    pub fn exchange(
        &self,
        outgoing: Vec<Outgoing>,
        incoming: Vec<Incoming>,
        give_up: &GiveUp<'_>,
    ) -> Result<Vec<Vec<u8>>, MpiError> {
        let mut under_way = MessagesUnderWay { world: self, requests: Vec::new(), held: Vec::new() };
        incoming.into_iter().try_for_each(|message| under_way.receive(message))?;
        outgoing.into_iter().try_for_each(|message| under_way.send(message))?;
        under_way.wait(give_up)
    }

    /// Returns when all processes have called it.
    ///
    /// # Errors
    /// The same as for [`World::exchange`].
    pub fn barrier(&self, tag: u16, give_up: &GiveUp<'_>) -> Result<(), MpiError> {
        // The distance doubles each round: after it, a process knows of twice as many that they have come.
        let mut distance = 1;
        while distance < self.size {
            let (to, from) = ((self.rank + distance) % self.size, (self.rank + self.size - distance) % self.size);
            let outgoing = vec![Outgoing { to, tag, bytes: Bytes::from_static(&[0]) }];
            self.exchange(outgoing, vec![Incoming { from, tag, bytes: vec![0] }], give_up)?;
            distance *= 2;
        }
        Ok(())
    }
}

/// The buffer that MPI reads or writes while a message is under way.
enum Held {
    Received(Vec<u8>),
    Sent(#[expect(dead_code, reason = "MPI reads it")] Bytes),
}

/// Messages; some are still under way.
struct MessagesUnderWay<'a> {
    world: &'a World,
    requests: Vec<Handle>,
    /// The buffer of the request at the same index. If MPI has refused a request, its buffer follows as one more.
    held: Vec<Held>,
}

/// The pause between two questions to MPI; meanwhile other threads have the core.
const SHORT: Duration = Duration::from_micros(20);

fn number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

fn count(bytes: &[u8]) -> i64 {
    bytes.len().cast_signed() as i64
}

impl MessagesUnderWay<'_> {
    fn receive(&mut self, Incoming { from, tag, mut bytes }: Incoming) -> Result<(), MpiError> {
        let (place, count) = (bytes.as_mut_ptr(), count(&bytes));
        self.held.push(Held::Received(bytes));
        let receive = self.world.functions.receive;
        // SAFETY: the buffer has this length, and is held until the request has ended, or forever.
        self.begin("MPI_Irecv", |world, request| unsafe {
            receive(place.cast(), count, handle(BYTE), number(from), tag.into(), world, request)
        })
    }

    fn send(&mut self, Outgoing { to, tag, bytes }: Outgoing) -> Result<(), MpiError> {
        let (place, count) = (bytes.as_ptr(), count(&bytes));
        self.held.push(Held::Sent(bytes));
        let send = self.world.functions.send;
        // SAFETY: as above.
        self.begin("MPI_Isend", |world, request| unsafe {
            send(place.cast(), count, handle(BYTE), number(to), tag.into(), world, request)
        })
    }

    /// Begins the request of the last held buffer.
    fn begin(
        &mut self,
        call: &'static str,
        function: impl FnOnce(Handle, *mut Handle) -> c_int,
    ) -> Result<(), MpiError> {
        let mut request = std::ptr::null_mut();
        let code = function(self.world.raw, &raw mut request);
        self.world.check(call, code)?;
        self.requests.push(request);
        Ok(())
    }

    /// Waits for all requests, by asking MPI again and again. Between questions it leaves its core to other threads,
    /// which compute: the processes of a run and their devices may have to share few cores.
    fn wait(mut self, give_up: &GiveUp<'_>) -> Result<Vec<Vec<u8>>, MpiError> {
        const PATIENCE: Duration = Duration::from_millis(2);
        const ASK_AFTER: Duration = Duration::from_millis(100);
        let start = Instant::now();
        let mut asked = start;
        let count = c_int::try_from(self.requests.len()).unwrap_or(c_int::MAX);
        loop {
            let mut all_done = 0;
            // SAFETY: these are requests of this library, and it takes null for unused statuses.
            let code = unsafe {
                (self.world.functions.test_all)(
                    count,
                    self.requests.as_mut_ptr(),
                    &raw mut all_done,
                    std::ptr::null_mut(),
                )
            };
            self.world.check("MPI_Testall", code)?;
            if all_done != 0 {
                self.requests.clear();
                let received = |held| match held {
                    Held::Received(bytes) => Some(bytes),
                    Held::Sent(_) => None,
                };
                return Ok(std::mem::take(&mut self.held).into_iter().filter_map(received).collect());
            }
            let waited = start.elapsed();
            if waited < PATIENCE {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(SHORT);
            if asked.elapsed() >= ASK_AFTER {
                asked = Instant::now();
                if let Some(reason) = give_up(waited) {
                    self.world.has_failed.store(true, Ordering::Relaxed);
                    return Err(MpiError::GivenUp { reason });
                }
            }
        }
    }
}

impl Drop for MessagesUnderWay<'_> {
    /// Ends the requests that a failed exchange left. Receives are cancelled. Sends, and receives that have begun,
    /// cannot be: MPI gets a moment to end them.
    fn drop(&mut self) {
        const MOMENT: Duration = Duration::from_millis(200);
        if self.requests.is_empty() {
            return;
        }
        // Processes are not in step any more, and MPI may still be at work when the world is dropped.
        self.world.has_failed.store(true, Ordering::Relaxed);
        let mut left: Vec<(Handle, Held)> = self.requests.drain(..).zip(self.held.drain(..)).collect();
        for (request, held) in &mut left {
            if matches!(held, Held::Received(_)) && *request != handle(REQUEST_NULL) {
                // SAFETY: it is a request of this library that has not ended. An error changes nothing here.
                let _ = unsafe { (self.world.functions.cancel)(request) };
            }
        }
        let start = Instant::now();
        loop {
            left.retain_mut(|(request, _)| !self.world.has_ended(request));
            if left.is_empty() || start.elapsed() >= MOMENT {
                break;
            }
            std::thread::sleep(SHORT);
        }
        // The other process is lost or silent, and MPI cannot take back such a request: freeing it does not end it. So
        // this memory stays MPI's. It does not grow, because a run ends with the first failure.
        left.into_iter().for_each(|(_, held)| std::mem::forget(held));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.has_failed() {
            // SAFETY: this value owns the communicator and is being dropped. An error changes nothing here.
            unsafe {
                let _ = (self.functions.comm_free)(&raw mut self.raw);
                let _ = (self.functions.finalize)();
            }
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({} of {})", self.rank, self.size)
    }
}

fn checked(functions: &Functions, call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; LONGEST_ERROR];
    let mut length = 0;
    // SAFETY: the buffer has room for the longest text.
    let said = unsafe { (functions.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let reason = match (said, usize::try_from(length)) {
        (0, Ok(length)) => String::from_utf8_lossy(&text[..length.min(LONGEST_ERROR)]).into_owned(),
        _ => format!("error {code}"),
    };
    Err(MpiError::Call { call, reason })
}
