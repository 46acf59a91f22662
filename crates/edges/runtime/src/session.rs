//! What does somebody hold who talks to a command in a container?

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{ExecEnd, RuntimeError};

/// A command to run inside a running container, with streams that the caller holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it has input; without it, it reads nothing.
    pub stdin: bool,
    /// Whether it has a terminal, on which output and errors are one.
    pub tty: bool,
}

/// What a program reads.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;
/// What a program writes.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// The streams of a running command. Dropped, the command is killed, where the runtime has a way to do that.
pub struct Session {
    pub stdin: Option<Writer>,
    pub stdout: Option<Reader>,
    pub stderr: Option<Reader>,
    pub terminal: Option<Arc<dyn Terminal>>,
    /// How it ends.
    pub end: BoxFuture<'static, Result<ExecEnd, RuntimeError>>,
}

/// A terminal, which has a size.
pub trait Terminal: Send + Sync {
    /// Programs are told.
    fn resize(&self, columns: u16, rows: u16) -> io::Result<()>;
}
