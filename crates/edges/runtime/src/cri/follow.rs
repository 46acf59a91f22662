//! When has a container or a sandbox ended, when is a log full, and is the runtime well?
//!
//! What the runtime lists is the truth; its events only say when to look. After an event it is looked several times,
//! as some tell it a moment before they list it.

use super::Inner;
use super::messages::*;
use crate::{ContainerId, ContainerStatus};
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status};

/// Between two looks if nothing happens.
const IDLE: Duration = Duration::from_secs(1);
/// After something happened.
const SOON: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
];
/// How often a runtime that is well is asked whether it is and which sandboxes it has, and how full logs are.
const CHECK: Duration = Duration::from_secs(5);

/// Follows the runtime until nobody uses it here any more.
pub fn start(inner: &Arc<Inner>) {
    let mut open = inner.open.subscribe();
    let (looking, listening) = (look(Arc::downgrade(inner)), listen(Arc::downgrade(inner)));
    tokio::spawn(async move {
        tokio::select! {
            () = looking => {}
            () = listening => {}
            // The sender goes with the runtime.
            _ = async { while open.changed().await.is_ok() {} } => {}
        }
    });
}

async fn look(inner: Weak<Inner>) {
    let mut soon = SOON.iter();
    let mut told = String::new();
    let mut check = Instant::now();
    // Whether it is worth asking for sandboxes, too.
    let mut sandboxes = false;
    let Some(mut ranges) = inner.upgrade().map(|this| this.ranges.subscribe()) else {
        return;
    };
    loop {
        let Some(this) = inner.upgrade() else { return };
        let mut outcome = this.look().await;
        if outcome.is_ok() && check <= Instant::now() {
            outcome = this.check(&mut told).await;
            if outcome.is_ok() && this.trouble.borrow().is_none() {
                check = Instant::now() + CHECK;
                this.rotate_logs().await;
                sandboxes = true;
            }
        }
        if outcome.is_ok() && sandboxes {
            outcome = this.look_at_sandboxes().await;
        }
        if let Err(status) = outcome {
            // What it was told before may be forgotten.
            told.clear();
            check = Instant::now();
            this.say(Some(format!(
                "the container runtime is down: {}",
                status.message()
            )));
        }
        let pause = soon.next().copied();
        sandboxes &= pause.is_some();
        let pause = pause.unwrap_or(IDLE);
        let pause = if this.trouble.borrow().is_some() {
            pause.min(Duration::from_millis(200))
        } else {
            pause
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = this.stirred.notified() => {
                soon = SOON.iter();
                sandboxes |= this.sandbox_stirred.swap(false, Ordering::Relaxed);
            }
            Ok(()) = ranges.changed() => check = Instant::now(),
        }
    }
}

async fn listen(inner: Weak<Inner>) {
    loop {
        let Some(client) = inner.upgrade().map(|this| this.client.clone()) else {
            return;
        };
        let outcome = match client.container_events().await {
            Ok(mut events) => loop {
                match events.message().await {
                    Ok(Some(event)) => stir(&inner, &event.container_id),
                    outcome => break outcome.map(drop),
                }
            },
            Err(status) if status.code() == Code::Unimplemented => {
                listen_to_containerd(&inner, &client).await
            }
            Err(status) => Err(status),
        };
        if let Err(status) = outcome {
            tracing::debug!(
                error = status.message(),
                "no events of the container runtime, looking now and then"
            );
        }
        tokio::time::sleep(IDLE).await;
    }
}

/// Older versions of containerd have no events of the interface, but their own.
async fn listen_to_containerd(inner: &Weak<Inner>, client: &super::Client) -> Result<(), Status> {
    let mut events = client.task_exits().await?;
    while let Some(envelope) = events.message().await? {
        let event = envelope.event.unwrap_or_default();
        // Commands of probes end all the time, and are processes of their own in a container.
        let exit = TaskExit::decode(&*event.value).unwrap_or_default();
        if exit.id == exit.container_id {
            stir(inner, &exit.id);
        }
    }
    Ok(())
}

/// Something happened to the container or sandbox of this name.
fn stir(inner: &Weak<Inner>, name: &str) {
    if let Some(this) = inner.upgrade() {
        if this.names.lock().sandboxes.values().any(|known| known == name) {
            this.sandbox_stirred.store(true, Ordering::Relaxed);
        }
        this.stirred.notify_one();
    }
}

impl Inner {
    /// Finds out which containers have ended.
    async fn look(&self) -> Result<(), Status> {
        // Those that are there before the list is made: whatever is missing in it then is gone.
        let names = self.names.lock().containers.clone();
        let running = |id: &ContainerId| {
            let state = self.table.get(id);
            state.is_some_and(|state| matches!(state.status, ContainerStatus::Running { .. }))
        };
        let known: BTreeMap<&ContainerId, &String> = names.iter().filter(|(id, _)| running(id)).collect();
        if known.is_empty() {
            return Ok(());
        }
        let listed = self.containers().await?;
        let alive: BTreeMap<&str, i32> = listed.iter().map(|one| (one.id.as_str(), one.state)).collect();
        for (id, name) in known {
            if alive.get(name.as_str()) != Some(&value::CONTAINER_RUNNING)
                && let Err(error) = self.settle(id, name).await
            {
                tracing::warn!(%id, %error, "cannot look at a container");
            }
        }
        Ok(())
    }

    /// Finds out which sandboxes are gone that nobody removed here.
    pub(super) async fn look_at_sandboxes(&self) -> Result<(), Status> {
        // Those that are there before the list is made: whatever is missing in it then is gone.
        let known = self.names.lock().sandboxes.clone();
        if known.is_empty() {
            return Ok(());
        }
        let listed = self.sandboxes().await?;
        let ready = |name: &String| {
            let mut listed = listed.iter();
            listed.any(|one| one.id == *name && one.state == value::SANDBOX_READY)
        };
        for (pod, name) in known.into_iter().filter(|(_, name)| !ready(name)) {
            // It is reported once, and not at all if the pod was removed or got another meanwhile.
            let mut names = self.names.lock();
            if names.sandboxes.get(&pod) == Some(&name) {
                names.sandboxes.remove(&pod);
                self.table.sandbox_lost(&pod);
            }
        }
        Ok(())
    }

    /// Tells the runtime what pods' addresses are, and asks whether it is well.
    pub(super) async fn check(&self, told: &mut String) -> Result<(), Status> {
        let ranges = self.ranges.borrow().clone();
        if *told != ranges {
            let request = UpdateRuntimeConfigRequest {
                runtime_config: Some(RuntimeConfig {
                    network_config: Some(NetworkConfig {
                        pod_cidr: ranges.clone(),
                    }),
                }),
            };
            self.client
                .runtime::<Empty>("UpdateRuntimeConfig", request)
                .await?;
            *told = ranges;
        }
        let answer: StatusResponse = self.client.runtime("Status", StatusRequest {}).await?;
        let conditions = answer.status.unwrap_or_default().conditions;
        let wanted = ["RuntimeReady", "NetworkReady"];
        let bad = conditions
            .into_iter()
            .find(|one| wanted.contains(&one.kind.as_str()) && !one.status);
        self.say(bad.map(|bad| format!("container runtime: {}: {}", bad.reason, bad.message)));
        Ok(())
    }

    fn say(&self, trouble: Option<String>) {
        self.trouble.send_if_modified(|before| {
            let is_news = *before != trouble;
            if let (true, Some(trouble)) = (is_news, &trouble) {
                tracing::warn!(trouble, "no pods can be run");
            }
            *before = trouble;
            is_news
        });
    }

    /// Renames full logs and has the runtime begin new ones.
    async fn rotate_logs(&self) {
        let names = self.names.lock().containers.clone();
        for (id, name) in names {
            let Some(state) = self.table.get(&id) else {
                continue;
            };
            let running = matches!(state.status, ContainerStatus::Running { .. });
            if !running || !is_full(&state.log, self.log_limit) {
                continue;
            }
            let old = state.log.with_added_extension("1");
            if let Err(error) = std::fs::rename(&state.log, old) {
                tracing::warn!(%id, %error, "cannot rename a full log");
                continue;
            }
            let request = ContainerIdRequest { container_id: name };
            if let Err(status) = self.client.runtime::<Empty>("ReopenContainerLog", request).await {
                tracing::warn!(%id, error = status.message(), "cannot begin a new log");
            }
        }
    }
}

fn is_full(log: &Path, limit: u64) -> bool {
    std::fs::metadata(log).is_ok_and(|found| found.len() > limit)
}
