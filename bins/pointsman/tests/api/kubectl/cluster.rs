//! What the cluster offers, who may do what, and nodes.

use super::{Kubectl, table};

#[tokio::test]
async fn resources_versions_and_fields_are_published() {
    let kubectl = Kubectl::new().await;
    let resources = kubectl.run("api-resources --no-headers").await;
    for line in [
        ["configmaps", "cm", "v1", "true", "ConfigMap"],
        ["pods", "po", "v1", "true", "Pod"],
        ["services", "svc", "v1", "true", "Service"],
        ["nodes", "no", "v1", "false", "Node"],
        ["deployments", "deploy", "apps/v1", "true", "Deployment"],
        ["replicasets", "rs", "apps/v1", "true", "ReplicaSet"],
    ] {
        assert!(
            resources.lines().any(|row| row.split_whitespace().eq(line)),
            "{line:?} is not in\n{resources}"
        );
    }
    for line in [
        ["endpointslices", "discovery.k8s.io/v1", "true", "EndpointSlice"],
        ["leases", "coordination.k8s.io/v1", "true", "Lease"],
        ["nodes", "config.openshift.io/v1", "false", "Node"],
        [
            "clusterrolebindings",
            "rbac.authorization.k8s.io/v1",
            "false",
            "ClusterRoleBinding",
        ],
    ] {
        assert!(
            resources.lines().any(|row| row.split_whitespace().eq(line)),
            "{line:?} is not in\n{resources}"
        );
    }
    let wide = kubectl
        .run("api-resources --verbs=list,watch --namespaced -o wide")
        .await;
    assert!(
        wide.contains("create,delete,deletecollection,get,list,patch,update,watch"),
        "{wide}"
    );
    assert!(
        kubectl
            .run("api-resources --categories=all -o name")
            .await
            .contains("deployments.apps")
    );
    let versions = kubectl.run("api-versions").await;
    for version in [
        "v1",
        "apps/v1",
        "config.openshift.io/v1",
        "discovery.k8s.io/v1",
        "events.k8s.io/v1",
    ] {
        assert!(versions.lines().any(|line| line == version), "{versions}");
    }
    let explained = kubectl.run("explain pod.spec.containers.readinessProbe").await;
    assert!(
        explained.contains("periodSeconds") && explained.contains("FIELD: readinessProbe"),
        "{explained}"
    );
    assert!(
        kubectl
            .run("explain node.spec --api-version=config.openshift.io/v1")
            .await
            .contains("workerLatencyProfile")
    );
    let cluster = kubectl.run("cluster-info").await;
    assert!(cluster.contains("https://127.0.0.1:"), "{cluster}");
    let version = kubectl.json("version").await;
    assert!(
        version["serverVersion"]["gitVersion"]
            .as_str()
            .unwrap()
            .starts_with("v1."),
        "{version}"
    );
    assert_eq!(kubectl.run("get --raw /readyz").await, "ok");
    assert!(
        kubectl
            .run("get --raw /readyz?verbose")
            .await
            .contains("readyz check passed")
    );
    let metrics = kubectl.run("get --raw /metrics").await;
    for name in [
        "apiserver_request_total",
        "apiserver_request_duration_seconds_bucket",
        "apiserver_current_inflight_requests",
    ] {
        assert!(metrics.contains(name), "{name} is not exported");
    }
}

#[tokio::test]
async fn conditions_of_an_endpoint_are_explained_with_what_unset_means_and_their_gate() {
    let kubectl = Kubectl::new().await;
    let gate = "feature gate EndpointSliceTerminatingCondition";
    let meanings = [
        ("ready", "Unset means ready.", "No feature gate"),
        ("serving", "Unset means the same as ready.", gate),
        ("terminating", "Unset means not terminating.", gate),
    ];
    // kubectl breaks lines where they are long.
    let explain = async |path: &str| {
        let explained = kubectl.run(&format!("explain endpointslice.{path}")).await;
        explained.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let all = explain("endpoints.conditions").await;
    for (condition, unset, gate) in meanings {
        let one = explain(&format!("endpoints.conditions.{condition}")).await;
        for text in [&all, &one] {
            assert!(text.contains(unset) && text.contains(gate), "{condition}: {text}");
        }
    }
}

#[tokio::test]
async fn users_can_ask_what_they_may_do() {
    let kubectl = Kubectl::new().await;
    assert_eq!(kubectl.run("auth can-i create pods").await, "yes\n");
    assert!(kubectl.run("auth whoami").await.contains("system:masters"));
    for line in [
        "create clusterrole reader --verb=get,list --resource=pods",
        "create clusterrolebinding readers --clusterrole=reader --user=jane",
        "create rolebinding jane --clusterrole=edit --user=jane -n kube-public",
    ] {
        kubectl.run(line).await;
    }
    assert_eq!(kubectl.run("auth can-i list pods --as jane").await, "yes\n");
    let denied = ["auth", "can-i", "delete", "pods", "--as", "jane"];
    let denied = kubectl.output(&denied, "").await;
    assert_eq!((denied.status.code(), &*denied.stdout), (Some(1), &b"no\n"[..]));
    let in_public = "auth can-i create configmaps --as jane -n kube-public";
    assert_eq!(kubectl.run(in_public).await, "yes\n");
    let rules = table(&kubectl.run("auth can-i --list --as jane").await);
    let granted = rules
        .iter()
        .find(|row| row[0] == "pods")
        .expect("a rule for pods");
    assert_eq!(granted.last().unwrap(), "[get list]");
    let refused = kubectl.fails("get services --as jane", "").await;
    assert!(
        refused.contains("User \"jane\" cannot list resource \"services\""),
        "{refused}"
    );
    kubectl.run("get pods --as jane").await;
    assert!(
        kubectl
            .run("auth whoami --as jane --as-group ops")
            .await
            .contains("ops")
    );
}

#[tokio::test]
async fn nodes_are_tainted_cordoned_and_drained() {
    let kubectl = Kubectl::new().await;
    kubectl
        .run_with(
            "create -f -",
            "{apiVersion: v1, kind: Node, metadata: {name: n1}}",
        )
        .await;
    let not_ready = kubectl.path("get node n1", "{.spec.taints[*].key}").await;
    assert_eq!(not_ready, "node.kubernetes.io/not-ready");
    kubectl.run("taint node n1 dedicated=db:NoSchedule").await;
    assert!(
        kubectl
            .path("get node n1", "{.spec.taints[*].key}")
            .await
            .contains("dedicated")
    );
    kubectl.run("taint node n1 dedicated-").await;
    assert!(
        !kubectl
            .path("get node n1", "{.spec.taints[*].key}")
            .await
            .contains("dedicated")
    );
    kubectl.run("cordon n1").await;
    assert!(kubectl.run("get node n1").await.contains("SchedulingDisabled"));
    kubectl.run("uncordon n1").await;
    assert_eq!(kubectl.path("get node n1", "{.spec.unschedulable}").await, "");
    let waiting = r#"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: n1,
        terminationGracePeriodSeconds: 0, containers: [{name: c, image: host}]}}"#;
    kubectl.run_with("create -f -", waiting).await;
    kubectl.run("drain n1 --force --timeout=30s").await;
    assert!(kubectl.fails("get pod p", "").await.contains("NotFound"));
}

#[tokio::test]
async fn rollout_history_and_status_read_what_controllers_would_write() {
    let kubectl = Kubectl::new().await;
    kubectl
        .run("create deployment web --image=host --replicas=0")
        .await;
    let uid = kubectl.path("get deployment web", "{.metadata.uid}").await;
    let set = format!(
        r#"{{apiVersion: apps/v1, kind: ReplicaSet, metadata: {{name: web-1, labels: {{app: web, pod-template-hash: "1"}},
        annotations: {{deployment.kubernetes.io/revision: "1"}}, ownerReferences: [{{apiVersion: apps/v1,
        kind: Deployment, name: web, uid: {uid}, controller: true}}]}}, spec: {{replicas: 0,
        selector: {{matchLabels: {{app: web, pod-template-hash: "1"}}}}, template: {{metadata: {{labels: {{app: web,
        pod-template-hash: "1"}}}}, spec: {{containers: [{{name: host, image: host}}]}}}}}}}}"#
    );
    kubectl.run_with("create -f -", &set).await;
    let history = kubectl.run("rollout history deployment/web").await;
    assert!(
        history.contains("REVISION") && history.lines().any(|line| line.starts_with('1')),
        "{history}"
    );
    kubectl.run("rollout restart deployment/web").await;
    kubectl.run("rollout pause deployment/web").await;
    assert_eq!(kubectl.path("get deployment web", "{.spec.paused}").await, "true");
    kubectl.run("rollout resume deployment/web").await;
    let generation = kubectl.path("get deployment web", "{.metadata.generation}").await;
    let status = format!(r#"{{"status":{{"observedGeneration":{generation}}}}}"#);
    kubectl
        .run_args(
            &[
                "patch",
                "deployment",
                "web",
                "--subresource=status",
                "--type=merge",
                "-p",
                &status,
            ],
            "",
        )
        .await;
    let done = kubectl.run("rollout status deployment/web --timeout=20s").await;
    assert!(done.contains("successfully rolled out"), "{done}");
}

#[tokio::test]
async fn latency_profiles_are_set_on_the_cluster_node_object() {
    let kubectl = Kubectl::new().await;
    let node = "{apiVersion: config.openshift.io/v1, kind: Node, metadata: {name: cluster}, spec: {}}";
    let this = "nodes.config.openshift.io cluster";
    let slow = r#"{"spec":{"workerLatencyProfile":"LowUpdateSlowReaction"}}"#;
    kubectl
        .run_args(
            &[
                "patch",
                "nodes.config.openshift.io",
                "cluster",
                "--type=merge",
                "-p",
                slow,
            ],
            "",
        )
        .await;
    assert_eq!(
        kubectl
            .path(&format!("get {this}"), "{.spec.workerLatencyProfile}")
            .await,
        "LowUpdateSlowReaction"
    );
    let bad = node.replace("spec: {}", "spec: {workerLatencyProfile: Fastest}");
    let refused = kubectl.fails("apply -f -", &bad).await;
    assert!(refused.contains("workerLatencyProfile"), "{refused}");
    // Plain `nodes` are the cluster's machines.
    assert_eq!(kubectl.run("get nodes -o name").await, "");
}
