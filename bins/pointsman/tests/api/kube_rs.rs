//! Do kube-rs watchers, reflectors and controllers hold on to the truth?
//!
//! Through a restart, a kill and compacted history, what they end up with must be what the server has.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{Controller, WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};
use pointsman_harness::wire::version_of;
use pointsman_harness::{Server, eventually};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        data: Some([("value".to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// Name to version of everything that the server has.
async fn truth(api: &Api<ConfigMap>) -> BTreeMap<String, String> {
    let list = api.list(&ListParams::default()).await.unwrap();
    list.iter()
        .map(|object| (object.name_any(), object.resource_version().unwrap()))
        .collect()
}

fn seen(store: &Store<ConfigMap>) -> BTreeMap<String, String> {
    store
        .state()
        .iter()
        .map(|object| (object.name_any(), object.resource_version().unwrap()))
        .collect()
}

async fn agree(store: &Store<ConfigMap>, server: &Server, when: &str) {
    let api = Api::default_namespaced(server.client().await);
    eventually(&format!("the reflector agrees {when}"), async || {
        (seen(store) == truth(&api).await).then_some(())
    })
    .await;
}

/// Creates, changes and deletes.
async fn churn(server: &Server, round: usize) {
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    for at in 0..10 {
        api.create(
            &PostParams::default(),
            &config_map(&format!("r{round}-{at}"), "1"),
        )
        .await
        .unwrap();
    }
    for at in 0..5 {
        let patch = json!({"data": {"value": "2"}});
        api.patch(
            &format!("r{round}-{at}"),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
        .unwrap();
    }
    for at in 3..8 {
        api.delete(&format!("r{round}-{at}"), &DeleteParams::default())
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflectors_agree_with_the_server_after_restart_kill_and_compaction() {
    let mut server = Server::start_to_be_restarted(&["--etcd-compaction-interval", "1s"]).await;
    let mut stores = Vec::new();
    let relists = Arc::new(AtomicUsize::new(0));
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
        watcher::Config::default().page_size(3),
    ] {
        let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
        let (store, writer) = reflector::store();
        let relists = relists.clone();
        let stream = watcher(api, config).default_backoff().reflect(writer);
        tokio::spawn(stream.for_each(move |event| {
            if matches!(event, Ok(watcher::Event::InitDone)) {
                relists.fetch_add(1, Ordering::Relaxed);
            }
            futures::future::ready(())
        }));
        stores.push(store);
    }
    for store in &stores {
        store.wait_until_ready().await.unwrap();
    }
    let all_agree = async |server: &Server, when: &str| {
        for store in &stores {
            agree(store, server, when).await;
        }
    };
    churn(&server, 0).await;
    all_agree(&server, "at first").await;
    server.restart().await;
    churn(&server, 1).await;
    all_agree(&server, "after a restart").await;
    churn(&server, 2).await;
    server.kill().await;
    server.launch().await;
    churn(&server, 3).await;
    all_agree(&server, "after a kill").await;

    // History that the watchers have not seen is made and forgotten while they cannot look.
    let before = relists.load(Ordering::Relaxed);
    server.terminate().await;
    server.launch_hidden().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let old = version_of(&server.admin().await.get(maps).await.expect(200));
    churn(&server, 4).await;
    server.hide_until_forgotten(maps, &old).await;
    server.terminate().await;
    server.launch().await;
    all_agree(&server, "after a compaction").await;
    assert!(
        relists.load(Ordering::Relaxed) >= before + stores.len(),
        "410 makes every watcher list again"
    );
}

struct Copier {
    client: kube::Client,
    reconciled: AtomicUsize,
}

/// Keeps a copy of every ConfigMap that is labelled as a source.
async fn copy(source: Arc<ConfigMap>, context: Arc<Copier>) -> Result<Action, kube::Error> {
    context.reconciled.fetch_add(1, Ordering::Relaxed);
    let api: Api<ConfigMap> = Api::default_namespaced(context.client.clone());
    let mut copy = config_map(
        &format!("copy-{}", source.name_any()),
        &source.data.as_ref().unwrap()["value"],
    );
    copy.metadata.owner_references = source.controller_owner_ref(&()).map(|reference| vec![reference]);
    match api.get_opt(&copy.name_any()).await? {
        Some(found) if found.data == copy.data => {}
        Some(_) => {
            let change = json!({"data": copy.data});
            api.patch(
                &copy.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(change),
            )
            .await?;
        }
        None => {
            api.create(&PostParams::default(), &copy).await?;
        }
    }
    Ok(Action::await_change())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_converges_through_a_restart_and_a_kill() {
    let mut server = Server::start_to_be_restarted(&[]).await;
    let client = server.client().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let context = Arc::new(Copier {
        client,
        reconciled: AtomicUsize::new(0),
    });
    let controller = Controller::new(api.clone(), watcher::Config::default().labels("role=source"))
        .owns(api.clone(), watcher::Config::default())
        .run(
            copy,
            |_, _, _| Action::requeue(Duration::from_millis(200)),
            context.clone(),
        );
    let running = tokio::spawn(controller.for_each(|_| futures::future::ready(())));
    for round in 0..3 {
        for at in 0..5 {
            let name = format!("s{at}");
            let mut source = config_map(&name, &format!("{round}"));
            source.metadata.labels = Some([("role".to_owned(), "source".to_owned())].into());
            if round == 0 {
                api.create(&PostParams::default(), &source).await.unwrap();
            } else {
                let change = json!({"data": source.data});
                api.patch(&name, &PatchParams::default(), &Patch::Merge(change))
                    .await
                    .unwrap();
            }
        }
        // Someone removes a copy; it has to come back.
        if round > 0 {
            let _ = api.delete("copy-s0", &DeleteParams::default()).await;
        }
        match round {
            0 => server.restart().await,
            1 => {
                server.kill().await;
                server.launch().await;
            }
            _ => {}
        }
        eventually("every copy equals its source", async || {
            for at in 0..5 {
                let copy = api.get_opt(&format!("copy-s{at}")).await.ok()??;
                (copy.data?["value"] == format!("{round}")).then_some(())?;
            }
            Some(())
        })
        .await;
    }
    assert!(context.reconciled.load(Ordering::Relaxed) >= 15);
    api.delete("s1", &DeleteParams::default()).await.unwrap();
    eventually("the copy goes with its source", async || {
        api.get_opt("copy-s1").await.unwrap().is_none().then_some(())
    })
    .await;
    running.abort();
}

#[tokio::test]
async fn typed_calls_patch_scale_log_nothing_and_delete() {
    let server = Server::start(&[]).await;
    let client = server.client().await;
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "host"}]}}},
    }))
    .unwrap();
    deployments
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let parameters = PatchParams::default();
    let side = json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "host"}]}}}});
    let patched = deployments
        .patch("d", &parameters, &Patch::Strategic(side))
        .await
        .unwrap();
    assert_eq!(patched.spec.template.spec.unwrap().containers.len(), 2);
    deployments
        .patch_scale("d", &parameters, &Patch::Merge(json!({"spec": {"replicas": 4}})))
        .await
        .unwrap();
    assert_eq!(
        deployments.get_scale("d").await.unwrap().spec.unwrap().replicas,
        Some(4)
    );
    let status = json!({"status": {"replicas": 4, "observedGeneration": 2}});
    let reported = deployments
        .patch_status("d", &parameters, &Patch::Merge(status))
        .await
        .unwrap();
    assert_eq!(reported.status.unwrap().replicas, Some(4));
    let apply =
        Patch::Apply(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}));
    let refused = deployments
        .patch("d", &PatchParams::apply("tests"), &apply)
        .await
        .unwrap_err();
    let kube::Error::Api(status) = refused else {
        panic!("{refused}")
    };
    assert_eq!(
        (status.code, status.reason.as_str()),
        (415, "UnsupportedMediaType")
    );
    let metadata = deployments.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(metadata.items[0].name_any(), "d");
    let gone = deployments
        .delete("d", &DeleteParams::foreground())
        .await
        .unwrap();
    assert!(gone.is_left() || gone.is_right());
    eventually("it is gone", async || {
        deployments.get_opt("d").await.unwrap().is_none().then_some(())
    })
    .await;

    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod: Pod = serde_json::from_value(pointsman_harness::pod("p")).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let wait =
        kube::runtime::wait::await_condition(pods.clone(), "p", kube::runtime::conditions::is_pod_running());
    let (waited, patched) = tokio::join!(
        tokio::time::timeout(pointsman_harness::SOON, wait),
        pods.patch_status("p", &parameters, &running)
    );
    patched.unwrap();
    waited.unwrap().unwrap();
}

#[tokio::test]
async fn of_two_candidates_for_a_lease_one_gets_a_conflict() {
    let server = Server::start(&[]).await;
    let leases: Api<Lease> = Api::namespaced(server.client().await, "kube-system");
    let lease: Lease =
        serde_json::from_value(json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": ""}}))
            .unwrap();
    let free = leases.create(&PostParams::default(), &lease).await.unwrap();
    let attempts = (0..8).map(|candidate| {
        let (leases, mut mine) = (leases.clone(), free.clone());
        async move {
            mine.spec.as_mut().unwrap().holder_identity = Some(format!("c{candidate}"));
            leases.replace("leader", &PostParams::default(), &mine).await
        }
    });
    let outcomes = futures::future::join_all(attempts).await;
    let (won, lost): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for refused in lost {
        let Err(kube::Error::Api(status)) = refused else {
            panic!("{refused:?}")
        };
        assert!(status.is_conflict(), "{status:?}");
    }
    let held = leases.get("leader").await.unwrap().spec.unwrap().holder_identity;
    assert_eq!(
        held,
        won[0].as_ref().unwrap().spec.as_ref().unwrap().holder_identity
    );
}

#[tokio::test]
async fn discovery_and_the_event_recorder_work() {
    use kube::runtime::events::{Event, EventType, Recorder, Reporter};
    let server = Server::start(&[]).await;
    let client = server.client().await;
    let found = kube::discovery::Discovery::new(client.clone())
        .run()
        .await
        .unwrap();
    let aggregated = kube::discovery::Discovery::new(client.clone())
        .run_aggregated()
        .await
        .unwrap();
    for discovery in [&found, &aggregated] {
        let groups: Vec<&str> = discovery.groups().map(|group| group.name()).collect();
        for group in ["", "apps", "config.openshift.io", "discovery.k8s.io"] {
            assert!(groups.contains(&group), "{groups:?}");
        }
    }
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let subject = maps
        .create(&PostParams::default(), &config_map("subject", "1"))
        .await
        .unwrap();
    let recorder = Recorder::new(client.clone(), Reporter::from("tests"));
    let event = Event {
        type_: EventType::Normal,
        reason: "Seen".into(),
        note: Some("it was seen".into()),
        action: "Looking".into(),
        secondary: None,
    };
    // The second one adds to the series of the first.
    for _ in 0..2 {
        recorder.publish(&event, &subject.object_ref(&())).await.unwrap();
    }
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::default_namespaced(client);
    let listed = events
        .list(&ListParams::default().fields("involvedObject.name=subject"))
        .await
        .unwrap();
    assert_eq!(listed.items.len(), 1);
    assert_eq!(listed.items[0].message.as_deref(), Some("it was seen"));
}

#[tokio::test]
async fn metadata_watchers_see_names_come_and_go() {
    let server = Server::start(&[]).await;
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let names: Api<PartialObjectMeta<ConfigMap>> = Api::default_namespaced(server.client().await);
    let stream = watcher(names, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut next = async || {
        tokio::time::timeout(pointsman_harness::SOON, stream.try_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    };
    while !matches!(next().await, watcher::Event::InitDone) {}
    api.create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    let watcher::Event::Apply(added) = next().await else {
        panic!("an object was added")
    };
    assert_eq!(added.name_any(), "a");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let watcher::Event::Delete(gone) = next().await else {
        panic!("the object was deleted")
    };
    assert_eq!(gone.name_any(), "a");
}
