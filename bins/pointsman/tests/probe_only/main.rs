//! Sub-second readiness beside a kubelet: a stand-in for it owns the pods' status and rewrites it all
//! the time; the agent under test may write its condition and nothing else.

mod kubelet;
mod periods;

use kubelet::{Cluster, GATE, Kubelet, condition, status_of};
use pointsman_harness::{Probed, Server, eventually};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_condition_of_the_gate_is_written_and_it_follows_the_application() {
    let server = Server::start(&[]).await;
    let cluster = Cluster::connect(&server).await;
    let application = Probed::start("127.0.0.1");
    let agent = cluster.agent("n1").await;
    let probe = "httpGet: {port: web}\nperiodSeconds: 1\nperiodMilliseconds: -800\nfailureThreshold: 1";
    cluster.pod("p", Some(probe), application.port, true).await;
    let history = cluster.follow("p");
    let kubelet = Kubelet::start(&cluster, "p").await;
    eventually("the condition appears", async || {
        condition(&cluster.get("p").await)
    })
    .await;
    assert_eq!(
        status_of(&cluster.get("p").await),
        Some(false),
        "nothing answers yet"
    );

    application.answer(200);
    eventually("the pod is ready by us", async || {
        (status_of(&cluster.get("p").await) == Some(true)).then_some(())
    })
    .await;
    application.answer(503);
    let gone = Instant::now();
    eventually("the pod is no longer ready", async || {
        (status_of(&cluster.get("p").await) == Some(false)).then_some(())
    })
    .await;
    // After its first success the probe runs once a second.
    assert!(gone.elapsed() < Duration::from_secs(4), "{:?}", gone.elapsed());
    let said = condition(&cluster.get("p").await).expect("a condition");
    assert_eq!(said["reason"], "ProbeFailed");
    assert_eq!(said["message"], "HTTP probe failed with statuscode: 503");

    // Somebody else's meddling with our condition is put right.
    application.answer(200);
    eventually("ready again", async || {
        (status_of(&cluster.get("p").await) == Some(true)).then_some(())
    })
    .await;
    cluster
        .meddle(
            "p",
            json!({"type": GATE, "status": "False", "reason": "Meddling"}),
        )
        .await;
    eventually("put right", async || {
        (status_of(&cluster.get("p").await) == Some(true)).then_some(())
    })
    .await;

    let own_writes = kubelet.stop().await;
    assert!(
        own_writes.len() > 10,
        "the stand-in wrote {} times",
        own_writes.len()
    );
    agent.stop().await;
    history.check(&own_writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_keeps_what_is_ready_and_finishes_what_is_not() {
    let server = Server::start(&[]).await;
    let cluster = Cluster::connect(&server).await;
    let application = Probed::start("127.0.0.1");
    application.answer(200);
    let agent = cluster.agent("n1").await;
    cluster
        .pod("p", Some("tcpSocket: {port: web}"), application.port, true)
        .await;
    let kubelet = Kubelet::start(&cluster, "p").await;
    eventually("ready", async || {
        (status_of(&cluster.get("p").await) == Some(true)).then_some(())
    })
    .await;
    agent.stop().await;
    let history = cluster.follow("p");
    let agent = cluster.agent("n1").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    kubelet.stop().await;
    agent.stop().await;
    assert!(
        history.versions().iter().all(|pod| status_of(pod) == Some(true)),
        "ready all the time"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_annotations_are_told_and_other_pods_are_left_alone() {
    let server = Server::start(&[]).await;
    let cluster = Cluster::connect(&server).await;
    let agent = cluster.agent("n1").await;
    cluster
        .pod("bad", Some("httpGet: {port: 80}\nperiodMs: 10"), 80, true)
        .await;
    cluster.pod("bare", None, 80, true).await;
    cluster.pod("other", Some("httpGet: {port: 80}"), 80, false).await;
    for (name, message) in [
        ("bad", "unknown field \"periodMs\""),
        (
            "bare",
            "the pod lists the readiness gate but has no annotation probe.pointsman.io/readiness",
        ),
    ] {
        let said = eventually("the condition", async || condition(&cluster.get(name).await)).await;
        assert_eq!(
            (said["status"].as_str(), said["reason"].as_str()),
            (Some("False"), Some("InvalidAnnotation"))
        );
        assert_eq!(said["message"], message);
        eventually("the event", async || {
            cluster
                .has_event(name, "InvalidProbeAnnotation")
                .await
                .then_some(())
        })
        .await;
    }
    assert_eq!(condition(&cluster.get("other").await), None);
    agent.stop().await;
}
