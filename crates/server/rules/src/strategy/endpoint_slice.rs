//! What makes an EndpointSlice well-formed, and which of its fields depend on a gate?

use super::equality::same;
use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{immutable, invalid_each, names, same_labels, strings, validate_labels};
use crate::net;
use crate::value::{at, at_mut, list_at, map_at, remove, set, set_default, str_at};
use pointsman_model::Feature;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
/// The API documentation says 100, but the upstream server enforces 20,000, and
/// controllers rely on it for Services with many ports.
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// Rules for `discovery.k8s.io` EndpointSlices.
pub struct EndpointSliceStrategy;

impl Strategy for EndpointSliceStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        for port in items_mut(object, "ports") {
            set_default(port, &["name"], "");
            set_default(port, &["protocol"], "TCP");
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        if !context.gates.enabled(Feature::EndpointSliceTerminatingCondition) {
            drop_terminating_conditions(object);
        }
        drop_topology(object, None);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, _part: Part, context: &Context<'_>) {
        if !context.gates.enabled(Feature::EndpointSliceTerminatingCondition)
            && !uses_terminating_conditions(old)
        {
            drop_terminating_conditions(new);
        }
        drop_topology(new, Some(old));
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = validate_address_type(object);
        errors.extend(validate_ports(object));
        errors.extend(validate_endpoints(object));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = validate_address_type(new);
        errors.extend(validate_ports(new));
        // Endpoints that passed older rules stay acceptable until they change.
        if !same(at(new, &["endpoints"]), at(old, &["endpoints"])) {
            errors.extend(validate_endpoints(new));
        }
        immutable(&mut errors, new, old, &["addressType"]);
        errors
    }

    fn first_generation(&self) -> Option<i64> {
        Some(1)
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        !same_labels(new, old) || differs(new, old)
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        if str_at(object, &["addressType"]) == "FQDN" {
            vec!["spec.addressType: FQDN endpoints are deprecated".into()]
        } else {
            Vec::new()
        }
    }
}

fn items_mut<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = at_mut(object, &[field]).and_then(Value::as_array_mut);
    items.into_iter().flatten()
}

/// Whether two slices differ in more than metadata.
fn differs(new: &Value, old: &Value) -> bool {
    ["addressType", "endpoints", "ports"]
        .iter()
        .any(|field| !same(at(new, &[field]), at(old, &[field])))
}

fn uses_terminating_conditions(object: &Value) -> bool {
    list_at(object, &["endpoints"]).iter().any(|endpoint| {
        at(endpoint, &["conditions", "serving"]).is_some()
            || at(endpoint, &["conditions", "terminating"]).is_some()
    })
}

fn drop_terminating_conditions(object: &mut Value) {
    for endpoint in items_mut(object, "endpoints") {
        remove(endpoint, &["conditions", "serving"]);
        remove(endpoint, &["conditions", "terminating"]);
    }
}

/// Removes the v1beta1 topology map from endpoints that are written through v1. An endpoint that an
/// old client copied keeps the node name it had there.
fn drop_topology(new: &mut Value, old: Option<&Value>) {
    if let Some(old) = old
        && list_at(old, &["endpoints"]) == list_at(new, &["endpoints"])
    {
        return;
    }
    let node_of = |endpoint: &Value| str_at(endpoint, &["deprecatedTopology", HOSTNAME_LABEL]).to_owned();
    let known: BTreeSet<String> = old
        .into_iter()
        .flat_map(|old| list_at(old, &["endpoints"]))
        .map(node_of)
        .filter(|node| !node.is_empty())
        .collect();
    for endpoint in items_mut(new, "endpoints") {
        let node = node_of(endpoint);
        if at(endpoint, &["nodeName"]).is_none()
            && known.contains(&node)
            && names::dns_subdomain(&node).is_empty()
        {
            set(endpoint, &["nodeName"], node);
        }
        remove(endpoint, &["deprecatedTopology"]);
    }
}

fn validate_address_type(object: &Value) -> FieldErrors {
    match str_at(object, &["addressType"]) {
        "" => vec![FieldError::required("addressType", "")],
        known if ADDRESS_TYPES.contains(&known) => Vec::new(),
        other => vec![FieldError::not_supported("addressType", other, &ADDRESS_TYPES)],
    }
}

fn validate_ports(object: &Value) -> FieldErrors {
    let ports = list_at(object, &["ports"]);
    if ports.len() > MAX_PORTS {
        return vec![FieldError::too_many("ports", ports.len(), MAX_PORTS)];
    }
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("ports[{index}]");
        let name = str_at(port, &["name"]);
        if !name.is_empty() {
            invalid_each(&mut errors, &format!("{path}.name"), name, names::dns_label(name));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        let protocol = str_at(port, &["protocol"]);
        if protocol.is_empty() {
            errors.push(FieldError::required(format!("{path}.protocol"), ""));
        } else if !net::PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(
                format!("{path}.protocol"),
                protocol,
                &net::PROTOCOLS,
            ));
        }
        // No number means every port.
        if let Some(number) = at(port, &["port"]).map(|port| port.as_i64().unwrap_or(0)) {
            invalid_each(
                &mut errors,
                &format!("{path}.port"),
                number,
                names::port_number(number),
            );
        }
        if let Some(protocol) = at(port, &["appProtocol"]).and_then(Value::as_str) {
            let path = format!("{path}.appProtocol");
            invalid_each(&mut errors, &path, protocol, names::qualified_name(protocol));
        }
    }
    errors
}

fn validate_endpoints(object: &Value) -> FieldErrors {
    let endpoints = list_at(object, &["endpoints"]);
    if endpoints.len() > MAX_ENDPOINTS {
        return vec![FieldError::too_many("endpoints", endpoints.len(), MAX_ENDPOINTS)];
    }
    let address_type = str_at(object, &["addressType"]);
    let mut errors = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{index}]");
        validate_addresses(endpoint, address_type, &format!("{path}.addresses"), &mut errors);
        if let Some(node) = at(endpoint, &["nodeName"]).and_then(Value::as_str) {
            invalid_each(
                &mut errors,
                &format!("{path}.nodeName"),
                node,
                names::dns_subdomain(node),
            );
        }
        if let Some(hostname) = at(endpoint, &["hostname"]).and_then(Value::as_str) {
            invalid_each(
                &mut errors,
                &format!("{path}.hostname"),
                hostname,
                names::dns_label(hostname),
            );
        }
        let topology = at(endpoint, &["deprecatedTopology"]);
        errors.extend(validate_labels(topology, &format!("{path}.deprecatedTopology")));
        if map_at(endpoint, &["hints"]).is_some() {
            let path = format!("{path}.hints");
            validate_hints(endpoint, "forZones", names::label_value, &path, &mut errors);
            validate_hints(endpoint, "forNodes", names::dns_subdomain, &path, &mut errors);
        }
    }
    errors
}

fn validate_addresses(endpoint: &Value, address_type: &str, path: &str, errors: &mut FieldErrors) {
    let addresses = list_at(endpoint, &["addresses"]);
    if addresses.is_empty() {
        errors.push(FieldError::required(path, "must contain at least 1 address"));
    } else if addresses.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many(path, addresses.len(), MAX_ADDRESSES));
    }
    for (index, address) in strings(endpoint, &["addresses"]).enumerate() {
        let item = format!("{path}[{index}]");
        match address_type {
            "IPv4" => validate_ip(
                address,
                IpAddr::is_ipv4,
                "must be an IPv4 address",
                path,
                &item,
                errors,
            ),
            "IPv6" => validate_ip(
                address,
                IpAddr::is_ipv6,
                "must be an IPv6 address",
                path,
                &item,
                errors,
            ),
            "FQDN" => invalid_each(errors, &item, address, names::fully_qualified_domain(address)),
            _ => {}
        }
    }
}

/// An IPAddress is named after the address that it stands for, and there is one spelling of each.
pub(crate) fn validate_ip_address(object: &Value, errors: &mut FieldErrors) {
    let (name, field) = (str_at(object, &["metadata", "name"]), "metadata.name");
    match net::valid_ip(field, name).map(|address| address.to_string()) {
        Ok(canonical) if canonical != name => {
            let why = format!("must be in canonical form ({canonical:?})");
            errors.push(FieldError::invalid(field, name, why));
        }
        Ok(_) => {}
        Err(error) => errors.push(error),
    }
}

fn validate_ip(
    text: &str,
    of_family: fn(&IpAddr) -> bool,
    wrong_family: &str,
    list: &str,
    item: &str,
    errors: &mut FieldErrors,
) {
    let address = match net::valid_ip(item, text) {
        Ok(address) => address,
        Err(error) => return errors.push(error),
    };
    let canonical = address.to_string();
    if canonical != text {
        let why = format!("must be in canonical form ({canonical:?})");
        return errors.push(FieldError::invalid(item, text, why));
    }
    if !of_family(&address) {
        errors.push(FieldError::invalid(list, text, wrong_family));
    }
    errors.extend(net::endpoint_faults(item, address));
}

fn validate_hints(
    endpoint: &Value,
    field: &str,
    rule: fn(&str) -> Vec<String>,
    path: &str,
    errors: &mut FieldErrors,
) {
    let hints = list_at(endpoint, &["hints", field]);
    let path = format!("{path}.{field}");
    if hints.len() > MAX_HINTS {
        errors.push(FieldError::too_many(path, hints.len(), MAX_HINTS));
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, hint) in hints.iter().enumerate() {
        let path = format!("{path}[{index}].name");
        let name = str_at(hint, &["name"]);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        invalid_each(errors, &path, name, rule(name));
    }
}

#[cfg(test)]
mod tests;
