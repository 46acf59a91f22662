//! What answers count as what.

use crate::lab::{Lab, Server, http_get, quick, respond};
use pointsman_probe_io::{Kind, Notice, Reading, Report, Verdict};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

#[tokio::test]
async fn a_server_that_answers_well_is_ready_and_one_that_does_not_is_not() {
    let code = Arc::new(AtomicU16::new(200));
    let current = code.clone();
    let server = Server::http(move |_, stream| respond(stream, current.load(Ordering::SeqCst), "", "hello"));
    let mut lab = Lab::new();
    let begin = jiff::Timestamp::now();
    lab.prober.set_policy(pointsman_probe_io::Policy::Always);
    lab.run("p", json!({"readinessProbe": http_get(server.port())}));
    let Report::Verdict {
        subject, verdict, at, ..
    } = lab.next().await
    else {
        panic!("a verdict comes first");
    };
    assert_eq!(
        (&*subject.pod_uid, &*subject.container, subject.kind),
        ("p", "c", Kind::Readiness)
    );
    assert_eq!(verdict, Verdict::Success);
    assert!(begin <= at && at <= jiff::Timestamp::now());
    code.store(503, Ordering::SeqCst);
    let (_, _, verdict, message) = lab.verdict().await;
    assert_eq!(
        (verdict, message.as_str()),
        (Verdict::Failure, "HTTP probe failed with statuscode: 503")
    );
    let event = Report::Notice {
        subject,
        notice: Notice::Failed,
        message,
    }
    .event();
    assert_eq!(
        event,
        Some((
            "Unhealthy",
            "Readiness probe failed: HTTP probe failed with statuscode: 503".to_owned()
        ))
    );
    code.store(399, Ordering::SeqCst);
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    assert!(lab.metric("prober_probe_total", "result=\"successful\"") >= 2.0);
    assert!(lab.metric("prober_probe_total", "result=\"failed\"") >= 1.0);
    assert!(lab.metric("prober_probe_duration_seconds_count", "probe_type=\"Readiness\"") >= 2.0);
    assert!(lab.metric("pointsman_probe_schedule_jitter_seconds_count", "") >= 3.0);
}

#[tokio::test]
async fn servers_see_the_path_and_headers_of_the_probe() {
    let server = Server::status(200);
    let mut lab = Lab::new();
    let headers = json!([{"name": "x-token", "value": "1"}, {"name": "Host", "value": "web.local"}]);
    let probe =
        quick(json!({"httpGet": {"port": server.port(), "path": "/ok?full=1", "httpHeaders": headers}}));
    lab.run("p", json!({"readinessProbe": probe}));
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    let seen = server.requests.lock().expect("no panic")[0].clone();
    assert_eq!(
        seen,
        format!(
            "GET /ok?full=1 HTTP/1.1\r\nHost: web.local\r\nUser-Agent: {}\r\nAccept: */*\r\nX-Token: 1\r\n\
             Connection: close\r\n\r\n",
            Reading::default().user_agent
        )
    );
}

#[tokio::test]
async fn redirects_to_the_same_host_are_followed_to_other_ports_and_schemes() {
    let end = Server::status(204);
    let location = format!("Location: http://127.0.0.1:{}/end\r\n", end.port());
    let server = Server::http(move |head, stream| {
        if head.starts_with("GET /healthz") {
            respond(stream, 302, "Location: /next?x\r\n", "");
        } else {
            respond(stream, 307, &location, "");
        }
    });
    let mut lab = Lab::new();
    lab.run("p", json!({"readinessProbe": http_get(server.port())}));
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    assert_eq!(
        end.requests.lock().expect("no panic")[0].lines().next(),
        Some("GET /end HTTP/1.1")
    );
}

#[tokio::test]
async fn a_redirect_to_another_host_is_a_success_with_a_warning() {
    for (code, headers) in [
        (301, "Location: http://example.com/\r\n"),
        (302, ""),
        (304, ""),
        (300, "Location: /x\r\n"),
    ] {
        let body = if code == 304 { "" } else { "<a>Found</a>" };
        let server = Server::http(move |_, stream| respond(stream, code, headers, body));
        let mut lab = Lab::new();
        lab.run("p", json!({"readinessProbe": http_get(server.port())}));
        assert_eq!(lab.verdict().await.2, Verdict::Success, "{code}");
        let (notice, message) = lab.notice().await;
        assert_eq!(notice, Notice::Warned);
        assert_eq!(
            message,
            format!("Probe terminated redirects, Response body: {body}")
        );
    }
}

#[tokio::test]
async fn tcp_probes_ask_only_for_a_connection() {
    let server = Server::raw(|_| {});
    let mut lab = Lab::new();
    lab.run(
        "p",
        json!({"readinessProbe": quick(json!({"tcpSocket": {"port": server.port()}}))}),
    );
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = closed.expect("a free port").port();
    lab.run(
        "q",
        json!({"livenessProbe": quick(json!({"tcpSocket": {"port": port}}))}),
    );
    let (uid, kind, verdict, message) = lab.verdict().await;
    assert_eq!(
        (uid.as_str(), kind, verdict),
        ("q", Kind::Liveness, Verdict::Failure)
    );
    assert!(
        message.contains(&format!("dial tcp 127.0.0.1:{port}: connection failed: ")),
        "{message}"
    );
    assert!(message.to_lowercase().contains("refused"), "{message}");
}

#[tokio::test]
async fn hosts_may_be_names_and_names_may_be_unknown() {
    let server = Server::status(200);
    let mut lab = Lab::new();
    lab.run(
        "p",
        json!({"readinessProbe": quick(json!({"httpGet": {"port": server.port(), "host": "localhost"}}))}),
    );
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    lab.run("q", json!({"readinessProbe": quick(json!({"tcpSocket": {"port": 1, "host": "no such host"}, "timeoutSeconds": 9}))}));
    let (notice, message) = lab.notice().await;
    assert_eq!(notice, Notice::Failed);
    assert!(message.starts_with("dial tcp no such host:1: "), "{message}");
}

#[tokio::test]
async fn a_probe_that_cannot_be_made_is_reported_and_changes_nothing() {
    let mut lab = Lab::new();
    lab.run(
        "p",
        json!({"livenessProbe": quick(json!({"httpGet": {"port": "web"}}))}),
    );
    let event = lab.next().await.event();
    let text =
        "Liveness probe errored and resulted in unknown state: the container has no port named \"web\"";
    assert_eq!(event, Some(("Unhealthy", text.to_owned())));
    lab.silence(Duration::from_millis(200)).await;
    assert_eq!(lab.metric("prober_probe_total", ""), 0.0);
}
