//! What changes when pods and containers come, go, start and stop?

use super::{ContainerEntry, Engine, Pod, Worker, tick};
use crate::finding::Finding;
use crate::prober::{Command, Started, Ticket};
use crate::report::{Report, Subject};
use crate::target::{ContainerTarget, PodTarget};
use jiff::Timestamp;
use pointsman_probe::{Container, Kind, Previous, Start, Verdict};
use std::sync::Arc;

impl Engine {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::SetPod(target) => self.set_pod(target),
            Command::RemovePod(uid) => self.remove_pod(&uid),
            Command::Started(uid, container, started) => {
                if let Some(container) = self.find(&uid, &container) {
                    self.start(container, started);
                }
            }
            Command::Stopped(uid, container) => {
                if let Some(container) = self.find(&uid, &container) {
                    self.stop(container);
                }
            }
            Command::Terminating(uid) => self.terminate(&uid),
            Command::Poke(uid, container) => {
                if let Some(container) = self.find(&uid, &container) {
                    self.containers[container].container.poke(tick());
                    self.reschedule(container);
                }
            }
            Command::Policy(policy) => self.pace.policy = policy,
            Command::Answer(ticket, finding) => {
                if self.is_current(ticket) {
                    self.conclude(ticket.worker, finding);
                }
            }
            Command::Address(ticket, address) => {
                if self.is_current(ticket) {
                    self.resolved(ticket.worker, address);
                }
            }
            Command::End => {}
        }
    }

    fn is_current(&self, ticket: Ticket) -> bool {
        self.workers.get(ticket.worker).is_some_and(|worker| {
            worker.generation == ticket.generation
                && worker.checks == ticket.check
                && worker.under_way.is_some()
        })
    }

    fn find(&self, uid: &str, container: &str) -> Option<usize> {
        let containers = &self.pods.get(uid)?.containers;
        containers
            .iter()
            .copied()
            .find(|entry| &*self.containers[*entry].target.name == container)
    }

    fn set_pod(&mut self, target: PodTarget) {
        let pod = self.pods.entry(target.uid.clone()).or_insert_with(|| Pod {
            namespace: target.namespace.clone(),
            name: target.name.clone(),
            containers: Vec::new(),
            terminating: false,
        });
        let terminating = pod.terminating;
        let mut before = std::mem::take(&mut pod.containers);
        let mut after = Vec::with_capacity(target.containers.len());
        for wanted in target.containers {
            let known = before
                .iter()
                .position(|entry| self.containers[*entry].target.name == wanted.name);
            let known = known.map(|at| before.swap_remove(at));
            let running = match known {
                Some(entry) if self.containers[entry].target == wanted => {
                    after.push(entry);
                    continue;
                }
                Some(entry) => {
                    let running = self.containers[entry].running;
                    self.remove_container(entry);
                    running
                }
                None => None,
            };
            let entry = self.add_container(&target.uid, &target.namespace, &target.name, wanted);
            after.push(entry);
            if terminating {
                self.containers[entry].container.terminate();
            }
            if let Some(since) = running {
                self.start(
                    entry,
                    Started {
                        age: tick().since(since),
                        previous: None,
                    },
                );
            }
        }
        for entry in before {
            self.remove_container(entry);
        }
        if let Some(pod) = self.pods.get_mut(&target.uid) {
            pod.containers = after;
        }
    }

    fn add_container(
        &mut self,
        uid: &Arc<str>,
        namespace: &str,
        pod: &str,
        target: ContainerTarget,
    ) -> usize {
        let probes = target.probes.iter().map(|probe| (probe.kind, probe.timing));
        let container = Container::new(probes, target.sidecar);
        let slot = self.containers.vacant_key();
        let mut workers = [None; 3];
        for probe in &target.probes {
            let generation = self.next_generation();
            let metrics = self.parts.metrics.probe(probe, &target.name, pod, namespace, uid);
            let worker = self.workers.insert(Worker {
                container: slot,
                kind: probe.kind,
                check: Arc::new(probe.check.clone()),
                generation,
                under_way: None,
                checks: 0,
                metrics,
            });
            if let Some(replaced) = workers[probe.kind as usize].replace(worker) {
                self.workers.remove(replaced);
            }
        }
        self.containers.insert(ContainerEntry {
            pod_uid: uid.clone(),
            target,
            container,
            running: None,
            workers,
        })
    }

    fn remove_pod(&mut self, uid: &str) {
        for container in self
            .pods
            .remove(uid)
            .map(|pod| pod.containers)
            .unwrap_or_default()
        {
            self.remove_container(container);
        }
    }

    fn remove_container(&mut self, container: usize) {
        for worker in self.containers[container].workers.into_iter().flatten() {
            self.timers.cancel(worker);
            let worker = self.workers.remove(worker);
            self.parts.metrics.forget(&worker.metrics);
            if let Some(connection) = worker.under_way.and_then(|check| check.connection) {
                self.connections.remove(connection);
            }
        }
        self.containers.remove(container);
    }

    fn start(&mut self, container: usize, started: Started) {
        self.give_up(container);
        let now = tick();
        let agent_age = now.since(self.started);
        let previous = started.previous.map(|reported| Previous {
            ready: reported.ready,
            started: reported.started,
            agent_age,
            spread: spread(&self.containers[container], now.0),
        });
        let entry = &mut self.containers[container];
        entry.running = Some(now - started.age);
        entry.container.start(
            Start {
                age: started.age,
                previous,
            },
            now,
        );
        self.reschedule(container);
    }

    fn stop(&mut self, container: usize) {
        self.give_up(container);
        let entry = &mut self.containers[container];
        entry.running = None;
        if let Some(verdict) = entry.container.stop() {
            self.tell_verdict(container, Kind::Readiness, verdict, String::new());
        }
        self.reschedule(container);
    }

    fn terminate(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.terminating = true;
        tracing::debug!(
            namespace = &*pod.namespace,
            pod = &*pod.name,
            "the pod terminates; only readiness is probed"
        );
        for container in pod.containers.clone() {
            self.containers[container].container.terminate();
            self.reschedule(container);
        }
    }

    /// Gives up the network checks of a container. Commands go on until they end, because nobody
    /// could say what giving them up would leave behind.
    fn give_up(&mut self, container: usize) {
        for worker in self.containers[container].workers.into_iter().flatten() {
            let entry = &self.workers[worker];
            let over_network = !matches!(*entry.check, crate::target::Check::Exec { .. });
            if entry.under_way.is_some() && over_network {
                self.conclude(worker, Finding::Abandoned);
            }
        }
    }

    /// Sets the timers of a container's workers to what is due now.
    pub(super) fn reschedule(&mut self, container: usize) {
        let entry = &self.containers[container];
        for worker in entry.workers.into_iter().flatten() {
            let of = &self.workers[worker];
            if of.under_way.is_some() {
                continue;
            }
            match entry.container.due(of.kind) {
                Some(due) => self.timers.set(worker, due),
                None => self.timers.cancel(worker),
            }
        }
    }

    pub(super) fn subject(&self, container: usize, kind: Kind) -> Subject {
        let entry = &self.containers[container];
        Subject {
            pod_uid: entry.pod_uid.clone(),
            container: entry.target.name.clone(),
            kind,
        }
    }

    pub(super) fn tell_verdict(&self, container: usize, kind: Kind, verdict: Verdict, message: String) {
        let subject = self.subject(container, kind);
        let report = Report::Verdict {
            subject,
            verdict,
            at: Timestamp::now(),
            message,
        };
        // Nobody listens once the agent shuts down.
        let _ = self.parts.reports.send(report);
    }
}

/// A number from 0 up to 1 that differs between containers and between starts.
fn spread(container: &ContainerEntry, now: u64) -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let hash = RandomState::new().hash_one((&container.pod_uid, &container.target.name, now));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
