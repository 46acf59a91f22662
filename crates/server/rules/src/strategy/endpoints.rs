//! What makes an Endpoints object well-formed?

use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::net;
use crate::value::{at, at_mut, list_at, set, str_at};
use serde_json::Value;

/// Rules for core Endpoints.
pub struct EndpointsStrategy;

impl Strategy for EndpointsStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        let subsets = at_mut(object, &["subsets"]).and_then(Value::as_array_mut);
        for subset in subsets.into_iter().flatten() {
            let ports = at_mut(subset, &["ports"]).and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                if str_at(port, &["protocol"]).is_empty() {
                    set(port, &["protocol"], "TCP");
                }
            }
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        validate_subsets(object)
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        // Subsets that passed older rules stay acceptable until they change.
        if list_at(new, &["subsets"]) == list_at(old, &["subsets"]) {
            return Vec::new();
        }
        validate_subsets(new)
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

fn validate_subsets(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    for (index, subset) in list_at(object, &["subsets"]).iter().enumerate() {
        let path = format!("subsets[{index}]");
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| list_at(subset, &[list]).is_empty()) {
            errors.push(FieldError::required(
                &path,
                "must specify `addresses` or `notReadyAddresses`",
            ));
        }
        for list in lists {
            for (index, address) in list_at(subset, &[list]).iter().enumerate() {
                validate_address(address, &format!("{path}.{list}[{index}]"), &mut errors);
            }
        }
        let ports = list_at(subset, &["ports"]);
        for (index, port) in ports.iter().enumerate() {
            validate_port(
                port,
                ports.len() > 1,
                &format!("{path}.ports[{index}]"),
                &mut errors,
            );
        }
    }
    errors
}

fn validate_address(address: &Value, path: &str, errors: &mut FieldErrors) {
    let ip_path = format!("{path}.ip");
    match net::valid_ip(&ip_path, str_at(address, &["ip"])) {
        Ok(ip) => errors.extend(net::endpoint_faults(&ip_path, ip)),
        Err(error) => errors.push(error),
    }
    let hostname = str_at(address, &["hostname"]);
    if !hostname.is_empty() {
        invalid_each(
            errors,
            &format!("{path}.hostname"),
            hostname,
            names::dns_label(hostname),
        );
    }
    if let Some(node) = at(address, &["nodeName"]).and_then(Value::as_str) {
        invalid_each(
            errors,
            &format!("{path}.nodeName"),
            node,
            names::dns_subdomain(node),
        );
    }
}

fn validate_port(port: &Value, needs_name: bool, path: &str, errors: &mut FieldErrors) {
    let name = str_at(port, &["name"]);
    if !name.is_empty() {
        invalid_each(errors, &format!("{path}.name"), name, names::dns_label(name));
    } else if needs_name {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    net::port_faults(port, path, errors);
    if let Some(protocol) = at(port, &["appProtocol"]).and_then(Value::as_str) {
        let path = format!("{path}.appProtocol");
        invalid_each(errors, &path, protocol, names::qualified_name(protocol));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    fn check(subset: Value, expected: &[&str]) {
        assert_eq!(
            created(&EndpointsStrategy, json!({"subsets": [subset]})).1,
            expected
        );
    }

    #[test]
    fn subsets_are_checked_field_by_field() {
        check(
            json!({"addresses": [{"ip": "10.0.0.1", "nodeName": "n1"}], "ports": [{"port": 80}]}),
            &[],
        );
        check(
            json!({"ports": [{"port": 80}]}),
            &["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
        );
        check(
            json!({"notReadyAddresses": [{"ip": "127.0.0.1"}]}),
            &[
                r#"subsets[0].notReadyAddresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
            ],
        );
        check(
            json!({"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 0, "name": "a"}, {"port": 1, "protocol": "X"}]}),
            &[
                "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "subsets[0].ports[1].name: Required value",
                r#"subsets[0].ports[1].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP""#,
            ],
        );
    }

    #[test]
    fn unchanged_subsets_are_not_judged_again() {
        let old = json!({"subsets": [{"addresses": [{"ip": "127.0.0.1"}]}]});
        assert!(
            updated(&EndpointsStrategy, old.clone(), &old, Part::Main)
                .1
                .is_empty()
        );
    }
}
