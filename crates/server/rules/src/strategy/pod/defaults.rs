//! What does a pod get when its author says nothing?
//!
//! Values are upstream's (`pkg/apis/core/v1/defaults.go`). Defaulting twice changes nothing.

use crate::value::{at, at_mut, bool_at, int_at, list_at, map_at, set, set_default, str_at};
use serde_json::{Value, json};

/// The lists of a pod spec that hold containers.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The fields of a container that hold probes.
pub const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Octal 0644.
const FILE_MODE: i64 = 420;

/// Fills in a Pod: its spec, what only pods (not templates) get, and the two spellings of its address.
pub fn default_pod(pod: &mut Value) {
    if at(pod, &["spec"]).is_none() {
        set(pod, &["spec"], json!({}));
    }
    let Some(spec) = at_mut(pod, &["spec"]) else {
        return;
    };
    default_spec(spec);
    if !spec.is_object() {
        return;
    }
    set_default(spec, &["enableServiceLinks"], true);
    if int_at(spec, &["terminationGracePeriodSeconds"]).is_some_and(|seconds| seconds < 0) {
        set(spec, &["terminationGracePeriodSeconds"], 1);
    }
    let host_network = bool_at(spec, &["hostNetwork"]).unwrap_or(false);
    for list in ["initContainers", "containers"] {
        for container in objects_mut(spec, list) {
            request_what_is_limited(container);
            if host_network {
                publish_ports_on_host(container);
            }
        }
    }
    default_addresses(pod);
}

/// Fills in a pod spec, inside a Pod or a template.
pub fn default_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    for (field, default) in [
        ("dnsPolicy", "ClusterFirst"),
        ("restartPolicy", "Always"),
        ("schedulerName", "default-scheduler"),
    ] {
        default_text(spec, field, default);
    }
    set_default(spec, &["securityContext"], json!({}));
    set_default(spec, &["terminationGracePeriodSeconds"], 30);
    match (
        str_at(spec, &["serviceAccountName"]).to_owned(),
        str_at(spec, &["serviceAccount"]).to_owned(),
    ) {
        (name, old) if name.is_empty() && !old.is_empty() => set(spec, &["serviceAccountName"], old),
        (name, old) if name != old => set(spec, &["serviceAccount"], name),
        _ => {}
    }
    for volume in objects_mut(spec, "volumes") {
        default_volume(volume);
    }
    for list in CONTAINER_LISTS {
        for container in objects_mut(spec, list) {
            default_container(container);
        }
    }
}

fn default_container(container: &mut Value) {
    let pull = pull_policy(str_at(container, &["image"]));
    default_text(container, "imagePullPolicy", pull);
    default_text(container, "terminationMessagePath", "/dev/termination-log");
    default_text(container, "terminationMessagePolicy", "File");
    set_default(container, &["resources"], json!({}));
    for port in objects_mut(container, "ports") {
        default_text(port, "protocol", "TCP");
    }
    for variable in objects_mut(container, "env") {
        if let Some(source) = at_mut(variable, &["valueFrom"]) {
            default_references(source);
        }
    }
    for probe in PROBES {
        if let Some(probe) = object_mut(container, probe) {
            default_probe(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(request) = at_mut(container, &["lifecycle", hook, "httpGet"]) {
            default_http_get(request);
        }
    }
}

/// An image without tag and digest, or tagged `latest`, may change under its name.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').unwrap_or((image, ""));
    let last = name.rsplit('/').next().unwrap_or("");
    let tag = last.split_once(':').map_or("", |(_, tag)| tag);
    let untagged = tag.is_empty() && digest.is_empty() && !last.is_empty();
    if untagged || tag == "latest" {
        "Always"
    } else {
        "IfNotPresent"
    }
}

fn default_probe(probe: &mut Value) {
    for (field, default) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        if matches!(int_at(probe, &[field]), None | Some(0)) {
            set(probe, &[field], default);
        }
    }
    if let Some(request) = object_mut(probe, "httpGet") {
        default_http_get(request);
    }
    if let Some(check) = object_mut(probe, "grpc") {
        set_default(check, &["service"], "");
    }
}

fn default_http_get(request: &mut Value) {
    default_text(request, "path", "/");
    default_text(request, "scheme", "HTTP");
}

fn default_references(source: &mut Value) {
    if let Some(reference) = object_mut(source, "fieldRef") {
        default_text(reference, "apiVersion", "v1");
    }
    if let Some(reference) = object_mut(source, "resourceFieldRef") {
        set_default(reference, &["divisor"], "0");
    }
}

fn default_volume(volume: &mut Value) {
    let sourceless = volume.as_object().is_some_and(|fields| {
        fields
            .iter()
            .all(|(field, value)| field == "name" || value.is_null())
    });
    if sourceless {
        set(volume, &["emptyDir"], json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = object_mut(volume, source) {
            set_default(source, &["defaultMode"], FILE_MODE);
        }
    }
    if let Some(path) = object_mut(volume, "hostPath") {
        set_default(path, &["type"], "");
    }
    if let Some(downward) = object_mut(volume, "downwardAPI") {
        objects_mut(downward, "items").for_each(default_references);
    }
    if let Some(projected) = object_mut(volume, "projected") {
        for source in objects_mut(projected, "sources") {
            if let Some(token) = object_mut(source, "serviceAccountToken") {
                set_default(token, &["expirationSeconds"], 3600);
            }
            if let Some(downward) = object_mut(source, "downwardAPI") {
                objects_mut(downward, "items").for_each(default_references);
            }
        }
    }
    if let Some(image) = object_mut(volume, "image") {
        let pull = pull_policy(str_at(image, &["reference"]));
        default_text(image, "pullPolicy", pull);
    }
}

/// A limit without a request asks for the whole limit.
fn request_what_is_limited(container: &mut Value) {
    let Some(limits) = map_at(container, &["resources", "limits"]).cloned() else {
        return;
    };
    for (resource, limit) in limits {
        if at(container, &["resources", "requests", &resource]).is_none() {
            set(container, &["resources", "requests", &resource], limit);
        }
    }
}

fn publish_ports_on_host(container: &mut Value) {
    for port in objects_mut(container, "ports") {
        let inside = int_at(port, &["containerPort"]).unwrap_or(0);
        if inside != 0 && int_at(port, &["hostPort"]).unwrap_or(0) == 0 {
            set(port, &["hostPort"], inside);
        }
    }
}

/// `podIP` and the first of `podIPs` are the same thing; old writers set only the former.
fn default_addresses(pod: &mut Value) {
    let single = str_at(pod, &["status", "podIP"]).to_owned();
    let first = list_at(pod, &["status", "podIPs"])
        .first()
        .map(|item| str_at(item, &["ip"]).to_owned());
    match (single.is_empty(), first) {
        (false, None) => set(pod, &["status", "podIPs"], json!([{"ip": single}])),
        (false, Some(first)) if first != single => set(pod, &["status", "podIPs"], json!([{"ip": single}])),
        (true, Some(first)) if !first.is_empty() => set(pod, &["status", "podIP"], first),
        _ => {}
    }
}

fn default_text(object: &mut Value, field: &str, default: &str) {
    if str_at(object, &[field]).is_empty() {
        set(object, &[field], default);
    }
}

fn object_mut<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Value> {
    at_mut(object, &[field]).filter(|value| value.is_object())
}

fn objects_mut<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    at_mut(object, &[field])
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter(|item| item.is_object())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_pod_gets_what_upstream_gives() {
        let mut pod = json!({"spec": {"containers": [{"name": "a", "image": "nginx"}]}});
        default_pod(&mut pod);
        assert_eq!(
            pod["spec"],
            json!({
                "containers": [{
                    "name": "a",
                    "image": "nginx",
                    "imagePullPolicy": "Always",
                    "resources": {},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": true,
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "terminationGracePeriodSeconds": 30,
            })
        );
    }

    #[test]
    fn only_images_that_may_move_are_always_pulled() {
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.25", "IfNotPresent"),
            ("localhost:5000/nginx", "Always"),
            ("localhost:5000/nginx:v1", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
            ("nginx:latest@sha256:abc", "Always"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn probes_volumes_ports_and_references_are_filled_in() {
        let mut pod = json!({"spec": {
            "hostNetwork": true,
            "serviceAccount": "robot",
            "terminationGracePeriodSeconds": -5,
            "volumes": [{"name": "scratch"}, {"name": "conf", "configMap": {"name": "c"}}],
            "containers": [{
                "name": "a", "image": "a:1",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"memory": "1Mi"}},
                "readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 0, "periodMilliseconds": 500},
                "livenessProbe": {"grpc": {"port": 9}},
            }],
        }});
        default_pod(&mut pod);
        let spec = &pod["spec"];
        let container = &spec["containers"][0];
        assert_eq!(spec["serviceAccountName"], "robot");
        assert_eq!(spec["terminationGracePeriodSeconds"], 1);
        assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
        assert_eq!(spec["volumes"][1]["configMap"]["defaultMode"], 420);
        assert_eq!(
            container["ports"][0],
            json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"})
        );
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(
            container["resources"]["requests"],
            json!({"cpu": "500m", "memory": "1Mi"})
        );
        assert_eq!(
            container["readinessProbe"],
            json!({
                "failureThreshold": 3, "periodSeconds": 10, "periodMilliseconds": 500,
                "successThreshold": 1, "timeoutSeconds": 1,
                "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
            })
        );
        assert_eq!(container["livenessProbe"]["grpc"]["service"], "");
    }

    #[test]
    fn both_spellings_of_the_address_agree() {
        let mut old = json!({"status": {"podIP": "10.0.0.1"}});
        default_pod(&mut old);
        assert_eq!(old["status"]["podIPs"], json!([{"ip": "10.0.0.1"}]));
        let mut new = json!({"status": {"podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}});
        default_pod(&mut new);
        assert_eq!(new["status"]["podIP"], "10.0.0.2");
        assert_eq!(new["status"]["podIPs"][1]["ip"], "fd00::2");
    }
}
