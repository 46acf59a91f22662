//! How is another role asked over HTTP?
//!
//! One connection per question. The reader of the answer drives the connection itself, so that it costs no task of its
//! own.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::unverified::{CertificateFiles, Proof, unverified, with_any_certificate};

/// How long a server may take to accept a connection, and for its part of a TLS handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a server may take until the head of its answer to a request that is passed on.
const ANSWER: Duration = Duration::from_secs(30);

/// Text that is no URL that can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a URL such as http://host:port")]
pub struct BadUrl(pub String);

/// Why there is no answer. The message is one sentence that names the other side.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, std::io::Error),
    #[error("cannot send a request to {0}: {1}")]
    BadRequest(String, http::Error),
    #[error("cannot read the answer of {0}: {1}")]
    BadAnswer(String, hyper::Error),
    #[error("lost the connection to {0}: {1}")]
    Lost(String, std::io::Error),
    #[error("{0} does not speak plain HTTP: it may want TLS, and to know who asks")]
    NotPlain(String),
    #[error("no answer from {0} within {1:?}")]
    TimedOut(String, Duration),
    #[error("{0} answers with more than {1} bytes")]
    TooLong(String, usize),
    #[error("{0} answers with status {1}")]
    Status(String, StatusCode),
}

impl ClientError {
    /// What kind of failure of the network it is; an answer that was cut off or is none is `InvalidData`.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable(_, error) | Self::Lost(_, error) => error.kind(),
            Self::TimedOut(..) => ErrorKind::TimedOut,
            Self::NotPlain(_) => ErrorKind::InvalidData,
            Self::BadAnswer(_, error) => {
                let cause = error.source().and_then(|cause| cause.downcast_ref());
                match cause.map(std::io::Error::kind) {
                    None | Some(ErrorKind::UnexpectedEof) => ErrorKind::InvalidData,
                    Some(kind) => kind,
                }
            }
            Self::BadRequest(..) | Self::TooLong(..) | Self::Status(..) => ErrorKind::Other,
        }
    }
}

/// Host, port and the beginning of every path.
#[derive(Clone)]
pub struct Target {
    host: String,
    port: u16,
    prefix: String,
    tls: Option<Arc<ClientConfig>>,
    shown: Option<Arc<Shown>>,
    pub(crate) read_buffer: Option<usize>,
}

/// What opens servers that ask who we are. Files are read anew for every connection: they are replaced in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A file with a bearer token, which whoever answers gets to know.
    Token(PathBuf),
    /// PEM files of a client certificate and its key, with which nobody who answers can do anything.
    Certificate { certificate: PathBuf, key: PathBuf },
}

/// How credentials are shown.
struct Shown {
    token: Option<PathBuf>,
    tls: Arc<ClientConfig>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.authority(), self.prefix)
    }
}

impl TryFrom<&Uri> for Target {
    type Error = BadUrl;

    fn try_from(uri: &Uri) -> Result<Self, BadUrl> {
        Self::of(uri, &Scheme::HTTP)
    }
}

impl Target {
    fn of(uri: &Uri, scheme: &Scheme) -> Result<Self, BadUrl> {
        let is_asked = |host: &&str| !host.is_empty() && uri.scheme() == Some(scheme);
        let host = uri.host().filter(is_asked);
        let host = host.ok_or_else(|| BadUrl(uri.to_string()))?;
        let usual_port = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(usual_port),
            prefix: uri.path_and_query().map_or("", |it| it.as_str()).to_owned(),
            tls: None,
            shown: None,
            read_buffer: None,
        })
    }

    /// Reads `http://host:port/prefix`.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        let uri: Uri = url.parse().map_err(|_| BadUrl(url.to_owned()))?;
        let mut target = Self::try_from(&uri)?;
        let prefix = target.prefix.trim_end_matches('/').len();
        target.prefix.truncate(prefix);
        Ok(target)
    }

    /// A server that speaks TLS.
    pub fn secure(address: SocketAddr, tls: Arc<ClientConfig>) -> Self {
        Self {
            tls: Some(tls),
            ..Self::at(address)
        }
    }

    /// A server that speaks plain HTTP.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
            prefix: String::new(),
            tls: None,
            shown: None,
            read_buffer: None,
        }
    }

    /// Reads in small pieces, for those who keep thousands of streams open of which most are quiet.
    #[must_use]
    pub fn reading_little(self) -> Self {
        Self {
            read_buffer: Some(1024),
            ..self
        }
    }

    /// Tries TLS first, and shows credentials over it. A server that speaks none gets its question without them.
    #[must_use]
    pub fn with_credentials(self, credentials: Credentials) -> Self {
        let mut tls = with_any_certificate(Proof::Key);
        let token = match credentials {
            Credentials::Token(file) => Some(file),
            Credentials::Certificate { certificate, key } => {
                tls.client_auth_cert_resolver = Arc::new(CertificateFiles { certificate, key });
                None
            }
        };
        let tls = Arc::new(tls);
        Self {
            shown: Some(Arc::new(Shown { token, tls })),
            ..self
        }
    }

    /// Host and port.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Asks for a path within a time and reads at most `most` bytes of a successful answer.
    pub async fn get(&self, path: &str, most: usize, within: Duration) -> Result<Bytes, ClientError> {
        let whole = async {
            let answer = self.ask(path, &[]).await?;
            match answer.status {
                StatusCode::OK => answer.whole(most).await,
                status => Err(ClientError::Status(self.authority(), status)),
            }
        };
        self.bounded(within, whole).await
    }

    /// The same for an answer of any status.
    pub async fn ask_whole(
        &self,
        path: &str,
        headers: &[(String, String)],
        most: usize,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let whole = async {
            let answer = self.ask(path, headers).await?;
            Ok((answer.status, answer.whole(most).await?))
        };
        self.bounded(within, whole).await
    }

    /// Sends a body to a path within a time; an answer of any status is an answer.
    pub async fn post(
        &self,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
        within: Duration,
    ) -> Result<StatusCode, ClientError> {
        let headers = [("content-type".to_owned(), content_type.to_owned())];
        let body = Full::new(body.into());
        let sent = self.send(Method::POST, path, &headers, body);
        Ok(self.bounded(within, sent).await?.status)
    }

    /// Asks for a path; the head of the answer has to come within a time, its body may take longer.
    pub async fn open(&self, path: &str, within: Duration) -> Result<Answer, ClientError> {
        self.bounded(within, self.ask(path, &[])).await
    }

    /// Passes a request on, which may ask for an upgrade; the head of the answer has to come within half a minute. If the
    /// answer says yes, what follows is in its extensions as [`OnUpgrade`](hyper::upgrade::OnUpgrade).
    pub async fn pass(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let authority = self.authority();
        let asked = async {
            let (stream, _) = self.connected().await?;
            let mut request = Request::builder()
                .method(method)
                .uri(path)
                .header(header::HOST, &authority)
                .body(Full::new(body))
                .map_err(|error| ClientError::BadRequest(authority.clone(), error))?;
            request.headers_mut().extend(headers);
            let failed = |error| ClientError::BadAnswer(authority.clone(), error);
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection.with_upgrades());
            sender.send_request(request).await.map_err(failed)
        };
        self.bounded(ANSWER, asked).await
    }

    pub(crate) async fn bounded<T>(
        &self,
        within: Duration,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let late = |_| Err(ClientError::TimedOut(self.authority(), within));
        timeout(within, work).await.unwrap_or_else(late)
    }

    async fn ask(&self, path: &str, headers: &[(String, String)]) -> Result<Answer, ClientError> {
        self.send(Method::GET, path, headers, Full::default()).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: Full<Bytes>,
    ) -> Result<Answer, ClientError> {
        let authority = self.authority();
        let target = self.path(path);
        let (stream, token) = self.connected().await?;
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, &authority)
            .header(header::CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(body)
            .map_err(|error| ClientError::BadRequest(authority.clone(), error))?;
        let failed = |error: hyper::Error| match error.is_parse() && self.tls.is_none() {
            // As servers answer that expect a handshake.
            true => ClientError::NotPlain(authority.clone()),
            false => ClientError::BadAnswer(authority.clone(), error),
        };
        let mut builder = http1::Builder::new();
        builder.read_buf_exact_size(self.read_buffer);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let mut connection = Some(connection);
        let mut response = std::pin::pin!(sender.send_request(request));
        let response = poll_fn(|context| {
            drive(&mut connection, context);
            response.as_mut().poll(context)
        });
        let response = response.await.map_err(failed)?;
        Ok(Answer {
            status: response.status(),
            response,
            connection,
            authority,
        })
    }

    pub(crate) fn path(&self, path: &str) -> String {
        match (self.prefix.as_str(), path) {
            ("", "") => "/".to_owned(),
            (prefix, path) => format!("{prefix}{path}"),
        }
    }

    pub(crate) async fn connected(&self) -> Result<(Stream, Option<String>), ClientError> {
        timeout(CONNECT, self.connect())
            .await
            .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
            .map_err(|error| ClientError::Unreachable(self.authority(), error))
    }

    /// A connection, and the token to send over it.
    async fn connect(&self) -> std::io::Result<(Stream, Option<String>)> {
        if let Some(shown) = &self.shown {
            match self.connect_tls(&shown.tls).await {
                Ok(stream) => {
                    let token = match &shown.token {
                        Some(file) => Some(tokio::fs::read_to_string(file).await?.trim().to_owned()),
                        None => None,
                    };
                    return Ok((stream, token));
                }
                Err(error) if !speaks_no_tls(error.kind()) => return Err(error),
                Err(_) => {}
            }
        }
        let stream: Stream = match &self.tls {
            Some(tls) => self.connect_tls(tls).await?,
            None => Box::new(self.connect_tcp().await?),
        };
        Ok((stream, None))
    }

    async fn connect_tls(&self, tls: &Arc<ClientConfig>) -> std::io::Result<Stream> {
        let stream = self.connect_tcp().await?;
        let name = ServerName::try_from(self.host.clone()).map_err(std::io::Error::other)?;
        Ok(Box::new(
            TlsConnector::from(tls.clone()).connect(name, stream).await?,
        ))
    }

    async fn connect_tcp(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Whether a handshake failed because the other side answered in plain text, or ended the connection.
fn speaks_no_tls(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
    )
}

/// Gets a whole URL within a time, with headers; an answer of any status is an answer, and so is one by `https` whoever
/// vouches for the server.
pub async fn get(
    uri: &Uri,
    headers: &[(String, String)],
    most: usize,
    within: Duration,
) -> Result<(StatusCode, Bytes), GetError> {
    let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
    let scheme = if is_secure { Scheme::HTTPS } else { Scheme::HTTP };
    let mut target = Target::of(uri, &scheme)?;
    target.tls = is_secure.then(unverified);
    Ok(target.ask_whole("", headers, most, within).await?)
}

/// Why a URL could not be got.
#[derive(Debug, Error)]
pub enum GetError {
    #[error(transparent)]
    Url(#[from] BadUrl),
    #[error(transparent)]
    Client(#[from] ClientError),
}

pub(crate) trait Io: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Io for T {}
pub(crate) type Stream = Box<dyn Io>;
type Connection = http1::Connection<TokioIo<Stream>, Full<Bytes>>;

/// An answer whose body is still arriving.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    response: Response<Incoming>,
    /// None once it has ended.
    connection: Option<Connection>,
    authority: String,
}

impl Answer {
    /// The answer for somebody else to read; its connection gets a task of its own.
    pub fn into_response(self) -> Response<Incoming> {
        if let Some(connection) = self.connection {
            tokio::spawn(connection);
        }
        self.response
    }

    async fn whole(mut self, most: usize) -> Result<Bytes, ClientError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > most {
                return Err(ClientError::TooLong(self.authority, most));
            }
        }
        Ok(body.into())
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let frame = poll_fn(|context| {
                drive(&mut self.connection, context);
                Pin::new(self.response.body_mut()).poll_frame(context)
            });
            match frame.await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ClientError::BadAnswer(self.authority.clone(), error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// Lets a connection do its work. What goes wrong with it shows in what is read from it.
fn drive(connection: &mut Option<Connection>, context: &mut std::task::Context<'_>) {
    if let Some(open) = connection
        && let Poll::Ready(_) = Pin::new(open).poll(context)
    {
        *connection = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn urls_are_read_and_bad_ones_refused() {
        let target = |url| format!("{:?}", Target::parse(url).unwrap());
        assert_eq!(target("http://10.0.0.5:10249/p/a/"), "10.0.0.5:10249/p/a");
        assert_eq!(target("http://host"), "host:80");
        assert_eq!(target("http://[::1]:5"), "[::1]:5");
        assert_eq!(target("http://a:1/w?part=1&of=2"), "a:1/w?part=1&of=2");
        for bad in ["", "https://a", "http://", "http://a b", "a:5", "/p"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_url_or_refused(text in "(http://)?[ -~é]{0,24}") {
            let _ = Target::parse(&text);
        }
    }

    /// A server that sends these pieces to its one client and closes.
    async fn answering(pieces: &'static [&'static str]) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await.unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
        });
        target
    }

    #[tokio::test]
    async fn what_is_not_http_is_an_error_and_statuses_are_told() {
        let target = answering(&["SSH-2.0-OpenSSH\r\n\r\n"]).await;
        assert!(matches!(
            target.open("/", SOON).await,
            Err(ClientError::NotPlain(_))
        ));
        let target = answering(&["HTTP/1.1 404 Not Found\r\n\r\n"]).await;
        assert_eq!(target.open("/", SOON).await.unwrap().status, 404);
        let target = answering(&["HTTP/1.1 404 Not Found\r\n\r\n"]).await;
        assert!(matches!(
            target.get("/", 9, SOON).await,
            Err(ClientError::Status(..))
        ));
    }

    #[tokio::test]
    async fn answers_are_read_up_to_their_limits_and_no_further() {
        let target = answering(&["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "123", "456789"]).await;
        assert_eq!(target.get("/", 9, SOON).await.unwrap(), "123456789");
        let target = answering(&["HTTP/1.1 200 OK\r\n\r\n1234567890"]).await;
        assert!(matches!(
            target.get("/", 9, SOON).await,
            Err(ClientError::TooLong(_, 9))
        ));
        let target = answering(&["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123"]).await;
        let cut_off = target.get("/", 9, SOON).await.unwrap_err();
        assert_eq!(cut_off.kind(), ErrorKind::InvalidData, "{cut_off}");
    }

    #[tokio::test]
    async fn silence_is_waited_for_only_so_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let silent = target.get("/", 9, Duration::from_millis(20)).await;
        assert!(matches!(silent, Err(ClientError::TimedOut(..))), "{silent:?}");
        drop(listener);
        let nobody = target.get("/", 9, SOON).await.unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::ConnectionRefused);
    }
}
