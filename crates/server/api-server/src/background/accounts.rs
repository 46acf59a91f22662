//! What does every namespace have, so that its pods can speak to the API?
//!
//! The service account `default`, and the authority of the server's certificate in the ConfigMap `kube-root-ca.crt`.
//! kube-controller-manager may run beside: whoever is first makes the account. The ConfigMap is left to that program for a
//! while where it leads, because it logs an error when somebody was faster. One that names nobody is mended like one that
//! is gone. One that names somebody else is changed when the server starts and when its authority changes, and not
//! otherwise, so that two writers that disagree do not keep each other busy.

use super::{internal, with_body};
use crate::cache::object::Object;
use crate::cache::{Fate, Observer};
use crate::server::Server;
use crate::write::{create, update};
use http::Method;
use parking_lot::Mutex;
use pointsman_rules::admission::service_account::{DEFAULT_ACCOUNT, ROOT_CA_KEY, ROOT_CA_MAP};
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, kinds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const RETRY: Duration = Duration::from_secs(1);
/// The program that publishes the authority, too, and for how long it is waited for. It may have been told not to.
const PUBLISHER: &str = "kube-controller-manager";
const PATIENCE: Duration = Duration::from_secs(5);

/// Namespaces in which something may be missing, and since when.
#[derive(Debug, Default)]
pub struct Wanting {
    names: Mutex<BTreeMap<String, Instant>>,
    woken: Notify,
}

impl Wanting {
    fn add(&self, namespace: &str) {
        self.still(namespace.to_owned(), Instant::now());
        self.woken.notify_one();
    }

    fn still(&self, namespace: String, since: Instant) {
        let mut names = self.names.lock();
        let known = names.entry(namespace).or_insert(since);
        *known = since.min(*known);
    }
}

impl Observer for Wanting {
    fn observe(&self, object: &Object, fate: Fate) {
        let gone = |name: &str| fate == Fate::Removed && object.name() == name;
        match object.kind {
            kind if kind == &kinds::NAMESPACE && fate == Fate::Written => self.add(object.name()),
            kind if kind == &kinds::SERVICE_ACCOUNT && gone(DEFAULT_ACCOUNT) => self.add(object.namespace()),
            kind if kind == &kinds::CONFIG_MAP && object.name() == ROOT_CA_MAP => {
                self.add(object.namespace())
            }
            _ => {}
        }
    }
}

/// Works for ever.
pub async fn run(server: Arc<Server>) {
    let wanting = &server.wanting;
    let mut authority = server.root_ca.subscribe();
    loop {
        let names = std::mem::take(&mut *wanting.names.lock());
        let mut left = false;
        for (namespace, since) in names {
            match equip(&server, &namespace, since).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(namespace, %error, "cannot make the default service account or {ROOT_CA_MAP} yet");
                }
            }
            wanting.still(namespace, since);
            left = true;
        }
        tokio::select! {
            () = wanting.woken.notified() => {}
            () = tokio::time::sleep(RETRY), if left => {}
            changed = authority.changed() => {
                if changed.is_err() {
                    return;
                }
                if let Err(error) = equip_all(&server).await {
                    tracing::warn!(%error, "cannot bring {ROOT_CA_MAP} up to date everywhere");
                }
            }
        }
    }
}

/// Makes what is missing in any namespace, and brings the authority up to date.
pub async fn equip_all(server: &Server) -> Result<(), ApiError> {
    let applied = server.cache.applied();
    for namespace in server.cache.of(&kinds::NAMESPACE).list("", None, applied).objects {
        if !equip(server, namespace.name(), Instant::now()).await? {
            server.wanting.add(namespace.name());
        }
        publish(server, namespace.name()).await?;
    }
    Ok(())
}

/// Makes what is missing in a namespace since some time; returns whether nothing is left to others.
pub async fn equip(server: &Server, namespace: &str, since: Instant) -> Result<bool, ApiError> {
    let Some(found) = server.cache.of(&kinds::NAMESPACE).get(namespace) else {
        return Ok(true);
    };
    if found.field("status.phase") == "Terminating" {
        return Ok(true);
    }
    if server
        .find(&kinds::SERVICE_ACCOUNT, namespace, DEFAULT_ACCOUNT)
        .is_err()
    {
        let request = internal(Method::POST, &kinds::SERVICE_ACCOUNT, namespace, None);
        let account = json!({"metadata": {"name": DEFAULT_ACCOUNT}});
        settled(create::create(server, &with_body(request, &account)).await)?;
    }
    let Some(map) = root_ca_map(server) else {
        return Ok(true);
    };
    let found = server.find(&kinds::CONFIG_MAP, namespace, ROOT_CA_MAP);
    let says = found.map(|found| !str_at(&found.value(), &["data", ROOT_CA_KEY]).is_empty());
    if says == Ok(true) {
        return Ok(true);
    }
    if since.elapsed() < PATIENCE && server.leads(PUBLISHER) {
        return Ok(false);
    }
    if says.is_ok() {
        publish(server, namespace).await?;
    } else {
        let request = internal(Method::POST, &kinds::CONFIG_MAP, namespace, None);
        settled(create::create(server, &with_body(request, &map)).await)?;
    }
    Ok(true)
}

/// Brings the authority in a namespace up to date.
async fn publish(server: &Server, namespace: &str) -> Result<(), ApiError> {
    let Ok(found) = server.find(&kinds::CONFIG_MAP, namespace, ROOT_CA_MAP) else {
        return Ok(());
    };
    let Some(wanted) = root_ca_map(server) else {
        return Ok(());
    };
    let mut map = found.value();
    if str_at(&map, &["data", ROOT_CA_KEY]) == str_at(&wanted, &["data", ROOT_CA_KEY]) {
        return Ok(());
    }
    map["data"] = wanted["data"].clone();
    let request = internal(Method::PUT, &kinds::CONFIG_MAP, namespace, Some(ROOT_CA_MAP));
    settled(update::put(server, &with_body(request, &map), ROOT_CA_MAP).await)
}

fn root_ca_map(server: &Server) -> Option<Value> {
    let authority = server.root_ca.borrow().clone();
    let about = "the authority of the API server's certificate, for clients in pods";
    (!authority.is_empty()).then(|| {
        json!({
            "metadata": {"name": ROOT_CA_MAP, "annotations": {"kubernetes.io/description": about}},
            "data": {ROOT_CA_KEY: authority},
        })
    })
}

/// Somebody else was faster, or the namespace goes: both are fine.
fn settled<T>(done: Result<T, ApiError>) -> Result<(), ApiError> {
    match done {
        Ok(_)
        | Err(
            ApiError::AlreadyExists(_)
            | ApiError::BeingDeleted(_)
            | ApiError::Conflict { .. }
            | ApiError::Forbidden { .. }
            | ApiError::NotFound(_),
        ) => Ok(()),
        Err(error) => Err(error),
    }
}
