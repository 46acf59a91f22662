//! Deleting with grace, with dependents and by force.

use super::Kubectl;
use pointsman_harness::{eventually, pod};
use serde_json::{Value, json};

const SET: &str = "
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: owner}
spec:
  replicas: 0
  selector: {matchLabels: {app: owned}}
  template: {metadata: {labels: {app: owned}}, spec: {containers: [{name: c, image: host}]}}
";

/// Makes a ReplicaSet that owns a pod and a ConfigMap.
async fn family(kubectl: &Kubectl) {
    let set: Value = serde_json::from_str(&kubectl.run_with("create -o json -f -", SET).await).unwrap();
    let reference = json!([{
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "owner",
        "uid": set["metadata"]["uid"],
        "blockOwnerDeletion": true,
    }]);
    let mut owned = pod("owned");
    owned["metadata"]["ownerReferences"] = reference.clone();
    kubectl.run_with("create -f -", &owned.to_string()).await;
    let mut settings = pointsman_harness::config_map("owned", "x");
    settings["metadata"]["ownerReferences"] = reference;
    kubectl.run_with("create -f -", &settings.to_string()).await;
}

#[tokio::test]
async fn dependents_go_with_their_owner_or_are_let_go() {
    let kubectl = Kubectl::new().await;
    for cascade in ["background", "foreground"] {
        family(&kubectl).await;
        kubectl.run(&format!("delete rs owner --cascade={cascade}")).await;
        kubectl
            .run("wait --for=delete pod/owned configmap/owned --timeout=30s")
            .await;
    }
    family(&kubectl).await;
    kubectl.run("delete rs owner --cascade=orphan").await;
    assert!(kubectl.fails("get rs owner", "").await.contains("NotFound"));
    for resource in ["pod", "configmap"] {
        let owners = kubectl
            .path(&format!("get {resource} owned"), "{.metadata.ownerReferences}")
            .await;
        assert_eq!(owners, "", "{resource}");
    }
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_a_dependent_that_takes_its_time() {
    let kubectl = Kubectl::new().await;
    family(&kubectl).await;
    kubectl
        .run_args(
            &[
                "patch",
                "configmap",
                "owned",
                "-p",
                r#"{"metadata":{"finalizers":["test.example/hold"]}}"#,
            ],
            "",
        )
        .await;
    kubectl
        .run("delete rs owner --cascade=foreground --wait=false")
        .await;
    eventually("the dependent is being deleted", async || {
        let at = kubectl
            .path("get configmap owned", "{.metadata.deletionTimestamp}")
            .await;
        (!at.is_empty()).then_some(())
    })
    .await;
    assert_eq!(
        kubectl.path("get rs owner", "{.metadata.finalizers}").await,
        r#"["foregroundDeletion"]"#
    );
    kubectl
        .run_args(
            &[
                "patch",
                "configmap",
                "owned",
                "-p",
                r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["test.example/hold"]}}"#,
            ],
            "",
        )
        .await;
    kubectl.run("wait --for=delete rs/owner --timeout=30s").await;
}

#[tokio::test]
async fn pods_on_a_node_get_their_grace_and_force_takes_it_away() {
    let kubectl = Kubectl::new().await;
    kubectl
        .run_with(
            "create -f -",
            "{apiVersion: v1, kind: Node, metadata: {name: n1}}",
        )
        .await;
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = "n1".into();
    kubectl.run_with("create -f -", &bound.to_string()).await;
    kubectl
        .run("delete pod bound --grace-period=100 --wait=false")
        .await;
    assert_eq!(
        kubectl
            .path("get pod bound", "{.metadata.deletionGracePeriodSeconds}")
            .await,
        "100"
    );
    assert!(kubectl.run("get pod bound").await.contains("Terminating"));
    kubectl
        .run("delete pod bound --grace-period=20 --wait=false")
        .await;
    assert_eq!(
        kubectl
            .path("get pod bound", "{.metadata.deletionGracePeriodSeconds}")
            .await,
        "20"
    );
    kubectl.run("delete pod bound --grace-period=0 --force").await;
    assert!(kubectl.fails("get pod bound", "").await.contains("NotFound"));
    // Nobody runs a pod without a node, so there is nothing to wait for.
    kubectl.run_with("create -f -", &pod("free").to_string()).await;
    kubectl.run("delete pod free").await;
}

#[tokio::test]
async fn selectors_all_and_whole_namespaces_are_deleted() {
    let kubectl = Kubectl::new().await;
    kubectl.run("create namespace doomed").await;
    for name in ["a", "b", "c"] {
        kubectl.run(&format!("create configmap {name} -n doomed")).await;
    }
    kubectl.run("label configmap a b -n doomed group=first").await;
    kubectl.run("delete configmap -l group=first -n doomed").await;
    assert_eq!(
        kubectl.run("get configmap -n doomed -o name").await,
        "configmap/c\nconfigmap/kube-root-ca.crt\n"
    );
    kubectl.run("delete configmap --all -n doomed").await;
    // The authority's certificate is published again at once.
    let left = kubectl.run("get configmap -n doomed -o name").await;
    assert!(
        ["", "configmap/kube-root-ca.crt\n"].contains(&left.as_str()),
        "{left}"
    );
    kubectl.run("create configmap last -n doomed").await;
    kubectl.run("delete namespace doomed").await;
    assert!(
        kubectl
            .fails("get namespace doomed", "")
            .await
            .contains("NotFound")
    );
    assert_eq!(
        kubectl
            .run("get configmap -A -o name --field-selector metadata.namespace=doomed")
            .await,
        ""
    );
    assert!(
        kubectl
            .fails("delete namespace default", "")
            .await
            .contains("Forbidden")
    );
}
