//! What is a container kept from, and which of its wishes can nobody here fulfil?
//!
//! Every field of a security context and every limit is carried out or refused; none is left out in silence.

use crate::translate::{Refused, config_error};
use pointsman_model::Quantity;
use pointsman_objects::pod_manifest::{Container, PodManifest, Profile};
use pointsman_runtime::{Capabilities, Limits, Security, SystemCalls};

/// What the container is kept from.
pub(crate) fn security(pod: &PodManifest, container: &Container) -> Result<Security, Refused> {
    refuse_unknown(pod, container)?;
    let own = &container.security_context;
    let named = Capabilities::of(&own.capabilities.add, &own.capabilities.drop);
    let named = named.map_err(|name| config_error(format!("there is no capability {name:?}")))?;
    Ok(Security {
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        read_only_root: own.read_only_root_filesystem,
        capabilities: match own.privileged {
            true => Capabilities {
                asked: named.asked,
                ..Capabilities::ALL
            },
            false => named,
        },
        all_devices: own.privileged,
        system_calls: match own.privileged {
            // As everywhere: a privileged container is not confined.
            true => SystemCalls::All,
            false => system_calls(pod, container)?,
        },
    })
}

fn system_calls(pod: &PodManifest, container: &Container) -> Result<SystemCalls, Refused> {
    match kind_of(pod, container, |profiles| profiles.seccomp_profile.as_ref()) {
        None | Some("Unconfined") => Ok(SystemCalls::All),
        Some("RuntimeDefault") => Ok(SystemCalls::Ordinary),
        Some(other) => Err(config_error(format!(
            "seccompProfile of type {other}: only RuntimeDefault and Unconfined can be had on this node"
        ))),
    }
}

/// The container's own profile, or the pod's.
fn kind_of<'a>(
    pod: &'a PodManifest,
    container: &'a Container,
    of: impl Fn(&'a pointsman_objects::pod_manifest::Profiles) -> Option<&'a Profile>,
) -> Option<&'a str> {
    let own = of(&container.security_context.profiles);
    let shared = || of(&pod.spec.security_context.profiles);
    own.or_else(shared).map(|profile| profile.kind.as_str())
}

/// Refuses what no setting of this node could bring about.
fn refuse_unknown(pod: &PodManifest, container: &Container) -> Result<(), Refused> {
    let (spec, shared) = (&pod.spec, &pod.spec.security_context);
    let confined = kind_of(pod, container, |profiles| profiles.app_armor_profile.as_ref());
    let any = |of: fn(&pointsman_objects::pod_manifest::Profiles) -> bool| {
        of(&shared.profiles) || of(&container.security_context.profiles)
    };
    let unknown = [
        (
            confined.is_some_and(|kind| kind != "Unconfined"),
            "appArmorProfile: this node loads no profiles of AppArmor",
        ),
        (
            any(|profiles| !profiles.se_linux_options.is_empty()),
            "seLinuxOptions: this node sets no labels of SELinux",
        ),
        (
            any(|profiles| !profiles.windows_options.is_empty()),
            "windowsOptions: this node runs Linux",
        ),
        (
            !shared.sysctls.is_empty(),
            "sysctls: this node sets none for pods",
        ),
        (
            shared.supplemental_groups_policy == "Merge",
            "supplementalGroupsPolicy: containers have the groups that the pod names and no others (Strict)",
        ),
        (
            spec.host_users == Some(false),
            "hostUsers: pods have the users of this node, and no namespace of their own for them",
        ),
        (
            !spec.runtime_class_name.is_empty(),
            "runtimeClassName: this node has one runtime, which has no name",
        ),
    ];
    match unknown.into_iter().find(|(asked, _)| *asked) {
        Some((_, message)) => Err(config_error(message)),
        None => Ok(()),
    }
}

/// The limits to enforce. Requests are for those who choose a node; here nothing but known resources can be had.
pub(crate) fn limits(container: &Container) -> Result<Limits, Refused> {
    let limits = &container.resources.limits;
    let unknown = |names: Vec<&String>, known: &[&str]| {
        let mut unknown = names.into_iter().filter(|name| !known.contains(&name.as_str()));
        unknown.next().cloned()
    };
    if let Some(name) = unknown(limits.keys().collect(), &["cpu", "memory", "ephemeral-storage"]) {
        return Err(config_error(format!(
            "the limit of {name} cannot be enforced: this node limits cpu, memory and ephemeral-storage"
        )));
    }
    let requests = container.resources.requests.keys().collect();
    if let Some(name) = unknown(requests, &["cpu", "memory", "ephemeral-storage"]) {
        return Err(config_error(format!("this node has no {name} to request")));
    }
    let limit = |name: &str, read: fn(Quantity) -> Option<u64>| match limits.get(name) {
        None => Ok(None),
        Some(quantity) => match read(*quantity) {
            Some(amount) => Ok(Some(amount)),
            None => Err(config_error(format!(
                "the limit of {name} is not an amount of it"
            ))),
        },
    };
    limit("ephemeral-storage", Quantity::to_units)?;
    Ok(Limits {
        cpu_millis: limit("cpu", Quantity::to_millis)?,
        memory_bytes: limit("memory", Quantity::to_units)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(pod: Value, own: Value, resources: Value) -> Result<(Security, Limits), String> {
        let container = json!({"name": "c", "securityContext": own, "resources": resources});
        let mut spec = pod;
        spec["containers"] = json!([container]);
        let pod: PodManifest = serde_json::from_value(json!({"spec": spec})).unwrap();
        let container = pod.container("c").unwrap();
        let both = security(&pod, container).and_then(|security| Ok((security, limits(container)?)));
        both.map_err(|refused| {
            assert_eq!(refused.reason, "CreateContainerConfigError");
            refused.message
        })
    }

    fn of(own: Value) -> Security {
        read(json!({}), own, Value::Null).unwrap().0
    }

    #[test]
    fn what_can_be_done_is_asked_of_the_runtime() {
        assert_eq!(of(Value::Null), Security::default());
        let strict = of(json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }));
        assert!(strict.no_new_privileges && strict.read_only_root && !strict.all_devices);
        assert_eq!(strict.capabilities.bound.to_string(), "NET_BIND_SERVICE");
        assert_eq!(strict.system_calls, SystemCalls::Ordinary);
        let privileged = of(json!({"privileged": true, "seccompProfile": {"type": "RuntimeDefault"}}));
        assert!(privileged.all_devices && privileged.system_calls == SystemCalls::All);
        assert_eq!(privileged.capabilities, Capabilities::ALL);
    }

    #[test]
    fn a_profile_of_the_pod_is_for_containers_without_one() {
        let pod = json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}});
        let calls = |own| read(pod.clone(), own, Value::Null).unwrap().0.system_calls;
        assert_eq!(calls(json!({})), SystemCalls::Ordinary);
        assert_eq!(
            calls(json!({"seccompProfile": {"type": "Unconfined"}})),
            SystemCalls::All
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let pods = [
            (
                "sysctls",
                json!({"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}),
            ),
            (
                "seLinuxOptions",
                json!({"securityContext": {"seLinuxOptions": {"level": "s0"}}}),
            ),
            (
                "supplementalGroupsPolicy",
                json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}}),
            ),
            ("hostUsers", json!({"hostUsers": false})),
            ("runtimeClassName", json!({"runtimeClassName": "kata"})),
        ];
        for (field, pod) in pods {
            let message = read(pod, Value::Null, Value::Null).unwrap_err();
            assert!(message.starts_with(field), "{message}");
        }
        let own = [
            (
                "seccompProfile",
                json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}}),
            ),
            (
                "appArmorProfile",
                json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            ),
            ("windowsOptions", json!({"windowsOptions": {"hostProcess": true}})),
            (
                "there is no capability",
                json!({"capabilities": {"add": ["FLY"]}}),
            ),
        ];
        for (field, own) in own {
            let message = read(json!({}), own, Value::Null).unwrap_err();
            assert!(message.starts_with(field), "{message}");
        }
        let resources = [
            ("hugepages-2Mi", json!({"limits": {"hugepages-2Mi": "2Mi"}})),
            ("example.com/gpu", json!({"requests": {"example.com/gpu": "1"}})),
        ];
        for (name, resources) in resources {
            let message = read(json!({}), Value::Null, resources).unwrap_err();
            assert!(message.contains(name), "{message}");
        }
    }
}
