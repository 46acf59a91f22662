//! Which pod specs are acceptable, in a Pod or in a template?
//!
//! Fields that no user of a service data path sets (affinity terms, Windows options, resource claims)
//! pass unchecked.

use super::container::{self, Surroundings};
use super::{nonnegative, one_of, volume};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names, validate_labels};
use crate::value::{at, bool_at, int_at, list_at, str_at};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Adds what is wrong with the pod spec at `path`. `in_pod` is false inside templates.
pub fn validate_spec(spec: &Value, in_pod: bool, path: &str, errors: &mut FieldErrors) {
    let grace_seconds = int_at(spec, &["terminationGracePeriodSeconds"]);
    let volumes = volume::validate(spec, path, errors);
    let surroundings = Surroundings {
        volumes,
        grace_seconds,
    };
    container::validate_lists(spec, &surroundings, path, errors);
    validate_host_network(spec, in_pod, path, errors);
    validate_choices(spec, path, errors);
    validate_names(spec, path, errors);
    errors.extend(validate_labels(
        at(spec, &["nodeSelector"]),
        &format!("{path}.nodeSelector"),
    ));
    validate_tolerations(list_at(spec, &["tolerations"]), path, errors);
    validate_dns_config(spec, path, errors);
    validate_gates(spec, path, errors);
    for (index, alias) in list_at(spec, &["hostAliases"]).iter().enumerate() {
        validate_ip(
            str_at(alias, &["ip"]),
            &format!("{path}.hostAliases[{index}].ip"),
            errors,
        );
    }
    if let Some(deadline) = int_at(spec, &["activeDeadlineSeconds"])
        && !(1..=i64::from(i32::MAX)).contains(&deadline)
    {
        errors.push(FieldError::invalid(
            format!("{path}.activeDeadlineSeconds"),
            deadline,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    if in_pod {
        nonnegative(spec, "terminationGracePeriodSeconds", path, errors);
        validate_images(spec, path, errors);
    }
}

fn validate_choices(spec: &Value, path: &str, errors: &mut FieldErrors) {
    one_of(
        str_at(spec, &["restartPolicy"]),
        &["Always", "OnFailure", "Never"],
        &format!("{path}.restartPolicy"),
        errors,
    );
    one_of(
        str_at(spec, &["dnsPolicy"]),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        &format!("{path}.dnsPolicy"),
        errors,
    );
    if let Some(policy) = at(spec, &["preemptionPolicy"]) {
        one_of(
            policy.as_str().unwrap_or(""),
            &["PreemptLowerPriority", "Never"],
            &format!("{path}.preemptionPolicy"),
            errors,
        );
    }
    if bool_at(spec, &["shareProcessNamespace"]) == Some(true) && bool_at(spec, &["hostPID"]) == Some(true) {
        errors.push(FieldError::invalid(
            format!("{path}.shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ));
    }
}

fn validate_names(spec: &Value, path: &str, errors: &mut FieldErrors) {
    for (field, faults) in [
        ("hostname", names::dns_label as fn(&str) -> Vec<String>),
        ("subdomain", names::dns_label),
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
    ] {
        let name = str_at(spec, &[field]);
        if !name.is_empty() {
            invalid_each(errors, &format!("{path}.{field}"), name, faults(name));
        }
    }
}

fn validate_host_network(spec: &Value, in_pod: bool, path: &str, errors: &mut FieldErrors) {
    if bool_at(spec, &["hostNetwork"]) != Some(true) {
        return;
    }
    for (index, container) in list_at(spec, &["containers"]).iter().enumerate() {
        for (at, port) in list_at(container, &["ports"]).iter().enumerate() {
            let host = int_at(port, &["hostPort"]).unwrap_or(0);
            if (in_pod || host != 0) && host != int_at(port, &["containerPort"]).unwrap_or(0) {
                errors.push(FieldError::invalid(
                    format!("{path}.containers[{index}].ports[{at}].hostPort"),
                    host,
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }
}

/// Adds what is wrong with each toleration of the spec at `path`.
pub fn validate_tolerations(tolerations: &[Value], path: &str, errors: &mut FieldErrors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = format!("{path}.tolerations[{index}]");
        let [key, operator, value, effect] =
            ["key", "operator", "value", "effect"].map(|field| str_at(toleration, &[field]));
        if key.is_empty() {
            if operator != "Exists" {
                let detail = r#"operator must be Exists when `key` is empty, which means "match all values and all keys""#;
                errors.push(FieldError::invalid(format!("{path}.operator"), operator, detail));
            }
        } else {
            invalid_each(errors, &format!("{path}.key"), key, names::qualified_name(key));
        }
        if at(toleration, &["tolerationSeconds"]).is_some() && effect != "NoExecute" {
            errors.push(FieldError::invalid(
                format!("{path}.effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "" | "Equal" => {
                let field = format!("{path}.operator");
                invalid_each(errors, &field, value, names::label_value(value));
            }
            "Exists" if !value.is_empty() => errors.push(FieldError::invalid(
                format!("{path}.operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            )),
            "Exists" => {}
            _ => errors.push(FieldError::not_supported(
                format!("{path}.operator"),
                operator,
                &["Equal", "Exists"],
            )),
        }
        if !effect.is_empty() {
            one_of(
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                &format!("{path}.effect"),
                errors,
            );
        }
    }
}

fn validate_dns_config(spec: &Value, path: &str, errors: &mut FieldErrors) {
    let path = format!("{path}.dnsConfig");
    let servers = list_at(spec, &["dnsConfig", "nameservers"]);
    if str_at(spec, &["dnsPolicy"]) == "None" && servers.is_empty() {
        errors.push(FieldError::required(
            format!("{path}.nameservers"),
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        ));
    }
    if servers.len() > 3 {
        errors.push(FieldError::invalid(
            format!("{path}.nameservers"),
            Value::Array(servers.to_vec()),
            "must not have more than 3 nameservers",
        ));
    }
    for (index, server) in servers.iter().enumerate() {
        validate_ip(
            server.as_str().unwrap_or(""),
            &format!("{path}.nameservers[{index}]"),
            errors,
        );
    }
}

fn validate_gates(spec: &Value, path: &str, errors: &mut FieldErrors) {
    for (index, gate) in list_at(spec, &["readinessGates"]).iter().enumerate() {
        let condition = str_at(gate, &["conditionType"]);
        let field = format!("{path}.readinessGates[{index}].conditionType");
        invalid_each(errors, &field, condition, names::qualified_name(condition));
    }
    let mut taken = BTreeSet::new();
    for (index, gate) in list_at(spec, &["schedulingGates"]).iter().enumerate() {
        let path = format!("{path}.schedulingGates[{index}]");
        let name = str_at(gate, &["name"]);
        invalid_each(errors, &path, name, names::qualified_name(name));
        if !taken.insert(name) {
            errors.push(FieldError::duplicate(path, name));
        }
    }
}

/// Templates may hold such images for others to replace; a pod is past that.
fn validate_images(spec: &Value, path: &str, errors: &mut FieldErrors) {
    for list in ["containers", "initContainers"] {
        for (index, container) in list_at(spec, &[list]).iter().enumerate() {
            let image = str_at(container, &["image"]);
            if image.trim() != image {
                errors.push(FieldError::invalid(
                    format!("{path}.{list}[{index}].image"),
                    image,
                    "must not have leading or trailing whitespace",
                ));
            }
        }
    }
}

/// Adds a complaint unless `text` is an IP address.
pub fn validate_ip(text: &str, path: &str, errors: &mut FieldErrors) {
    if text.parse::<IpAddr>().is_err() {
        errors.push(FieldError::invalid(
            path,
            text,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ));
    }
}
