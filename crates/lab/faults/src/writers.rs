//! Who writes meanwhile, and what was acknowledged?

use super::cluster::Cluster;
use super::journal::{Journal, Ticket};
use super::objects::{self, CONFIG_MAPS, LABEL, NAMESPACE, NUMBER, POD_PORT, SERVICE};
use super::schedule::Change;
use fastrand::Rng;
use pointsman_api_client::{ApiError, Client, DeleteOptions, Patch, Resource};
use pointsman_cluster::plain_http;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A write without an answer for so long is in doubt.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two writes of the clerk.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a pod stays unready.
const UNREADY: Duration = Duration::from_millis(1500);
/// How often a change of a contended object is tried.
const TRIES: u32 = 8;

/// The journal, shared by all who write.
#[derive(Clone, Default)]
pub struct Books(Arc<Mutex<Journal>>);

impl Books {
    /// The journal. Nobody panics with it; if somebody did, it is still good.
    pub fn lock(&self) -> MutexGuard<'_, Journal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the answer to a write and notes it. `None` if the write is in doubt.
    async fn note<T>(
        &self,
        ticket: Ticket,
        write: impl Future<Output = Result<T, ApiError>>,
        version: impl Fn(&T) -> Option<u64>,
    ) -> Option<Result<T, ApiError>> {
        let answer = tokio::time::timeout(PATIENCE, write).await.ok()?;
        match &answer {
            Ok(object) => self.lock().acknowledge(&ticket, version(object)),
            Err(
                ApiError::Conflict(_)
                | ApiError::AlreadyExists(_)
                | ApiError::NotFound(_)
                | ApiError::Refused(_),
            ) => self.lock().refuse(&ticket),
            Err(_) => return None,
        }
        Some(answer)
    }
}

/// Writes ConfigMaps, one after the other, as long as it is polled.
pub async fn clerk(client: Client, books: Books, seed: u64) {
    let mut clerk = Clerk {
        client,
        books,
        rng: Rng::with_seed(!seed),
        live: Vec::new(),
        number: 0,
        misread: BTreeSet::new(),
    };
    loop {
        clerk.step().await;
        tokio::time::sleep(PAUSE).await;
    }
}

struct Clerk {
    client: Client,
    books: Books,
    rng: Rng,
    live: Vec<String>,
    number: u64,
    misread: BTreeSet<String>,
}

impl Clerk {
    async fn step(&mut self) {
        self.number += 1;
        let chosen = (!self.live.is_empty()).then(|| self.rng.usize(..self.live.len()));
        match (chosen, self.rng.u8(..10)) {
            (Some(index), 4..=8) => self.update(index).await,
            (Some(index), 9) => self.delete(index).await,
            _ if self.live.len() < 12 => self.create().await,
            (Some(index), _) => self.update(index).await,
            (None, _) => self.create().await,
        }
    }

    async fn create(&mut self) {
        let name = format!("made-{}", self.number);
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "x".repeat(200)}, "metadata": {
            "name": name, "labels": {LABEL: "yes"}, "annotations": {NUMBER: self.number.to_string()}}});
        let ticket = self.books.lock().begin(&key(&name), Some(self.number));
        let api = self.client.api(CONFIG_MAPS, Some(NAMESPACE));
        let write = api.create::<Value>(body.to_string());
        let answer = self.books.note(ticket, write, objects::version).await;
        // A name whose creation is in doubt is not used again.
        if let Some(Ok(_)) = answer {
            self.live.push(name);
        }
    }

    /// Only the version just read is changed, so that a write in doubt cannot come later.
    async fn update(&mut self, index: usize) {
        let name = self.live[index].clone();
        let Some(seen) = self.read(&name).await else {
            return;
        };
        let patch =
            json!({"metadata": {"resourceVersion": seen, "annotations": {NUMBER: self.number.to_string()}}});
        let patch = Patch::Merge(patch.to_string().into_bytes());
        let ticket = self.books.lock().begin(&key(&name), Some(self.number));
        let api = self.client.api(CONFIG_MAPS, Some(NAMESPACE));
        let write = api.patch::<Value>(&name, patch);
        self.books.note(ticket, write, objects::version).await;
    }

    async fn delete(&mut self, index: usize) {
        let name = self.live.swap_remove(index);
        let ticket = self.books.lock().begin(&key(&name), None);
        let api = self.client.api(CONFIG_MAPS, Some(NAMESPACE));
        let options = DeleteOptions::default();
        let write = api.delete(&name, &options);
        self.books.note(ticket, write, |()| None).await;
    }

    /// The object's version, if it can be read. What is read must be what was written.
    async fn read(&mut self, name: &str) -> Option<String> {
        let api = self.client.api(CONFIG_MAPS, Some(NAMESPACE));
        let read = tokio::time::timeout(PATIENCE, api.get::<Value>(name))
            .await
            .ok()?;
        let object = match read {
            Ok(object) => object,
            Err(ApiError::NotFound(_)) => Value::Null,
            Err(_) => return None,
        };
        let found = objects::number(&object);
        let mut journal = self.books.lock();
        if !journal.explains(&key(name), found) && self.misread.insert(name.to_owned()) {
            journal.accuse(format!(
                "{name} was read as {found:?}, which contradicts its writes"
            ));
        }
        object["metadata"]["resourceVersion"].as_str().map(str::to_owned)
    }
}

fn key(name: &str) -> String {
    format!("configmaps/{name}")
}

/// Makes the changes of a user.
pub struct User {
    cluster: Arc<Cluster>,
    books: Books,
    number: u64,
    services: Vec<String>,
}

impl User {
    /// Has changed nothing yet.
    pub fn new(cluster: Arc<Cluster>, books: Books) -> Self {
        Self {
            cluster,
            books,
            number: 1,
            services: Vec::new(),
        }
    }

    /// Makes one change; one that fails is left.
    pub async fn make(&mut self, change: Change) {
        self.number += 1;
        match change {
            Change::Roll => {
                let stamp = self.number.to_string();
                let template = json!({"template": {"metadata": {"annotations": {"changed": stamp}}}});
                self.change_deployment(template).await;
            }
            Change::Scale(replicas) => self.change_deployment(json!({"replicas": replicas})).await,
            Change::Flip(choice) => self.flip(choice).await,
            Change::AddService => self.add_service().await,
            Change::RemoveService => self.remove_service().await,
        }
    }

    async fn change_deployment(&self, spec: Value) {
        let api = self.cluster.client.api(Resource::DEPLOYMENTS, Some(NAMESPACE));
        for _ in 0..TRIES {
            let read = tokio::time::timeout(PATIENCE, api.get::<Value>(SERVICE)).await;
            let Ok(Ok(deployment)) = read else { return };
            let seen = &deployment["metadata"]["resourceVersion"];
            let patch = json!({"spec": spec, "metadata": {"resourceVersion": seen,
                "annotations": {NUMBER: self.number.to_string()}}});
            let patch = Patch::Merge(patch.to_string().into_bytes());
            let ticket = self
                .books
                .lock()
                .begin(&format!("deployments/{SERVICE}"), Some(self.number));
            let write = api.patch::<Value>(SERVICE, patch);
            match self.books.note(ticket, write, objects::version).await {
                // Its controller writes its status.
                Some(Err(ApiError::Conflict(_))) => {}
                _ => return,
            }
        }
    }

    /// Lets a pod say that it is not ready, and a while later that it is.
    async fn flip(&self, choice: u8) {
        let pods = tokio::time::timeout(PATIENCE, objects::pods(&self.cluster.client)).await;
        let Ok(Ok(pods)) = pods else { return };
        let ready: Vec<_> = pods
            .iter()
            .filter(|pod| pod.is_ready() && !pod.is_terminating())
            .collect();
        // One of several: without any ready pod, requests would be lost by the user's fault.
        if ready.len() < 3 {
            return;
        }
        let Some(&address) = ready[usize::from(choice) % ready.len()].ips.first() else {
            return;
        };
        let address = SocketAddr::new(address, POD_PORT);
        // A pod that does not answer is about to go.
        let _ = plain_http::get(address, "/ready/off", PATIENCE).await;
        tokio::spawn(async move {
            tokio::time::sleep(UNREADY).await;
            let _ = plain_http::get(address, "/ready/on", PATIENCE).await;
        });
    }

    async fn add_service(&mut self) {
        let name = format!("made-{}", self.number);
        let body = objects::service(&name, &json!({LABEL: "yes"})).to_string();
        let ticket = self.books.lock().begin(&format!("services/{name}"), Some(1));
        let api = self.cluster.client.api(Resource::SERVICES, Some(NAMESPACE));
        let write = api.create::<Value>(body);
        if let Some(Ok(_)) = self.books.note(ticket, write, objects::version).await {
            self.services.push(name);
        }
    }

    async fn remove_service(&mut self) {
        if self.services.is_empty() {
            return;
        }
        let name = self.services.remove(0);
        let ticket = self.books.lock().begin(&format!("services/{name}"), None);
        let api = self.cluster.client.api(Resource::SERVICES, Some(NAMESPACE));
        let options = DeleteOptions::default();
        let write = api.delete(&name, &options);
        self.books.note(ticket, write, |()| None).await;
    }
}

/// Lets every pod that still says that it is not ready say that it is.
pub async fn all_ready(cluster: &Cluster) -> anyhow::Result<()> {
    for pod in objects::pods(&cluster.client).await? {
        if let Some(&address) = pod.ips.first()
            && !pod.is_terminating()
            && !pod.is_ready()
        {
            let _ = plain_http::get(SocketAddr::new(address, POD_PORT), "/ready/on", PATIENCE).await;
        }
    }
    Ok(())
}
