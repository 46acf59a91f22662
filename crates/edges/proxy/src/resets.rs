//! Who ends connections to nodes that are gone, and stops as soon as one is back?
//!
//! A thread for each family, because writing and walking all flows block. It answers for the addresses of the last order,
//! and writes them again before the kernel forgets them; it ends with the process and takes the table with it. Where
//! connections are not to be ended, it only removes what a predecessor may have left.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pointsman_dataplane::ProgramError;
use pointsman_kernel::Commits;
use pointsman_kernel::resets::{LASTING, Resets, Waker};
use pointsman_model::{Address, Cidr};
use pointsman_peers::GoneNodes;
use pointsman_telemetry::{Counter, Definition, Family, Gauge, Registry};

use crate::config::{Config, LocalMode};
use crate::worker::Chain;

/// Addresses of a family at the most; connections to further ones stay as they are.
const MOST: usize = 16_384;
/// How often an order that stays the same is written again.
const REFRESH: Duration = Duration::from_secs(5);
const _: () = assert!(REFRESH.as_secs() * 3 <= LASTING.as_secs());
/// Clients are woken with this many orders after a change, each time after twice as many: a packet may be lost, and
/// connections that could be woken become fewer, because no new ones are made.
const WAKES: u32 = 5;

/// What is measured of one family.
#[derive(Clone, Debug)]
pub struct ResetMetrics {
    addresses: Gauge,
    sent: Counter,
    woken: Counter,
    failures: Counter,
}

/// The same of all families.
pub(crate) struct Defined {
    addresses: Family<Gauge>,
    sent: Family<Counter>,
    woken: Family<Counter>,
    failures: Family<Counter>,
}

impl Defined {
    pub fn new(registry: &Registry) -> Self {
        let define = |name, help| Definition::new(name, help).labels(&["ip_family"]);
        Self {
            addresses: registry.gauges(define(
                "pointsman_proxy_reset_addresses",
                "Pods of nodes that are gone, to which connections are reset.",
            )),
            sent: registry.counters(define(
                "pointsman_proxy_resets_total",
                "Packets to pods of nodes that are gone which were answered with a reset, as of the last write.",
            )),
            woken: registry.counters(define(
                "pointsman_proxy_woken_connections_total",
                "Connections to such pods whose clients were made to send a packet; the same one may count again.",
            )),
            failures: registry.counters(define(
                "pointsman_proxy_reset_failures_total",
                "Failed attempts to write which connections are reset, or to wake their clients.",
            )),
        }
    }

    pub fn of(&self, family: &str) -> ResetMetrics {
        ResetMetrics {
            addresses: self.addresses.with(&[family]),
            sent: self.sent.with(&[family]),
            woken: self.woken.with(&[family]),
            failures: self.failures.with(&[family]),
        }
    }
}

/// The addresses to answer for: those that slices know on these nodes, without the nodes' own, which are more than their
/// pods', and without what is no address of a pod, where the ranges of all pods are known.
pub(crate) fn pods_of<A: Address>(config: &Config, nodes: &GoneNodes, known: BTreeSet<A>) -> BTreeSet<A> {
    let ranges: Vec<Cidr<A>> = match &config.local {
        LocalMode::ClusterCidr(ranges) => {
            let ranges = ranges.iter().map(|range| Cidr::parse(range));
            ranges.filter_map(|range| range.ok().flatten()).collect()
        }
        _ => Vec::new(),
    };
    let of_nodes: BTreeSet<A> = nodes
        .values()
        .flatten()
        .filter_map(|address| A::narrow(*address))
        .collect();
    let is_pod = |address: &A| ranges.is_empty() || ranges.iter().any(|range| range.contains(*address));
    let pods = known
        .into_iter()
        .filter(|it| is_pod(it) && !of_nodes.contains(it));
    pods.take(MOST).collect()
}

/// The way to the thread.
#[derive(Debug)]
pub(crate) struct Ends<A> {
    orders: Option<mpsc::Sender<BTreeSet<A>>>,
    thread: Option<JoinHandle<()>>,
}

impl<A: Address> Ends<A> {
    /// Starts the thread, which first removes what a predecessor left, and goes on only where connections are to be ended.
    pub fn start(config: &Config, commits: Commits, metrics: ResetMetrics) -> std::io::Result<Self> {
        if config.observe {
            return Ok(Self {
                orders: None,
                thread: None,
            });
        }
        let goes_on = config.reset_dead_connections.is_some();
        let (sender, orders) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("resets-{}", A::FAMILY));
        let thread = thread.spawn(move || match Ending::open(commits, metrics) {
            Ok(ending) if goes_on => follow(&orders, ending),
            Err(error) if goes_on => {
                tracing::warn!(family = %A::FAMILY, error = %Chain(&error),
                    "connections to nodes that are gone are not ended here: that needs nf_tables, in iptables mode too");
                orders.iter().for_each(drop);
            }
            _ => {}
        })?;
        Ok(Self {
            orders: Some(sender),
            thread: Some(thread),
        })
    }

    /// Connections to these pods end, and to no others; to be said again at least every second while there are any.
    pub fn order(&self, pods: BTreeSet<A>) {
        let sent = self.orders.as_ref().map(|orders| orders.send(pods));
        if !matches!(sent, Some(Ok(()))) {
            tracing::error!(family = %A::FAMILY, "the thread that ends connections to nodes that are gone has ended");
        }
    }
}

impl<A> Drop for Ends<A> {
    fn drop(&mut self) {
        // Nobody would notice that a node is back.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow<A: Address>(orders: &mpsc::Receiver<BTreeSet<A>>, mut ending: Ending<A>) {
    while let Ok(order) = orders.recv() {
        // Of several only the last one counts.
        let order = orders.try_iter().last().unwrap_or(order);
        if let Err(error) = ending.obey(order) {
            ending.metrics.failures.inc();
            tracing::warn!(family = %A::FAMILY, error = %Chain(&error), "connections to nodes that are gone may hang");
        }
    }
    if let Err(error) = ending.obey(BTreeSet::new()) {
        tracing::warn!(family = %A::FAMILY, error = %Chain(&error), "the kernel ends connections for {LASTING:?} more");
    }
}

/// What the thread knows.
struct Ending<A> {
    table: Resets,
    metrics: ResetMetrics,
    pods: BTreeSet<A>,
    /// When they were last written; nothing before the first success.
    written: Option<Instant>,
    /// Orders since they changed.
    orders: u32,
}

impl<A: Address> Ending<A> {
    fn open(commits: Commits, metrics: ResetMetrics) -> Result<Self, ProgramError> {
        let mut table = Resets::open(commits)?;
        table.answer_for::<A>(&BTreeSet::new())?;
        Ok(Self {
            table,
            metrics,
            pods: BTreeSet::new(),
            written: Some(Instant::now()),
            orders: 0,
        })
    }

    fn obey(&mut self, pods: BTreeSet<A>) -> Result<(), ProgramError> {
        let changed = pods != self.pods;
        if changed {
            let count = pods.len();
            tracing::info!(family = %A::FAMILY, pods = count, "connections to pods of nodes that are gone are reset");
            self.pods = pods;
            self.orders = 0;
        }
        let is_due = !self.pods.is_empty() && self.written.is_none_or(|at| at.elapsed() >= REFRESH);
        if changed || is_due || self.written.is_none() {
            self.write()?;
        }
        if !self.pods.is_empty() {
            self.orders = self.orders.saturating_add(1);
            if self.orders.is_power_of_two() && self.orders < 1 << WAKES {
                self.wake()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ProgramError> {
        self.written = None;
        // They are counted only until the table is written anew.
        self.metrics.sent.add(self.table.sent::<A>()?);
        self.table.answer_for(&self.pods)?;
        self.metrics.addresses.set(self.pods.len() as f64);
        self.written = Some(Instant::now());
        Ok(())
    }

    fn wake(&self) -> Result<(), ProgramError> {
        let unable = |source| ProgramError::Io {
            program: "waking clients".to_owned(),
            source,
        };
        let mut waker = Waker::open(A::FAMILY).map_err(unable)?;
        let woken = waker.wake(&self.pods);
        let woken = woken.map_err(|error| unable(std::io::Error::other(error)))?;
        self.metrics.woken.add(woken as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::config::tests::config;

    #[test]
    fn only_pods_are_left_of_what_slices_say_about_a_node() {
        let known = || -> BTreeSet<Ipv4Addr> {
            ["10.0.1.7", "192.168.0.3", "172.16.0.1"]
                .map(|it| it.parse().unwrap())
                .into()
        };
        let nodes = GoneNodes::from([("n3".into(), ["192.168.0.3".parse().unwrap()].into())]);
        let of = |local| {
            let config = Config { local, ..config() };
            let pods = pods_of(&config, &nodes, known());
            pods.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(LocalMode::NodeCidr), ["10.0.1.7", "172.16.0.1"]);
        let ranges = vec!["10.0.0.0/16".into(), "fd00::/48".into()];
        assert_eq!(of(LocalMode::ClusterCidr(ranges)), ["10.0.1.7"]);
        assert_eq!(of(LocalMode::ClusterCidr(Vec::new())).len(), 2);
    }
}
