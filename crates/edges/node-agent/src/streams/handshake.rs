//! What does a client speak, and do we?
//!
//! A WebSocket names its protocols in `Sec-WebSocket-Protocol`, SPDY in `X-Stream-Protocol-Version`. Of those that a
//! client names, ours come in our order.

use super::{Purpose, bad_request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use pointsman_http::{Body, IDLE, Incoming, OnUpgrade, Upgraded, asked_for, switching, text, upgraded};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const SPDY: &str = "SPDY/3.1";
const VERSIONS: &str = "x-stream-protocol-version";
/// As the refusal of upstream names what would have been accepted.
const ACCEPTED: &str = "x-accepted-stream-protocol-versions";
const COMMAND_SPDY: &str = "v4.channel.k8s.io";
const PORTS_SPDY: &str = "portforward.k8s.io";
/// SPDY inside of a WebSocket.
const PORTS_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// How streams travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Spdy,
    /// One byte in front of each message names the stream.
    Channels,
    /// The same, and a client can end a stream of its own.
    ClosableChannels,
    /// The messages are the bytes of a SPDY connection.
    SpdyInWebSocket,
}

/// A connection that is about to be one of streams.
pub(super) struct Upgrade {
    pub(super) carrier: Carrier,
    connection: OnUpgrade,
}

impl Upgrade {
    pub(super) async fn connection(self) -> std::io::Result<Upgraded> {
        upgraded(self.connection, IDLE).await
    }
}

/// Takes the connection of a request; none if it cannot be had.
pub(super) fn take(request: &mut Request<Incoming>, carrier: Carrier) -> Option<Upgrade> {
    let connection = request.extensions_mut().remove::<OnUpgrade>()?;
    Some(Upgrade { carrier, connection })
}

/// The answer to an upgrade, and what is spoken from then on; or the refusal.
pub(super) fn agree(
    purpose: &Purpose,
    headers: &HeaderMap,
) -> Result<(Response<Body>, Carrier), Response<Body>> {
    let asked = asked_for(headers).unwrap_or("");
    if asked.eq_ignore_ascii_case("websocket") {
        agree_websocket(purpose, headers)
    } else if asked.eq_ignore_ascii_case(SPDY) {
        agree_spdy(purpose, headers)
    } else {
        Err(bad_request(
            "streams need a connection that is upgraded to a WebSocket or to SPDY/3.1",
        ))
    }
}

fn agree_spdy(purpose: &Purpose, headers: &HeaderMap) -> Result<(Response<Body>, Carrier), Response<Body>> {
    let ours = match purpose {
        Purpose::Command => COMMAND_SPDY,
        Purpose::Ports => PORTS_SPDY,
    };
    let version = HeaderValue::from_static(ours);
    // Without a word, forwarders of old speak the only version there is.
    let is_silent = matches!(purpose, Purpose::Ports) && !headers.contains_key(VERSIONS);
    if !is_silent && !named(headers, VERSIONS).any(|theirs| theirs == ours) {
        let message = format!("of the protocols for streams over SPDY only {ours} is spoken");
        let mut response = text(StatusCode::FORBIDDEN, message);
        response.headers_mut().insert(ACCEPTED, version);
        return Err(response);
    }
    let mut response = switching(&HeaderValue::from_static(SPDY));
    response.headers_mut().insert(VERSIONS, version);
    Ok((response, Carrier::Spdy))
}

fn agree_websocket(
    purpose: &Purpose,
    headers: &HeaderMap,
) -> Result<(Response<Body>, Carrier), Response<Body>> {
    let ours: &[(&'static str, Carrier)] = match purpose {
        Purpose::Command => &[
            ("v5.channel.k8s.io", Carrier::ClosableChannels),
            ("v4.channel.k8s.io", Carrier::Channels),
        ],
        Purpose::Ports => &[(PORTS_TUNNEL, Carrier::SpdyInWebSocket)],
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    let key = key.ok_or_else(|| bad_request("Sec-WebSocket-Key: has to be 16 bytes in base64"))?;
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        let mut response = text(
            StatusCode::UPGRADE_REQUIRED,
            "WebSockets are spoken in version 13",
        );
        let version = HeaderValue::from_static("13");
        response
            .headers_mut()
            .insert(header::SEC_WEBSOCKET_VERSION, version);
        return Err(response);
    }
    let theirs: Vec<&str> = named(headers, "sec-websocket-protocol").collect();
    let Some((name, carrier)) = ours.iter().find(|(name, _)| theirs.contains(name)) else {
        let names: Vec<&str> = ours.iter().map(|(name, _)| *name).collect();
        let names = names.join(" and ");
        let message = format!("of the protocols for streams in a WebSocket only {names} is spoken");
        return Err(bad_request(message));
    };
    let mut response = switching(&HeaderValue::from_static("websocket"));
    let headers = response.headers_mut();
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
    if let Ok(accept) = HeaderValue::from_str(&accept(key)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok((response, *carrier))
}

/// What shows that the key was read (RFC 6455, section 4.2.2).
fn accept(key: &[u8]) -> String {
    let proof = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &proof))
}

fn named<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let lists = headers.get_all(name).into_iter();
    let lists = lists.filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(',').map(str::trim))
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = lines.iter();
        let pairs = pairs.map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    fn code(purpose: &Purpose, lines: &[(&'static str, &'static str)]) -> Result<Carrier, u16> {
        let agreed = agree(purpose, &headers(lines));
        agreed
            .map(|agreed| agreed.1)
            .map_err(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn a_key_is_answered_as_in_the_example_of_the_rfc() {
        assert_eq!(
            accept(b"dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn of_the_protocols_that_a_client_names_ours_come_in_our_order() {
        let socket = |protocols| {
            [
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", "WebSocket"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("sec-websocket-version", "13"),
                ("sec-websocket-protocol", protocols),
            ]
        };
        let spdy = |version| {
            let upgrade = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
            [upgrade[0], upgrade[1], ("x-stream-protocol-version", version)]
        };
        let both = socket("v4.channel.k8s.io, v5.channel.k8s.io");
        assert_eq!(code(&Purpose::Command, &both), Ok(Carrier::ClosableChannels));
        let old = socket("v4.channel.k8s.io,channel.k8s.io");
        assert_eq!(code(&Purpose::Command, &old), Ok(Carrier::Channels));
        assert_eq!(code(&Purpose::Command, &socket("channel.k8s.io")), Err(400));
        assert_eq!(code(&Purpose::Ports, &both), Err(400));
        assert_eq!(
            code(&Purpose::Ports, &socket(PORTS_TUNNEL)),
            Ok(Carrier::SpdyInWebSocket)
        );
        assert_eq!(
            code(&Purpose::Command, &spdy("v4.channel.k8s.io")),
            Ok(Carrier::Spdy)
        );
        assert_eq!(code(&Purpose::Command, &spdy("channel.k8s.io")), Err(403));
        assert_eq!(
            code(&Purpose::Ports, &spdy("portforward.k8s.io")),
            Ok(Carrier::Spdy)
        );
        assert_eq!(
            code(&Purpose::Command, &both[1..]),
            Err(400),
            "no upgrade is asked for"
        );
        let mut short = both;
        short[2].1 = "dGhlIHNhbXBsZQ==";
        assert_eq!(code(&Purpose::Command, &short), Err(400));
        let mut early = both;
        early[3].1 = "8";
        assert_eq!(code(&Purpose::Command, &early), Err(426));
    }
}
