//! All six transitions on a running cluster.

use crate::agents::Agents;
use crate::command::{condition, conditions, events, map, succeed};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_patches_the_profile_of_a_fresh_cluster_which_has_none() {
    let cluster = Cluster::start().await;
    let _loops = cluster.lone_controllers(&[LOOPS, "--node-monitor-grace-period=50s"]);
    let mut agents = Agents::start(&cluster, 1).await;
    for owner in OWNERS {
        eventually("nobody asked for a profile", async || {
            let complete = condition(&cluster, owner, "Complete").await;
            (complete == ("Unknown".into(), "ProfileEmpty".into())).then_some(())
        })
        .await;
        assert_eq!(condition(&cluster, owner, "Degraded").await.0, "False");
    }
    let controllers = map(&cluster, "pointsman-controllers").await;
    let written = &controllers["data"]["nodeMonitorGracePeriod"];
    assert_eq!(*written, Value::Null, "flags stay in force");

    let set = async |profile: &str| {
        let patch = format!(r#"{{"spec":{{"workerLatencyProfile":{profile}}}}}"#);
        let what = [
            "patch",
            "nodes.config.openshift.io",
            "cluster",
            "--type=merge",
            "-p",
            &patch,
        ];
        cluster.kubectl(&what).await;
    };
    let in_force = async |profile: &str, grace: &str| {
        eventually(profile, async || {
            let (complete, map) = (
                conditions(&cluster).await,
                map(&cluster, "pointsman-controllers").await,
            );
            let mut complete = complete.iter().filter(|it| it["type"] == "Complete");
            let all =
                complete.all(|it| it["status"] == "True" && it["message"].to_string().contains(profile));
            (all && map["data"]["nodeMonitorGracePeriod"] == grace).then_some(())
        })
        .await;
    };
    set(r#""MediumUpdateAverageReaction""#).await;
    in_force("MediumUpdateAverageReaction", "2m").await;
    let path = "{.status.workerLatencyProfileStatus.relatedObjects[*].name}";
    let output = format!("-o=jsonpath={path}");
    let related = cluster
        .kubectl(&["get", "nodes.config.openshift.io", "cluster", &output])
        .await;
    let named = "pointsman-node pointsman-controllers pointsman-apiserver pointsman-latency-profile";
    assert_eq!(related, named);
    for name in related.split(' ') {
        map(&cluster, name).await;
    }
    // To take the request back is to ask for Default, not for whatever flags say.
    set("null").await;
    in_force("Default", "40s").await;
    for command in include_str!("../../../../docs/latency-profiles.md")
        .replace("\\\n", "")
        .lines()
    {
        if let Some(command) = command
            .strip_prefix("kubectl ")
            .filter(|it| !it.contains("LowUpdate"))
        {
            let words: Vec<&str> = command
                .split_whitespace()
                .map(|word| word.trim_matches('\''))
                .collect();
            cluster.kubectl(&words).await;
        }
    }
    eventually("the controllers' flag holds again", async || {
        let map = map(&cluster, "pointsman-controllers").await;
        let observed = &map["metadata"]["annotations"]["pointsman.io/observed-node-monitor-grace-period"];
        (observed == "50s").then_some(())
    })
    .await;
    agents.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_deleted_is_not_made_again_by_a_restart() {
    let mut cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[LOOPS]);
    succeed(Some(&cluster.kubeconfig()), &["apply", "low"]).await;
    cluster
        .kubectl(&["delete", "nodes.config.openshift.io", "cluster"])
        .await;
    loops.kill().await;
    cluster.kill_server().await;
    cluster.start_server(&[]).await;
    let left = cluster
        .kubectl(&["get", "nodes.config.openshift.io", "-o", "name"])
        .await;
    assert_eq!(left, "", "an empty request would be one for Default");
}
