//! `pointsman metrics-reference`: what can be measured about each role?
//!
//! It prints `docs/metrics.md`. A test compares the two, so that the page cannot lag behind the code.

use pointsman_proxy::Mode;
use pointsman_telemetry::reference::{Entry, entries, table};
use pointsman_telemetry::{BuildInfo, Registry, register_process};
use std::collections::BTreeSet;
use std::io::Write;

const HEAD: &str = "\
# Metrics

Made from the definitions in the code by `make docs`; do not edit.

Every role serves `GET /metrics` in Prometheus' classic text format. Names that Kubernetes also has keep its
spelling, labels and meaning, so that dashboards and alerts work unchanged; `pointsman_*` are ours.
A family never grows beyond its limit of series (1,000, where nothing else is said): what does not fit is counted in
one series whose labels all say `other`, and in `telemetry_series_overflow_total`.
Histograms with a bucket per millisecond show only buckets that hold something; pool them whole, as
`pointsman sli` does, rather than take rates of single buckets.
";

/// A role with the place where its metrics are served.
struct Role {
    title: &'static str,
    place: &'static str,
    describe: fn(&Registry),
}

const ROLES: [Role; 8] = [
    Role {
        title: "pointsman proxy, nftables mode",
        place: "Port 10249 (`--metrics-bind-address`), plain HTTP on loopback, elsewhere HTTPS for users who may `get /metrics`.",
        describe: |registry| drop(pointsman_proxy::metrics::Metrics::new(registry, Mode::Nftables)),
    },
    Role {
        title: "pointsman proxy, iptables mode",
        place: "Port 10249 (`--metrics-bind-address`), plain HTTP on loopback, elsewhere HTTPS for users who may `get /metrics`.",
        describe: |registry| drop(pointsman_proxy::metrics::Metrics::new(registry, Mode::Iptables)),
    },
    Role {
        title: "pointsman controllers",
        place: "Port 10257 (`--metrics-listen`), plain HTTP on loopback, elsewhere HTTPS for users who may `get /metrics`. \
                Only the leader's numbers move.",
        describe: pointsman_controllers::describe_metrics,
    },
    Role {
        title: "pointsman node",
        place: "Port 10250 (`--port`), HTTPS, for users who may `get nodes/metrics`.",
        describe: pointsman_node_agent::describe_metrics,
    },
    Role {
        title: "pointsman node --probe-only",
        place: "Port 10271 of the loopback address (`--probe-only-listen`), plain HTTP.",
        describe: pointsman_probe_only::describe_metrics,
    },
    Role {
        title: "pointsman dns",
        place: "Port 9153 (`--metrics-listen`), plain HTTP on loopback, elsewhere HTTPS for users who may `get /metrics`.",
        describe: pointsman_dns::describe_metrics,
    },
    Role {
        title: "pointsman sli",
        place: "Port 10270 (`--listen`), plain HTTP, beside the page.",
        describe: pointsman_collector::describe_metrics,
    },
    Role {
        title: "pointsman apiserver",
        place: "Port 6443 (`--listen`), HTTPS, for users who may `get /metrics`.",
        describe: pointsman_api_server::metrics::describe,
    },
];

/// Prints the reference.
pub fn run() -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(page()?.as_bytes())?)
}

fn page() -> anyhow::Result<String> {
    let common = Registry::new();
    register_process(
        &common,
        BuildInfo {
            version: "",
            revision: "",
            role: "",
        },
    );
    pointsman_http::Connections::register(&common);
    pointsman_api_client::Rights::default().register(&common);
    let common = entries(&common)?;
    let known: BTreeSet<&str> = common.iter().map(|entry| entry.name.as_str()).collect();
    let mut page = format!("{HEAD}\n## Every role\n\n{}", table(&common));
    for role in &ROLES {
        let registry = Registry::new();
        (role.describe)(&registry);
        let own = entries(&registry)?.into_iter();
        let own: Vec<Entry> = own.filter(|entry| !known.contains(entry.name.as_str())).collect();
        page.push_str(&format!(
            "\n## {}\n\n{}\n\n{}",
            role.title,
            role.place,
            table(&own)
        ));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn the_reference_is_what_the_definitions_make() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == page().unwrap(),
            "docs/metrics.md is stale; run `make docs`"
        );
    }

    #[test]
    fn every_metric_is_described_in_a_sentence() {
        for line in page().unwrap().lines().filter(|line| line.starts_with("| `")) {
            let help = line.trim_end_matches(" |").rsplit(" | ").next().unwrap();
            let is_sentence = help.ends_with('.') && help.split_whitespace().count() >= 3;
            assert!(is_sentence, "a description that is too short: {line}");
        }
    }
}
