//! All six transitions on a running cluster.

use crate::agents::Agents;
use crate::command::{condition, events, map, succeed};
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

const LOOPS: &str = "--controllers=nodelifecycle,tainteviction,latencyprofile";
const OWNERS: [&str; 3] = [
    "MachineConfigOperator",
    "KubeControllerManagerOperator",
    "KubeAPIServerOperator",
];

/// Everything that was seen of a collection, as short texts.
struct History {
    seen: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl History {
    fn of(client: &Client, resource: Resource, texts: fn(&Value) -> Vec<String>) -> Self {
        let seen: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let mut watcher = Watcher::<Value>::new(client.clone(), Scope::all(resource));
        let found = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                if let Event::Applied { object, .. } = watcher.next().await {
                    found.lock().unwrap().extend(texts(&object));
                }
            }
        });
        Self { seen, task }
    }

    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn taints(node: &Value) -> Vec<String> {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints
        .filter(|taint| taint["effect"] == "NoExecute" || taint["key"] == "node.kubernetes.io/unreachable")
        .map(|taint| format!("{} {}", node["metadata"]["name"], taint["key"]))
        .collect()
}

fn spoken(object: &Value) -> Vec<String> {
    let conditions = &object["status"]["workerLatencyProfileStatus"]["conditions"];
    let conditions = conditions.as_array().into_iter().flatten();
    let word = |it: &Value, field: &str| it[field].as_str().unwrap_or_default().to_owned();
    conditions
        .map(|it| {
            format!(
                "{} {}={}",
                word(it, "owner"),
                word(it, "type"),
                word(it, "status")
            )
        })
        .collect()
}

/// What new pods get from the API server.
async fn toleration_of_a_new_pod(cluster: &Cluster, name: &str) -> i64 {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "host" }] } });
    let pod = cluster.create(Resource::PODS, &pod).await;
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    let unreachable = tolerations
        .iter()
        .find(|it| it["key"] == "node.kubernetes.io/unreachable");
    unreachable.unwrap()["tolerationSeconds"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_six_transitions_run_without_a_wrong_taint() {
    let cluster = Cluster::start().await;
    let _loops = cluster.lone_controllers(&[LOOPS]);
    let mut agents = Agents::start(&cluster, 3).await;
    let kubeconfig = cluster.kubeconfig();
    let nodes = History::of(&cluster.client, Resource::NODES, taints);
    succeed(Some(&kubeconfig), &["apply", "Default"]).await;
    let resource = Resource::new("config.openshift.io", "v1", "nodes");
    let said = History::of(&cluster.client, resource, spoken);

    // Every ordered pair of the three profiles once.
    let path = ["medium", "low", "Default", "low", "medium", "Default"];
    for (index, profile) in path.into_iter().enumerate() {
        said.take();
        let before = map(&cluster, "pointsman-controllers").await["data"].clone();
        let text = succeed(Some(&kubeconfig), &["apply", profile]).await;
        let (report, grace, toleration) = match profile {
            "medium" => ("20s", "2m", 60),
            "low" => ("1m", "5m", 60),
            _ => ("10s", "40s", 300),
        };
        assert_eq!(
            agents.announced(&cluster.client).await,
            BTreeSet::from([report.to_owned()])
        );
        let controllers = map(&cluster, "pointsman-controllers").await;
        assert_eq!(controllers["data"]["nodeMonitorGracePeriod"], grace);
        assert_ne!(controllers["data"], before);
        assert_eq!(
            toleration_of_a_new_pod(&cluster, &format!("p{index}")).await,
            toleration
        );
        for owner in OWNERS {
            assert_eq!(condition(&cluster, owner, "Complete").await.0, "True", "{text}");
            assert_eq!(
                condition(&cluster, owner, "Progressing").await.0,
                "False",
                "{text}"
            );
            assert_eq!(condition(&cluster, owner, "Degraded").await.0, "False", "{text}");
        }
        let said = said.take();
        for owner in &OWNERS[..2] {
            assert!(
                said.contains(&format!("{owner} Progressing=True")),
                "{profile}: {said:?}"
            );
            assert!(
                said.contains(&format!("{owner} Complete=False")),
                "{profile}: {said:?}"
            );
        }
        assert!(
            !said.iter().any(|text| text.ends_with("Degraded=True")),
            "{said:?}"
        );
        agents.check();
    }
    assert_eq!(nodes.take(), BTreeSet::new(), "no node was called unreachable");
    let check = succeed(Some(&kubeconfig), &["check"]).await;
    assert!(check.contains("no major impact"), "{check}");
    let status = succeed(Some(&kubeconfig), &["status"]).await;
    assert!(status.contains("MachineConfigOperator"), "{status}");
    eventually("events tell of it", async || {
        events(&cluster)
            .await
            .contains(&"ProfileComplete".to_owned())
            .then_some(())
    })
    .await;
}
