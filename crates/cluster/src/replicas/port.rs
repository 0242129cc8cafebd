//! The port at which others read: how long connections may stay, and the lines about those that are refused.
//!
//! Anyone who can reach the port can connect. So a connection counts as a stranger's until it has asked for something
//! of this run. Strangers are closed after a while, or at once if a newcomer needs the place: a run's own peers ask as
//! soon as they are connected.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::lock;

/// Limits on the resources that others may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of connections at a time.
    pub connections: usize,
    /// The number of streams of a connection at a time.
    pub streams: u32,
    /// The longest silence of a connection. A live one answers pings.
    pub silence: Duration,
    /// The time within which a connection must have asked for something of this run.
    pub question: Duration,
    /// The time within which a piece of an answer must be read.
    pub unread: Duration,
    /// The time that a whole answer may take.
    pub answer: Duration,
}

impl Limits {
    /// Returns the limits for a port with so many readers, if each answer may take as long as `answer`.
    pub fn of(readers: usize, answer: Duration) -> Limits {
        // A peer whose connection breaks comes back before the old connection is closed.
        let connections = (2 * readers).max(128);
        let (silence, question) = (Duration::from_secs(30), Duration::from_secs(30));
        Limits { connections, streams: 8, silence, question, unread: Duration::from_secs(60), answer }
    }

    /// The interval between pings of a silent connection.
    pub(super) fn ping(&self) -> Duration {
        self.silence / 3
    }
}

/// A function that takes each line about a refused connection or question.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// The open connections.
pub(super) struct Door {
    pub(super) limits: Limits,
    connections: Mutex<VecDeque<Arc<Connection>>>,
    said: Mutex<Said>,
    say: Say,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The lines that were reported lately.
struct Said {
    since: Instant,
    lines: usize,
    unsaid: usize,
    /// The last line, which a peer that tries again and again would repeat.
    last: String,
}

impl Door {
    pub(super) fn new(limits: Limits, say: Say) -> Door {
        let said = Mutex::new(Said { since: Instant::now(), lines: 0, unsaid: 0, last: String::new() });
        Door { limits, connections: Mutex::default(), said, say }
    }

    /// Reports that a peer was refused, and why. A flood of refusals does not become a flood of lines.
    pub(super) fn refuse(&self, who: impl fmt::Display, reason: &str) {
        const LINES: usize = 16;
        const WITHIN: Duration = Duration::from_secs(10);
        let line = format!("{who} is refused: {reason}");
        let mut said = lock(&self.said);
        if said.last == line {
            return;
        }
        if said.since.elapsed() > WITHIN {
            if said.unsaid > 0 {
                (self.say)(&format!("{} more were refused", said.unsaid));
            }
            (said.since, said.lines, said.unsaid) = (Instant::now(), 0, 0);
        }
        if said.lines < LINES {
            said.lines += 1;
            (self.say)(&line);
            said.last = line;
        } else {
            said.unsaid += 1;
        }
    }

    /// Lets a peer in. If all places are taken, the oldest stranger is closed; without a stranger, the oldest peer that
    /// reads nothing now, which connects again when it needs to.
    fn enter(&self, peer: SocketAddr) -> Option<Arc<Connection>> {
        let mut connections = lock(&self.connections);
        if connections.len() >= self.limits.connections {
            let stranger = connections.iter().position(|other| !other.is_peer());
            let idle = || connections.iter().position(|other| other.streams.load(Ordering::Acquire) == 0);
            let Some(place) = stranger.or_else(idle) else {
                drop(connections);
                self.refuse(peer, "too many replicas are connected, or being read");
                return None;
            };
            if let Some(other) = connections.remove(place) {
                other.close();
            }
        }
        let connection = Arc::new(Connection {
            address: peer,
            since: Instant::now(),
            is_peer: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            waker: Mutex::default(),
        });
        connections.push_back(connection.clone());
        Some(connection)
    }

    fn leave(&self, connection: &Arc<Connection>) {
        lock(&self.connections).retain(|other| !Arc::ptr_eq(other, connection));
        if !connection.is_peer() {
            self.refuse(
                connection.address,
                "it asked for nothing of this run: it has no certificate of the run, or is no replica",
            );
        }
    }

    /// The number of connections.
    pub(super) fn count(&self) -> usize {
        lock(&self.connections).len()
    }
}

/// A connection of a peer or a stranger.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) address: SocketAddr,
    since: Instant,
    /// Whether it has asked for something of this run.
    is_peer: AtomicBool,
    is_closed: AtomicBool,
    /// The number of answers that it reads now.
    streams: AtomicUsize,
    /// The waker of the task that reads and writes.
    waker: Mutex<Option<Waker>>,
}

impl Connection {
    pub(super) fn is_peer(&self) -> bool {
        self.is_peer.load(Ordering::Acquire)
    }

    /// Notes that the connection has asked for something of this run.
    pub(super) fn becomes_peer(&self) {
        self.is_peer.store(true, Ordering::Release);
    }

    /// Ends the connection, with all the answers that it reads.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }

    /// Counts an answer until the value is dropped.
    pub(super) fn reads(self: Arc<Self>) -> Reading {
        self.streams.fetch_add(1, Ordering::AcqRel);
        Reading(self)
    }
}

/// An answer under way.
pub(super) struct Reading(Arc<Connection>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Accepts connections until the receiver is dropped.
pub(super) fn accept(listener: TcpListener, door: Arc<Door>) -> ReceiverStream<io::Result<Guarded>> {
    // If the process has no file descriptor left, an immediate attempt would fail again.
    const PAUSE: Duration = Duration::from_millis(200);
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let Some(connection) = door.enter(peer) else { continue };
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!("{peer}: {error}");
                    }
                    let deadline = Box::pin(tokio::time::sleep(door.limits.silence.min(door.limits.question)));
                    let guarded = Guarded { stream, connection, door: door.clone(), deadline, is_of_stranger: true };
                    if sender.send(Ok(guarded)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    door.refuse("somebody", &error.to_string());
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// A connection whose reads and writes fail once its time is over.
pub(super) struct Guarded {
    stream: TcpStream,
    connection: Arc<Connection>,
    door: Arc<Door>,
    deadline: Pin<Box<Sleep>>,
    /// Whether the deadline is that of a stranger.
    is_of_stranger: bool,
}

impl Guarded {
    /// Returns an error if the time is over, or another peer got the place.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        *lock(&self.connection.waker) = Some(context.waker().clone());
        if self.connection.is_closed.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection is closed"));
        }
        if self.deadline.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        // Since the deadline was set, the connection may have asked for something.
        if self.is_of_stranger && self.connection.is_peer() {
            self.renew();
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was silent for too long"))
    }

    fn renew(&mut self) {
        self.is_of_stranger = !self.connection.is_peer();
        let silence = Instant::now() + self.door.limits.silence;
        let question = self.connection.since + self.door.limits.question;
        let deadline = if self.is_of_stranger { silence.min(question) } else { silence };
        self.deadline.as_mut().reset(deadline.into());
    }

    /// Renews the deadline after a read or a write that is done, and checks it after one that is not.
    fn after<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.renew();
        } else if let Err(error) = self.check(context) {
            return Poll::Ready(Err(error));
        }
        polled
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        self.after(polled, context)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.after(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.after(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Guarded {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        self.connection.clone()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.door.leave(&self.connection);
    }
}
