//! What does a collector say of the changes?

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jiff::Timestamp;
use pointsman_api_client::Source;
use pointsman_collector::{Config, Running, start};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use pointsman_cluster::claim::Record;
use pointsman_cluster::plain_http;
use pointsman_protocol::relay::Share;

/// Streams over which hollow programmers speak.
const RELAYS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(5);

/// One change as the collector reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// When it happened.
    pub began: Timestamp,
    /// When each node had it in its kernel.
    pub nodes: BTreeMap<String, Timestamp>,
    /// Time until 99 % of the programmers had it.
    pub most: Option<Duration>,
}

/// A collector of the scenario's own.
pub struct Collector {
    running: Running,
    hollow: Option<AbortHandle>,
}

impl Collector {
    /// Follows the cluster's nodes, and so many hollow programmers besides.
    pub async fn start(record: &Record, hollow: usize, objective: Option<Duration>) -> anyhow::Result<Self> {
        let own = record.data_dir.join("kubeconfigs/sli.kubeconfig");
        let (relays, hollow_task) = match hollow {
            0 => (Vec::new(), None),
            count => {
                let (address, task) = start_hollow(record, count).await?;
                let shares = (0..RELAYS).filter_map(|part| Share::try_new(part, RELAYS));
                let relays = shares.map(|share| format!("http://{address}{share}"));
                (relays.collect(), Some(task))
            }
        };
        let running = start(Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            scrape_interval: Duration::from_secs(1),
            programmer_credentials: Some(pointsman_cluster::nodes::reader(&record.data_dir)),
            relays,
            objective,
            ..Config::new(Source::Kubeconfig(own))
        })
        .await?;
        let collector = Self {
            running,
            hollow: hollow_task,
        };
        collector.wait_until_followed(record.nodes.len() + hollow).await?;
        Ok(collector)
    }

    /// The oldest of the changes of these kinds to a Service that were written since, once everybody has it.
    pub async fn change(
        &self,
        service: &str,
        kinds: &[&str],
        since: Timestamp,
    ) -> anyhow::Result<Option<Reported>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.state().await?;
            let changes = state["changes"].as_array().into_iter().flatten();
            let mut ours = changes.filter(|change| {
                let written = time(&change["written"]);
                change["service"] == *service
                    && kinds.iter().any(|kind| change["kind"] == **kind)
                    && written.is_some_and(|written| written >= since)
            });
            if let Some(change) = ours.next_back()
                && !change["allAfterSeconds"].is_null()
            {
                return Ok(read(change));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The SLI, after one more reading of all metrics.
    pub async fn sli(&self) -> anyhow::Result<Value> {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        Ok(self.state().await?["sli"].take())
    }

    /// Ends it, and the hollow programmers.
    pub async fn stop(self) {
        self.running.stop().await;
        if let Some(hollow) = self.hollow {
            hollow.abort();
        }
    }

    async fn wait_until_followed(&self, count: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = self.state().await?;
            let live = state["programmers"]["live"].as_u64() == Some(count as u64);
            if live && state["summary"]["level"] == "ok" {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "of {count} programmers {} can be followed; {}",
                    state["programmers"]["live"],
                    state["summary"]["text"]
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn state(&self) -> anyhow::Result<Value> {
        state(self.running.address).await
    }
}

/// Everything that a collector knows.
pub async fn state(collector: SocketAddr) -> anyhow::Result<Value> {
    let (_, text) = plain_http::get(collector, "/api/v1/state", PATIENCE)
        .await
        .with_context(|| format!("asking the collector at {collector}"))?;
    Ok(serde_json::from_str(&text)?)
}

/// A time in a collector's answer.
pub fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

fn read(change: &Value) -> Option<Reported> {
    let written = time(&change["written"])?;
    let nodes = change["nodes"].as_array().into_iter().flatten();
    Some(Reported {
        began: time(&change["triggered"]).map_or(written, |triggered| triggered.min(written)),
        nodes: nodes
            .filter_map(|node| Some((node["name"].as_str()?.to_owned(), time(&node["at"])?)))
            .collect(),
        most: change["mostAfterSeconds"].as_f64().map(Duration::from_secs_f64),
    })
}

async fn start_hollow(record: &Record, count: usize) -> anyhow::Result<(SocketAddr, AbortHandle)> {
    let config = pointsman_hollow::Config {
        source: Source::Kubeconfig(record.data_dir.join("kubeconfigs/proxy.kubeconfig")),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        count,
        pause: (Duration::from_millis(1), Duration::from_millis(15)),
    };
    let (sender, address) = oneshot::channel();
    let running = tokio::spawn(async move {
        let listening = move |address| {
            let _ = sender.send(address);
            Ok(())
        };
        if let Err(error) = pointsman_hollow::run(config, listening).await {
            tracing::error!(%error, "hollow programmers do not run");
        }
    });
    let address = address.await.context("starting hollow programmers")?;
    Ok((address, running.abort_handle()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_begins_with_its_trigger_or_else_when_it_was_written() {
        let mut change = json!({
            "triggered": "2026-01-01T00:00:01.500000Z", "written": "2026-01-01T00:00:01.502000Z",
            "mostAfterSeconds": 0.004, "nodes": [{ "name": "n1", "at": "2026-01-01T00:00:01.504000Z" }],
        });
        let report = read(&change).unwrap();
        assert_eq!(report.began, "2026-01-01T00:00:01.5Z".parse().unwrap());
        assert_eq!(
            (report.nodes.len(), report.most),
            (1, Some(Duration::from_millis(4)))
        );
        change["triggered"] = Value::Null;
        assert_eq!(
            read(&change).unwrap().began,
            "2026-01-01T00:00:01.502Z".parse().unwrap()
        );
        assert_eq!(read(&json!({})), None);
    }
}
