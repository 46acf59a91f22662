//! How do a pod's programs prove to the API server who they are, and where do they find it?
//!
//! A token is asked for when a volume is made of it, bound to the pod, and asked for again when four fifths of its life
//! are over. One that is still good is kept if the API server cannot be asked.

use jiff::{SignedDuration, Timestamp};
use pointsman_api_client::{ApiError, Client, Resource};
use pointsman_objects::compact::Service;
use pointsman_objects::pod_manifest::{AccountToken, PodManifest, VolumeKind};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Mutex, OnceCell};

/// How long tokens are good for if nobody says (the API's default).
const LIFE_SECONDS: i64 = 3600;

/// A token, and when.
#[derive(Clone)]
pub(crate) struct Held {
    token: String,
    issued: Timestamp,
    expires: Timestamp,
}

impl Held {
    fn is_fresh(&self, now: Timestamp) -> bool {
        let life = self.expires.duration_since(self.issued);
        now.duration_since(self.issued) < life * 4 / 5
    }
}

/// The tokens of a pod, by what was asked for.
pub(crate) type Tokens = Arc<Mutex<BTreeMap<AccountToken, Held>>>;

#[derive(Deserialize)]
struct Answer {
    status: Issued,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Issued {
    token: String,
    expiration_timestamp: Timestamp,
}

/// The tokens that the pod's volumes are made of; those that are old are asked for anew.
pub(crate) async fn of(
    client: &Client,
    pod: &PodManifest,
    tokens: &Tokens,
) -> Result<BTreeMap<AccountToken, String>, ApiError> {
    let sources = pod.spec.volumes.iter().flat_map(|volume| match &volume.kind {
        VolumeKind::Projected { sources, .. } => sources.as_slice(),
        _ => &[],
    });
    let mut found = BTreeMap::new();
    for asked in sources.filter_map(|source| source.service_account_token.as_ref()) {
        let mut tokens = tokens.lock().await;
        let now = Timestamp::now();
        let held = tokens.get(asked).cloned();
        let held = match held {
            Some(held) if held.is_fresh(now) => held,
            held => match request(client, pod, asked, now).await {
                Ok(new) => new,
                Err(error) => {
                    let good = held.filter(|held| held.expires > now);
                    tracing::warn!(pod = %pod.metadata.name, %error, "cannot get a token of the pod's account");
                    good.ok_or(error)?
                }
            },
        };
        found.insert(asked.clone(), held.token.clone());
        tokens.insert(asked.clone(), held);
    }
    Ok(found)
}

async fn request(
    client: &Client,
    pod: &PodManifest,
    asked: &AccountToken,
    now: Timestamp,
) -> Result<Held, ApiError> {
    let metadata = &pod.metadata;
    let audiences: Vec<&str> = [asked.audience.as_str()]
        .into_iter()
        .filter(|audience| !audience.is_empty())
        .collect();
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
        "audiences": audiences,
        "expirationSeconds": asked.expiration_seconds.unwrap_or(LIFE_SECONDS),
        "boundObjectRef": {
            "apiVersion": "v1", "kind": "Pod", "name": metadata.name.to_string(), "uid": metadata.uid.to_string(),
        },
    }});
    let accounts = client.api(Resource::core("serviceaccounts"), Some(&metadata.namespace));
    let account = &pod.spec.service_account_name;
    let answer: Answer = accounts.create_sub(account, "token", body.to_string()).await?;
    let Issued {
        token,
        expiration_timestamp: expires,
    } = answer.status;
    // By this node's clock: a server whose clock is behind has not issued it in the past.
    let issued = now.min(expires - SignedDuration::from_secs(1));
    Ok(Held {
        token,
        issued,
        expires,
    })
}

/// Where programs find the API server: the Service `default/kubernetes`, whose address stays.
#[derive(Debug, Default)]
pub(crate) struct ApiServer(OnceCell<Vec<(String, String)>>);

impl ApiServer {
    /// The variables by which clients in pods find it; none while it is not known.
    pub(crate) async fn variables(&self, client: &Client) -> Vec<(String, String)> {
        let services = client.api(Resource::core("services"), Some("default"));
        let known = self.0.get_or_try_init(async || {
            let service: Service = services.get("kubernetes").await?;
            let port = service.spec.ports.first().map_or(443, |port| port.port);
            Ok::<_, ApiError>(variables(&service.spec.cluster_ip, port))
        });
        match known.await {
            Ok(known) => known.clone(),
            Err(error) => {
                tracing::warn!(%error, "pods start without KUBERNETES_SERVICE_HOST: cannot read Service default/kubernetes");
                Vec::new()
            }
        }
    }
}

fn variables(address: &str, port: i64) -> Vec<(String, String)> {
    let host = match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    };
    let url = format!("tcp://{host}:{port}");
    let port = port.to_string();
    let named = |name: &str, value: &str| (format!("KUBERNETES_{name}"), value.to_owned());
    let of_port = |name: &str, value: &str| named(&format!("PORT_{port}_TCP{name}"), value);
    vec![
        named("SERVICE_HOST", address),
        named("SERVICE_PORT", &port),
        named("SERVICE_PORT_HTTPS", &port),
        named("PORT", &url),
        of_port("", &url),
        of_port("_PROTO", "tcp"),
        of_port("_PORT", &port),
        of_port("_ADDR", address),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_asked_for_anew_before_it_ends() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let held = Held {
            token: String::new(),
            issued: at(0),
            expires: at(3600),
        };
        assert!(held.is_fresh(at(2879)) && !held.is_fresh(at(2880)));
    }

    #[test]
    fn programs_are_told_where_the_api_server_is() {
        let told: BTreeMap<String, String> = variables("10.96.0.1", 443).into_iter().collect();
        assert_eq!(told["KUBERNETES_SERVICE_HOST"], "10.96.0.1");
        assert_eq!(told["KUBERNETES_SERVICE_PORT"], "443");
        assert_eq!(told["KUBERNETES_PORT_443_TCP"], "tcp://10.96.0.1:443");
        let told: BTreeMap<String, String> = variables("fd00::1", 443).into_iter().collect();
        assert_eq!(told["KUBERNETES_SERVICE_HOST"], "fd00::1");
        assert_eq!(told["KUBERNETES_PORT"], "tcp://[fd00::1]:443");
    }
}
