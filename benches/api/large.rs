//! What does a store cost that holds very many objects?
//!
//! Most of them are small ConfigMaps, so that it is their number that counts; a twentieth are EndpointSlices, whose list must not
//! pay for what else is there. Bounds are for a million objects; a run with fewer has as much less.

use crate::objects::{self, CONFIG_MAPS};
use crate::report::{Bound, Report, Unit};
use crate::server::{Engine, Server, Workplace};
use crate::{Scale, lists, progress};
use rustix::process::Signal;

/// One object of so many is an EndpointSlice.
const SLICES_AMONG: usize = 20;
/// What a million objects may take.
const MEMORY_BYTES: f64 = 2.5 * (1_u64 << 30) as f64;
const RESTART_MILLIS: f64 = 10_000.0;
const LIST_MILLIS: f64 = 300.0;
/// How often a list is taken; the median counts.
const LISTS: usize = 5;

/// Measures memory, restarts and a list with many objects.
pub async fn run(workplace: &Workplace, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    if workplace.engine != Engine::Embedded {
        progress::say("large stores are measured on the embedded store only");
        return Ok(());
    }
    let (objects, share) = (scale.objects, scale.objects as f64 / 1e6);
    let slices = objects / SLICES_AMONG;
    let title = format!(
        "{objects} objects: {} ConfigMaps of {} bytes, {slices} EndpointSlices",
        objects - slices,
        objects::small_config_map(0).len()
    );
    report.section("large", &title);
    let mut server = Server::start(workplace).await?;
    let before = server.usages()?;
    let maps = |number: usize| (CONFIG_MAPS, objects::small_config_map(number));
    let took = lists::create(
        &server,
        "create ConfigMaps",
        scale.writers,
        objects - slices,
        maps,
    )
    .await?
        + lists::fill(&server, scale.writers, slices).await?;
    let rate = objects as f64 / took.as_secs_f64();
    let clients = format!("create them, {} clients: rate", scale.writers);
    report.add("large_per_second", clients, Unit::PerSecond, rate, None);
    report.cost("large", "create them", &before, &server.usages()?);
    memory(&server, "after", "after that", share, report)?;
    list(&server, slices, "after", "", share, report).await?;
    let disk = server.disk_bytes() as f64;
    report.add("large_disk_bytes", "store on disk", Unit::Megabytes, disk, None);
    for (id, what, signal) in [
        ("term", "SIGTERM", Signal::TERM),
        ("kill", "kill -9", Signal::KILL),
    ] {
        progress::say("restart");
        let took = server.restart(signal).await?.as_secs_f64() * 1e3;
        report.add(
            format!("large_restart_{id}_ms"),
            format!("start again after {what}, until ready"),
            Unit::Millis,
            took,
            Some(Bound::AtMost(RESTART_MILLIS * share)),
        );
    }
    list(&server, slices, "restarted", ", after a restart", share, report).await?;
    memory(&server, "restarted", "after a restart", share, report)
}

fn memory(server: &Server, id: &str, when: &str, share: f64, report: &mut Report) -> anyhow::Result<()> {
    report.add(
        format!("large_rss_{id}_bytes"),
        format!("resident memory {when}"),
        Unit::Megabytes,
        server.usages()?.server.rss_bytes,
        Some(Bound::AtMost(MEMORY_BYTES * share)),
    );
    Ok(())
}

async fn list(
    server: &Server,
    slices: usize,
    id: &str,
    when: &str,
    share: f64,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress::say("list EndpointSlices");
    let (_, first) = lists::whole_list(server, slices).await?;
    let mut again = Vec::new();
    for _ in 0..LISTS {
        again.push(lists::whole_list(server, slices).await?.1);
    }
    again.sort_by(f64::total_cmp);
    let bound = Some(Bound::AtMost(LIST_MILLIS * share));
    for (name, title, took) in [
        ("first", "first".to_owned(), first),
        (
            "again",
            format!("median of the {LISTS} after it"),
            again[LISTS / 2],
        ),
    ] {
        report.add(
            format!("large_list_{name}_{id}_ms"),
            format!("list of the {slices} EndpointSlices{when}: {title}"),
            Unit::Millis,
            took,
            bound,
        );
    }
    Ok(())
}
