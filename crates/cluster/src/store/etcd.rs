//! Calls to etcd, with its address and the token of the user.

use std::sync::Mutex;
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::error::StoreError;
use super::messages::{AuthenticateRequest, AuthenticateResponse};
use super::options::{StoreOptions, Tls, User, prefix_of};

/// The largest message that is accepted. etcd itself sends at most 1.5 MiB in a value, and some overhead.
const LARGEST_MESSAGE: usize = 16 << 20;
/// The time within which a connection must be made.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection to etcd, which is made again when it breaks.
pub(crate) struct Etcd {
    channel: Channel,
    address: String,
    user: Option<User>,
    /// The prefix of all keys of the job.
    prefix: String,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

/// Returns the endpoint of a server at `http://HOST:PORT` or `https://HOST:PORT`. A connection that is silent for 10
/// seconds counts as broken.
///
/// # Errors
/// The address or a certificate cannot be used.
pub fn endpoint(address: &str, tls: Option<&Tls>) -> Result<Endpoint, StoreError> {
    let wrong = |reason: String| StoreError::Address { address: without_user(address), reason };
    let (scheme, rest) = address.split_once("://").ok_or_else(|| wrong("it names no scheme".to_owned()))?;
    if authority_of(rest).contains('@') {
        return Err(wrong("an address may not hold a user: --store-user names one".to_owned()));
    }
    let mut endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| wrong(error.to_string()))?;
    match (scheme, tls) {
        ("http", None) => {}
        ("http", Some(_)) => return Err(wrong("certificates are for https".to_owned())),
        ("https", tls) => {
            // If the user names an authority, no other authority is trusted.
            let mut config = match tls.and_then(|tls| tls.authority.as_ref()) {
                Some(authority) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)),
                None => ClientTlsConfig::new().with_enabled_roots(),
            };
            if let Some((certificate, key)) = tls.and_then(|tls| tls.identity.as_ref()) {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(|error| wrong(error.to_string()))?;
        }
        (other, _) => return Err(wrong(format!("the scheme is {other}"))),
    }
    Ok(endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true))
}

/// The part of a URL between the scheme and the path.
fn authority_of(rest: &str) -> &str {
    rest.split(['/', '?', '#']).next().unwrap_or(rest)
}

/// An address without user and password, for messages.
fn without_user(address: &str) -> String {
    let start = address.find("://").map_or(0, |place| place + "://".len());
    let (scheme, rest) = address.split_at(start);
    match authority_of(rest).rfind('@') {
        Some(at) => format!("{scheme}…{}", &rest[at..]),
        None => address.to_owned(),
    }
}

impl Etcd {
    /// Makes the client. It connects at the first call.
    pub(crate) fn new(options: &StoreOptions) -> Result<Etcd, StoreError> {
        if let Some(user) = options.user.as_ref().filter(|_| !options.insecure)
            && options.address.starts_with("http://")
        {
            let (address, user) = (without_user(&options.address), user.name.clone());
            return Err(StoreError::InClear { address, user });
        }
        let (address, endpoint) = (options.address.clone(), endpoint(&options.address, options.tls.as_ref())?);
        let (user, prefix) = (options.user.clone(), prefix_of(&options.job));
        Ok(Etcd { channel: endpoint.connect_lazy(), address, user, prefix, token: Mutex::new(None) })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Makes a call with one answer. If the token has expired, the call is made again with a new one.
    pub(crate) async fn call<Q, A>(&self, method: &'static str, question: Q, limit: Duration) -> Result<A, StoreError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.authenticate(false).await?;
        match self.call_once(method, question.clone(), limit).await {
            Err(status) if self.user.is_some() && status.code() == Code::Unauthenticated => {
                self.authenticate(true).await?;
                self.call_once(method, question, limit).await.map_err(|status| self.error(&status))
            }
            answer => answer.map_err(|status| self.error(&status)),
        }
    }

    async fn call_once<Q, A>(&self, method: &'static str, question: Q, limit: Duration) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let mut request = self.with_token(Request::new(question));
        request.set_timeout(limit);
        let calling = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.unary(request, PathAndQuery::from_static(method), ProstCodec::<Q, A>::default()).await
        };
        match tokio::time::timeout(limit, calling).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::unavailable(format!("no answer within {} s", limit.as_secs_f64()))),
        }
    }

    /// Makes a call whose questions and answers are streams. Returns the sender of questions and the stream of answers.
    pub(crate) async fn stream<Q, A>(
        &self,
        method: &'static str,
        first: Q,
    ) -> Result<(mpsc::Sender<Q>, Streaming<A>), StoreError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.authenticate(false).await?;
        let (sender, receiver) = mpsc::channel(4);
        // The channel is empty, so there is room for the question.
        let _ = sender.try_send(first);
        let mut grpc = self.grpc();
        grpc.ready().await.map_err(|error| self.error(&Status::unavailable(error.to_string())))?;
        let request = self.with_token(Request::new(ReceiverStream::new(receiver)));
        let answers = grpc.streaming(request, PathAndQuery::from_static(method), ProstCodec::<Q, A>::default()).await;
        let answers = answers.map_err(|status| self.error(&status))?;
        Ok((sender, answers.into_inner()))
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_MESSAGE)
    }

    fn with_token<T>(&self, mut request: Request<T>) -> Request<T> {
        let token = self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    /// Asks for a token, if there is a user and the token is missing or has expired.
    async fn authenticate(&self, again: bool) -> Result<(), StoreError> {
        let Some(User { name, password }) = &self.user else { return Ok(()) };
        let known = self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some();
        if known && !again {
            return Ok(());
        }
        let denied = |reason: String| self.denied(reason);
        let question = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let answer: Result<AuthenticateResponse, Status> =
            self.call_once("/etcdserverpb.Auth/Authenticate", question, CONNECT).await;
        let answer = answer.map_err(|status| match status.code() {
            Code::Unavailable => self.error(&status),
            _ => denied(status.message().to_owned()),
        })?;
        let token = answer.token.parse().map_err(|_| denied("its token is no text".to_owned()))?;
        *self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(token);
        Ok(())
    }

    fn denied(&self, reason: String) -> StoreError {
        let user = self.user.as_ref().map_or(String::new(), |user| user.name.clone());
        StoreError::Denied { address: self.address.clone(), user, prefix: self.prefix.clone(), reason }
    }

    /// Returns the error that a failed call means.
    pub(crate) fn error(&self, status: &Status) -> StoreError {
        let (address, reason) = (self.address.clone(), status.message().to_owned());
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => StoreError::Unreachable { address, reason },
            Code::PermissionDenied | Code::Unauthenticated => self.denied(reason),
            // A status that was not sent has a source: the connection broke in the middle of an answer.
            _ if std::error::Error::source(status).is_some() => StoreError::Unreachable { address, reason },
            _ => StoreError::Other { address, reason },
        }
    }
}
