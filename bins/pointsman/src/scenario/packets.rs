//! When do connections really change?
//!
//! A thread in the namespace of each node connects to a Service again and again. A Service without a
//! usable endpoint refuses. The change happened between the last attempt that showed the old state and the
//! first that showed the new one; the later end counts, and the width of the interval is kept.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use pointsman_fabric::Netns;

use crate::up::claim::Record;

/// Between two attempts; shorter ones would take the processor from those who are measured.
const PAUSE: Duration = Duration::from_micros(300);
const PATIENCE: Duration = Duration::from_millis(500);
/// Which kinds of ICMP messages are limited in number.
const RATE_MASK: &str = "ipv4/icmp_ratemask";

/// The moment at which packets changed their way.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    at: Timestamp,
    /// How long before that it may have been.
    pub width: Duration,
}

impl Truth {
    /// The time from `earlier` to it.
    pub fn since(&self, earlier: Timestamp) -> Duration {
        let micros = self.at.as_microsecond() - earlier.as_microsecond();
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

struct Order {
    target: SocketAddr,
    /// What the change leads to: answers or refusals.
    answers: bool,
    stop: Arc<AtomicBool>,
    found: mpsc::Sender<(String, Truth)>,
}

/// One prober in each node.
pub struct Probers {
    orders: Vec<mpsc::Sender<Order>>,
    nodes: Vec<String>,
}

/// A change that probers wait for.
pub struct Watching {
    stop: Arc<AtomicBool>,
    found: mpsc::Receiver<(String, Truth)>,
    nodes: Vec<String>,
}

impl Probers {
    /// Starts them; they end with the value.
    pub fn start(record: &Record) -> anyhow::Result<Self> {
        let mut orders = Vec::new();
        for node in &record.nodes {
            let namespace =
                Netns::named(&node.namespace).with_context(|| format!("entering {}", node.namespace))?;
            // Refusals are ICMP messages, of which the kernel sends a thousand a second and drops the rest: a
            // prober would take the silence for a change that has not come yet.
            namespace.set_sysctl(RATE_MASK, "0")?;
            let (sender, receiver) = mpsc::channel::<Order>();
            let name = node.name.clone();
            std::thread::spawn(move || {
                let probing = namespace.run(move || {
                    for order in receiver {
                        probe(&name, &order);
                    }
                });
                if let Err(error) = probing {
                    tracing::error!(%error, "a prober could not enter its node");
                }
            });
            orders.push(sender);
        }
        let nodes = record.nodes.iter().map(|node| node.name.clone()).collect();
        Ok(Self { orders, nodes })
    }

    /// Waits on all nodes for a Service to begin to answer, or to refuse.
    pub fn watch(&self, target: SocketAddr, answers: bool) -> Watching {
        let (found, finding) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        for orders in &self.orders {
            // A prober that could not start finds nothing, and coverage says so.
            let _ = orders.send(Order {
                target,
                answers,
                stop: stop.clone(),
                found: found.clone(),
            });
        }
        Watching {
            stop,
            found: finding,
            nodes: self.nodes.clone(),
        }
    }
}

impl Watching {
    /// What each node saw within this time.
    pub async fn finish(self, patience: Duration) -> BTreeMap<String, Option<Truth>> {
        let waiting = tokio::task::spawn_blocking(move || {
            let mut seen: BTreeMap<String, Option<Truth>> =
                self.nodes.iter().map(|name| (name.clone(), None)).collect();
            let deadline = Instant::now() + patience;
            while seen.values().any(Option::is_none) {
                match self
                    .found
                    .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                {
                    Ok((node, truth)) => drop(seen.insert(node, Some(truth))),
                    Err(_) => break,
                }
            }
            self.stop.store(true, Ordering::Relaxed);
            seen
        });
        waiting.await.unwrap_or_default()
    }
}

fn probe(name: &str, order: &Order) {
    let mut before: Option<Timestamp> = None;
    while !order.stop.load(Ordering::Relaxed) {
        let at = Timestamp::now();
        if connects(order.target) == order.answers {
            // Without a look at the old state nothing is known about the moment.
            if let Some(before) = before {
                let width =
                    Duration::from_micros((at.as_microsecond() - before.as_microsecond()).unsigned_abs());
                let _ = order.found.send((name.to_owned(), Truth { at, width }));
                return;
            }
        } else {
            before = Some(at);
        }
        std::thread::sleep(PAUSE);
    }
}

fn connects(target: SocketAddr) -> bool {
    let Ok(stream) = TcpStream::connect_timeout(&target, PATIENCE) else {
        return false;
    };
    // Without this every attempt would hold a port for a minute.
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    true
}
