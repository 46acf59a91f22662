//! Does a day survive a collector that is killed in the middle of it?

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use pointsman_api_client::Source;
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::programmer::Programmer;
use crate::site::{Site, get};
use pointsman_harness::SOON;

/// `pointsman sli` as a process of its own.
struct Collector {
    address: SocketAddr,
    process: Child,
}

impl Collector {
    fn start(site: &Site, programmer: &Programmer, data: &Path) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let Source::Kubeconfig(kubeconfig) = &site.config.source else {
            panic!("the site has a kubeconfig");
        };
        let listed = programmer.listed();
        let process = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args([
                "sli",
                "--scrape-interval=100ms",
                "--discover=false",
                "--kubeconfig",
            ])
            .arg(kubeconfig)
            .arg(format!("--listen={address}"))
            .arg(format!("--programmer={}={}", listed.name, listed.url))
            .arg("--data-dir")
            .arg(data)
            .args(["--log", "warn"])
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { address, process }
    }

    async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }

    /// Waits until what it says of the SLI is as it should be.
    async fn says(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + SOON;
        let mut said = Value::Null;
        while Instant::now() < deadline {
            if let Ok((200, text)) = get(self.address, "/api/v1/state").await {
                said = serde_json::from_str::<Value>(&text).unwrap()["sli"].take();
                if is(&said) {
                    return said;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what}: {said:#}");
    }

    /// Waits for several further readings of the programmer.
    async fn reads_more(&self) {
        let reads = async || {
            let (_, text) = get(self.address, "/metrics").await.unwrap();
            let series = "pointsman_sli_scrapes_total{result=\"read\"} ";
            let count = text
                .lines()
                .find_map(|line| line.strip_prefix(series)?.parse().ok());
            count.unwrap_or(0.0)
        };
        let (before, deadline): (f64, Instant) = (reads().await, Instant::now() + SOON);
        while reads().await < before + 4.0 {
            assert!(Instant::now() < deadline, "metrics are not read");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Metrics of a proxy that started at this second and has so many samples of 7 ms since.
fn samples(started: u64, count: u64) -> String {
    let name = "pointsman_network_programming_duration_seconds_bucket";
    format!(
        "process_start_time_seconds {started}\n{name}{{ip_family=\"IPv4\",le=\"0.006\"}} 0\n\
         {name}{{ip_family=\"IPv4\",le=\"0.007\"}} {count}\n{name}{{ip_family=\"IPv4\",le=\"+Inf\"}} {count}\n"
    )
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|found| found.modified()).ok()
}

#[tokio::test]
async fn a_day_survives_kill_9_of_the_collector_and_nothing_is_counted_twice() {
    let programmer = Programmer::start("n1").await;
    let data = tempfile::tempdir().unwrap();
    let mut site = Site::start(&[], |_| {}).await;
    site.stop_collector().await;
    let counts =
        |count: u64| move |sli: &Value| sli["day"]["samples"] == count && sli["pooled"]["samples"] == count;

    programmer.measure(&samples(1000, 5));
    let collector = Collector::start(&site, &programmer, data.path());
    collector.says("nothing new at first", counts(0)).await;
    collector.reads_more().await;
    programmer.measure(&samples(1000, 25));
    collector.says("what came since", counts(20)).await;
    // What is written down every ten seconds must not be all that the next one knows, nor count again.
    let state = data.path().join("state.json");
    let (seen, deadline) = (SystemTime::now(), Instant::now() + SOON);
    while modified(&state).is_none_or(|at| at < seen) {
        assert!(Instant::now() < deadline, "nothing is written down");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    programmer.measure(&samples(1000, 30));
    collector.says("read but not written down", counts(25)).await;
    collector.kill().await;

    // While nobody looks, the programmer goes on counting.
    programmer.measure(&samples(1000, 40));
    let collector = Collector::start(&site, &programmer, data.path());
    collector.says("all of it, once", counts(35)).await;
    collector.reads_more().await;
    let sli = collector.says("and not twice", counts(35)).await;
    let whole = sli["day"]["coverage"].as_f64().unwrap();
    assert!(whole > 0.9, "its counters cover the absence: {sli:#}");
    collector.kill().await;

    // This time the programmer starts anew in the absence: what it had not told is lost, and its time is not
    // covered.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    programmer.measure(&samples(now.as_secs(), 3));
    let collector = Collector::start(&site, &programmer, data.path());
    // Whether the second one had written anything down when it was killed is a matter of luck.
    let gap = |sli: &Value| {
        let counted = sli["day"]["samples"].as_u64();
        counted.is_some_and(|count| count == 23 || count == 38)
            && sli["day"]["coverage"].as_f64() < Some(whole)
    };
    collector
        .says("what the new process has counted, and the gap", gap)
        .await;
}
