//! Who reads the controllers' metrics at an address that others reach?

use pointsman_harness::{Server, eventually, program, token_file};
use serde_json::json;
use std::process::Stdio;
use tokio::process::Command;

/// The status that a request gets, and nothing if there is no answer.
async fn ask(url: &str, token: Option<&str>) -> String {
    let mut command = Command::new("curl");
    command.args(["-sk", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}"]);
    if let Some(token) = token {
        command.arg("-H").arg(format!("authorization: Bearer {token}"));
    }
    let answer = command.arg(url).output().await.unwrap();
    String::from_utf8(answer.stdout).unwrap()
}

fn port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_open_on_loopback_and_elsewhere_for_tokens_that_the_api_server_lets_read() {
    let home = tempfile::tempdir().unwrap();
    let tokens = token_file(
        home.path(),
        &[("reads", "prometheus", ""), ("other", "somebody", "")],
    );
    let server = Server::start(&["--token-auth-file", &tokens]).await;
    let admin = server.admin().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "reads-metrics" }, "rules": [{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }] });
    admin
        .post(&format!("{rbac}/clusterroles"), &role)
        .await
        .expect(201);
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "reads-metrics" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reads-metrics" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "prometheus" }] });
    admin
        .post(&format!("{rbac}/clusterrolebindings"), &binding)
        .await
        .expect(201);
    let kubeconfig = server
        .kubeconfig()
        .with_file_name("kubeconfigs/controllers.kubeconfig");
    let start = |listen: String| {
        let mut command = Command::new(program());
        command
            .arg("controllers")
            .arg("--leader-elect=false")
            .arg(format!("--metrics-listen={listen}"));
        command.arg("--kubeconfig").arg(&kubeconfig);
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    };

    let open = port();
    let _on_loopback = start(format!("127.0.0.1:{open}"));
    eventually("plain HTTP is spoken on loopback", async || {
        (ask(&format!("http://127.0.0.1:{open}/metrics"), None).await == "200").then_some(())
    })
    .await;

    let guarded = port();
    let _everywhere = start(format!("0.0.0.0:{guarded}"));
    let url = |path: &str| format!("https://127.0.0.1:{guarded}{path}");
    eventually("health needs no credentials", async || {
        (ask(&url("/healthz"), None).await == "200").then_some(())
    })
    .await;
    for (token, path, code) in [
        (None, "/metrics", "401"),
        (Some("forged"), "/metrics", "401"),
        (Some("other"), "/metrics", "403"),
        (Some("reads"), "/metrics", "200"),
        (Some("reads"), "/nothing", "403"),
    ] {
        assert_eq!(ask(&url(path), token).await, code, "{token:?} {path}");
    }
    assert_ne!(
        ask(&format!("http://127.0.0.1:{guarded}/metrics"), Some("reads")).await,
        "200"
    );
}
