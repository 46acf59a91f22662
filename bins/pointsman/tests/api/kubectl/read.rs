//! Tables, other outputs, describe, explain, watches and waits.

use super::{Kubectl, table};
use pointsman_harness::SOON;
use serde_json::json;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};

const CLUSTER: &str = r#"
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {node-role.kubernetes.io/worker: ""}
status:
  conditions: [{type: Ready, status: "True"}]
  addresses: [{type: InternalIP, address: 192.0.2.1}]
  nodeInfo: {kubeletVersion: v1.34.0, osImage: Debian, kernelVersion: "6.1", containerRuntimeVersion: "host://1",
    architecture: amd64, bootID: b, machineID: m, systemUUID: s, operatingSystem: linux, kubeProxyVersion: ""}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec:
  nodeName: n1
  containers: [{name: c, image: host}, {name: d, image: host}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: host}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-x, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], conditions: {ready: true}, nodeName: n1}
- {addresses: [10.1.0.2], conditions: {ready: false}}
"#;

async fn cluster() -> Kubectl {
    let kubectl = Kubectl::new().await;
    kubectl.run_with("apply -f -", CLUSTER).await;
    let status = json!({"status": {
        "phase": "Running",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "c", "image": "host", "imageID": "x", "ready": true, "restartCount": 2,
             "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            {"name": "d", "image": "host", "imageID": "x", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ],
    }});
    let admin = kubectl.server.admin().await;
    let path = "/api/v1/namespaces/default/pods/web-1/status";
    admin.patch(path, "strategic-merge", &status).await.expect(200);
    kubectl
}

#[tokio::test]
async fn tables_have_kubectls_own_columns_and_cells() {
    let kubectl = cluster().await;
    let row = async |line: &str, name: &str| -> (String, Vec<String>) {
        let text = kubectl.run(line).await;
        let rows = table(&text);
        let found = rows
            .iter()
            .find(|row| row[0] == name)
            .unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        (rows[0].join("|"), found.clone())
    };
    let (header, pod) = row("get pods -o wide", "web-1").await;
    assert_eq!(
        header,
        "NAME|READY|STATUS|RESTARTS|AGE|IP|NODE|NOMINATED NODE|READINESS GATES"
    );
    assert_eq!(pod[..4], ["web-1", "1/2", "CrashLoopBackOff", "2"]);
    assert_eq!(pod[5..7], ["10.1.0.1", "n1"]);
    let (header, node) = row("get nodes -o wide", "n1").await;
    assert!(
        header.starts_with("NAME|STATUS|ROLES|AGE|VERSION|INTERNAL-IP|EXTERNAL-IP|OS-IMAGE"),
        "{header}"
    );
    assert_eq!(node[..3], ["n1", "Ready", "worker"]);
    assert_eq!(node[4..6], ["v1.34.0", "192.0.2.1"]);
    let (header, service) = row("get services -o wide", "web").await;
    assert_eq!(header, "NAME|TYPE|CLUSTER-IP|EXTERNAL-IP|PORT(S)|AGE|SELECTOR");
    assert_eq!(
        (service[1].as_str(), service[3].as_str(), service[4].as_str()),
        ("NodePort", "<none>", "80:30080/TCP")
    );
    assert_eq!(service[6], "app=web");
    let (header, deployment) = row("get deployments -o wide", "web").await;
    assert_eq!(
        header,
        "NAME|READY|UP-TO-DATE|AVAILABLE|AGE|CONTAINERS|IMAGES|SELECTOR"
    );
    assert_eq!(deployment[..4], ["web", "0/3", "0", "0"]);
    let (header, slice) = row("get endpointslices", "web-x").await;
    assert_eq!(header, "NAME|ADDRESSTYPE|PORTS|ENDPOINTS|AGE");
    assert_eq!(slice[1..4], ["IPv4", "8080", "10.1.0.1,10.1.0.2"]);
    let (header, namespace) = row("get namespaces", "default").await;
    assert_eq!(
        (header.as_str(), namespace[1].as_str()),
        ("NAME|STATUS|AGE", "Active")
    );
    let all = kubectl.run("get all").await;
    for name in ["pod/web-1", "service/web", "deployment.apps/web"] {
        assert!(all.contains(name), "{all}");
    }
    assert!(!all.contains("endpointslice"), "{all}");
}

#[tokio::test]
async fn other_outputs_show_the_object() {
    let kubectl = cluster().await;
    assert_eq!(
        kubectl
            .path("get pods", "{.items[*].spec.containers[*].name}")
            .await,
        "c d"
    );
    assert_eq!(
        kubectl.path("get service web", "{.spec.ports[0].nodePort}").await,
        "30080"
    );
    let columns = kubectl
        .run("get pods -o custom-columns=P:.metadata.name,N:.spec.nodeName")
        .await;
    assert_eq!(table(&columns)[1], ["web-1", "n1"]);
    assert_eq!(
        kubectl.run("get pods,services -l app=web -o name").await,
        "pod/web-1\n"
    );
    assert_eq!(
        kubectl
            .run("get pods --field-selector spec.nodeName=n1 -o name")
            .await,
        "pod/web-1\n"
    );
    let yaml = kubectl.run("get deployment web -o yaml").await;
    assert!(
        yaml.contains("apiVersion: apps/v1\n") && yaml.contains("replicas: 3\n"),
        "{yaml}"
    );
    let sorted = kubectl
        .run("get namespaces --sort-by=.metadata.name --no-headers")
        .await;
    assert!(sorted.starts_with("default"), "{sorted}");
    assert_eq!(kubectl.json("get pods -A").await["kind"], "List");
    let chunked = kubectl.run("get clusterroles --chunk-size=3 -o name").await;
    assert!(chunked.lines().count() > 6, "{chunked}");
}

#[tokio::test]
async fn describe_shows_objects_with_what_belongs_to_them() {
    let kubectl = cluster().await;
    let uid = kubectl.path("get pod web-1", "{.metadata.uid}").await;
    let event = r#"
apiVersion: v1
kind: Event
metadata: {name: web-1.1}
involvedObject: {apiVersion: v1, kind: Pod, name: web-1, namespace: default, uid: UID}
reason: Unhealthy
message: probe failed
type: Warning
count: 3
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:01:00Z"
source: {component: prober}
"#;
    kubectl.run_with("create -f -", &event.replace("UID", &uid)).await;
    let pod = kubectl.run("describe pod web-1").await;
    for part in [
        "Node:",
        "n1",
        "CrashLoopBackOff",
        "Restart Count:  2",
        "Unhealthy",
        "probe failed",
        "Tolerations:",
    ] {
        assert!(pod.contains(part), "{part:?} is not in\n{pod}");
    }
    let service = kubectl.run("describe service web").await;
    for part in ["NodePort:", "30080/TCP", "Selector:", "app=web", "10.1.0.1:8080"] {
        assert!(service.contains(part), "{part:?} is not in\n{service}");
    }
    let node = kubectl.run("describe node n1").await;
    for part in ["Non-terminated Pods:", "web-1", "192.0.2.1", "Taints:"] {
        assert!(node.contains(part), "{part:?} is not in\n{node}");
    }
    let deployment = kubectl.run("describe deployment web").await;
    assert!(deployment.contains("3 desired"), "{deployment}");
    let events = kubectl.run("events --for pod/web-1").await;
    assert!(events.contains("Unhealthy"), "{events}");
    let listed = kubectl.run("get events").await;
    assert!(
        listed.contains("pod/web-1") && listed.contains("probe failed"),
        "{listed}"
    );
}

#[tokio::test]
async fn watches_print_changes_and_waits_end_when_the_condition_holds() {
    let kubectl = cluster().await;
    let mut watching = kubectl.server.kubectl_command();
    let mut child = watching
        .args(["get", "pods", "--watch", "--output-watch-events"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        tokio::time::timeout(SOON, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    };
    assert!(next().await.starts_with("EVENT"));
    assert!(next().await.starts_with("ADDED"));
    kubectl.run("label pod web-1 seen=yes").await;
    assert!(next().await.starts_with("MODIFIED"));
    kubectl.run("run web-2 --image=host").await;
    let added = next().await;
    assert!(added.starts_with("ADDED") && added.contains("web-2"), "{added}");
    kubectl.run("delete pod web-2 --now").await;
    let mut line = next().await;
    if line.starts_with("MODIFIED") {
        line = next().await;
    }
    assert!(line.starts_with("DELETED"), "{line}");
    child.kill().await.unwrap();

    kubectl
        .run("wait --for=condition=Ready node/n1 --timeout=30s")
        .await;
    kubectl
        .run("wait --for=jsonpath={.status.phase}=Running pod/web-1 --timeout=30s")
        .await;
    let late = kubectl
        .fails("wait --for=condition=Ready pod/web-1 --timeout=1s", "")
        .await;
    assert!(late.contains("timed out"), "{late}");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let admin = kubectl.server.admin().await;
    let path = "/api/v1/namespaces/default/pods/web-1/status";
    let (waited, patched) = tokio::join!(
        kubectl.run("wait --for=condition=Ready pod/web-1 --timeout=30s"),
        admin.patch(path, "strategic-merge", &ready),
    );
    patched.expect(200);
    assert!(waited.contains("condition met"), "{waited}");
}
