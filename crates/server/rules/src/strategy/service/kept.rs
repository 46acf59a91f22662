//! Which values does an update keep although the client did not send them, and which does it lose
//! because the type changed?
//!
//! Clients that PUT what they know must not lose what was allocated for them, and clients that
//! change the type with a patch should not have to clear fields they never set.

use super::{externally_accessible, is_external_name};
use crate::allocation::{allocates_node_ports, has_node_ports, needs_health_check};
use crate::meta::strings;
use crate::value::{at, at_mut, int_at, list_at, remove, set, str_at};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const CLUSTER_IP: [&str; 2] = ["spec", "clusterIP"];
const CLUSTER_IPS: [&str; 2] = ["spec", "clusterIPs"];
const HEALTH_CHECK: [&str; 2] = ["spec", "healthCheckNodePort"];

/// Fills `clusterIPs` of a new Service from `clusterIP`.
pub(super) fn complete_cluster_ips(new: &mut Value) {
    let address = str_at(new, &CLUSTER_IP).to_owned();
    if !address.is_empty() && list_at(new, &CLUSTER_IPS).is_empty() {
        set(new, &CLUSTER_IPS, vec![address]);
    }
}

/// Puts back what was allocated and the client left out.
pub(super) fn keep_allocated(new: &mut Value, old: &Value) {
    if !is_external_name(old) && !is_external_name(new) {
        if str_at(new, &CLUSTER_IP).is_empty() && !str_at(old, &CLUSTER_IP).is_empty() {
            set(new, &CLUSTER_IP, str_at(old, &CLUSTER_IP));
        }
        if list_at(new, &CLUSTER_IPS).is_empty()
            && !list_at(old, &CLUSTER_IPS).is_empty()
            && str_at(new, &CLUSTER_IP) == str_at(old, &CLUSTER_IP)
        {
            set(new, &CLUSTER_IPS, list_at(old, &CLUSTER_IPS).to_vec());
        }
    }
    if allocates_node_ports(old) && allocates_node_ports(new) {
        keep_node_ports(new, old);
    }
    if needs_health_check(old) && needs_health_check(new) && int_at(new, &HEALTH_CHECK).unwrap_or(0) == 0 {
        let port = int_at(old, &HEALTH_CHECK).unwrap_or(0);
        set(new, &HEALTH_CHECK, port);
    }
}

/// Ports are recognised by name; a number that another port of `new` asks for is not kept.
fn keep_node_ports(new: &mut Value, old: &Value) {
    let asked_for = node_ports(new);
    let before: BTreeMap<&str, i64> = list_at(old, &["spec", "ports"])
        .iter()
        .map(|port| (str_at(port, &["name"]), int_at(port, &["nodePort"]).unwrap_or(0)))
        .collect();
    let ports = at_mut(new, &["spec", "ports"]).and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        if int_at(port, &["nodePort"]).unwrap_or(0) != 0 {
            continue;
        }
        let kept = before.get(str_at(port, &["name"])).copied().unwrap_or(0);
        if kept != 0 && !asked_for.contains(&kept) {
            set(port, &["nodePort"], kept);
        }
    }
}

/// Lets `clusterIPs` follow a client that knows and changes only `clusterIP`.
pub(super) fn follow_cluster_ip(new: &mut Value, old: &Value) {
    let (before, after) = (str_at(old, &CLUSTER_IP), str_at(new, &CLUSTER_IP).to_owned());
    if before == after {
        return;
    }
    let untouched = list_at(new, &CLUSTER_IPS) == list_at(old, &CLUSTER_IPS);
    if after.is_empty() {
        if untouched {
            remove(new, &CLUSTER_IPS);
        }
    } else if untouched || list_at(new, &CLUSTER_IPS).is_empty() {
        set(new, &CLUSTER_IPS, vec![after]);
    }
}

/// Removes fields that went with the old type, do not go with the new one, and were not changed.
pub(super) fn drop_what_the_type_lost(new: &mut Value, old: &Value) {
    let same = |new: &Value, path: &[&str]| at(new, path) == at(old, path);
    if !is_external_name(old) && is_external_name(new) {
        if same(new, &CLUSTER_IP) && strings(new, &CLUSTER_IPS).eq(strings(old, &CLUSTER_IPS)) {
            remove(new, &CLUSTER_IP);
            remove(new, &CLUSTER_IPS);
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(new, &["spec", field]) {
                remove(new, &["spec", field]);
            }
        }
    }
    if has_node_ports(old) && !has_node_ports(new) && node_ports(new).is_subset(&node_ports(old)) {
        let ports = at_mut(new, &["spec", "ports"]).and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten() {
            remove(port, &["nodePort"]);
        }
    }
    if needs_health_check(old) && !needs_health_check(new) && same(new, &HEALTH_CHECK) {
        remove(new, &HEALTH_CHECK);
    }
    let load_balancer = |service: &Value| str_at(service, &["spec", "type"]) == "LoadBalancer";
    if load_balancer(old) && !load_balancer(new) {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, &["spec", field]) {
                remove(new, &["spec", field]);
            }
        }
    }
    let policy = ["spec", "externalTrafficPolicy"];
    if externally_accessible(old) && !externally_accessible(new) && same(new, &policy) {
        remove(new, &policy);
    }
}

fn node_ports(service: &Value) -> BTreeSet<i64> {
    list_at(service, &["spec", "ports"])
        .iter()
        .filter_map(|port| int_at(port, &["nodePort"]))
        .filter(|port| *port != 0)
        .collect()
}
