//! How do reports of hollow nodes get to the API server?
//!
//! One task owns what is known of the pods; each write is a task of its own, and no more than so many are under way.

use super::heartbeats::Heartbeats;
use super::object::Nodes;
use super::pods::{Answer, Pods, Task, What};
use jiff::Timestamp;
use pointsman_api_client::backoff::Backoff;
use pointsman_api_client::{
    ApiError, Client, ConnectError, DeleteOptions, Event, Patch, Recovery, Resource, Scope, Source, Watcher,
    connect,
};
use pointsman_model::Revision;
use pointsman_objects::pod_manifest::PodManifest;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};

/// How often a node renews its Lease, and how often it reports its status (the kubelet's defaults).
const RENEWALS: Duration = Duration::from_secs(10);
const REPORTS: Duration = Duration::from_secs(300);
/// Writes about pods under way at the same time. Thousands of kubelets would have more, each a few.
const WRITERS: usize = 64;
/// Conflicts in a row after which a pod is taken for another one of its name.
const CONFLICTS: u32 = 4;

/// Why hollow nodes do not run.
#[derive(Debug, Error)]
pub enum NodesError {
    /// There is no usable configuration of the connection.
    #[error("no connection to an API server can be set up")]
    Connect(#[from] ConnectError),
    /// A Node or Lease cannot be created.
    #[error("registering hollow nodes")]
    Register(#[from] ApiError),
}

/// Registers the nodes, says so, and then does without end what they would.
pub async fn run(source: &Source, nodes: Nodes, registered: impl FnOnce()) -> Result<(), NodesError> {
    let client = connect::connect(source, "pointsman-hollow-nodes").await?;
    let heartbeats = Heartbeats::new(client.clone(), nodes);
    heartbeats.create().await?;
    registered();
    let beat = heartbeats.beat(RENEWALS, REPORTS, Duration::MAX);
    tokio::join!(beat, report(client, nodes));
    Ok(())
}

async fn report(client: Client, nodes: Nodes) {
    let placed = Scope::all(Resource::PODS).fields("spec.nodeName!=");
    let mut watcher = Watcher::<PodManifest>::new(client.clone(), placed);
    let mut pods = Pods::new(nodes);
    let writers = Arc::new(Semaphore::new(WRITERS));
    let (sender, mut answers) = mpsc::unbounded_channel::<(Task, Answer)>();
    loop {
        let now = Timestamp::now;
        let mut tasks = Vec::new();
        tokio::select! {
            event = watcher.next() => match event {
                Event::Applied { object, .. } => tasks.extend(pods.applied(object, now())),
                Event::Deleted { key, .. } => pods.removed(&key),
                Event::Init => pods.list_begins(),
                Event::Synced(_) => tasks = pods.list_ends(now()),
            },
            Some((task, answer)) = answers.recv() => tasks.extend(pods.answered(&task, answer, now())),
        }
        for task in tasks {
            let (client, sender, writers) = (client.clone(), sender.clone(), writers.clone());
            tokio::spawn(async move {
                let Ok(_permit) = writers.acquire_owned().await else {
                    return;
                };
                let answer = carry_out(&client, &task).await;
                // If nobody receives it, everything ends.
                let _ = sender.send((task, answer));
            });
        }
    }
}

/// Writes until it is written, or there is nothing to write to any more.
async fn carry_out(client: &Client, task: &Task) -> Answer {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    let mut conflicts = 0;
    loop {
        let error = match write(client, task).await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        let asked = match error.recovery() {
            Recovery::Retry(asked) => asked.unwrap_or_default(),
            // Another pod has the name, unless others wrote in the same moment.
            Recovery::Reread if matches!(error, ApiError::Conflict(_)) && conflicts < CONFLICTS => {
                conflicts += 1;
                Duration::ZERO
            }
            Recovery::Reread => return Answer::Gone,
            Recovery::GiveUp => {
                tracing::warn!(pod = %task.key, %error, "the report about a pod is rejected");
                return Answer::Written(Revision::default());
            }
        };
        tokio::time::sleep(asked.max(backoff.next(fastrand::f64()))).await;
    }
}

async fn write(client: &Client, task: &Task) -> Result<Answer, ApiError> {
    let (key, api) = (&task.key, client.api(Resource::PODS, Some(task.key.namespace())));
    let (What::Report(body) | What::End(body)) = &task.what;
    let pod: PodManifest = api
        .patch_status(key.name(), Patch::Strategic(body.clone()))
        .await?;
    if let What::End(_) = task.what {
        let options = DeleteOptions::of(&task.uid).without_grace();
        api.delete(key.name(), &options).await?;
    }
    Ok(Answer::Written(pod.metadata.revision()))
}
