//! How many small durable writes per second, and how long does each take?

use crate::Scale;
use crate::objects::{self, CONFIG_MAPS, LEASES};
use crate::progress::Counter;
use crate::report::{Bound, Report, Unit};
use crate::server::{Server, Workplace};
use anyhow::Context;
use http::Method;
use pointsman_benches::client::Http1;
use pointsman_benches::latency::Latencies;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What clients do in a loop.
#[derive(Clone, Copy)]
enum Load {
    /// Renew a Lease on the condition that it is still the version of the last answer.
    Renew,
    Create,
}

/// Measures updates and creations.
pub async fn run(workplace: &Workplace, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    report.section("writes", "Durable small writes");
    let server = Server::start(workplace).await?;
    for (load, what, id) in [
        (Load::Renew, "renew Leases", "renew"),
        (Load::Create, "create ConfigMaps", "create"),
    ] {
        let before = server.usages()?;
        let (latencies, took) = load_server(&server, scale, load, what).await?;
        let rate = latencies.count() as f64 / took.as_secs_f64();
        let sorted = latencies.sorted();
        let row = |name: &str| format!("{what}, {} clients: {name}", scale.writers);
        let key = |name: &str| format!("{id}_{name}");
        report.add(
            key("per_second"),
            row("rate"),
            Unit::PerSecond,
            rate,
            Some(Bound::AtLeast(3_000.0)),
        );
        report.add(key("p50_ms"), row("p50"), Unit::Millis, sorted.millis(0.5), None);
        report.add(
            key("p99_ms"),
            row("p99"),
            Unit::Millis,
            sorted.millis(0.99),
            Some(Bound::AtMost(40.0)),
        );
        report.add(
            key("max_ms"),
            row("slowest"),
            Unit::Millis,
            sorted.millis(1.0),
            None,
        );
        report.cost(id, what, &before, &server.usages()?);
    }
    Ok(())
}

async fn load_server(
    server: &Server,
    scale: &Scale,
    load: Load,
    what: &'static str,
) -> anyhow::Result<(Latencies, Duration)> {
    let mut clients = Vec::new();
    for number in 0..scale.writers {
        let mut client = Http1::connect(&server.access).await?;
        let version = match load {
            Load::Create => String::new(),
            Load::Renew => {
                let lease = objects::lease(&lease_name(number), "", 0);
                version_of(&client.call(Method::POST, LEASES, lease).await?)?
            }
        };
        clients.push((number, client, version));
    }
    let counter = Counter::start(what, None);
    let started = Instant::now();
    let until = started + scale.write_time;
    let mut tasks = JoinSet::new();
    for (number, client, version) in clients {
        let count = counter.count();
        tasks.spawn(async move {
            match load {
                Load::Renew => renew(client, number, version, until, count).await,
                Load::Create => create(client, number, until, count).await,
            }
        });
    }
    let mut all = Latencies::default();
    while let Some(done) = tasks.join_next().await {
        all.merge(done??);
    }
    Ok((all, started.elapsed()))
}

async fn renew(
    mut client: Http1,
    number: usize,
    mut version: String,
    until: Instant,
    count: Arc<AtomicUsize>,
) -> anyhow::Result<Latencies> {
    let name = lease_name(number);
    let path = format!("{LEASES}/{name}");
    let mut latencies = Latencies::default();
    for sequence in 1.. {
        let lease = objects::lease(&name, &version, sequence);
        let sent = Instant::now();
        if sent >= until {
            break;
        }
        let answer = client.call(Method::PUT, &path, lease).await?;
        latencies.record(sent.elapsed());
        count.fetch_add(1, Ordering::Relaxed);
        version = version_of(&answer)?;
    }
    Ok(latencies)
}

async fn create(
    mut client: Http1,
    number: usize,
    until: Instant,
    count: Arc<AtomicUsize>,
) -> anyhow::Result<Latencies> {
    let mut latencies = Latencies::default();
    for sequence in 0.. {
        let config_map = objects::config_map(&format!("writer-{number:02}-{sequence:06}"), sequence);
        let sent = Instant::now();
        if sent >= until {
            break;
        }
        client.call(Method::POST, CONFIG_MAPS, config_map).await?;
        latencies.record(sent.elapsed());
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(latencies)
}

fn lease_name(number: usize) -> String {
    format!("node-{number:04}.example.internal")
}

fn version_of(object: &[u8]) -> anyhow::Result<String> {
    Ok(objects::resource_version(object)
        .context("an answer without a resource version")?
        .to_owned())
}
