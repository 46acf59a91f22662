//! What do IPAddresses and ServiceCIDRs say about the addresses of Services?
//!
//! An IPAddress shows a claim, and is written with it; one that somebody made by hand keeps its address from Services.
//! A ServiceCIDR adds ranges to those that the server was started with, while it is ready and not being deleted.

use super::band;
use crate::field_error::{FieldError, FieldErrors};
use crate::net;
use crate::strategy::IpRange;
use crate::value::{at, entry, list_at, set, str_at};
use pointsman_model::IpFamily;
use serde_json::{Value, json};
use std::net::IpAddr;

/// The ServiceCIDR that shows the ranges that the server was started with. Upstream's name.
pub const CONFIGURED: &str = "kubernetes";
/// Holds a ServiceCIDR while there are addresses of it. Upstream's name.
pub const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// The IPAddress of an address that a Service holds, in upstream's form.
pub fn ip_address(address: IpAddr, namespace: &str, service: &str) -> Value {
    json!({
        "metadata": {"name": address.to_string(), "labels": {
            "ipaddress.kubernetes.io/ip-family": IpFamily::of(address).to_string(), MANAGED_BY: ALLOCATOR,
        }},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": service}},
    })
}

/// Whether an IPAddress is there because a Service holds the address.
pub fn shows_claim(ip_address: &Value) -> bool {
    str_at(ip_address, &["metadata", "labels", MANAGED_BY]) == ALLOCATOR
}

/// The ranges of a ServiceCIDR from which new addresses may come.
pub fn open_ranges(service_cidr: &Value) -> Vec<IpRange> {
    let conditions = list_at(service_cidr, &["status", "conditions"]);
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    if at(service_cidr, &["metadata", "deletionTimestamp"]).is_some() || !conditions.iter().any(ready) {
        return Vec::new();
    }
    ranges(service_cidr)
}

fn ranges(service_cidr: &Value) -> Vec<IpRange> {
    let texts = list_at(service_cidr, &["spec", "cidrs"]).iter();
    let parsed = texts.filter_map(|text| net::valid_cidr("", text.as_str()?).ok());
    parsed
        .map(|(network, prefix)| IpRange { network, prefix })
        .collect()
}

/// Whether one of `addresses` is of this ServiceCIDR and of no other range.
pub fn needed(service_cidr: &Value, others: &[IpRange], mut addresses: impl Iterator<Item = IpAddr>) -> bool {
    let of = |ranges: &[IpRange], address| ranges.iter().any(|range| band::contains(*range, address));
    let own = ranges(service_cidr);
    addresses.any(|address| of(&own, address) && !of(others, address))
}

/// Makes a new ServiceCIDR ready, and has it wait for its addresses when it is deleted.
pub(crate) fn prepare(object: &mut Value) {
    let metadata = entry(object, &["metadata"]);
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers
        .as_array_mut()
        .filter(|list| !list.iter().any(|held| held == FINALIZER))
    {
        list.push(FINALIZER.into());
    }
    let now = at(object, &["metadata", "creationTimestamp"]).cloned();
    set(
        object,
        &["status"],
        ready("True", "", "Kubernetes Service CIDR is ready", now),
    );
}

/// The status of a ServiceCIDR, in upstream's words.
pub fn ready(status: &str, reason: &str, message: &str, since: Option<Value>) -> Value {
    json!({"conditions": [{
        "type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }]})
}

pub(crate) fn validate(object: &Value, errors: &mut FieldErrors) {
    let path = "spec.cidrs";
    let cidrs = list_at(object, &["spec", "cidrs"]);
    if cidrs.is_empty() {
        errors.push(FieldError::required(path, "at least one CIDR required"));
    } else if cidrs.len() > 2 {
        errors.push(FieldError::too_many(path, cidrs.len(), 2));
    }
    let mut families = Vec::new();
    for (index, text) in cidrs.iter().enumerate() {
        match net::valid_cidr(&format!("{path}[{index}]"), text.as_str().unwrap_or_default()) {
            Ok((network, _)) => families.push(IpFamily::of(network)),
            Err(error) => errors.push(error),
        }
    }
    if families.len() == 2 && families[0] == families[1] {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid(path, cidrs, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(cidrs: Value) -> Value {
        let mut object = json!({"metadata": {"creationTimestamp": "now"}, "spec": {"cidrs": cidrs}});
        prepare(&mut object);
        object
    }

    #[test]
    fn ranges_are_open_while_they_are_ready_and_stay() {
        let open = |object: &Value| {
            open_ranges(object)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let made = cidr(json!(["10.1.0.0/24", "fd00::/112"]));
        assert_eq!(open(&made), ["10.1.0.0/24", "fd00::/112"]);
        assert_eq!(made["metadata"]["finalizers"], json!([FINALIZER]));
        let mut going = made.clone();
        going["metadata"]["deletionTimestamp"] = json!("now");
        let mut unready = made;
        unready["status"]["conditions"][0]["status"] = json!("False");
        assert!(open(&going).is_empty() && open(&unready).is_empty());
    }

    #[test]
    fn a_range_is_needed_for_an_address_that_no_other_one_has() {
        let made = cidr(json!(["10.1.0.0/24"]));
        let needed =
            |others: &[IpRange], address: &str| needed(&made, others, [address.parse().unwrap()].into_iter());
        assert!(needed(&[], "10.1.0.7") && !needed(&[], "10.1.1.7"));
        let wider = IpRange {
            network: "10.1.0.0".parse().unwrap(),
            prefix: 16,
        };
        assert!(!needed(&[wider], "10.1.0.7"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let errors = |cidrs: Value| {
            let mut errors = Vec::new();
            validate(&cidr(cidrs), &mut errors);
            errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
        };
        assert!(errors(json!(["10.1.0.0/24", "fd00::/112"])).is_empty());
        assert_eq!(errors(json!([])), ["spec.cidrs"]);
        assert_eq!(errors(json!(["10.1.0.1/24"])), ["spec.cidrs[0]"]);
        assert_eq!(errors(json!(["10.1.0.0/24", "10.2.0.0/24"])), ["spec.cidrs"]);
        assert_eq!(
            errors(json!(["10.1.0.0/24", "fd00::/112", "x"])),
            ["spec.cidrs", "spec.cidrs[2]"]
        );
    }
}
