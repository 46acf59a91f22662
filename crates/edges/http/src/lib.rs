//! How do roles listen for HTTP, and how do they ask each other?
//!
//! Every listener of the program goes through [`accept`], and every small client through [`Target`], so
//! that limits, deadlines and TLS are decided in one place. Two clients stay outside: `api-client`, whose
//! connections are pooled, speak HTTP/2 and live as long as the process, and `probe-io`, whose thousands
//! of checks per second run on one thread without tokio.

pub use bytes::Bytes;
pub use http::{Request, Response, StatusCode};
pub use hyper::body::Incoming;
pub use hyper::upgrade::OnUpgrade;

mod accept;
mod bind;
mod book;
mod client;
mod gathered;
mod lines;
mod quiet;
mod reply;
mod serve;
mod slots;
mod together;
mod turns;
mod unverified;
mod upgrade;

pub use accept::accept;
pub use bind::{Wildcard, bind};
pub use book::Limits;
pub use client::{Answer, BadUrl, ClientError, Credentials, GetError, Target, get};
pub use lines::Lines;
pub use reply::{Body, reply, stream, text};
pub use serve::{Peer, Requests, Server};
pub use slots::{Connections, Slots};
pub use unverified::{Proof, unverified, with_any_certificate};
pub use upgrade::{IDLE, Upgraded, asked_for, switching, tunnel, upgraded};
