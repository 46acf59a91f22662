//! What is used, for a monitoring system: the kubelet's names on its own path.

use super::Names;
use super::node::NodeUse;
use pointsman_runtime::{PodUsage, Usage};
use pointsman_telemetry::{Encoder, Kind};
use std::time::SystemTime;

/// The text; without pods the runtime could not be asked.
pub(super) fn text(node: &NodeUse, pods: Option<&[PodUsage]>, names: &Names) -> String {
    let mut out = Encoder::default();
    of(&mut out, "node", "the node", &[], &node.used);
    for pod in pods.unwrap_or_default() {
        let Some(name) = names.get(pod.pod.as_str()) else {
            continue;
        };
        let labels = [
            ("namespace", name.namespace.as_str()),
            ("pod", name.name.as_str()),
        ];
        of(&mut out, "pod", "the pod", &labels, &pod.total);
        for container in &pod.containers {
            let labels = [("container", container.id.name.as_str()), labels[0], labels[1]];
            of(&mut out, "container", "the container", &labels, &container.used);
            let help = "When the container was started, in seconds since 1970.";
            out.family("container_start_time_seconds", help, Kind::Gauge)
                .sample(&labels, since_1970(container.started_at));
        }
    }
    let failed = f64::from(u8::from(pods.is_none()));
    let help = "1 if the runtime could not say what pods use, 0 otherwise.";
    for name in ["resource_scrape_error", "scrape_error"] {
        out.family(name, help, Kind::Gauge).sample(&[], failed);
    }
    out.finish()
}

fn of(out: &mut Encoder, prefix: &str, whose: &str, labels: &[(&str, &str)], used: &Usage) {
    let millis = (since_1970(used.at) * 1000.0) as i64;
    if let Some(cpu) = used.cpu {
        let help = format!("Time of CPUs that {whose} has used, in seconds.");
        let name = format!("{prefix}_cpu_usage_seconds_total");
        out.family(&name, &help, Kind::Counter)
            .sample_at(labels, cpu.as_secs_f64(), millis);
    }
    if let Some(memory) = used.memory {
        let help = format!("Memory that {whose} uses, without files that were not read lately.");
        let name = format!("{prefix}_memory_working_set_bytes");
        out.family(&name, &help, Kind::Gauge)
            .sample_at(labels, memory.working_set as f64, millis);
    }
}

fn since_1970(at: SystemTime) -> f64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::super::PodName;
    use super::*;
    use pointsman_runtime::{ContainerId, ContainerName, ContainerUsage, MemoryUse, PodUid};
    use std::time::Duration;

    #[test]
    fn names_types_labels_and_times_are_the_kubelets() {
        let second = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let used = |at, cpu, working_set| Usage {
            at: second(at),
            cpu: Some(Duration::from_millis(cpu)),
            memory: Some(MemoryUse {
                working_set,
                total: None,
                anonymous: None,
            }),
        };
        let node = NodeUse {
            used: used(5000, 7500, 4096),
            booted: None,
            memory: None,
        };
        let pod = PodUid::try_new("u").unwrap();
        let container = ContainerUsage {
            id: ContainerId {
                pod: pod.clone(),
                name: ContainerName::try_new("c").unwrap(),
                attempt: 1,
            },
            started_at: second(1500),
            used: used(4001, 250, 10),
        };
        let stranger = PodUsage::of_containers(PodUid::try_new("x").unwrap(), Vec::new());
        let pods = [PodUsage::of_containers(pod, vec![container]), stranger];
        let name = PodName {
            namespace: "n".into(),
            name: "p".into(),
        };
        let names = Names::from([("u".into(), name)]);
        let said = text(&node, Some(&pods), &names);
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# TYPE container_cpu_usage_seconds_total counter",
                r#"container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 0.25 4001"#,
                "# TYPE container_memory_working_set_bytes gauge",
                r#"container_memory_working_set_bytes{container="c",namespace="n",pod="p"} 10 4001"#,
                "# TYPE container_start_time_seconds gauge",
                r#"container_start_time_seconds{container="c",namespace="n",pod="p"} 1.5"#,
                "# TYPE node_cpu_usage_seconds_total counter",
                "node_cpu_usage_seconds_total 7.5 5000",
                "# TYPE node_memory_working_set_bytes gauge",
                "node_memory_working_set_bytes 4096 5000",
                "# TYPE pod_cpu_usage_seconds_total counter",
                r#"pod_cpu_usage_seconds_total{namespace="n",pod="p"} 0.25 4001"#,
                "# TYPE pod_memory_working_set_bytes gauge",
                r#"pod_memory_working_set_bytes{namespace="n",pod="p"} 10 4001"#,
                "# TYPE resource_scrape_error gauge",
                "resource_scrape_error 0",
                "# TYPE scrape_error gauge",
                "scrape_error 0",
            ]
        );
        let failed = text(&node, None, &names);
        assert!(failed.contains("\nresource_scrape_error 1\n") && failed.contains("\nnode_cpu_usage"));
    }
}
