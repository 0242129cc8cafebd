//! A peer that speaks the protocol of replicas, and answers as a test wants.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::PathAndQuery;
use meshloom_cluster::internals::Say;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body;
use tonic::server::ServerStreamingService;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// A question to a peer: it asks for a message of a run by name.
#[derive(Clone, PartialEq, Message)]
pub struct Question {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub run: String,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Message)]
pub struct Piece {
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: Bytes,
    #[prost(uint64, tag = "2")]
    pub total: u64,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub run: String,
}

/// The lines that were logged.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub fn say(&self) -> Say {
        let lines = self.clone();
        Arc::new(move |line| lines.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned()))
    }

    pub fn count(&self, part: &str) -> usize {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(part)).count()
    }

    /// Waits until a line has a part.
    #[track_caller]
    pub fn until(&self, part: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.count(part) == 0 {
            let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(Instant::now() < deadline, "{part:?} is not in {lines:?}");
            drop(lines);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A runtime for the tests that ask.
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads")
}

/// The authority's certificate, and, if there is one, one's own with its key.
pub type Certificates<'a> = (&'a [u8], Option<(&'a [u8], &'a [u8])>);

/// A connection; with certificates, by TLS.
pub fn channel(address: &str, tls: Option<Certificates<'_>>) -> Channel {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).expect("an address");
    if let Some((authority, identity)) = tls {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        if let Some((certificate, key)) = identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        endpoint = endpoint.tls_config(config).expect("certificates");
    }
    endpoint.connect_timeout(Duration::from_secs(5)).connect_lazy()
}

/// Asks for something.
pub async fn ask(channel: Channel, run: &str, name: &str) -> Result<Streaming<Piece>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let question = Request::new(Question { name: name.to_owned(), run: run.to_owned() });
    let method = PathAndQuery::from_static("/meshloom.Replicas/Read");
    let asking = grpc.server_streaming(question, method, ProstCodec::<Question, Piece>::default());
    let late = |_| Status::deadline_exceeded("no answer");
    Ok(tokio::time::timeout(Duration::from_secs(20), asking).await.map_err(late)??.into_inner())
}

/// Makes the answer to a question and its number.
type Answer = Arc<dyn Fn(usize, &Question) -> Vec<Piece> + Send + Sync>;

/// A service that answers questions.
#[derive(Clone)]
struct Peer {
    answer: Answer,
    asked: Arc<Mutex<usize>>,
}

/// Answers on loopback as long as the runtime is there.
pub fn answer(runtime: &Runtime, answer: Answer) -> SocketAddr {
    let _inside = runtime.enter();
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = incoming.local_addr().expect("its address");
    let peer = Peer { answer, asked: Arc::default() };
    runtime.spawn(Server::builder().serve_with_incoming(peer, incoming));
    address
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for Peer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let peer = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Piece, Question>::default());
            Ok(grpc.server_streaming(peer, request).await)
        })
    }
}

impl ServerStreamingService<Question> for Peer {
    type Response = Piece;
    type ResponseStream = tokio_stream::Iter<std::vec::IntoIter<Result<Piece, Status>>>;
    type Future = Boxed<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Question>) -> Self::Future {
        let number = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            *asked += 1;
            *asked - 1
        };
        let pieces: Vec<_> = (self.answer)(number, &request.into_inner()).into_iter().map(Ok).collect();
        Box::pin(async move { Ok(Response::new(tokio_stream::iter(pieces))) })
    }
}
