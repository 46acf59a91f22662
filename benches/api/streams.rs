//! What do thousands of watches cost that share nothing?
//!
//! Each is a TLS connection of its own, as every kubelet and every proxy of a large cluster has one. All watch the same few
//! objects, which change slowly, so that the connections are what is measured.

use crate::objects::{self, CONFIG_MAPS};
use crate::report::{Report, Unit};
use crate::server::{Server, Workplace};
use crate::watches::{self, Case};
use crate::{Scale, progress};
use anyhow::ensure;
use pointsman_benches::process;

const CASE: Case = Case {
    id: "streams",
    what: "ConfigMaps, a TLS connection each",
    written: CONFIG_MAPS,
    watched: CONFIG_MAPS,
    object: objects::config_map,
    own_connections: true,
    bound: 250.0,
};
/// What a process has open besides the connections.
const OTHER_FILES: u64 = 200;

/// Measures fan-out and memory with many connections.
pub async fn run(workplace: &Workplace, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let fan = &scale.streams;
    let files = process::raise_file_limit();
    ensure!(
        files >= fan.watchers as u64 + OTHER_FILES,
        "{} connections need more than the {files} files that this process may open",
        fan.watchers
    );
    progress::say(&format!("{files} files may be open"));
    let title = format!(
        "{} watches, each over a connection of its own, {} changes/s",
        fan.watchers, fan.changes_per_second
    );
    report.section("streams", &title);
    let server = Server::start(workplace).await?;
    let (closed, open) = watches::measure(&server, fan, &CASE, report).await?;
    let after = server.usages()?.server;
    for (id, when, used) in [
        ("open", "all open, nothing sent", open),
        ("used", "after the changes", after),
    ] {
        // Some of the connections may be closed by now, but what they needed is not given back at once.
        let most = used.rss_bytes.max(closed.rss_bytes);
        report.add(
            format!("streams_{id}_bytes_each"),
            format!("{}: server RSS for each, {when}", CASE.what),
            Unit::Kilobytes,
            (most - closed.rss_bytes) / fan.watchers as f64,
            None,
        );
    }
    let cpu = (open.cpu_seconds - closed.cpu_seconds) * 1e3 / fan.watchers as f64;
    report.add(
        "streams_open_cpu_ms",
        format!("{}: server CPU to open one", CASE.what),
        Unit::Millis,
        cpu,
        None,
    );
    Ok(())
}
