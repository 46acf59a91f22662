//! What does a node say about itself, and when does it say it again?

use crate::host::Host;
use jiff::Timestamp;
use pointsman_model::Moment;
use pointsman_objects::{ConditionStatus, Node};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Below this much free memory a node is under pressure (the kubelet's hard eviction threshold).
pub(crate) const LEAST_MEMORY: u64 = 100 << 20;
/// So much free disk is enough on any machine: on one that somebody works at, a tenth of a large disk is seldom free.
const ENOUGH_DISK: u64 = 10 << 30;
/// Below this share of free disk a node is under pressure.
const LEAST_DISK: f64 = 0.10;
/// Below this share of free inodes a node is under pressure.
const LEAST_INODES: f64 = 0.05;
/// Below this share of free process numbers a node is under pressure.
const LEAST_PIDS: f64 = 0.05;

/// What a node is, apart from what changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    /// Addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// The port of the agent's own server.
    pub port: u16,
    /// Labels besides the usual ones.
    pub labels: BTreeMap<String, String>,
    /// Taints at registration, as the API carries them.
    pub taints: Vec<Value>,
    /// The most pods.
    pub max_pods: u32,
    /// The version that `kubectl get nodes` shows.
    pub version: String,
    /// What runs containers, as `NAME://VERSION`.
    pub runtime: String,
}

/// Go's name of this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Identity {
    /// The labels of the node.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        let fixed = [
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", architecture()),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", architecture()),
        ];
        let mut labels: BTreeMap<String, String> =
            fixed.map(|(key, value)| (key.into(), value.into())).into();
        labels.extend(self.labels.clone());
        labels
    }

    /// The object to register.
    pub fn object(&self, status: Value) -> Value {
        let mut spec = Map::new();
        if !self.taints.is_empty() {
            spec.insert("taints".into(), self.taints.clone().into());
        }
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": self.name, "labels": self.all_labels() },
            "spec": spec,
            "status": status,
        })
    }

    /// The status without times of heartbeats. `trouble` says why the node cannot run pods.
    pub fn status(&self, host: &Host, trouble: Option<&str>, memory: &mut Memory, now: Timestamp) -> Value {
        let capacity = json!({
            "cpu": host.cpus.to_string(),
            "memory": format!("{}Ki", host.memory_total / 1024),
            "ephemeral-storage": format!("{}Ki", host.disk_total / 1024),
            "pods": self.max_pods.to_string(),
        });
        let mut allocatable = capacity.clone();
        let free = host.memory_total.saturating_sub(LEAST_MEMORY);
        allocatable["memory"] = format!("{}Ki", free / 1024).into();
        // The kubelet keeps back what would be under pressure, and says it in bytes.
        let disk = host.disk_total - (host.disk_total as f64 * LEAST_DISK) as u64;
        allocatable["ephemeral-storage"] = disk.to_string().into();
        let mut addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|ip| json!({ "type": "InternalIP", "address": ip.to_string() }))
            .collect();
        addresses.push(json!({ "type": "Hostname", "address": self.name }));
        json!({
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": self.conditions(host, trouble, memory, now),
            "addresses": addresses,
            "daemonEndpoints": { "kubeletEndpoint": { "Port": self.port } },
            "nodeInfo": {
                "machineID": host.machine_id,
                "systemUUID": host.system_uuid,
                "bootID": host.boot_id,
                "kernelVersion": host.kernel,
                "osImage": host.os_image,
                "containerRuntimeVersion": self.runtime,
                "kubeletVersion": self.version,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": architecture(),
            },
        })
    }

    fn conditions(
        &self,
        host: &Host,
        trouble: Option<&str>,
        memory: &mut Memory,
        now: Timestamp,
    ) -> Vec<Value> {
        let share = |free: u64, total: u64| free as f64 / total.max(1) as f64;
        let disk = (share(host.disk_free, host.disk_total) < LEAST_DISK && host.disk_free < ENOUGH_DISK)
            || share(host.inodes_free, host.inodes_total) < LEAST_INODES;
        let processes = share(host.pids_max.saturating_sub(host.pids), host.pids_max) < LEAST_PIDS;
        let pressures = [
            (
                "MemoryPressure",
                host.memory_available < LEAST_MEMORY,
                ["KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"],
                "memory available",
            ),
            (
                "DiskPressure",
                disk,
                ["KubeletHasDiskPressure", "KubeletHasNoDiskPressure"],
                "disk space and inodes available",
            ),
            (
                "PIDPressure",
                processes,
                ["KubeletHasInsufficientPID", "KubeletHasSufficientPID"],
                "process numbers available",
            ),
        ];
        let mut conditions: Vec<Value> = pressures
            .into_iter()
            .map(|(kind, bad, [when, otherwise], what)| {
                let (reason, word) = if bad {
                    (when, "too few")
                } else {
                    (otherwise, "enough")
                };
                memory.condition(kind, bad, reason, &format!("the node has {word}: {what}"), now)
            })
            .collect();
        let (reason, message) = match trouble {
            None => ("KubeletReady", "the node agent is ready"),
            Some(trouble) => ("KubeletNotReady", trouble),
        };
        // Ready comes last: old clients look there.
        conditions.push(memory.condition("Ready", trouble.is_none(), reason, message, now));
        conditions
    }
}

/// Since when each condition holds or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory(BTreeMap<String, (bool, Timestamp)>);

impl Memory {
    /// Takes over what the API has from an agent before this one.
    pub fn recall(&mut self, node: &Node) {
        for condition in &node.conditions {
            let holds = match condition.status {
                ConditionStatus::True => true,
                ConditionStatus::False => false,
                ConditionStatus::Unknown => continue,
            };
            if let Some(since) = condition.changed {
                self.0
                    .insert(condition.kind.name().into(), (holds, since.timestamp()));
            }
        }
    }

    fn condition(&mut self, kind: &str, holds: bool, reason: &str, message: &str, now: Timestamp) -> Value {
        let entry = self.0.entry(kind.into()).or_insert((holds, now));
        if entry.0 != holds {
            *entry = (holds, now);
        }
        json!({
            "type": kind,
            "status": if holds { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "lastTransitionTime": seconds(entry.1),
        })
    }
}

/// The same status with the time of this heartbeat in its conditions.
pub fn stamped(status: &Value, now: Timestamp) -> Value {
    let mut status = status.clone();
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        condition["lastHeartbeatTime"] = seconds(now).into();
    }
    status
}

fn seconds(time: Timestamp) -> String {
    Moment::from(time).start_of_second().to_string()
}

/// How often a status is computed, and how often it is sent although nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frequency {
    /// Between two looks.
    pub update: Duration,
    /// Between two reports of the same.
    pub report: Duration,
}

impl Frequency {
    /// The kubelet's defaults.
    pub const DEFAULT: Self = Self {
        update: Duration::from_secs(10),
        report: Duration::from_secs(300),
    };

    /// The kubelet's rule: who sets only how often to look reports as often.
    pub fn of(update: Option<Duration>, report: Option<Duration>) -> Self {
        let update = update.filter(|period| !period.is_zero());
        Self {
            update: update.unwrap_or(Self::DEFAULT.update),
            report: report.or(update).unwrap_or(Self::DEFAULT.report),
        }
    }
}

/// Decides when a status is sent.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    last: Option<(Value, Duration)>,
    /// Spreads nodes that started together.
    shift: f64,
}

impl Reports {
    /// Whether this status has to be sent at `now`.
    pub fn due(&self, status: &Value, frequency: Frequency, now: Duration) -> bool {
        match &self.last {
            None => true,
            Some((last, at)) => {
                let period = frequency.report.mul_f64((1.0 + self.shift).max(0.0));
                last != status || now.saturating_sub(*at) >= period
            }
        }
    }

    /// It was sent. `chance` is between 0 and 1.
    pub fn sent(&mut self, status: Value, now: Duration, chance: f64) {
        let changed = self.last.as_ref().is_none_or(|(last, _)| *last != status);
        self.shift = if changed { chance - 0.5 } else { 0.0 };
        self.last = Some((status, now));
    }

    /// Nobody knows what the API has.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            name: "n1".into(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            port: 10250,
            labels: BTreeMap::from([("zone".into(), "a".into())]),
            taints: Vec::new(),
            max_pods: 110,
            version: "v1".into(),
            runtime: "pointsman://1".into(),
        }
    }

    fn host() -> Host {
        Host {
            cpus: 2,
            memory_total: 4 << 30,
            memory_available: 2 << 30,
            disk_total: 100 << 30,
            disk_free: 50 << 30,
            inodes_total: 1000,
            inodes_free: 900,
            pids_max: 1000,
            pids: 10,
            ..Host::default()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ready_is_the_last_condition_and_times_move_with_the_status_only() {
        let mut memory = Memory::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = identity().status(&host(), Some("no pod addresses yet"), &mut memory, at(10));
        let second = identity().status(&host(), None, &mut memory, at(20));
        let third = identity().status(&host(), None, &mut memory, at(30));
        let ready = |status: &Value| status["conditions"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(ready(&first)["reason"], "KubeletNotReady");
        assert_eq!(ready(&second)["type"], "Ready");
        assert_eq!(ready(&second)["lastTransitionTime"], "1970-01-01T00:00:20Z");
        assert_eq!(second, third, "nothing but heartbeat times differs");
        assert_ne!(stamped(&second, at(20)), stamped(&third, at(30)));
        assert_eq!(second["allocatable"]["pods"], "110");
    }

    #[test]
    fn pressure_is_reported() {
        let mut memory = Memory::default();
        let host = Host {
            memory_available: 10 << 20,
            disk_free: 1 << 30,
            pids: 990,
            ..host()
        };
        let status = identity().status(&host, None, &mut memory, Timestamp::UNIX_EPOCH);
        let bad: Vec<_> = status["conditions"].as_array().unwrap()[..3]
            .iter()
            .map(|condition| condition["status"].as_str().unwrap())
            .collect();
        assert_eq!(bad, ["True", "True", "True"]);
    }

    #[test]
    fn a_status_is_sent_when_it_changed_or_the_report_period_is_over() {
        let frequency = Frequency::DEFAULT;
        let (one, two) = (json!({"a": 1}), json!({"a": 2}));
        let mut reports = Reports::default();
        assert!(reports.due(&one, frequency, SECOND));
        reports.sent(one.clone(), SECOND, 0.5);
        assert!(!reports.due(&one, frequency, SECOND * 200));
        assert!(
            reports.due(&two, frequency, SECOND * 2),
            "a change is sent at once"
        );
        assert!(reports.due(&one, frequency, SECOND * 302));
        reports.sent(two.clone(), SECOND, 0.0);
        assert!(
            reports.due(&two, frequency, SECOND * 152),
            "the first wait after a change is shifted"
        );
        reports.sent(two.clone(), SECOND * 152, 0.0);
        assert!(!reports.due(&two, frequency, SECOND * 400), "later ones are not");
    }

    #[test]
    fn who_sets_only_the_update_frequency_reports_as_often() {
        let minute = Some(SECOND * 60);
        assert_eq!(Frequency::of(None, None), Frequency::DEFAULT);
        assert_eq!(Frequency::of(minute, None).report, SECOND * 60);
        assert_eq!(Frequency::of(minute, Some(SECOND)).report, SECOND);
    }
}
