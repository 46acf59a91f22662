//! Which pods does the API server itself say are being deleted?
//!
//! Whoever asks at the gate has seen a deletion that our watch may not have delivered yet. A list that begins after
//! the question came shows it for certain, because reads of the API server are linearizable: only then may a gate
//! say that a pod is not being deleted, or that all pods of a Service that are being deleted are out of use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pointsman_api_client::{Client, Resource, Scope};
use pointsman_objects::Pod;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::world::World;

/// Lists under way at once.
const AT_ONCE: usize = 8;
/// A list that takes longer is of no use.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the API server says of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodState {
    /// As namespace/name.
    pub pod: Box<str>,
    pub uid: Box<str>,
    pub node: Option<Arc<str>>,
    pub deleting: bool,
}

/// One pod (namespace/name).
pub(super) fn of_pod(pod: &str) -> Scope {
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    in_namespace(namespace).fields(&format!("metadata.name={name}"))
}

/// The pods that a Service selects; without a selector, those of its namespace.
pub(super) fn of_service(service: &str, world: &World) -> Scope {
    let (namespace, _) = service.split_once('/').unwrap_or_default();
    let scope = in_namespace(namespace);
    match world
        .services
        .get(service)
        .and_then(|info| info.selector.as_deref())
    {
        Some(selector) => scope.labels(selector),
        None => scope,
    }
}

fn in_namespace(namespace: &str) -> Scope {
    Scope {
        namespace: Some(namespace.to_owned()),
        ..Scope::all(Resource::PODS)
    }
}

type Said = Option<Arc<[PodState]>>;

/// Asks the API server. Questions that wait for the same list share the next one.
pub(crate) struct Reader {
    client: Client,
    turns: Semaphore,
    /// For every scope that is asked for, when its last list began and what it said.
    lists: Mutex<HashMap<String, Arc<List>>>,
}

type List = tokio::sync::Mutex<Option<(Instant, Said)>>;

impl Reader {
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            turns: Semaphore::new(AT_ONCE),
            lists: Mutex::default(),
        })
    }

    /// What a list says that begins after this call; nothing if the API server does not answer.
    pub async fn read(&self, scope: &Scope) -> Said {
        let asked = Instant::now();
        let key = format!("{scope:?}");
        let list = self.lists().entry(key.clone()).or_default().clone();
        let mut last = list.lock().await;
        let said = match &*last {
            Some((began, said)) if *began >= asked => said.clone(),
            _ => {
                let (began, said) = self.list(scope).await;
                *last = Some((began, said.clone()));
                said
            }
        };
        drop(last);
        drop(list);
        let mut lists = self.lists();
        // Nobody else waits for it.
        if lists.get(&key).is_some_and(|list| Arc::strong_count(list) == 1) {
            lists.remove(&key);
        }
        said
    }

    async fn list(&self, scope: &Scope) -> (Instant, Said) {
        let _turn = self.turns.acquire().await;
        let began = Instant::now();
        let listed = tokio::time::timeout(PATIENCE, self.client.list::<Pod>(scope)).await;
        let said = match listed {
            Ok(Ok(pods)) => Some(pods.into_iter().map(PodState::from).collect()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot ask the API server for deletions");
                None
            }
            Err(_) => None,
        };
        (began, said)
    }

    fn lists(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<List>>> {
        // Nobody panics with the lock; if somebody did, the lists are still good.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Pod> for PodState {
    fn from(pod: Pod) -> Self {
        Self {
            pod: format!("{}/{}", pod.metadata.namespace, pod.metadata.name).into(),
            uid: Box::from(&*pod.metadata.uid),
            node: pod.node_name.clone(),
            deleting: pod.is_terminating(),
        }
    }
}
