//! How long does a first list of a large collection take, and what does the collection cost in memory?

use crate::Scale;
use crate::objects::{self, ALL_SLICES, SLICES};
use crate::progress::{self, Counter};
use crate::report::{Bound, Report, Unit};
use crate::server::{Server, Workplace};
use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use memchr::memmem;
use pointsman_benches::client::Http1;
use rustix::process::Signal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// kubectl's page size.
const PAGE: usize = 500;

/// Measures lists, memory and restarts with many EndpointSlices.
pub async fn run(workplace: &Workplace, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    report.section(
        "lists",
        &format!("{} EndpointSlices of 3 endpoints", scale.slices),
    );
    let mut server = Server::start(workplace).await?;
    let before = server.usages()?;
    let took = fill(&server, scale.writers, scale.slices).await?;
    let rate = scale.slices as f64 / took.as_secs_f64();
    let title = format!("create them, {} clients: rate", scale.writers);
    report.add("fill_per_second", title, Unit::PerSecond, rate, None);
    report.cost("fill", "create them", &before, &server.usages()?);

    let before = server.usages()?;
    let size = lists(&server, scale, report).await?;
    report.cost("list", "lists", &before, &server.usages()?);

    report.add(
        "serialized_bytes",
        "their JSON",
        Unit::Megabytes,
        size as f64,
        None,
    );
    memory(&server, size, "after", "after that", report)?;
    report.add(
        "disk_bytes",
        "store on disk",
        Unit::Megabytes,
        server.disk_bytes() as f64,
        None,
    );
    for (id, what, signal) in [
        ("term", "SIGTERM", Signal::TERM),
        ("kill", "kill -9", Signal::KILL),
    ] {
        progress::say("restart");
        let took = server.restart(signal).await?.as_secs_f64() * 1e3;
        let title = format!("start again after {what}, until ready");
        report.add(format!("restart_{id}_ms"), title, Unit::Millis, took, None);
    }
    memory(&server, size, "restarted", "after a restart", report)
}

fn memory(server: &Server, size: usize, id: &str, when: &str, report: &mut Report) -> anyhow::Result<()> {
    let used = server.usages()?.server;
    let times = used.rss_bytes / size as f64;
    report.add(
        format!("rss_{id}_bytes"),
        format!("resident memory {when}"),
        Unit::Megabytes,
        used.rss_bytes,
        None,
    );
    let title = format!("resident memory {when} / their JSON");
    report.add(
        format!("rss_{id}_times"),
        title,
        Unit::Times,
        times,
        Some(Bound::AtMost(4.0)),
    );
    Ok(())
}

/// Creates so many EndpointSlices and says how long it took.
pub async fn fill(server: &Server, writers: usize, total: usize) -> anyhow::Result<Duration> {
    create(server, "create EndpointSlices", writers, total, |number| {
        let name = format!("{}-{number:05}", objects::service_of(number));
        (SLICES, objects::slice(&name, number, number))
    })
    .await
}

/// Creates objects of which `object` says where and what, from so many clients.
pub async fn create(
    server: &Server,
    what: &'static str,
    writers: usize,
    total: usize,
    object: fn(usize) -> (&'static str, Bytes),
) -> anyhow::Result<Duration> {
    let counter = Counter::start(what, Some(total));
    let mut clients = Vec::new();
    for _ in 0..writers {
        clients.push(Http1::connect(&server.access).await?);
    }
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let next = counter.count();
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return anyhow::Ok(());
                }
                let (path, object) = object(number);
                client.call(Method::POST, path, object).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(started.elapsed())
}

/// Lists in all the ways that clients do; returns the size of the whole collection.
async fn lists(server: &Server, scale: &Scale, report: &mut Report) -> anyhow::Result<usize> {
    let total = scale.slices;
    progress::say("list EndpointSlices");
    let (size, took) = whole_list(server, total).await?;
    let bound = Some(Bound::AtMost(1_500.0));
    report.add(
        "list_first_ms",
        "first list, one client",
        Unit::Millis,
        took,
        bound,
    );
    let (_, took) = whole_list(server, total).await?;
    report.add("list_again_ms", "list again", Unit::Millis, took, None);
    let took = paged_list(server, total).await?;
    report.add(
        "list_paged_ms",
        format!("list in pages of {PAGE}"),
        Unit::Millis,
        took,
        None,
    );
    let took = selected_list(server, total).await?;
    report.add(
        "list_selected_ms",
        "list by the label of one Service",
        Unit::Millis,
        took,
        None,
    );
    let took = watch_list(server, total).await?;
    report.add(
        "watch_list_ms",
        "watch with initial events, to their end",
        Unit::Millis,
        took,
        None,
    );
    Ok(size)
}

/// From the connection's first packet to the last byte.
pub async fn whole_list(server: &Server, total: usize) -> anyhow::Result<(usize, f64)> {
    let started = Instant::now();
    let mut client = Http1::connect(&server.access).await?;
    let mut body = client
        .send(Method::GET, ALL_SLICES, Bytes::new())
        .await?
        .into_body();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.extend(frame?.into_data());
    }
    let took = millis(started);
    let text = frames.concat();
    ensure!(
        items(&text) == total,
        "the list has {} items instead of {total}",
        items(&text)
    );
    Ok((text.len(), took))
}

async fn paged_list(server: &Server, total: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut client = Http1::connect(&server.access).await?;
    let (mut token, mut seen) = (String::new(), 0);
    loop {
        let path = format!("{ALL_SLICES}?limit={PAGE}&continue={token}");
        let page = client.call(Method::GET, &path, Bytes::new()).await?;
        seen += items(&page);
        match continue_token(&page) {
            Some(next) => token = next,
            None => break,
        }
    }
    ensure!(seen == total, "the pages have {seen} items instead of {total}");
    Ok(millis(started))
}

async fn selected_list(server: &Server, total: usize) -> anyhow::Result<f64> {
    let number = total / 2;
    let service = objects::service_of(number);
    let started = Instant::now();
    let mut client = Http1::connect(&server.access).await?;
    let path = format!("{ALL_SLICES}?labelSelector=kubernetes.io%2Fservice-name%3D{service}");
    let list = client.call(Method::GET, &path, Bytes::new()).await?;
    let took = millis(started);
    let expected = objects::slices_of_service(number, total);
    ensure!(
        items(&list) == expected,
        "{service} has {} slices instead of {expected}",
        items(&list)
    );
    Ok(took)
}

/// As informers start now: a watch that begins with what is there.
async fn watch_list(server: &Server, total: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut client = Http1::connect(&server.access).await?;
    let path = format!(
        "{ALL_SLICES}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
         &resourceVersionMatch=NotOlderThan&timeoutSeconds=60"
    );
    let mut body = client.send(Method::GET, &path, Bytes::new()).await?.into_body();
    let (mut frames, mut took) = (Vec::new(), None);
    while took.is_none() {
        let frame = body
            .frame()
            .await
            .context("the watch ended before its initial events")??;
        let Ok(data) = frame.into_data() else { continue };
        // The end mark is the last thing in its frame.
        let tail = &data[data.len().saturating_sub(400)..];
        if memmem::find(tail, b"k8s.io/initial-events-end").is_some() {
            took = Some(millis(started));
        }
        frames.push(data);
    }
    let text = frames.concat();
    ensure!(
        items(&text) == total,
        "the watch starts with {} items instead of {total}",
        items(&text)
    );
    took.context("no end of the initial events")
}

/// Every slice has this field once.
fn items(text: &[u8]) -> usize {
    memmem::find_iter(text, br#""addressType":"#).count()
}

/// The token for the next page, from the list's metadata, which comes before the items.
fn continue_token(page: &[u8]) -> Option<String> {
    let start = br#""continue":""#;
    let head = &page[..memmem::find(page, br#""items":"#)?];
    let rest = &head[memmem::find(head, start)? + start.len()..];
    let token = String::from_utf8_lossy(&rest[..memchr::memchr(b'"', rest)?]).into_owned();
    (!token.is_empty()).then(|| token.replace('+', "%2B").replace('=', "%3D"))
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
