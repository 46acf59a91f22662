//! What does a runtime have to be told so that a pod's object comes true?
//!
//! References are resolved here, once: environment, volumes, users and limits leave as plain values.

use crate::objects::Objects;
use crate::volumes::{volume_name, volume_source};
use pointsman_model::Quantity;
use pointsman_objects::value::{at, bool_at, int_at, list_at, map_at, quantity, str_at};
use pointsman_pod_lifecycle::env::{self, EnvFrom, Holder, Sources, Variable};
use pointsman_runtime::{
    ContainerId, ContainerName, ContainerSpec, HostAlias, Limits, MountSpec, Network, PodUid, SandboxSpec,
    User, VolumeSpec,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Where programs are looked for if the container does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a spec cannot be carried out as things are: a waiting reason and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Refused {
    /// The waiting reason.
    pub reason: &'static str,
    /// What is wrong.
    pub message: String,
}

pub(crate) fn config_error(message: impl Into<String>) -> Refused {
    Refused {
        reason: "CreateContainerConfigError",
        message: message.into(),
    }
}

/// What is known of the pod besides its object.
pub struct Place<'a> {
    /// The pod's object.
    pub pod: &'a Value,
    /// The pod's addresses.
    pub pod_ips: &'a [IpAddr],
    /// The node's addresses.
    pub host_ips: &'a [IpAddr],
}

impl Place<'_> {
    /// The value of a field that variables and files may refer to.
    pub(crate) fn field(&self, path: &str) -> Option<String> {
        let pod = self.pod;
        let text = |path: &[&str]| Some(str_at(pod, path).to_owned());
        let all = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        let first = |ips: &[IpAddr]| ips.first().map(IpAddr::to_string);
        match path {
            "metadata.name" => text(&["metadata", "name"]),
            "metadata.namespace" => text(&["metadata", "namespace"]),
            "metadata.uid" => text(&["metadata", "uid"]),
            "spec.nodeName" => text(&["spec", "nodeName"]),
            "spec.serviceAccountName" => text(&["spec", "serviceAccountName"]),
            "status.hostIP" => first(self.host_ips),
            "status.hostIPs" => Some(all(self.host_ips)),
            "status.podIP" => first(self.pod_ips),
            "status.podIPs" => Some(all(self.pod_ips)),
            "metadata.labels" | "metadata.annotations" => {
                let field = path.strip_prefix("metadata.")?;
                let map = map_at(pod, &["metadata", field]);
                let lines = map.into_iter().flatten().map(|(key, value)| {
                    let value = value.as_str().unwrap_or("");
                    format!("{key}={value:?}")
                });
                Some(lines.collect::<Vec<_>>().join("\n"))
            }
            _ => {
                let (field, rest) = path.strip_prefix("metadata.")?.split_once('[')?;
                if !matches!(field, "labels" | "annotations") {
                    return None;
                }
                let key = rest.strip_suffix(']')?.trim_matches(['\'', '"']);
                text(&["metadata", field, key])
            }
        }
    }
}

/// The value of `limits.cpu` and the like; cores and bytes, rounded up.
pub(crate) fn resource(container: &Value, path: &str) -> Option<String> {
    let (kind, name) = path.split_once('.')?;
    let amount = at(container, &["resources", kind, name])?;
    quantity(amount)?.to_units().map(|units| units.to_string())
}

/// The objects that a container's environment needs.
pub fn container_objects(container: &Value) -> Vec<(Holder, String)> {
    env::needs(
        &read::<EnvFrom>(container, "envFrom"),
        &read::<Variable>(container, "env"),
    )
}

fn read<T: DeserializeOwned>(container: &Value, field: &str) -> Vec<T> {
    let items = list_at(container, &[field]).iter();
    items
        .filter_map(|item| serde_json::from_value(item.clone()).ok())
        .collect()
}

/// What the containers of a pod share.
pub fn sandbox(place: &Place<'_>, objects: &Objects) -> Result<SandboxSpec, Refused> {
    let pod = place.pod;
    let uid = str_at(pod, &["metadata", "uid"]);
    let name = str_at(pod, &["metadata", "name"]);
    let hostname = match str_at(pod, &["spec", "hostname"]) {
        "" => name,
        hostname => hostname,
    };
    let host_network = bool_at(pod, &["spec", "hostNetwork"]).unwrap_or(false);
    let aliases = list_at(pod, &["spec", "hostAliases"]).iter().filter_map(|alias| {
        Some(HostAlias {
            address: str_at(alias, &["ip"]).parse().ok()?,
            names: strings(alias, "hostnames"),
        })
    });
    let mut volumes = Vec::new();
    for volume in list_at(pod, &["spec", "volumes"]) {
        volumes.push(VolumeSpec {
            name: volume_name(str_at(volume, &["name"]))?,
            source: volume_source(volume, place, objects)?,
        });
    }
    Ok(SandboxSpec {
        pod: PodUid::try_new(uid).map_err(|error| config_error(error.to_string()))?,
        namespace: str_at(pod, &["metadata", "namespace"]).to_owned(),
        name: name.to_owned(),
        hostname: hostname.chars().take(63).collect(),
        network: if host_network { Network::Host } else { Network::Own },
        host_aliases: aliases.collect(),
        resolv_conf: resolv_conf(pod),
        volumes,
        volume_group: id_at(pod, &["spec", "securityContext", "fsGroup"]),
        labels: BTreeMap::new(),
    })
}

/// What the pod's DNS settings say; nothing where the host's own file does.
fn resolv_conf(pod: &Value) -> Option<String> {
    if str_at(pod, &["spec", "dnsPolicy"]) != "None" {
        return None;
    }
    let config = at(pod, &["spec", "dnsConfig"])?;
    let mut lines: Vec<String> = strings(config, "nameservers")
        .iter()
        .map(|server| format!("nameserver {server}"))
        .collect();
    let searches = strings(config, "searches");
    if !searches.is_empty() {
        lines.push(format!("search {}", searches.join(" ")));
    }
    let options = list_at(config, &["options"]).iter().map(|option| {
        let (name, value) = (str_at(option, &["name"]), str_at(option, &["value"]));
        if value.is_empty() {
            name.to_owned()
        } else {
            format!("{name}:{value}")
        }
    });
    let options: Vec<String> = options.collect();
    if !options.is_empty() {
        lines.push(format!("options {}", options.join(" ")));
    }
    Some(lines.join("\n") + "\n")
}

fn strings(object: &Value, field: &str) -> Vec<String> {
    let items = list_at(object, &[field]).iter();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn id_at(object: &Value, path: &[&str]) -> Option<u32> {
    int_at(object, path).and_then(|id| u32::try_from(id).ok())
}

/// The container of this name, init or not.
pub fn find_container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let init = list_at(pod, &["spec", "initContainers"]).iter();
    let all = init.chain(list_at(pod, &["spec", "containers"]));
    all.into_iter()
        .find(|container| str_at(container, &["name"]) == name)
}

/// The id of one run.
pub fn container_id(uid: &str, name: &str, run: u32) -> Result<ContainerId, Refused> {
    let bad = |error: pointsman_runtime::BadId| config_error(error.to_string());
    Ok(ContainerId {
        pod: PodUid::try_new(uid).map_err(bad)?,
        name: ContainerName::try_new(name).map_err(bad)?,
        attempt: run,
    })
}

/// One run of a container.
pub fn container(
    place: &Place<'_>,
    name: &str,
    run: u32,
    objects: &Objects,
) -> Result<ContainerSpec, Refused> {
    let pod = place.pod;
    let container = find_container(pod, name)
        .ok_or_else(|| config_error(format!("the pod has no container {name:?}")))?;
    let user = user(pod, container)?;
    let env = environment(place, container, objects, &user)?;
    let lookup = |name: &str| env.get(name).map(String::as_str);
    let words = strings(container, "command")
        .into_iter()
        .chain(strings(container, "args"));
    let command: Vec<String> = words.map(|word| env::expand(&word, lookup)).collect();
    if command.is_empty() {
        return Err(Refused {
            reason: "CreateContainerError",
            message: format!("container {name:?} has no command, and the host's files have no default one"),
        });
    }
    let limit = |name: &str| at(container, &["resources", "limits", name]).and_then(quantity);
    let message = str_at(container, &["terminationMessagePath"]);
    let mut mounts = Vec::new();
    for mount in list_at(container, &["volumeMounts"]) {
        mounts.push(self::mount(mount, lookup)?);
    }
    let escalation = at(container, &["securityContext", "allowPrivilegeEscalation"]);
    Ok(ContainerSpec {
        id: container_id(str_at(pod, &["metadata", "uid"]), name, run)?,
        image: str_at(container, &["image"]).to_owned(),
        command,
        working_dir: match str_at(container, &["workingDir"]) {
            "" => None,
            path => Some(PathBuf::from(path)),
        },
        user,
        mounts,
        limits: Limits {
            cpu_millis: limit("cpu").and_then(Quantity::to_millis),
            memory_bytes: limit("memory").and_then(Quantity::to_units),
        },
        no_new_privileges: escalation == Some(&Value::Bool(false)),
        termination_message: (!message.is_empty()).then(|| PathBuf::from(message)),
        labels: BTreeMap::new(),
        env: env.into_iter().collect(),
    })
}

fn environment(
    place: &Place<'_>,
    container: &Value,
    objects: &Objects,
    user: &User,
) -> Result<BTreeMap<String, String>, Refused> {
    let texts = objects.texts();
    let sources = Sources {
        objects: &texts,
        field: &|path| place.field(path),
        resource: &|path| resource(container, path),
    };
    let own = env::environment(
        &read::<EnvFrom>(container, "envFrom"),
        &read::<Variable>(container, "env"),
        &sources,
    )
    .map_err(|error| config_error(error.to_string()))?;
    let hostname = match str_at(place.pod, &["spec", "hostname"]) {
        "" => str_at(place.pod, &["metadata", "name"]),
        hostname => hostname,
    };
    let home = if user.uid == 0 { "/root" } else { "/" };
    let fixed = [("PATH", PATH), ("HOSTNAME", hostname), ("HOME", home)];
    let mut env: BTreeMap<String, String> = fixed.map(|(key, value)| (key.into(), value.into())).into();
    env.extend(own);
    Ok(env)
}

fn user(pod: &Value, container: &Value) -> Result<User, Refused> {
    let of_pod = |field: &str| id_at(pod, &["spec", "securityContext", field]);
    let own = |field: &str| id_at(container, &["securityContext", field]).or_else(|| of_pod(field));
    let uid = own("runAsUser").unwrap_or(0);
    let strict = bool_at(container, &["securityContext", "runAsNonRoot"])
        .or_else(|| bool_at(pod, &["spec", "securityContext", "runAsNonRoot"]));
    if strict == Some(true) && uid == 0 {
        return Err(config_error("container has runAsNonRoot and would run as root"));
    }
    let mut groups: Vec<u32> = list_at(pod, &["spec", "securityContext", "supplementalGroups"])
        .iter()
        .filter_map(|group| u32::try_from(group.as_i64()?).ok())
        .collect();
    groups.extend(of_pod("fsGroup"));
    groups.sort_unstable();
    groups.dedup();
    Ok(User {
        uid,
        gid: own("runAsGroup").unwrap_or(0),
        groups,
    })
}

fn mount<'a>(mount: &Value, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<MountSpec, Refused> {
    let expanded = env::expand(str_at(mount, &["subPathExpr"]), lookup);
    let sub_path = match (str_at(mount, &["subPath"]), expanded.as_str()) {
        ("", "") => None,
        ("", path) | (path, _) => Some(PathBuf::from(path)),
    };
    Ok(MountSpec {
        volume: volume_name(str_at(mount, &["name"]))?,
        path: PathBuf::from(str_at(mount, &["mountPath"])),
        sub_path,
        read_only: bool_at(mount, &["readOnly"]).unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_runtime::VolumeSource;
    use serde_json::json;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "web-0", "namespace": "d", "uid": "u-1", "labels": {"app": "web"}},
            "spec": {
                "nodeName": "n1",
                "securityContext": {"runAsUser": 1000, "fsGroup": 7},
                "volumes": [
                    {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                    {"name": "conf", "configMap": {"name": "c", "items": [{"key": "a", "path": "x/a", "mode": 256}]}},
                    {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                ],
                "containers": [{
                    "name": "c", "image": "host",
                    "command": ["run", "$(WHO)"], "args": ["--ip=$(IP)"],
                    "env": [
                        {"name": "WHO", "value": "me"},
                        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                        {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
                    ],
                    "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}},
                    "securityContext": {"runAsGroup": 5, "allowPrivilegeEscalation": false},
                    "volumeMounts": [{"name": "conf", "mountPath": "/etc/c", "readOnly": true}],
                }],
            },
        })
    }

    fn objects() -> Objects {
        let mut objects = Objects::default();
        let data = json!({"data": {"a": "A", "b": "B"}, "binaryData": {"z": "AAE="}});
        objects.insert(Holder::ConfigMap, "c", &data);
        objects
    }

    #[test]
    fn a_container_leaves_with_everything_resolved() {
        let pod = pod();
        let place = Place {
            pod: &pod,
            pod_ips: &["10.0.0.7".parse().unwrap()],
            host_ips: &[],
        };
        let spec = container(&place, "c", 3, &objects()).unwrap();
        assert_eq!(spec.id.to_string(), "u-1/c/3");
        assert_eq!(spec.command, ["run", "me", "--ip=10.0.0.7"]);
        let env: BTreeMap<_, _> = spec.env.iter().cloned().collect();
        assert_eq!((env["APP"].as_str(), env["MEM"].as_str()), ("web", "67108864"));
        assert_eq!(env["HOSTNAME"], "web-0");
        assert_eq!(spec.limits.cpu_millis, Some(250));
        assert_eq!((spec.user.uid, spec.user.gid), (1000, 5));
        assert_eq!(spec.user.groups, [7]);
        assert!(spec.no_new_privileges && spec.mounts[0].read_only);
    }

    #[test]
    fn a_sandbox_has_the_files_of_its_volumes() {
        let pod = pod();
        let place = Place {
            pod: &pod,
            pod_ips: &[],
            host_ips: &[],
        };
        assert_eq!(
            crate::volumes::volume_objects(&pod),
            [(Holder::ConfigMap, "c".into())]
        );
        let spec = sandbox(&place, &objects()).unwrap();
        assert_eq!((spec.hostname.as_str(), spec.volume_group), ("web-0", Some(7)));
        let VolumeSource::Files(conf) = &spec.volumes[1].source else {
            panic!("{:?}", spec.volumes)
        };
        assert_eq!(conf.files["x/a"].bytes, b"A");
        assert_eq!((conf.files["x/a"].mode, conf.files.len()), (0o400, 1));
        let VolumeSource::Files(info) = &spec.volumes[2].source else {
            panic!("{:?}", spec.volumes)
        };
        assert_eq!(info.files["labels"].bytes, b"app=\"web\"");
        let missing = sandbox(&place, &Objects::default()).unwrap_err();
        assert_eq!(missing.message, "configMap \"c\" not found");
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_a_reason() {
        let mut pod = pod();
        let refused = |pod: &Value| {
            let place = Place {
                pod,
                pod_ips: &["10.0.0.7".parse().unwrap()],
                host_ips: &[],
            };
            container(&place, "c", 0, &objects()).unwrap_err()
        };
        pod["spec"]["containers"][0]["command"] = json!([]);
        pod["spec"]["containers"][0]["args"] = json!([]);
        assert_eq!(refused(&pod).reason, "CreateContainerError");
        pod["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 0, "runAsNonRoot": true});
        assert_eq!(refused(&pod).reason, "CreateContainerConfigError");
    }
}
