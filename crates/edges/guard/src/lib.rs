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

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use pointsman_api_client::Client;
use pointsman_http::{Body, Peer, text};
use reviews::{Reviews, User};
use std::net::SocketAddr;
use std::sync::Arc;

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
            reviews: Some(Reviews::new(client.clone())),
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
        let user = match (&self.user, bearer(request.headers())) {
            (Some(user), _) => Some(user.clone()),
            (None, Some(token)) => reviews.user(token).await,
            (None, None) => None,
        };
        let Some(user) = user else {
            let mut refusal = text(
                StatusCode::UNAUTHORIZED,
                "a token or a client certificate is needed",
            );
            let ask = HeaderValue::from_static("Bearer");
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            return Some(refusal);
        };
        let verb = request.method().as_str().to_ascii_lowercase();
        if reviews.allows(&user, &verb, path).await {
            return None;
        }
        let why = format!("user {:?} may not {verb} {path}", user.name);
        Some(text(StatusCode::FORBIDDEN, why))
    }
}

/// The token in a request's head.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_tokens_are_taken_for_tokens() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer abc").as_deref(), Some("abc"));
        for none in ["Bearer", "Bearer ", "Basic abc", "abc"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
