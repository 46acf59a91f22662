//! What does the agent keep of one pod, and how does its report reach the API?
//!
//! At most one patch of a pod is under way. What changes meanwhile is in the next one, which leaves as
//! soon as the first is answered, so that a pod that flaps costs one request at a time and the last state
//! always arrives. The first report waits a moment for the containers to run: what a pod is while it starts
//! would otherwise be two more requests for each of many pods that start at once.

use crate::agent::{FoundLog, Input, LogError};
use crate::metrics::Metrics;
use crate::probing::Followed;
use crate::streams::Place;
use crate::tokens::Tokens;
use crate::translate::attachable;
use crate::work::{Files, Job, Tools};
use pointsman_api_client::backoff::Backoff;
use pointsman_api_client::{ApiError, DeleteOptions, Patch, Resource};
use pointsman_model::Revision;
use pointsman_objects::names::CHANGE_TIME_ANNOTATION;
use pointsman_objects::pod::Phase;
use pointsman_objects::pod_manifest::PodManifest;
use pointsman_objects::pod_status::PodStatus;
use pointsman_pod_lifecycle::{Found, Machine, Now, Settings};
use pointsman_runtime::Attachable;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};

/// How long the first report of a pod waits for its containers to run.
const SETTLE: Duration = Duration::from_millis(300);

/// A status patch and its answer.
pub(crate) struct Sent {
    status: PodStatus,
    began: Now,
    /// The version that the patch made.
    answer: Result<Revision, ApiError>,
}

pub(crate) struct Managed {
    pub(crate) manifest: Arc<PodManifest>,
    /// The object as the API sent it.
    pub(crate) text: Box<RawValue>,
    pub(crate) machine: Machine,
    pub(crate) probes: Followed,
    pub(crate) logs: BTreeMap<(String, u32), PathBuf>,
    pub(crate) wake: Option<Duration>,
    /// What it requests of the node counts.
    pub(crate) admitted: bool,
    /// The object is gone from the API.
    pub(crate) gone: bool,
    pub(crate) turn: Arc<Mutex<()>>,
    /// The files that volumes hold.
    files: Files,
    /// The tokens that it has.
    tokens: Tokens,
    /// What the API is known to have.
    sent: Option<PodStatus>,
    /// The version that our last patch made; older events say nothing about it.
    written: Revision,
    under_way: bool,
    deleting: bool,
    backoff: Backoff,
    retry_at: Option<Duration>,
    /// Until when the first report waits.
    settles_at: Option<Duration>,
    born: Now,
    started: bool,
    /// Which runs are followed by readers of their logs.
    followed: BTreeMap<(String, u32), watch::Sender<bool>>,
}

impl Managed {
    pub(crate) fn new(
        manifest: PodManifest,
        text: Box<RawValue>,
        settings: Settings,
        found: &Found,
        logs: BTreeMap<(String, u32), PathBuf>,
        now: Now,
    ) -> Self {
        Self {
            machine: Machine::new(&manifest, settings, found, now),
            started: manifest.status.start_time.is_some(),
            manifest: Arc::new(manifest),
            text,
            probes: Followed::default(),
            logs,
            wake: None,
            // What runs already had its room before.
            admitted: found.ips.is_some(),
            gone: false,
            turn: Arc::default(),
            files: Arc::default(),
            tokens: Arc::default(),
            sent: None,
            written: Revision::default(),
            under_way: false,
            deleting: false,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)),
            retry_at: None,
            settles_at: None,
            born: now,
            followed: BTreeMap::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.manifest.metadata.name
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.manifest.metadata.namespace
    }

    pub(crate) fn job(&self, uid: &Arc<str>) -> Job {
        Job {
            uid: uid.clone(),
            pod: self.manifest.clone(),
            ips: self.machine.ips().into(),
            turn: self.turn.clone(),
            files: self.files.clone(),
            tokens: self.tokens.clone(),
        }
    }

    /// Takes in the object as it is now.
    pub(crate) fn update(&mut self, manifest: PodManifest, text: Box<RawValue>, now: Now) {
        self.machine.update(&manifest, now);
        self.text = text;
        self.manifest = Arc::new(manifest);
        // Others may have written our condition: the node's controller does when it cannot see us.
        let Some(sent) = &self.sent else { return };
        if self.under_way || self.manifest.metadata.revision() < self.written {
            return;
        }
        let ready = self.manifest.status.condition("Ready");
        let ready = ready.map(|ready| ready.is_true());
        if ready != Some(sent.is_ready()) {
            self.machine
                .readiness_overwritten(ready.unwrap_or(false), now.wall);
            self.sent = None;
        }
    }

    /// Sends the report if it says something new.
    pub(crate) fn report(&mut self, uid: &Arc<str>, tools: &Tools, now: Now) {
        let status = self.machine.status(now.mono);
        self.close_logs(&status);
        if !self.started && status.containers.iter().all(|container| container.started) {
            self.started = true;
            let took = now.mono.saturating_sub(self.born.mono);
            tools.metrics.pod_start.observe_duration(took);
        }
        self.settles_at = self.settles_at(&status, now.mono);
        let waits = self.settles_at.is_some() || self.retry_at.is_some_and(|at| at > now.mono);
        if self.gone || self.under_way || waits || self.sent.as_ref() == Some(&status) {
            return;
        }
        self.under_way = true;
        self.retry_at = None;
        let patch = self
            .machine
            .patch(&status, &tools.host_ips, CHANGE_TIME_ANNOTATION)
            .to_json();
        let api = tools.client.api(Resource::PODS, Some(self.namespace()));
        let (name, uid, inputs) = (self.name().to_owned(), uid.clone(), tools.inputs.clone());
        tokio::spawn(async move {
            let body = Patch::Strategic(patch.to_string().into_bytes());
            let answer = api.patch_status::<PodManifest>(&name, body).await;
            let answer = answer.map(|pod| pod.metadata.revision());
            let sent = Box::new(Sent {
                status,
                began: now,
                answer,
            });
            let _ = inputs.send(Input::Sent { uid, sent });
        });
    }

    /// When the first report leaves, if it still waits for the containers.
    fn settles_at(&self, status: &PodStatus, now: Duration) -> Option<Duration> {
        let is_starting = self.sent.is_none() && status.phase == Phase::Pending && !self.machine.is_ending();
        let at = self.born.mono + SETTLE;
        (is_starting && at > now).then_some(at)
    }

    /// A patch was answered.
    pub(crate) fn answered(&mut self, sent: Sent, now: Now, metrics: &Metrics) {
        self.under_way = false;
        match sent.answer {
            Ok(version) => {
                self.backoff.reset();
                self.written = version;
                let took = now.mono.saturating_sub(sent.began.mono);
                metrics.status_sync.observe_duration(took);
                let before = self.sent.as_ref().and_then(|sent| sent.ready_changed);
                if let Some(at) = sent.status.ready_changed.filter(|at| Some(*at) != before)
                    && sent.status.is_ready() != self.sent.as_ref().is_some_and(PodStatus::is_ready)
                    && let Ok(delay) = Duration::try_from(now.wall.duration_since(at))
                {
                    metrics.probe_to_api.observe_duration(delay);
                }
                self.sent = Some(sent.status);
            }
            // A conflict may be another pod of the same name; the watch will show it, and nothing ends before that.
            Err(ApiError::NotFound(_)) => {
                self.gone = true;
                self.machine.vanish();
            }
            Err(error) => {
                let wait = self.backoff.next(fastrand::f64());
                tracing::warn!(pod = self.name(), %error, ?wait, "cannot write the status of a pod, trying again");
                self.retry_at = Some(now.mono + wait);
            }
        }
    }

    /// Deletes the object of a pod that is gone from the node. Returns whether nothing is left to do.
    pub(crate) fn finish(&mut self, uid: &Arc<str>, tools: &Tools, now: Now) -> bool {
        if !self.machine.is_over() {
            return false;
        }
        if self.gone {
            return true;
        }
        let waits = self.retry_at.is_some_and(|at| at > now.mono);
        let reported = self.sent.as_ref().is_some_and(|sent| sent.phase.is_final());
        if self.deleting || waits || self.under_way || !reported || !self.machine.is_deleted() {
            return false;
        }
        self.deleting = true;
        let api = tools.client.api(Resource::PODS, Some(self.namespace()));
        let (name, uid, inputs) = (self.name().to_owned(), uid.clone(), tools.inputs.clone());
        tokio::spawn(async move {
            let options = DeleteOptions::of(&uid).without_grace();
            let outcome = api.delete(&name, &options).await;
            let _ = inputs.send(Input::Deleted { uid, outcome });
        });
        false
    }

    /// The deletion was answered.
    pub(crate) fn deletion_answered(&mut self, outcome: Result<(), ApiError>, now: Now) {
        match outcome {
            // A finalizer may keep the object: then there is nothing more to do for it here.
            Ok(()) => {}
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => self.gone = true,
            Err(error) => {
                let wait = self.backoff.next(fastrand::f64());
                tracing::warn!(pod = self.name(), %error, ?wait, "cannot delete a pod that has ended, trying again");
                self.deleting = false;
                self.retry_at = Some(now.mono + wait);
            }
        }
    }

    pub(crate) fn next_wake(&self, now: Duration) -> Option<Duration> {
        let retry = self.retry_at.filter(|at| *at > now);
        let later = retry.into_iter().chain(self.settles_at);
        self.machine.wake(now).into_iter().chain(later).min()
    }

    /// Where a container's log is.
    pub(crate) fn log(&mut self, container: &str, previous: bool) -> Result<FoundLog, LogError> {
        if self.manifest.container(container).is_none() {
            return Err(LogError::NotFound(format!(
                "container {container:?} in pod {:?} is not available",
                self.name()
            )));
        }
        let runs = self.logs.keys().filter(|(name, _)| name == container);
        let last = runs.map(|(_, run)| *run).max();
        let run = if previous {
            last.and_then(|run| run.checked_sub(1))
        } else {
            last
        };
        let path = run.and_then(|run| self.logs.get(&(container.to_owned(), run)));
        let (Some(run), Some(path)) = (run, path) else {
            let pod = self.name();
            let which = if previous {
                format!("previous terminated container {container:?} in pod {pod:?} not found")
            } else {
                format!("container {container:?} in pod {pod:?} is waiting to start")
            };
            return Err(LogError::NotYet(which));
        };
        let alive = self.machine.running(container) == Some(run);
        let follower = self
            .followed
            .entry((container.to_owned(), run))
            .or_insert_with(|| watch::Sender::new(alive));
        follower.send_replace(alive);
        Ok(FoundLog {
            path: path.clone(),
            alive: follower.subscribe(),
        })
    }

    /// Where it runs, or one of its containers.
    pub(crate) fn place(&self, uid: Arc<str>, container: Option<&str>) -> Result<Place, LogError> {
        let Some(name) = container else {
            return Ok(Place {
                uid,
                run: 0,
                attachable: Attachable::default(),
            });
        };
        let Some(container) = self.manifest.container(name) else {
            let message = format!("container {name:?} in pod {:?} is not available", self.name());
            return Err(LogError::NotFound(message));
        };
        let run = self.machine.running(name);
        let run = run.ok_or_else(|| {
            LogError::NotYet(format!(
                "container {name:?} in pod {:?} is not running",
                self.name()
            ))
        })?;
        Ok(Place {
            uid,
            run,
            attachable: attachable(container),
        })
    }

    /// Tells readers of logs which runs have ended.
    fn close_logs(&mut self, status: &PodStatus) {
        if self.followed.is_empty() {
            return;
        }
        let ended = status.phase.is_final();
        let machine = &self.machine;
        self.followed.retain(|(container, run), sender| {
            let alive = !ended && machine.running(container) == Some(*run);
            sender.send_if_modified(|before| std::mem::replace(before, alive) != alive);
            alive || sender.receiver_count() > 0
        });
    }
}
