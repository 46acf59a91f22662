//! What goes wrong, and what is left then.

use crate::agents::Agents;
use crate::command::{condition, conditions, events, fail, map, profile, succeed};
use pointsman_api_client::{DeleteOptions, Patch, Resource};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

const LOOPS: &str = "--controllers=nodelifecycle,latencyprofile";
const MAPS: Resource = Resource::core("configmaps");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_does_not_take_effect_brings_default_back() {
    let cluster = Cluster::start().await;
    let _loops = cluster.lone_controllers(&[LOOPS, "--latency-profile-step-timeout=3s"]);
    let mut agents = Agents::start(&cluster, 3).await;
    let kubeconfig = cluster.kubeconfig();
    succeed(Some(&kubeconfig), &["apply", "Default"]).await;

    agents.deaf.store(true, Ordering::Relaxed);
    let error = fail(Some(&kubeconfig), &["apply", "medium"]).await;
    assert!(error.contains("MachineConfigOperator: Kubelet"), "{error}");
    assert!(error.contains("waiting for n3"), "{error}");
    let degraded = condition(&cluster, "MachineConfigOperator", "Degraded").await;
    assert_eq!(degraded, ("True".into(), "StepTimedOut".into()));
    let others = condition(&cluster, "KubeControllerManagerOperator", "Degraded").await;
    assert_eq!(others.0, "False");
    assert_eq!(
        agents.announced(&cluster.client).await,
        BTreeSet::from(["10s".to_owned()])
    );
    let controllers = map(&cluster, "pointsman-controllers").await;
    assert_eq!(controllers["data"]["nodeMonitorGracePeriod"], "40s");
    let server = map(&cluster, "pointsman-apiserver").await;
    assert_eq!(server["data"]["default-unreachable-toleration-seconds"], "300");

    // The same wish once more, and this time it works.
    agents.deaf.store(false, Ordering::Relaxed);
    succeed(Some(&kubeconfig), &["apply", "medium"]).await;
    assert_eq!(
        condition(&cluster, "MachineConfigOperator", "Degraded").await.0,
        "False"
    );
    agents.check();
    assert!(events(&cluster).await.contains(&"StepFailed".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_of_the_server_and_of_the_loops_between_steps_are_survived() {
    let mut cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[LOOPS]);
    let mut agents = Agents::start(&cluster, 2).await;
    let kubeconfig = cluster.kubeconfig();
    succeed(Some(&kubeconfig), &["apply", "Default"]).await;
    succeed(Some(&kubeconfig), &["apply", "low", "--no-wait"]).await;
    eventually("the first step is taken", async || {
        let map = map(&cluster, "pointsman-controllers").await;
        (map["data"]["nodeMonitorGracePeriod"] == "2m").then_some(())
    })
    .await;
    cluster.kill_server().await;
    cluster.start_server(&[]).await;
    loops.kill().await;
    let _loops = cluster.lone_controllers(&[LOOPS]);
    succeed(Some(&kubeconfig), &["apply", "low"]).await;
    assert_eq!(
        agents.announced(&cluster.client).await,
        BTreeSet::from(["1m".to_owned()])
    );
    agents.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_is_corrected_and_what_people_edit_is_put_right() {
    let cluster = Cluster::start().await;
    let _loops = cluster.lone_controllers(&[LOOPS]);
    let mut agents = Agents::start(&cluster, 2).await;
    let kubeconfig = cluster.kubeconfig();
    succeed(Some(&kubeconfig), &["apply", "medium"]).await;

    let api = cluster.client.api(MAPS, Some("kube-system"));
    let odd = json!({ "data": { "default-unreachable-toleration-seconds": "17" } });
    let odd = Patch::Merge(odd.to_string().into_bytes());
    api.patch::<Value>("pointsman-apiserver", odd).await.unwrap();
    eventually("the drift is corrected", async || {
        let map = map(&cluster, "pointsman-apiserver").await;
        let right = map["data"]["default-unreachable-toleration-seconds"] == "60";
        (right && events(&cluster).await.contains(&"DriftDetected".to_owned())).then_some(())
    })
    .await;

    let options = DeleteOptions::default();
    api.delete("pointsman-node", &options).await.unwrap();
    eventually("deleted settings are written again", async || {
        let found = api.get::<Value>("pointsman-node").await.ok()?;
        (found["data"]["nodeStatusUpdateFrequency"] == "20s").then_some(())
    })
    .await;

    let mut edited = conditions(&cluster).await;
    edited[0]["status"] = json!("Unknown");
    edited[0]["message"] = json!("somebody was here");
    let status = json!({ "status": { "workerLatencyProfileStatus": { "conditions": edited } } });
    let resource = Resource::new("config.openshift.io", "v1", "nodes");
    let wishes = cluster.client.api(resource, None);
    let patch = Patch::Merge(status.to_string().into_bytes());
    wishes.patch_status::<Value>("cluster", patch).await.unwrap();
    eventually("the status is put right", async || {
        let mended = conditions(&cluster)
            .await
            .iter()
            .all(|it| it["message"] != "somebody was here");
        (mended && events(&cluster).await.contains(&"StatusEdited".to_owned())).then_some(())
    })
    .await;
    agents.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_know_the_setting_stops_everything_before_it_begins() {
    let cluster = Cluster::start().await;
    let _loops = cluster.lone_controllers(&[LOOPS]);
    let mut agents = Agents::start(&cluster, 1).await;
    let kubeconfig = cluster.kubeconfig();
    succeed(Some(&kubeconfig), &["apply", "Default"]).await;
    cluster.node("old", "a").await;
    succeed(Some(&kubeconfig), &["apply", "medium", "--no-wait"]).await;
    eventually("the reason is told", async || {
        let (status, reason) = condition(&cluster, "MachineConfigOperator", "Degraded").await;
        (status == "True" && reason == "VersionSkew").then_some(())
    })
    .await;
    let controllers = map(&cluster, "pointsman-controllers").await;
    assert_eq!(controllers["data"]["nodeMonitorGracePeriod"], "40s");
    let all = conditions(&cluster).await;
    assert!(
        all.iter()
            .any(|it| it["message"].as_str().unwrap_or("").contains("old; upgrade"))
    );
    // The node goes, and the rollout comes.
    let options = DeleteOptions::default();
    cluster
        .client
        .api(Resource::NODES, None)
        .delete("old", &options)
        .await
        .unwrap();
    succeed(Some(&kubeconfig), &["status", "--watch"]).await;
    agents.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_is_never_called_complete_by_what_was_said_before_it() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[LOOPS]);
    let _agents = Agents::start(&cluster, 1).await;
    let kubeconfig = cluster.kubeconfig();
    let before = succeed(Some(&kubeconfig), &["apply", "Default"]).await;
    assert!(before.contains("Complete     True"), "{before}");
    loops.kill().await;

    // Nobody is there who could notice, so all that can be read was said before.
    for request in [&["medium"][..], &["Default", "--pool=edge=low"]] {
        let arguments = [&["apply", "--timeout=2s"], request].concat();
        let output = profile(Some(&kubeconfig), &arguments).await;
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success(), "{request:?}: {said}");
        assert!(!said.contains("Complete     True"), "{request:?}: {said}");
        assert!(said.contains("has not answered this request yet"), "{said}");
    }
    let _loops = cluster.lone_controllers(&[LOOPS]);
    let after = succeed(Some(&kubeconfig), &["status", "--watch"]).await;
    assert!(
        after.contains("profile Default, edge=LowUpdateSlowReaction"),
        "{after}"
    );
    assert!(after.contains("Complete     True"), "{after}");
}
