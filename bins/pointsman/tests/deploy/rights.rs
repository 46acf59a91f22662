//! Can every role do its work with exactly the rights that `deploy/` gives it?
//!
//! Roles run as the service accounts of their manifests, against a server that enforces RBAC, and do
//! what they do in a cluster. A single refused request fails the test.

use super::{apply, deploy, rendered};
use pointsman_harness::{Server, eventually, pod};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// A kubeconfig for the service account of a folder, whose rights are applied, and nobody else's.
async fn account(server: &Server, folder: &str, name: &str, home: &tempfile::TempDir) -> PathBuf {
    let manifest = rendered(server, &deploy().join(folder)).await;
    apply(server, &manifest, &[]).await;
    let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let mut config: Value = serde_saphyr::from_str(&text).unwrap();
    config["users"][0]["user"]["as"] = json!(format!("system:serviceaccount:kube-system:{name}"));
    let path = home.path().join("role.kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

fn run(kubeconfig: &PathBuf, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.spawn().unwrap()
}

/// Requests that were refused for want of a right, by the server's own count.
async fn refused(server: &Server) -> Vec<String> {
    let metrics = server.admin().await.get("/metrics").await.text;
    let refused = metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total") && line.contains("code=\"403\""));
    refused.map(str::to_owned).collect()
}

async fn read(server: &Server, path: &str) -> Value {
    server.admin().await.get(path).await.json()
}

/// A pod with an address that is ready or not.
async fn report(server: &Server, name: &str, ready: &str) {
    let status = json!({ "status": { "phase": "Running", "podIP": "10.1.2.3", "podIPs": [{ "ip": "10.1.2.3" }],
        "conditions": [{ "type": "Ready", "status": ready }] } });
    let path = format!("/api/v1/namespaces/default/pods/{name}/status");
    let answer = server.admin().await.patch(&path, "merge", &status).await;
    assert_eq!(answer.code, 200, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slice_controller_writes_slices_with_its_shipped_rights() {
    let server = Server::start(&[]).await;
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = account(&server, "controllers", "pointsman-controllers", &home).await;
    let _role = run(
        &kubeconfig,
        &[
            "controllers",
            "--controllers=endpointslice",
            "--metrics-listen=127.0.0.1:0",
        ],
    );
    let admin = server.admin().await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    assert_eq!(admin.post("/api/v1/nodes", &node).await.code, 201);
    let mut web = pod("web");
    web["metadata"]["labels"] = json!({ "app": "web" });
    web["spec"]["nodeName"] = json!("n1");
    assert_eq!(
        admin.post("/api/v1/namespaces/default/pods", &web).await.code,
        201
    );
    report(&server, "web", "True").await;
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } });
    assert_eq!(
        admin
            .post("/api/v1/namespaces/default/services", &service)
            .await
            .code,
        201
    );
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dweb";
    for (ready, expected) in [("True", true), ("False", false), ("True", true)] {
        report(&server, "web", ready).await;
        eventually("the slice follows the pod", async || {
            let list = read(&server, slices).await;
            (list["items"][0]["endpoints"][0]["conditions"]["ready"] == json!(expected)).then_some(())
        })
        .await;
    }
    let gone = admin.delete("/api/v1/namespaces/default/services/web").await;
    assert_eq!(gone.code, 200);
    eventually("the slice goes with its Service", async || {
        let list = read(&server, slices).await;
        list["items"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    assert_eq!(refused(&server).await, Vec::<String>::new());
}
