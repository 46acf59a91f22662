//! What makes a Service complete, and what may change in it?
//!
//! A write goes through `default`, then `prepare_*` here, then validation, then
//! [`crate::allocation::plan`], which gives out addresses and ports. Preparing never fails: where the
//! address families contradict each other it leaves them alone, and validation names the mistake.

use super::{Context, Part, Strategy, keep};
use crate::allocation::has_node_ports;
use crate::field_error::FieldErrors;
use crate::meta::NameRule;
use crate::value::{at, at_mut, int_at, list_at, remove, set, set_default, str_at};
use serde_json::{Value, json};
use std::borrow::Cow;

mod addresses;
mod kept;
mod status;
mod validate;

/// Seconds for which a client sticks to an endpoint unless the Service says otherwise.
const AFFINITY_SECONDS: i64 = 10800;

/// Rules for core Services.
pub struct ServiceStrategy;

impl Strategy for ServiceStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        default_affinity(object);
        if str_at(object, &["spec", "type"]).is_empty() {
            set(object, &["spec", "type"], "ClusterIP");
        }
        if let Some(ports) = at_mut(object, &["spec", "ports"]).and_then(Value::as_array_mut) {
            ports.iter_mut().for_each(default_port);
        }
        if externally_accessible(object) && str_at(object, &["spec", "externalTrafficPolicy"]).is_empty() {
            set(object, &["spec", "externalTrafficPolicy"], "Cluster");
        }
        let service_type = str_at(object, &["spec", "type"]);
        let (load_balancer, has_proxy) = (
            service_type == "LoadBalancer",
            matches!(service_type, "ClusterIP" | "NodePort" | "LoadBalancer"),
        );
        if has_proxy {
            set_default(object, &["spec", "internalTrafficPolicy"], "Cluster");
        }
        if load_balancer {
            set_default(object, &["spec", "allocateLoadBalancerNodePorts"], true);
            status::default_ip_modes(object);
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        set(object, &["status"], json!({"loadBalancer": {}}));
        kept::complete_cluster_ips(object);
        addresses::prepare(object, None, context.cluster);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
        if part == Part::Status {
            return keep(new, old, "spec");
        }
        let status = at(old, &["status"])
            .cloned()
            .unwrap_or_else(|| json!({"loadBalancer": {}}));
        set(new, &["status"], status);
        if str_at(new, &["spec", "type"]) != "LoadBalancer" {
            set(new, &["status", "loadBalancer"], json!({}));
        }
        kept::keep_allocated(new, old);
        kept::follow_cluster_ip(new, old);
        kept::drop_what_the_type_lost(new, old);
        addresses::prepare(new, Some(old), context.cluster);
    }

    fn validate_create(&self, object: &Value, context: &Context<'_>) -> FieldErrors {
        validate::validate(object, None, context.cluster)
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part, context: &Context<'_>) -> FieldErrors {
        match part {
            Part::Main => {
                let mut errors = addresses::validate_change(new, old);
                errors.extend(validate::validate_change(new, old));
                errors.extend(validate::validate(new, Some(old), context.cluster));
                errors
            }
            Part::Status => status::validate(new, old),
        }
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        match field {
            "spec.clusterIP" => Some(Cow::Borrowed(str_at(object, &["spec", "clusterIP"]))),
            "spec.type" => Some(Cow::Borrowed(str_at(object, &["spec", "type"]))),
            _ => None,
        }
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        if !is_headless(object) {
            return Vec::new();
        }
        let ignored = [
            (
                "spec.loadBalancerIP",
                !str_at(object, &["spec", "loadBalancerIP"]).is_empty(),
            ),
            (
                "spec.externalIPs",
                !list_at(object, &["spec", "externalIPs"]).is_empty(),
            ),
            (
                "spec.SessionAffinity",
                str_at(object, &["spec", "sessionAffinity"]) == "ClientIP",
            ),
        ];
        ignored
            .into_iter()
            .filter(|(_, set)| *set)
            .map(|(field, _)| format!("{field} is ignored for headless services"))
            .collect()
    }
}

fn default_affinity(object: &mut Value) {
    if str_at(object, &["spec", "sessionAffinity"]).is_empty() {
        set(object, &["spec", "sessionAffinity"], "None");
    }
    let timeout = ["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"];
    match str_at(object, &["spec", "sessionAffinity"]) {
        "None" => drop(remove(object, &["spec", "sessionAffinityConfig"])),
        "ClientIP" => set_default(object, &timeout, AFFINITY_SECONDS),
        _ => {}
    }
}

fn default_port(port: &mut Value) {
    if str_at(port, &["protocol"]).is_empty() {
        set(port, &["protocol"], "TCP");
    }
    let open = match at(port, &["targetPort"]) {
        None => true,
        Some(target) => target.as_i64() == Some(0) || target.as_str() == Some(""),
    };
    if open && let Some(number) = int_at(port, &["port"]) {
        set(port, &["targetPort"], number);
    }
}

/// Whether traffic from outside the cluster has a way in.
fn externally_accessible(service: &Value) -> bool {
    has_node_ports(service)
        || (str_at(service, &["spec", "type"]) == "ClusterIP"
            && !list_at(service, &["spec", "externalIPs"]).is_empty())
}

/// Whether `clusterIPs` says that the Service has no address.
fn is_headless(service: &Value) -> bool {
    matches!(list_at(service, &["spec", "clusterIPs"]), [only] if only.as_str() == Some("None"))
}

fn is_external_name(service: &Value) -> bool {
    str_at(service, &["spec", "type"]) == "ExternalName"
}

#[cfg(test)]
mod tests;
