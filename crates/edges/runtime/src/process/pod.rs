//! How is a pod made, found again and removed?

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pointsman_fabric::Netns;

use super::layout::Layout;
use super::network::{self, Cable};
use super::record::{self, SandboxRecord};
use super::{Inner, ProcessRuntime, blocking, volume};
use crate::{
    ContainerStatus, FileSet, Network, PodState, PodUid, Refusal, RuntimeError, Sandbox, SandboxSpec,
    VolumeName, VolumeSource,
};

/// How long killed containers may take to be written down before they are removed anyway.
const KILL_WAIT: Duration = Duration::from_secs(10);

impl Inner {
    pub(super) fn open_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let pod = spec.pod.clone();
        let failed = |error| RuntimeError::system(format!("make pod {pod}"), error);
        let earlier = self.sandbox_record(&pod)?;
        // The directory comes first: it is what keeps the address from being freed as a stray one.
        fs::create_dir_all(self.layout.etc(&pod)).map_err(failed)?;
        for volume in &spec.volumes {
            let directory = self.layout.volume(&pod, &volume.name);
            volume::prepare(&directory, &volume.source, spec.volume_group)?;
        }
        let addresses = match spec.network {
            Network::Own => self.addresses.lock().claim(&pod)?,
            Network::Host => Vec::new(),
        };
        if let Some(cgroups) = &self.cgroups {
            cgroups.make_pod(&pod).map_err(failed)?;
        }
        if spec.network == Network::Own {
            self.plug(&pod, &addresses).map_err(network::system)?;
        }
        let created_at = earlier.map_or_else(SystemTime::now, |record| record.created_at);
        let record = SandboxRecord::new(spec, addresses, created_at).map_err(failed)?;
        write_etc(&self.layout.etc(&pod), &record).map_err(failed)?;
        record::write(&self.layout.sandbox(&pod), &record).map_err(failed)?;
        Ok(self.sandbox(&pod, &record))
    }

    pub(super) fn list(&self) -> Result<Vec<PodState>, RuntimeError> {
        let pods = self
            .layout
            .pods()
            .map_err(|error| RuntimeError::system("list the pods", error))?;
        let boot = record::boot().map_err(|error| RuntimeError::system("read the boot id", error))?;
        let mut states = Vec::new();
        for pod in pods {
            let containers = self.table.of_pod(&pod);
            let record = self.sandbox_record(&pod)?;
            let is_whole = |record: &&SandboxRecord| {
                let has_network =
                    record.spec.network == Network::Host || Netns::named(&self.layout.netns(&pod)).is_ok();
                record.boot == boot && has_network
            };
            states.push(PodState {
                sandbox: record
                    .as_ref()
                    .filter(is_whole)
                    .map(|record| self.sandbox(&pod, record)),
                namespace: record
                    .as_ref()
                    .map(|record| record.spec.namespace.clone())
                    .unwrap_or_default(),
                name: record
                    .as_ref()
                    .map(|record| record.spec.name.clone())
                    .unwrap_or_default(),
                labels: record.map(|record| record.spec.labels).unwrap_or_default(),
                containers,
                pod,
            });
        }
        Ok(states)
    }

    pub(super) fn sandbox_record(&self, pod: &PodUid) -> Result<Option<SandboxRecord>, RuntimeError> {
        sandbox_record(&self.layout, pod)
    }

    /// Removes everything but processes that a shim still has to write down. The directory goes last: until
    /// then the pod is listed and can be removed again.
    pub(super) fn erase_pod(&self, pod: &PodUid) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system(format!("remove pod {pod}"), error);
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove_pod(pod).map_err(failed)?;
        }
        Cable::unplug(&self.node, &self.layout.link(pod), &self.layout.netns(pod))
            .map_err(network::system)?;
        let directory = self.layout.pod(pod);
        volume::unmount_below(&directory).map_err(failed)?;
        self.addresses.lock().release(pod).map_err(failed)?;
        if let Some(record) = self.sandbox_record(pod)? {
            remove_tree(&self.layout.logs(&record.spec)).map_err(failed)?;
        }
        for part in ["containers", "volumes", "etc"] {
            remove_tree(&directory.join(part)).map_err(failed)?;
        }
        remove_tree(&directory).map_err(failed)
    }

    /// Removes what belongs to no pod: a crash of an agent or of the machine may leave such things.
    pub(super) fn erase_strays(&self) -> Result<(), RuntimeError> {
        let failed = |error| RuntimeError::system("remove what belongs to no pod", error);
        let pods = self.layout.pods().map_err(failed)?;
        let is_stray = |pod: &PodUid| pods.binary_search(pod).is_err();
        let groups = self
            .cgroups
            .as_ref()
            .map(|cgroups| cgroups.pods())
            .transpose()
            .map_err(failed)?;
        let names = Netns::names().map_err(network::system)?;
        let networks = names.iter().filter_map(|name| self.layout.pod_of_netns(name));
        let strays = groups
            .unwrap_or_default()
            .into_iter()
            .chain(networks)
            .filter(is_stray);
        for pod in strays.collect::<Vec<_>>() {
            self.erase_pod(&pod)?;
        }
        Ok(())
    }

    fn plug(
        &self,
        pod: &PodUid,
        addresses: &[std::net::IpAddr],
    ) -> Result<(), pointsman_fabric::FabricError> {
        let cable = Cable {
            node: &self.node,
            node_link: &self.layout.link(pod),
            pod: &self.layout.netns(pod),
            addresses,
            node_addresses: &self.config.node_addresses,
            mtu: self.config.mtu,
        };
        cable.plug()
    }

    fn sandbox(&self, pod: &PodUid, record: &SandboxRecord) -> Sandbox {
        Sandbox {
            addresses: record.addresses.clone(),
            netns: (record.spec.network == Network::Own).then(|| Netns::path_of(&self.layout.netns(pod))),
            created_at: record.created_at,
        }
    }
}

impl ProcessRuntime {
    pub(super) async fn destroy_pod(&self, pod: &PodUid) -> Result<(), RuntimeError> {
        let containers = self.inner.table.of_pod(pod);
        for container in &containers {
            if matches!(container.status, ContainerStatus::Running { .. }) {
                self.kill(&container.id, KILL_WAIT).await;
            }
        }
        let (inner, gone) = (Arc::clone(&self.inner), pod.clone());
        blocking(move || inner.erase_pod(&gone)).await?;
        for container in &containers {
            self.inner.table.remove(&container.id);
        }
        Ok(())
    }
}

/// What is written down about a pod.
pub(crate) fn sandbox_record(layout: &Layout, pod: &PodUid) -> Result<Option<SandboxRecord>, RuntimeError> {
    record::read(&layout.sandbox(pod))
        .map_err(|error| RuntimeError::system(format!("read the record of pod {pod}"), error))
}

/// Replaces the files of a volume of given files.
pub(crate) fn update_files(
    layout: &Layout,
    pod: &PodUid,
    name: &VolumeName,
    files: &FileSet,
) -> Result<(), RuntimeError> {
    let Some(record) = sandbox_record(layout, pod)? else {
        return Err(RuntimeError::NoSuchPod(pod.clone()));
    };
    let volume = record.spec.volumes.iter().find(|volume| volume.name == *name);
    if !volume.is_some_and(|volume| matches!(volume.source, VolumeSource::Files(_))) {
        return Err(RuntimeError::Refused {
            reason: Refusal::InvalidSpec,
            message: format!("volume {name} does not hold given files"),
        });
    }
    volume::write_files(&layout.volume(pod, name), files, record.spec.volume_group)
}

/// Removes a directory and all in it; a missing one is fine.
pub(crate) fn remove_tree(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Writes the files of a pod's `/etc`.
pub(crate) fn write_etc(directory: &Path, record: &SandboxRecord) -> io::Result<()> {
    let spec = &record.spec;
    let mut hosts = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    let name = &spec.hostname;
    let names = match &spec.domain {
        // The whole name comes first: it is the one that `hostname -f` says.
        Some(domain) => format!("{name}.{domain}\t{name}"),
        None => name.clone(),
    };
    let own = record.addresses.iter().map(|address| (*address, names.clone()));
    let aliases = spec
        .host_aliases
        .iter()
        .map(|alias| (alias.address, alias.names.join("\t")));
    for (address, names) in own.chain(aliases) {
        writeln!(hosts, "{address}\t{names}").map_err(io::Error::other)?;
    }
    replace(&directory.join("hosts"), &hosts)?;
    replace(&directory.join("hostname"), &format!("{}\n", spec.hostname))?;
    match &spec.resolv_conf {
        Some(text) => replace(&directory.join("resolv.conf"), text),
        None => Ok(()),
    }
}

/// Writes into the file that is there, because containers have it mounted.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text)
}
