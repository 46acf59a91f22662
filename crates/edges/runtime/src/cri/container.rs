//! How is a container started, stopped and asked to run a command?

use super::client::{failed, is_unknown};
use super::messages::{ContainerStatus as Seen, *};
use super::pod::time;
use super::{Inner, config, mounts};
use crate::process::blocking;
use crate::process::launch::binds;
use crate::process::pod::{remove_tree, sandbox_record};
use crate::process::record::{ContainerRecord, SandboxRecord};
use crate::process::volume;
use crate::shim::protocol::file;
use crate::{
    ContainerId, ContainerSpec, ContainerState, ContainerStatus, ExecEnd, ExecOutcome, ExecRequest, Exit,
    ExitCause, RuntimeError, Signal, StartFailure,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tonic::{Code, Status};

/// A container that was sent its stop signal is not killed by the runtime; when that is due is decided elsewhere.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a killed container may take to be called ended.
const KILL_WAIT: Duration = Duration::from_secs(30);
/// What a container may say about its end.
const LONGEST_MESSAGE: u64 = 4096;

impl Inner {
    pub(super) async fn start(self: &Arc<Self>, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        let id = spec.id.clone();
        if let Some(state) = self.table.get(&id) {
            return Ok(state);
        }
        // Whoever asks believes in a sandbox that is gone, also if that was reported before he had it.
        let sandbox = self.sandbox_name(&id.pod);
        let sandbox = sandbox.inspect_err(|_| self.table.sandbox_lost(&id.pod))?;
        let record = sandbox_record(&self.layout, &id.pod)?;
        let record = record.ok_or_else(|| RuntimeError::NoSuchPod(id.pod.clone()))?;
        let pod = config::sandbox(&record.spec, &self.layout, 0);
        let image = self.image(&spec, &pod).await?;
        let unstarted = self.names.lock().containers.get(&id).cloned();
        if let Some(name) = unstarted {
            self.remove(&name).await?;
        }
        let log = self.layout.log(&record.spec, &id);
        let known = ContainerRecord {
            log,
            labels: spec.labels.clone(),
        };
        let (inner, wanted, of_pod) = (self.clone(), spec.clone(), record.clone());
        let mounts = blocking(move || inner.make_run(&wanted, &of_pod)).await?;
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox,
            config: Some(config::container(
                &spec,
                &record.spec,
                &self.layout,
                image,
                mounts,
            )),
            sandbox_config: Some(pod),
        };
        let created: Result<CreateContainerResponse, _> =
            self.client.runtime("CreateContainer", request).await;
        let name = match created {
            Ok(created) => created.container_id,
            Err(status) => return Err(self.why_not_started(&id, &status).await),
        };
        let request = ContainerIdRequest {
            container_id: name.clone(),
        };
        if let Err(status) = self.client.runtime::<Empty>("StartContainer", request).await {
            self.remove(&name).await?;
            return Err(self.why_not_started(&id, &status).await);
        }
        self.names.lock().containers.insert(id.clone(), name.clone());
        let status = self.status(&id, &name).await?;
        let status = status.ok_or_else(|| RuntimeError::NoSuchContainer(id.clone()))?;
        self.publish(&id, known, &status);
        let state = self.table.get(&id);
        state.ok_or(RuntimeError::NoSuchContainer(id))
    }

    /// A container that does not start because its sandbox is gone has not failed itself.
    async fn why_not_started(&self, id: &ContainerId, status: &Status) -> RuntimeError {
        // A runtime that does not answer says by its first error what is wrong.
        let _ = self.look_at_sandboxes().await;
        match self.sandbox_name(&id.pod) {
            Err(gone) => gone,
            Ok(_) => cannot_start(status),
        }
    }

    /// Tells of a start, and of the end that may have come since.
    fn publish(&self, id: &ContainerId, known: ContainerRecord, status: &ContainerStatus) {
        let ContainerStatus::Exited(exit) = status else {
            self.table.insert(id, known, status.clone());
            return self.table.started(id);
        };
        let began = ContainerStatus::Running {
            pid: 0,
            started_at: exit.started_at,
        };
        self.table.insert(id, known, began);
        self.table.started(id);
        self.table.exited(id, exit.clone());
    }

    /// The files of one run.
    fn make_run(&self, spec: &ContainerSpec, pod: &SandboxRecord) -> Result<Vec<Mount>, RuntimeError> {
        let failed = |error| RuntimeError::system(format!("make the files of container {}", spec.id), error);
        let directory = self.layout.container(&spec.id);
        volume::unmount_below(&directory).map_err(failed)?;
        remove_tree(&directory).map_err(failed)?;
        fs::create_dir_all(&directory).map_err(failed)?;
        if let Some(above) = self.layout.log(&pod.spec, &spec.id).parent() {
            fs::create_dir_all(above).map_err(failed)?;
        }
        if spec.termination_message.is_some() {
            let path = directory.join(file::TERMINATION);
            fs::write(&path, "").map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        }
        mounts::prepare(&binds(spec, pod, &self.layout)?, &directory)
    }

    async fn remove(&self, name: &str) -> Result<(), RuntimeError> {
        let request = ContainerIdRequest {
            container_id: name.to_owned(),
        };
        match self.client.runtime::<Empty>("RemoveContainer", request).await {
            Err(status) if !is_unknown(&status) => Err(failed("remove a container", &status)),
            _ => Ok(()),
        }
    }

    /// How a container is; `None` if the runtime does not know it.
    pub(super) async fn status(
        &self,
        id: &ContainerId,
        name: &str,
    ) -> Result<Option<ContainerStatus>, RuntimeError> {
        let request = ContainerStatusRequest {
            container_id: name.to_owned(),
            verbose: true,
        };
        let answer: ContainerStatusResponse = match self.client.runtime("ContainerStatus", request).await {
            Err(status) if is_unknown(&status) => return Ok(None),
            answer => answer.map_err(|status| failed(format!("look at container {id}"), &status))?,
        };
        let seen = answer.status.unwrap_or_default();
        if seen.state == value::CONTAINER_RUNNING {
            let info = answer.info.get("info").map(String::as_str).unwrap_or_default();
            let info: serde_json::Value = serde_json::from_str(info).unwrap_or_default();
            let pid = info["pid"].as_u64().and_then(|pid| pid.try_into().ok());
            return Ok(Some(ContainerStatus::Running {
                pid: pid.unwrap_or(0),
                started_at: time(seen.started_at),
            }));
        }
        let message = message(&self.layout.container(id).join(file::TERMINATION));
        Ok(Some(ContainerStatus::Exited(exit(&seen, message))))
    }

    pub(super) async fn signal(
        self: &Arc<Self>,
        id: &ContainerId,
        signal: Signal,
    ) -> Result<(), RuntimeError> {
        let name = self.running_name(id)?;
        if signal == Signal::TERM {
            // The only way to send a signal through the interface, the image's own where it has one. The call ends
            // when the container does.
            let inner = self.clone();
            tokio::spawn(async move {
                if let Err(status) = inner.stop_within(&name, NEVER).await {
                    tracing::warn!(
                        container = name,
                        error = status.message(),
                        "cannot send the stop signal"
                    );
                }
                inner.stirred.notify_one();
            });
            return Ok(());
        }
        self.signal_process(id, &name, signal).await
    }

    /// Sends a signal that the interface cannot, on runtimes that say which process it is.
    async fn signal_process(&self, id: &ContainerId, name: &str, signal: Signal) -> Result<(), RuntimeError> {
        let doing = || format!("send signal {} to container {id}", signal.0);
        let unknown = || io::Error::other("the container runtime does not say which process it is");
        let pid = |status| match status {
            Some(ContainerStatus::Running { pid, .. }) => Ok(pid),
            _ => Err(RuntimeError::NotRunning(id.clone())),
        };
        let first = pid(self.status(id, name).await?)?;
        let process = i32::try_from(first).ok().and_then(Pid::from_raw);
        let process = process.ok_or_else(|| RuntimeError::system(doing(), unknown()))?;
        let process = pidfd_open(process, PidfdFlags::empty());
        let process = process.map_err(|error| RuntimeError::system(doing(), error.into()))?;
        // The number may have become another process's before it was opened; it is the container's while that runs.
        if pid(self.status(id, name).await?)? != first {
            return Err(RuntimeError::NotRunning(id.clone()));
        }
        let signal = rustix::process::Signal::from_named_raw(signal.0);
        let signal =
            signal.ok_or_else(|| RuntimeError::system(doing(), io::ErrorKind::InvalidInput.into()))?;
        pidfd_send_signal(process, signal).map_err(|error| RuntimeError::system(doing(), error.into()))
    }

    async fn stop_within(&self, name: &str, grace: Duration) -> Result<(), Status> {
        let request = StopContainerRequest {
            container_id: name.to_owned(),
            timeout: grace.as_secs().try_into().unwrap_or(i64::MAX),
        };
        match self.client.wait::<Empty>("StopContainer", request).await {
            Err(status) if !is_unknown(&status) => Err(status),
            _ => Ok(()),
        }
    }

    pub(super) async fn stop(
        self: &Arc<Self>,
        id: &ContainerId,
        signal: Signal,
        grace: Duration,
    ) -> Result<Exit, RuntimeError> {
        let name = self.container_name(id)?;
        let gone = || RuntimeError::NoSuchContainer(id.clone());
        let mut status = self.table.follow(id).ok_or_else(gone)?;
        let ended = |status: &ContainerStatus| matches!(status, ContainerStatus::Exited(_));
        if !grace.is_zero() && signal != Signal::KILL && self.signal(id, signal).await.is_ok() {
            // If time is up it is killed, if the container was removed meanwhile there is nothing to wait for.
            let _ = tokio::time::timeout(grace, status.wait_for(ended)).await;
        }
        if !ended(&status.borrow()) {
            let killed = self.stop_within(&name, Duration::ZERO).await;
            killed.map_err(|status| failed(format!("stop container {id}"), &status))?;
            self.settle(id, &name).await?;
        }
        let waited = tokio::time::timeout(KILL_WAIT, status.wait_for(ended)).await;
        match waited.map(|outcome| outcome.map(|status| status.clone())) {
            Ok(Ok(ContainerStatus::Exited(exit))) => Ok(exit),
            Ok(_) => Err(gone()),
            Err(_) => Err(RuntimeError::system(
                format!("stop container {id}"),
                io::ErrorKind::TimedOut.into(),
            )),
        }
    }

    /// Writes down and tells how a container ended, if it has.
    pub(super) async fn settle(&self, id: &ContainerId, name: &str) -> Result<(), RuntimeError> {
        match self.status(id, name).await? {
            Some(ContainerStatus::Running { .. }) => {}
            Some(ContainerStatus::Exited(exit)) => self.table.exited(id, exit),
            None => {
                let Some(state) = self.table.get(id) else {
                    return Ok(());
                };
                self.table.exited(id, lost(state.status.started_at()));
            }
        }
        Ok(())
    }

    /// How the runtime calls a container, if that runs.
    pub(super) fn running_name(&self, id: &ContainerId) -> Result<String, RuntimeError> {
        let name = self.container_name(id)?;
        match self.table.get(id).map(|state| state.status) {
            Some(ContainerStatus::Running { .. }) => Ok(name),
            _ => Err(RuntimeError::NotRunning(id.clone())),
        }
    }

    pub(super) async fn exec(
        &self,
        id: &ContainerId,
        request: ExecRequest,
    ) -> Result<ExecOutcome, RuntimeError> {
        let name = self.running_name(id)?;
        let timed_out = ExecOutcome {
            end: ExecEnd::TimedOut,
            output: Vec::new(),
            truncated: false,
        };
        let call = ExecSyncRequest {
            container_id: name,
            cmd: request.command,
            // The interface counts whole seconds; we stop waiting at the right time.
            timeout: request.timeout.map_or(0, |within| {
                within.as_secs().saturating_add(1).try_into().unwrap_or(0)
            }),
        };
        let client = self.client.clone();
        let call = async move { client.wait::<ExecSyncResponse>("ExecSync", call).await };
        let answer = match request.timeout {
            None => Ok(call.await),
            // The call goes on until the runtime ends the command, a second late at the most. containerd that still
            // starts a command when its call is taken back, as on a busy machine, leaves the command behind.
            Some(within) => tokio::time::timeout(within, tokio::spawn(call))
                .await
                .map(|ended| ended.expect("a call does not panic")),
        };
        let answer = match answer {
            Err(_) => return Ok(timed_out),
            Ok(Err(status)) if status.code() == Code::DeadlineExceeded => return Ok(timed_out),
            Ok(Err(status)) => return Err(self.no_exec(id, is_unknown(&status), status.message())),
            Ok(Ok(answer)) => answer,
        };
        let mut output = answer.stdout;
        output.extend(answer.stderr);
        let truncated = output.len() > request.output_cap;
        output.truncate(request.output_cap);
        Ok(ExecOutcome {
            end: ExecEnd::Exited(answer.exit_code),
            output,
            truncated,
        })
    }

    /// Why a command did not run, by what the runtime says.
    pub(super) fn no_exec(&self, id: &ContainerId, is_gone: bool, said: &str) -> RuntimeError {
        let reason =
            if said.contains("executable file not found") || said.contains("no such file or directory") {
                StartFailure::NotFound
            } else if said.contains("permission denied") {
                StartFailure::NotExecutable
            } else if is_gone || said.contains("is in CONTAINER_EXITED state") {
                self.stirred.notify_one();
                return RuntimeError::NotRunning(id.clone());
            } else {
                let said = io::Error::other(said.to_owned());
                return RuntimeError::system(format!("run a command in container {id}"), said);
            };
        RuntimeError::CannotStart {
            reason,
            message: said.to_owned(),
        }
    }

    pub(super) async fn remove_container(self: &Arc<Self>, id: &ContainerId) -> Result<(), RuntimeError> {
        let Ok(name) = self.container_name(id) else {
            return Ok(());
        };
        self.remove(&name).await?;
        let log = self.table.get(id).map(|state| state.log);
        let (inner, gone) = (self.clone(), id.clone());
        blocking(move || inner.erase_run(&gone, log.as_deref())).await?;
        self.table.remove(id);
        self.names.lock().containers.remove(id);
        Ok(())
    }

    fn erase_run(&self, id: &ContainerId, log: Option<&Path>) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system(format!("remove container {id}"), error);
        let directory = self.layout.container(id);
        volume::unmount_below(&directory).map_err(failed)?;
        remove_tree(&directory).map_err(failed)?;
        log.map_or(Ok(()), crate::shim::log::remove).map_err(failed)
    }
}

fn cannot_start(status: &Status) -> RuntimeError {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => failed("start the container", status),
        _ => RuntimeError::CannotStart {
            reason: StartFailure::Setup,
            message: status.message().to_owned(),
        },
    }
}

/// How a run ended that the runtime knows.
pub(super) fn exit(seen: &Seen, message: Option<String>) -> Exit {
    // A runtime that lost sight of a container while it was down says 255 and this.
    let is_known = seen.state == value::CONTAINER_EXITED && seen.reason != "Unknown";
    let own = Some(seen.message.clone()).filter(|text| !text.is_empty());
    Exit {
        code: seen.exit_code,
        signal: None,
        cause: match seen.reason.as_str() {
            "OOMKilled" => ExitCause::OutOfMemory,
            _ if is_known => ExitCause::Ended,
            _ => ExitCause::Lost,
        },
        started_at: time(seen.started_at),
        finished_at: if seen.finished_at > 0 {
            time(seen.finished_at)
        } else {
            SystemTime::now()
        },
        message: message.or(own),
    }
}

/// How a run ended of which the runtime knows nothing any more.
fn lost(started_at: SystemTime) -> Exit {
    Exit {
        code: 137,
        signal: None,
        cause: ExitCause::Lost,
        started_at,
        finished_at: SystemTime::now(),
        message: None,
    }
}

/// What a program wrote about its end.
fn message(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(LONGEST_MESSAGE).read_to_end(&mut bytes).ok()?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}
