//! What does the prober have to know, and what do its verdicts mean to a pod?

use pointsman_objects::pod_manifest::PodManifest;
use pointsman_pod_lifecycle::{ContainerFact, Fact, Machine};
use pointsman_probe_io::{
    ExecOutcome, ExecRequest, ExecRunner, Kind, Prober, Reading, Reported, Started, Subject, Verdict,
};
use pointsman_runtime::{ExecEnd, Runtime, RuntimeError};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::work::chain;

/// What the prober knows about one pod.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Whether it has the pod's probes.
    set: bool,
    /// Where they go: another sandbox has another address.
    address: Option<IpAddr>,
    /// Containers that run, and which run.
    running: BTreeMap<String, u32>,
    terminating: bool,
}

/// A container of a pod.
type Key = (Arc<str>, String);

/// Which run of each container is alive, for commands of exec probes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<BTreeMap<Key, u32>>>);

impl Runs {
    fn set(&self, uid: &Arc<str>, container: &str, run: Option<u32>) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (uid.clone(), container.to_owned());
        match run {
            Some(run) => runs.insert(key, run),
            None => runs.remove(&key),
        };
    }

    fn get(&self, uid: &str, container: &str) -> Option<u32> {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(&(Arc::from(uid), container.to_owned())).copied()
    }
}

/// The prober as pods use it.
pub(crate) struct Probing {
    pub(crate) prober: Prober,
    pub(crate) reading: Reading,
    pub(crate) runs: Runs,
}

fn has_probes(pod: &PodManifest) -> bool {
    pod.all_containers()
        .any(|container| Kind::ALL.iter().any(|kind| kind.of(container).is_some()))
}

impl Probing {
    /// Tells the prober what changed about a pod. Containers that the agent found running keep what was
    /// last said about them until a probe says otherwise.
    pub(crate) fn follow(&self, uid: &Arc<str>, pod: &PodManifest, machine: &Machine, known: &mut Followed) {
        if !has_probes(pod) {
            return;
        }
        let now: BTreeMap<String, u32> = machine
            .probed()
            .map(|probed| (probed.container.to_owned(), probed.run))
            .collect();
        let ended: Vec<String> = known
            .running
            .iter()
            .filter(|(name, run)| now.get(*name) != Some(run))
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            known.running.remove(&name);
            self.runs.set(uid, &name, None);
            self.prober.container_stopped(uid, &name);
        }
        for probed in machine.probed() {
            if known.running.contains_key(probed.container) {
                continue;
            }
            let address = machine.ips().first().copied();
            if !known.set || known.address != address {
                (known.set, known.address) = (true, address);
                self.prober.set_pod(self.reading.pod(pod, address));
            }
            known.running.insert(probed.container.to_owned(), probed.run);
            self.runs.set(uid, probed.container, Some(probed.run));
            let previous = probed.found.then_some(Reported {
                ready: probed.ready == Some(true),
                started: probed.started == Some(true),
            });
            let started = Started {
                age: age(probed.started_at),
                previous,
            };
            self.prober.container_started(uid, probed.container, started);
        }
        if machine.is_ending() && known.set && !known.terminating {
            known.terminating = true;
            self.prober.pod_terminating(uid);
        }
    }

    /// The pod is gone.
    pub(crate) fn forget(&self, uid: &Arc<str>, known: &Followed) {
        for name in known.running.keys() {
            self.runs.set(uid, name, None);
        }
        if known.set {
            self.prober.remove_pod(uid);
        }
    }
}

fn age(since: jiff::Timestamp) -> Duration {
    Duration::try_from(jiff::Timestamp::now().duration_since(since)).unwrap_or_default()
}

/// What a verdict means to the pod: nothing, if it is about a run that is over.
pub(crate) fn fact(
    machine: &Machine,
    subject: &Subject,
    verdict: Verdict,
    at: jiff::Timestamp,
) -> Option<Fact> {
    let probed = machine
        .probed()
        .find(|probed| *probed.container == *subject.container)?;
    let healthy = match verdict {
        Verdict::Success => true,
        Verdict::Failure => false,
        Verdict::Unknown => return None,
    };
    let kind = subject.kind;
    let fact = ContainerFact::Probed { kind, healthy, at };
    (at >= probed.started_at).then(|| fact.about(probed.container, probed.run))
}

/// Runs the commands of exec probes through the runtime.
pub(crate) struct Commands {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) runs: Runs,
}

impl ExecRunner for Commands {
    fn exec(&self, request: ExecRequest) -> Pin<Box<dyn Future<Output = ExecOutcome> + Send + '_>> {
        Box::pin(async move {
            let Some(run) = self.runs.get(&request.pod_uid, &request.container) else {
                return ExecOutcome::Failed("the container does not run".to_owned());
            };
            let id = match crate::translate::container_id(&request.pod_uid, &request.container, run) {
                Ok(id) => id,
                Err(refused) => return ExecOutcome::Failed(refused.message),
            };
            let command = request.command.to_vec();
            let wanted = pointsman_runtime::ExecRequest::new(command, Some(request.timeout));
            match self.runtime.exec(&id, wanted).await {
                Ok(outcome) => match outcome.end {
                    ExecEnd::Exited(code) => ExecOutcome::Exited {
                        code,
                        output: outcome.output,
                    },
                    ExecEnd::Signaled(signal) => ExecOutcome::Exited {
                        code: 128 + signal,
                        output: outcome.output,
                    },
                    ExecEnd::TimedOut => ExecOutcome::TimedOut,
                },
                // A command that is not there fails, as it does in a shell.
                Err(RuntimeError::CannotStart { reason, message }) => ExecOutcome::Exited {
                    code: reason.exit_code(),
                    output: message.into_bytes(),
                },
                Err(error) => ExecOutcome::Failed(chain(&error)),
            }
        })
    }
}
