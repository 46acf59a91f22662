//! Which probes and lifecycle hooks are acceptable, and what of them does a closed gate remove?
//!
//! Millisecond offsets (KEP-3066) are checked by their sum with the seconds field, after defaulting.

use super::defaults::{CONTAINER_LISTS, PROBES};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{at, at_mut, int_at, list_at, str_at};
use pointsman_objects::probe::{EffectiveProbe, Handler, MAX_OFFSET, MILLISECOND_FIELDS, Millis, Shortest};
use serde_json::Value;

/// Whether any probe in `spec` carries a millisecond offset.
pub fn uses_milliseconds(spec: &Value) -> bool {
    CONTAINER_LISTS
        .into_iter()
        .flat_map(|list| list_at(spec, &[list]))
        .flat_map(|container| PROBES.into_iter().filter_map(|probe| at(container, &[probe])))
        .any(|probe| {
            MILLISECOND_FIELDS
                .iter()
                .any(|field| at(probe, &[field]).is_some())
        })
}

/// Removes every millisecond offset from the probes in `spec`.
pub fn drop_milliseconds(spec: &mut Value) {
    for list in CONTAINER_LISTS {
        let containers = at_mut(spec, &[list]).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for probe in PROBES {
                let fields = at_mut(container, &[probe]).and_then(Value::as_object_mut);
                if let Some(fields) = fields {
                    fields.retain(|field, _| !MILLISECOND_FIELDS.contains(&field.as_str()));
                }
            }
        }
    }
}

/// Copies the offsets of `old` into the same probes of `new`, where those still exist. For clients
/// that read a pod and write it back without knowing the fields.
pub fn restore_milliseconds(new: &mut Value, old: &Value) {
    for list in CONTAINER_LISTS {
        let containers = at_mut(new, &[list]).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = str_at(container, &["name"]);
            let stored = list_at(old, &[list])
                .iter()
                .find(|stored| str_at(stored, &["name"]) == name);
            let Some(stored) = stored else { continue };
            for probe in PROBES {
                let fields = at_mut(container, &[probe]).and_then(Value::as_object_mut);
                let Some(fields) = fields else { continue };
                for field in MILLISECOND_FIELDS {
                    if let Some(offset) = at(stored, &[probe, field]) {
                        fields.insert(field.to_owned(), offset.clone());
                    }
                }
            }
        }
    }
}

/// Adds what is wrong with the probes and hooks of a container that may have them.
pub fn validate_all(container: &Value, grace_seconds: Option<i64>, path: &str, errors: &mut FieldErrors) {
    if let Some(lifecycle) = at(container, &["lifecycle"]) {
        for hook in ["postStart", "preStop"] {
            if let Some(handler) = at(lifecycle, &[hook]) {
                validate_hook(
                    handler,
                    grace_seconds,
                    &format!("{path}.lifecycle.{hook}"),
                    errors,
                );
            }
        }
    }
    for field in PROBES {
        if let Some(probe) = at(container, &[field]) {
            validate_probe(field, probe, &format!("{path}.{field}"), errors);
        }
    }
}

fn validate_probe(role: &str, probe: &Value, path: &str, errors: &mut FieldErrors) {
    validate_handler(probe, None, path, errors);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        super::nonnegative(probe, field, path, errors);
    }
    let grace = int_at(probe, &["terminationGracePeriodSeconds"]);
    let grace_path = format!("{path}.terminationGracePeriodSeconds");
    match grace {
        Some(seconds) if seconds <= 0 => {
            errors.push(FieldError::invalid(grace_path, seconds, "must be greater than 0"));
        }
        Some(seconds) if role == "readinessProbe" => {
            errors.push(FieldError::invalid(
                grace_path,
                seconds,
                "must not be set for readinessProbes",
            ));
        }
        _ => {}
    }
    let successes = int_at(probe, &["successThreshold"]).unwrap_or(1);
    if role != "readinessProbe" && successes != 1 {
        errors.push(FieldError::invalid(
            format!("{path}.successThreshold"),
            successes,
            "must be 1",
        ));
    }
    validate_milliseconds(role, probe, path, errors);
}

fn validate_milliseconds(role: &str, probe: &Value, path: &str, errors: &mut FieldErrors) {
    let effective = EffectiveProbe::of(probe);
    let handler = Handler::of(probe).unwrap_or(Handler::HttpGet);
    let (shortest, whom) = match role {
        "livenessProbe" => (Shortest::LIVENESS, role),
        _ => (handler.shortest(), handler.field()),
    };
    for field in MILLISECOND_FIELDS {
        let Some(offset) = at(probe, &[field]) else {
            continue;
        };
        let Some(milliseconds) = offset
            .as_i64()
            .filter(|offset| (-MAX_OFFSET..=MAX_OFFSET).contains(offset))
        else {
            let detail = format!("must be between -{MAX_OFFSET} and {MAX_OFFSET}, inclusive");
            errors.push(FieldError::invalid(
                format!("{path}.{field}"),
                offset.clone(),
                detail,
            ));
            continue;
        };
        let complaint = match field {
            "initialDelayMilliseconds" => at_least(effective.initial_delay, Millis(0), field, "any probe"),
            "timeoutMilliseconds" => at_least(effective.timeout, shortest.timeout, field, whom),
            _ => at_least(effective.period, shortest.period, field, whom),
        };
        if let Some(detail) = complaint {
            errors.push(FieldError::invalid(
                format!("{path}.{field}"),
                milliseconds,
                detail,
            ));
        }
    }
}

/// Names the sum and the floor it misses.
fn at_least(sum: Millis, floor: Millis, field: &str, whom: &str) -> Option<String> {
    if sum >= floor {
        return None;
    }
    let seconds = field.replace("Milliseconds", "Seconds");
    Some(format!(
        "the sum of {seconds} and {field} is {sum}, must be at least {floor} for {whom}"
    ))
}

fn validate_hook(handler: &Value, grace_seconds: Option<i64>, path: &str, errors: &mut FieldErrors) {
    validate_handler(handler, Some(grace_seconds), path, errors);
    for field in MILLISECOND_FIELDS {
        if at(handler, &[field]).is_some() {
            errors.push(FieldError::forbidden(
                format!("{path}.{field}"),
                "may not be set for lifecycle handlers",
            ));
        }
    }
}

/// Exactly one way of checking must be given. `hook` is the grace period for lifecycle hooks, which
/// may also sleep, and `None` for probes.
fn validate_handler(handler: &Value, hook: Option<Option<i64>>, path: &str, errors: &mut FieldErrors) {
    let mut given = 0;
    for field in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = at(handler, &[field]) else {
            continue;
        };
        let path = format!("{path}.{field}");
        given += 1;
        if given > 1 {
            errors.push(FieldError::forbidden(
                path,
                "may not specify more than 1 handler type",
            ));
            continue;
        }
        match field {
            "exec" if list_at(action, &["command"]).is_empty() => {
                errors.push(FieldError::required(format!("{path}.command"), ""));
            }
            "httpGet" => validate_http_get(action, &path, errors),
            "tcpSocket" | "grpc" => validate_port(action, &path, errors),
            "sleep" => validate_sleep(action, hook.flatten(), &path, errors),
            _ => {}
        }
    }
    if given == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn validate_http_get(request: &Value, path: &str, errors: &mut FieldErrors) {
    if str_at(request, &["path"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.path"), ""));
    }
    validate_port(request, path, errors);
    let scheme = str_at(request, &["scheme"]);
    if !["HTTP", "HTTPS"].contains(&scheme) {
        errors.push(FieldError::not_supported(
            format!("{path}.scheme"),
            scheme,
            &["HTTP", "HTTPS"],
        ));
    }
    for header in list_at(request, &["httpHeaders"]) {
        let name = str_at(header, &["name"]);
        let sound = !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !sound {
            errors.push(FieldError::invalid(
                format!("{path}.httpHeaders"),
                name,
                "a valid HTTP header must consist of alphanumeric characters or '-'",
            ));
        }
    }
}

fn validate_port(action: &Value, path: &str, errors: &mut FieldErrors) {
    let path = format!("{path}.port");
    match at(action, &["port"]) {
        Some(Value::String(name)) => invalid_each(errors, &path, name.as_str(), names::port_name(name)),
        other => {
            let number = other.and_then(Value::as_i64).unwrap_or(0);
            invalid_each(errors, &path, number, names::port_number(number));
        }
    }
}

fn validate_sleep(action: &Value, grace_seconds: Option<i64>, path: &str, errors: &mut FieldErrors) {
    let seconds = int_at(action, &["seconds"]).unwrap_or(0);
    let Some(grace) = grace_seconds else { return };
    if seconds < 0 || seconds > grace {
        let detail = format!("must be non-negative and no more than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(path, seconds, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::pod::defaults::default_spec;
    use serde_json::json;

    /// The complaints about `probe` in the given role, after defaulting.
    fn complaints(role: &str, probe: Value) -> Vec<String> {
        let mut spec = json!({"containers": [{"name": "a", "image": "a", role: probe}]});
        default_spec(&mut spec);
        let mut errors = Vec::new();
        validate_all(&spec["containers"][0], Some(30), "c", &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn http(fields: Value) -> Value {
        with_handler(fields, "httpGet", json!({"port": 80}))
    }

    fn with_handler(mut fields: Value, handler: &str, action: Value) -> Value {
        fields[handler] = action;
        fields
    }

    #[test]
    fn every_example_of_the_proposal_is_accepted_for_readiness_and_startup() {
        for role in ["readinessProbe", "startupProbe"] {
            for (seconds, milliseconds) in [(1, 500), (2, -500), (1, -500), (0, 500), (1, 400), (1, -800)] {
                let probe = json!({"periodSeconds": seconds, "periodMilliseconds": milliseconds});
                assert_eq!(
                    complaints(role, http(probe)),
                    [""; 0],
                    "{role} {seconds} {milliseconds}"
                );
            }
        }
    }

    #[test]
    fn offsets_outside_a_second_are_refused() {
        for offset in [-1000, 1000, i64::MAX] {
            let found = complaints(
                "readinessProbe",
                http(json!({"periodSeconds": 5, "periodMilliseconds": offset})),
            );
            assert_eq!(
                found,
                [format!(
                    "c.readinessProbe.periodMilliseconds: Invalid value: {offset}: must be between -999 and \
                     999, inclusive"
                )]
            );
        }
    }

    #[test]
    fn the_floor_of_the_period_depends_on_the_handler() {
        let actions = [
            ("httpGet", json!({"port": 80}), 200),
            ("tcpSocket", json!({"port": "web"}), 200),
            ("grpc", json!({"port": 80}), 200),
            ("exec", json!({"command": ["true"]}), 500),
        ];
        for (handler, action, floor) in actions {
            let with_period = |period: i64| {
                let fields = json!({"periodSeconds": 1, "periodMilliseconds": period - 1000});
                complaints("startupProbe", with_handler(fields, handler, action.clone()))
            };
            assert_eq!(with_period(floor), [""; 0]);
            let below = floor - 1;
            assert_eq!(
                with_period(below),
                [format!(
                    "c.startupProbe.periodMilliseconds: Invalid value: {}: the sum of periodSeconds and \
                     periodMilliseconds is {below}ms, must be at least {floor}ms for {handler}",
                    below - 1000
                )]
            );
        }
    }

    #[test]
    fn a_liveness_probe_may_be_finer_than_a_second_but_not_faster() {
        assert_eq!(
            complaints(
                "livenessProbe",
                http(json!({"periodSeconds": 1, "periodMilliseconds": 500}))
            ),
            [""; 0]
        );
        assert_eq!(
            complaints(
                "livenessProbe",
                http(json!({"periodSeconds": 1, "periodMilliseconds": -500}))
            ),
            [
                "c.livenessProbe.periodMilliseconds: Invalid value: -500: the sum of periodSeconds and \
              periodMilliseconds is 500ms, must be at least 1000ms for livenessProbe"
            ]
        );
    }

    #[test]
    fn a_timeout_leaves_a_healthy_server_time_to_answer() {
        let timeout = |role, handler: &str, action: Value, milliseconds: i64| {
            let fields = json!({"timeoutMilliseconds": milliseconds - 1000});
            complaints(role, with_handler(fields, handler, action))
        };
        for (role, handler, action, least, whom) in [
            ("readinessProbe", "httpGet", json!({"port": 80}), 100, "httpGet"),
            ("startupProbe", "exec", json!({"command": ["true"]}), 500, "exec"),
            (
                "livenessProbe",
                "httpGet",
                json!({"port": 80}),
                1000,
                "livenessProbe",
            ),
        ] {
            assert_eq!(timeout(role, handler, action.clone(), least), [""; 0]);
            let below = least - 1;
            assert_eq!(
                timeout(role, handler, action, below),
                [format!(
                    "c.{role}.timeoutMilliseconds: Invalid value: {}: the sum of timeoutSeconds and \
                     timeoutMilliseconds is {below}ms, must be at least {least}ms for {whom}",
                    below - 1000
                )]
            );
        }
    }

    #[test]
    fn initial_delay_may_be_zero() {
        let delay = |seconds, milliseconds| {
            complaints(
                "readinessProbe",
                http(json!({"initialDelaySeconds": seconds, "initialDelayMilliseconds": milliseconds})),
            )
        };
        assert_eq!(delay(0, 0), [""; 0]);
        assert_eq!(delay(1, -999), [""; 0]);
        assert_eq!(
            delay(0, -1),
            [
                "c.readinessProbe.initialDelayMilliseconds: Invalid value: -1: the sum of initialDelaySeconds \
              and initialDelayMilliseconds is -1ms, must be at least 0ms for any probe"
            ]
        );
    }

    #[test]
    fn a_probe_has_exactly_one_handler() {
        assert_eq!(
            complaints("livenessProbe", json!({})),
            ["c.livenessProbe: Required value: must specify a handler type"]
        );
        let two = with_handler(http(json!({})), "exec", json!({"command": ["true"]}));
        assert_eq!(
            complaints("livenessProbe", two),
            ["c.livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type"]
        );
        assert_eq!(
            complaints("livenessProbe", json!({"exec": {}})),
            ["c.livenessProbe.exec.command: Required value"]
        );
        assert_eq!(
            complaints("readinessProbe", json!({"tcpSocket": {"port": 0}})).len(),
            1
        );
    }

    #[test]
    fn thresholds_and_grace_follow_the_role() {
        assert_eq!(
            complaints("livenessProbe", http(json!({"successThreshold": 2}))),
            ["c.livenessProbe.successThreshold: Invalid value: 2: must be 1"]
        );
        assert_eq!(
            complaints("readinessProbe", http(json!({"successThreshold": 2}))),
            [""; 0]
        );
        assert_eq!(
            complaints(
                "readinessProbe",
                http(json!({"terminationGracePeriodSeconds": 5}))
            )
            .len(),
            1
        );
        assert_eq!(
            complaints("readinessProbe", http(json!({"periodSeconds": -1}))),
            ["c.readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0"]
        );
    }

    #[test]
    fn hooks_may_sleep_within_the_grace_period_and_have_no_period() {
        let check = |hook: Value| {
            let mut errors = Vec::new();
            let container = json!({"lifecycle": {"preStop": hook}});
            validate_all(&container, Some(30), "c", &mut errors);
            errors.len()
        };
        assert_eq!(check(json!({"sleep": {"seconds": 30}})), 0);
        assert_eq!(check(json!({"sleep": {"seconds": 31}})), 1);
        assert_eq!(
            check(json!({"exec": {"command": ["x"]}, "periodMilliseconds": -500})),
            1
        );
    }
}
