//! How is a container started, followed, asked and stopped?

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::pod::remove_tree;
use super::record::{self, ContainerRecord};
use super::{Inner, ProcessRuntime, blocking, control, launch};
use crate::shim::log;
use crate::shim::protocol::{Reply, Report, Request, Root, Running, file};
use crate::{
    ContainerId, ContainerSpec, ContainerState, ContainerStatus, ExecOutcome, ExecRequest, Exit, ExitCause,
    RuntimeError, Signal,
};

/// How long a shim may take to start a program. It waits for nothing but the disk.
const START_WAIT: Duration = Duration::from_secs(30);
/// How long a shim may take to answer, beyond the time of what it was asked to do.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long the end of a container may take once it was killed.
const KILL_WAIT: Duration = Duration::from_secs(15);

impl Inner {
    /// Makes a container's directory with everything its shim needs, and takes its lock.
    fn prepare(&self, spec: &ContainerSpec) -> Result<(File, ContainerRecord), RuntimeError> {
        let id = &spec.id;
        let failed = |error| RuntimeError::system(format!("make container {id}"), error);
        let Some(pod) = self.sandbox_record(&id.pod)? else {
            return Err(RuntimeError::NoSuchPod(id.pod.clone()));
        };
        let mut launch = launch::plan(spec, &pod, &self.layout, self.defaults)?;
        self.abilities.check(spec)?;
        let directory = self.layout.container(id);
        fs::create_dir_all(&directory).map_err(failed)?;
        let Some(lock) = record::lock(&directory).map_err(failed)? else {
            return Err(failed(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another agent is starting it",
            )));
        };
        let cgroups = self.cgroups.as_ref();
        let cgroup = cgroups.map(|cgroups| cgroups.make_container(id, spec.limits));
        launch.cgroup = cgroup.transpose().map_err(failed)?;
        if matches!(launch.root, Root::Layer { .. }) {
            launch.shares = self.shares.at(Instant::now()).map_err(failed)?;
        }
        fs::create_dir_all(launch.log.parent().unwrap_or(&directory)).map_err(failed)?;
        if spec.termination_message.is_some() {
            let path = directory.join(file::TERMINATION);
            fs::write(&path, "").map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        }
        let record = ContainerRecord {
            log: launch.log.clone(),
            labels: spec.labels.clone(),
        };
        record::write(&directory.join(ContainerRecord::FILE), &record).map_err(failed)?;
        record::write(&directory.join(file::LAUNCH), &launch).map_err(failed)?;
        Ok((lock, record))
    }

    /// Removes a run of which no process is left, with its log.
    fn erase_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system(format!("remove container {id}"), error);
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove_container(id).map_err(failed)?;
        }
        let directory = self.layout.container(id);
        let record: Option<ContainerRecord> =
            record::read(&directory.join(ContainerRecord::FILE)).map_err(failed)?;
        if let Some(record) = record {
            log::remove(&record.log).map_err(failed)?;
            // Its directories go when nothing else is in them.
            let above = record.log.ancestors().skip(1).take(2);
            above
                .take_while(|directory| fs::remove_dir(directory).is_ok())
                .count();
        }
        remove_tree(&directory).map_err(failed)
    }

    /// How a container ended whose shim is gone. If the shim did not say, it is written down as lost.
    fn conclude(&self, id: &ContainerId) -> io::Result<Exit> {
        let directory = self.layout.container(id);
        let path = directory.join(file::EXIT);
        if let Some(exit) = record::read(&path)? {
            return Ok(exit);
        }
        self.clear_cgroup(id);
        let now = SystemTime::now();
        let running: Option<Running> = record::read(&directory.join(file::RUNNING))?;
        let exit = Exit {
            code: 137,
            signal: Some(Signal::KILL.0),
            cause: ExitCause::Lost,
            started_at: running.map_or(now, |running| running.started_at),
            finished_at: now,
            message: None,
        };
        record::write(&path, &exit)?;
        Ok(exit)
    }

    /// Kills what may be left in a container's cgroup. What cannot be removed now is when the pod is.
    fn clear_cgroup(&self, id: &ContainerId) {
        if let Some(Err(error)) = self.cgroups.as_ref().map(|cgroups| cgroups.remove_container(id)) {
            tracing::warn!(container = %id, %error, "cannot remove the cgroup of a container");
        }
    }

    /// Finds out what became of a container that an earlier agent started.
    fn examine(&self, id: &ContainerId) -> io::Result<Found> {
        let directory = self.layout.container(id);
        let record: Option<ContainerRecord> = record::read(&directory.join(ContainerRecord::FILE))?;
        let running: Option<Running> = record::read(&directory.join(file::RUNNING))?;
        let exit: Option<Exit> = record::read(&directory.join(file::EXIT))?;
        let is_alive = record::lock(&directory)?.is_none();
        Ok(match (record, running, exit) {
            (Some(record), _, Some(exit)) => Found::Ended(record, exit),
            (Some(record), Some(running), None) if is_alive => Found::Running(record, running),
            (Some(_), None, None) if is_alive => Found::Starting,
            (Some(record), Some(_), None) => Found::Ended(record, self.conclude(id)?),
            _ => Found::Nothing,
        })
    }
}

/// What is left of a container that an earlier agent started.
enum Found {
    Running(ContainerRecord, Running),
    Ended(ContainerRecord, Exit),
    /// Its shim is about to start it.
    Starting,
    /// It was never started.
    Nothing,
}

impl ProcessRuntime {
    /// Takes over everything that is on disk.
    pub(super) async fn adopt(&self) -> Result<(), RuntimeError> {
        let inner = Arc::clone(&self.inner);
        let ids = blocking(move || {
            inner.erase_strays()?;
            let failed = |error| RuntimeError::system("list the containers", error);
            let mut ids = Vec::new();
            for pod in inner.layout.pods().map_err(failed)? {
                ids.extend(inner.layout.containers(&pod).map_err(failed)?);
            }
            Ok(ids)
        })
        .await?;
        for id in ids {
            self.adopt_container(id).await?;
        }
        Ok(())
    }

    async fn adopt_container(&self, id: ContainerId) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system(format!("look at container {id}"), error);
        let give_up = tokio::time::Instant::now() + START_WAIT;
        loop {
            match self.inner.examine(&id).map_err(failed)? {
                Found::Running(record, running) => {
                    self.inner.table.insert(&id, record, status(running));
                    self.follow(id.clone());
                    return Ok(());
                }
                Found::Ended(record, exit) => {
                    self.inner
                        .table
                        .insert(&id, record, ContainerStatus::Exited(exit));
                    return Ok(());
                }
                Found::Starting if tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Found::Starting | Found::Nothing => {
                    let inner = Arc::clone(&self.inner);
                    return blocking(move || inner.erase_container(&id)).await;
                }
            }
        }
    }

    pub(super) async fn start_container(&self, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        let id = spec.id.clone();
        if let Some(state) = self.inner.table.get(&id) {
            return Ok(state);
        }
        let inner = Arc::clone(&self.inner);
        let prepared = blocking(move || inner.prepare(&spec)).await;
        let (lock, record) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.give_up_start(&id, error).await,
        };
        let (report, child) = match self.run_shim(&id, lock).await {
            Ok(started) => started,
            Err(error) => {
                let error = RuntimeError::system(format!("start the shim of {id}"), error);
                return self.give_up_start(&id, error).await;
            }
        };
        match report {
            Report::Started(running) => {
                self.inner.table.insert(&id, record, status(running));
                self.inner.table.started(&id);
                self.follow(id.clone());
                tokio::spawn(reap(child));
                self.inner.table.get(&id).ok_or(RuntimeError::NoSuchContainer(id))
            }
            Report::Failed { reason, message } => {
                reap(child).await;
                self.give_up_start(&id, RuntimeError::CannotStart { reason, message })
                    .await
            }
        }
    }

    /// Leaves nothing of a start that failed; the reason why it did is the error to report.
    async fn give_up_start(
        &self,
        id: &ContainerId,
        error: RuntimeError,
    ) -> Result<ContainerState, RuntimeError> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        let erased = blocking(move || inner.erase_container(&id)).await;
        if let Err(error) = erased {
            tracing::warn!(%error, "cannot remove what a failed start left behind");
        }
        Err(error)
    }

    /// Starts the shim and waits for its report.
    async fn run_shim(&self, id: &ContainerId, lock: File) -> io::Result<(Report, Child)> {
        let [program, arguments @ ..] = self.inner.config.shim.as_slice() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = match &self.inner.config.node_netns {
            Some(netns) => Command::from(netns.command(program)),
            None => Command::new(program),
        };
        // Named for people who look at processes; with an empty environment, for it needs nothing of ours.
        let mut child = command
            .arg0("pointsman")
            .args(arguments)
            .arg(self.inner.layout.container(id))
            .env_clear()
            .current_dir("/")
            .stdin(lock)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut text = Vec::new();
        let mut stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let read = tokio::time::timeout(START_WAIT, stdout.read_to_end(&mut text)).await;
        let report = match read {
            Ok(Ok(_)) => serde_json::from_slice(&text)
                .map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, "the shim ended without a word")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the shim did not start the program in time",
            )),
        };
        match report {
            Ok(report) => Ok((report, child)),
            Err(error) => {
                child.kill().await?;
                Err(error)
            }
        }
    }

    /// Learns in the background when the container ends, as long as the runtime is open.
    fn follow(&self, id: ContainerId) {
        let runtime = Arc::downgrade(&self.inner);
        let mut closed = self.inner.open.subscribe();
        let directory = self.inner.layout.container(&id);
        tokio::spawn(async move {
            tokio::select! {
                // The sender never sends; it goes with the runtime.
                _ = closed.changed() => return,
                () = wait_for_shim(&directory) => {}
            }
            let Some(inner) = runtime.upgrade() else {
                return;
            };
            let container = id.clone();
            let concluded = blocking(move || {
                let exit = inner.conclude(&container);
                inner.clear_cgroup(&container);
                let exit = exit.map_err(|error| RuntimeError::system("read how it ended", error))?;
                inner.table.exited(&container, exit);
                Ok(())
            });
            if let Err(error) = concluded.await {
                tracing::warn!(container = %id, %error, "cannot read how a container ended");
            }
        });
    }

    pub(super) async fn send_signal(&self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        self.running(id)?;
        match self.ask(id, &Request::Signal(signal.0), ANSWER_WAIT).await?.0 {
            Reply::Done => Ok(()),
            _ => Err(RuntimeError::NotRunning(id.clone())),
        }
    }

    pub(super) async fn stop_container(
        &self,
        id: &ContainerId,
        signal: Signal,
        grace: Duration,
    ) -> Result<Exit, RuntimeError> {
        match self.send_signal(id, signal).await {
            Ok(()) | Err(RuntimeError::NotRunning(_)) => {}
            Err(error @ RuntimeError::NoSuchContainer(_)) => return Err(error),
            // A shim that does not answer cannot be asked politely.
            Err(error) => tracing::warn!(container = %id, %error, "cannot send the stop signal"),
        }
        if let Some(exit) = self.wait_exit(id, grace).await {
            return Ok(exit);
        }
        match self.kill(id, KILL_WAIT).await {
            Some(exit) => Ok(exit),
            None => {
                let late = io::Error::new(io::ErrorKind::TimedOut, "it was killed but did not end");
                Err(RuntimeError::system(format!("stop container {id}"), late))
            }
        }
    }

    /// Kills everything in a container and waits until its end is known.
    pub(super) async fn kill(&self, id: &ContainerId, wait: Duration) -> Option<Exit> {
        if self.ask(id, &Request::Kill, ANSWER_WAIT).await.is_err() {
            let (inner, id) = (Arc::clone(&self.inner), id.clone());
            // Without the shim the cgroup is what is left; its end is noticed as that of the lock.
            // The thread only logs what goes wrong.
            let _ = tokio::task::spawn_blocking(move || inner.clear_cgroup(&id)).await;
        }
        self.wait_exit(id, wait).await
    }

    async fn wait_exit(&self, id: &ContainerId, wait: Duration) -> Option<Exit> {
        let mut status = self.inner.table.follow(id)?;
        let ended = status.wait_for(|status| matches!(status, ContainerStatus::Exited(_)));
        match &*tokio::time::timeout(wait, ended).await.ok()?.ok()? {
            ContainerStatus::Exited(exit) => Some(exit.clone()),
            ContainerStatus::Running { .. } => None,
        }
    }

    pub(super) async fn exec_in(
        &self,
        id: &ContainerId,
        request: ExecRequest,
    ) -> Result<ExecOutcome, RuntimeError> {
        self.running(id)?;
        let wait = request
            .timeout
            .map_or(Duration::MAX, |timeout| timeout.saturating_add(ANSWER_WAIT));
        let millis =
            |timeout: Duration| u64::try_from(timeout.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        let asked = Request::Exec {
            command: request.command,
            timeout_ms: request.timeout.map(millis),
            output_cap: request.output_cap,
        };
        match self.ask(id, &asked, wait).await? {
            (Reply::Exec { end, truncated, .. }, output) => Ok(ExecOutcome {
                end,
                output,
                truncated,
            }),
            (Reply::CannotStart { reason, message }, _) => Err(RuntimeError::CannotStart { reason, message }),
            _ => Err(RuntimeError::NotRunning(id.clone())),
        }
    }

    pub(super) async fn forget_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        if self.running(id).is_ok() {
            self.kill(id, KILL_WAIT).await;
        }
        let (inner, gone) = (Arc::clone(&self.inner), id.clone());
        blocking(move || inner.erase_container(&gone)).await?;
        self.inner.table.remove(id);
        Ok(())
    }

    pub(super) fn running(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.inner.table.get(id).map(|state| state.status) {
            Some(ContainerStatus::Running { .. }) => Ok(()),
            Some(ContainerStatus::Exited(_)) => Err(RuntimeError::NotRunning(id.clone())),
            None => Err(RuntimeError::NoSuchContainer(id.clone())),
        }
    }

    /// Asks the shim. One that has just ended makes the container not running.
    async fn ask(
        &self,
        id: &ContainerId,
        request: &Request,
        wait: Duration,
    ) -> Result<(Reply, Vec<u8>), RuntimeError> {
        let directory = self.inner.layout.container(id);
        match tokio::time::timeout(wait, control::ask(&directory, request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if has_ended(&directory, &error) => Err(RuntimeError::NotRunning(id.clone())),
            Ok(Err(error)) => Err(RuntimeError::system(format!("reach the shim of {id}"), error)),
            Err(_) => {
                let late = io::Error::new(io::ErrorKind::TimedOut, "no answer");
                Err(RuntimeError::system(format!("reach the shim of {id}"), late))
            }
        }
    }
}

/// Returns when the shim of a container has gone: when it has said how the container ended, or when its
/// lock is free.
async fn wait_for_shim(directory: &Path) {
    loop {
        // A shim that cannot be reached is starting, ending or gone.
        let watched = control::watch(directory).await;
        let is_over = match record::read::<Exit>(&directory.join(file::EXIT)) {
            Ok(Some(_)) => true,
            _ => matches!(record::lock(directory), Ok(Some(_))),
        };
        if is_over || !directory.exists() {
            return;
        }
        tracing::debug!(directory = %directory.display(), ?watched, "no shim answers, yet its lock is held");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether an error means that the shim has gone: nobody listens, or it hung up without an answer.
fn has_ended(directory: &Path, error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let is_gone = matches!(
        error.kind(),
        NotFound | ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof
    );
    is_gone
        && (directory.join(file::EXIT).exists() || matches!(record::lock(directory), Ok(Some(_)) | Err(_)))
}

fn status(running: Running) -> ContainerStatus {
    ContainerStatus::Running {
        pid: running.pid,
        started_at: running.started_at,
    }
}

async fn reap(mut child: Child) {
    // The shim writes down what matters; this only keeps it from staying a zombie.
    let _ = child.wait().await;
}
