//! Who may read what a role shows at an address that others reach?
//!
//! At a loopback address everybody on the machine. Elsewhere the listener speaks TLS, and whoever asks shows a bearer token or
//! a client certificate; the API server says whose it is and whether they may, as for the kubelet and
//! kube-controller-manager (TokenReview, SubjectAccessReview on the path). Health is open: load balancers and kubelets
//! have no credentials.
//!
//! Tokens for the audience [`AUDIENCE`] are worth nothing elsewhere, so that one which is sent to the wrong listener
//! opens no API server.

mod reviews;
mod shown;
mod tls;

use http::{HeaderValue, Request, Response, StatusCode, header};
use pointsman_api_client::Client;
use pointsman_http::{Body, Peer, text};
use std::net::SocketAddr;
use std::sync::Arc;

pub use reviews::{Reviews, Right, User};
pub use shown::Shown;
pub use tls::TlsError;

/// The audience of tokens that are made to read metrics.
pub const AUDIENCE: &str = "pointsman.io/metrics";
/// What needs no credentials.
const OPEN: [&str; 4] = ["/healthz", "/livez", "/readyz", "/proxyMode"];

/// How readers at addresses other than loopback prove who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// The API server is asked.
    #[default]
    Delegated,
    /// Not at all: plain HTTP for whoever can connect, as with kube-proxy.
    None,
}

/// What an operator says about it.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub authentication: Authentication,
    /// The authority of client certificates, PEM; without it only tokens are accepted.
    pub client_ca: Option<Vec<u8>>,
}

/// Protects one listener.
pub struct Guard {
    tls: Option<Arc<rustls::ServerConfig>>,
    reviews: Option<Reviews>,
}

impl Guard {
    /// The protection of a listener at `address`, of a role on the machine `name`.
    pub fn new(
        settings: &Settings,
        address: SocketAddr,
        name: &str,
        client: &Client,
    ) -> Result<Arc<Self>, TlsError> {
        if address.ip().is_loopback() || settings.authentication == Authentication::None {
            return Ok(Arc::new(Self {
                tls: None,
                reviews: None,
            }));
        }
        Ok(Arc::new(Self {
            tls: Some(tls::server_config(
                name,
                address.ip(),
                settings.client_ca.as_deref(),
            )?),
            reviews: Some(Reviews::new(client.clone(), Some(AUDIENCE))),
        }))
    }

    /// What the listener speaks; plain HTTP if nothing.
    pub fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.tls.clone()
    }

    /// Whom a connection speaks for, as far as its certificate says.
    pub fn visitor(self: &Arc<Self>, peer: &Peer) -> Visitor {
        let shown = peer.certificate.as_ref().filter(|_| self.reviews.is_some());
        Visitor {
            guard: self.clone(),
            user: shown.and_then(User::of),
        }
    }
}

/// Whoever is at the other end of one connection, until it ends.
#[derive(Clone)]
pub struct Visitor {
    guard: Arc<Guard>,
    user: Option<User>,
}

impl Visitor {
    /// The refusal of a request, unless it may be answered.
    pub async fn refusal<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let reviews = self.guard.reviews.as_ref()?;
        let path = request.uri().path();
        if OPEN.contains(&path) {
            return None;
        }
        let Some(user) = reviews.who(self.user.as_ref(), request.headers()).await else {
            return Some(unknown());
        };
        let (verb, path) = (request.method().as_str().to_ascii_lowercase(), path.to_owned());
        let right = Right::Path { verb, path };
        if reviews.allows(&user, &right).await {
            return None;
        }
        let why = format!("user {:?} may not {right}", user.name);
        Some(text(StatusCode::FORBIDDEN, why))
    }
}

/// The answer to somebody who is not recognized.
pub fn unknown() -> Response<Body> {
    let mut refusal = text(
        StatusCode::UNAUTHORIZED,
        "a token or a client certificate is needed",
    );
    let ask = HeaderValue::from_static("Bearer");
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    refusal
}
