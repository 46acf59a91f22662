//! What do the scenario's objects look like?

use std::net::{Ipv4Addr, SocketAddr};

use jiff::Timestamp;
use pointsman_cluster::pod_program::PodProgram;
use pointsman_cluster::rollout::container;
use serde_json::{Value, json};

/// Where pods that answer listen, and where Services lead.
pub const PORT: u16 = 8080;
/// Where pods listen that are there to refuse: they are ready, and nobody listens on the Service's port.
const OTHER_PORT: u16 = 9090;

/// A Service in front of the pods with this label.
pub fn service(name: &str, app: &str, port: u16, address: Option<Ipv4Addr>) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": app }, "ports": [{ "port": port, "targetPort": PORT }],
            "clusterIP": address.map(|address| address.to_string()).unwrap_or_default() } })
}

/// A pod that a node's agent runs: a small server that is probed five times a second.
pub fn served_pod(name: &str, node: &str, program: &PodProgram) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "nodeName": node, "terminationGracePeriodSeconds": 5,
            "containers": [container(program, PORT)] } })
}

/// A pod that nobody runs, on a Node that no agent speaks for.
pub fn spoken_for(name: &str, node: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "nodeName": node, "containers": [{ "name": "web", "image": "host" }] } })
}

/// The change to a Deployment whose new pods answer, or refuse.
pub fn replaced(program: &PodProgram, round: u64, answer: bool) -> Value {
    let port = if answer { PORT } else { OTHER_PORT };
    json!({ "spec": { "template": {
        "metadata": { "annotations": { "pointsman.io/round": round.to_string() } },
        "spec": { "containers": [container(program, port)] } } } })
}

/// The change to a Deployment whose new pods answer and run this hook before they are stopped.
pub fn hooked(program: &PodProgram, round: u64, hook: &Value) -> Value {
    let mut template = replaced(program, round, true);
    let container = &mut template["spec"]["template"]["spec"]["containers"][0];
    container["lifecycle"]["preStop"] = hook.clone();
    let from = |field: &str| json!({ "fieldRef": { "fieldPath": field } });
    container["env"] = json!([
        { "name": "POD_NAMESPACE", "valueFrom": from("metadata.namespace") },
        { "name": "POD_NAME", "valueFrom": from("metadata.name") },
        { "name": "POD_UID", "valueFrom": from("metadata.uid") },
    ]);
    template
}

/// A hook that cannot name its pod, and asks for its Service.
pub fn service_hook(gate: SocketAddr, namespace: &str, service: &str) -> Value {
    let path = format!("/gate/v1/namespaces/{namespace}/services/{service}");
    json!({ "httpGet": { "host": gate.ip().to_string(), "port": gate.port(), "path": path } })
}

/// A hook that asks for its pod, as its environment names it.
pub fn pod_hook(gate: SocketAddr, program: &PodProgram) -> Value {
    json!({ "exec": { "command": [program.path, "gate", format!("--url=http://{gate}")] } })
}

/// Pods that are stopped without a question at the shutdown gate.
pub fn ungated() -> Value {
    json!({ "spec": { "template": { "metadata": { "annotations": { "pointsman.io/shutdown-gate": "off" } } } } })
}

/// The status that an agent would write.
pub fn status(address: Ipv4Addr, ready: bool, now: Timestamp) -> Value {
    let (address, status) = (address.to_string(), if ready { "True" } else { "False" });
    json!({
        "metadata": { "annotations": { "pointsman.io/last-change-time": format!("{now:.6}") } },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": format!("{now:.0}") }] },
    })
}
