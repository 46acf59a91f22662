//! As whom do a pod's programs speak to the API, and how do they get the token?
//!
//! As upstream's ServiceAccount plugin: every new pod has an account, and unless the pod or the account declines,
//! each container gets the account's token, the authority and the namespace as files.

use crate::value::{at_mut, bool_at, entry, list_at, map_at, set, str_at};
use serde_json::{Value, json};

/// The account of pods that name none.
pub const DEFAULT_ACCOUNT: &str = "default";
/// The ConfigMap in every namespace with the authority of the API server's certificate.
pub const ROOT_CA_MAP: &str = "kube-root-ca.crt";
/// The key in it, and the file in pods.
pub const ROOT_CA_KEY: &str = "ca.crt";
/// Where programs look for their token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What the name of the volume starts with.
pub const VOLUME_PREFIX: &str = "kube-api-access-";
/// How long its token is good for; upstream's odd number, by which it knows these tokens again.
const EXPIRATION_SECONDS: i64 = 3607;
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The account that a new pod is to have; `None` for the mirror of a pod that the API server cannot change.
pub fn name_account(pod: &mut Value) -> Result<Option<String>, &'static str> {
    let named = str_at(pod, &["spec", "serviceAccountName"]).to_owned();
    if map_at(pod, &["metadata", "annotations"]).is_some_and(|all| all.contains_key(MIRROR)) {
        return match named.is_empty() {
            true => Ok(None),
            false => Err("a mirror pod may not reference service accounts"),
        };
    }
    if !named.is_empty() {
        return Ok(Some(named));
    }
    for field in ["serviceAccountName", "serviceAccount"] {
        set(pod, &["spec", field], DEFAULT_ACCOUNT);
    }
    Ok(Some(DEFAULT_ACCOUNT.to_owned()))
}

/// Gives a new pod what its account brings along. `volume` is the name of the volume in case one is needed.
pub fn equip(pod: &mut Value, account: &Value, volume: impl FnOnce() -> String) {
    let declined = |object: &Value, path: &[&str]| bool_at(object, path).map(|mount| !mount);
    let field = "automountServiceAccountToken";
    let declined = declined(pod, &["spec", field]).or(declined(account, &[field]));
    if declined != Some(true) {
        mount_token(pod, volume);
    }
    let secrets = list_at(account, &["imagePullSecrets"]);
    if list_at(pod, &["spec", "imagePullSecrets"]).is_empty() && !secrets.is_empty() {
        set(pod, &["spec", "imagePullSecrets"], secrets.to_vec());
    }
}

fn mount_token(pod: &mut Value, volume: impl FnOnce() -> String) {
    let present = list_at(pod, &["spec", "volumes"]).iter();
    let mut names = present.map(|volume| str_at(volume, &["name"]));
    let present = names
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let is_new = present.is_none();
    let name = present.unwrap_or_else(volume);
    let mut needed = false;
    for field in ["initContainers", "containers"] {
        let containers = at_mut(pod, &["spec", field]).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = list_at(container, &["volumeMounts"]).iter();
            if mounts
                .clone()
                .any(|mount| str_at(mount, &["mountPath"]) == MOUNT_PATH)
            {
                continue;
            }
            let own = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
            let mounts: Vec<Value> = mounts.cloned().chain([own]).collect();
            set(container, &["volumeMounts"], mounts);
            needed = true;
        }
    }
    if is_new && needed {
        let volumes = entry(pod, &["spec"]).entry("volumes").or_insert(Value::Null);
        match volumes.as_array_mut() {
            Some(volumes) => volumes.push(token_volume(&name)),
            None => *volumes = json!([token_volume(&name)]),
        }
    }
}

fn token_volume(name: &str) -> Value {
    let namespace = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": EXPIRATION_SECONDS, "path": "token"}},
        {"configMap": {"name": ROOT_CA_MAP, "items": [{"key": ROOT_CA_KEY, "path": ROOT_CA_KEY}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
    ]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equipped(mut pod: Value, account: Value) -> Value {
        name_account(&mut pod).unwrap();
        equip(&mut pod, &account, || "kube-api-access-x".into());
        pod
    }

    #[test]
    fn every_container_gets_the_token_of_the_pods_account() {
        let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]});
        let account = json!({"imagePullSecrets": [{"name": "pull"}]});
        let pod = equipped(json!({"spec": spec}), account.clone());
        assert_eq!(pod["spec"]["serviceAccountName"], "default");
        assert_eq!(pod["spec"]["serviceAccount"], "default");
        assert_eq!(pod["spec"]["imagePullSecrets"], account["imagePullSecrets"]);
        let mount = json!([{"name": "kube-api-access-x", "readOnly": true, "mountPath": MOUNT_PATH}]);
        for field in ["containers", "initContainers"] {
            assert_eq!(pod["spec"][field][0]["volumeMounts"], mount);
        }
        assert_eq!(pod["spec"]["volumes"], json!([token_volume("kube-api-access-x")]));
        assert_eq!(equipped(pod.clone(), account), pod, "a copy of it stays as it is");
    }

    #[test]
    fn the_pod_decides_before_its_account_and_own_mounts_stay() {
        let declining = json!({"automountServiceAccountToken": false});
        let mounts = |pod: &Value| {
            list_at(pod, &["spec", "volumes"]).len()
                + list_at(&pod["spec"]["containers"][0], &["volumeMounts"]).len()
        };
        let pod = |spec: Value| json!({"spec": spec});
        let plain = json!({"containers": [{"name": "a"}]});
        assert_eq!(mounts(&equipped(pod(plain.clone()), declining.clone())), 0);
        let mut asking = plain.clone();
        asking["automountServiceAccountToken"] = json!(true);
        assert_eq!(mounts(&equipped(pod(asking), declining.clone())), 2);
        let mut refusing = plain;
        refusing["automountServiceAccountToken"] = json!(false);
        assert_eq!(mounts(&equipped(pod(refusing), json!({}))), 0);
        let own = json!({"containers": [{"volumeMounts": [{"name": "mine", "mountPath": MOUNT_PATH}]}]});
        assert_eq!(mounts(&equipped(pod(own), json!({}))), 1);
    }

    #[test]
    fn mirrors_of_static_pods_have_no_account() {
        let mut mirror = json!({"metadata": {"annotations": {MIRROR: "x"}}, "spec": {}});
        assert_eq!(name_account(&mut mirror), Ok(None));
        assert_eq!(mirror["spec"], json!({}));
        mirror["spec"]["serviceAccountName"] = json!("robot");
        assert!(name_account(&mut mirror).is_err());
    }
}
