//! One load on one prober.

use crate::exec::Processes;
use crate::measure::{Counts, children_time, cpu_time, resident_mib};
use anyhow::Result;
use pointsman_objects::pod_manifest::PodManifest;
use pointsman_probe_io::{Config, Floors, Limits, Policy, Prober, Reading, Started};
use pointsman_telemetry::Registry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handler {
    Http,
    Tcp,
    Grpc,
    Exec,
}

impl Handler {
    pub fn name(self) -> &'static str {
        match self {
            Handler::Http => "HTTP",
            Handler::Tcp => "TCP",
            Handler::Grpc => "gRPC",
            Handler::Exec => "exec",
        }
    }
}

/// What to probe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub handler: Handler,
    pub count: usize,
    pub period_ms: i64,
    pub timeout_ms: i64,
    pub seconds: u64,
    /// Checks per second that the budget allows; infinity travels as null.
    #[serde(deserialize_with = "or_infinite")]
    pub limit: f64,
    /// CPU share that the budget allows.
    pub cpu_share: f64,
    pub port: u16,
}

fn or_infinite<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// What it took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub load: Load,
    pub checks_per_second: f64,
    pub failed: f64,
    pub jitter_p50_ms: f64,
    pub jitter_p99_ms: f64,
    pub cpu_share: f64,
    /// CPU share of the processes that it started.
    pub children_share: f64,
    pub rss_mib: f64,
    pub stretch: f64,
}

pub fn run(load: Load) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let sample = runtime.block_on(measure(load))?;
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

async fn measure(load: Load) -> Result<Sample> {
    let registry = Registry::new();
    let limit = if load.limit.is_finite() {
        load.limit
    } else {
        f64::MAX
    };
    let config = Config {
        policy: Policy::Always,
        limits: Limits {
            checks_per_second: limit,
            cpu_share: if load.cpu_share < 1.0 {
                load.cpu_share
            } else {
                f64::MAX
            },
        },
        ..Config::default()
    };
    let (prober, mut reports) = Prober::start(config, Arc::new(Processes), &registry)?;
    let reading = Reading {
        floors: Floors::uniform(1),
        ..Reading::default()
    };
    for at in 0..load.count {
        prober.set_pod(reading.pod(
            &pod(at, &load),
            Some(Ipv4Addr::from(0x7f01_0001 + at as u32).into()),
        ));
    }
    // Containers start at different times, here spread over a period.
    let begin = Instant::now();
    for at in 0..load.count {
        let offset = Duration::from_millis(load.period_ms as u64).mul_f64(at as f64 / load.count as f64);
        let wait = offset.saturating_sub(begin.elapsed());
        if wait > Duration::from_millis(1) {
            tokio::time::sleep(wait).await;
        }
        prober.container_started(&format!("uid-{at}"), "c", Started::default());
    }
    tokio::spawn(async move { while reports.recv().await.is_some() {} });
    let warm_up = if load.limit.is_finite() || load.cpu_share < 1.0 {
        5
    } else {
        2
    };
    tokio::time::sleep(Duration::from_secs(warm_up.min(load.seconds))).await;

    // Reading the counters is left out of the CPU time.
    let before = Counts::read(&registry);
    let (cpu, children, began) = (cpu_time(), children_time(), Instant::now());
    tokio::time::sleep(Duration::from_secs(load.seconds)).await;
    let (cpu, took) = (cpu_time() - cpu, began.elapsed().as_secs_f64());
    let children = children_time() - children;
    let rss_mib = resident_mib();
    let after = Counts::read(&registry);
    let (successful, failed) = after.checks_since(&before);
    Ok(Sample {
        checks_per_second: (successful + failed) / took,
        failed,
        jitter_p50_ms: after.late_since(&before, 0.5),
        jitter_p99_ms: after.late_since(&before, 0.99),
        cpu_share: cpu.as_secs_f64() / took,
        children_share: children.as_secs_f64() / took,
        rss_mib,
        stretch: after.stretch,
        load,
    })
}

fn pod(at: usize, load: &Load) -> PodManifest {
    let mut probe = match load.handler {
        Handler::Http => json!({"httpGet": {"port": load.port, "path": "/healthz"}}),
        Handler::Tcp => json!({"tcpSocket": {"port": load.port}}),
        Handler::Grpc => json!({"grpc": {"port": load.port}}),
        Handler::Exec => json!({"exec": {"command": ["/bin/true"]}}),
    };
    probe["periodSeconds"] = json!(1);
    probe["periodMilliseconds"] = json!(load.period_ms - 1000);
    probe["timeoutSeconds"] = json!(1);
    probe["timeoutMilliseconds"] = json!(load.timeout_ms - 1000);
    let pod = json!({
        "metadata": {"uid": format!("uid-{at}"), "name": format!("pod-{at}"), "namespace": "bench"},
        "spec": {"containers": [{"name": "c", "readinessProbe": probe}]},
    });
    serde_json::from_value(pod).expect("a pod")
}
