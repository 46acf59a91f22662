//! How much do this node, its pods and their containers use?
//!
//! Two answers of the kubelet: `/metrics/resource` has sums for a monitoring system, `/stats/summary` has what is used
//! now as well. Everything is read when somebody asks, and nothing is read when nobody does: how much CPU is used comes
//! from two readings, of which the earlier one is left from a question of the last minute, or taken a second before.

mod node;
mod resource;
mod samples;
mod summary;

use crate::agent::{Input, Question};
use crate::host::Host;
use crate::work::chain;
use node::NodeUse;
use pointsman_runtime::{DiskUse, PodUid, PodUsage, Runtime};
use samples::{Sample, Samples};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

/// How long the runtime may take to say what is used.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whose name a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The pods of this node by identity.
pub(crate) type Names = BTreeMap<Arc<str>, PodName>;

/// Reads what is used, for one reader after another.
pub(crate) struct Stats {
    runtime: Arc<dyn Runtime>,
    inputs: mpsc::UnboundedSender<Input>,
    node: String,
    root: PathBuf,
    earlier: Mutex<Samples>,
}

impl Stats {
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        inputs: mpsc::UnboundedSender<Input>,
        node: &str,
        root: PathBuf,
    ) -> Self {
        Self {
            runtime,
            inputs,
            node: node.to_owned(),
            root,
            earlier: Mutex::default(),
        }
    }

    /// What `/metrics/resource` shows.
    pub(crate) async fn resource(&self) -> String {
        let _turn = self.earlier.lock().await;
        let (node, pods) = tokio::join!(NodeUse::read(), self.pods());
        let names = self.names().await;
        resource::text(&node, pods.as_deref().ok(), &names)
    }

    /// What `/stats/summary` shows; without `disks` only CPU and memory, which costs less.
    pub(crate) async fn summary(&self, disks: bool) -> Result<Value, String> {
        let (now, then) = self.two_samples().await?;
        let names = self.names().await;
        let of_disk = match disks {
            true => Some(self.disks(&now.pods).await),
            false => None,
        };
        Ok(summary::document(
            &self.node,
            &now,
            &then,
            &names,
            of_disk.as_ref(),
        ))
    }

    /// What is used now, and what was used some time before.
    async fn two_samples(&self) -> Result<(Sample, Sample), String> {
        let mut earlier = self.earlier.lock().await;
        let mut now = self.sample().await?;
        let then = match earlier.before(now.taken) {
            Some(then) => then.clone(),
            None => {
                let first = std::mem::replace(&mut now, {
                    tokio::time::sleep(samples::SHORTEST).await;
                    self.sample().await?
                });
                earlier.keep(first.clone());
                first
            }
        };
        earlier.keep(now.clone());
        Ok((now, then))
    }

    async fn sample(&self) -> Result<Sample, String> {
        let (node, pods) = tokio::join!(NodeUse::read(), self.pods());
        Ok(Sample {
            taken: Instant::now(),
            node,
            pods: pods?,
        })
    }

    async fn pods(&self) -> Result<Vec<PodUsage>, String> {
        let asked = tokio::time::timeout(PATIENCE, self.runtime.usage()).await;
        let used = match asked {
            Ok(Ok(used)) => return Ok(used),
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("the runtime gave no answer within {PATIENCE:?}"),
        };
        tracing::warn!(error = used, "cannot read how much the pods use");
        Err(used)
    }

    async fn disks(&self, pods: &[PodUsage]) -> summary::Disks {
        let root = self.root.clone();
        let host = tokio::task::spawn_blocking(move || Host::read(&root));
        let mut of_pods: BTreeMap<PodUid, DiskUse> = BTreeMap::new();
        for pod in pods {
            // One that went meanwhile has nothing.
            if let Ok(used) = self.runtime.disk_use(&pod.pod).await {
                of_pods.insert(pod.pod.clone(), used);
            }
        }
        summary::Disks {
            host: host.await.unwrap_or_default(),
            of_pods,
        }
    }

    async fn names(&self) -> Names {
        let (answer, names) = oneshot::channel();
        let _ = self.inputs.send(Input::Ask(Question::Names { answer }));
        names.await.unwrap_or_default()
    }
}
