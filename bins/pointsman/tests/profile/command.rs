//! The command line, and what can be asked about a profile.

use pointsman_api_client::Resource;
use pointsman_harness::cluster::Cluster;
use serde_json::Value;
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::process::Command;

/// Runs `pointsman profile` with these arguments.
pub async fn profile(kubeconfig: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.arg("profile").args(arguments).env_remove("KUBECONFIG");
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap()
}

/// The same; it has to succeed.
pub async fn succeed(kubeconfig: Option<&Path>, arguments: &[&str]) -> String {
    let output = profile(kubeconfig, arguments).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "profile {arguments:?}: {errors}\n{text}");
    text
}

/// The same; it has to fail.
pub async fn fail(kubeconfig: Option<&Path>, arguments: &[&str]) -> String {
    let output = profile(kubeconfig, arguments).await;
    assert!(!output.status.success(), "profile {arguments:?} succeeded");
    String::from_utf8(output.stderr).unwrap()
}

/// A condition's status and reason.
pub async fn condition(cluster: &Cluster, owner: &str, kind: &str) -> (String, String) {
    let found = conditions(cluster).await;
    let condition = found
        .iter()
        .find(|it| it["owner"] == owner && it["type"] == kind)
        .cloned()
        .unwrap_or_default();
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

pub async fn conditions(cluster: &Cluster) -> Vec<Value> {
    let object: Value = cluster
        .client
        .get_path("/apis/config.openshift.io/v1/nodes/cluster")
        .await
        .unwrap();
    let conditions = &object["status"]["workerLatencyProfileStatus"]["conditions"];
    conditions.as_array().cloned().unwrap_or_default()
}

/// A ConfigMap in `kube-system`.
pub async fn map(cluster: &Cluster, name: &str) -> Value {
    let api = cluster
        .client
        .api(Resource::core("configmaps"), Some("kube-system"));
    api.get(name).await.unwrap()
}

/// Reasons of events about the profile.
pub async fn events(cluster: &Cluster) -> Vec<String> {
    let list: Value = cluster
        .client
        .get_path("/api/v1/namespaces/default/events")
        .await
        .unwrap();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .iter()
        .filter(|event| event["involvedObject"]["name"] == "cluster")
        .map(|event| event["reason"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test]
async fn plans_are_printed_for_people_programs_and_pages() {
    let text = succeed(None, &["plan", "--from", "Default", "--to", "low"]).await;
    assert!(
        text.starts_with("5 steps, every state on the way is safe."),
        "{text}"
    );
    assert!(text.contains("MediumUpdateAverageReaction"), "{text}");
    let day_zero = succeed(None, &["plan", "--from", "Default", "--to", "low", "--day", "0"]).await;
    assert!(day_zero.starts_with("3 steps"), "{day_zero}");
    let json = succeed(
        None,
        &["plan", "--from", "1m/40s/60", "--to", "medium", "-o", "json"],
    )
    .await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["safe"], false);
    assert_eq!(json["from"]["verdict"]["impact"], "noChance");
    assert_eq!(json["steps"][0]["purpose"], "relief");
    let svg = succeed(
        None,
        &["plan", "--from", "low", "--to", "Default", "--output", "svg"],
    )
    .await;
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    let page = include_str!("../../../../docs/latency-profile-default-to-low.svg");
    let again = succeed(None, &["plan", "--from", "Default", "--to", "low", "-o", "svg"]).await;
    assert_eq!(page, again, "the picture in docs/ is what the command prints");
}

#[tokio::test]
async fn mistakes_are_answered_with_what_to_do() {
    let error = fail(None, &["plan", "--from", "Default", "--to", "Slow"]).await;
    assert!(error.contains("is not a profile; there are Default"), "{error}");
    let error = fail(None, &["plan", "--from", "10s/soon/300", "--to", "low"]).await;
    assert!(error.contains("is not a duration such as 10s"), "{error}");
    let error = fail(None, &["check", "--kubeadm-dir", "/nowhere"]).await;
    assert!(error.contains("/nowhere"), "{error}");
    let error = fail(None, &["restore", "--kubeadm-dir", "/nowhere"]).await;
    assert!(
        error.contains("`pointsman profile apply Default` is the way back"),
        "{error}"
    );
}
