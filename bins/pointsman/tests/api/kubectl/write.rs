//! Creating and changing objects in every way kubectl has.

use super::Kubectl;

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {team: a, tier: front}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: c
        image: host
        env: [{name: A, value: one}, {name: B, value: two}]
";

#[tokio::test]
async fn applying_again_changes_removes_and_keeps_what_others_set() {
    let kubectl = Kubectl::new().await;
    assert!(kubectl.run_with("apply -f -", WEB).await.contains("created"));
    // Someone else sets a label and a variable that the manifest does not name.
    kubectl.run("label deployment web other=kept").await;
    kubectl.run("set env deployment/web C=three").await;
    let changed = WEB
        .replace("team: a, ", "")
        .replace("replicas: 2", "replicas: 5")
        .replace("{name: A, value: one}, ", "");
    assert!(
        kubectl
            .run_with("apply -f -", &changed)
            .await
            .contains("configured")
    );
    let web = kubectl.json("get deployment web").await;
    assert_eq!(
        web["metadata"]["labels"],
        serde_json::json!({"tier": "front", "other": "kept"})
    );
    assert_eq!(web["spec"]["replicas"], 5);
    let names = kubectl
        .path(
            "get deployment web",
            "{.spec.template.spec.containers[0].env[*].name}",
        )
        .await;
    let mut names: Vec<&str> = names.split(' ').collect();
    names.sort_unstable();
    assert_eq!(names, ["B", "C"]);
    // kubectl cannot see that the order it asks for is there already; the server can.
    kubectl.run_with("apply -f -", &changed).await;
    let version = kubectl
        .path("get deployment web", "{.metadata.resourceVersion}")
        .await;
    assert_eq!(web["metadata"]["resourceVersion"], version);
    let last = kubectl.run("apply view-last-applied deployment/web").await;
    assert!(last.contains("replicas: 5"), "{last}");
}

#[tokio::test]
async fn diff_and_server_dry_run_change_nothing() {
    let kubectl = Kubectl::new().await;
    kubectl.run_with("apply -f -", WEB).await;
    let before = kubectl
        .path("get deployment web", "{.metadata.resourceVersion}")
        .await;
    let changed = WEB.replace("replicas: 2", "replicas: 7");
    // Without a diff program on the machine kubectl diff cannot do anything.
    if std::process::Command::new("diff")
        .arg("--version")
        .output()
        .is_ok()
    {
        let output = kubectl.output(&["diff", "-f", "-"], &changed).await;
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(String::from_utf8_lossy(&output.stdout).contains("+  replicas: 7"));
    }
    let dry = kubectl
        .run_with(
            "apply --dry-run=server -o jsonpath={.spec.replicas} -f -",
            &changed,
        )
        .await;
    assert_eq!(dry, "7");
    kubectl.run("delete deployment web --dry-run=server").await;
    kubectl
        .run("scale deployment web --replicas=9 --dry-run=server")
        .await;
    kubectl.run("label deployment web a=b --dry-run=server").await;
    let made = kubectl
        .run("create configmap new --from-literal=a=b --dry-run=server -o name")
        .await;
    assert_eq!(made, "configmap/new\n");
    assert!(kubectl.fails("get configmap new", "").await.contains("NotFound"));
    assert_eq!(
        kubectl
            .path("get deployment web", "{.metadata.resourceVersion}")
            .await,
        before
    );
}

#[tokio::test]
async fn labels_annotations_and_patches_of_all_types_arrive() {
    let kubectl = Kubectl::new().await;
    kubectl.run_with("apply -f -", WEB).await;
    kubectl.run("label deployment web tier=back --overwrite").await;
    assert!(
        kubectl
            .fails("label deployment web tier=other", "")
            .await
            .contains("already has a value")
    );
    kubectl.run("label deployment web team-").await;
    kubectl.run("annotate deployment web note=hello").await;
    let patch = async |form: &str, body: &str| {
        kubectl
            .run_args(&["patch", "deployment", "web", "--type", form, "-p", body], "")
            .await
    };
    patch("merge", r#"{"spec":{"replicas":4}}"#).await;
    patch(
        "strategic",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"host"}]}}}}"#,
    )
    .await;
    patch("json", r#"[{"op":"test","path":"/spec/replicas","value":4},{"op":"replace","path":"/spec/replicas","value":6}]"#)
        .await;
    let web = kubectl.json("get deployment web").await;
    assert_eq!(web["metadata"]["labels"], serde_json::json!({"tier": "back"}));
    assert_eq!(web["metadata"]["annotations"]["note"], "hello");
    assert_eq!(web["spec"]["replicas"], 6);
    assert_eq!(
        web["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let failed = kubectl
        .output(
            &[
                "patch",
                "deployment",
                "web",
                "--type",
                "json",
                "-p",
                r#"[{"op":"test","path":"/spec/replicas","value":1}]"#,
            ],
            "",
        )
        .await;
    assert!(!failed.status.success());
    kubectl.run("set image deployment/web c=other:2").await;
    assert_eq!(
        kubectl
            .path(
                "get deployment web",
                "{.spec.template.spec.containers[?(@.name=='c')].image}"
            )
            .await,
        "other:2"
    );
    assert_eq!(
        kubectl
            .path("get deployment web --subresource=scale", "{.spec.replicas}")
            .await,
        "6"
    );
    patch("merge", r#"{"metadata":{"annotations":{"note":null}}}"#).await;
    assert_eq!(
        kubectl
            .path("get deployment web", "{.metadata.annotations.note}")
            .await,
        ""
    );
}

#[tokio::test]
async fn scale_sets_replicas_unless_they_are_not_what_was_expected() {
    let kubectl = Kubectl::new().await;
    kubectl.run_with("apply -f -", WEB).await;
    kubectl.run("scale deployment web --replicas=3").await;
    kubectl
        .run("scale deployment web --current-replicas=3 --replicas=5")
        .await;
    let refused = kubectl
        .fails("scale deployment web --current-replicas=3 --replicas=1", "")
        .await;
    assert!(refused.contains("Expected replicas to be 3, was 5"), "{refused}");
    assert_eq!(kubectl.path("get deployment web", "{.spec.replicas}").await, "5");
    let set = WEB.replace("kind: Deployment", "kind: ReplicaSet");
    kubectl.run_with("apply -f -", &set).await;
    kubectl.run("scale rs/web --replicas=0").await;
    assert_eq!(kubectl.path("get rs web", "{.spec.replicas}").await, "0");
}

#[tokio::test]
async fn generators_replace_and_edit_work() {
    let kubectl = Kubectl::new().await;
    kubectl.run("create namespace made").await;
    for line in [
        "create deployment web --image=host --replicas=2 --port=80",
        "create configmap settings --from-literal=a=b",
        "create service clusterip plain --tcp=80:8080",
        "create service nodeport open --tcp=80 --node-port=30123",
        "create service externalname far --external-name=example.org",
        "create role reader --verb=get,list --resource=pods,services",
        "create rolebinding readers --role=reader --user=jane",
        "create clusterrole watcher --verb=watch --resource=nodes",
        "create clusterrolebinding watchers --clusterrole=watcher --group=ops",
        "create serviceaccount robot",
    ] {
        kubectl.run(&format!("{line} -n made")).await;
    }
    kubectl
        .run("expose deployment web --port=80 --target-port=8080 --name=exposed -n made")
        .await;
    kubectl.run("run one --image=host --labels=a=b -n made").await;
    assert_eq!(
        kubectl
            .path("get service open -n made", "{.spec.ports[0].nodePort}")
            .await,
        "30123"
    );
    assert_eq!(
        kubectl
            .path("get service exposed -n made", "{.spec.selector.app}")
            .await,
        "web"
    );
    let taken = kubectl
        .fails(
            "create service nodeport second --tcp=80 --node-port=30123 -n made",
            "",
        )
        .await;
    assert!(taken.contains("30123") && taken.contains("allocated"), "{taken}");
    let again = kubectl.fails("create configmap settings -n made", "").await;
    assert!(again.contains("already exists"), "{again}");

    let yaml = kubectl.run("get configmap settings -n made -o yaml").await;
    kubectl
        .run_with("replace -f -", &yaml.replace("a: b", "a: c"))
        .await;
    assert_eq!(
        kubectl.path("get configmap settings -n made", "{.data.a}").await,
        "c"
    );
    let stale = kubectl.fails("replace -f -", &yaml).await;
    assert!(
        stale.contains("Conflict") || stale.contains("object has been modified"),
        "{stale}"
    );
    kubectl.run_with("replace --force -f -", &yaml).await;

    let mut edit = kubectl.server.kubectl_command();
    edit.env("EDITOR", "sed -i s/replicas:.2/replicas:\\ 8/").args([
        "edit",
        "deployment",
        "web",
        "-n",
        "made",
    ]);
    let output = edit.output().await.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        kubectl
            .path("get deployment web -n made", "{.spec.replicas}")
            .await,
        "8"
    );
}

#[tokio::test]
async fn mistakes_are_named() {
    let kubectl = Kubectl::new().await;
    let unknown = kubectl
        .fails("apply -f -", &WEB.replace("replicas: 2", "replcias: 2"))
        .await;
    assert!(unknown.contains("unknown field \"spec.replcias\""), "{unknown}");
    kubectl
        .run_with(
            "apply --validate=false -f -",
            &WEB.replace("replicas: 2", "replcias: 2"),
        )
        .await;
    let wrong = kubectl
        .fails("apply -f -", &WEB.replace("replicas: 2", "replicas: two"))
        .await;
    assert!(wrong.contains("replicas"), "{wrong}");
    let invalid = kubectl
        .fails("create -f -", &WEB.replace("name: web", "name: Web_"))
        .await;
    assert!(
        invalid.contains("metadata.name") && invalid.contains("is invalid"),
        "{invalid}"
    );
    let selector = kubectl
        .fails(
            "create -f -",
            &WEB.replace("matchLabels: {app: web}", "matchLabels: {app: x}"),
        )
        .await;
    assert!(selector.contains("spec.template.metadata.labels"), "{selector}");
    let nowhere = kubectl.fails("create configmap a -n nowhere", "").await;
    assert!(nowhere.contains("namespaces \"nowhere\" not found"), "{nowhere}");
    let side = kubectl.fails("apply --server-side -f -", WEB).await;
    assert!(side.to_lowercase().contains("server-side apply"), "{side}");
    let other = kubectl.fails("get widgets", "").await;
    assert!(
        other.contains("the server doesn't have a resource type \"widgets\""),
        "{other}"
    );
}

#[tokio::test]
async fn lists_are_created_and_mistakes_in_their_items_are_named() {
    let kubectl = Kubectl::new().await;
    let list = |field: &str| {
        format!(
            "{{apiVersion: v1, kind: List, items: [{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, {field}: {{b: c}}}}]}}"
        )
    };
    let unknown = kubectl.fails("create -f -", &list("date")).await;
    assert!(unknown.contains("unknown field \"date\""), "{unknown}");
    kubectl.run_with("create -f -", &list("data")).await;
    // What kubectl prints of several objects is a list.
    let printed = kubectl.run("get configmaps -o json").await;
    kubectl.run_with("apply -f -", &printed).await;
    assert_eq!(kubectl.path("get configmap a", "{.data.b}").await, "c");
}
