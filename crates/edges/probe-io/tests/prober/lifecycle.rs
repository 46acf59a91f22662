//! Pods and containers that come, go, start and stop.

use crate::lab::{Lab, Server, http_get, respond};
use pointsman_probe_io::{Kind, Reported, Started, Verdict};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[tokio::test]
async fn nothing_is_checked_before_the_container_runs_and_after_it_stopped() {
    let server = Server::status(200);
    let mut lab = Lab::new();
    lab.define("p", json!({"readinessProbe": http_get(server.port())}));
    lab.silence(Duration::from_millis(100)).await;
    assert_eq!(server.accepted(), 0);
    lab.prober.container_started("p", "c", Started::default());
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    lab.prober.container_stopped("p", "c");
    assert_eq!(lab.verdict().await.2, Verdict::Failure);
    let accepted = server.accepted();
    lab.silence(Duration::from_millis(100)).await;
    assert_eq!(server.accepted(), accepted);
}

#[tokio::test]
async fn a_pod_removed_in_mid_check_is_never_reported_again() {
    let server = Server::http(|_, stream| {
        std::thread::sleep(Duration::from_millis(150));
        respond(stream, 200, "", "");
    });
    let mut lab = Lab::new();
    lab.run("p", json!({"readinessProbe": http_get(server.port())}));
    lab.until("the check begins", |_| server.accepted() == 1).await;
    lab.prober.remove_pod("p");
    lab.silence(Duration::from_millis(300)).await;
    assert_eq!(server.accepted(), 1);
    assert_eq!(lab.metric("prober_probe_total", ""), 0.0);
}

#[tokio::test]
async fn startup_comes_first_and_readiness_follows_at_once() {
    let up = Arc::new(AtomicBool::new(false));
    let current = up.clone();
    let server = Server::http(move |_, stream| {
        respond(
            stream,
            if current.load(Ordering::SeqCst) { 200 } else { 503 },
            "",
            "",
        );
    });
    let mut lab = Lab::new();
    let mut startup = http_get(server.port());
    startup["failureThreshold"] = json!(1000);
    let readiness = json!({"httpGet": {"port": server.port()}, "periodSeconds": 60});
    lab.run("p", json!({"startupProbe": startup, "readinessProbe": readiness}));
    lab.until("some checks", |_| server.accepted() > 2).await;
    up.store(true, Ordering::SeqCst);
    let (_, kind, verdict, _) = lab.verdict().await;
    assert_eq!((kind, verdict), (Kind::Startup, Verdict::Success));
    let (_, kind, verdict, _) = lab.verdict().await;
    assert_eq!((kind, verdict), (Kind::Readiness, Verdict::Success));
}

#[tokio::test]
async fn a_ready_container_found_by_a_new_agent_is_not_reported() {
    let server = Server::status(200);
    let mut lab = Lab::new();
    lab.define("p", json!({"readinessProbe": http_get(server.port())}));
    let previous = Some(Reported {
        ready: true,
        started: true,
    });
    lab.prober.container_started(
        "p",
        "c",
        Started {
            age: Duration::from_secs(60),
            previous,
        },
    );
    lab.until("a check", |_| server.accepted() > 0).await;
    lab.silence(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_pod_that_terminates_is_not_restarted_but_still_asked_for_readiness() {
    let up = Arc::new(AtomicBool::new(true));
    let current = up.clone();
    let server = Server::http(move |_, stream| {
        respond(
            stream,
            if current.load(Ordering::SeqCst) { 200 } else { 503 },
            "",
            "",
        );
    });
    let mut lab = Lab::new();
    lab.prober.set_policy(pointsman_probe_io::Policy::Always);
    lab.run(
        "p",
        json!({"livenessProbe": http_get(server.port()), "readinessProbe": http_get(server.port())}),
    );
    assert_eq!(lab.verdict().await.1, Kind::Readiness);
    lab.prober.pod_terminating("p");
    up.store(false, Ordering::SeqCst);
    let (_, kind, verdict, _) = lab.verdict().await;
    assert_eq!((kind, verdict), (Kind::Readiness, Verdict::Failure));
    assert!(
        tokio::time::timeout(Duration::from_millis(200), lab.verdict())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn probes_that_stay_the_same_are_left_alone_and_changed_ones_start_anew() {
    let (one, other) = (Server::status(200), Server::status(503));
    let mut lab = Lab::new();
    let same = json!({"readinessProbe": http_get(one.port())});
    lab.run("p", same.clone());
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    lab.define("p", same);
    lab.silence(Duration::from_millis(50)).await;
    lab.define("p", json!({"readinessProbe": http_get(other.port())}));
    let (notice, _) = lab.notice().await;
    assert_eq!(notice, pointsman_probe_io::Notice::Failed);
}

#[tokio::test]
async fn the_prober_ends_with_its_last_handle() {
    let server = Server::status(200);
    let mut lab = Lab::new();
    lab.run("p", json!({"readinessProbe": http_get(server.port())}));
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    let Lab {
        prober, mut reports, ..
    } = lab;
    let another = prober.clone();
    drop(prober);
    another.remove_pod("p");
    drop(another);
    let ended = tokio::time::timeout(Duration::from_secs(5), async {
        while reports.recv().await.is_some() {}
    });
    assert!(ended.await.is_ok());
}

#[tokio::test]
async fn a_metric_says_which_probes_there_are_and_whether_they_are_faster_than_a_second() {
    let mut lab = Lab::new();
    let slow = json!({"tcpSocket": {"port": 1}, "periodSeconds": 1, "periodMilliseconds": 500});
    let exec = json!({"exec": {"command": ["true"]}});
    let fast = json!({"readinessProbe": http_get(1), "livenessProbe": slow, "startupProbe": exec});
    lab.define("a", fast.clone());
    lab.define("b", fast.clone());
    lab.define("c", json!({"readinessProbe": {"grpc": {"port": "none"}}}));
    let workers = |lab: &Lab| {
        [
            r#"{probe_type="Readiness",handler="httpGet",sub_second="true"}"#,
            r#"{probe_type="Liveness",handler="tcpSocket",sub_second="false"}"#,
            r#"{probe_type="Startup",handler="exec",sub_second="false"}"#,
            r#"{probe_type="Readiness",handler="invalid",sub_second="false"}"#,
            "",
        ]
        .map(|labels| lab.metric("pointsman_probe_workers{", labels))
    };
    lab.until("all are counted", |lab| workers(lab) == [2.0, 2.0, 2.0, 1.0, 7.0])
        .await;
    lab.prober.remove_pod("a");
    lab.prober.remove_pod("c");
    lab.until("those that are gone are not", |lab| {
        workers(lab) == [1.0, 1.0, 1.0, 0.0, 3.0]
    })
    .await;
    // Without the gate nobody uses the feature.
    lab.reading.sub_second = false;
    lab.define("b", fast);
    lab.until("no probe is faster than a second", |lab| {
        workers(lab) == [0.0, 1.0, 1.0, 0.0, 3.0]
    })
    .await;
}
