//! How does the controller see the cluster, and what does it do to it?

use super::{Event, World};
use crate::events::Millis;
use crate::scenario::Heartbeats;
use pointsman_latency_profile::ReportPeriod;
use pointsman_model::Text;
use pointsman_node_health::action::LiveLease;
use pointsman_node_health::evict::Evictor;
use pointsman_node_health::taint::TaintChange;
use pointsman_node_health::{Action, Monitor};
use pointsman_objects::taint::Effect;
use std::sync::Arc;

impl World {
    /// A controller that knows nothing reads everything.
    pub(super) fn start_controller(&mut self) {
        self.monitor = Monitor::new(self.settings);
        self.evictor = Evictor::default();
        let (clock, tick) = (self.clock(), self.tick());
        for number in 0..self.nodes.len() {
            let node = &self.nodes[number];
            if self.heartbeats == Heartbeats::Leases && node.revision > 0 {
                let mut lease = node.lease();
                lease.revision = node.live_revision(self.now);
                self.monitor.observe_lease(&lease, clock);
            }
            self.evictor.pod_seen(&node.pod, tick);
            self.show(number);
        }
    }

    /// The controller sees a node as it is.
    fn show(&mut self, number: usize) {
        let node = &self.nodes[number];
        let (clock, tick) = (self.clock(), self.tick());
        self.evictor
            .node_seen(&node.object.metadata.name, &node.object.taints, [&node.pod], tick);
        let actions = self.monitor.observe_node(Arc::new(node.object.clone()), clock);
        self.carry_out(actions);
    }

    pub(super) fn reported(&mut self, number: usize, period: ReportPeriod) {
        let node = &mut self.nodes[number];
        node.report_shown = true;
        node.seen_period = period;
        node.heard = self.now;
        node.beat();
        self.show(number);
        self.wake_later();
    }

    pub(super) fn renewed(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.heard = self.now;
        let lease = node.lease();
        self.monitor.observe_lease(&lease, self.clock());
    }

    pub(super) fn check(&mut self) {
        let actions = self.monitor.check(self.clock());
        self.carry_out(actions);
        self.pace();
        let period = super::millis(self.settings.monitor_period);
        self.events.add(self.now + period, Event::Check);
    }

    /// What is due now is done.
    pub(super) fn pace(&mut self) {
        let tick = self.tick();
        let actions = self.monitor.pace(tick);
        self.carry_out(actions);
        for eviction in self.evictor.due(tick) {
            let number = number(&eviction.pod.1);
            let node = &self.nodes[number];
            if node.alive {
                self.outcome.false_evicted += 1;
            } else if self.victim == Some(number) {
                self.outcome.evicted = Some(self.now - node.heard);
                // Nothing more is to be seen.
                self.events.add(self.now, Event::End);
            }
            self.trace(|| format!("the pod of n{number} is evicted"));
        }
        self.wake_later();
    }

    fn wake_later(&mut self) {
        let tick = self.tick();
        let due = [self.monitor.wake_at(tick), self.evictor.wake_at()];
        let Some(at) = due.into_iter().flatten().min() else {
            return;
        };
        // Clocks here count whole milliseconds.
        let at = (super::millis(at) + 1).max(self.now + 1);
        if self.woken.is_none_or(|woken| woken > at || woken <= self.now) {
            self.woken = Some(at);
            self.events.add(at, Event::Wake);
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::CheckLease(name) => self.check_lease(&name),
                Action::MarkUnknown(name, _) => self.mark_unknown(&name),
                Action::Taint(name, change) => self.taint(&name, &change),
                Action::MarkPodsUnready(_) | Action::NotReadyEvent(_) => {}
            }
        }
    }

    fn check_lease(&mut self, name: &Text) {
        let node = &self.nodes[number(name)];
        let live = if self.server_is_down() {
            LiveLease::Failed
        } else if self.heartbeats == Heartbeats::Status || node.live_revision(self.now) == 0 {
            LiveLease::Missing
        } else {
            LiveLease::Revision(node.live_revision(self.now))
        };
        let verdict = self.monitor.lease_checked(name, live, self.clock());
        self.carry_out(verdict.into_iter().collect());
    }

    fn mark_unknown(&mut self, name: &Text) {
        let number = number(name);
        let node = &mut self.nodes[number];
        let conflict = !node.report_shown && node.report_arrives <= self.now;
        if conflict || self.server_down.iter().any(|down| within(self.now, down)) {
            return;
        }
        node.mark_unknown();
        let silence = self.now - node.heard;
        if node.alive {
            self.outcome.false_unreachable += 1;
        } else if self.victim == Some(number) && self.outcome.detected.is_none() {
            self.outcome.detected = Some(silence);
        }
        let word = if node.alive { "ALIVE" } else { "dead" };
        self.trace(|| {
            format!(
                "n{number}, which is {word}, is called unreachable after {:.1} s",
                silence as f64 / 1000.0
            )
        });
        self.show(number);
    }

    fn taint(&mut self, name: &Text, change: &TaintChange) {
        let number = number(name);
        let node = &mut self.nodes[number];
        if self.server_down.iter().any(|down| within(self.now, down)) {
            return;
        }
        node.object.taints = change.apply(&node.object.taints).into();
        if node.alive && change.add.iter().any(|taint| taint.effect == Effect::NoExecute) {
            self.outcome.false_evicting += 1;
        }
        self.show(number);
    }
}

fn within(now: Millis, outage: &crate::link::Outage) -> bool {
    (outage.from..outage.to).contains(&now)
}

/// Nodes and pods are named by a letter and their number.
fn number(name: &str) -> usize {
    name[1..].parse().expect("names end with a number")
}
