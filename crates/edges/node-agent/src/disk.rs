//! Which pods have more on disk than they may?
//!
//! Those that have a limit are looked at, one after another: reading a large directory takes a while, and nobody waits
//! for it.

use crate::agent::Input;
use crate::work::Tools;
use pointsman_pod_lifecycle::{DiskUse, Fact};
use pointsman_runtime::{PodUid, RuntimeError};
use std::sync::Arc;
use std::time::Duration;

/// How often pods are looked at (the kubelet's number).
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);

/// Looks at these pods; facts follow.
pub(crate) async fn look(tools: Tools, pods: Vec<Arc<str>>) {
    for uid in pods {
        let Ok(pod) = PodUid::try_new(&uid) else { continue };
        match tools.runtime.disk_use(&pod).await {
            Ok(used) => {
                let fact = Fact::DiskUsed(in_words(used));
                let _ = tools.inputs.send(Input::Fact { uid, fact });
            }
            // It went meanwhile.
            Err(RuntimeError::NoSuchPod(_)) => {}
            Err(error) => {
                tracing::warn!(%uid, error = %crate::work::chain(&error), "cannot look how much a pod has on disk");
            }
        }
    }
}

fn in_words(used: pointsman_runtime::DiskUse) -> DiskUse {
    let volumes = used.volumes.into_iter();
    let containers = used.containers.into_iter();
    DiskUse {
        volumes: volumes
            .map(|(name, bytes)| (name.as_str().to_owned(), bytes))
            .collect(),
        containers: containers
            .map(|(name, bytes)| (name.as_str().to_owned(), bytes))
            .collect(),
    }
}
