//! What does an operator look at in Grafana?
//!
//! From top to bottom: is it well now, was it well, where does the time go, who is behind, do pods stop safely, what
//! goes wrong. Each panel answers a question, which its title asks.

use serde_json::{Value, json};

/// Grafana's grid is so many columns wide.
const COLUMNS: u64 = 24;

/// A series of a panel: what it shows, and how it is named.
type Series = (&'static str, &'static str);

/// How a panel draws.
enum Look {
    /// One number, and from which values on it is yellow and red.
    Stat {
        yellow: Option<f64>,
        red: Option<f64>,
    },
    Lines,
    /// Lines on top of each other, which add up.
    Stacked,
}

struct Panel {
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    look: Look,
    series: &'static [Series],
}

const GOOD: Look = Look::Stat {
    yellow: None,
    red: Some(1.0),
};

/// Rows, each with its height and what is in it.
const ROWS: [(&str, u64, &[Panel]); 6] = [
    (
        "Now",
        4,
        &[
            Panel {
                title: "Does the SLI meet its objective?",
                description: "The 99th percentile of the last five minutes as a share of the objective: above 100 % it is missed.",
                unit: "percentunit",
                look: Look::Stat {
                    yellow: Some(0.8),
                    red: Some(1.0),
                },
                series: &[(
                    "pointsman_sli_network_programming_seconds{form=\"pooled\",quantile=\"0.99\"} / on () group_left () pointsman_sli_objective_seconds",
                    "",
                )],
            },
            Panel {
                title: "Today against the objective",
                description: "The day's figure, the 99th percentile of the SLI's values of every minute, as a share of the objective.",
                unit: "percentunit",
                look: Look::Stat {
                    yellow: Some(0.8),
                    red: Some(1.0),
                },
                series: &[("pointsman_sli_day_seconds / pointsman_sli_objective_seconds", "")],
            },
            Panel {
                title: "Nodes behind",
                description: "Nodes that lack a change for more than 250 ms, or say nothing although they can be reached.",
                unit: "short",
                look: GOOD,
                series: &[("pointsman_sli_programmers_lagging", "")],
            },
            Panel {
                title: "Changes on their way",
                description: "Changes that are not in every kernel yet.",
                unit: "short",
                look: Look::Stat {
                    yellow: Some(100.0),
                    red: Some(1000.0),
                },
                series: &[("pointsman_sli_changes_open", "")],
            },
            Panel {
                title: "Pods stopped too early, 24 h",
                description: "Pods that were stopped because their wait was over: nodes may still have sent connections to them.",
                unit: "short",
                look: GOOD,
                series: &[(
                    "sum(increase(pointsman_gate_opened_total{outcome=\"bound\"}[24h]))",
                    "",
                )],
            },
            Panel {
                title: "Measured",
                description: "Which part of the programmers' time samples cover. Below 90 % there is no verdict.",
                unit: "percentunit",
                look: Look::Stat {
                    yellow: None,
                    red: None,
                },
                series: &[("pointsman_sli_coverage_ratio{form=\"pooled\"}", "")],
            },
        ],
    ),
    (
        "Latency",
        9,
        &[
            Panel {
                title: "How long until rules are in the kernels?",
                description: "The SLI over the last five minutes, as upper bounds, and the objective.",
                unit: "s",
                look: Look::Lines,
                series: &[
                    (
                        "pointsman_sli_network_programming_seconds{form=\"pooled\",quantile=\"0.5\"}",
                        "p50 of all nodes' samples",
                    ),
                    (
                        "pointsman_sli_network_programming_seconds{form=\"pooled\",quantile=\"0.99\"}",
                        "p99 of all nodes' samples",
                    ),
                    (
                        "pointsman_sli_network_programming_seconds{form=\"exact\",quantile=\"0.99\"}",
                        "p99 until 99 % of the nodes have it",
                    ),
                    ("pointsman_sli_objective_seconds", "objective"),
                ],
            },
            Panel {
                title: "How long until a change is everywhere?",
                description: "Each change until it was in the last kernel. With traces (--otlp), points lead to them.",
                unit: "s",
                look: Look::Lines,
                series: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(pointsman_sli_change_reached_seconds_bucket{share=\"1\"}[5m])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(pointsman_sli_change_reached_seconds_bucket{share=\"1\"}[5m])))",
                        "p99",
                    ),
                ],
            },
        ],
    ),
    (
        "Stages",
        8,
        &[
            Panel {
                title: "Where does the time go?",
                description: "The mean time of each part of the way; together they are the mean time of a change.",
                unit: "s",
                look: Look::Stacked,
                series: &[(
                    "sum by (stage) (rate(pointsman_sli_change_stage_seconds_sum[5m])) / ignoring (stage) group_left () sum(rate(pointsman_sli_change_reached_seconds_count{share=\"1\"}[5m]))",
                    "{{stage}}",
                )],
            },
            Panel {
                title: "Which stage is slow at its worst?",
                description: "The 99th percentile of each part of the way.",
                unit: "s",
                look: Look::Lines,
                series: &[(
                    "histogram_quantile(0.99, sum by (le, stage) (rate(pointsman_sli_change_stage_seconds_bucket[5m])))",
                    "{{stage}}",
                )],
            },
            Panel {
                title: "What changes?",
                description: "Changes that reached 99 % of the kernels, by kind.",
                unit: "ops",
                look: Look::Stacked,
                series: &[(
                    "sum by (kind) (rate(pointsman_sli_changes_total[5m]))",
                    "{{kind}}",
                )],
            },
        ],
    ),
    (
        "Nodes",
        8,
        &[
            Panel {
                title: "Who does not report?",
                description: "Programmers that are silent, stalled or unreachable, and kube-proxies that report no watermark.",
                unit: "short",
                look: Look::Stacked,
                series: &[("pointsman_sli_programmers{state!=\"live\"}", "{{state}}")],
            },
            Panel {
                title: "Which nodes are slowest?",
                description: "The ten highest 99th percentiles of the nodes' own samples.",
                unit: "s",
                look: Look::Lines,
                series: &[(
                    "topk(10, histogram_quantile(0.99, sum by (instance, le) (rate(pointsman_network_programming_duration_seconds_bucket[5m]))))",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Which nodes write the longest?",
                description: "The ten highest 99th percentiles of a sync of rules.",
                unit: "s",
                look: Look::Lines,
                series: &[(
                    "topk(10, histogram_quantile(0.99, sum by (instance, le) (rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket[5m]))))",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Where is kube-proxy behind?",
                description: "Services whose rules, which kube-proxy writes and an observer reads, have differed for 5 s or more.",
                unit: "short",
                look: Look::Lines,
                series: &[(
                    "sum by (instance) (pointsman_proxy_observed_behind_services) > 0",
                    "{{instance}}",
                )],
            },
        ],
    ),
    (
        "Shutdown gates",
        8,
        &[
            Panel {
                title: "How did pods' waits end?",
                description: "`everywhere` is the good one; `bound` means that a node was behind for too long.",
                unit: "ops",
                look: Look::Stacked,
                series: &[(
                    "sum by (outcome) (rate(pointsman_gate_opened_total[5m]))",
                    "{{outcome}}",
                )],
            },
            Panel {
                title: "How long do pods wait to be stopped?",
                description: "The waits of gates that opened because every kernel had the slice.",
                unit: "s",
                look: Look::Lines,
                series: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(pointsman_gate_wait_seconds_bucket{outcome=\"everywhere\"}[5m])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(pointsman_gate_wait_seconds_bucket{outcome=\"everywhere\"}[5m])))",
                        "p99",
                    ),
                ],
            },
            Panel {
                title: "How many wait?",
                description: "Pods under deletion that wait for their removal to be in every kernel.",
                unit: "short",
                look: Look::Lines,
                series: &[("pointsman_gate_waiting", "waiting")],
            },
        ],
    ),
    (
        "Errors",
        8,
        &[
            Panel {
                title: "Which rules could not be written?",
                description: "Syncs that the kernel refused, and rules that were not what had been written.",
                unit: "ops",
                look: Look::Lines,
                series: &[
                    (
                        "sum by (instance) (rate(kubeproxy_sync_proxy_rules_nftables_sync_failures_total[5m])) > 0",
                        "{{instance}} nftables",
                    ),
                    (
                        "sum by (instance) (rate(kubeproxy_sync_proxy_rules_iptables_restore_failures_total[5m])) > 0",
                        "{{instance}} iptables",
                    ),
                    (
                        "sum by (instance) (rate(kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total[5m])) > 0",
                        "{{instance}} partial restore",
                    ),
                    (
                        "sum by (instance) (rate(pointsman_proxy_divergences_total[5m])) > 0",
                        "{{instance}} diverged",
                    ),
                    (
                        "sum by (instance) (rate(pointsman_proxy_disturbances_total[5m])) > 0",
                        "{{instance}} changed by another program",
                    ),
                    (
                        "sum by (instance) (rate(pointsman_proxy_repairs_total[5m])) > 0",
                        "{{instance}} put right",
                    ),
                ],
            },
            Panel {
                title: "Who lacks a right?",
                description: "Rights that the API server refuses to a role; its log names them.",
                unit: "short",
                look: Look::Lines,
                series: &[("pointsman_missing_rights > 0", "{{instance}}")],
            },
            Panel {
                title: "What is not believed?",
                description: "Lines of programmers that cannot be true, metrics that could not be read, and traces that could not be sent.",
                unit: "ops",
                look: Look::Lines,
                series: &[
                    (
                        "sum by (reason) (rate(pointsman_sli_watermark_faults_total[5m]))",
                        "line: {{reason}}",
                    ),
                    (
                        "rate(pointsman_sli_scrapes_total{result=\"failed\"}[5m])",
                        "metrics not read",
                    ),
                    ("deriv(pointsman_sli_changes_evicted[5m])", "changes forgotten"),
                    (
                        "sum by (result) (rate(pointsman_sli_traces_total{result!=\"sent\"}[5m]))",
                        "traces {{result}}",
                    ),
                ],
            },
            Panel {
                title: "How exact is it?",
                description: "The largest error that remains after clocks are corrected, and how long lines take to be counted.",
                unit: "s",
                look: Look::Lines,
                series: &[
                    ("pointsman_sli_clock_error_seconds", "clock error"),
                    ("pointsman_sli_clock_offset_seconds", "clock offset, corrected"),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(pointsman_sli_fold_delay_seconds_bucket[5m])))",
                        "line to count, p99",
                    ),
                ],
            },
        ],
    ),
];

/// The dashboard as Grafana imports it.
pub fn dashboard() -> String {
    let mut panels: Vec<Value> = Vec::new();
    let mut top = 0;
    for (name, height, row) in ROWS {
        let id = panels.len() + 1;
        let place = json!({ "h": 1, "w": COLUMNS, "x": 0, "y": top });
        panels.push(json!({ "id": id, "type": "row", "title": name, "collapsed": false, "gridPos": place, "panels": [] }));
        let width = COLUMNS / row.len() as u64;
        for (at, panel) in (0..).zip(row) {
            let place = json!({ "h": height, "w": width, "x": at * width, "y": top + 1 });
            panels.push(panel.show(panels.len() + 1, place));
        }
        top += 1 + height;
    }
    let source =
        json!({ "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus" });
    let document = json!({
        "title": "Pointsman: network programming",
        "uid": "pointsman-sli",
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": { "from": "now-2h", "to": "now" },
        "templating": { "list": [source] },
        "panels": panels,
    });
    let mut text = serde_json::to_string_pretty(&document).expect("plain values always serialize");
    text.push('\n');
    text
}

impl Panel {
    fn show(&self, id: usize, place: Value) -> Value {
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        let targets = ('A'..).zip(self.series).map(|(letter, (expr, legend))| {
            json!({ "refId": letter.to_string(), "datasource": source, "expr": expr, "legendFormat": legend, "exemplar": true })
        });
        let (kind, defaults, options) = self.look.show(self.unit);
        // What is promised looks the same everywhere: a dashed red line.
        let promised = json!({ "matcher": { "id": "byName", "options": "objective" }, "properties": [
            { "id": "color", "value": { "mode": "fixed", "fixedColor": "red" } },
            { "id": "custom.lineStyle", "value": { "fill": "dash", "dash": [8, 8] } },
            { "id": "custom.fillOpacity", "value": 0 },
        ] });
        json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "gridPos": place,
            "datasource": source,
            "fieldConfig": { "defaults": defaults, "overrides": [promised] },
            "options": options,
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}

impl Look {
    fn show(&self, unit: &str) -> (&'static str, Value, Value) {
        let tooltip = json!({ "tooltip": { "mode": "multi", "sort": "desc" }, "legend": { "displayMode": "list", "placement": "bottom" } });
        let lines = |stacking: &str, fill: u8| {
            json!({ "unit": unit, "min": 0, "custom": { "fillOpacity": fill, "lineWidth": 2, "showPoints": "never", "spanNulls": false,
                "stacking": { "mode": stacking } } })
        };
        match self {
            Self::Lines => ("timeseries", lines("none", 6), tooltip),
            Self::Stacked => ("timeseries", lines("normal", 30), tooltip),
            Self::Stat { yellow, red } => {
                let mut steps = vec![json!({ "color": "green", "value": null })];
                steps.extend(yellow.map(|value| json!({ "color": "yellow", "value": value })));
                steps.extend(red.map(|value| json!({ "color": "red", "value": value })));
                let thresholds = json!({ "mode": "absolute", "steps": steps });
                let defaults = json!({ "unit": unit, "thresholds": thresholds });
                let options = json!({ "colorMode": "value", "graphMode": "area", "reduceOptions": { "calcs": ["lastNotNull"] } });
                ("stat", defaults, options)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_ask_a_question_say_their_unit_and_lie_beside_each_other() {
        let document: Value = serde_json::from_str(&dashboard()).unwrap();
        let panels = document["panels"].as_array().unwrap();
        let mut cells = std::collections::BTreeSet::new();
        for panel in panels {
            let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(place("x") + place("w") <= COLUMNS, "{panel}");
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    assert!(cells.insert((x, y)), "two panels at {x}, {y}: {panel}");
                }
            }
            if panel["type"] != "row" {
                assert!(!panel["description"].as_str().unwrap().is_empty(), "{panel}");
                assert!(
                    !panel["fieldConfig"]["defaults"]["unit"]
                        .as_str()
                        .unwrap()
                        .is_empty(),
                    "{panel}"
                );
                assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
            }
        }
        assert!(panels.len() > 20, "{}", panels.len());
    }

    #[test]
    fn parentheses_and_braces_of_every_expression_are_closed() {
        for (expr, _) in ROWS
            .iter()
            .flat_map(|(.., row)| *row)
            .flat_map(|panel| panel.series)
        {
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                assert_eq!(expr.matches(open).count(), expr.matches(close).count(), "{expr}");
            }
        }
    }
}
