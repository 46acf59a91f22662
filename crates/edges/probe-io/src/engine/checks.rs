//! How does a check begin, go on and end?

use super::{Engine, Exchange, LINGER, MAX_IDLE, UnderWay, tick};
use crate::connection::{Connection, Protocol, Step};
use crate::exec::ExecRequest;
use crate::finding::{Destination, Finding};
use crate::prober::{Command, Ticket};
use crate::report::Report;
use crate::target::{Check, HttpCheck};
use crate::url::{Scheme, Url};
use crate::{grpc, http, tls, url};
use pointsman_probe::Verdict;
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::BorrowedFd;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Redirects that are followed, as upstream.
const MAX_REDIRECTS: u8 = 10;

impl Engine {
    /// Begins the check of a worker if it is due.
    pub(super) fn begin(&mut self, worker: usize) {
        let now = tick();
        let entry = &mut self.workers[worker];
        let Some(begun) = self.containers[entry.container]
            .container
            .begin(entry.kind, now, self.pace)
        else {
            let container = entry.container;
            return self.reschedule(container);
        };
        self.parts.metrics.jitter.observe_duration(begun.late);
        self.begun += 1;
        entry.checks = entry.checks.wrapping_add(1);
        entry.under_way = Some(UnderWay {
            began: now,
            deadline: now + begun.timeout,
            timeout: begun.timeout,
            connection: None,
            redirected: None,
            redirects: 0,
            address: None,
        });
        let check = entry.check.clone();
        match &*check {
            Check::Impossible(reason) => self.conclude(worker, Finding::Impossible(reason.clone())),
            Check::Exec { command } => self.exec(worker, command.clone(), begun.timeout),
            Check::Http(_) | Check::Tcp { .. } | Check::Grpc { .. } => {
                self.timers.set(worker, now + begun.timeout);
                self.connect(worker, &check);
            }
        }
    }

    fn exec(&mut self, worker: usize, command: Arc<[String]>, timeout: std::time::Duration) {
        let ticket = self.ticket(worker);
        let container = &self.containers[self.workers[worker].container];
        let request = ExecRequest {
            pod_uid: container.pod_uid.clone(),
            container: container.target.name.clone(),
            command,
            timeout,
        };
        // The runner's own timeout ends the check, so it has no timer here.
        if self.parts.exec.send((ticket, request)).is_err() {
            self.conclude(worker, Finding::Impossible("the exec runner is gone".into()));
        }
    }

    /// Connects to where the check goes, looking its name up first if it has one.
    fn connect(&mut self, worker: usize, check: &Check) {
        let Some(under_way) = &self.workers[worker].under_way else {
            return;
        };
        let (host, port) = match check {
            Check::Http(http) => {
                let url = under_way.redirected.as_ref().unwrap_or(&http.url);
                (url.host.as_str(), url.port)
            }
            Check::Tcp { host, port } => (&**host, *port),
            Check::Grpc { host, port, .. } => return self.open(worker, check, SocketAddr::new(*host, *port)),
            Check::Exec { .. } | Check::Impossible(_) => return,
        };
        let known = under_way.address.or_else(|| host.parse::<IpAddr>().ok());
        if let Some(ip) = known {
            return self.open(worker, check, SocketAddr::new(ip, port));
        }
        let (ticket, inbox, host) = (self.ticket(worker), self.parts.inbox.clone(), host.to_owned());
        self.parts.runtime.spawn_blocking(move || {
            let found = (host.as_str(), port)
                .to_socket_addrs()
                .map_err(|error| error.to_string());
            let found = found.and_then(|mut all| all.next().ok_or_else(|| "no such host".to_owned()));
            inbox.send(Command::Address(ticket, found));
        });
    }

    /// A name was looked up.
    pub(super) fn resolved(&mut self, worker: usize, address: Result<SocketAddr, String>) {
        let check = self.workers[worker].check.clone();
        match address {
            Ok(address) => {
                if let Some(under_way) = &mut self.workers[worker].under_way {
                    under_way.address = Some(address.ip());
                }
                self.open(worker, &check, address);
            }
            Err(error) => self.conclude(worker, Finding::Name(error)),
        }
    }

    fn open(&mut self, worker: usize, check: &Check, to: SocketAddr) {
        let mut reused = false;
        let opened = match check {
            Check::Http(http) => self.open_http(worker, http, to, &mut reused),
            Check::Grpc { request, .. } => {
                let protocol = Protocol::Grpc(grpc::Reader::default());
                Connection::open(to, None, request.clone(), None, protocol).map_err(Finding::Connection)
            }
            _ => Connection::open(to, None, Arc::default(), None, Protocol::Tcp).map_err(Finding::Connection),
        };
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(finding) => return self.conclude(worker, finding),
        };
        // Within a node a connection is there at once, so that writing need not be waited for.
        if let Step::Done(finding) = connection.write() {
            return self.conclude(worker, finding);
        }
        let generation = self.next_generation();
        let slot = self.connections.insert(Exchange {
            connection,
            worker: Some(worker),
            generation,
            family: usize::from(to.is_ipv6()),
        });
        if let Some(under_way) = &mut self.workers[worker].under_way {
            under_way.connection = Some(slot);
        }
        let armed = if reused {
            self.arm(slot)
        } else {
            let (socket, data, interest) = self.interest(slot);
            epoll::add(&self.epoll, socket, data, interest)
        };
        if let Err(errno) = armed {
            self.conclude(worker, Finding::Connection(errno));
        }
    }

    /// Asks for the next event of a connection; each is reported once, so that a socket that nobody uses stays quiet.
    fn arm(&self, slot: usize) -> rustix::io::Result<()> {
        let (socket, data, interest) = self.interest(slot);
        epoll::modify(&self.epoll, socket, data, interest)
    }

    fn interest(&self, slot: usize) -> (BorrowedFd<'_>, epoll::EventData, EventFlags) {
        let exchange = &self.connections[slot];
        let data = epoll::EventData::new_u64(u64::from(exchange.generation) << 32 | slot as u64);
        let mut interest = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        interest.set(EventFlags::OUT, exchange.connection.wants_write());
        (exchange.connection.socket(), data, interest)
    }

    fn open_http(
        &mut self,
        worker: usize,
        check: &HttpCheck,
        to: SocketAddr,
        reused: &mut bool,
    ) -> Result<Connection, Finding> {
        let redirected = self.workers[worker]
            .under_way
            .as_ref()
            .and_then(|under_way| under_way.redirected.as_ref());
        let (url, request) = match redirected {
            None => (&*check.url, check.request.clone()),
            Some(url) => (url, check.follow(url).into()),
        };
        let tls = match url.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(Box::new(
                tls::connection(&self.parts.tls, &url.host).map_err(Finding::Tls)?,
            )),
        };
        let family = usize::from(to.is_ipv6());
        let socket = if tls.is_none() {
            self.idle[family].pop()
        } else {
            None
        };
        self.unneeded[family] = self.unneeded[family].min(self.idle[family].len());
        *reused = socket.is_some();
        Connection::open(to, socket, request, tls, Protocol::Http(http::Reader::default()))
            .map_err(Finding::Connection)
    }

    /// Goes on with a connection whose socket is ready.
    pub(super) fn socket_ready(&mut self, token: u64, flags: EventFlags) {
        let (slot, generation) = ((token & 0xffff_ffff) as usize, (token >> 32) as u32);
        let Some(exchange) = self
            .connections
            .get_mut(slot)
            .filter(|entry| entry.generation == generation)
        else {
            return;
        };
        let mut step = Step::Wait;
        if exchange.connection.wants_write() {
            step = exchange.connection.write();
        }
        let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if matches!(step, Step::Wait) && flags.intersects(readable) {
            step = exchange.connection.read(&mut self.scratch);
        }
        match (step, exchange.worker) {
            // Should arming fail, the check ends by its timeout.
            (Step::Wait, _) => drop(self.arm(slot)),
            (Step::Response(response), Some(worker)) => {
                let closed = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
                self.release(worker, slot, closed);
                self.answered(worker, response);
            }
            (Step::Done(finding), Some(worker)) => self.conclude(worker, finding),
            (_, None) => self.recycle(slot),
        }
    }

    /// Takes a connection with a complete answer from its worker. If the server has not closed it yet, it may do
    /// so first, for a while.
    fn release(&mut self, worker: usize, slot: usize, peer_closed: bool) {
        if let Some(under_way) = &mut self.workers[worker].under_way {
            under_way.connection = None;
        }
        let exchange = &mut self.connections[slot];
        if !exchange.connection.may_wait_for_close() {
            self.connections.remove(slot);
        } else if peer_closed {
            self.recycle(slot);
        } else {
            exchange.worker = None;
            exchange.connection.close_after_peer();
            let until = tick() + LINGER;
            self.lingering.push_back((until, slot, exchange.generation));
            // Should this fail, we close when its time is over.
            let _ = self.arm(slot);
        }
    }

    /// Ends a connection that the server has closed, and keeps its socket.
    fn recycle(&mut self, slot: usize) {
        let exchange = self.connections.remove(slot);
        if let Some(socket) = exchange.connection.recycle()
            && self.idle[exchange.family].len() < MAX_IDLE
        {
            self.idle[exchange.family].push(socket);
        }
    }

    fn answered(&mut self, worker: usize, response: http::Response) {
        let finding = match (response.status, &response.location) {
            (301 | 302 | 303 | 307 | 308, Some(location)) => match self.redirect(worker, location) {
                Ok(()) => return,
                Err(finding) => finding.unwrap_or(Finding::Redirected(response.body)),
            },
            (200..=299, _) => Finding::Good,
            (300..=399, _) => Finding::Redirected(response.body),
            (status, _) => Finding::Status(status),
        };
        self.conclude(worker, finding);
    }

    /// Follows a redirect. Fails with what is wrong with it, or with nothing if it leads to another
    /// host, where we do not follow.
    fn redirect(&mut self, worker: usize, location: &str) -> Result<(), Option<Finding>> {
        let entry = &mut self.workers[worker];
        let check = entry.check.clone();
        let (Check::Http(http), Some(under_way)) = (&*check, &mut entry.under_way) else {
            return Err(None);
        };
        let from = under_way.redirected.as_ref().unwrap_or(&http.url);
        let to = url::resolve(from, location).map_err(|error| Some(Finding::Location(error)))?;
        if !to.host.eq_ignore_ascii_case(&http.url.host) {
            return Err(None);
        }
        under_way.redirects += 1;
        if under_way.redirects >= MAX_REDIRECTS {
            return Err(Some(Finding::TooManyRedirects));
        }
        under_way.redirected = Some(to);
        self.connect(worker, &check);
        Ok(())
    }

    /// Ends the check of a worker with what it found.
    pub(super) fn conclude(&mut self, worker: usize, finding: Finding) {
        let now = tick();
        let entry = &mut self.workers[worker];
        let (container, kind) = (entry.container, entry.kind);
        let Some(under_way) = entry.under_way.take() else {
            return;
        };
        if let Some(connection) = under_way.connection {
            self.connections.remove(connection);
        }
        let outcome = finding.outcome();
        let effects = self.containers[container]
            .container
            .finish(kind, outcome, now, self.pace);
        if effects.counted {
            self.parts
                .metrics
                .observe(&mut entry.metrics, outcome, now.since(under_way.began));
        }
        if effects.notice.is_some() || effects.verdict.is_some() {
            let check = entry.check.clone();
            let message = finding.describe(&destination(&check, under_way.redirected.as_ref()));
            if let Some(verdict) = effects.verdict {
                let message = if verdict == Verdict::Success {
                    String::new()
                } else {
                    message.clone()
                };
                self.tell_verdict(container, kind, verdict, message);
            }
            if let Some(notice) = effects.notice {
                let subject = self.subject(container, kind);
                let _ = self.parts.reports.send(Report::Notice {
                    subject,
                    notice,
                    message,
                });
            }
        }
        self.reschedule(container);
    }

    fn ticket(&self, worker: usize) -> Ticket {
        let entry = &self.workers[worker];
        Ticket {
            worker,
            generation: entry.generation,
            check: entry.checks,
        }
    }
}

fn destination<'a>(check: &'a Check, redirected: Option<&'a Url>) -> Destination<'a> {
    match check {
        Check::Http(http) => Destination::Url(redirected.unwrap_or(&http.url)),
        Check::Tcp { host, port } => Destination::Port(host, *port),
        Check::Grpc { host, port, .. } => Destination::Address(SocketAddr::new(*host, *port)),
        Check::Exec { command } => Destination::Command(command),
        Check::Impossible(_) => Destination::Nowhere,
    }
}
