//! What is wrong with the spec of a Service?

use super::{addresses, externally_accessible, is_external_name, is_headless};
use crate::allocation::needs_health_check;
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{IMMUTABLE, invalid_each, names, strings, validate_labels};
use crate::net;
use crate::strategy::ClusterSettings;
use crate::value::{at, int_at, list_at, str_at};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// What is wrong with a Service, whether new or changed from `old`.
pub(super) fn validate(service: &Value, old: Option<&Value>, cluster: &ClusterSettings) -> FieldErrors {
    let mut errors = Vec::new();
    let service_type = str_at(service, &["spec", "type"]);
    if !TYPES.contains(&service_type) {
        errors.push(FieldError::not_supported("spec.type", service_type, &TYPES));
    }
    if list_at(service, &["spec", "ports"]).is_empty() && !is_headless(service) && !is_external_name(service)
    {
        errors.push(FieldError::required("spec.ports", ""));
    }
    validate_type(service, &mut errors);
    validate_ports(service, &mut errors);
    errors.extend(validate_labels(
        at(service, &["spec", "selector"]),
        "spec.selector",
    ));
    validate_affinity(service, &mut errors);
    errors.extend(addresses::validate(service, old, cluster));
    validate_external_ips(service, old, &mut errors);
    validate_source_ranges(service, old, &mut errors);
    validate_load_balancer(service, &mut errors);
    validate_traffic_policies(service, &mut errors);
    errors
}

/// What may not change, addresses aside.
pub(super) fn validate_change(new: &Value, old: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let load_balancer = |service: &Value| str_at(service, &["spec", "type"]) == "LoadBalancer";
    let class = ["spec", "loadBalancerClass"];
    if load_balancer(new) && load_balancer(old) && at(new, &class) != at(old, &class) {
        let value = at(new, &class).cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            "spec.loadBalancerClass",
            value,
            "may not change once set",
        ));
    }
    let port = ["spec", "healthCheckNodePort"];
    let number = |service: &Value| int_at(service, &port).unwrap_or(0);
    if needs_health_check(new) && needs_health_check(old) && number(new) != number(old) {
        errors.push(FieldError::forbidden("spec.healthCheckNodePort", IMMUTABLE));
    }
    errors
}

fn validate_type(service: &Value, errors: &mut FieldErrors) {
    let service_type = str_at(service, &["spec", "type"]);
    if matches!(service_type, "LoadBalancer" | "NodePort") && is_headless(service) {
        errors.push(FieldError::invalid(
            "spec.clusterIPs[0]",
            "None",
            format!("may not be set to 'None' for {service_type} services"),
        ));
    }
    if service_type == "ExternalName" {
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let value = at(service, &["spec", field]);
            if value.is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty())) {
                errors.push(FieldError::forbidden(
                    format!("spec.{field}"),
                    "may not be set for ExternalName services",
                ));
            }
        }
        let name = str_at(service, &["spec", "externalName"]);
        match name.strip_suffix('.').unwrap_or(name) {
            "" => errors.push(FieldError::required("spec.externalName", "")),
            name => invalid_each(errors, "spec.externalName", name, names::dns_subdomain(name)),
        }
    }
}

fn validate_ports(service: &Value, errors: &mut FieldErrors) {
    let ports = list_at(service, &["spec", "ports"]);
    let mut port_names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = str_at(port, &["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            }
        } else {
            let path = format!("{path}.name");
            invalid_each(errors, &path, name, names::dns_label(name));
            if !port_names.insert(name) {
                errors.push(FieldError::duplicate(path, name));
            }
        }
        validate_port(port, &path, errors);
    }
    if str_at(service, &["spec", "type"]) == "ClusterIP" {
        for (index, port) in ports.iter().enumerate() {
            if int_at(port, &["nodePort"]).unwrap_or(0) != 0 {
                errors.push(FieldError::forbidden(
                    format!("spec.ports[{index}].nodePort"),
                    "may not be used when `type` is 'ClusterIP'",
                ));
            }
        }
    }
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let protocol = str_at(port, &["protocol"]);
        let node_port = int_at(port, &["nodePort"]).unwrap_or(0);
        if node_port != 0 && !node_ports.insert((protocol, node_port)) {
            errors.push(FieldError::duplicate(
                format!("spec.ports[{index}].nodePort"),
                node_port,
            ));
        }
        let number = int_at(port, &["port"]).unwrap_or(0);
        if !numbers.insert((protocol, number)) {
            errors.push(FieldError::duplicate(
                format!("spec.ports[{index}]"),
                json!({"port": number, "protocol": protocol}),
            ));
        }
    }
}

fn validate_port(port: &Value, path: &str, errors: &mut FieldErrors) {
    net::port_faults(port, path, errors);
    let target_path = format!("{path}.targetPort");
    match at(port, &["targetPort"]) {
        Some(Value::String(name)) => {
            invalid_each(errors, &target_path, name.as_str(), names::port_name(name))
        }
        Some(target) => {
            let number = target.as_i64().unwrap_or(0);
            invalid_each(errors, &target_path, number, names::port_number(number));
        }
        None => {}
    }
    if let Some(protocol) = at(port, &["appProtocol"]).and_then(Value::as_str) {
        let path = format!("{path}.appProtocol");
        invalid_each(errors, &path, protocol, names::qualified_name(protocol));
    }
}

fn validate_affinity(service: &Value, errors: &mut FieldErrors) {
    let config = "spec.sessionAffinityConfig";
    match str_at(service, &["spec", "sessionAffinity"]) {
        "None" => {
            if at(service, &["spec", "sessionAffinityConfig"]).is_some() {
                errors.push(FieldError::forbidden(
                    config,
                    "must not be set when session affinity is None",
                ));
            }
        }
        "ClientIP" => {
            let timeout = ["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            let path = format!("{config}.clientIP.timeoutSeconds");
            match int_at(service, &timeout) {
                None => errors.push(FieldError::required(
                    path,
                    "when session affinity type is ClientIP",
                )),
                Some(seconds) if !(1..=86400).contains(&seconds) => errors.push(FieldError::invalid(
                    path,
                    seconds,
                    "must be greater than 0 and less than 86400",
                )),
                Some(_) => {}
            }
        }
        "" => errors.push(FieldError::required("spec.sessionAffinity", "")),
        other => errors.push(FieldError::not_supported(
            "spec.sessionAffinity",
            other,
            &["ClientIP", "None"],
        )),
    }
}

fn validate_external_ips(service: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let known: Vec<&str> = old
        .into_iter()
        .flat_map(|old| strings(old, &["spec", "externalIPs"]))
        .collect();
    for (index, ip) in strings(service, &["spec", "externalIPs"]).enumerate() {
        if known.contains(&ip) {
            continue;
        }
        let path = format!("spec.externalIPs[{index}]");
        match net::valid_ip(&path, ip) {
            Ok(address) => errors.extend(net::endpoint_faults(&path, address)),
            Err(error) => errors.push(error),
        }
    }
}

fn validate_source_ranges(service: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let balanced = str_at(service, &["spec", "type"]) == "LoadBalancer";
    // The odd capital is upstream's.
    let field = "spec.LoadBalancerSourceRanges";
    let ranges: Vec<&str> = strings(service, &["spec", "loadBalancerSourceRanges"]).collect();
    if !ranges.is_empty() {
        if !balanced {
            errors.push(FieldError::forbidden(field, ONLY_LOAD_BALANCER));
        }
        let known: Vec<&str> = old
            .into_iter()
            .flat_map(|old| strings(old, &["spec", "loadBalancerSourceRanges"]))
            .collect();
        for (index, range) in ranges
            .iter()
            .enumerate()
            .filter(|(_, range)| !known.contains(range))
        {
            errors.extend(net::valid_cidr(&format!("{field}[{index}]"), range.trim()).err());
        }
        return;
    }
    let annotation = ["metadata", "annotations", SOURCE_RANGES];
    if let Some(text) = at(service, &annotation).and_then(Value::as_str) {
        let field = format!("metadata.annotations[{SOURCE_RANGES}]");
        if !balanced {
            errors.push(FieldError::forbidden(&field, ONLY_LOAD_BALANCER));
        }
        if old.is_none_or(|old| at(old, &annotation) != at(service, &annotation)) && !text.trim().is_empty() {
            errors.extend(
                text.split(',')
                    .filter_map(|range| net::valid_cidr(&field, range.trim()).err()),
            );
        }
    }
}

fn validate_load_balancer(service: &Value, errors: &mut FieldErrors) {
    let balanced = str_at(service, &["spec", "type"]) == "LoadBalancer";
    if at(service, &["spec", "allocateLoadBalancerNodePorts"]).is_some() && !balanced {
        errors.push(FieldError::forbidden(
            "spec.allocateLoadBalancerNodePorts",
            ONLY_LOAD_BALANCER,
        ));
    }
    if let Some(class) = at(service, &["spec", "loadBalancerClass"]) {
        let class = class.as_str().unwrap_or("");
        if balanced {
            invalid_each(
                errors,
                "spec.loadBalancerClass",
                class,
                names::qualified_name(class),
            );
        } else {
            errors.push(FieldError::forbidden(
                "spec.loadBalancerClass",
                ONLY_LOAD_BALANCER,
            ));
        }
    }
}

fn validate_traffic_policies(service: &Value, errors: &mut FieldErrors) {
    let policies = ["Cluster", "Local"];
    let external = str_at(service, &["spec", "externalTrafficPolicy"]);
    let path = "spec.externalTrafficPolicy";
    match (externally_accessible(service), external) {
        (false, "") => {}
        (false, policy) => errors.push(FieldError::invalid(
            path,
            policy,
            "may only be set for externally-accessible services",
        )),
        (true, "") => errors.push(FieldError::required(path, "")),
        (true, policy) if !policies.contains(&policy) => {
            errors.push(FieldError::not_supported(path, policy, &policies));
        }
        (true, _) => {}
    }
    let port = int_at(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
    let path = "spec.healthCheckNodePort";
    // A missing port is no mistake: allocation fills it in.
    if port != 0 && !needs_health_check(service) {
        errors.push(FieldError::invalid(
            path,
            port,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ));
    } else if port != 0 {
        invalid_each(errors, path, port, names::port_number(port));
    }
    let supported = [
        ("internalTrafficPolicy", &policies[..]),
        (
            "trafficDistribution",
            &["PreferClose", "PreferSameZone", "PreferSameNode"][..],
        ),
    ];
    for (field, supported) in supported {
        if let Some(value) = at(service, &["spec", field])
            && !value.as_str().is_some_and(|value| supported.contains(&value))
        {
            errors.push(FieldError::not_supported(
                format!("spec.{field}"),
                value.clone(),
                supported,
            ));
        }
    }
}
