//! Is what programmers count what the collector tells, also across restarts?

use pointsman_collector::start;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::programmer::Programmer;
use crate::site::{Site, get_as};
use pointsman_harness::SOON;

/// Metrics of a proxy that has so many samples of 7 ms.
fn samples(count: u64) -> String {
    let name = "pointsman_network_programming_duration_seconds_bucket";
    format!(
        "process_start_time_seconds 1000\n{name}{{ip_family=\"IPv4\",le=\"0.006\"}} 0\n\
         {name}{{ip_family=\"IPv4\",le=\"0.007\"}} {count}\n{name}{{ip_family=\"IPv4\",le=\"+Inf\"}} {count}\n"
    )
}

async fn state_becomes(site: &Site, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    site.until(what, |state| is(state).then(|| state.clone())).await
}

#[tokio::test]
async fn samples_are_counted_once_across_a_restart_of_the_collector() {
    let programmer = Programmer::start("n1").await;
    let data = tempfile::tempdir().unwrap();
    programmer.measure(&samples(5));
    let mut site = Site::start(&[&programmer], |config| {
        config.data_dir = Some(data.path().into())
    })
    .await;
    site.metric_becomes("pointsman_sli_scrapes_total{result=\"read\"}", 2.0)
        .await;
    programmer.measure(&samples(25));
    let state = state_becomes(&site, "20 samples", |state| {
        state["sli"]["pooled"]["samples"] == 20
    })
    .await;
    assert_eq!(state["sli"]["pooled"]["p99"]["highSeconds"], 0.007);
    assert_eq!(state["sli"]["pooled"]["p99"]["errorSeconds"], 0.001);
    // While the collector is away, the programmer goes on counting.
    site.stop_collector().await;
    programmer.measure(&samples(40));
    let config = site.config.clone();
    site.collector = Some(start(config).await.unwrap());
    // The time without a collector is not covered; its share shrinks as time goes on.
    let state = state_becomes(&site, "35 samples, most of the time covered", |state| {
        state["sli"]["day"]["samples"] == 35 && state["sli"]["pooled"]["coverage"].as_f64() > Some(0.9)
    })
    .await;
    assert_eq!(state["sli"]["pooled"]["samples"], 35);
    let perf: Value = site.json("/perfdash.json").await;
    assert_eq!(perf["dataItems"][0]["data"]["Perc99"], 7.0);
}

#[tokio::test]
async fn the_page_names_the_node_that_is_behind_and_its_stage() {
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |_| {}).await;
    site.metric_becomes("pointsman_sli_programmers{state=\"live\"}", 2.0)
        .await;
    let (version, _) = site.endpoint("a").await;
    one.commit(version);
    two.receive(version);
    let behind =
        |state: &Value| state["lagging"][0]["name"] == "n2" && state["lagging"][0]["stage"] == "plan";
    let state = state_becomes(&site, "n2 lags", behind).await;
    assert_eq!(state["summary"]["level"], "behind");
    let text = state["summary"]["text"].as_str().unwrap();
    assert!(text.contains("n2") && text.contains("default/web"), "{text}");
    let change = &state["changes"][0];
    assert_eq!(
        (&change["reached"], &change["behind"][0]),
        (&1.into(), &"n2".into())
    );
    two.commit(version);
    let done = |state: &Value| state["summary"]["level"] == "ok" && state["sli"]["exact"]["samples"] == 1;
    let state = state_becomes(&site, "all have it", done).await;
    let change = &state["changes"][0];
    assert_eq!(
        (&change["kind"], &change["reached"]),
        (&"ready".into(), &2.into())
    );
    assert_eq!(change["nodes"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn browsers_get_the_page_and_its_news() {
    let programmer = Programmer::start("n1").await;
    let site = Site::start(&[&programmer], |_| {}).await;
    let (code, page) = site.get("/").await;
    assert!(code == 200 && page.contains("page.js"), "{page}");
    let (code, script) = site.get("/page.js").await;
    assert!(code == 200 && script.contains("api/v1/events"), "{script}");
    let mut stream = TcpStream::connect(site.address()).await.unwrap();
    stream
        .write_all(b"GET /api/v1/events HTTP/1.0\r\n\r\n")
        .await
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut seen = 0;
    while seen < 3 {
        let line = tokio::time::timeout(SOON, lines.next_line())
            .await
            .unwrap()
            .unwrap();
        if let Some(state) = line.unwrap().strip_prefix("data: ") {
            let state: Value = serde_json::from_str(state).unwrap();
            assert!(state["summary"]["text"].is_string());
            seen += 1;
        }
    }
}

#[tokio::test]
async fn strangers_need_a_login_where_the_page_is_not_on_loopback() {
    let login = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(login.path(), "token:secret\n").unwrap();
    let site = Site::start(&[], |config| config.login_file = Some(login.path().into())).await;
    for path in [
        "/",
        "/metrics",
        "/api/v1/state",
        "/api/v1/events",
        "/gate/v1/pods/a/b",
    ] {
        assert_eq!(site.get(path).await.0, 401, "{path}");
    }
    assert_eq!(site.get("/healthz").await.0, 200);
    let open = pointsman_collector::Config {
        listen: "0.0.0.0:0".parse().unwrap(),
        login_file: None,
        ..site.config.clone()
    };
    assert!(start(open).await.is_err(), "nobody could be kept out");
}

#[tokio::test]
async fn a_site_that_lets_its_name_point_at_the_loopback_is_not_answered() {
    let site = Site::start(&[], |config| config.hosts = vec!["page.example.org".into()]).await;
    let (port, address) = (site.address().port(), site.address());
    for path in [
        "/",
        "/metrics",
        "/api/v1/state",
        "/api/v1/events",
        "/gate/v1/pods/a/b",
    ] {
        let (code, body) = get_as(address, "attacker.example", path).await.unwrap();
        assert_eq!(code, 403, "{path}: {body}");
    }
    for host in ["localhost", "127.0.0.1", "page.example.org"] {
        let (code, body) = get_as(address, &format!("{host}:{port}"), "/api/v1/state")
            .await
            .unwrap();
        assert_eq!(code, 200, "{host}: {body}");
    }
}

#[tokio::test]
async fn an_outage_is_in_the_figures_while_it_lasts() {
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |_| {}).await;
    site.metric_becomes("pointsman_sli_programmers{state=\"live\"}", 2.0)
        .await;
    let (version, _) = site.endpoint("a").await;
    one.commit(version);
    let grown = |least: f64| {
        move |state: &Value| {
            let p99 = state["sli"]["exact"]["p99"]["highSeconds"].as_f64()?;
            (p99 > least).then(|| (p99, state.clone()))
        }
    };
    let (first, state) = site.until("the change counts before it ends", grown(0.5)).await;
    assert_eq!(state["sli"]["exact"]["unfinished"], 1, "{state:#}");
    assert_eq!(state["sli"]["exact"]["verdict"], "missed", "{state:#}");
    site.until("and grows", grown(first + 0.5)).await;
    // Headline, counters, rows and metrics say the same.
    assert_eq!(state["summary"]["level"], "behind");
    assert_eq!(state["programmers"]["behind"], 1);
    let n2 = state["programmers"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == "n2");
    assert_eq!(n2.unwrap()["behind"], true, "{state:#}");
    assert!(
        state["changes"][0]["openSeconds"].as_f64() > Some(0.5),
        "{state:#}"
    );
    site.metric_becomes("pointsman_sli_programmers_lagging", 1.0)
        .await;
    site.metric_becomes("pointsman_sli_changes_open", 1.0).await;
    two.commit(version);
    let calm = |state: &Value| (state["summary"]["level"] == "ok").then(|| state.clone());
    let state = site.until("all have it", calm).await;
    assert_eq!(state["programmers"]["behind"], 0);
    assert_eq!(state["sli"]["exact"]["unfinished"], 0);
}
