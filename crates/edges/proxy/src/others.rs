//! Who looks for other service proxies on this node, says that there is one, and removes what IPVS mode left?
//!
//! A thread of its own looks every few seconds, once our rules have replaced those of a predecessor. It writes no rules,
//! and no sync waits for it.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_dataplane::second_writer::{Active, Change, SecondWriters, Traces, Writer};
use pointsman_fabric::Prefix;
use pointsman_kernel::Mode;
use pointsman_kernel::ipvs::Leftovers;
use pointsman_kernel::others::Lookout;
use pointsman_telemetry::{Family, Gauge};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::owner::FamilyReport;
use crate::worker::Chain;

/// How often it looks at the most.
const PERIOD: Duration = Duration::from_secs(5);

/// What is known about other proxies, and who is told.
#[derive(Debug)]
pub(crate) struct Others {
    node: String,
    gauge: Family<Gauge>,
    events: Recorder,
    /// Nothing before the first look, which shows what is left over.
    writers: Option<SecondWriters>,
    /// What the thread needs, until it runs.
    unstarted: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    mode: Mode,
    period: Duration,
    /// Ranges of virtual servers that are not kube-proxy's.
    excluded: Vec<Prefix>,
    reports: mpsc::UnboundedSender<FamilyReport>,
}

impl Others {
    pub fn new(
        config: &Config,
        gauge: Family<Gauge>,
        events: Recorder,
        reports: mpsc::UnboundedSender<FamilyReport>,
    ) -> Self {
        for writer in Writer::ALL {
            gauge.with(&[writer.mode()]).set(0.0);
        }
        Self {
            node: config.node.clone(),
            gauge,
            events,
            writers: None,
            unstarted: Some(Watch {
                mode: config.mode,
                period: config.sync_period.min(PERIOD),
                excluded: config.ipvs_exclude.clone(),
                reports,
            }),
        }
    }

    /// Our rules have replaced all others: starts to look, if nobody does yet.
    pub fn start(&mut self, node_ip: Option<Ipv4Addr>) {
        let Some(watch) = self.unstarted.take() else {
            return;
        };
        let thread = std::thread::Builder::new().name("others".to_owned());
        if let Err(error) = thread.spawn(move || watch.run(node_ip)) {
            tracing::warn!(%error, "nobody looks for other service proxies: no thread");
        }
    }

    /// Takes in what stands of others.
    pub fn observe(&mut self, now: Instant, found: Traces) {
        let changes = match &mut self.writers {
            Some(writers) => writers.observe(now, found),
            None => {
                self.writers = Some(SecondWriters::new(found));
                Vec::new()
            }
        };
        changes.into_iter().for_each(|change| self.say(change));
    }

    /// Another proxy wrote over our rules.
    pub fn wrote(&mut self, now: Instant, writer: Writer) {
        let writers = self.writers.get_or_insert(SecondWriters::new([None; 3]));
        if let Some(change) = writers.wrote(now, writer) {
            self.say(change);
        }
    }

    /// The one that began first.
    pub fn active(&self) -> Option<Active> {
        let writers = self.writers.as_ref()?;
        writers.active().min_by_key(|active| active.since)
    }

    fn say(&self, change: Change) {
        let (writer, active) = match change {
            Change::Began(writer) => (writer, 1.0),
            Change::Gone(writer) | Change::LeftOver(writer) => (writer, 0.0),
        };
        let mode = writer.mode();
        self.gauge.with(&[mode]).set(active);
        match change {
            Change::Began(_) => {
                let message = format!(
                    "kube-proxy in {mode} mode writes rules on this node beside pointsman-proxy; remove one of the two \
                     (`kubeadm upgrade` brings kube-proxy's DaemonSet back)"
                );
                tracing::warn!(mode, "{message}");
                self.events.record(News {
                    subject: node_subject(&self.node),
                    severity: Severity::Warning,
                    reason: "SecondServiceProxy".into(),
                    message,
                });
            }
            Change::Gone(_) => tracing::info!(mode, "kube-proxy no longer writes rules on this node"),
            Change::LeftOver(_) => tracing::warn!(
                mode,
                "kube-proxy no longer writes rules on this node, and has left some: a restart of this proxy removes them"
            ),
        }
    }
}

/// The Node that an event is about.
pub(crate) fn node_subject(name: &str) -> Subject {
    Subject {
        api_version: "v1".into(),
        kind: "Node".into(),
        namespace: String::new(),
        name: name.to_owned(),
        // As kubelets write it, by which `kubectl describe node` finds it.
        uid: name.to_owned(),
    }
}

impl Watch {
    fn run(self, node_ip: Option<Ipv4Addr>) {
        let mut ipvs = find_ipvs(node_ip);
        let mut lookout = match Lookout::open(self.mode) {
            Ok(lookout) => lookout,
            Err(error) => {
                return tracing::warn!(error = %Chain(&error), "nobody looks for other service proxies");
            }
        };
        loop {
            ipvs = ipvs.and_then(|leftovers| self.remove_ipvs(leftovers));
            match lookout.look() {
                // Nobody is there any more.
                Ok(found) if self.reports.send(FamilyReport::Others(found)).is_err() => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "rules of others cannot be looked for");
                }
            }
            std::thread::sleep(self.period);
        }
    }

    /// Removes what IPVS mode left if it is time; otherwise gives it back.
    fn remove_ipvs(&self, leftovers: Leftovers) -> Option<Leftovers> {
        let now = Instant::now();
        if !leftovers.is_due(now) {
            return Some(leftovers);
        }
        let broken = leftovers.in_use();
        match leftovers.remove(&self.excluded) {
            Ok(()) => {
                tracing::info!(
                    broken,
                    "what kube-proxy's IPVS mode left is removed; connections broken by it"
                )
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "something of kube-proxy's IPVS mode is left")
            }
        }
        None
    }
}

/// Finds what IPVS mode left, and lets new connections no longer depend on it.
fn find_ipvs(node_ip: Option<Ipv4Addr>) -> Option<Leftovers> {
    let found = Leftovers::find(Instant::now());
    let mut leftovers = found
        .inspect_err(|error| tracing::warn!(%error, "what kube-proxy's IPVS mode left cannot be found"))
        .ok()??;
    if let Some(source) = node_ip
        && let Err(error) = leftovers.prefer(source)
    {
        tracing::warn!(%error, "connections of this node to cluster addresses may break when kube-ipvs0 goes");
    }
    let (addresses, connections) = (leftovers.addresses(), leftovers.in_use());
    tracing::info!(
        addresses,
        connections,
        "kube-proxy's IPVS mode ran here: kube-ipvs0 goes when its connections have ended"
    );
    Some(leftovers)
}
