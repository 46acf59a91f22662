//! What must exist before anybody can use the cluster?
//!
//! Namespaces, the default roles, the ConfigMap of the server's own settings, the object that asks for a latency
//! profile and the Service `default/kubernetes`. All of it is idempotent and only adds what is missing, so it runs at
//! every start.

use super::{internal, with_body};
use crate::auth::bootstrap as roles;
use crate::server::Server;
use crate::settings::CONFIG_MAP;
use crate::write::{create, update};
use http::Method;
use jiff::Timestamp;
use pointsman_protocol::settings;
use pointsman_rules::allocation::first_address;
use pointsman_rules::allocation::objects::CONFIGURED;
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, Kind, kinds};
use serde_json::{Value, json};
use std::net::SocketAddr;

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

/// The classes of pods that the cluster itself needs, and their priorities. Upstream's.
const PRIORITY_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Pods that the cluster cannot do without.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Pods that a node cannot do without.",
    ),
];

/// Creates what is missing. `advertised` is where the server can be reached from pods, if anywhere.
pub async fn run(server: &Server, advertised: Option<SocketAddr>) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
        ensure(server, &object, |existing| {
            existing.is_none().then(|| object.clone())
        })
        .await?;
    }
    // Together, so that they share commits.
    let defaults = roles::defaults();
    let written = defaults
        .iter()
        .map(|wanted| ensure(server, wanted, move |existing| roles::reconcile(existing, wanted)));
    futures::future::try_join_all(written).await?;
    for wanted in [
        PRIORITY_CLASSES.map(priority_class).to_vec(),
        vec![service_cidr(server), token_tracking()],
    ]
    .concat()
    {
        ensure(server, &wanted, |existing| {
            existing.is_none().then(|| wanted.clone())
        })
        .await?;
    }
    // Settings are announced on the ConfigMap that changes them; there is something to announce before anybody
    // has changed them.
    let settings = settings_map();
    ensure(server, &settings, |existing| {
        existing.is_none().then(|| settings.clone())
    })
    .await?;
    let request = json!({
        "kind": "Node", "apiVersion": "config.openshift.io/v1", "metadata": {"name": "cluster"}, "spec": {},
    });
    // Before there was a rollout it asks for nothing. Later an empty request is one for Default, which whoever
    // deleted the request did not ask for.
    let rolled_out = server
        .find(&kinds::CONFIG_MAP, settings::NAMESPACE, settings::LEDGER)
        .is_ok();
    ensure(server, &request, |existing| {
        (existing.is_none() && !rolled_out).then(|| request.clone())
    })
    .await?;
    let service = kubernetes_service(server);
    ensure(server, &service, |existing| {
        existing.is_none().then(|| service.clone())
    })
    .await?;
    match advertised.filter(|address| !address.ip().is_loopback() && !address.ip().is_unspecified()) {
        Some(address) => {
            for wanted in endpoints(address) {
                ensure(server, &wanted, |existing| with_addresses(existing, &wanted)).await?;
            }
        }
        None => {
            tracing::debug!("the server listens on loopback only, so default/kubernetes has no endpoints")
        }
    }
    Ok(())
}

/// Says by whose certificates clients are known, where programs that ask this server about their own clients look:
/// kube-scheduler and kube-controller-manager do, and log an error until they find it.
///
/// They also want to know who may hand on requests in the names of others. Here nobody does, which cannot be said by
/// leaving it out: it is said by `forgotten`, an authority without a key. One that is there already stays.
pub async fn publish_client_authorities(server: &Server, pem: &str, forgotten: &str) -> Result<(), ApiError> {
    let wanted = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"namespace": "kube-system", "name": "extension-apiserver-authentication"},
    });
    ensure(server, &wanted, |existing| {
        let mut object = existing.unwrap_or(&wanted).clone();
        if !object["data"].is_object() {
            object["data"] = json!({});
        }
        object["data"]["client-ca-file"] = pem.into();
        if object["data"]["requestheader-client-ca-file"].is_null() {
            for (key, value) in [
                ("client-ca-file", forgotten),
                ("allowed-names", r#"["front-proxy-client"]"#),
                ("username-headers", r#"["X-Remote-User"]"#),
                ("group-headers", r#"["X-Remote-Group"]"#),
                ("extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
            ] {
                object["data"][format!("requestheader-{key}")] = value.into();
            }
        }
        (existing != Some(&object)).then_some(object)
    })
    .await
}

/// Brings one object to the state that `next` computes from the existing one; `None` leaves it alone.
async fn ensure(
    server: &Server,
    wanted: &Value,
    next: impl Fn(Option<&Value>) -> Option<Value>,
) -> Result<(), ApiError> {
    let (api_version, kind) = (str_at(wanted, &["apiVersion"]), str_at(wanted, &["kind"]));
    let unknown = || ApiError::Internal(format!("{api_version} {kind} is not served"));
    let kind = Kind::by_type(api_version, kind).ok_or_else(unknown)?;
    let namespace = str_at(wanted, &["metadata", "namespace"]);
    let name = str_at(wanted, &["metadata", "name"]);
    let existing = server
        .find(kind, namespace, name)
        .ok()
        .map(|object| object.value());
    let Some(object) = next(existing.as_ref()) else {
        return Ok(());
    };
    let done = if existing.is_some() {
        let request = with_body(internal(Method::PUT, kind, namespace, Some(name)), &object);
        update::put(server, &request, name).await
    } else {
        let request = with_body(internal(Method::POST, kind, namespace, None), &object);
        create::create(server, &request).await
    };
    match done {
        // Another server that shares the store was faster.
        Ok(_) | Err(ApiError::AlreadyExists(_) | ApiError::BeingDeleted(_) | ApiError::Conflict { .. }) => {
            Ok(())
        }
        // A stored object that cannot become the default one is the administrator's to mend; the
        // server goes on without.
        Err(error @ ApiError::Invalid { .. }) => {
            tracing::error!(kind = kind.kind, name, %error, "a default object cannot be brought up to date");
            Ok(())
        }
        Err(error) => {
            tracing::error!(kind = kind.kind, name, %error, "cannot write a default object");
            Err(error)
        }
    }
}

/// Says since when the use of tokens in Secrets would be known; kube-controller-manager looks for it before it removes
/// any.
fn token_tracking() -> Value {
    let today = Timestamp::now().strftime("%Y-%m-%d").to_string();
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"namespace": "kube-system", "name": "kube-apiserver-legacy-service-account-token-tracking"},
        "data": {"since": today},
    })
}

fn settings_map() -> Value {
    let (namespace, name) = CONFIG_MAP.split_once('/').expect("a namespace and a name");
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"namespace": namespace, "name": name}})
}

fn priority_class((name, value, description): (&str, i64, &str)) -> Value {
    json!({
        "kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": name},
        "value": value, "description": description,
    })
}

/// The ranges that Services get their addresses from.
fn service_cidr(server: &Server) -> Value {
    let ranges = server.cluster.service_ranges.iter();
    let cidrs: Vec<String> = ranges.map(ToString::to_string).collect();
    json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": CONFIGURED},
        "spec": {"cidrs": cidrs},
    })
}

fn kubernetes_service(server: &Server) -> Value {
    let address = server
        .cluster
        .service_ranges
        .first()
        .map(|range| first_address(*range).to_string());
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": address, "type": "ClusterIP", "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    })
}

fn endpoints(address: SocketAddr) -> [Value; 2] {
    let ip = address.ip().to_string();
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let port = json!({"name": "https", "port": address.port(), "protocol": "TCP"});
    let metadata = |labels: Value| json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    [
        json!({
            "kind": "Endpoints", "apiVersion": "v1",
            "metadata": metadata(json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
            "subsets": [{"addresses": [{"ip": ip}], "ports": [port]}],
        }),
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": metadata(json!({"kubernetes.io/service-name": "kubernetes"})),
            "addressType": family,
            "endpoints": [{"addresses": [ip], "conditions": {"ready": true}}],
            "ports": [port],
        }),
    ]
}

/// The wanted endpoints under the existing metadata; `None` if they are there already.
fn with_addresses(existing: Option<&Value>, wanted: &Value) -> Option<Value> {
    let Some(existing) = existing else {
        return Some(wanted.clone());
    };
    let fields = ["subsets", "endpoints", "ports"];
    if fields
        .iter()
        .all(|field| existing.get(field) == wanted.get(field))
    {
        return None;
    }
    let mut object = wanted.clone();
    object["metadata"] = existing["metadata"].clone();
    Some(object)
}
