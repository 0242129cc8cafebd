//! Bytes that processes read from each other by name, over gRPC. A process offers bytes; a reader asks for them, and
//! waits until they are offered.
//!
//! Both a question and its answer name the run and the bytes. So bytes of another run, another round or another replica
//! are refused, whoever sends them and whatever the mistake.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::ServerStreamingService;
use tonic::transport::server::Server;
use tonic::transport::{Certificate, Channel, Identity, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::port::{Connection, Door, Limits, Say, accept};
use super::{ReplicaError, lock};
use crate::store::{Tls, endpoint};

/// The only method. It is not in a `.proto`, because both ends are in this file.
const METHOD: &str = "/meshloom.Replicas/Read";
/// The number of bytes of a piece; gRPC takes up to 4 MiB in a message.
const PIECE: usize = 1 << 20;
/// The number of bytes of a piece of a file. Each reader of a file takes that much memory.
const FILE_PIECE: usize = 1 << 18;
/// The most bytes of a question, with room to spare.
const LARGEST_QUESTION: usize = 4096;
/// The number of bytes that may be under way: more than a link of 1 Gbit/s holds in half a second.
const WINDOW: u32 = 64 << 20;
/// The time that a question waits before it is asked again.
const WAIT: Duration = Duration::from_secs(20);
/// The time that the reader waits for the next piece of an answer.
const NEXT_PIECE: Duration = Duration::from_secs(60);

/// The name of a run, which its replicas agree on when it begins.
pub(super) type RunName = Arc<OnceLock<String>>;

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    run: String,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
    /// The number of bytes of all pieces together.
    #[prost(uint64, tag = "2")]
    total: u64,
    /// The name of the bytes that this is a piece of.
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    run: String,
}

/// The bytes that a process offers, from memory or from a file.
#[derive(Clone, Debug)]
pub(super) enum Blob {
    Bytes(Bytes),
    File(PathBuf),
}

impl Blob {
    /// Sends all pieces. It ends early if the reader has gone.
    async fn send(self, of: &Question, to: &Pieces) -> Result<(), Unsent> {
        self.send_pieces(of, to).await?;
        to.sent().await
    }

    async fn send_pieces(self, of: &Question, to: &Pieces) -> Result<(), Unsent> {
        let piece = |bytes, total| Piece { bytes, total, name: of.name.clone(), run: of.run.clone() };
        match self {
            Blob::Bytes(mut bytes) => {
                let total = bytes.len() as u64;
                // At least one piece is sent, because it states the number of bytes.
                loop {
                    to.send(piece(bytes.split_to(bytes.len().min(PIECE)), total)).await?;
                    if bytes.is_empty() {
                        return Ok(());
                    }
                }
            }
            Blob::File(path) => {
                let open = move || {
                    let file = File::open(path)?;
                    Ok((file.metadata()?.len(), file))
                };
                let (total, mut file) = in_thread(open).await?;
                let mut sent = 0;
                loop {
                    let next = move || {
                        let mut bytes = Vec::with_capacity(FILE_PIECE);
                        (&mut file).take(FILE_PIECE as u64).read_to_end(&mut bytes)?;
                        Ok((bytes, file))
                    };
                    let (bytes, rest) = in_thread(next).await?;
                    (file, sent) = (rest, sent + bytes.len() as u64);
                    let is_last = bytes.len() < FILE_PIECE || sent >= total;
                    to.send(piece(bytes.into(), total)).await?;
                    if is_last {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Reads from a disk in a thread of its own, because a task must not block.
async fn in_thread<T: Send + 'static>(read: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Unsent> {
    let read = tokio::task::spawn_blocking(read).await.map_err(io::Error::other);
    read.and_then(|read| read).map_err(Unsent::Unreadable)
}

/// The reason why an answer ends early.
enum Unsent {
    /// The reader has gone.
    Left,
    /// A piece was not read in time.
    Unread,
    Unreadable(io::Error),
}

/// The channel that takes the pieces of an answer.
struct Pieces {
    sender: mpsc::Sender<Result<Piece, Status>>,
    unread: Duration,
}

impl Pieces {
    async fn send(&self, piece: Piece) -> Result<(), Unsent> {
        let place = tokio::time::timeout(self.unread, self.sender.reserve()).await;
        let place = place.map_err(|_| Unsent::Unread)?;
        place.map_err(|_| Unsent::Left)?.send(Ok(piece));
        Ok(())
    }

    /// Waits until the last piece is under way.
    async fn sent(&self) -> Result<(), Unsent> {
        let place = tokio::time::timeout(self.unread, self.sender.reserve()).await;
        place.map_err(|_| Unsent::Unread)?.map(drop).map_err(|_| Unsent::Left)
    }
}

#[derive(Debug)]
struct BlobsShared {
    run: RunName,
    door: Arc<Door>,
    blobs: Mutex<HashMap<String, Blob>>,
    changed: watch::Sender<()>,
}

impl BlobsShared {
    fn get(&self, name: &str) -> Option<Blob> {
        lock(&self.blobs).get(name).cloned()
    }
}

/// The bytes that this process offers.
#[derive(Clone, Debug)]
pub(super) struct Blobs(Arc<BlobsShared>);

impl Blobs {
    /// Listens, and returns the address too, because the system chooses the port for port 0. It must be called in a
    /// runtime, and answers until that ends.
    pub(super) fn listen(
        on: SocketAddr,
        tls: Option<&PeerTls>,
        run: RunName,
        (limits, say): (Limits, Say),
    ) -> Result<(Blobs, SocketAddr), ReplicaError> {
        let failed = |reason: String| ReplicaError::Listen { address: on.to_string(), reason };
        let io_failed = |error: io::Error| failed(error.to_string());
        let door = Arc::new(Door::new(limits, say));
        let (blobs, changed) = (Mutex::default(), watch::channel(()).0);
        let blobs = Blobs(Arc::new(BlobsShared { run, door: door.clone(), blobs, changed }));
        let listener = std::net::TcpListener::bind(on).map_err(io_failed)?;
        listener.set_nonblocking(true).map_err(io_failed)?;
        let listener = TcpListener::from_std(listener).map_err(io_failed)?;
        let address = listener.local_addr().map_err(io_failed)?;
        let mut server = Server::builder()
            .max_concurrent_streams(limits.streams)
            .concurrency_limit_per_connection(limits.streams as usize)
            .http2_keepalive_interval(Some(limits.ping()))
            .http2_keepalive_timeout(Some(limits.silence))
            .http2_max_header_list_size(LARGEST_QUESTION as u32);
        if let Some(PeerTls { authority, identity: (certificate, key) }) = tls {
            let config = ServerTlsConfig::new()
                .identity(Identity::from_pem(certificate, key))
                .client_ca_root(Certificate::from_pem(authority));
            server = server.tls_config(config).map_err(|error| failed(with_causes(&error)))?;
        }
        let answers = server.serve_with_incoming(Answers(blobs.clone()), accept(listener, door));
        tokio::spawn(async move {
            if let Err(error) = answers.await {
                tracing::warn!("other replicas are not answered any more: {error}");
            }
        });
        Ok((blobs, address))
    }

    /// Offers bytes under a name from now on.
    pub(super) fn offer(&self, name: String, blob: Blob) {
        lock(&self.0.blobs).insert(name, blob);
        self.0.changed.send_replace(());
    }

    /// Stops offering the names that are not to be kept.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        lock(&self.0.blobs).retain(|name, _| keep(name));
    }

    /// The number of connections.
    pub(super) fn connections(&self) -> usize {
        self.0.door.count()
    }
}

/// Certificates with which replicas know each other, in PEM.
#[derive(Clone)]
pub(super) struct PeerTls {
    authority: Vec<u8>,
    identity: (Vec<u8>, Vec<u8>),
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls")
    }
}

impl PeerTls {
    /// Returns the authority and the identity; `None` if one of them is missing.
    pub(super) fn of(tls: &Tls) -> Option<PeerTls> {
        Some(PeerTls { authority: tls.authority.clone()?, identity: tls.identity.clone()? })
    }

    fn for_reading(&self) -> Tls {
        Tls { authority: Some(self.authority.clone()), identity: Some(self.identity.clone()) }
    }
}

/// The gRPC service that answers questions.
#[derive(Clone)]
struct Answers(Blobs);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for Answers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answers = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD {
                return Ok(Status::unimplemented("there is one method").into_http());
            }
            let codec = ProstCodec::<Piece, Question>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(LARGEST_QUESTION);
            Ok(grpc.server_streaming(answers, request).await)
        })
    }
}

impl Answers {
    /// Returns the bytes that a question asks for, once they are offered.
    async fn found(&self, question: &Question, connection: &Connection) -> Result<Blob, Status> {
        let shared = &*self.0.0;
        let mut changed = shared.changed.subscribe();
        let waiting = async {
            loop {
                // Before the run has a name, it offers nothing.
                if let Some(run) = shared.run.get() {
                    if question.run != *run {
                        return Err(Status::failed_precondition(format!("this is the run {run}")));
                    }
                    connection.becomes_peer();
                    if let Some(blob) = shared.get(&question.name) {
                        return Ok(blob);
                    }
                }
                // The sender is in `shared`, so this cannot fail.
                let _ = changed.changed().await;
            }
        };
        let found = tokio::time::timeout(WAIT, waiting).await;
        found.unwrap_or_else(|_| Err(Status::not_found(format!("{} is not there yet", question.name))))
    }
}

impl ServerStreamingService<Question> for Answers {
    type Response = Piece;
    type ResponseStream = ReceiverStream<Result<Piece, Status>>;
    type Future = Boxed<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Question>) -> Self::Future {
        let answers = self.clone();
        Box::pin(async move {
            let connection = request.extensions().get::<Arc<Connection>>().cloned();
            let connection = connection.ok_or_else(|| Status::internal("a question without a connection"))?;
            let door = answers.0.0.door.clone();
            let question = request.into_inner();
            let found = answers.found(&question, &connection).await.inspect_err(|status| {
                if status.code() == Code::FailedPrecondition {
                    let reason =
                        format!("it asks for {:?} of the run {:?}; {}", question.name, question.run, status.message());
                    door.refuse(connection.address, &reason);
                }
            })?;
            let (sender, stream) = mpsc::channel(1);
            let pieces = Pieces { sender, unread: door.limits.unread };
            tokio::spawn(async move {
                let reading = connection.clone().reads();
                let sending = tokio::time::timeout(door.limits.answer, found.send(&question, &pieces));
                let reason = match sending.await {
                    Ok(Ok(()) | Err(Unsent::Left)) => None,
                    Ok(Err(Unsent::Unreadable(error))) => {
                        let _ = pieces.sender.send(Err(Status::internal(error.to_string()))).await;
                        None
                    }
                    Ok(Err(Unsent::Unread)) => Some(door.limits.unread),
                    Err(_) => Some(door.limits.answer),
                };
                drop(reading);
                if let Some(limit) = reason {
                    // A stream that is not read cannot be ended by itself: the bytes under way would stay in memory.
                    connection.close();
                    let reason = format!("it has not read {} for {} s", question.name, limit.as_secs_f64());
                    door.refuse(connection.address, &reason);
                }
            });
            Ok(Response::new(ReceiverStream::new(stream)))
        })
    }
}

/// The reason why bytes were not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// They do not come, or not completely. They may come later.
    Failed(String),
    /// Other bytes came than were asked for.
    Refused(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unread::Failed(reason) | Unread::Refused(reason)) = self;
        f.write_str(reason)
    }
}

/// A reader of the bytes that other processes offer.
#[derive(Debug)]
pub(super) struct BlobReader {
    tls: Option<PeerTls>,
    run: RunName,
    channels: Mutex<HashMap<String, Channel>>,
}

impl BlobReader {
    pub(super) fn new(tls: Option<PeerTls>, run: RunName) -> BlobReader {
        BlobReader { tls, run, channels: Mutex::default() }
    }

    /// Reads the bytes that `HOST:PORT` offers under a name, once it offers them: at most `most`. Returns their number.
    pub(super) async fn read(&self, address: &str, name: &str, most: u64, mut to: impl Write) -> Result<u64, Unread> {
        loop {
            match self.read_now(address, name, most, &mut to).await {
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) if status.code() == Code::FailedPrecondition => {
                    return Err(Unread::Refused(status.message().to_owned()));
                }
                read => return read.map_err(|status| Unread::Failed(status.message().to_owned())),
            }
        }
    }

    /// Reads once. An answer that must be refused is a failed precondition.
    async fn read_now(&self, address: &str, name: &str, most: u64, to: &mut impl Write) -> Result<u64, Status> {
        let refused = |reason: String| Err(Status::failed_precondition(reason));
        let late = |_| Status::unavailable(format!("nothing came for {} s", NEXT_PIECE.as_secs()));
        let channel = self.channel(address).map_err(|error| Status::internal(error.to_string()))?;
        let run = self.run.get().cloned().unwrap_or_default();
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::unavailable(with_causes(&error)))?;
        let question = Request::new(Question { name: name.to_owned(), run: run.clone() });
        let method = PathAndQuery::from_static(METHOD);
        let asked = grpc.server_streaming(question, method, ProstCodec::<Question, Piece>::default());
        let stream = tokio::time::timeout(NEXT_PIECE, asked).await.map_err(late)??;
        let (mut stream, mut read, mut announced) = (stream.into_inner(), 0, None);
        loop {
            let next = tokio::time::timeout(NEXT_PIECE, stream.message()).await.map_err(late)?;
            // Some bytes have been taken, so the question must not be asked again as if none had come.
            let next = next.map_err(|status| Status::data_loss(status.message()))?;
            let Some(piece) = next else {
                return Err(Status::data_loss(format!("the connection ended after {read} bytes")));
            };
            if (&piece.run, piece.name.as_str()) != (&run, name) {
                return refused(format!("it is {:?} of the run {:?}, not of the run {run:?}", piece.name, piece.run));
            }
            let total = *announced.get_or_insert(piece.total);
            let count = piece.bytes.len() as u64;
            if total > most {
                return refused(format!("it would have {total} bytes, and this run's has at most {most}"));
            }
            if piece.total != total || read + count > total || (count == 0 && total > 0) {
                return refused(format!("a piece of {count} bytes after {read} of {total} does not fit"));
            }
            to.write_all(&piece.bytes).map_err(|error| Status::internal(error.to_string()))?;
            read += count;
            if read == total {
                return Ok(read);
            }
        }
    }

    fn channel(&self, address: &str) -> Result<Channel, ReplicaError> {
        let mut channels = lock(&self.channels);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let tls = self.tls.as_ref().map(PeerTls::for_reading);
        let endpoint = endpoint(&format!("{scheme}://{address}"), tls.as_ref())?;
        let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let channel = endpoint.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// The text of an error with its causes: the outermost only says that a transport failed.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
