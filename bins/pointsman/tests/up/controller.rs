//! Does a controller as others write them work in a pod, with nothing but what a pod has?
//!
//! It is kube-rs' own, configured by [`kube::Config::incluster`], for a kind of its own: a Fleet has so many ConfigMaps
//! and says in its status how many there are.

use crate::cluster::{Cluster, eventually, eventually_within};
use crate::pods::{agents, processes};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use pointsman_testkit::require_netns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Set where this program is the one in the pod.
const IN_POD: &str = "POINTSMAN_TEST_IN_POD";
/// Volumes are refreshed once a minute and kube-rs reads its token as often.
const PATIENCE: Duration = Duration::from_secs(180);
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

#[test]
fn a_kube_rs_controller_in_a_pod_survives_new_keys_and_a_server_that_dies() {
    if std::env::var_os(IN_POD).is_some() {
        return controller();
    }
    require_netns!();
    let cluster = Cluster::start(&["--nodes=1", "--apart"]);
    cluster.kubectl_with(&["create", "-f", "-"], &objects().to_string());
    let condition = ["--for=condition=Established", "crd/fleets.lab.test"];
    cluster.kubectl(&[&["wait"], &condition[..]].concat());
    cluster.kubectl_with(&["create", "-f", "-"], &fleet(3).to_string());
    has_ready(&cluster, 3);
    cluster.kubectl(&["delete", "configmap", "f-1", "--wait=false"]);
    eventually("what was deleted is made again", || {
        (maps(&cluster) == ["f-0", "f-1", "f-2"]).then_some(())
    });

    let old = token(&cluster);
    for step in ["trust", "use"] {
        rotate(&cluster, &[step]);
    }
    // The agent asks for a token when four fifths of the old one's life are over, which is eight minutes at least, or
    // when it has none: after its start.
    restart(agents(&cluster), || agents(&cluster));
    eventually_within(PATIENCE, "the pod has a token of the new key", || {
        (token(&cluster) != old).then_some(())
    });
    rotate(&cluster, &["drop", "--force"]);
    eventually("the old token is refused", || {
        (!is_known(&cluster, &old)).then_some(())
    });
    resize(&cluster, 5);
    has_ready(&cluster, 5);

    restart(servers(&cluster), || servers(&cluster));
    eventually("the new server answers", || {
        let ready = kubectl(&cluster, &["get", "--raw=/readyz"]);
        ready.status.success().then_some(())
    });
    resize(&cluster, 2);
    has_ready(&cluster, 2);
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    assert_eq!(cluster.kubectl(&["get", "pods", "-o", restarts]), "0");
    cluster.kubectl(&["delete", "fleet", "f"]);
    eventually("its ConfigMaps go with it", || {
        maps(&cluster).is_empty().then_some(())
    });
}

/// The kind, an account with just the rights that its controller needs, and a pod of it.
fn objects() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}}},
        "status": {"type": "object", "properties": {"ready": {"type": "integer"}}},
    }});
    let rules = json!([
        {"apiGroups": ["lab.test"], "resources": ["fleets"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["lab.test"], "resources": ["fleets/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch", "create", "delete"]},
    ]);
    let named = json!({"name": "fleets"});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "fleets"});
    let program = std::env::current_exe().unwrap();
    let this = std::thread::current().name().unwrap().to_owned();
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
         "metadata": {"name": "fleets.lab.test"},
         "spec": {
             "group": "lab.test", "scope": "Namespaced", "names": {"plural": "fleets", "kind": "Fleet"},
             "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                           "schema": {"openAPIV3Schema": schema}}],
         }},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": named, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": named, "roleRef": role,
         "subjects": [{"kind": "ServiceAccount", "name": "fleets", "namespace": "default"}]},
        {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": {
            "serviceAccountName": "fleets", "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "controller", "image": "host", "command": [program, "--exact", this, "--nocapture"],
                "env": [{"name": IN_POD, "value": "yes"}],
            }],
        }},
    ]})
}

fn fleet(size: usize) -> Value {
    json!({"apiVersion": "lab.test/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"size": size}})
}

fn resize(cluster: &Cluster, size: usize) {
    let patch = fleet(size).to_string();
    cluster.kubectl(&["patch", "fleet", "f", "--type=merge", "-p", &patch]);
}

fn has_ready(cluster: &Cluster, size: usize) {
    let what = format!("{size} are ready");
    eventually_within(PATIENCE, &what, || {
        let said = cluster.kubectl(&["get", "fleet", "f", "-o", "jsonpath={.status.ready}"]);
        (said == size.to_string()).then_some(())
    });
    let expected: Vec<String> = (0..size).map(|at| format!("f-{at}")).collect();
    assert_eq!(maps(cluster), expected);
}

fn maps(cluster: &Cluster) -> Vec<String> {
    let names = "jsonpath={.items[*].metadata.name}";
    let listed = cluster.kubectl(&["get", "configmaps", "-l", "fleet", "-o", names]);
    listed.split_whitespace().map(str::to_owned).collect()
}

fn token(cluster: &Cluster) -> String {
    cluster.kubectl(&["exec", "fleets", "--", "cat", TOKEN])
}

fn rotate(cluster: &Cluster, step: &[&str]) {
    let output = Command::new(crate::cluster::program())
        .args(["keys", "rotate", "tokens"])
        .args(step)
        .arg("--data-dir")
        .arg(cluster.data_dir())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> std::process::Output {
    Command::new("kubectl")
        .env("KUBECONFIG", cluster.data_dir().join("admin.kubeconfig"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Whether the server believes a token. The certificates of the kubeconfig must not speak for it.
fn is_known(cluster: &Cluster, token: &str) -> bool {
    let review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let said = cluster.kubectl_with(
        &["create", "-o", "jsonpath={.status.authenticated}", "-f", "-"],
        &review.to_string(),
    );
    said == "true"
}

/// The API servers of a cluster.
fn servers(cluster: &Cluster) -> BTreeSet<i32> {
    let data = cluster.data_dir().canonicalize().unwrap();
    let data = data.display().to_string();
    processes(|_, line| line.contains(" apiserver --") && line.contains(&data))
}

/// Kills processes and waits until others have taken their place.
fn restart(old: BTreeSet<i32>, running: impl Fn() -> BTreeSet<i32>) {
    assert_eq!(old.len(), 1);
    for process in &old {
        kill_process(Pid::from_raw(*process).unwrap(), Signal::KILL).unwrap();
    }
    eventually("another one is there", || {
        let new = running();
        (new.len() == 1 && new.is_disjoint(&old)).then_some(())
    });
}

/// What runs in the pod, without an end.
#[tokio::main(flavor = "current_thread")]
async fn controller() {
    let config = kube::Config::incluster().expect("a pod has what a client needs");
    let client = Client::try_from(config).unwrap();
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let refused = secrets.list(&ListParams::default()).await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.is_forbidden()),
        "an account may do what its roles say and no more: {refused:?}"
    );
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("lab.test", "v1", "Fleet"));
    let fleets: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let world = Arc::new((fleets.clone(), maps.clone(), kind.clone()));
    Controller::new_with(fleets, watcher::Config::default(), kind)
        .owns(maps, watcher::Config::default().labels("fleet"))
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_secs(1)),
            world,
        )
        .for_each(|outcome| async move { println!("{outcome:?}") })
        .await;
}

type World = (Api<DynamicObject>, Api<ConfigMap>, ApiResource);

async fn reconcile(fleet: Arc<DynamicObject>, world: Arc<World>) -> Result<Action, kube::Error> {
    let (fleets, maps, kind) = &*world;
    let size = fleet.data["spec"]["size"].as_u64().unwrap_or(0);
    let wanted: BTreeSet<String> = (0..size).map(|at| format!("{}-{at}", fleet.name_any())).collect();
    let label = ListParams::default().labels(&format!("fleet={}", fleet.name_any()));
    let found = maps.list(&label).await?;
    let found: BTreeSet<String> = found.iter().map(ResourceExt::name_any).collect();
    for name in wanted.difference(&found) {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.clone());
        map.metadata.labels = Some([("fleet".to_owned(), fleet.name_any())].into());
        map.metadata.owner_references = fleet.controller_owner_ref(kind).map(|owner| vec![owner]);
        maps.create(&PostParams::default(), &map).await?;
    }
    for name in found.difference(&wanted) {
        maps.delete(name, &Default::default()).await?;
    }
    let status = Patch::Merge(json!({"status": {"ready": size}}));
    fleets
        .patch_status(&fleet.name_any(), &PatchParams::default(), &status)
        .await?;
    Ok(Action::await_change())
}
