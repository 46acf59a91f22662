//! What is used now, as the kubelet's Summary says it.

use super::node::NodeUse;
use super::samples::{Sample, nothing, rate};
use super::{Names, PodName};
use crate::clock;
use crate::host::Host;
use pointsman_runtime::{ContainerUsage, DiskUse, PodUid, PodUsage, Usage};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// What is on disk.
pub(super) struct Disks {
    pub(super) host: Host,
    pub(super) of_pods: BTreeMap<PodUid, DiskUse>,
}

/// A moment as Kubernetes writes it.
fn timestamp(at: SystemTime) -> String {
    clock::timestamp(at).to_string()
}

pub(super) fn document(
    node: &str,
    now: &Sample,
    then: &Sample,
    names: &Names,
    disks: Option<&Disks>,
) -> Value {
    let named = now
        .pods
        .iter()
        .filter_map(|pod| Some((pod, names.get(pod.pod.as_str())?)));
    let pods: Vec<Value> = named.map(|(used, name)| pod(used, name, then, disks)).collect();
    json!({ "node": of_node(node, &now.node, &then.node, disks), "pods": pods })
}

fn of_node(name: &str, now: &NodeUse, then: &NodeUse, disks: Option<&Disks>) -> Value {
    let mut shown =
        json!({ "nodeName": name, "cpu": cpu(&now.used, Some(&then.used)), "memory": memory(&now.used) });
    if let Some(booted) = now.booted {
        shown["startTime"] = json!(timestamp(booted));
    }
    if let (Some(all), Some(used)) = (now.memory, now.used.memory) {
        shown["memory"]["availableBytes"] = json!(all.saturating_sub(used.working_set));
    }
    if let Some(Disks { host, .. }) = disks {
        shown["fs"] = of_disk(host, now);
        shown["fs"]["usedBytes"] = json!(host.disk_total.saturating_sub(host.disk_free));
        shown["rlimit"] =
            json!({ "time": timestamp(now.used.at), "maxpid": host.pids_max, "curproc": host.pids });
    }
    shown
}

fn of_disk(host: &Host, now: &NodeUse) -> Value {
    json!({
        "time": timestamp(now.used.at),
        "availableBytes": host.disk_free,
        "capacityBytes": host.disk_total,
        "inodes": host.inodes_total,
        "inodesFree": host.inodes_free,
        "inodesUsed": host.inodes_total.saturating_sub(host.inodes_free),
    })
}

fn pod(now: &PodUsage, name: &PodName, then: &Sample, disks: Option<&Disks>) -> Value {
    let containers: Vec<Value> = now.containers.iter().map(|it| container(it, then)).collect();
    let started = now.containers.iter().map(|container| container.started_at).min();
    let before = then.pod(now).or_else(|| started.map(nothing));
    let mut shown = json!({
        "podRef": { "name": name.name, "namespace": name.namespace, "uid": now.pod.as_str() },
        "containers": containers,
        "cpu": cpu(&now.total, before.as_ref()),
        "memory": memory(&now.total),
    });
    if let Some(started) = started {
        shown["startTime"] = json!(timestamp(started));
    }
    let on_disk = disks.and_then(|disks| Some((&disks.host, disks.of_pods.get(&now.pod)?)));
    if let Some((host, used)) = on_disk {
        let time = timestamp(now.total.at);
        let all = used.volumes.values().chain(used.containers.values());
        let volumes = used.volumes.iter();
        let volumes =
            volumes.map(|(name, bytes)| json!({ "name": name.as_str(), "time": time, "usedBytes": bytes }));
        shown["volume"] = volumes.collect();
        shown["ephemeral-storage"] = json!({
            "time": time,
            "usedBytes": all.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)),
            "availableBytes": host.disk_free,
            "capacityBytes": host.disk_total,
        });
    }
    shown
}

fn container(now: &ContainerUsage, then: &Sample) -> Value {
    json!({
        "name": now.id.name.as_str(),
        "startTime": timestamp(now.started_at),
        "cpu": cpu(&now.used, Some(&then.container(now))),
        "memory": memory(&now.used),
    })
}

/// The kubelet's fields, and over which time the average is.
fn cpu(now: &Usage, then: Option<&Usage>) -> Value {
    let mut shown = Map::from_iter([("time".to_owned(), json!(timestamp(now.at)))]);
    if let Some(cpu) = now.cpu {
        let nanos = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        shown.insert("usageCoreNanoSeconds".into(), json!(nanos));
    }
    if let Some((rate, window)) = then.and_then(|then| rate(now, then)) {
        shown.insert("usageNanoCores".into(), json!(rate));
        shown.insert("windowSeconds".into(), json!(window.as_secs_f64()));
    }
    Value::Object(shown)
}

fn memory(now: &Usage) -> Value {
    let mut shown = Map::from_iter([("time".to_owned(), json!(timestamp(now.at)))]);
    if let Some(used) = now.memory {
        let fields = [
            ("workingSetBytes", Some(used.working_set)),
            ("usageBytes", used.total),
            ("rssBytes", used.anonymous),
        ];
        let known = fields
            .into_iter()
            .filter_map(|(name, bytes)| Some((name, bytes?)));
        shown.extend(known.map(|(name, bytes)| (name.to_owned(), json!(bytes))));
    }
    Value::Object(shown)
}
