//! How is a pod made, found again and removed?

use super::client::{failed, is_unknown};
use super::messages::*;
use super::{Inner, config};
use crate::process::blocking;
use crate::process::pod::{remove_tree, sandbox_record, write_etc};
use crate::process::record::{self, ContainerRecord, SandboxRecord};
use crate::process::volume;
use crate::{ContainerId, ContainerStatus, Network, PodState, PodUid, RuntimeError, Sandbox, SandboxSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tonic::Status;

impl Inner {
    pub(super) async fn open_sandbox(self: &Arc<Self>, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let (inner, made) = (self.clone(), spec.clone());
        blocking(move || inner.make_files(&made)).await?;
        let pod = spec.pod.clone();
        let cannot = |status: &Status| failed(format!("make the sandbox of pod {pod}"), status);
        let earlier = self.sandboxes_of(&spec.pod).await?;
        let ready = earlier
            .iter()
            .find(|sandbox| sandbox.state == value::SANDBOX_READY);
        let name = match ready {
            Some(sandbox) => sandbox.id.clone(),
            None => {
                let attempt =
                    |sandbox: &PodSandbox| sandbox.metadata.as_ref().map_or(0, |known| known.attempt + 1);
                let attempt = earlier.iter().map(attempt).max().unwrap_or(0);
                for sandbox in &earlier {
                    self.remove_sandbox(&sandbox.id)
                        .await
                        .map_err(|status| cannot(&status))?;
                }
                let request = RunPodSandboxRequest {
                    config: Some(config::sandbox(&spec, &self.layout, attempt)),
                };
                let made: Result<RunPodSandboxResponse, _> =
                    self.client.runtime("RunPodSandbox", request).await;
                made.map_err(|status| cannot(&status))?.pod_sandbox_id
            }
        };
        let sandbox = self
            .sandbox(&name, spec.network)
            .await
            .map_err(|status| cannot(&status))?;
        if spec.network == Network::Own && sandbox.addresses.is_empty() {
            return Err(cannot(&Status::unavailable(
                "the container runtime gave the pod no address",
            )));
        }
        self.names.lock().sandboxes.insert(spec.pod.clone(), name);
        let (inner, known) = (self.clone(), sandbox.clone());
        blocking(move || inner.write_down(spec, &known)).await?;
        Ok(sandbox)
    }

    fn make_files(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system(format!("make pod {}", spec.pod), error);
        fs::create_dir_all(self.layout.etc(&spec.pod)).map_err(failed)?;
        fs::create_dir_all(self.layout.logs(spec)).map_err(failed)?;
        for volume in &spec.volumes {
            let directory = self.layout.volume(&spec.pod, &volume.name);
            volume::prepare(&directory, &volume.source, spec.volume_group)?;
        }
        Ok(())
    }

    fn write_down(&self, spec: SandboxSpec, sandbox: &Sandbox) -> Result<(), RuntimeError> {
        let pod = spec.pod.clone();
        let failed = |error| RuntimeError::system(format!("make pod {pod}"), error);
        let record =
            SandboxRecord::new(spec, sandbox.addresses.clone(), sandbox.created_at).map_err(failed)?;
        write_etc(&self.layout.etc(&pod), &record).map_err(failed)?;
        record::write(&self.layout.sandbox(&pod), &record).map_err(failed)
    }

    /// A sandbox as it is now.
    async fn sandbox(&self, name: &str, network: Network) -> Result<Sandbox, Status> {
        let request = SandboxId {
            pod_sandbox_id: name.to_owned(),
            verbose: false,
        };
        let answer: PodSandboxStatusResponse = self.client.runtime("PodSandboxStatus", request).await?;
        let status = answer.status.unwrap_or_default();
        Ok(Sandbox {
            addresses: if network == Network::Own {
                addresses(&status)
            } else {
                Vec::new()
            },
            netns: None,
            created_at: time(status.created_at),
        })
    }

    /// All sandboxes of a pod, whatever became of them.
    async fn sandboxes_of(&self, pod: &PodUid) -> Result<Vec<PodSandbox>, RuntimeError> {
        let mut all = self.all_sandboxes().await?;
        all.retain(|sandbox| uid(sandbox).as_ref() == Some(pod));
        Ok(all)
    }

    pub(super) async fn sandboxes(&self) -> Result<Vec<PodSandbox>, Status> {
        let filter = PodSandboxFilter {
            label_selector: config::ours(&self.layout),
        };
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let answer: ListPodSandboxResponse = self.client.runtime("ListPodSandbox", request).await?;
        Ok(answer.items)
    }

    async fn all_sandboxes(&self) -> Result<Vec<PodSandbox>, RuntimeError> {
        let answer = self.sandboxes().await;
        answer.map_err(|status| failed("list the sandboxes", &status))
    }

    pub(super) async fn containers(&self) -> Result<Vec<Container>, Status> {
        let filter = ContainerFilter {
            label_selector: config::ours(&self.layout),
        };
        let request = ListContainersRequest { filter: Some(filter) };
        let answer: ListContainersResponse = self.client.runtime("ListContainers", request).await?;
        Ok(answer.containers)
    }

    async fn remove_sandbox(&self, name: &str) -> Result<(), Status> {
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            let request = SandboxId {
                pod_sandbox_id: name.to_owned(),
                verbose: false,
            };
            match self.client.runtime::<Empty>(method, request).await {
                Err(status) if is_unknown(&status) => {}
                outcome => _ = outcome?,
            }
        }
        Ok(())
    }

    /// Learns what an earlier process left.
    pub(super) async fn find(&self) -> Result<(), RuntimeError> {
        for sandbox in self.all_sandboxes().await? {
            if let Some(pod) = uid(&sandbox).filter(|_| sandbox.state == value::SANDBOX_READY) {
                self.names.lock().sandboxes.insert(pod, sandbox.id);
            }
        }
        let containers = self
            .containers()
            .await
            .map_err(|status| failed("list the containers", &status))?;
        for container in containers {
            let Some(id) = config::container_id(&container) else {
                continue;
            };
            let Some(record) = sandbox_record(&self.layout, &id.pod)? else {
                continue;
            };
            self.names
                .lock()
                .containers
                .insert(id.clone(), container.id.clone());
            // One that was made and never started is made anew.
            if container.state == value::CONTAINER_CREATED {
                continue;
            }
            let known = ContainerRecord {
                log: self.layout.log(&record.spec, &id),
                labels: container.annotations,
            };
            if let Some(status) = self.status(&id, &container.id).await? {
                self.table.insert(&id, known, status);
            }
        }
        Ok(())
    }

    pub(super) async fn list(self: &Arc<Self>) -> Result<Vec<PodState>, RuntimeError> {
        let mut ready = BTreeMap::new();
        let mut pods: BTreeSet<PodUid> = BTreeSet::new();
        for sandbox in self.all_sandboxes().await? {
            let Some(pod) = uid(&sandbox) else { continue };
            if sandbox.state == value::SANDBOX_READY {
                ready.insert(pod.clone(), sandbox.id);
            }
            pods.insert(pod);
        }
        let here = self.layout.pods();
        pods.extend(here.map_err(|error| RuntimeError::system("list the pods", error))?);
        let mut states = Vec::new();
        for pod in pods {
            let record = sandbox_record(&self.layout, &pod)?;
            let spec = record.map(|record| record.spec);
            let mut sandbox = None;
            if let (Some(name), Some(spec)) = (ready.get(&pod), &spec) {
                match self.sandbox(name, spec.network).await {
                    Err(status) if is_unknown(&status) => {}
                    Err(status) => return Err(failed(format!("look at the sandbox of pod {pod}"), &status)),
                    Ok(found) => sandbox = Some(found),
                }
            }
            let (namespace, name, labels) = match spec {
                Some(spec) => (spec.namespace, spec.name, spec.labels),
                None => Default::default(),
            };
            states.push(PodState {
                sandbox,
                namespace,
                name,
                labels,
                containers: self.table.of_pod(&pod),
                pod,
            });
        }
        Ok(states)
    }

    pub(super) async fn remove_pod(self: &Arc<Self>, pod: &PodUid) -> Result<(), RuntimeError> {
        let containers: Vec<ContainerId> = self.table.of_pod(pod).into_iter().map(|state| state.id).collect();
        for id in &containers {
            let running = self
                .table
                .get(id)
                .is_some_and(|state| matches!(state.status, ContainerStatus::Running { .. }));
            if running {
                self.stop(id, crate::Signal::KILL, Duration::ZERO).await?;
            }
        }
        // From here on it is not lost, but gone.
        self.names.lock().sandboxes.remove(pod);
        for sandbox in self.sandboxes_of(pod).await? {
            self.remove_sandbox(&sandbox.id)
                .await
                .map_err(|status| failed(format!("remove the sandbox of pod {pod}"), &status))?;
        }
        let (inner, gone) = (self.clone(), pod.clone());
        blocking(move || inner.erase(&gone)).await?;
        for id in &containers {
            self.table.remove(id);
        }
        self.names.lock().containers.retain(|id, _| id.pod != *pod);
        Ok(())
    }

    /// Removes the files of a pod. The directory goes last: until then the pod is listed and can be removed again.
    fn erase(&self, pod: &PodUid) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system(format!("remove pod {pod}"), error);
        let directory = self.layout.pod(pod);
        volume::unmount_below(&directory).map_err(failed)?;
        if let Some(record) = sandbox_record(&self.layout, pod)? {
            remove_tree(&self.layout.logs(&record.spec)).map_err(failed)?;
        }
        for part in ["containers", "volumes", "etc"] {
            remove_tree(&directory.join(part)).map_err(failed)?;
        }
        remove_tree(&directory).map_err(failed)
    }
}

/// The addresses of a pod with a network of its own, IPv4 first.
pub(super) fn addresses(status: &PodSandboxStatus) -> Vec<IpAddr> {
    let seen = status.network.iter();
    let texts =
        seen.flat_map(|seen| std::iter::once(&seen.ip).chain(seen.additional_ips.iter().map(|it| &it.ip)));
    let mut addresses: Vec<IpAddr> = texts.filter_map(|ip| ip.parse().ok()).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

pub(super) fn uid(sandbox: &PodSandbox) -> Option<PodUid> {
    PodUid::try_new(&sandbox.metadata.as_ref()?.uid).ok()
}

/// A time of the interface, in nanoseconds since 1970.
pub(super) fn time(nanoseconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds.try_into().unwrap_or(0))
}
