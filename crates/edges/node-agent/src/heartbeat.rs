//! How does the cluster learn that this node lives?
//!
//! Two signals, as the kubelet's: the Node's status, computed often and sent when it changed, and a
//! Lease that is renewed every quarter of its duration. Each has a task of its own, so that a slow
//! answer to one does not delay the other.

use crate::host::Host;
use crate::metrics::Metrics;
use crate::node::{Frequency, Identity, Memory, Reports, stamped};
use jiff::Timestamp;
use pointsman_api_client::backoff::Backoff;
use pointsman_api_client::{ApiError, Client, Patch, Resource};
use pointsman_model::duration;
use pointsman_objects::Node;
use pointsman_objects::lease::MicroTime;
use pointsman_objects::names::REPORT_PERIOD_ANNOTATION;
use pointsman_protocol::peers::ANNOTATION;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Where node leases live.
const LEASES: &str = "kube-node-lease";
/// Attempts in a row before the next period (the kubelet's `nodeStatusUpdateRetry`).
const ATTEMPTS: u32 = 5;
/// How long the ranges of a known Node may take to arrive.
const RANGES_WAIT: Duration = Duration::from_secs(5);
/// Periods vary by this share, so that nodes do not march in step.
const JITTER: f64 = 0.04;

/// What both signals need.
#[derive(Clone)]
pub(crate) struct Heart {
    pub(crate) client: Client,
    pub(crate) identity: Arc<Identity>,
    pub(crate) root: PathBuf,
    pub(crate) metrics: Metrics,
    /// Why the node cannot run pods, if it cannot.
    pub(crate) trouble: watch::Receiver<Option<String>>,
    /// How often to look.
    pub(crate) frequency: watch::Receiver<Frequency>,
    /// Whom we do not reach, as the Lease is to say it; nothing if we do not ask.
    pub(crate) opinions: watch::Receiver<Option<String>>,
    /// The uid of our Node, once it is registered.
    pub(crate) uid: watch::Sender<Option<Arc<str>>>,
}

impl Heart {
    /// Registers the node and keeps its status. Never returns by itself.
    pub(crate) async fn keep_status(mut self) {
        let start = Instant::now();
        let mut memory = Memory::default();
        let mut reports = Reports::default();
        let mut registered = false;
        // The period that the Node announces.
        let mut announced = None;
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
        loop {
            let frequency = *self.frequency.borrow_and_update();
            self.metrics.update_frequency.set(frequency.update.as_secs_f64());
            let status = self.look(&mut memory).await;
            if !registered {
                match self.register(&status, &mut memory).await {
                    Ok(node) => {
                        self.await_known_ranges(&node).await;
                        registered = true;
                        backoff.reset();
                        reports.forget();
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot register the node, trying again");
                        tokio::time::sleep(backoff.next(fastrand::f64())).await;
                        continue;
                    }
                }
            }
            // The annotation is part of what is reported.
            let mut whole = status.clone();
            whole["frequency"] = duration::go(frequency.update).into();
            if reports.due(&whole, frequency, start.elapsed()) {
                match self.send(&status, frequency).await {
                    Ok(()) => {
                        reports.sent(whole, start.elapsed(), fastrand::f64());
                        announced = Some(frequency.update);
                    }
                    Err(ApiError::NotFound(_)) => {
                        tracing::warn!("the Node object is gone, registering again");
                        registered = false;
                        continue;
                    }
                    Err(error) => tracing::warn!(%error, "cannot write the node's status"),
                }
            }
            // Whoever decides how long this node may be silent goes by what it says, so a longer period
            // counts only once it is said.
            let period = frequency.update.min(announced.unwrap_or(frequency.update));
            let pause = period.mul_f64(1.0 + JITTER * fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = self.trouble.changed() => if changed.is_err() { return },
                changed = self.frequency.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn look(&mut self, memory: &mut Memory) -> Value {
        let root = self.root.clone();
        let host = tokio::task::spawn_blocking(move || Host::read(&root))
            .await
            .unwrap_or_default();
        let trouble = self.trouble.borrow_and_update().clone();
        self.identity
            .status(&host, trouble.as_deref(), memory, Timestamp::now())
    }

    /// Waits for the address ranges that the Node has from an agent before this one, which the watch is
    /// about to bring. A node that said meanwhile that it cannot run pods would have all its pods called
    /// unready.
    async fn await_known_ranges(&mut self, node: &Node) {
        if !node.pod_cidrs.is_empty() {
            let known = self.trouble.wait_for(Option::is_none);
            if tokio::time::timeout(RANGES_WAIT, known).await.is_err() {
                tracing::warn!("the node's address ranges are not known yet");
            }
        }
    }

    async fn register(&self, status: &Value, memory: &mut Memory) -> Result<Node, ApiError> {
        let api = self.client.api(Resource::NODES, None);
        let name = &self.identity.name;
        let object = self.identity.object(stamped(status, Timestamp::now()));
        let node = match api.create::<Node>(object.to_string().into_bytes()).await {
            Ok(node) => node,
            Err(ApiError::AlreadyExists(_)) => {
                let known: Node = api.get(name).await?;
                memory.recall(&known);
                let labels = self.identity.all_labels();
                let has = &known.metadata.labels;
                if labels.iter().any(|(key, value)| has.get(key) != Some(value)) {
                    let patch = json!({ "metadata": { "labels": labels } });
                    api.patch(name, Patch::Merge(patch.to_string().into_bytes()))
                        .await?
                } else {
                    known
                }
            }
            Err(error) => return Err(error),
        };
        tracing::info!(node = name, "the node is registered");
        self.uid.send_replace(Some(node.metadata.uid.clone()));
        Ok(node)
    }

    async fn send(&self, status: &Value, frequency: Frequency) -> Result<(), ApiError> {
        let api = self.client.api(Resource::NODES, None);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let patch = json!({
                "metadata": {
                    "annotations": { REPORT_PERIOD_ANNOTATION: duration::go(frequency.update) },
                },
                "status": merged(stamped(status, Timestamp::now())),
            });
            let body = Patch::Strategic(patch.to_string().into_bytes());
            match api
                .patch_status::<serde::de::IgnoredAny>(&self.identity.name, body)
                .await
            {
                Ok(_) => {
                    self.metrics.heartbeats.with(&["status", "success"]).inc();
                    return Ok(());
                }
                Err(error @ ApiError::NotFound(_)) => return Err(error),
                Err(error) => {
                    self.metrics.heartbeats.with(&["status", "error"]).inc();
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or(ApiError::Unreachable("no attempt was made".into())))
    }

    /// Keeps the node's Lease. Never returns by itself.
    pub(crate) async fn keep_lease(mut self, duration: Duration) {
        let pause = duration / 4;
        let mut registered = self.uid.subscribe();
        if registered.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut known: Option<Value> = None;
        loop {
            let began = Instant::now();
            for _ in 0..ATTEMPTS {
                let opinions = self.opinions.borrow_and_update().clone();
                match self.renew(known.take(), opinions, duration).await {
                    Ok(lease) => {
                        self.metrics.heartbeats.with(&["lease", "success"]).inc();
                        known = Some(lease);
                        break;
                    }
                    Err(error) => {
                        self.metrics.heartbeats.with(&["lease", "error"]).inc();
                        tracing::warn!(%error, "cannot renew the node's lease");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
            let pause = pause.mul_f64(1.0 + JITTER * fastrand::f64());
            let asleep = tokio::time::sleep(pause.saturating_sub(began.elapsed()));
            tokio::select! {
                () = asleep => {}
                // Without a task that asks there is nothing to wait for.
                Ok(()) = self.opinions.changed() => {}
            }
        }
    }

    /// Writes over the lease as last known, or as the API has it, or creates it.
    async fn renew(
        &self,
        known: Option<Value>,
        opinions: Option<String>,
        duration: Duration,
    ) -> Result<Value, ApiError> {
        let api = self.client.api(Resource::LEASES, Some(LEASES));
        let name = &self.identity.name;
        let known = match known {
            Some(known) => Some(known),
            None => match api.get::<Value>(name).await {
                Ok(lease) => Some(lease),
                Err(ApiError::NotFound(_)) => None,
                Err(error) => return Err(error),
            },
        };
        let uid = self.uid.borrow().clone().unwrap_or_default();
        let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid }]);
        let (mut lease, create) = match known {
            Some(known) => (known, false),
            None => {
                let metadata = json!({ "name": name, "namespace": LEASES });
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {},
                });
                (lease, true)
            }
        };
        lease["metadata"]["ownerReferences"] = owner;
        // An opinion that nobody looks after any more must not be renewed with the lease.
        if let Some(opinions) = opinions {
            lease["metadata"]["annotations"][ANNOTATION] = opinions.into();
        } else if let Some(annotations) = lease
            .pointer_mut("/metadata/annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(ANNOTATION);
        }
        lease["spec"]["holderIdentity"] = name.as_str().into();
        lease["spec"]["leaseDurationSeconds"] = duration.as_secs().into();
        lease["spec"]["renewTime"] = json!(MicroTime(Timestamp::now()));
        let body = lease.to_string().into_bytes();
        if create {
            api.create(body).await
        } else {
            api.replace(name, body).await
        }
    }
}

/// Lists that are merged by key elsewhere are ours as a whole here.
fn merged(mut status: Value) -> Value {
    if let Some(addresses) = status.get_mut("addresses").and_then(Value::as_array_mut) {
        addresses.insert(0, json!({ "$patch": "replace" }));
    }
    status
}
