//! Who owns the pods of a node, and in which order does everything happen?
//!
//! One task owns every pod. Watch events, runtime events, verdicts of probes and answers to requests come
//! in; actions, status patches and Events go out as tasks of their own. Nothing here waits for anything
//! but the next input, so a readiness change is on its way to the API at once.

mod questions;

pub(crate) use questions::{FoundLog, LogError, Question};

use crate::clock::{Clock, timestamp};
use crate::disk;
use crate::gate::{WaitOutcome, Waited};
use crate::metrics::Metrics;
use crate::pod::{Managed, Sent};
use crate::probing::{self, Probing};
use crate::room::Room;
use crate::work::{Tools, exit_of};
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{ApiError, Event, ObjectKey};
use pointsman_objects::pod_manifest::{PodManifest, Verbatim};
use pointsman_pod_lifecycle::{Action, ContainerFact, Fact, Found, FoundContainer, Now, PodEvent, Settings};
use pointsman_probe_io::Report;
use pointsman_protocol::gate::Outcome;
use pointsman_runtime::{ContainerStatus, Events, PodState, PodUid, RuntimeEvent};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// Something that happened.
pub(crate) enum Input {
    /// A pod of this node changed.
    Pod(Box<Event<Verbatim<PodManifest>>>),
    /// An action was carried out.
    Fact { uid: Arc<str>, fact: Fact },
    /// A container's log is here.
    Log {
        uid: Arc<str>,
        container: String,
        run: u32,
        path: PathBuf,
    },
    /// A pod does not run quite as it says.
    Warning {
        uid: Arc<str>,
        reason: &'static str,
        message: String,
    },
    /// The shutdown gate answered.
    Gate { uid: Arc<str>, answer: Waited },
    /// A status patch was answered.
    Sent { uid: Arc<str>, sent: Box<Sent> },
    /// The deletion of a pod that has ended was answered.
    Deleted {
        uid: Arc<str>,
        outcome: Result<(), ApiError>,
    },
    /// Somebody wants to know something.
    Ask(Question),
}

/// The owner of all pods of this node.
pub(crate) struct Agent {
    tools: Tools,
    clock: Clock,
    settings: Settings,
    probing: Probing,
    recorder: Recorder,
    metrics: Metrics,
    pods: BTreeMap<Arc<str>, Managed>,
    names: BTreeMap<(String, String), Arc<str>>,
    /// What the runtime had when the agent started, until the API says whose it is.
    found: BTreeMap<String, PodState>,
    wakes: BTreeSet<(Duration, Arc<str>)>,
    /// The first list is complete.
    synced: bool,
    /// How often volumes look for changes of their objects.
    refresh: Duration,
    /// What the node has for its pods.
    room: Room,
    /// Somebody looks how much pods have on disk.
    looking: Option<JoinHandle<()>>,
}

impl Agent {
    /// An agent that knows no pod yet; `found` is what the runtime has.
    pub(crate) fn new(
        tools: Tools,
        settings: Settings,
        probing: Probing,
        recorder: Recorder,
        found: Vec<PodState>,
        refresh: Duration,
        room: Room,
    ) -> Self {
        Self {
            clock: Clock::start(),
            settings,
            probing,
            recorder,
            metrics: tools.metrics.clone(),
            tools,
            pods: BTreeMap::new(),
            names: BTreeMap::new(),
            found: found
                .into_iter()
                .map(|state| (state.pod.as_str().to_owned(), state))
                .collect(),
            wakes: BTreeSet::new(),
            synced: false,
            refresh,
            room,
            looking: None,
        }
    }

    /// Works until `stopping` turns true. Pods go on without an agent.
    pub(crate) async fn run(
        mut self,
        mut inputs: mpsc::UnboundedReceiver<Input>,
        mut events: Events,
        mut reports: mpsc::UnboundedReceiver<Report>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut refresh = tokio::time::interval(self.refresh);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut disks = tokio::time::interval(disk::INTERVAL);
        disks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wake = self.wakes.first().map(|(at, _)| self.clock.instant(*at));
            let idle = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stop| *stop) => return,
                Some(report) = reports.recv() => self.reported(&report),
                Some(event) = events.recv() => self.happened(event),
                Some(input) = inputs.recv() => self.take(input),
                () = idle => self.wake(),
                _ = refresh.tick() => self.refresh_volumes(),
                _ = disks.tick() => self.look_at_disks(),
            }
        }
    }

    /// Volumes follow the objects that they are made of, as late as with the kubelet.
    fn refresh_volumes(&self) {
        for (uid, pod) in &self.pods {
            let made_of_objects = !crate::volumes::volume_objects(&pod.manifest).is_empty();
            if made_of_objects && !pod.machine.ips().is_empty() && !pod.machine.is_ending() {
                self.tools.refresh(pod.job(uid));
            }
        }
    }

    /// Has somebody look how much pods with limits have on disk, unless one still looks.
    fn look_at_disks(&mut self) {
        if self
            .looking
            .as_ref()
            .is_some_and(|looking| !looking.is_finished())
        {
            return;
        }
        let limited = self.pods.iter().filter(|(_, pod)| pod.machine.has_disk_limits());
        let limited: Vec<_> = limited.map(|(uid, _)| uid.clone()).collect();
        if !limited.is_empty() {
            self.looking = Some(tokio::spawn(disk::look(self.tools.clone(), limited)));
        }
    }

    fn wake(&mut self) {
        let now = self.clock.now();
        while let Some((at, uid)) = self.wakes.first().cloned() {
            if at > now.mono {
                return;
            }
            self.wakes.pop_first();
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.wake = None;
            }
            self.touch(&uid);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Pod(event) => match *event {
                Event::Applied { key, object, .. } => self.applied(&key, object),
                Event::Deleted { key, .. } => self.vanished(&key),
                Event::Synced(_) => self.remove_orphans(),
                Event::Init => {}
            },
            Input::Fact { uid, fact } => self.fact(&uid, fact),
            Input::Log {
                uid,
                container,
                run,
                path,
            } => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.logs.insert((container, run), path);
                }
            }
            Input::Warning { uid, reason, message } => {
                self.record(&uid, Severity::Warning, reason, message);
            }
            Input::Gate { uid, answer } => self.gate_answered(&uid, &answer),
            Input::Sent { uid, sent } => {
                let now = self.clock.now();
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.answered(*sent, now, &self.metrics);
                }
                self.touch(&uid);
            }
            Input::Deleted { uid, outcome } => {
                let now = self.clock.now();
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.deletion_answered(outcome, now);
                }
                self.touch(&uid);
            }
            Input::Ask(question) => self.answer(question),
        }
    }

    fn applied(&mut self, key: &ObjectKey, Verbatim { text, object }: Verbatim<PodManifest>) {
        let name = (key.namespace().to_owned(), key.name().to_owned());
        let manifest = match object {
            Ok(manifest) => manifest,
            Err(error) => {
                tracing::error!(pod = %key, error, "ignoring a pod that cannot be read");
                // It exists all the same, so what runs of it is not a left-over.
                self.found
                    .retain(|_, state| (&state.namespace, &state.name) != (&name.0, &name.1));
                return;
            }
        };
        let uid = manifest.metadata.uid.clone();
        if let Some(before) = self.names.insert(name, uid.clone())
            && before != uid
        {
            // The name was taken over by another pod; we did not see the first one's deletion.
            self.end(&before);
        }
        let now = self.clock.now();
        match self.pods.get_mut(&uid) {
            Some(pod) => pod.update(manifest, text, now),
            None => {
                let found = self.found.remove(&*uid);
                let pod = self.adopt(manifest, text, found, now);
                self.pods.insert(uid.clone(), pod);
            }
        }
        self.touch(&uid);
    }

    fn adopt(
        &self,
        manifest: PodManifest,
        text: Box<RawValue>,
        state: Option<PodState>,
        now: Now,
    ) -> Managed {
        let mut found = Found::default();
        let mut logs = BTreeMap::new();
        // A pod whose sandbox was lost with the last boot starts over.
        let lost = state.as_ref().is_some_and(|state| state.sandbox.is_none());
        if let Some(state) = state
            && let Some(sandbox) = &state.sandbox
        {
            let host = sandbox.netns.is_none() && sandbox.addresses.is_empty();
            found.ips = Some(if host {
                self.tools.host_ips.to_vec()
            } else {
                sandbox.addresses.clone()
            });
            for container in &state.containers {
                let name = container.id.name.as_str().to_owned();
                logs.insert((name.clone(), container.id.attempt), container.log.clone());
                // Attempts come in order, so the last one stays.
                found.containers.retain(|run| run.name != name);
                found.containers.push(FoundContainer {
                    name,
                    run: container.id.attempt,
                    started_at: timestamp(container.status.started_at()),
                    exit: match &container.status {
                        ContainerStatus::Running { .. } => None,
                        ContainerStatus::Exited(exit) => Some(exit_of(exit)),
                    },
                });
            }
        }
        let pod = Managed::new(manifest, text, self.settings, &found, logs, now);
        if lost {
            self.clear(&pod);
        }
        pod
    }

    /// Removes what is left of a pod before anything is made of it again.
    fn clear(&self, pod: &Managed) {
        let uid = PodUid::try_new(&pod.manifest.metadata.uid);
        let turn = pod.turn.clone().try_lock_owned();
        let runtime = self.tools.runtime.clone();
        if let (Ok(uid), Ok(turn)) = (uid, turn) {
            tokio::spawn(async move {
                if let Err(error) = runtime.remove_pod(&uid).await {
                    tracing::warn!(%uid, %error, "cannot remove what is left of a pod");
                }
                drop(turn);
            });
        }
    }

    fn vanished(&mut self, key: &ObjectKey) {
        let name = (key.namespace().to_owned(), key.name().to_owned());
        if let Some(uid) = self.names.remove(&name) {
            self.end(&uid);
        }
    }

    /// The pod's object is gone.
    fn end(&mut self, uid: &Arc<str>) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.gone = true;
            pod.machine.vanish();
        }
        self.touch(uid);
    }

    /// What runs here and belongs to no pod of the API goes.
    fn remove_orphans(&mut self) {
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
        for (uid, state) in std::mem::take(&mut self.found) {
            tracing::warn!(
                uid,
                namespace = state.namespace,
                pod = state.name,
                "removing a pod that the API does not know"
            );
            let runtime = self.tools.runtime.clone();
            tokio::spawn(async move {
                if let Ok(uid) = PodUid::try_new(&uid)
                    && let Err(error) = runtime.remove_pod(&uid).await
                {
                    tracing::error!(%uid, %error, "cannot remove a left-over pod");
                }
            });
        }
    }

    fn reported(&mut self, report: &Report) {
        match report {
            Report::Verdict {
                subject, verdict, at, ..
            } => {
                let fact = self
                    .pods
                    .get(&subject.pod_uid)
                    .and_then(|pod| probing::fact(&pod.machine, subject, *verdict, *at));
                if let Some(fact) = fact {
                    self.fact(&subject.pod_uid, fact);
                }
            }
            Report::Notice { subject, .. } => {
                if let Some((reason, message)) = report.event() {
                    self.record(&subject.pod_uid, Severity::Warning, reason, message);
                }
            }
        }
    }

    fn happened(&mut self, event: RuntimeEvent) {
        let (id, fact) = match event {
            RuntimeEvent::SandboxLost { pod } => {
                return self.fact(&Arc::from(pod.as_str()), Fact::SandboxLost);
            }
            RuntimeEvent::Started { container, at } => {
                let at = timestamp(at);
                (container, ContainerFact::Started { at })
            }
            RuntimeEvent::Exited { container, exit } => (container, ContainerFact::Exited(exit_of(&exit))),
        };
        let fact = fact.about(id.name.as_str(), id.attempt);
        self.fact(&Arc::from(id.pod.as_str()), fact);
    }

    fn fact(&mut self, uid: &Arc<str>, fact: Fact) {
        let now = self.clock.now();
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        self.metrics.count(&fact);
        if let Some(event) = pod.machine.fact(fact, now) {
            self.record_event(uid, event);
        }
        self.touch(uid);
    }

    /// Lets a pod take its next steps: actions, probes, report, end.
    fn touch(&mut self, uid: &Arc<str>) {
        let now = self.clock.now();
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let actions = pod.machine.step(now);
        let full = if actions.contains(&Action::MakeSandbox) {
            self.no_room_for(uid)
        } else {
            None
        };
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let mut events = Vec::new();
        for action in actions {
            match (action, &full) {
                (Action::MakeSandbox, Some(message)) => {
                    let (uid, message) = (uid.clone(), message.clone());
                    let fact = Fact::SandboxFailed { message };
                    let _ = self.tools.inputs.send(Input::Fact { uid, fact });
                }
                (Action::Record(event), _) => events.push(event),
                (action, _) => {
                    pod.admitted = true;
                    self.tools.begin(pod.job(uid), action);
                }
            }
        }
        self.probing
            .follow(uid, &pod.manifest, &pod.machine, &mut pod.probes);
        pod.report(uid, &self.tools, now);
        let over = pod.finish(uid, &self.tools, now);
        let wake = pod.next_wake(now.mono);
        if pod.wake != wake {
            if let Some(old) = std::mem::replace(&mut pod.wake, wake) {
                self.wakes.remove(&(old, uid.clone()));
            }
            self.wakes.extend(wake.map(|at| (at, uid.clone())));
        }
        for event in events {
            self.record_event(uid, event);
        }
        if over {
            self.forget(uid);
        }
        self.metrics.running(self.pods.values().map(|pod| &pod.machine));
    }

    /// What is missing for what the pod requests.
    fn no_room_for(&self, uid: &Arc<str>) -> Option<String> {
        let wanted = self.pods.get(uid)?;
        let others = self
            .pods
            .iter()
            .filter(|(other, pod)| *other != uid && pod.admitted && !pod.machine.is_over());
        let taken = others.map(|(_, pod)| Room::requested(&pod.manifest)).sum();
        self.room.missing_for(Room::requested(&wanted.manifest), taken)
    }

    fn forget(&mut self, uid: &Arc<str>) {
        if let Some(pod) = self.pods.remove(uid) {
            self.probing.forget(uid, &pod.probes);
            if let Some(at) = pod.wake {
                self.wakes.remove(&(at, uid.clone()));
            }
        }
    }

    fn gate_answered(&mut self, uid: &Arc<str>, answer: &Waited) {
        let (severity, message) = gate_event(answer);
        self.record(uid, severity, "ShutdownGate", message);
    }

    fn record_event(&self, uid: &Arc<str>, event: PodEvent) {
        let severity = if event.warning {
            Severity::Warning
        } else {
            Severity::Normal
        };
        self.record(uid, severity, event.reason, event.message);
    }

    fn record(&self, uid: &Arc<str>, severity: Severity, reason: &str, message: String) {
        let Some(pod) = self.pods.get(uid) else { return };
        tracing::debug!(pod = pod.name(), reason, message, "event of a pod");
        self.recorder.record(News {
            subject: Subject {
                api_version: "v1".into(),
                kind: "Pod".into(),
                namespace: pod.namespace().into(),
                name: pod.name().into(),
                uid: uid.to_string(),
            },
            severity,
            reason: reason.into(),
            message,
        });
    }
}

/// What people read about a pod that waited at its gate.
fn gate_event(answer: &Waited) -> (Severity, String) {
    let waited = answer.waited.as_secs_f64();
    match answer.outcome {
        // Nodes fall back to terminating endpoints where a Service has no ready one left.
        WaitOutcome::Opened(Outcome::Everywhere) => (
            Severity::Normal,
            format!(
                "After {waited:.3} s every node knows that the pod is going away; it gets new connections only \
                 where its Service has no ready endpoint"
            ),
        ),
        WaitOutcome::Opened(Outcome::NoEndpoints) => (
            Severity::Normal,
            "The pod is no endpoint of a Service that nodes forward for".to_owned(),
        ),
        other => {
            let behind = match answer.behind.as_slice() {
                [] => String::new(),
                behind => format!("; behind: {}", behind.join(", ")),
            };
            let why = other.as_str();
            let message =
                format!("Stopping after {waited:.3} s without confirmation from every node ({why}){behind}");
            (Severity::Warning, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_event_of_an_open_gate_holds_under_terminating_fallback_too() {
        let answer = Waited {
            outcome: WaitOutcome::Opened(Outcome::Everywhere),
            waited: Duration::from_millis(12),
            behind: Vec::new(),
        };
        let (severity, message) = gate_event(&answer);
        assert_eq!(severity, Severity::Normal);
        // A pod that is the last endpoint of its Service stays in the rules of every node.
        assert!(!message.contains("took the pod out"), "{message}");
        assert!(
            message.contains("only where its Service has no ready endpoint"),
            "{message}"
        );
    }
}
