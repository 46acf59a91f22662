//! What may a load balancer report about itself?

use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::net;
use crate::value::{at, at_mut, list_at, set, str_at};
use serde_json::Value;
use std::net::IpAddr;

const INGRESS: [&str; 3] = ["status", "loadBalancer", "ingress"];

/// Addresses are virtual IPs unless the load balancer says that it forwards as a proxy.
pub(super) fn default_ip_modes(service: &mut Value) {
    let ingress = at_mut(service, &INGRESS).and_then(Value::as_array_mut);
    for entry in ingress.into_iter().flatten() {
        if !str_at(entry, &["ip"]).is_empty() && at(entry, &["ipMode"]).is_none() {
            set(entry, &["ipMode"], "VIP");
        }
    }
}

/// What is wrong with the status of a Service.
pub(super) fn validate(new: &Value, old: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let ingress = list_at(new, &INGRESS);
    if str_at(new, &["spec", "type"]) != "LoadBalancer" {
        if !ingress.is_empty() {
            errors.push(FieldError::forbidden(
                "status.loadBalancer.ingress",
                "may only be used when `spec.type` is 'LoadBalancer'",
            ));
        }
        return errors;
    }
    let known: Vec<&str> = list_at(old, &INGRESS)
        .iter()
        .map(|entry| str_at(entry, &["ip"]))
        .collect();
    for (index, entry) in ingress.iter().enumerate() {
        let path = format!("status.loadBalancer.ingress[{index}]");
        let ip = str_at(entry, &["ip"]);
        if !ip.is_empty() && !known.contains(&ip) {
            errors.extend(net::valid_ip(&format!("{path}.ip"), ip).err());
        }
        let mode_path = format!("{path}.ipMode");
        match (at(entry, &["ipMode"]), ip.is_empty()) {
            (None, false) => errors.push(FieldError::required(
                mode_path,
                "must be specified when `ip` is set",
            )),
            (Some(_), true) => {
                errors.push(FieldError::forbidden(
                    mode_path,
                    "may not be specified when `ip` is not set",
                ));
            }
            (Some(mode), false) if !matches!(mode.as_str(), Some("VIP" | "Proxy")) => {
                errors.push(FieldError::not_supported(
                    mode_path,
                    mode.clone(),
                    &["Proxy", "VIP"],
                ));
            }
            _ => {}
        }
        let hostname = str_at(entry, &["hostname"]);
        if !hostname.is_empty() {
            let path = format!("{path}.hostname");
            invalid_each(&mut errors, &path, hostname, names::dns_subdomain(hostname));
            if hostname.parse::<IpAddr>().is_ok() {
                errors.push(FieldError::invalid(
                    path,
                    hostname,
                    "must be a DNS name, not an IP address",
                ));
            }
        }
    }
    errors
}
