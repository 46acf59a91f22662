//! What do perf-dash, Prometheus and Grafana get?
//!
//! The files in `deploy/monitoring` are made here; a test makes them anew and compares, and another one looks for every
//! metric in the reference of all. `POINTSMAN_WRITE=1 cargo nextest run -p pointsman-collector monitoring` writes them.

mod dashboard;

use pointsman_model::Moment;
use pointsman_sli::measure::{Measure, Sli, Unfinished};
use serde_json::json;

pub use dashboard::dashboard;

/// The SLI as perf-dash reads it: one item for each form, in milliseconds.
pub(crate) fn perf_dash(measure: &Measure, unfinished: &Unfinished, now: Moment) -> String {
    let item = |name: &str, sli: &Sli| {
        let millis = |estimate: Option<pointsman_sli::pool::Estimate>| {
            estimate
                .and_then(|estimate| estimate.high)
                .map_or(0.0, |high| high.as_secs_f64() * 1e3)
        };
        json!({
            "data": { "Perc50": millis(sli.p50), "Perc90": millis(sli.p90), "Perc99": millis(sli.p99) },
            "unit": "ms",
            "labels": { "Metric": name },
        })
    };
    let pooled = measure.pooled(now, unfinished);
    let exact = measure.exact(now, 0, unfinished);
    let document = json!({
        "version": "v1",
        "dataItems": [
            item("NetworkProgrammingLatency", &pooled),
            item("NetworkProgrammingLatencyExact", &exact),
        ],
    });
    document.to_string()
}

/// Rules for Prometheus: the SLI from kube-proxy's own histogram, for clusters without a collector, and
/// alerts on what the collector reports.
pub fn recording_rules() -> String {
    let mut out = String::from(
        "# Made from the definitions of the metrics; see crates/edges/collector/src/export.rs.\ngroups:\n\
         - name: pointsman-network-programming\n  interval: 30s\n  rules:\n",
    );
    for (suffix, quantile) in [("p50", "0.5"), ("p90", "0.9"), ("p99", "0.99")] {
        out.push_str(&format!(
            "  - record: cluster:network_programming_duration_seconds:{suffix}_5m\n    expr: >-\n      \
             histogram_quantile({quantile}, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket[5m])))\n",
        ));
    }
    out.push_str("- name: pointsman-alerts\n  rules:\n");
    for (name, expr, wait, summary) in ALERTS {
        out.push_str(&format!(
            "  - alert: {name}\n    expr: >-\n      {expr}\n    for: {wait}\n    labels:\n      severity: warning\n    \
             annotations:\n      summary: {summary:?}\n",
        ));
    }
    out
}

/// Name, expression, how long it has to hold, and what it says.
const ALERTS: [(&str, &str, &str, &str); 12] = [
    (
        "NetworkProgrammingSlow",
        "pointsman_sli_network_programming_seconds{form=\"pooled\",quantile=\"0.99\"} > on () group_left () pointsman_sli_objective_seconds",
        "15m",
        "More than 1 % of the samples of the last five minutes exceed the objective, for 15 minutes now.",
    ),
    (
        "NetworkProgrammerSilent",
        "sum(pointsman_sli_programmers{state=~\"silent|stalled\"}) > 0",
        "1m",
        "The service proxy of a node says nothing or makes no progress although its Node is reachable; the node \
         forwards by old rules.",
    ),
    (
        "NetworkProgrammersLagging",
        "pointsman_sli_programmers_lagging > 0",
        "5m",
        "At every moment of the last five minutes a node lacked a change for more than 250 ms, or said nothing.",
    ),
    (
        "NetworkProgrammingUnmeasured",
        "pointsman_sli_coverage_ratio{form=\"pooled\"} < 0.9",
        "15m",
        "Samples cover less than 90 % of the time of all programmers: what is reported may miss the slow ones.",
    ),
    (
        "ShutdownGateTimesOut",
        "increase(pointsman_gate_opened_total{outcome=\"bound\"}[15m]) > 0",
        "0m",
        "A pod was stopped because its wait at the gate was over: nodes may still have sent connections to it.",
    ),
    (
        // A single failure is over when the five minutes that it counts in are.
        "ProxySyncFails",
        "increase(kubeproxy_sync_proxy_rules_nftables_sync_failures_total[5m]) > 0 or \
         increase(kubeproxy_sync_proxy_rules_iptables_restore_failures_total[5m]) > 0",
        "6m",
        "Rules are refused on {{ $labels.instance }} again and again, and the node forwards by older ones; the proxy's \
         log names what was refused.",
    ),
    (
        "PartialRestoreFailed",
        "increase(kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total[15m]) > 0",
        "0m",
        "A partial sync was refused on {{ $labels.instance }} and a full one followed; unless another program flushed \
         rules there, switch MinimizeIPTablesRestore off.",
    ),
    (
        "ProxyRulesDiverged",
        "increase(pointsman_proxy_divergences_total[15m]) > 0",
        "0m",
        "Partial syncs on {{ $labels.instance }} led elsewhere than a full one, which has put it right; switch \
         MinimizeIPTablesRestore off and report it.",
    ),
    (
        "ProxyRulesRepaired",
        "increase(pointsman_proxy_repairs_total[15m]) > 0",
        "0m",
        "Another program changed rules of pointsman-proxy on {{ $labels.instance }}, which were wrong until they were put \
         right; find out which one (a firewall that flushes, a kube-proxy that came back).",
    ),
    (
        "RightMissing",
        "pointsman_missing_rights > 0",
        "1m",
        "Rights that the API server refuses to the role on {{ $labels.instance }}: {{ $value }}. Nothing that needs them works; \
         its log names them. Apply the manifests of the version that runs.",
    ),
    (
        "KubeProxyBehind",
        "pointsman_proxy_observed_behind_services > 0",
        "1m",
        "Services about which kube-proxy's rules on {{ $labels.instance }} have not said for a minute what they must: \
         {{ $value }}. The event ServiceProxyBehind of the Node names one.",
    ),
    (
        "SecondServiceProxy",
        "pointsman_proxy_second_writer > 0",
        "1m",
        "kube-proxy in {{ $labels.mode }} mode writes rules on {{ $labels.instance }} beside pointsman-proxy; remove one of \
         the two (kubeadm upgrade brings kube-proxy's DaemonSet back).",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_sli::pool::{Pool, Span};
    use pointsman_sli::source::Reading;
    use serde_json::Value;

    #[test]
    fn monitoring_files_are_those_that_are_made_here() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/monitoring");
        let files = [("rules.yaml", recording_rules()), ("dashboard.json", dashboard())];
        for (name, made) in files {
            let path = directory.join(name);
            if std::env::var_os("POINTSMAN_WRITE").is_some() {
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::write(&path, &made).unwrap();
            }
            let found = std::fs::read_to_string(&path).unwrap();
            assert!(
                found == made,
                "{name} is not what its source makes; see the head of this module"
            );
        }
    }

    #[test]
    fn an_alert_says_what_its_expression_means() {
        let summary = |alert: &str| {
            let rules = recording_rules();
            let at = rules.find(&format!("alert: {alert}\n")).unwrap();
            let rest = rules[at..].split_once("summary: \"").unwrap().1;
            rest.lines().next().unwrap().to_owned()
        };
        // A 99th percentile above X is exceeded by one sample in a hundred, not by 99.
        let slow = summary("NetworkProgrammingSlow");
        assert!(slow.starts_with("More than 1 % of the samples"), "{slow}");
        // Different nodes may take turns in lagging.
        let lagging = summary("NetworkProgrammersLagging");
        assert!(lagging.starts_with("At every moment"), "{lagging}");
        // What must never happen is reported at once, with the node.
        let must_never_happen = ["PartialRestoreFailed", "ProxyRulesDiverged", "ProxyRulesRepaired"];
        let has_a_place = ["ProxySyncFails", "RightMissing", "KubeProxyBehind"];
        for alert in must_never_happen.into_iter().chain(has_a_place) {
            assert!(summary(alert).contains("on {{ $labels.instance }}"), "{alert}");
        }
    }

    #[test]
    fn every_metric_in_a_rule_or_a_panel_exists() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/metrics.md");
        let known = std::fs::read_to_string(path).unwrap();
        let rules = recording_rules() + &dashboard();
        let words = rules.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        let ours = words.filter(|word| word.starts_with("kubeproxy_") || word.starts_with("pointsman_"));
        let suffixes = ["_bucket", "_sum", "_count"];
        let family = |word| {
            suffixes
                .iter()
                .find_map(|it| str::strip_suffix(word, it))
                .unwrap_or(word)
        };
        let names: Vec<&str> = ours.map(family).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            assert!(
                known.contains(&format!("| `{name}` |")),
                "{name} is not in docs/metrics.md"
            );
        }
    }

    #[test]
    fn perf_dash_gets_milliseconds() {
        let mut measure = Measure::new(None, Moment(0));
        let mut reading = Reading {
            at: Moment(0),
            started: None,
            counted: Pool::default(),
        };
        measure.read("n1", reading.clone(), 0);
        reading.counted.add(
            Span {
                low: 2_000,
                high: 3_000,
            },
            4,
        );
        measure.read("n1", reading, 0);
        let document: Value =
            serde_json::from_str(&perf_dash(&measure, &Unfinished::default(), Moment(0))).unwrap();
        assert_eq!(document["dataItems"][0]["data"]["Perc99"], 3.0);
        assert_eq!(document["dataItems"][0]["unit"], "ms");
    }
}
