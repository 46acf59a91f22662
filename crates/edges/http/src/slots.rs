//! How does a connection get its slot, and keep it?

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pointsman_telemetry::{Counter, Definition, Family, Gauge, Registry};
use rustix::process::{Resource, getrlimit};
use tokio::sync::oneshot;

use crate::book::{Book, Id, Limits, Refused, Source, Standing};

/// Why a connection was closed by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    HandshakeFailed,
    HandshakeTimeout,
    RequestTimeout,
    Idle,
    SourceLimit,
    TotalLimit,
}

impl Reason {
    fn label(self) -> &'static str {
        match self {
            Self::HandshakeFailed => "handshake_failed",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::RequestTimeout => "request_timeout",
            Self::Idle => "idle",
            Self::SourceLimit => "source_limit",
            Self::TotalLimit => "total_limit",
        }
    }
}

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Source => Self::SourceLimit,
            Refused::Total => Self::TotalLimit,
        }
    }
}

/// What is counted about the connections of a role.
#[derive(Clone, Debug)]
pub struct Connections {
    open: Family<Gauge>,
    closed: Family<Counter>,
}

impl Connections {
    pub fn register(registry: &Registry) -> Self {
        let open = Definition::new(
            "pointsman_http_connections",
            "Open connections by listener: silent (nothing asked yet), anonymous (no client certificate) and certified.",
        );
        let closed = Definition::new(
            "pointsman_http_connections_closed_total",
            "Connections that a listener closed or refused: no TLS handshake or no request in time, idle for too long, \
             too many from one source or in all.",
        );
        Self {
            open: registry.gauges(open.labels(&["listener", "state"])),
            closed: registry.counters(closed.labels(&["listener", "reason"])),
        }
    }

    /// Places for the connections of a listener, or of several that share them.
    pub fn slots(&self, listener: &'static str, limits: Limits) -> Arc<Slots> {
        let open = ["silent", "anonymous", "certified"].map(|state| self.open.with(&[listener, state]));
        Arc::new(Slots::make(
            limits,
            Some(Shown {
                listener,
                open,
                closed: self.closed.clone(),
            }),
        ))
    }
}

#[derive(Debug)]
struct Shown {
    listener: &'static str,
    open: [Gauge; 3],
    closed: Family<Counter>,
}

/// Places for connections.
#[derive(Debug)]
pub struct Slots {
    book: Mutex<Book<Close>>,
    shown: Option<Shown>,
}

/// Dropping it closes the connection.
type Close = oneshot::Sender<Infallible>;

impl Slots {
    /// As many as the limits and the descriptors of the process allow; nobody counts.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self::make(limits, None))
    }

    fn make(limits: Limits, shown: Option<Shown>) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limits = limits.within(usize::try_from(descriptors).unwrap_or(usize::MAX));
        Self {
            book: Mutex::new(Book::new(limits)),
            shown,
        }
    }

    /// Changes the book, and shows what is in it then.
    fn write<T>(&self, change: impl FnOnce(&mut Book<Close>) -> T) -> T {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut book);
        if let Some(shown) = &self.shown {
            let counts = book.counts();
            for (gauge, count) in shown
                .open
                .iter()
                .zip([counts.silent, counts.anonymous, counts.certified])
            {
                gauge.set(count as f64);
            }
        }
        changed
    }

    /// A slot for a new connection, which may have to leave it to another before it says something.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<(Slot, Eviction)> {
        let source = Source::from(address);
        let (close, eviction) = oneshot::channel();
        let entered = self.write(|book| book.enter(source, close));
        match entered {
            // Whoever has to leave for it learns so here, outside of the lock.
            Ok((id, _leaves)) => {
                let slot = Slot {
                    slots: self.clone(),
                    source,
                    id,
                    shown: Mutex::new((Standing::Silent, None)),
                    known: AtomicBool::new(false),
                };
                Some((slot, Eviction(eviction)))
            }
            Err(refused) => {
                self.count(refused.into());
                None
            }
        }
    }

    pub(crate) fn count(&self, reason: Reason) {
        if let Some(shown) = &self.shown {
            shown.closed.with(&[shown.listener, reason.label()]).inc();
        }
    }
}

/// The wait for somebody who needs the slot more.
pub(crate) struct Eviction(oneshot::Receiver<Infallible>);

impl Eviction {
    pub async fn wait(self) {
        let _ = self.0.await;
    }
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    source: Source,
    id: Id,
    /// What it has shown, and what keeps it from being closed since.
    shown: Mutex<(Standing, Option<Close>)>,
    /// Whether it has shown anything, without a lock.
    known: AtomicBool,
}

impl Slot {
    /// The client has shown a certificate that is believed.
    pub fn certify(&self) -> Result<(), Refused> {
        self.promote(Standing::Certified)
    }

    /// The client has asked for something.
    pub fn ask(&self) -> Result<(), Refused> {
        match self.known.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.promote(Standing::Anonymous),
        }
    }

    fn promote(&self, standing: Standing) -> Result<(), Refused> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.0 != Standing::Silent {
            return Ok(());
        }
        let promoted = self
            .slots
            .write(|book| book.promote(self.source, self.id, standing));
        match promoted {
            Ok(close) => {
                *shown = (standing, Some(close));
                self.known.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(refused) => {
                self.slots.count(refused.into());
                Err(refused)
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (standing, _) = *self.shown.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.slots
            .write(|book| book.leave(self.source, self.id, standing));
    }
}
