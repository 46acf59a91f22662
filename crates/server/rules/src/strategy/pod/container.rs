//! Which containers may a pod have?

use super::defaults::PROBES;
use super::{nonempty, one_of, probe, resources};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{at, bool_at, int_at, list_at, map_at, str_at};
use serde_json::Value;
use std::collections::BTreeSet;

/// What container rules need to know about the rest of the spec.
pub struct Surroundings<'a> {
    /// Names of the pod's valid volumes.
    pub volumes: BTreeSet<&'a str>,
    /// The pod's grace period.
    pub grace_seconds: Option<i64>,
}

/// Adds what is wrong with the containers and init containers of `spec` at `path`.
pub fn validate_lists(spec: &Value, surroundings: &Surroundings<'_>, path: &str, errors: &mut FieldErrors) {
    let containers = list_at(spec, &["containers"]);
    let list = format!("{path}.containers");
    if containers.is_empty() {
        errors.push(FieldError::required(&list, ""));
    }
    let mut taken = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = format!("{list}[{index}]");
        validate_common(container, surroundings, &path, errors);
        validate_unique_name(container, &mut taken, &path, errors);
        probe::validate_all(container, surroundings.grace_seconds, &path, errors);
        validate_restart_policy(container, &path, errors);
        validate_host_ports(container, &mut host_ports, &path, errors);
    }
    let list = format!("{path}.initContainers");
    for (index, container) in list_at(spec, &["initContainers"]).iter().enumerate() {
        let path = format!("{list}[{index}]");
        validate_common(container, surroundings, &path, errors);
        validate_unique_name(container, &mut taken, &path, errors);
        validate_restart_policy(container, &path, errors);
        // Init containers run one after the other, so their ports cannot collide with each other's.
        validate_host_ports(container, &mut BTreeSet::new(), &path, errors);
        if str_at(container, &["restartPolicy"]) == "Always" {
            probe::validate_all(container, surroundings.grace_seconds, &path, errors);
        } else {
            forbid_supervision(container, &path, errors);
        }
    }
}

/// Probes and hooks make no sense for a container that runs to completion.
fn forbid_supervision(container: &Value, path: &str, errors: &mut FieldErrors) {
    for field in ["lifecycle"].into_iter().chain(PROBES) {
        if at(container, &[field]).is_some() {
            errors.push(FieldError::forbidden(
                format!("{path}.{field}"),
                "may not be set for init containers without restartPolicy=Always",
            ));
        }
    }
}

fn validate_unique_name<'a>(
    container: &'a Value,
    taken: &mut BTreeSet<&'a str>,
    path: &str,
    errors: &mut FieldErrors,
) {
    let name = str_at(container, &["name"]);
    if !name.is_empty() && !taken.insert(name) {
        errors.push(FieldError::duplicate(format!("{path}.name"), name));
    }
}

fn validate_restart_policy(container: &Value, path: &str, errors: &mut FieldErrors) {
    let rules = list_at(container, &["restartPolicyRules"]);
    let field = format!("{path}.restartPolicy");
    match at(container, &["restartPolicy"]) {
        None if rules.is_empty() => {}
        None => errors.push(FieldError::required(
            field,
            "must specify restartPolicy when restart rules are used",
        )),
        Some(_) => {
            let policy = str_at(container, &["restartPolicy"]);
            one_of(policy, &["Always", "Never", "OnFailure"], &field, errors);
        }
    }
    if rules.len() > 20 {
        errors.push(FieldError::too_many(
            format!("{path}.restartPolicyRules"),
            rules.len(),
            20,
        ));
    }
}

fn validate_common(container: &Value, surroundings: &Surroundings<'_>, path: &str, errors: &mut FieldErrors) {
    nonempty(container, "name", names::dns_label, path, errors);
    if str_at(container, &["image"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    }
    one_of(
        str_at(container, &["terminationMessagePolicy"]),
        &["FallbackToLogsOnError", "File"],
        &format!("{path}.terminationMessagePolicy"),
        errors,
    );
    one_of(
        str_at(container, &["imagePullPolicy"]),
        &["Always", "IfNotPresent", "Never"],
        &format!("{path}.imagePullPolicy"),
        errors,
    );
    validate_ports(container, path, errors);
    validate_env(container, path, errors);
    validate_env_from(container, path, errors);
    validate_mounts(container, &surroundings.volumes, path, errors);
    resources::validate(container, path, errors);
    validate_security(container, path, errors);
}

fn validate_ports(container: &Value, path: &str, errors: &mut FieldErrors) {
    let mut taken = BTreeSet::new();
    for (index, port) in list_at(container, &["ports"]).iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        let name = str_at(port, &["name"]);
        if !name.is_empty() {
            let faults = names::port_name(name);
            if faults.is_empty() && !taken.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            invalid_each(errors, &format!("{path}.name"), name, faults);
        }
        match int_at(port, &["containerPort"]).unwrap_or(0) {
            0 => errors.push(FieldError::required(format!("{path}.containerPort"), "")),
            number => {
                let field = format!("{path}.containerPort");
                invalid_each(errors, &field, number, names::port_number(number));
            }
        }
        let host = int_at(port, &["hostPort"]).unwrap_or(0);
        if host != 0 {
            invalid_each(
                errors,
                &format!("{path}.hostPort"),
                host,
                names::port_number(host),
            );
        }
        one_of(
            str_at(port, &["protocol"]),
            &["SCTP", "TCP", "UDP"],
            &format!("{path}.protocol"),
            errors,
        );
    }
}

fn validate_host_ports(
    container: &Value,
    taken: &mut BTreeSet<String>,
    path: &str,
    errors: &mut FieldErrors,
) {
    for (index, port) in list_at(container, &["ports"]).iter().enumerate() {
        let host_port = int_at(port, &["hostPort"]).unwrap_or(0);
        if host_port == 0 {
            continue;
        }
        let (protocol, ip) = (str_at(port, &["protocol"]), str_at(port, &["hostIP"]));
        let key = format!("{protocol}/{ip}/{host_port}");
        if !taken.insert(key.clone()) {
            errors.push(FieldError::duplicate(
                format!("{path}.ports[{index}].hostPort"),
                key,
            ));
        }
    }
}

fn validate_env(container: &Value, path: &str, errors: &mut FieldErrors) {
    for (index, variable) in list_at(container, &["env"]).iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        nonempty(variable, "name", env_name, &path, errors);
        if let Some(source) = at(variable, &["valueFrom"]) {
            let has_value = !str_at(variable, &["value"]).is_empty();
            validate_value_source(source, has_value, &format!("{path}.valueFrom"), errors);
        }
    }
}

/// Faults of a variable's name.
fn env_name(text: &str) -> Vec<String> {
    let sound = text
        .bytes()
        .all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    let fault =
        "a valid environment variable name must consist only of printable ASCII characters other than '='";
    (!sound).then(|| fault.to_owned()).into_iter().collect()
}

/// Pod fields that a variable may show.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn validate_value_source(source: &Value, has_value: bool, path: &str, errors: &mut FieldErrors) {
    let mut sources = 0;
    if let Some(reference) = at(source, &["fieldRef"]) {
        sources += 1;
        validate_field_reference(reference, &format!("{path}.fieldRef"), errors);
    }
    if let Some(reference) = at(source, &["resourceFieldRef"]) {
        sources += 1;
        if str_at(reference, &["resource"]).is_empty() {
            errors.push(FieldError::required(
                format!("{path}.resourceFieldRef.resource"),
                "",
            ));
        }
    }
    for field in ["configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
        if let Some(reference) = at(source, &[field]) {
            sources += 1;
            if str_at(reference, &["key"]).is_empty() {
                errors.push(FieldError::required(format!("{path}.{field}.key"), ""));
            }
        }
    }
    let complaint = match sources {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if has_value => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(path, "", complaint));
}

fn validate_field_reference(reference: &Value, path: &str, errors: &mut FieldErrors) {
    let field = str_at(reference, &["fieldPath"]);
    let subscripted = ["metadata.labels['", "metadata.annotations['"]
        .iter()
        .any(|prefix| field.starts_with(prefix) && field.ends_with("']"));
    if field.is_empty() {
        errors.push(FieldError::required(format!("{path}.fieldPath"), ""));
    } else if !subscripted && !ENV_FIELDS.contains(&field) {
        errors.push(FieldError::not_supported(
            format!("{path}.fieldPath"),
            field,
            &ENV_FIELDS,
        ));
    }
}

fn validate_env_from(container: &Value, path: &str, errors: &mut FieldErrors) {
    for (index, source) in list_at(container, &["envFrom"]).iter().enumerate() {
        let path = format!("{path}.envFrom[{index}]");
        let prefix = str_at(source, &["prefix"]);
        invalid_each(errors, &format!("{path}.prefix"), prefix, env_name(prefix));
        let given: Vec<&str> = ["configMapRef", "secretRef"]
            .into_iter()
            .filter(|field| at(source, &[field]).is_some())
            .collect();
        match given.as_slice() {
            [] => errors.push(FieldError::invalid(
                path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            [field] => {
                let reference = &source[field];
                nonempty(
                    reference,
                    "name",
                    names::dns_subdomain,
                    &format!("{path}.{field}"),
                    errors,
                );
            }
            _ => errors.push(FieldError::invalid(
                path,
                "",
                "may not have more than one field specified at a time",
            )),
        }
    }
}

fn validate_mounts(container: &Value, volumes: &BTreeSet<&str>, path: &str, errors: &mut FieldErrors) {
    let mut mount_paths = BTreeSet::new();
    for (index, mount) in list_at(container, &["volumeMounts"]).iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        let name = str_at(mount, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        }
        let mount_path = str_at(mount, &["mountPath"]);
        if mount_path.is_empty() {
            errors.push(FieldError::required(format!("{path}.mountPath"), ""));
        } else if !mount_paths.insert(mount_path) {
            errors.push(FieldError::invalid(
                format!("{path}.mountPath"),
                mount_path,
                "must be unique",
            ));
        }
        for field in ["subPath", "subPathExpr"] {
            let inner = str_at(mount, &[field]);
            if inner.starts_with('/') {
                errors.push(FieldError::invalid(
                    format!("{path}.{field}"),
                    inner,
                    "must be a relative path",
                ));
            } else if inner.split('/').any(|step| step == "..") {
                errors.push(FieldError::invalid(
                    format!("{path}.{field}"),
                    inner,
                    "must not contain '..'",
                ));
            }
        }
        if let Some(mode) = at(mount, &["mountPropagation"]) {
            one_of(
                mode.as_str().unwrap_or(""),
                &["Bidirectional", "HostToContainer", "None"],
                &format!("{path}.mountPropagation"),
                errors,
            );
        }
    }
    for (index, device) in list_at(container, &["volumeDevices"]).iter().enumerate() {
        let name = str_at(device, &["name"]);
        if !volumes.contains(name) {
            errors.push(FieldError::not_found(
                format!("{path}.volumeDevices[{index}].name"),
                name,
            ));
        }
    }
}

fn validate_security(container: &Value, path: &str, errors: &mut FieldErrors) {
    let Some(context) = map_at(container, &["securityContext"]) else {
        return;
    };
    let path = format!("{path}.securityContext");
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = context.get(field).and_then(Value::as_i64)
            && !(0..=i64::from(i32::MAX)).contains(&id)
        {
            let detail = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(format!("{path}.{field}"), id, detail));
        }
    }
    let privileged = bool_at(container, &["securityContext", "privileged"]) == Some(true);
    let confined = bool_at(container, &["securityContext", "allowPrivilegeEscalation"]) == Some(false);
    if privileged && confined {
        errors.push(FieldError::invalid(
            path,
            Value::Object(context.clone()),
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ));
    }
}
