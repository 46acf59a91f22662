//! Which IP families does a Service have, and do they agree with its addresses?

use super::{is_external_name, is_headless};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::strings;
use crate::net;
use crate::strategy::ClusterSettings;
use crate::value::{at, list_at, map_at, set, str_at};
use pointsman_model::IpFamily;
use serde_json::Value;

const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];

/// The fields that have to agree with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    addresses: Vec<String>,
    families: Vec<String>,
    policy: Option<String>,
    /// Headless and without selector: endpoints come from elsewhere and may have any family.
    open: bool,
}

/// Completes `ipFamilyPolicy` and `ipFamilies`, unless they contradict each other.
pub(super) fn prepare(new: &mut Value, old: Option<&Value>, cluster: &ClusterSettings) {
    if is_external_name(new) || !validate_standalone(new, old).is_empty() {
        return;
    }
    if let Ok(fields) = resolve(new, old, cluster) {
        let Fields {
            addresses,
            families,
            policy,
            ..
        } = fields;
        if addresses.len() != list_at(new, &["spec", "clusterIPs"]).len() {
            set(new, &["spec", "clusterIPs"], addresses);
        }
        if !families.is_empty() {
            set(new, &["spec", "ipFamilies"], families);
        }
        if let Some(policy) = policy {
            set(new, &["spec", "ipFamilyPolicy"], policy);
        }
    }
}

/// What is wrong with families, policy and addresses taken together.
pub(super) fn validate(new: &Value, old: Option<&Value>, cluster: &ClusterSettings) -> FieldErrors {
    if is_external_name(new) {
        return Vec::new();
    }
    let errors = validate_standalone(new, old);
    if !errors.is_empty() {
        return errors;
    }
    resolve(new, old, cluster).err().unwrap_or_default()
}

/// The first address and family never change; the second may come and, with SingleStack, go.
pub(super) fn validate_change(new: &Value, old: &Value) -> FieldErrors {
    if is_external_name(new) || is_external_name(old) {
        return Vec::new();
    }
    let (was_headless, is_headless) = (is_headless(old), is_headless(new));
    if was_headless && is_headless {
        return Vec::new();
    }
    let mut errors = list_change(new, old, "clusterIPs", "clusterIP");
    if !was_headless && !is_headless {
        errors.extend(list_change(new, old, "ipFamilies", "ipFamily"));
    }
    errors
}

fn list_change(new: &Value, old: &Value, field: &str, singular: &str) -> FieldErrors {
    let path = ["spec", field];
    let (before, after): (Vec<&str>, Vec<&str>) =
        (strings(old, &path).collect(), strings(new, &path).collect());
    let value = || at(new, &path).cloned().unwrap_or_default();
    let refused =
        |index: usize, why: &str| FieldError::invalid(format!("spec.{field}[{index}]"), value(), why);
    let mut errors = Vec::new();
    if before.is_empty() {
        return errors;
    }
    if after.is_empty() {
        errors.push(refused(0, &format!("primary {singular} can not be unset")));
        return errors;
    }
    for (index, (was, is)) in before.iter().zip(&after).enumerate() {
        if was != is {
            errors.push(refused(index, "may not change once set"));
        }
    }
    if before.len() > after.len() && str_at(new, &["spec", "ipFamilyPolicy"]) != "SingleStack" {
        errors.push(FieldError::invalid(
            "spec.ipFamilyPolicy",
            at(new, &["spec", "ipFamilyPolicy"]).cloned().unwrap_or_default(),
            format!("must be set to 'SingleStack' when releasing the secondary {singular}"),
        ));
    }
    errors
}

/// Each field by itself, and the addresses among themselves.
fn validate_standalone(new: &Value, old: Option<&Value>) -> FieldErrors {
    let path = "spec.clusterIPs";
    let mut errors = Vec::new();
    let addresses: Vec<&str> = strings(new, &["spec", "clusterIPs"]).collect();
    let listed = || Value::from(addresses.clone());
    match (str_at(new, &["spec", "clusterIP"]), addresses.first()) {
        ("", Some(_)) => errors.push(FieldError::invalid(
            path,
            listed(),
            "must be empty when `clusterIP` is not specified",
        )),
        (singular, None) if !singular.is_empty() => errors.push(FieldError::required(path, "")),
        (singular, Some(first)) if singular != *first => {
            errors.push(FieldError::invalid(
                path,
                listed(),
                "first value must match `clusterIP`",
            ));
        }
        _ => {}
    }
    validate_families(new, &mut errors);
    if addresses.first() == Some(&"None") {
        if addresses.len() > 1 {
            errors.push(FieldError::invalid(
                path,
                listed(),
                "'None' must be the first and only value",
            ));
        }
        return errors;
    }
    errors.extend(validate_addresses(new, old, &addresses));
    errors
}

/// Addresses that are not `None`: well-formed, at most one per family, in the order of `ipFamilies`.
fn validate_addresses(new: &Value, old: Option<&Value>, addresses: &[&str]) -> FieldErrors {
    let path = "spec.clusterIPs";
    let mut errors = Vec::new();
    let listed = || Value::from(addresses.to_vec());
    let known: Vec<&str> = old
        .into_iter()
        .flat_map(|old| strings(old, &["spec", "clusterIPs"]))
        .collect();
    let mut families = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        match net::valid_ip(&format!("{path}[{index}]"), address) {
            Ok(address) => families.push(IpFamily::of(address)),
            Err(error) if !known.contains(address) => errors.push(error),
            Err(_) => {}
        }
    }
    if addresses.len() > 2 {
        errors.push(FieldError::invalid(
            path,
            listed(),
            "may only hold up to 2 values",
        ));
    }
    if families.len() < addresses.len() {
        return errors;
    }
    if let [first, second] = families[..]
        && first == second
    {
        errors.push(FieldError::invalid(
            path,
            listed(),
            "may specify no more than one IP for each IP family",
        ));
    }
    for (index, (family, expected)) in families
        .iter()
        .zip(strings(new, &["spec", "ipFamilies"]))
        .enumerate()
    {
        if IpFamily::parse(expected).is_some_and(|expected| expected != *family) {
            errors.push(FieldError::invalid(
                format!("{path}[{index}]"),
                addresses[index],
                format!("expected an {expected} value as indicated by `ipFamilies[{index}]`"),
            ));
        }
    }
    errors
}

fn validate_families(new: &Value, errors: &mut FieldErrors) {
    let families: Vec<&str> = strings(new, &["spec", "ipFamilies"]).collect();
    for (index, family) in families.iter().enumerate() {
        let path = format!("spec.ipFamilies[{index}]");
        if IpFamily::parse(family).is_none() {
            errors.push(FieldError::not_supported(&path, *family, &["IPv4", "IPv6"]));
        }
        if families[..index].contains(family) {
            errors.push(FieldError::duplicate(&path, *family));
        }
    }
    if let Some(policy) = at(new, &["spec", "ipFamilyPolicy"])
        && !policy.as_str().is_some_and(|policy| POLICIES.contains(&policy))
    {
        errors.push(FieldError::not_supported(
            "spec.ipFamilyPolicy",
            policy.clone(),
            &POLICIES,
        ));
    }
}

/// Works out policy and families from what was given, what was there and what the cluster has.
/// Resolving what has been resolved changes nothing.
fn resolve(new: &Value, old: Option<&Value>, cluster: &ClusterSettings) -> Result<Fields, FieldErrors> {
    let mut fields = Fields::read(new);
    let before = old.map(Fields::read);
    if let (Some(before), Some(old)) = (&before, old)
        && keeps_preferred_families(&fields, before, new, old)
    {
        return Ok(fields);
    }
    let had = before.as_ref().and_then(|before| before.policy.clone());
    let policy = match (fields.policy.take().or(had), fields.open) {
        (Some(policy), _) => policy,
        (None, true) => "RequireDualStack".to_owned(),
        (None, false) => "SingleStack".to_owned(),
    };
    fields.policy = Some(policy.clone());
    let single = policy == "SingleStack";
    let mut errors = Vec::new();
    let mut refuse =
        |why: &str| errors.push(FieldError::invalid("spec.ipFamilyPolicy", policy.as_str(), why));
    if let Some(before) = &before {
        if single {
            // A client that only switches the policy need not shorten the lists.
            if fields.addresses == before.addresses {
                fields.addresses.truncate(1);
            }
            if fields.families == before.families {
                fields.families.truncate(1);
            }
        } else {
            if fields.addresses.len() == 1 && before.addresses.len() == 2 {
                refuse("must be 'SingleStack' to release the secondary cluster IP");
            }
            if fields.families.len() == 1 && before.families.len() == 2 {
                refuse("must be 'SingleStack' to release the secondary IP family");
            }
        }
    }
    if single && fields.addresses.len() == 2 {
        refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified");
    }
    if single && fields.families.len() == 2 {
        refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified");
    }
    fields.add_families_of_addresses(cluster, &mut errors);
    if errors.is_empty() {
        fields.add_families_of_cluster(&policy, cluster, &mut errors);
    }
    if errors.is_empty() {
        Ok(fields)
    } else {
        Err(errors)
    }
}

/// A Service that prefers dual-stack and got one family stays with it until somebody touches these
/// fields; otherwise every write would fail or change it when the cluster gains a family.
fn keeps_preferred_families(fields: &Fields, before: &Fields, new: &Value, old: &Value) -> bool {
    let prefers = |fields: &Fields| fields.policy.as_deref() == Some("PreferDualStack");
    str_at(new, &["spec", "type"]) == str_at(old, &["spec", "type"])
        && prefers(fields)
        && prefers(before)
        && fields.addresses.len() == before.addresses.len()
        && !fields.families.is_empty()
        && fields.families == before.families
}

impl Fields {
    fn read(service: &Value) -> Self {
        let owned = |field| strings(service, &["spec", field]).map(str::to_owned).collect();
        let selector = map_at(service, &["spec", "selector"]).is_some_and(|selector| !selector.is_empty());
        Self {
            addresses: owned("clusterIPs"),
            families: owned("ipFamilies"),
            policy: at(service, &["spec", "ipFamilyPolicy"])
                .and_then(Value::as_str)
                .map(str::to_owned),
            open: is_headless(service) && !selector,
        }
    }

    fn add_families_of_addresses(&mut self, cluster: &ClusterSettings, errors: &mut FieldErrors) {
        for (index, text) in self.addresses.iter().enumerate().skip(self.families.len()) {
            let Ok(address) = text.parse() else {
                return;
            };
            let family = IpFamily::of(address);
            if has_family(cluster, family) {
                self.families.push(family.as_str().to_owned());
            } else {
                errors.push(FieldError::invalid(
                    format!("spec.clusterIPs[{index}]"),
                    self.addresses.clone(),
                    format!("{family} is not configured on this cluster"),
                ));
            }
        }
    }

    fn add_families_of_cluster(&mut self, policy: &str, cluster: &ClusterSettings, errors: &mut FieldErrors) {
        let both = has_family(cluster, IpFamily::V4) && has_family(cluster, IpFamily::V6);
        if !self.open {
            if policy == "RequireDualStack" && !both {
                errors.push(FieldError::invalid(
                    "spec.ipFamilyPolicy",
                    policy,
                    "this cluster is not configured for dual-stack services",
                ));
            }
            for (index, family) in self.families.iter().enumerate() {
                if IpFamily::parse(family).is_some_and(|family| !has_family(cluster, family)) {
                    errors.push(FieldError::invalid(
                        format!("spec.ipFamilies[{index}]"),
                        family.as_str(),
                        "not configured on this cluster",
                    ));
                }
            }
        }
        if self.families.is_empty()
            && let Some(range) = cluster.service_ranges.first()
        {
            self.families
                .push(IpFamily::of(range.network).as_str().to_owned());
        }
        if let [only] = &self.families[..]
            && policy != "SingleStack"
            && (self.open || both)
            && let Some(family) = IpFamily::parse(only)
        {
            self.families.push(family.other().as_str().to_owned());
        }
    }
}

fn has_family(cluster: &ClusterSettings, family: IpFamily) -> bool {
    cluster
        .service_ranges
        .iter()
        .any(|range| IpFamily::of(range.network) == family)
}
