//! How are pods watched, probed and written?
//!
//! One task owns everything that is known about pods. Patches run beside it, one per pod at a time,
//! and report to it how they ended.

use crate::annotation::BadAnnotation;
use crate::metrics::Metrics;
use crate::tracked::Tracked;
use crate::view::{Condition, GATE, View};
use jiff::Timestamp;
use pointsman_api_client::events::{News, Recorder, Severity, Subject as EventSubject};
use pointsman_api_client::{ApiError, Client, Event, ObjectKey, Patch, Resource, Scope, Watcher};
use pointsman_model::Revision;
use pointsman_objects::pod_manifest::PodManifest;
use pointsman_objects::pod_status::GatePatch;
use pointsman_probe_io::{
    Config as ProbeConfig, NoExec, Prober, Reading, Report, Reported, StartError, Started, Subject,
};
use pointsman_telemetry::Registry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The kubelet's times have whole seconds, so a container may be younger than it looks.
const CLOCK_GRAIN: Duration = Duration::from_secs(1);
/// The longest pause between attempts to write.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Everything that is fixed at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose pods to probe.
    pub node_name: String,
    /// How probes run.
    pub probes: ProbeConfig,
    /// How probes are read.
    pub reading: Reading,
}

/// Why it could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The prober cannot run.
    #[error("cannot start the prober")]
    Prober(#[from] StartError),
}

/// Probes the node's pods that ask for it until `stopping` turns true.
pub async fn run(
    config: Config,
    client: Client,
    registry: &Registry,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let (prober, mut reports) = Prober::start(config.probes, Arc::new(NoExec), registry)?;
    let (recorder, recording) = Recorder::new(client.clone(), "pointsman-probe");
    let (written, mut writes) = unbounded_channel();
    let mine = format!("spec.nodeName={}", config.node_name);
    let mut pods = Watcher::<PodManifest>::new(client.clone(), Scope::all(Resource::PODS).fields(&mine));
    let mut tasks = JoinSet::new();
    tasks.spawn(recording);
    let mut owner = Owner {
        client,
        prober,
        recorder,
        reading: config.reading,
        metrics: Metrics::new(registry),
        written,
        pods: BTreeMap::new(),
        names: BTreeMap::new(),
        synced: false,
    };
    loop {
        tokio::select! {
            event = pods.next() => owner.watched(event),
            Some(report) = reports.recv() => owner.reported(report),
            Some(write) = writes.recv() => owner.wrote(write),
            _ = stopping.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

struct Owner {
    client: Client,
    prober: Prober,
    recorder: Recorder,
    reading: Reading,
    metrics: Metrics,
    written: UnboundedSender<Write>,
    pods: BTreeMap<Arc<str>, Tracked>,
    names: BTreeMap<ObjectKey, Arc<str>>,
    synced: bool,
}

/// How a patch ended.
struct Write {
    uid: Arc<str>,
    condition: Condition,
    changed: Option<Timestamp>,
    outcome: Result<Revision, ApiError>,
}

impl Owner {
    fn watched(&mut self, event: Event<PodManifest>) {
        match event {
            Event::Init => {}
            Event::Synced(_) => self.synced = true,
            Event::Deleted { key, .. } => self.forget(&key),
            Event::Applied { key, object, .. } => match View::of(&object, &self.reading) {
                Some(view) => self.see(key, view),
                None => self.forget(&key),
            },
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        if let Some(uid) = self.names.remove(key) {
            self.prober.remove_pod(&uid);
            self.pods.remove(&uid);
        }
    }

    fn see(&mut self, key: ObjectKey, view: View) {
        let uid = view.uid.clone();
        if self.names.get(&key).is_some_and(|known| *known != uid) {
            self.forget(&key);
        }
        self.names.insert(key, uid.clone());
        let before = self.pods.get(&uid).map(|tracked| tracked.view.clone());
        match self.pods.get_mut(&uid) {
            Some(tracked) => tracked.see(view),
            None => {
                self.pods.insert(uid.clone(), Tracked::new(view));
            }
        }
        self.tell_prober(&uid, before.as_ref());
        self.write(&uid);
    }

    /// Tells the prober what changed since `before`.
    fn tell_prober(&self, uid: &Arc<str>, before: Option<&View>) {
        let Some(Tracked { view, .. }) = self.pods.get(uid) else {
            return;
        };
        let target = match &view.target {
            Ok(target) => target,
            Err(error) => {
                if before.is_none_or(|before| before.target != view.target) {
                    self.prober.remove_pod(uid);
                    self.complain(view, error);
                }
                return;
            }
        };
        let fresh = before.is_none_or(|before| before.target.is_err());
        if fresh || before.is_some_and(|before| before.target != view.target) {
            self.prober.set_pod(target.clone());
        }
        for container in &target.containers {
            let name = &*container.name;
            let was = before
                .filter(|_| !fresh)
                .and_then(|before| before.running.get(name));
            let is = view.running.get(name);
            if was.map(|run| &run.id) == is.map(|run| &run.id) {
                continue;
            }
            if was.is_some() {
                self.prober.container_stopped(uid, name);
            }
            if let Some(run) = is {
                let started = self.started(view, run.since, before.is_none());
                self.prober.container_started(uid, name, started);
            }
        }
        if view.terminating && before.is_none_or(|before| !before.terminating) {
            self.prober.pod_terminating(uid);
        }
    }

    fn started(&self, view: &View, since: Option<Timestamp>, first_sight: bool) -> Started {
        let age = since.and_then(|since| Duration::try_from(Timestamp::now().duration_since(since)).ok());
        let ready = view.condition.as_ref().is_some_and(|condition| condition.met);
        let found = first_sight && (ready || !self.synced);
        Started {
            age: age.unwrap_or_default().saturating_sub(CLOCK_GRAIN),
            previous: found.then_some(Reported { ready, started: true }),
        }
    }

    fn complain(&self, view: &View, error: &BadAnnotation) {
        tracing::warn!(namespace = %view.namespace, pod = %view.name, %error, "the pod cannot be probed");
        self.record(view, "InvalidProbeAnnotation", error.to_string());
    }

    fn record(&self, view: &View, reason: &str, message: String) {
        self.recorder.record(News {
            subject: EventSubject {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                namespace: view.namespace.to_string(),
                name: view.name.to_string(),
                uid: view.uid.to_string(),
            },
            severity: Severity::Warning,
            reason: reason.to_owned(),
            message,
        });
    }

    fn reported(&mut self, report: Report) {
        let (Report::Verdict { subject, .. } | Report::Notice { subject, .. }) = &report;
        let Subject {
            pod_uid, container, ..
        } = subject;
        let Some(tracked) = self.pods.get_mut(pod_uid) else {
            return;
        };
        if let Report::Verdict {
            verdict, at, message, ..
        } = &report
        {
            tracked
                .verdicts
                .insert(container.to_string(), (*verdict, message.clone()));
            tracked.changed = Some(*at);
            let uid = pod_uid.clone();
            self.write(&uid);
        } else if let Some((reason, message)) = report.event() {
            // A failing check before the first success explains why the pod is not ready yet.
            if let Report::Notice { message, .. } = &report
                && let Some((verdict, said)) = tracked.verdicts.get_mut(&**container)
                && *verdict != pointsman_probe_io::Verdict::Success
            {
                said.clone_from(message);
            }
            let view = tracked.view.clone();
            self.record(&view, reason, message);
        }
    }

    /// Writes the condition of a pod if it has to be and nobody does already.
    fn write(&mut self, uid: &Arc<str>) {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(condition) = tracked.to_write() else {
            return;
        };
        tracked.writing = true;
        let view = &tracked.view;
        let before = view.condition.as_ref();
        let patch = GatePatch {
            uid: &view.uid,
            kind: GATE,
            holds: condition.met,
            reason: &condition.reason,
            message: &condition.message,
            since: before
                .is_none_or(|before| before.met != condition.met)
                .then(|| tracked.changed.unwrap_or_else(Timestamp::now)),
        };
        let patch = Patch::Strategic(patch.to_json().to_string().into_bytes());
        let api = self.client.api(Resource::PODS, Some(&view.namespace));
        let (uid, name, written) = (uid.clone(), tracked.view.name.clone(), self.written.clone());
        let (changed, pause) = (tracked.changed.take(), pause(tracked.failures));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let outcome = api.patch_status::<PodManifest>(&name, patch).await;
            // Nobody listens once we stop.
            let _ = written.send(Write {
                uid,
                condition,
                changed,
                outcome: outcome.map(|pod| pod.metadata.revision()),
            });
        });
    }

    fn wrote(&mut self, write: Write) {
        let Some(tracked) = self.pods.get_mut(&write.uid) else {
            return;
        };
        tracked.writing = false;
        match write.outcome {
            Ok(version) => {
                tracked.failures = 0;
                tracked.written = version;
                tracked.view.condition = Some(write.condition);
                if let Some(changed) = write.changed {
                    let took = Duration::try_from(Timestamp::now().duration_since(changed));
                    self.metrics.to_api.observe(took.unwrap_or_default());
                }
            }
            // The pod is gone, or another has its name: the watch will show it.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => return,
            Err(error) => {
                tracked.failures += 1;
                self.metrics.failed.inc();
                tracing::warn!(namespace = %tracked.view.namespace, pod = %tracked.view.name, %error, "cannot write the condition");
            }
        }
        self.write(&write.uid);
    }
}

fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        failures => (Duration::from_millis(50) * 2u32.pow(failures.min(10))).min(MAX_PAUSE),
    }
}
