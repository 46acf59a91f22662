//! Can an operator apply what `deploy/` holds, and does the program accept the arguments in it?

mod chart;
mod packages;
mod policies;
mod release;
mod rights;

use pointsman_harness::Server;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Every folder that can be given to `kubectl apply -k`, but for the one that gathers others.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(deploy())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("kustomization.yaml").exists())
        .collect();
    folders.sort();
    assert!(!folders.is_empty(), "deploy/ has no kustomization");
    folders
}

/// Kinds that the embedded server does not have. `policies` reads them with the types of real clients.
const ELSEWHERE: [&str; 3] = [
    "NetworkPolicy",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// The objects of a folder, each a text.
async fn documents(server: &Server, folder: &Path) -> Vec<String> {
    let mut command = server.kubectl_command();
    let output = command.arg("kustomize").arg(folder).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", folder.display());
    let text = String::from_utf8(output.stdout).unwrap();
    text.split("\n---\n").map(str::to_owned).collect()
}

/// The objects of a folder that the embedded server has kinds for.
async fn rendered(server: &Server, folder: &Path) -> Vec<u8> {
    let mut documents = documents(server, folder).await;
    documents.retain(|document| {
        let kind = document.lines().find_map(|line| line.strip_prefix("kind: "));
        !ELSEWHERE.contains(&kind.unwrap())
    });
    documents.join("\n---\n").into_bytes()
}

/// What `kubectl apply` answers to these objects, as JSON.
async fn apply(server: &Server, manifest: &[u8], flags: &[&str]) -> Vec<Value> {
    let mut command = server.kubectl_command();
    command.args(["apply", "--validate=strict", "-o", "json", "-f", "-"]);
    let mut child = command
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(manifest).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    match answer["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![answer],
    }
}

/// What it answers to a trial. Namespaces are made all the same: a server refuses to try what would be in one that is
/// not there.
async fn tried(server: &Server, manifest: &[u8]) -> Vec<Value> {
    let documents = std::str::from_utf8(manifest).unwrap().split("\n---\n");
    let is_namespace = |document: &&str| document.lines().any(|line| line == "kind: Namespace");
    let namespaces: Vec<&str> = documents.filter(is_namespace).collect();
    if !namespaces.is_empty() {
        apply(server, namespaces.join("\n---\n").as_bytes(), &[]).await;
    }
    apply(server, manifest, &["--dry-run=server"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_folder_is_accepted_by_a_server_and_applies_twice_without_change() {
    let server = Server::start(&[]).await;
    for folder in folders() {
        let manifest = rendered(&server, &folder).await;
        let tried = tried(&server, &manifest).await;
        let made = apply(&server, &manifest, &[]).await;
        assert_eq!(tried.len(), made.len(), "{}", folder.display());
        let again = apply(&server, &manifest, &[]).await;
        let versions = |objects: &[Value]| -> Vec<Value> {
            objects
                .iter()
                .map(|object| object["metadata"]["resourceVersion"].clone())
                .collect()
        };
        assert_eq!(versions(&made), versions(&again), "{}", folder.display());
    }
}

/// The containers of all workloads among these objects, with the folder they stand in.
fn containers(objects: &[Value]) -> Vec<Value> {
    let workloads = objects
        .iter()
        .filter(|object| object["spec"]["template"].is_object());
    workloads
        .flat_map(|object| {
            object["spec"]["template"]["spec"]["containers"]
                .as_array()
                .unwrap()
        })
        .filter(|container| container["image"].as_str().unwrap().starts_with("pointsman"))
        .cloned()
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_knows_every_argument_in_the_manifests() {
    let server = Server::start(&[]).await;
    let mut seen = 0;
    for folder in folders() {
        let manifest = rendered(&server, &folder).await;
        for container in containers(&tried(&server, &manifest).await) {
            let arguments = container["args"].as_array().unwrap().iter();
            let arguments: Vec<&str> = arguments.map(|argument| argument.as_str().unwrap()).collect();
            // What comes before `--help` is parsed before help is printed.
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_pointsman"))
                .args(&arguments)
                .arg("--help")
                .env("NODE_IP", "192.0.2.1")
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {errors}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "only {seen} containers of ours were found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_may_do_more_than_its_manifest_says_it_needs() {
    let server = Server::start(&[]).await;
    for folder in folders() {
        let manifest = rendered(&server, &folder).await;
        for object in tried(&server, &manifest).await {
            for rule in object["rules"].as_array().into_iter().flatten() {
                for field in ["verbs", "resources", "apiGroups"] {
                    let values = rule[field].as_array().cloned().unwrap_or_default();
                    assert!(
                        !values.contains(&json!("*")),
                        "{} has a wildcard in {field}",
                        object["metadata"]["name"]
                    );
                }
                let resources = rule["resources"].as_array().cloned().unwrap_or_default();
                assert!(
                    !resources.contains(&json!("secrets")),
                    "no role of ours reads Secrets"
                );
            }
        }
    }
}
