//! How are a machine's actions carried out?
//!
//! Each action is a task that ends with a fact. Requests to the runtime about one pod are made one after
//! another; commands inside of containers overlap with everything.

use crate::agent::Input;
use crate::clock::timestamp;
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::tokens::{self, ApiServer, Tokens};
use crate::translate::{self, Place, Refused, config_error};
use crate::volumes;
use http::Uri;
use pointsman_api_client::{ApiError, Client};
use pointsman_objects::pod_manifest::{Container, Exec, Hook, HttpGet, PodManifest};
use pointsman_pod_lifecycle::env::{self, Holder};
use pointsman_pod_lifecycle::resolver::ClusterDns;
use pointsman_pod_lifecycle::{Action, Cause, ContainerFact, Exit, Fact};
use pointsman_runtime::process::Abilities;
use pointsman_runtime::{
    ContainerSpec, ContainerState, ContainerStatus, ExecEnd, ExecRequest, ExitCause, FileSet, PodUid,
    Runtime, RuntimeError, SandboxSpec, Signal, VolumeName, VolumeSource,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

/// The longest a post-start hook may take (the kubelet sets no bound; a hook that hangs would hold the
/// pod forever).
const POST_START: Duration = Duration::from_secs(600);
/// The longest any hook may take, whatever the pod's grace.
const LONGEST_HOOK: Duration = Duration::from_secs(24 * 3600);
/// The most bytes of a hook's answer that are read, as nobody looks at them.
const HOOK_ANSWER: usize = 64 << 10;

/// What carrying out needs.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) client: Client,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) gate: Option<Gate>,
    /// Set if limits that the runtime cannot enforce are left out with a warning.
    pub(crate) lenient: Option<Abilities>,
    pub(crate) host_ips: Arc<[IpAddr]>,
    pub(crate) dns: Arc<ClusterDns>,
    pub(crate) metrics: Metrics,
    /// Where pods find the API server.
    pub(crate) api_server: Arc<ApiServer>,
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
}

/// One pod as work sees it.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) uid: Arc<str>,
    pub(crate) pod: Arc<PodManifest>,
    pub(crate) ips: Arc<[IpAddr]>,
    /// Held during requests to the runtime, which takes one at a time for each pod.
    pub(crate) turn: Arc<Mutex<()>>,
    /// The files that volumes hold.
    pub(crate) files: Files,
    /// The tokens that it has.
    pub(crate) tokens: Tokens,
}

/// The files that a pod's volumes hold, as the runtime last got them.
pub(crate) type Files = Arc<Mutex<BTreeMap<VolumeName, FileSet>>>;

impl Tools {
    /// Carries out an action; facts follow.
    pub(crate) fn begin(&self, job: Job, action: Action) {
        let tools = self.clone();
        tokio::spawn(async move {
            let uid = job.uid.clone();
            if let Some(fact) = tools.carry_out(job, action).await {
                // Nobody listens only while the agent stops.
                let _ = tools.inputs.send(Input::Fact { uid, fact });
            }
        });
    }

    async fn carry_out(&self, job: Job, action: Action) -> Option<Fact> {
        match action {
            Action::MakeSandbox => Some(self.make_sandbox(&job).await),
            Action::Start { container, run } => {
                let fact = self.start(&job, &container, run).await;
                Some(fact.about(container, run))
            }
            Action::PostStart { container, run } => {
                let hooks = job.pod.container(&container).map(|spec| &spec.lifecycle);
                let hook = hooks.and_then(|hooks| hooks.post_start.as_ref());
                let outcome = self.hook(&job, &container, run, hook, POST_START).await;
                Some(ContainerFact::PostStart(outcome).about(container, run))
            }
            Action::PreStop {
                container,
                run,
                within,
            } => {
                let hooks = job.pod.container(&container).map(|spec| &spec.lifecycle);
                let hook = hooks.and_then(|hooks| hooks.pre_stop.as_ref());
                let outcome = self.hook(&job, &container, run, hook, within).await;
                Some(ContainerFact::PreStop(outcome).about(container, run))
            }
            Action::AskGate => {
                self.ask_gate(&job).await;
                Some(Fact::GateOpened)
            }
            Action::Signal { container, run } => {
                self.signal(&job, &container, run).await;
                None
            }
            Action::Kill { container, run } => self.kill(&job, container, run).await,
            Action::TearDown => Some(self.tear_down(&job).await),
            Action::Record(_) => None,
        }
    }

    async fn make_sandbox(&self, job: &Job) -> Fact {
        let failed = |message: String| Fact::SandboxFailed { message };
        let objects = match self.volume_objects(job).await {
            Ok(objects) => objects,
            Err(error) => return failed(format!("reading what volumes need: {error}")),
        };
        let place = self.place(job);
        let spec = match translate::sandbox(&place, &objects) {
            Ok(spec) => spec,
            Err(refused) => return failed(refused.message),
        };
        let host_network = spec.network == pointsman_runtime::Network::Host;
        *job.files.lock().await = given_files(&spec);
        let made = self
            .timed("run_podsandbox", job, self.runtime.open_sandbox(spec))
            .await;
        match made {
            Ok(_) if host_network => Fact::SandboxUp {
                ips: self.host_ips.to_vec(),
            },
            Ok(sandbox) => Fact::SandboxUp {
                ips: sandbox.addresses,
            },
            Err(error) => failed(chain(&error)),
        }
    }

    /// Looks whether the objects that volumes are made of have changed, and writes the new files.
    pub(crate) fn refresh(&self, job: Job) {
        let tools = self.clone();
        tokio::spawn(async move {
            if let Err(error) = tools.refresh_files(&job).await {
                // What is missing now may come back; the old files stay until then.
                tracing::debug!(uid = %job.uid, error, "cannot refresh the files of volumes");
            }
        });
    }

    async fn refresh_files(&self, job: &Job) -> Result<(), String> {
        let objects = self
            .volume_objects(job)
            .await
            .map_err(|error| error.to_string())?;
        let spec = translate::sandbox(&self.place(job), &objects).map_err(|refused| refused.message)?;
        let mut known = job.files.lock().await;
        for (volume, files) in given_files(&spec) {
            if known.get(&volume) == Some(&files) {
                continue;
            }
            let update = self.runtime.update_files(&spec.pod, &volume, files.clone());
            let updated = self.timed("update_files", job, update).await;
            updated.map_err(|error| chain(&error))?;
            known.insert(volume, files);
        }
        Ok(())
    }

    async fn start(&self, job: &Job, container: &str, run: u32) -> ContainerFact {
        let refused = |reason: &str, message: String| ContainerFact::Refused {
            reason: reason.into(),
            message,
        };
        let mut spec = match self.container_spec(job, container, run).await {
            Ok(spec) => spec,
            Err(Refused { reason, message }) => return refused(reason, message),
        };
        self.leave_out_limits(job, container, &mut spec);
        self.forget_old_run(job, container, run).await;
        match self.timed("start_container", job, self.runtime.start(spec)).await {
            Ok(state) => self.started(job, container, run, state),
            Err(RuntimeError::Refused { reason, message }) => refused(reason.reason(), message),
            Err(RuntimeError::CannotStart { reason, message }) => ContainerFact::StartFailed {
                code: reason.exit_code(),
                message,
            },
            Err(error) => refused("CreateContainerError", chain(&error)),
        }
    }

    /// Where that is allowed, leaves out limits that would be refused, and says so.
    fn leave_out_limits(&self, job: &Job, container: &str, spec: &mut ContainerSpec) {
        let Some(abilities) = self.lenient else { return };
        for resource in abilities.unenforceable(spec.limits) {
            match resource {
                "cpu" => spec.limits.cpu_millis = None,
                _ => spec.limits.memory_bytes = None,
            }
            let message = format!(
                "Container {container} runs without its {resource} limit: this node has no {resource} controller of cgroups"
            );
            let uid = job.uid.clone();
            let _ = self.inputs.send(Input::Warning {
                uid,
                reason: "LimitNotEnforced",
                message,
            });
        }
    }

    async fn container_spec(&self, job: &Job, container: &str, run: u32) -> Result<ContainerSpec, Refused> {
        let needed = job.pod.container(container).map(env::needs).unwrap_or_default();
        let objects = self.objects(job, &needed).await;
        let mut objects = objects.map_err(|error| config_error(error.to_string()))?;
        objects.api_server = self.api_server.variables(&self.client).await;
        translate::container(&self.place(job), container, run, &objects)
    }

    /// The runtime's events say the same; whichever comes first counts.
    fn started(&self, job: &Job, container: &str, run: u32, state: ContainerState) -> ContainerFact {
        let _ = self.inputs.send(Input::Log {
            uid: job.uid.clone(),
            container: container.to_owned(),
            run,
            path: state.log,
        });
        let started = |at| ContainerFact::Started { at: timestamp(at) };
        match state.status {
            ContainerStatus::Running { started_at, .. } => started(started_at),
            ContainerStatus::Exited(exit) => {
                let _ = self.inputs.send(Input::Fact {
                    uid: job.uid.clone(),
                    fact: started(exit.started_at).about(container, run),
                });
                ContainerFact::Exited(exit_of(&exit))
            }
        }
    }

    /// The run before the last one and its log go; `kubectl logs --previous` shows one run back.
    async fn forget_old_run(&self, job: &Job, container: &str, run: u32) {
        let Some(old) = run.checked_sub(2) else { return };
        if let Ok(id) = translate::container_id(&job.uid, container, old) {
            let removed = self.runtime.remove_container(&id);
            if let Err(error) = self.timed("remove_container", job, removed).await {
                tracing::warn!(container, error = %chain(&error), "cannot remove an old run of a container");
            }
        }
    }

    async fn hook(
        &self,
        job: &Job,
        container: &str,
        run: u32,
        hook: Option<&Hook>,
        within: Duration,
    ) -> Result<(), String> {
        let within = within.min(LONGEST_HOOK);
        match hook {
            None => Ok(()),
            Some(Hook {
                sleep: Some(sleep), ..
            }) => {
                let wanted = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
                tokio::time::sleep(wanted.min(within)).await;
                Ok(())
            }
            Some(Hook {
                http_get: Some(get), ..
            }) => http_hook(job, container, get, within).await,
            Some(Hook { exec: Some(exec), .. }) if !exec.command.is_empty() => {
                self.exec_hook(job, container, run, exec, within).await
            }
            Some(_) => Err("the hook has no handler that this node knows".to_owned()),
        }
    }

    async fn exec_hook(
        &self,
        job: &Job,
        container: &str,
        run: u32,
        exec: &Exec,
        within: Duration,
    ) -> Result<(), String> {
        let id = translate::container_id(&job.uid, container, run).map_err(|error| error.message)?;
        let request = ExecRequest::new(exec.command.clone(), Some(within));
        let outcome = self.runtime.exec(&id, request).await;
        let outcome = outcome.map_err(|error| chain(&error))?;
        let output = String::from_utf8_lossy(&outcome.output).trim().to_owned();
        match outcome.end {
            ExecEnd::Exited(0) => Ok(()),
            ExecEnd::Exited(code) => Err(format!("exit code {code}: {output}")),
            ExecEnd::Signaled(signal) => Err(format!("ended by signal {signal}: {output}")),
            ExecEnd::TimedOut => Err(format!("took longer than {within:?}")),
        }
    }

    async fn ask_gate(&self, job: &Job) {
        let Some(gate) = &self.gate else { return };
        let metadata = &job.pod.metadata;
        let answer = gate.ask(&metadata.namespace, &metadata.name, &job.uid).await;
        self.metrics.gate_outcomes.with(&[answer.outcome.as_str()]).inc();
        self.metrics.gate_wait.observe_duration(answer.waited);
        let _ = self.inputs.send(Input::Gate {
            uid: job.uid.clone(),
            answer,
        });
    }

    async fn signal(&self, job: &Job, container: &str, run: u32) {
        let Ok(id) = translate::container_id(&job.uid, container, run) else {
            return;
        };
        let spec = job.pod.container(container);
        let wanted = spec.and_then(|spec| Signal::from_name(&spec.lifecycle.stop_signal));
        let signal = wanted.unwrap_or(Signal::TERM);
        let sent = self
            .timed("stop_container", job, self.runtime.signal(&id, signal))
            .await;
        match sent {
            // The runtime's event reports its exit.
            Ok(()) | Err(RuntimeError::NotRunning(_)) => {}
            Err(error) => tracing::warn!(container, error = %chain(&error), "cannot send the stop signal"),
        }
    }

    /// Kills, and reports the exit in case the runtime's own event was lost.
    async fn kill(&self, job: &Job, container: String, run: u32) -> Option<Fact> {
        let id = translate::container_id(&job.uid, &container, run).ok()?;
        let began = Instant::now();
        let stopped = self.runtime.stop(&id, Signal::KILL, Duration::ZERO).await;
        self.metrics
            .operation("kill_container", began.elapsed(), stopped.is_ok());
        let exit = match stopped {
            Ok(exit) => exit_of(&exit),
            // What the runtime does not know does not run.
            Err(RuntimeError::NoSuchContainer(_) | RuntimeError::NoSuchPod(_)) => Exit {
                code: 137,
                signal: None,
                cause: Cause::Lost,
                at: jiff::Timestamp::now(),
                message: String::new(),
            },
            Err(error) => {
                tracing::error!(container, error = %chain(&error), "cannot kill a container");
                return None;
            }
        };
        Some(ContainerFact::Exited(exit).about(container, run))
    }

    async fn tear_down(&self, job: &Job) -> Fact {
        let Ok(uid) = PodUid::try_new(&job.uid) else {
            return Fact::TornDown;
        };
        let removed = self.runtime.remove_pod(&uid);
        match self.timed("remove_podsandbox", job, removed).await {
            Ok(()) => Fact::TornDown,
            Err(error) => Fact::TearDownFailed {
                message: chain(&error),
            },
        }
    }

    /// Everything that the pod's volumes are made of.
    async fn volume_objects(&self, job: &Job) -> Result<Objects, ApiError> {
        let mut objects = self.objects(job, &volumes::volume_objects(&job.pod)).await?;
        objects.tokens = tokens::of(&self.client, &job.pod, &job.tokens).await?;
        // A node without such a file adds nothing to what its pods have.
        let host = tokio::fs::read_to_string("/etc/resolv.conf").await;
        objects.resolv_conf = host.unwrap_or_default();
        Ok(objects)
    }

    async fn objects(&self, job: &Job, needed: &[(Holder, String)]) -> Result<Objects, ApiError> {
        if needed.is_empty() {
            return Ok(Objects::default());
        }
        Objects::read(&self.client, &job.pod.metadata.namespace, needed).await
    }

    fn place<'a>(&'a self, job: &'a Job) -> Place<'a> {
        Place {
            pod: &job.pod,
            pod_ips: &job.ips,
            host_ips: &self.host_ips,
            dns: &self.dns,
        }
    }

    async fn timed<T>(
        &self,
        kind: &str,
        job: &Job,
        request: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let _turn = job.turn.lock().await;
        let began = Instant::now();
        let answer = request.await;
        self.metrics.operation(kind, began.elapsed(), answer.is_ok());
        answer
    }
}

async fn http_hook(job: &Job, container: &str, get: &HttpGet, within: Duration) -> Result<(), String> {
    let host = match (get.host.as_str(), job.ips.first()) {
        ("", Some(IpAddr::V6(ip))) => format!("[{ip}]"),
        ("", Some(ip)) => ip.to_string(),
        (host, _) => host.to_owned(),
    };
    let unknown = Container::default();
    let port = job.pod.container(container).unwrap_or(&unknown).port(&get.port)?;
    let scheme = match get.scheme.to_lowercase() {
        empty if empty.is_empty() => "http".to_owned(),
        scheme => scheme,
    };
    let text = format!("{scheme}://{host}:{port}/{}", get.path.trim_start_matches('/'));
    let uri: Uri = text.parse().map_err(|error| format!("{text}: {error}"))?;
    let headers = get.http_headers.iter();
    let headers: Vec<_> = headers
        .map(|header| (header.name.clone(), header.value.clone()))
        .collect();
    let (status, _) = pointsman_http::get(&uri, &headers, HOOK_ANSWER, within)
        .await
        .map_err(|error| error.to_string())?;
    if status.is_client_error() || status.is_server_error() {
        return Err(format!("{uri} answered {status}"));
    }
    Ok(())
}

/// The volumes whose files are given.
fn given_files(spec: &SandboxSpec) -> BTreeMap<VolumeName, FileSet> {
    let volumes = spec.volumes.iter();
    volumes
        .filter_map(|volume| match &volume.source {
            VolumeSource::Files(files) => Some((volume.name.clone(), files.clone())),
            _ => None,
        })
        .collect()
}

/// How a run ended, in the words of the machine.
pub(crate) fn exit_of(exit: &pointsman_runtime::Exit) -> Exit {
    Exit {
        code: exit.code,
        signal: exit.signal,
        cause: match exit.cause {
            ExitCause::Ended => Cause::Ended,
            ExitCause::OutOfMemory => Cause::OutOfMemory,
            ExitCause::Lost => Cause::Lost,
        },
        at: timestamp(exit.finished_at),
        message: exit.message.clone().unwrap_or_default(),
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
