//! What did one check find, and how is it said?
//!
//! A finding is cheap to make, because nearly all of them are only counted; its text is written
//! when somebody is going to read it.

use crate::grpc::{BadAnswer, Health};
use crate::http::BadResponse;
use crate::url::{BadLocation, Url};
use pointsman_probe::Outcome;
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of one check.
#[derive(Debug)]
pub enum Finding {
    /// All is well.
    Good,
    /// The server redirects to where we do not follow, or says so without saying where; the answer's body.
    Redirected(Vec<u8>),
    /// The server answered with a bad status.
    Status(u16),
    /// The exchange of an HTTP check failed.
    Http(BadResponse),
    /// A redirect leads nowhere.
    Location(BadLocation),
    /// More redirects than we follow.
    TooManyRedirects,
    /// The exchange of a gRPC check failed.
    Grpc(BadAnswer),
    /// The gRPC service is not healthy.
    Unhealthy(Health),
    /// The connection failed.
    Connection(Errno),
    Tls(rustls::Error),
    /// The name has no address.
    Name(String),
    /// It took too long.
    TimedOut(Duration),
    /// A command ended badly.
    Exited {
        /// Its exit code.
        code: i32,
        /// What it wrote.
        output: String,
    },
    /// The check could not be made.
    Impossible(Arc<str>),
    /// Nobody needs the answer any more.
    Abandoned,
}

impl Finding {
    /// What it means for the verdict. Shortages of our own are errors, not failures of the
    /// container: descriptors, memory and local ports.
    pub fn outcome(&self) -> Outcome {
        match self {
            Finding::Good => Outcome::Success,
            Finding::Redirected(_) => Outcome::Warning,
            Finding::Impossible(_) => Outcome::Errored,
            Finding::Abandoned => Outcome::Abandoned,
            Finding::Connection(errno) if is_shortage(*errno) => Outcome::Errored,
            _ => Outcome::Failure,
        }
    }

    /// A sentence about it, for an event; `to` is where the check went.
    pub fn describe(&self, to: &dyn fmt::Display) -> String {
        match self {
            Finding::Good => String::new(),
            Finding::Redirected(body) => {
                let body = String::from_utf8_lossy(body);
                format!("Probe terminated redirects, Response body: {body}")
            }
            Finding::Status(status) => format!("HTTP probe failed with statuscode: {status}"),
            Finding::Http(error) => format!("{to}: {error}"),
            Finding::Location(error) => format!("{to}: {error}"),
            Finding::TooManyRedirects => format!("{to}: stopped after 10 redirects"),
            Finding::Grpc(error) => format!("error: health rpc probe of {to} failed: {error}"),
            Finding::Unhealthy(health) => health.to_string(),
            Finding::Connection(errno) => {
                format!("{to}: connection failed: {}", std::io::Error::from(*errno))
            }
            Finding::Tls(error) => format!("{to}: {error}"),
            Finding::Name(error) => format!("{to}: {error}"),
            Finding::TimedOut(after) => format!("{to}: no complete answer within {after:?}"),
            Finding::Exited { code, output } if output.is_empty() => {
                format!("command exited with code {code}")
            }
            Finding::Exited { output, .. } => output.clone(),
            Finding::Impossible(reason) => reason.to_string(),
            Finding::Abandoned => "given up".to_owned(),
        }
    }
}

fn is_shortage(errno: Errno) -> bool {
    [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::ADDRNOTAVAIL,
    ]
    .contains(&errno)
}

/// Where a check goes, for messages.
#[derive(Debug)]
pub enum Destination<'a> {
    Url(&'a Url),
    /// A host and a port.
    Port(&'a str, u16),
    Address(std::net::SocketAddr),
    Command(&'a [String]),
    Nowhere,
}

impl fmt::Display for Destination<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Url(url) => write!(out, "Get \"{url}\""),
            Destination::Port(host, port) => write!(out, "dial tcp {host}:{port}"),
            Destination::Address(address) => write!(out, "dial tcp {address}"),
            Destination::Command(command) => write!(out, "command {command:?}"),
            Destination::Nowhere => out.write_str("nowhere"),
        }
    }
}
