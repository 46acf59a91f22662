//! How are a machine's actions carried out?
//!
//! Each action is a task that ends with a fact. Requests to the runtime about one pod are made one after
//! another; commands inside of containers overlap with everything.

use crate::agent::Input;
use crate::clock::timestamp;
use crate::fetch;
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::translate::{self, Place, Refused};
use crate::volumes;
use http::Uri;
use pointsman_api_client::{ApiError, Client};
use pointsman_objects::value::{at, int_at, list_at, str_at};
use pointsman_pod_lifecycle::env::Holder;
use pointsman_pod_lifecycle::{Action, Cause, Exit, Fact};
use pointsman_runtime::{
    ContainerStatus, ExecEnd, ExecRequest, ExitCause, FileSet, PodUid, Runtime, RuntimeError, SandboxSpec,
    Signal, VolumeName, VolumeSource,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

/// The longest a post-start hook may take (the kubelet sets no bound; a hook that hangs would hold the
/// pod for ever).
const POST_START: Duration = Duration::from_secs(600);
/// The longest any hook may take, whatever the pod's grace.
const LONGEST_HOOK: Duration = Duration::from_secs(24 * 3600);

/// What carrying out needs.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) client: Client,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) gate: Option<Gate>,
    pub(crate) host_ips: Arc<[IpAddr]>,
    pub(crate) metrics: Metrics,
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
}

/// One pod as work sees it.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) uid: Arc<str>,
    pub(crate) pod: Arc<Value>,
    pub(crate) ips: Arc<[IpAddr]>,
    /// Held during requests to the runtime, which takes one at a time for each pod.
    pub(crate) turn: Arc<Mutex<()>>,
    /// The files that volumes hold.
    pub(crate) files: Files,
}

/// The files that a pod's volumes hold, as the runtime was last told.
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
            Action::Start { container, run } => self.start(&job, container, run).await,
            Action::PostStart { container, run } => {
                let outcome = self.hook(&job, &container, run, "postStart", POST_START).await;
                Some(Fact::PostStart {
                    container,
                    run,
                    outcome,
                })
            }
            Action::PreStop {
                container,
                run,
                within,
            } => {
                let outcome = self.hook(&job, &container, run, "preStop", within).await;
                Some(Fact::PreStop {
                    container,
                    run,
                    outcome,
                })
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
            Action::Tell(_) => None,
        }
    }

    async fn make_sandbox(&self, job: &Job) -> Fact {
        let failed = |message: String| Fact::SandboxFailed { message };
        let objects = match self.objects(job, &volumes::volume_objects(&job.pod)).await {
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
                tracing::debug!(uid = %job.uid, error, "volumes are not refreshed");
            }
        });
    }

    async fn refresh_files(&self, job: &Job) -> Result<(), String> {
        let objects = self.objects(job, &volumes::volume_objects(&job.pod)).await;
        let objects = objects.map_err(|error| error.to_string())?;
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

    async fn start(&self, job: &Job, container: String, run: u32) -> Option<Fact> {
        let refused = |refused: Refused| Fact::Refused {
            container: container.clone(),
            run,
            reason: refused.reason.into(),
            message: refused.message,
        };
        let needed = translate::find_container(&job.pod, &container)
            .map(translate::container_objects)
            .unwrap_or_default();
        let objects = match self.objects(job, &needed).await {
            Ok(objects) => objects,
            Err(error) => {
                return Some(refused(Refused {
                    reason: "CreateContainerConfigError",
                    message: error.to_string(),
                }));
            }
        };
        let spec = match translate::container(&self.place(job), &container, run, &objects) {
            Ok(spec) => spec,
            Err(error) => return Some(refused(error)),
        };
        self.forget_old_run(job, &container, run).await;
        match self.timed("start_container", job, self.runtime.start(spec)).await {
            Ok(state) => {
                let _ = self.inputs.send(Input::Log {
                    uid: job.uid.clone(),
                    container: container.clone(),
                    run,
                    path: state.log,
                });
                match state.status {
                    // The runtime's event says the same; whichever comes first counts.
                    ContainerStatus::Running { started_at, .. } => Some(Fact::Started {
                        container,
                        run,
                        at: timestamp(started_at),
                    }),
                    ContainerStatus::Exited(exit) => {
                        let at = timestamp(exit.started_at);
                        let uid = job.uid.clone();
                        let started = Fact::Started {
                            container: container.clone(),
                            run,
                            at,
                        };
                        let _ = self.inputs.send(Input::Fact { uid, fact: started });
                        Some(Fact::Exited {
                            container,
                            run,
                            exit: exit_of(&exit),
                        })
                    }
                }
            }
            Err(RuntimeError::Refused { reason, message }) => Some(refused(Refused {
                reason: reason.reason(),
                message,
            })),
            Err(RuntimeError::CannotStart { reason, message }) => Some(Fact::StartFailed {
                container,
                run,
                code: reason.exit_code(),
                message,
            }),
            Err(error) => Some(refused(Refused {
                reason: "CreateContainerError",
                message: chain(&error),
            })),
        }
    }

    /// The run before the last one and its log go; `kubectl logs --previous` shows one run back.
    async fn forget_old_run(&self, job: &Job, container: &str, run: u32) {
        let Some(old) = run.checked_sub(2) else { return };
        if let Ok(id) = translate::container_id(&job.uid, container, old) {
            let removed = self.runtime.remove_container(&id);
            if let Err(error) = self.timed("remove_container", job, removed).await {
                tracing::warn!(container, error = %chain(&error), "an old run could not be removed");
            }
        }
    }

    async fn hook(
        &self,
        job: &Job,
        container: &str,
        run: u32,
        which: &str,
        within: Duration,
    ) -> Result<(), String> {
        let within = within.min(LONGEST_HOOK);
        let spec = translate::find_container(&job.pod, container);
        let Some(hook) = spec.and_then(|spec| at(spec, &["lifecycle", which])) else {
            return Ok(());
        };
        if let Some(seconds) = int_at(hook, &["sleep", "seconds"]) {
            let wanted = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            tokio::time::sleep(wanted.min(within)).await;
            return Ok(());
        }
        if at(hook, &["httpGet"]).is_some() {
            return self
                .http_hook(job, spec.unwrap_or(&Value::Null), hook, within)
                .await;
        }
        let command: Vec<String> = list_at(hook, &["exec", "command"])
            .iter()
            .filter_map(|word| word.as_str().map(str::to_owned))
            .collect();
        if command.is_empty() {
            return Err(format!("the {which} hook has no handler that this node knows"));
        }
        let id = translate::container_id(&job.uid, container, run).map_err(|error| error.message)?;
        let request = ExecRequest::new(command, Some(within));
        let outcome = self
            .runtime
            .exec(&id, request)
            .await
            .map_err(|error| chain(&error))?;
        let output = String::from_utf8_lossy(&outcome.output).trim().to_owned();
        match outcome.end {
            ExecEnd::Exited(0) => Ok(()),
            ExecEnd::Exited(code) => Err(format!("exit code {code}: {output}")),
            ExecEnd::Signaled(signal) => Err(format!("ended by signal {signal}: {output}")),
            ExecEnd::TimedOut => Err(format!("took longer than {within:?}")),
        }
    }

    async fn http_hook(&self, job: &Job, spec: &Value, hook: &Value, within: Duration) -> Result<(), String> {
        let get = at(hook, &["httpGet"]).unwrap_or(&Value::Null);
        let host = match (str_at(get, &["host"]), job.ips.first()) {
            ("", Some(IpAddr::V6(ip))) => format!("[{ip}]"),
            ("", Some(ip)) => ip.to_string(),
            (host, _) => host.to_owned(),
        };
        let named = |name: &str| {
            let ports = list_at(spec, &["ports"]).iter();
            let mut found = ports.filter(|port| str_at(port, &["name"]) == name);
            found.next().and_then(|port| int_at(port, &["containerPort"]))
        };
        let port = int_at(get, &["port"]).or_else(|| named(str_at(get, &["port"])));
        let port = port.ok_or("the hook names a port that the container does not have")?;
        let path = str_at(get, &["path"]).trim_start_matches('/');
        let scheme = str_at(get, &["scheme"]).to_lowercase();
        let scheme = if scheme.is_empty() { "http" } else { &scheme };
        let text = format!("{scheme}://{host}:{port}/{path}");
        let uri: Uri = text.parse().map_err(|error| format!("{text}: {error}"))?;
        let headers: Vec<(String, String)> = list_at(get, &["httpHeaders"])
            .iter()
            .map(|header| {
                (
                    str_at(header, &["name"]).into(),
                    str_at(header, &["value"]).into(),
                )
            })
            .collect();
        let (status, _) = fetch::get(&uri, &headers, within).await?;
        if status.is_client_error() || status.is_server_error() {
            return Err(format!("{uri} answered {status}"));
        }
        Ok(())
    }

    async fn ask_gate(&self, job: &Job) {
        let Some(gate) = &self.gate else { return };
        let namespace = str_at(&job.pod, &["metadata", "namespace"]);
        let name = str_at(&job.pod, &["metadata", "name"]);
        let answer = gate.ask(namespace, name, &job.uid).await;
        self.metrics.gate_outcomes.with(&[answer.outcome]).inc();
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
        let spec = translate::find_container(&job.pod, container);
        let wanted = spec.map_or("", |spec| str_at(spec, &["lifecycle", "stopSignal"]));
        let signal = Signal::from_name(wanted).unwrap_or(Signal::TERM);
        let sent = self
            .timed("stop_container", job, self.runtime.signal(&id, signal))
            .await;
        match sent {
            // Its exit is told by the runtime's event.
            Ok(()) | Err(RuntimeError::NotRunning(_)) => {}
            Err(error) => tracing::warn!(container, error = %chain(&error), "a stop signal was not sent"),
        }
    }

    /// Kills, and tells the exit in case that the runtime's own word of it was lost.
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
                tracing::error!(container, error = %chain(&error), "a container cannot be killed");
                return None;
            }
        };
        Some(Fact::Exited { container, run, exit })
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

    async fn objects(&self, job: &Job, needed: &[(Holder, String)]) -> Result<Objects, ApiError> {
        if needed.is_empty() {
            return Ok(Objects::default());
        }
        let namespace = str_at(&job.pod, &["metadata", "namespace"]);
        Objects::read(&self.client, namespace, needed).await
    }

    fn place<'a>(&'a self, job: &'a Job) -> Place<'a> {
        Place {
            pod: &job.pod,
            pod_ips: &job.ips,
            host_ips: &self.host_ips,
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
