//! Frames of one HTTP/2 connection, as they come: clients that keep all requests on one see their order.

use crate::Server;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACKNOWLEDGED: u8 = 1;
const END_OF_STREAM_AND_HEADERS: u8 = 0x5;

/// What a frame from the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An answer begins or goes on.
    Answer,
    /// An answer ends.
    End,
    /// No more requests on this connection (GOAWAY).
    Farewell,
    Other,
}

/// A connection with one request on it.
pub struct Connection {
    stream: TlsStream<TcpStream>,
}

impl Connection {
    /// Asks for `path` by GET, as whoever has the token.
    pub async fn get(server: &Server, path: &str, token: &str) -> Self {
        let address: SocketAddr = server.address().parse().unwrap();
        let mut tls = rustls::ClientConfig::clone(&pointsman_http::unverified());
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(tls));
        let stream = connector.connect(ServerName::from(address.ip()), stream).await;
        let mut connection = Self {
            stream: stream.unwrap(),
        };
        connection.stream.write_all(PREFACE).await.unwrap();
        connection.write(SETTINGS, 0, 0, &[]).await;
        // HPACK: GET and https by their index, the others as plain texts with an indexed name.
        let mut head = vec![0x82, 0x87];
        let bearer = format!("Bearer {token}");
        for (name, text) in [(&[4][..], path), (&[1], "server"), (&[15, 8], &bearer)] {
            head.extend(name);
            head.push(u8::try_from(text.len()).expect("short"));
            head.extend(text.as_bytes());
        }
        connection
            .write(HEADERS, END_OF_STREAM_AND_HEADERS, 1, &head)
            .await;
        connection
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next frame; none once the server has closed the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        if kind == PING && flags & ACKNOWLEDGED == 0 {
            self.write(PING, ACKNOWLEDGED, 0, &payload).await;
        }
        Some(match (kind, flags & 1) {
            (0 | HEADERS, 1) => Frame::End,
            (0 | HEADERS, _) => Frame::Answer,
            (7, _) => Frame::Farewell,
            _ => Frame::Other,
        })
    }
}
