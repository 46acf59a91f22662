//! What does the runtime say of how much its containers use?

use super::client::failed;
use super::messages::*;
use super::pod::time;
use super::{Inner, config};
use crate::process::{blocking, disk};
use crate::{ContainerId, ContainerUsage, DiskUse, MemoryUse, PodUid, PodUsage, RuntimeError, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

impl Inner {
    /// Volumes and logs are ours; what containers write besides is the runtime's, which looks every few seconds.
    pub(super) async fn disk_use(self: &Arc<Self>, pod: &PodUid) -> Result<DiskUse, RuntimeError> {
        let (inner, of) = (self.clone(), pod.clone());
        let mut used = blocking(move || disk::below_root(&inner.layout, &of)).await?;
        let layers = self.layers(self.sandbox_name(pod)?).await;
        let layers =
            layers.map_err(|status| failed(format!("look how much pod {pod} has on disk"), &status))?;
        for (id, layer) in layers {
            let used = used.containers.entry(id.name).or_default();
            *used = used.saturating_add(layer);
        }
        Ok(used)
    }

    /// What containers that run have written besides volumes.
    async fn layers(&self, sandbox: String) -> Result<BTreeMap<ContainerId, u64>, tonic::Status> {
        let filter = ContainerStatsFilter {
            pod_sandbox_id: sandbox,
            ..ContainerStatsFilter::default()
        };
        Ok(self.stats(filter).await?.iter().filter_map(layer).collect())
    }

    /// What all pods use. The runtime is asked once; sandboxes have no groups of their own, so that a pod is what its
    /// containers are together.
    pub(super) async fn usage(self: &Arc<Self>) -> Result<Vec<PodUsage>, RuntimeError> {
        let filter = ContainerStatsFilter {
            label_selector: config::ours(&self.layout),
            ..ContainerStatsFilter::default()
        };
        let stats = self.stats(filter).await;
        let stats = stats.map_err(|status| failed("ask how much containers use", &status))?;
        let now = SystemTime::now();
        let mut used: BTreeMap<ContainerId, Usage> =
            stats.iter().filter_map(|stats| usage_of(stats, now)).collect();
        let mut pods: BTreeMap<PodUid, Vec<ContainerUsage>> = BTreeMap::new();
        for (id, started_at) in self.table.running() {
            let Some(used) = used.remove(&id) else { continue };
            let containers = pods.entry(id.pod.clone()).or_default();
            containers.push(ContainerUsage { id, started_at, used });
        }
        let whole = |(pod, containers)| PodUsage::of_containers(pod, containers);
        Ok(pods.into_iter().map(whole).collect())
    }

    async fn stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>, tonic::Status> {
        let request = ListContainerStatsRequest { filter: Some(filter) };
        let answer: ListContainerStatsResponse = self.client.runtime("ListContainerStats", request).await?;
        Ok(answer.stats)
    }
}

/// How much CPU and memory one of them uses, if it is one of ours. Those that have ended say nothing of either.
pub(super) fn usage_of(stats: &ContainerStats, now: SystemTime) -> Option<(ContainerId, Usage)> {
    let attributes = stats.attributes.as_ref()?;
    let id = config::named(attributes.metadata.as_ref()?, &attributes.labels)?;
    let value = |amount: &Option<Amount>| amount.as_ref().map(|amount| amount.value);
    let cpu = stats.cpu.as_ref();
    let memory = stats.memory.as_ref().and_then(|memory| {
        Some(MemoryUse {
            working_set: value(&memory.working_set_bytes)?,
            total: value(&memory.usage_bytes),
            anonymous: value(&memory.rss_bytes),
        })
    });
    let read = cpu.map(|cpu| cpu.timestamp).filter(|at| *at > 0);
    let used = Usage {
        at: read.map_or(now, time),
        cpu: cpu
            .and_then(|cpu| value(&cpu.usage_core_nano_seconds))
            .map(Duration::from_nanos),
        memory,
    };
    (used.cpu.is_some() || used.memory.is_some()).then_some((id, used))
}

/// How much one of them wrote, if it is one of ours.
pub(super) fn layer(stats: &ContainerStats) -> Option<(ContainerId, u64)> {
    let attributes = stats.attributes.as_ref()?;
    let id = config::named(attributes.metadata.as_ref()?, &attributes.labels)?;
    let layer = stats.writable_layer.as_ref()?.used_bytes.as_ref()?;
    Some((id, layer.value))
}
