//! A cluster in the background that kubectl and our own commands find without being told, with its nodes in zones.

use crate::cluster::{Cluster, program};
use pointsman_testkit::require_netns;
use serde_json::Value;
use std::process::{Command, Output};

/// Runs a program as somebody with this home.
fn at_home(cluster: &Cluster, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("HOME", cluster.home())
        .env_remove("KUBECONFIG");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

#[test]
fn kubectl_finds_a_detached_cluster_until_it_is_stopped_and_nodes_are_in_zones() {
    require_netns!();
    let cluster = Cluster::not_started();
    let usual = cluster.home().join(".kube/config");
    std::fs::create_dir(cluster.home().join(".kube")).unwrap();
    let others = "apiVersion: v1\nkind: Config\ncurrent-context: work\ncontexts: [{name: work, context: {cluster: w, user: u}}]\n";
    std::fs::write(&usual, others).unwrap();
    let data = format!("--data-dir={}", cluster.data_dir().display());
    let name = format!("--name={}", cluster.name);
    let flags = [
        "up",
        "--detach",
        "--merge-kubeconfig",
        "--nodes=3",
        "--zones=a,b",
        &name,
        &data,
    ];
    let said = text(&at_home(&cluster, &program(), &flags));
    assert!(
        said.contains("ready in") && said.contains(&format!("pointsman-{}", cluster.name)),
        "{said}"
    );

    let zones = [
        "get",
        "nodes",
        "-o",
        r#"jsonpath={.items[*].metadata.labels.topology\.kubernetes\.io/zone}"#,
    ];
    assert_eq!(text(&at_home(&cluster, "kubectl", &zones)), "a b a");
    let context = text(&at_home(&cluster, "kubectl", &["config", "current-context"]));
    assert_eq!(context.trim(), format!("pointsman-{}", cluster.name));
    // Our own commands read the same file, and a list of files as kubectl does.
    let status = at_home(&cluster, &program(), &["profile", "status"]);
    assert!(
        text(&status).contains("No profile was ever asked for"),
        "{status:?}"
    );
    let list = std::env::join_paths([cluster.home().join("none"), usual.clone()]).unwrap();
    let mut explain = Command::new(program());
    explain.args(["explain", "--output=json", "default/kubernetes"]);
    let explained = explain
        .env("HOME", cluster.home())
        .env("KUBECONFIG", list)
        .output()
        .unwrap();
    let explained: Value =
        serde_json::from_slice(&explained.stdout).unwrap_or_else(|_| panic!("{explained:?}"));
    assert_eq!(explained["outcome"], "explained", "{explained}");
    let again = at_home(&cluster, &program(), &flags);
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("runs already"),
        "{again:?}"
    );

    text(&at_home(&cluster, &program(), &["down", &name]));
    let left = text(&at_home(
        &cluster,
        "kubectl",
        &["config", "get-contexts", "-o", "name"],
    ));
    assert_eq!(left, "work\n", "everything else stays");
    assert_eq!(cluster.traces(), Vec::<String>::new());
}

#[test]
fn a_detached_cluster_that_cannot_start_says_why() {
    let cluster = Cluster::not_started();
    std::fs::create_dir(cluster.data_dir()).unwrap();
    std::fs::write(cluster.data_dir().join("store"), "not a directory").unwrap();
    let data = format!("--data-dir={}", cluster.data_dir().display());
    let name = format!("--name={}", cluster.name);
    let up = at_home(
        &cluster,
        &program(),
        &[
            "up",
            "--detach",
            "--nodes=0",
            "--listen=127.0.0.1:0",
            &name,
            &data,
        ],
    );
    let errors = String::from_utf8_lossy(&up.stderr);
    assert_eq!(up.status.code(), Some(1), "{errors}");
    assert!(errors.contains("up.log"), "{errors}");
    let said = String::from_utf8_lossy(&up.stdout);
    assert!(said.contains("store"), "{said}");
}
