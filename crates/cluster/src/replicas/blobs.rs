//! Bytes that processes read from each other by name, over gRPC: who has some offers them, who needs them asks, and
//! waits where they are not there yet.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use meshloom_store::{Tls, endpoint};
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::ServerStreamingService;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Certificate, Channel, Identity, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::ReplicaError;

/// The only method. It is not in a `.proto`: both ends are this file.
const METHOD: &str = "/meshloom.Replicas/Read";
/// Bytes of a piece; gRPC takes up to 4 MiB in a message.
const PIECE: usize = 1 << 20;
/// How much may be under way: more than a link of 1 Gbit/s holds in half a second.
const WINDOW: u32 = 64 << 20;
/// How long a question waits before it is asked again.
const WAIT: Duration = Duration::from_secs(20);

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
    /// Bytes of all pieces.
    #[prost(uint64, tag = "2")]
    total: u64,
}

/// What somebody may read.
#[derive(Clone, Debug)]
pub(super) enum Blob {
    Bytes(Bytes),
    File(PathBuf),
}

impl Blob {
    fn total(&self) -> io::Result<u64> {
        match self {
            Blob::Bytes(bytes) => Ok(bytes.len() as u64),
            Blob::File(path) => Ok(path.metadata()?.len()),
        }
    }

    /// Sends all pieces; none is lost where the other end reads slowly. It ends where nobody reads any more.
    fn send(self, pieces: &mpsc::Sender<Result<Piece, Status>>) -> io::Result<()> {
        let total = self.total()?;
        let send = |bytes: Bytes| pieces.blocking_send(Ok(Piece { bytes, total })).is_ok();
        match self {
            // At least one, which says how many bytes there are.
            Blob::Bytes(bytes) if bytes.is_empty() => drop(send(bytes)),
            Blob::Bytes(mut bytes) => while !bytes.is_empty() && send(bytes.split_to(bytes.len().min(PIECE))) {},
            Blob::File(path) => {
                let mut file = std::fs::File::open(path)?;
                loop {
                    let mut piece = Vec::with_capacity(PIECE);
                    (&mut file).take(PIECE as u64).read_to_end(&mut piece)?;
                    let is_last = piece.len() < PIECE;
                    if !send(piece.into()) || is_last {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Shared {
    blobs: Mutex<HashMap<String, Blob>>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn get(&self, name: &str) -> Option<Blob> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// What this process offers.
#[derive(Clone, Debug)]
pub(super) struct Blobs(Arc<Shared>);

impl Blobs {
    /// Listens; also where, as the system chose it for port 0. In a runtime, in which it answers until that ends.
    pub(super) fn listen(on: SocketAddr, tls: Option<&Tls>) -> Result<(Blobs, SocketAddr), ReplicaError> {
        let failed = |reason: String| ReplicaError::Listen { address: on.to_string(), reason };
        let blobs = Blobs(Arc::new(Shared { blobs: Mutex::default(), changed: watch::channel(()).0 }));
        let incoming = TcpIncoming::bind(on).map_err(|error| failed(error.to_string()))?.with_nodelay(Some(true));
        let address = incoming.local_addr().map_err(|error| failed(error.to_string()))?;
        let mut server = Server::builder();
        if let Some(Tls { authority, identity: Some((certificate, key)) }) = tls {
            let mut config = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
            if let Some(authority) = authority {
                config = config.client_ca_root(Certificate::from_pem(authority));
            }
            server = server.tls_config(config).map_err(|error| failed(error.to_string()))?;
        }
        let answers = server.serve_with_incoming(Answers(blobs.clone()), incoming);
        tokio::spawn(async move {
            if let Err(error) = answers.await {
                tracing::warn!("other replicas are not answered any more: {error}");
            }
        });
        Ok((blobs, address))
    }

    /// Offers something, from now on.
    pub(super) fn offer(&self, name: String, blob: Blob) {
        self.0.blobs.lock().unwrap_or_else(PoisonError::into_inner).insert(name, blob);
        self.0.changed.send_replace(());
    }

    /// Forgets what is not to be kept.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.blobs.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| keep(name));
    }
}

/// Answers questions.
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
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Piece, Question>::default());
            Ok(grpc.server_streaming(answers, request).await)
        })
    }
}

impl ServerStreamingService<Question> for Answers {
    type Response = Piece;
    type ResponseStream = ReceiverStream<Result<Piece, Status>>;
    type Future = Boxed<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Question>) -> Self::Future {
        let shared = self.0.0.clone();
        Box::pin(async move {
            let name = request.into_inner().name;
            let mut changed = shared.changed.subscribe();
            let waiting = async {
                loop {
                    if let Some(blob) = shared.get(&name) {
                        return blob;
                    }
                    // The sender is in `shared`.
                    let _ = changed.changed().await;
                }
            };
            let blob = tokio::time::timeout(WAIT, waiting).await;
            let blob = blob.map_err(|_| Status::not_found(format!("{name} is not there yet")))?;
            let (pieces, stream) = mpsc::channel(4);
            tokio::task::spawn_blocking(move || {
                if let Err(error) = blob.send(&pieces) {
                    let _ = pieces.blocking_send(Err(Status::internal(error.to_string())));
                }
            });
            Ok(Response::new(ReceiverStream::new(stream)))
        })
    }
}

/// Reads what others offer.
#[derive(Debug)]
pub(super) struct Reader {
    tls: Option<Tls>,
    channels: Mutex<HashMap<String, Channel>>,
}

impl Reader {
    pub(super) fn new(tls: Option<Tls>) -> Reader {
        Reader { tls, channels: Mutex::default() }
    }

    /// Reads what `HOST:PORT` offers under a name, once it does. The reason if it does not come, or not whole.
    pub(super) async fn read(&self, address: &str, name: &str, mut to: impl Write) -> Result<(), String> {
        loop {
            match self.read_now(address, name, &mut to).await {
                Err(status) if status.code() == Code::NotFound => {}
                read => return read.map_err(|status| status.message().to_owned()),
            }
        }
    }

    async fn read_now(&self, address: &str, name: &str, to: &mut impl Write) -> Result<(), Status> {
        let channel = self.channel(address).map_err(|error| Status::internal(error.to_string()))?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::unavailable(with_causes(&error)))?;
        let question = Request::new(Question { name: name.to_owned() });
        let method = PathAndQuery::from_static(METHOD);
        let stream = grpc.server_streaming(question, method, ProstCodec::<Question, Piece>::default()).await?;
        let (mut stream, mut read) = (stream.into_inner(), 0);
        loop {
            let Some(Piece { bytes, total }) = stream.message().await? else {
                return Err(Status::data_loss(format!("the connection ended after {read} bytes")));
            };
            to.write_all(&bytes).map_err(|error| Status::internal(error.to_string()))?;
            read += bytes.len() as u64;
            if read >= total {
                return Ok(());
            }
        }
    }

    fn channel(&self, address: &str) -> Result<Channel, ReplicaError> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = endpoint(&format!("{scheme}://{address}"), self.tls.as_ref())?;
        let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let channel = endpoint.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// An error with what is behind it: the outermost says only that a transport failed.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
