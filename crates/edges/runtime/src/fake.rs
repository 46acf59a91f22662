//! How does the agent's test see a runtime without processes?
//!
//! [`FakeRuntime`] behaves: containers run until they are stopped, killed or made to exit, addresses are
//! given out and come back, a second start of one id starts nothing, and an exec takes its scripted time
//! or runs into its timeout. Time is tokio's, so that a paused clock drives it; the wall time it reports
//! is the time it was made plus tokio's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::image::check_image;
use crate::{
    AddressRange, ContainerId, ContainerName, ContainerSpec, ContainerState, ContainerStatus, ContainerUsage,
    DiskUse, Events, ExecEnd, ExecOutcome, ExecRequest, Exit, ExitCause, FileSet, MemoryUse, Network,
    Pending, PodState, PodUid, PodUsage, Refusal, Runtime, RuntimeError, RuntimeEvent, Sandbox, SandboxSpec,
    Signal, StartFailure, Usage, VolumeName, VolumeSource,
};

/// A runtime in memory.
pub struct FakeRuntime {
    state: Mutex<State>,
    born: (SystemTime, Instant),
}

/// What a scripted command does when it is run in a container.
#[derive(Clone, Debug)]
pub struct Scripted {
    /// How long it takes; a longer one than the request's timeout runs into it.
    pub takes: Duration,
    /// How it ends if it is not cut short.
    pub end: ExecEnd,
    /// What it writes.
    pub output: Vec<u8>,
}

impl Default for Scripted {
    fn default() -> Self {
        Self {
            takes: Duration::ZERO,
            end: ExecEnd::Exited(0),
            output: Vec::new(),
        }
    }
}

#[derive(Default)]
struct State {
    pods: BTreeMap<PodUid, Pod>,
    capacity: Option<usize>,
    ranges: Vec<AddressRange>,
    scripts: BTreeMap<(ContainerName, Vec<String>), Scripted>,
    ignores_stop: BTreeSet<ContainerName>,
    loads: BTreeMap<ContainerName, (f64, u64)>,
    start_failures: BTreeMap<String, StartFailure>,
    next_pid: u32,
    execs: u64,
    subscribers: Vec<mpsc::UnboundedSender<RuntimeEvent>>,
}

struct Pod {
    spec: SandboxSpec,
    sandbox: Sandbox,
    containers: BTreeMap<(ContainerName, u32), Container>,
}

struct Container {
    spec: ContainerSpec,
    status: watch::Sender<ContainerStatus>,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeRuntime {
    /// A runtime with no pods and more addresses than a test needs. Needs a tokio runtime.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State::default()),
            born: (SystemTime::now(), Instant::now()),
        }
    }

    /// Leaves only so many addresses.
    pub fn set_capacity(&self, addresses: usize) {
        self.state.lock().capacity = Some(addresses);
    }

    /// What `command` does from now on when it is run in containers of this name. Commands without a
    /// script return 0 at once.
    pub fn script_exec(&self, container: &str, command: &[&str], scripted: Scripted) {
        let name = ContainerName::try_new(container).expect("a test names a container");
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        self.state.lock().scripts.insert((name, command), scripted);
    }

    /// Makes containers of this name deaf to every signal but the kill.
    pub fn ignore_stop(&self, container: &str) {
        let name = ContainerName::try_new(container).expect("a test names a container");
        self.state.lock().ignores_stop.insert(name);
    }

    /// Makes containers of this name use so many CPUs from their start on, and so many bytes of memory. Others use none.
    pub fn load(&self, container: &str, cpus: f64, memory: u64) {
        let name = ContainerName::try_new(container).expect("a test names a container");
        self.state.lock().loads.insert(name, (cpus, memory));
    }

    /// Makes the start of this program fail from now on, or work again.
    pub fn fail_start(&self, program: &str, failure: Option<StartFailure>) {
        let failures = &mut self.state.lock().start_failures;
        match failure {
            Some(failure) => failures.insert(program.to_owned(), failure),
            None => failures.remove(program),
        };
    }

    /// Ends a running container as if its program had returned; `false` if it does not run.
    pub fn exit(&self, container: &ContainerId, code: i32) -> bool {
        self.end(container, code, None)
    }

    /// The files a volume holds now.
    pub fn files(&self, pod: &PodUid, volume: &VolumeName) -> Option<FileSet> {
        let state = self.state.lock();
        let volumes = &state.pods.get(pod)?.spec.volumes;
        match &volumes.iter().find(|candidate| candidate.name == *volume)?.source {
            VolumeSource::Files(files) => Some(files.clone()),
            _ => None,
        }
    }

    /// The spec a container was started with.
    pub fn spec(&self, container: &ContainerId) -> Option<ContainerSpec> {
        let state = self.state.lock();
        Some(state.container(container).ok()?.spec.clone())
    }

    /// How many commands were run in containers so far.
    pub fn execs(&self) -> u64 {
        self.state.lock().execs
    }

    fn now(&self) -> SystemTime {
        self.born.0 + self.born.1.elapsed()
    }

    fn end(&self, container: &ContainerId, code: i32, signal: Option<i32>) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let Ok(found) = state.container(container) else {
            return false;
        };
        let ContainerStatus::Running { started_at, .. } = *found.status.borrow() else {
            return false;
        };
        let exit = Exit {
            code,
            signal,
            cause: ExitCause::Ended,
            started_at,
            finished_at: now,
            message: None,
        };
        found.status.send_replace(ContainerStatus::Exited(exit.clone()));
        state.publish(RuntimeEvent::Exited {
            container: container.clone(),
            exit,
        });
        true
    }

    fn deliver(&self, container: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        let deaf = {
            let state = self.state.lock();
            let found = state.container(container)?;
            if matches!(*found.status.borrow(), ContainerStatus::Exited(_)) {
                return Err(RuntimeError::NotRunning(container.clone()));
            }
            state.ignores_stop.contains(&container.name)
        };
        if signal == Signal::KILL || !deaf {
            self.end(container, 128 + signal.0, Some(signal.0));
        }
        Ok(())
    }

    fn status(&self, container: &ContainerId) -> Result<watch::Receiver<ContainerStatus>, RuntimeError> {
        Ok(self.state.lock().container(container)?.status.subscribe())
    }

    fn open(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(pod) = state.pods.get(&spec.pod) {
            return Ok(pod.sandbox.clone());
        }
        let own = spec.network == Network::Own;
        let addresses = if own { state.free_addresses()? } else { Vec::new() };
        let sandbox = Sandbox {
            addresses,
            netns: own.then(|| PathBuf::from(format!("/run/netns/{}", spec.pod))),
            created_at: now,
        };
        let pod = Pod {
            sandbox: sandbox.clone(),
            containers: BTreeMap::new(),
            spec,
        };
        state.pods.insert(pod.spec.pod.clone(), pod);
        Ok(sandbox)
    }

    fn start_now(&self, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        check_image(&spec.image)?;
        let started_at = self.now();
        let mut state = self.state.lock();
        let Some(pod) = state.pods.get(&spec.id.pod) else {
            return Err(RuntimeError::NoSuchPod(spec.id.pod));
        };
        if let Ok(container) = state.container(&spec.id) {
            return Ok(container.state());
        }
        let known =
            |mount: &crate::MountSpec| pod.spec.volumes.iter().any(|volume| volume.name == mount.volume);
        let Some(program) = spec.command.first().filter(|_| spec.mounts.iter().all(known)) else {
            return Err(RuntimeError::Refused {
                reason: Refusal::InvalidSpec,
                message: "no command is given, or a mount names an unknown volume".to_owned(),
            });
        };
        if let Some(&reason) = state.start_failures.get(program) {
            let message = format!("exec: {program:?}: {reason:?}");
            return Err(RuntimeError::CannotStart { reason, message });
        }
        state.next_pid += 1;
        let pid = state.next_pid;
        let id = spec.id.clone();
        let container = Container {
            spec,
            status: watch::Sender::new(ContainerStatus::Running { pid, started_at }),
        };
        let answer = container.state();
        let pod = state.pods.get_mut(&id.pod).expect("the pod was found above");
        pod.containers.insert((id.name.clone(), id.attempt), container);
        state.publish(RuntimeEvent::Started {
            container: id,
            at: started_at,
        });
        Ok(answer)
    }
}

impl State {
    fn container(&self, id: &ContainerId) -> Result<&Container, RuntimeError> {
        let pod = self.pods.get(&id.pod);
        pod.and_then(|pod| pod.containers.get(&(id.name.clone(), id.attempt)))
            .ok_or_else(|| RuntimeError::NoSuchContainer(id.clone()))
    }

    /// The first free address of each range; of 10.88.0.0/16 if none was ever given.
    fn free_addresses(&self) -> Result<Vec<IpAddr>, RuntimeError> {
        let taken: BTreeSet<IpAddr> = self
            .pods
            .values()
            .flat_map(|pod| pod.sandbox.addresses.iter().copied())
            .collect();
        let default = [AddressRange::new(Ipv4Addr::new(10, 88, 0, 0), 16)];
        let ranges = if self.ranges.is_empty() {
            &default[..]
        } else {
            &self.ranges
        };
        let free = |range: &AddressRange| {
            let hosts = range.hosts().take(self.capacity.unwrap_or(usize::MAX));
            let mut free = hosts.filter(|address| !taken.contains(address));
            free.next().ok_or_else(|| RuntimeError::NoAddress {
                range: range.to_string(),
            })
        };
        ranges.iter().map(free).collect()
    }

    fn publish(&mut self, event: RuntimeEvent) {
        self.subscribers
            .retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }
}

impl Container {
    fn state(&self) -> ContainerState {
        let id = self.spec.id.clone();
        ContainerState {
            log: format!("{}_{}_{}.log", id.pod, id.name, id.attempt).into(),
            id,
            status: self.status.borrow().clone(),
            labels: self.spec.labels.clone(),
        }
    }
}

impl Runtime for FakeRuntime {
    fn set_pod_ranges(&self, ranges: &[AddressRange]) {
        self.state.lock().ranges = ranges.to_vec();
    }

    fn open_sandbox(&self, spec: SandboxSpec) -> Pending<'_, Sandbox> {
        Box::pin(async move { self.open(spec) })
    }

    fn update_files(&self, pod: &PodUid, volume: &VolumeName, files: FileSet) -> Pending<'_, ()> {
        let (pod, volume) = (pod.clone(), volume.clone());
        Box::pin(async move {
            let mut state = self.state.lock();
            let Some(found) = state.pods.get_mut(&pod) else {
                return Err(RuntimeError::NoSuchPod(pod));
            };
            let mut volumes = found.spec.volumes.iter_mut();
            match volumes
                .find(|candidate| candidate.name == volume)
                .map(|found| &mut found.source)
            {
                Some(VolumeSource::Files(current)) => {
                    *current = files;
                    Ok(())
                }
                _ => Err(RuntimeError::Refused {
                    reason: Refusal::InvalidSpec,
                    message: format!("volume {volume} does not hold given files"),
                }),
            }
        })
    }

    fn start(&self, spec: ContainerSpec) -> Pending<'_, ContainerState> {
        Box::pin(async move { self.start_now(spec) })
    }

    fn signal(&self, container: &ContainerId, signal: Signal) -> Pending<'_, ()> {
        let container = container.clone();
        Box::pin(async move { self.deliver(&container, signal) })
    }

    fn stop(&self, container: &ContainerId, signal: Signal, grace: Duration) -> Pending<'_, Exit> {
        let container = container.clone();
        Box::pin(async move {
            let mut status = self.status(&container)?;
            match self.deliver(&container, signal) {
                Ok(()) | Err(RuntimeError::NotRunning(_)) => {}
                Err(error) => return Err(error),
            }
            loop {
                let ended = status.wait_for(|status| matches!(status, ContainerStatus::Exited(_)));
                match tokio::time::timeout(grace, ended).await {
                    Ok(Ok(ended)) => {
                        if let ContainerStatus::Exited(exit) = &*ended {
                            return Ok(exit.clone());
                        }
                    }
                    Ok(Err(_)) => return Err(RuntimeError::NoSuchContainer(container)),
                    Err(_) => drop(self.end(&container, 137, Some(9))),
                }
            }
        })
    }

    fn exec(&self, container: &ContainerId, request: ExecRequest) -> Pending<'_, ExecOutcome> {
        let container = container.clone();
        Box::pin(async move {
            let scripted = {
                let mut state = self.state.lock();
                let found = state.container(&container)?;
                if matches!(*found.status.borrow(), ContainerStatus::Exited(_)) {
                    return Err(RuntimeError::NotRunning(container));
                }
                state.execs += 1;
                let key = (container.name.clone(), request.command);
                state.scripts.get(&key).cloned().unwrap_or_default()
            };
            let cut = request.timeout.filter(|timeout| *timeout < scripted.takes);
            tokio::time::sleep(cut.unwrap_or(scripted.takes)).await;
            let kept = scripted.output.len().min(request.output_cap);
            Ok(ExecOutcome {
                end: if cut.is_some() {
                    ExecEnd::TimedOut
                } else {
                    scripted.end
                },
                output: scripted.output[..kept].to_vec(),
                truncated: kept < scripted.output.len(),
            })
        })
    }

    fn remove_container(&self, container: &ContainerId) -> Pending<'_, ()> {
        let container = container.clone();
        Box::pin(async move {
            self.end(&container, 137, Some(9));
            if let Some(pod) = self.state.lock().pods.get_mut(&container.pod) {
                pod.containers.remove(&(container.name, container.attempt));
            }
            Ok(())
        })
    }

    fn remove_pod(&self, pod: &PodUid) -> Pending<'_, ()> {
        let pod = pod.clone();
        Box::pin(async move {
            let ids: Vec<ContainerId> = match self.state.lock().pods.get(&pod) {
                Some(pod) => pod
                    .containers
                    .values()
                    .map(|found| found.spec.id.clone())
                    .collect(),
                None => return Ok(()),
            };
            for id in ids {
                self.end(&id, 137, Some(9));
            }
            self.state.lock().pods.remove(&pod);
            Ok(())
        })
    }

    fn list(&self) -> Pending<'_, Vec<PodState>> {
        Box::pin(async move {
            let state = self.state.lock();
            let pods = state.pods.values().map(|pod| PodState {
                pod: pod.spec.pod.clone(),
                namespace: pod.spec.namespace.clone(),
                name: pod.spec.name.clone(),
                sandbox: Some(pod.sandbox.clone()),
                containers: pod.containers.values().map(Container::state).collect(),
                labels: pod.spec.labels.clone(),
            });
            Ok(pods.collect())
        })
    }

    fn disk_use(&self, _: &PodUid) -> Pending<'_, DiskUse> {
        Box::pin(async move { Ok(DiskUse::default()) })
    }

    fn usage(&self) -> Pending<'_, Vec<PodUsage>> {
        Box::pin(async move {
            let now = self.now();
            let state = self.state.lock();
            let of = |container: &Container| {
                let ContainerStatus::Running { started_at, .. } = *container.status.borrow() else {
                    return None;
                };
                let id = container.spec.id.clone();
                let (cpus, memory) = state.loads.get(&id.name).copied().unwrap_or_default();
                let age = now.duration_since(started_at).unwrap_or_default();
                let memory = MemoryUse {
                    working_set: memory,
                    total: Some(memory),
                    anonymous: Some(memory),
                };
                let used = Usage {
                    at: now,
                    cpu: Some(age.mul_f64(cpus)),
                    memory: Some(memory),
                };
                Some(ContainerUsage { id, started_at, used })
            };
            let pods = state.pods.iter().map(|(uid, pod)| {
                let containers = pod.containers.values().filter_map(of).collect();
                PodUsage::of_containers(uid.clone(), containers)
            });
            Ok(pods.filter(|pod| !pod.containers.is_empty()).collect())
        })
    }

    fn subscribe(&self) -> Events {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state.lock().subscribers.push(sender);
        receiver
    }
}

#[cfg(test)]
mod tests;
