//! Every kind goes through the same life.

use super::Kubectl;
use serde_json::Value;

/// What kubectl calls the kind, whether it is namespaced, and an object of it.
struct Sample {
    resource: &'static str,
    namespaced: bool,
    manifest: &'static str,
}

/// How many samples are of the core group; they come first.
const CORE: usize = 8;

const SAMPLES: &[Sample] = &[
    Sample {
        resource: "configmap",
        namespaced: true,
        manifest: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sample}\ndata: {a: b}\n",
    },
    Sample {
        resource: "endpoints",
        namespaced: true,
        manifest: "apiVersion: v1\nkind: Endpoints\nmetadata: {name: sample}\n\
                   subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80, protocol: TCP}]}]\n",
    },
    Sample {
        resource: "event",
        namespaced: true,
        manifest: "apiVersion: v1\nkind: Event\nmetadata: {name: sample}\n\
                   involvedObject: {kind: Pod, name: p, namespace: life, apiVersion: v1}\n\
                   reason: Tested\nmessage: seen\ntype: Normal\ncount: 1\n",
    },
    Sample {
        resource: "namespace",
        namespaced: false,
        manifest: "apiVersion: v1\nkind: Namespace\nmetadata: {name: sample}\n",
    },
    Sample {
        resource: "node",
        namespaced: false,
        manifest: "apiVersion: v1\nkind: Node\nmetadata: {name: sample}\nspec: {podCIDR: 10.1.0.0/24}\n",
    },
    Sample {
        resource: "pod",
        namespaced: true,
        manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: sample}\n\
                   spec: {containers: [{name: c, image: host}]}\n",
    },
    Sample {
        resource: "service",
        namespaced: true,
        manifest: "apiVersion: v1\nkind: Service\nmetadata: {name: sample}\n\
                   spec: {selector: {a: b}, ports: [{port: 80}]}\n",
    },
    Sample {
        resource: "serviceaccount",
        namespaced: true,
        manifest: "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sample}\n",
    },
    Sample {
        resource: "deployment",
        namespaced: true,
        manifest: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: sample}\n\
                   spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, \
                   spec: {containers: [{name: c, image: host}]}}}\n",
    },
    Sample {
        resource: "replicaset",
        namespaced: true,
        manifest: "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: sample}\n\
                   spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, \
                   spec: {containers: [{name: c, image: host}]}}}\n",
    },
    Sample {
        resource: "lease",
        namespaced: true,
        manifest: "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: sample}\n\
                   spec: {holderIdentity: me, leaseDurationSeconds: 40}\n",
    },
    Sample {
        resource: "endpointslice",
        namespaced: true,
        manifest: "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: sample}\n\
                   addressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{name: \"\", port: 80, protocol: TCP}]\n",
    },
    Sample {
        resource: "events.events.k8s.io",
        namespaced: true,
        manifest: "apiVersion: events.k8s.io/v1\nkind: Event\nmetadata: {name: sample-new}\n\
                   eventTime: \"2026-01-02T03:04:05.000006Z\"\nreportingController: tests\n\
                   reportingInstance: tests-1\naction: Testing\nreason: Tested\ntype: Normal\nnote: seen\n\
                   regarding: {kind: Pod, name: p, namespace: life, apiVersion: v1}\n",
    },
    Sample {
        resource: "clusterrole",
        namespaced: false,
        manifest: "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: sample}\n\
                   rules: [{apiGroups: [\"\"], resources: [pods], verbs: [get]}]\n",
    },
    Sample {
        resource: "clusterrolebinding",
        namespaced: false,
        manifest: "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: sample}\n\
                   roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
                   subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]\n",
    },
    Sample {
        resource: "role",
        namespaced: true,
        manifest: "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: sample}\n\
                   rules: [{apiGroups: [\"\"], resources: [pods], verbs: [get]}]\n",
    },
    Sample {
        resource: "rolebinding",
        namespaced: true,
        manifest: "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: sample}\n\
                   roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
                   subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]\n",
    },
    Sample {
        resource: "nodes.config.openshift.io",
        namespaced: false,
        manifest: "apiVersion: config.openshift.io/v1\nkind: Node\nmetadata: {name: cluster}\n\
                   spec: {workerLatencyProfile: Default}\n",
    },
];

/// Every kind is created, read, labelled, annotated, patched, applied and deleted.
async fn live_all(samples: &[Sample]) {
    let kubectl = Kubectl::new().await;
    kubectl.run("create namespace life").await;
    // The only object of its kind, and there from the start.
    kubectl.run("delete nodes.config.openshift.io cluster").await;
    for sample in samples {
        live(&kubectl, sample).await;
    }
}

#[tokio::test]
async fn every_core_kind_lives_a_whole_life() {
    live_all(&SAMPLES[..CORE]).await;
}

#[tokio::test]
async fn every_kind_of_other_groups_lives_a_whole_life() {
    live_all(&SAMPLES[CORE..]).await;
}

async fn live(kubectl: &Kubectl, sample: &Sample) {
    let created: Value = serde_json::from_str(
        &kubectl
            .run_with("create -n life -o json -f -", sample.manifest)
            .await,
    )
    .unwrap();
    let name = created["metadata"]["name"].as_str().unwrap();
    let space = if sample.namespaced { "-n life" } else { "" };
    let this = format!("{space} {} {name}", sample.resource);
    assert!(created["metadata"]["uid"].is_string(), "{created}");

    let shown = kubectl.run(&format!("get {this}")).await;
    assert!(
        shown.contains("AGE") || shown.contains("LAST SEEN") || shown.contains("CREATED AT"),
        "{shown}"
    );
    assert!(shown.contains(name) || shown.contains("Tested"), "{shown}");
    let yaml = kubectl.run(&format!("get {this} -o yaml")).await;
    assert!(yaml.contains(&format!("name: {name}")), "{yaml}");
    assert!(
        kubectl.run(&format!("describe {this}")).await.contains(name),
        "describe {this}"
    );

    kubectl.run(&format!("label {this} tier=gold")).await;
    kubectl.run(&format!("annotate {this} note=kept")).await;
    kubectl
        .run_args(
            &patch(&this, "merge", r#"{"metadata":{"labels":{"merged":"yes"}}}"#),
            "",
        )
        .await;
    let add = r#"[{"op":"add","path":"/metadata/labels/jsoned","value":"yes"}]"#;
    kubectl.run_args(&patch(&this, "json", add), "").await;
    // Upstream has no strategic patch for custom kinds.
    if sample.resource != "nodes.config.openshift.io" {
        let strategic = r#"{"metadata":{"labels":{"strategic":"yes"}}}"#;
        kubectl.run_args(&patch(&this, "strategic", strategic), "").await;
    }
    let selected = kubectl
        .run(&format!(
            "get {space} {} -l tier=gold,merged,jsoned -o name",
            sample.resource
        ))
        .await;
    assert!(selected.trim().ends_with(&format!("/{name}")), "{selected}");
    assert_eq!(
        kubectl
            .path(&format!("get {this}"), "{.metadata.annotations.note}")
            .await,
        "kept"
    );

    kubectl.run(&format!("delete {this} --wait=false")).await;
    kubectl
        .run(&format!("wait --for=delete {this} --timeout=30s"))
        .await;
    let applied = kubectl.run_with("apply -n life -f -", sample.manifest).await;
    assert!(applied.contains("created"), "{applied}");
    let again = kubectl.run_with("apply -n life -f -", sample.manifest).await;
    assert!(again.contains("unchanged"), "{again}");
    kubectl.run_with("delete -n life -f -", sample.manifest).await;
    let gone = kubectl.fails(&format!("get {this}"), "").await;
    assert!(gone.contains("NotFound"), "{gone}");
}

fn patch<'a>(this: &'a str, form: &'a str, body: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["patch"];
    arguments.extend(this.split_whitespace());
    arguments.extend(["--type", form, "-p", body]);
    arguments
}
