//! What does the agent say of what containers use, to whom, and what do people see of it?

use crate::lab::{Lab, on_a_node};
use pointsman_harness::eventually;
use serde_json::{Value, json};

/// Burns a CPU and holds 32 MiB.
const BUSY: [&str; 3] = ["dd", "if=/dev/zero", "of=/dev/null"];

async fn busy_and_idle(lab: &Lab) {
    let command = BUSY.iter().copied().chain(["bs=33554432"]);
    lab.pod("busy", json!({ "command": command.collect::<Vec<_>>() }))
        .await;
    lab.pod("idle", json!({ "command": ["sleep", "76008"] })).await;
    for name in ["busy", "idle"] {
        lab.ready(name).await;
    }
}

#[test]
fn the_agent_says_what_pods_use_as_a_kubelet_does() {
    on_a_node(async |lab| {
        busy_and_idle(lab).await;
        let metrics = eventually("what was burnt is in the metrics", async || {
            let text = lab.ask_agent("/metrics/resource").await;
            let burnt = sample(&text, "container_cpu_usage_seconds_total", "busy")?;
            (burnt > 0.5).then_some(text)
        })
        .await;
        let of = |metric: &str, pod: &str| sample(&metrics, metric, pod).unwrap();
        assert!(of("container_memory_working_set_bytes", "busy") >= f64::from(32 << 20));
        assert!(of("pod_cpu_usage_seconds_total", "busy") > 0.5);
        assert!(of("pod_cpu_usage_seconds_total", "idle") < 0.5);
        assert!(of("container_start_time_seconds", "idle") > 1.7e9);
        assert!(of("pod_memory_working_set_bytes", "idle") < f64::from(16 << 20));
        for line in ["resource_scrape_error 0", "node_cpu_usage_seconds_total "] {
            assert!(metrics.contains(&format!("\n{line}")), "{metrics}");
        }

        let summary = lab.ask_agent("/stats/summary").await;
        let summary: Value = serde_json::from_str(&summary).unwrap();
        let node = &summary["node"];
        assert!(node["cpu"]["usageNanoCores"].as_u64() > Some(0), "{node}");
        assert!(node["memory"]["availableBytes"].as_u64() > Some(0) && node["fs"]["capacityBytes"].is_u64());
        let pod = |name: &str| {
            let pods = summary["pods"].as_array().unwrap().iter();
            let found = pods.clone().find(|pod| pod["podRef"]["name"] == name);
            found.unwrap_or_else(|| panic!("{summary:#}"))
        };
        let busy = &pod("busy")["containers"][0];
        // The machine is busy with other tests, too.
        assert!(
            busy["cpu"]["usageNanoCores"].as_u64() > Some(20_000_000),
            "{busy}"
        );
        assert!(busy["memory"]["rssBytes"].as_u64() >= Some(32 << 20), "{busy}");
        assert!(pod("idle")["cpu"]["usageNanoCores"].as_u64() < Some(20_000_000));
        assert!(pod("idle")["ephemeral-storage"]["usedBytes"].is_u64());
        let brief = lab.ask_agent("/stats/summary?only_cpu_and_memory=true").await;
        assert!(
            brief.contains("usageNanoCores") && !brief.contains("ephemeral-storage"),
            "{brief}"
        );
    });
}

#[test]
fn only_who_may_is_told_what_pods_use() {
    on_a_node(async |lab| {
        lab.kubectl(&["create", "serviceaccount", "reader"]).await;
        let token = lab.kubectl(&["create", "token", "reader"]).await;
        let code = async |path: &str, token: Option<&str>| {
            let mut curl = tokio::process::Command::new("curl");
            curl.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}"]);
            if let Some(token) = token {
                curl.args(["-H", &format!("Authorization: Bearer {}", token.trim())]);
            }
            let output = curl.arg(lab.agent_url(path)).output().await.unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        for path in ["/metrics/resource", "/stats/summary"] {
            assert_eq!(code(path, None).await, "401", "{path}");
        }
        // The right to one is not the right to the other.
        let role = [
            "create",
            "clusterrole",
            "reader",
            "--verb=get",
            "--resource=nodes/stats",
        ];
        lab.kubectl(&role).await;
        let account = "--serviceaccount=default:reader";
        lab.kubectl(&[
            "create",
            "clusterrolebinding",
            "reader",
            "--clusterrole=reader",
            account,
        ])
        .await;
        assert_eq!(code("/metrics/resource", Some(&token)).await, "403");
        eventually("the right to nodes/stats counts", async || {
            (code("/stats/summary", Some(&token)).await == "200").then_some(())
        })
        .await;
    });
}

#[test]
fn kubectl_top_shows_what_nodes_and_pods_use() {
    on_a_node(async |lab| {
        lab.pod("gone", json!({ "command": ["true"] })).await;
        busy_and_idle(lab).await;
        lab.kubectl(&["label", "pod", "busy", "load=high"]).await;
        let pods = eventually("all of them are measured", async || {
            let shown = lab.kubectl(&["top", "pods", "--no-headers"]).await;
            (cells(&shown, "busy").is_some() && cells(&shown, "idle").is_some()).then_some(shown)
        })
        .await;
        let (cores, memory) = cells(&pods, "busy").unwrap();
        assert!(cores >= 20 && (32..96).contains(&memory), "{pods}");
        let (cores, memory) = cells(&pods, "idle").unwrap();
        assert!(cores < 20 && memory < 16, "{pods}");
        let labelled = lab
            .kubectl(&["top", "pods", "-A", "-l", "load=high", "--containers"])
            .await;
        let lines: Vec<&str> = labelled.lines().skip(1).collect();
        assert!(
            lines.len() == 1 && lines[0].contains("busy") && lines[0].contains(" c "),
            "{labelled}"
        );
        let nodes = lab.kubectl(&["top", "nodes"]).await;
        let node = nodes.lines().nth(1).unwrap();
        assert!(
            node.starts_with("n1 ") && node.matches('%').count() == 2,
            "{nodes}"
        );

        let group = "/apis/metrics.k8s.io/v1beta1";
        let one = lab
            .http
            .get(&format!("{group}/namespaces/default/pods/busy"))
            .await
            .json();
        assert_eq!(
            (&one["kind"], &one["metadata"]["labels"]["load"]),
            (&json!("PodMetrics"), &json!("high"))
        );
        assert!(one["window"].as_str().unwrap().ends_with('s'), "{one}");
        let none = lab
            .http
            .get(&format!("{group}/namespaces/default/pods/nothing"))
            .await;
        assert_eq!(none.code, 404);
        assert_eq!(
            none.json()["message"],
            "pods.metrics.k8s.io \"nothing\" not found"
        );
        assert_eq!(lab.http.get(&format!("{group}/pods?watch=true")).await.code, 405);
        let listed = lab
            .http
            .get(&format!("{group}/namespaces/kube-system/pods"))
            .await;
        assert_eq!(listed.json()["items"], json!([]));
        let may = ["auth", "can-i", "list", "pods.metrics.k8s.io"];
        lab.kubectl(&["create", "rolebinding", "v", "--clusterrole=view", "--user=v"])
            .await;
        eventually("who may view may see this, too", async || {
            let said = lab
                .server
                .kubectl_command()
                .args(may)
                .arg("--as=v")
                .output()
                .await
                .unwrap();
            (said.stdout == b"yes\n").then_some(())
        })
        .await;

        // A node that does not answer is left out.
        lab.kill_agent().await;
        let nodes = lab.http.get(&format!("{group}/nodes")).await;
        assert_eq!((nodes.code, &nodes.json()["items"]), (200, &json!([])));
    });
}

/// Thousandths of a CPU, and MiB.
fn cells(shown: &str, pod: &str) -> Option<(u64, u64)> {
    let line = shown.lines().find(|line| line.starts_with(pod))?;
    let mut cells = line.split_whitespace().skip(1);
    let cores = cells.next()?.strip_suffix('m')?.parse().ok()?;
    Some((cores, cells.next()?.strip_suffix("Mi")?.parse().ok()?))
}

/// What a metric says of a pod.
fn sample(text: &str, metric: &str, pod: &str) -> Option<f64> {
    let label = format!("pod=\"{pod}\"");
    let mut lines = text
        .lines()
        .filter(|line| line.starts_with(&format!("{metric}{{")));
    let line = lines.find(|line| line.contains(&label))?;
    line.split("} ").nth(1)?.split(' ').next()?.parse().ok()
}
