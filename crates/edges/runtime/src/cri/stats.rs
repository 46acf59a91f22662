//! What does the runtime say of how much its containers use?

use super::client::failed;
use super::messages::*;
use super::{Inner, config};
use crate::process::{blocking, disk};
use crate::{ContainerId, DiskUse, PodUid, RuntimeError};
use std::collections::BTreeMap;
use std::sync::Arc;

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
        };
        let request = ListContainerStatsRequest { filter: Some(filter) };
        let answer: ListContainerStatsResponse = self.client.runtime("ListContainerStats", request).await?;
        Ok(answer.stats.iter().filter_map(layer).collect())
    }
}

/// How much one of them wrote, if it is one of ours.
pub(super) fn layer(stats: &ContainerStats) -> Option<(ContainerId, u64)> {
    let attributes = stats.attributes.as_ref()?;
    let id = config::named(attributes.metadata.as_ref()?, &attributes.labels)?;
    let layer = stats.writable_layer.as_ref()?.used_bytes.as_ref()?;
    Some((id, layer.value))
}
