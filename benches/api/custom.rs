//! What do many kinds of custom resources cost: in memory, and whoever asks which kinds there are?

use crate::Scale;
use crate::progress::{self, Counter};
use crate::report::{Bound, Report, Unit};
use crate::server::{Server, Workplace};
use anyhow::ensure;
use bytes::Bytes;
use http::Method;
use memchr::memmem;
use pointsman_benches::client::{AGGREGATED, Http1};
use pointsman_benches::latency::Latencies;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How often discovery is asked for, after a change and without one.
const ROUNDS: usize = 50;
/// Objects of each kind.
const OBJECTS: usize = 50;

/// Measures discovery and memory with many definitions and objects of their kinds.
pub async fn run(workplace: &Workplace, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let title = format!(
        "{} definitions of custom resources, {OBJECTS} objects of each",
        scale.definitions
    );
    report.section("custom", &title);
    let mut server = Server::start(workplace).await?;
    let empty = server.usages()?.server.rss_bytes;
    let mut client = Http1::connect(&server.access).await?;
    progress::say("create definitions");
    let started = Instant::now();
    let mut json_bytes = 0;
    for number in 0..scale.definitions {
        let made = client.call(Method::POST, DEFINITIONS, definition(number)).await?;
        json_bytes += made.len();
    }
    let rate = scale.definitions as f64 / started.elapsed().as_secs_f64();
    let title = "create definitions, one client: rate";
    report.add("definitions_per_second", title, Unit::PerSecond, rate, None);
    json_bytes += fill(&server, scale).await?;

    progress::say("discovery");
    for (id, title, changes) in [
        ("discovery_again", "discovery of all kinds", false),
        ("discovery_changed", "discovery after a definition came", true),
    ] {
        let mut taken = Latencies::default();
        for round in 0..ROUNDS {
            if changes {
                let more = definition(scale.definitions + round);
                client.call(Method::POST, DEFINITIONS, more).await?;
            }
            let expected = scale.definitions + if changes { round + 1 } else { 0 };
            let started = Instant::now();
            let found = client
                .call_as(Method::GET, "/apis", Bytes::new(), AGGREGATED)
                .await?;
            taken.record(started.elapsed());
            let kinds = memmem::find_iter(&found, b"\"kind\":\"Bench").count();
            ensure!(kinds >= expected, "{kinds} kinds instead of {expected}");
        }
        let taken = taken.sorted();
        for (name, quantile, bound) in [("p50", 0.5, None), ("p99", 0.99, Some(Bound::AtMost(10.0)))] {
            let (id, title) = (format!("{id}_{name}_ms"), format!("{title}, {name}"));
            report.add(id, title, Unit::Millis, taken.millis(quantile), bound);
        }
    }
    let title = "JSON of definitions and objects";
    report.add(
        "custom_json_bytes",
        title,
        Unit::Megabytes,
        json_bytes as f64,
        None,
    );
    memory(&server, empty, json_bytes, "before", "", report)?;
    server.restart(rustix::process::Signal::TERM).await?;
    memory(&server, empty, json_bytes, "after", " after a restart", report)
}

/// What a server holds more than an empty one.
fn memory(
    server: &Server,
    empty: f64,
    json_bytes: usize,
    id: &str,
    when: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let times = (server.usages()?.server.rss_bytes - empty) / json_bytes as f64;
    let title = format!("resident memory{when}, without that of an empty server / their JSON");
    let bound = Some(Bound::AtMost(3.0));
    report.add(format!("custom_rss_{id}_times"), title, Unit::Times, times, bound);
    Ok(())
}

/// Creates the objects; returns the size of their JSON.
async fn fill(server: &Server, scale: &Scale) -> anyhow::Result<usize> {
    let total = scale.definitions * OBJECTS;
    let counter = Counter::start("create custom resources", Some(total));
    let (next, size) = (counter.count(), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..scale.writers {
        let mut client = Http1::connect(&server.access).await?;
        let (next, size) = (next.clone(), size.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return Ok::<_, anyhow::Error>(());
                }
                let (of, at) = (number / OBJECTS, number % OBJECTS);
                let path = format!("/apis/g{of}.bench.test/v1/namespaces/default/benches{of}");
                let made = client.call(Method::POST, &path, object(of, at)).await?;
                size.fetch_add(made.len(), Ordering::Relaxed);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(size.load(Ordering::Relaxed))
}

/// A definition of about 6 kilobytes: 40 fields with descriptions, some with rules.
fn definition(number: usize) -> Bytes {
    let fields: Map<String, Value> = (0..40)
        .map(|at| {
            let description = format!("Field {at} says what operators of this kind of thing would like to have changed.");
            let field = match at % 4 {
                0 => json!({"type": "string", "description": description, "maxLength": 64}),
                1 => json!({"type": "integer", "description": description, "minimum": 0}),
                2 => json!({"type": "string", "description": description, "enum": ["Always", "Never", "Sometimes"]}),
                _ => json!({"type": "array", "description": description, "items": {"type": "string"}}),
            };
            (format!("field{at}"), field)
        })
        .collect();
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": fields},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("benches{number}.g{number}.bench.test")},
        "spec": {
            "group": format!("g{number}.bench.test"), "scope": "Namespaced",
            "names": {"plural": format!("benches{number}"), "kind": format!("Bench{number}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                          "schema": {"openAPIV3Schema": schema}}],
        },
    });
    definition.to_string().into()
}

/// An object of about a kilobyte.
fn object(of: usize, at: usize) -> Bytes {
    let text = "a text of some length";
    let spec: Map<String, Value> = (0..40)
        .step_by(2)
        .map(|at| {
            let value = if at % 4 == 0 { text } else { "Sometimes" };
            (format!("field{at}"), value.into())
        })
        .collect();
    let object = json!({
        "apiVersion": format!("g{of}.bench.test/v1"), "kind": format!("Bench{of}"),
        "metadata": {"name": format!("object-{at:03}"), "labels": {"app.kubernetes.io/name": "bench"}},
        "spec": spec,
    });
    object.to_string().into()
}
