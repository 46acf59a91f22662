//! What does a runtime have to do so that a pod runs as its object says?
//!
//! References are resolved here, once: environment, volumes, users and limits leave as plain values.

use crate::objects::Objects;
use crate::security;
use crate::volumes::{volume_name, volume_source};
use pointsman_model::Labels;
use pointsman_objects::pod_manifest::{Container, ContainerPort, PodManifest, UserIds, VolumeMount, expand};
use pointsman_pod_lifecycle::env::{self, Sources};
use pointsman_pod_lifecycle::resolver::{ClusterDns, resolv_conf};
use pointsman_runtime::{
    Attachable, ContainerId, ContainerName, ContainerSpec, HostAlias, HostPort, MountSpec, Network, PodUid,
    Protocol, Pull, SandboxSpec, User, VolumeSpec,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

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
    pub pod: &'a PodManifest,
    /// The pod's addresses.
    pub pod_ips: &'a [IpAddr],
    /// The node's addresses.
    pub host_ips: &'a [IpAddr],
    /// Where pods ask about names.
    pub dns: &'a ClusterDns,
}

impl Place<'_> {
    /// The value of a field that variables and files may refer to.
    pub(crate) fn field(&self, path: &str) -> Option<String> {
        let (metadata, spec) = (&self.pod.metadata, &self.pod.spec);
        let all = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        let first = |ips: &[IpAddr]| ips.first().map(IpAddr::to_string);
        match path {
            "metadata.name" => Some(metadata.name.to_string()),
            "metadata.namespace" => Some(metadata.namespace.to_string()),
            "metadata.uid" => Some(metadata.uid.to_string()),
            "metadata.labels" => Some(lines(&metadata.labels)),
            "metadata.annotations" => Some(lines(&metadata.annotations)),
            "spec.nodeName" => Some(spec.node_name.clone()),
            "spec.serviceAccountName" => Some(spec.service_account_name.clone()),
            "status.hostIP" => first(self.host_ips),
            "status.hostIPs" => Some(all(self.host_ips)),
            "status.podIP" => first(self.pod_ips),
            "status.podIPs" => Some(all(self.pod_ips)),
            _ => {
                let (field, rest) = path.strip_prefix("metadata.")?.split_once('[')?;
                let key = rest.strip_suffix(']')?.trim_matches(['\'', '"']);
                let value = match field {
                    "labels" => metadata.labels.get(key),
                    "annotations" => metadata.annotations.get(key),
                    _ => return None,
                };
                Some(value.unwrap_or_default().to_owned())
            }
        }
    }
}

/// Labels or annotations as a file.
fn lines(pairs: &Labels) -> String {
    let lines = pairs.iter().map(|(key, value)| format!("{key}={value:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// What the containers of a pod share.
pub fn sandbox(place: &Place<'_>, objects: &Objects) -> Result<SandboxSpec, Refused> {
    let PodManifest { metadata, spec, .. } = place.pod;
    let aliases = spec.host_aliases.iter().filter_map(|alias| {
        Some(HostAlias {
            address: alias.ip.parse().ok()?,
            names: alias.hostnames.clone(),
        })
    });
    let mut volumes = Vec::new();
    for volume in &spec.volumes {
        volumes.push(VolumeSpec {
            name: volume_name(&volume.name)?,
            source: volume_source(volume, place, objects)?,
        });
    }
    let domain = (!spec.subdomain.is_empty()).then(|| {
        let (subdomain, namespace, cluster) = (&spec.subdomain, &metadata.namespace, &place.dns.domain);
        format!("{subdomain}.{namespace}.svc.{cluster}")
    });
    Ok(SandboxSpec {
        pod: PodUid::try_new(&metadata.uid).map_err(|error| config_error(error.to_string()))?,
        namespace: metadata.namespace.to_string(),
        name: metadata.name.to_string(),
        hostname: place.pod.hostname().chars().take(63).collect(),
        domain,
        network: if spec.host_network {
            Network::Host
        } else {
            Network::Own
        },
        ports: host_ports(place.pod),
        host_aliases: aliases.collect(),
        resolv_conf: resolv_conf(place.pod, place.dns, &objects.resolv_conf),
        volumes,
        volume_group: spec.security_context.fs_group.map(id).transpose()?,
        labels: BTreeMap::new(),
    })
}

/// The node's ports that lead into a pod. One with the node's own network has them by itself.
fn host_ports(pod: &PodManifest) -> Vec<HostPort> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let ports = containers.flat_map(|container| &container.ports);
    let ports = ports.filter(|port| port.host_port != 0 && !pod.spec.host_network);
    let led = |port: &ContainerPort| {
        Some(HostPort {
            protocol: match port.protocol.as_str() {
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            port: port.host_port.try_into().ok()?,
            address: port.host_ip.parse().ok(),
            container_port: port.container_port.try_into().ok()?,
        })
    };
    ports.filter_map(led).collect()
}

/// A number of a user or group. One that cannot be is no reason to run as root.
fn id(number: i64) -> Result<u32, Refused> {
    u32::try_from(number).map_err(|_| config_error(format!("{number} cannot be a user or group")))
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
    let container = pod
        .container(name)
        .ok_or_else(|| config_error(format!("the pod has no container {name:?}")))?;
    let user = user(pod, container)?;
    let env = environment(place, container, objects)?;
    let lookup = |name: &str| env.get(name).map(String::as_str);
    let words = |list: &[String]| list.iter().map(|word| expand(word, lookup)).collect();
    let mounts = container.volume_mounts.iter().map(|mount| mounted(mount, lookup));
    Ok(ContainerSpec {
        id: container_id(&pod.metadata.uid, name, run)?,
        image: container.image.clone(),
        pull: match container.image_pull_policy.as_str() {
            "Always" => Pull::Always,
            "Never" => Pull::Never,
            _ => Pull::IfNotPresent,
        },
        command: words(&container.command),
        args: words(&container.args),
        working_dir: path(&container.working_dir),
        user,
        mounts: mounts.collect::<Result<_, _>>()?,
        limits: security::limits(container)?,
        security: security::security(pod, container)?,
        termination_message: path(&container.termination_message_path),
        attachable: attachable(container),
        labels: BTreeMap::new(),
        env: env.into_iter().collect(),
    })
}

/// What clients can attach to besides its output.
pub(crate) fn attachable(container: &Container) -> Attachable {
    Attachable {
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
    }
}

/// An empty path is none.
fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn environment(
    place: &Place<'_>,
    container: &Container,
    objects: &Objects,
) -> Result<BTreeMap<String, String>, Refused> {
    let texts = objects.texts();
    let sources = Sources {
        objects: &texts,
        field: &|path| place.field(path),
        resource: &|path| container.resource(path).map(|units| units.to_string()),
    };
    let own = env::environment(container, &sources).map_err(|error| config_error(error.to_string()))?;
    let mut env = BTreeMap::from([("HOSTNAME".to_owned(), place.pod.hostname().to_owned())]);
    env.extend(objects.api_server.iter().cloned());
    env.extend(own);
    Ok(env)
}

fn user(pod: &PodManifest, container: &Container) -> Result<User, Refused> {
    let (shared, own) = (&pod.spec.security_context, container.security_context.user);
    let number = |of: fn(&UserIds) -> Option<i64>| of(&own).or(of(&shared.user)).map(id).transpose();
    let uid = number(|ids| ids.run_as_user)?;
    let never_root = own.run_as_non_root.or(shared.user.run_as_non_root) == Some(true);
    if never_root && uid == Some(0) {
        return Err(config_error("container has runAsNonRoot and would run as root"));
    }
    let groups = shared.supplemental_groups.iter().copied().chain(shared.fs_group);
    let groups: BTreeSet<u32> = groups.map(id).collect::<Result<_, _>>()?;
    Ok(User {
        uid,
        gid: number(|ids| ids.run_as_group)?,
        groups: groups.into_iter().collect(),
        never_root,
    })
}

fn mounted<'a>(mount: &VolumeMount, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<MountSpec, Refused> {
    let sub_path = path(&mount.sub_path).or_else(|| path(&expand(&mount.sub_path_expr, lookup)));
    Ok(MountSpec {
        volume: volume_name(&mount.name)?,
        path: PathBuf::from(&mount.mount_path),
        sub_path,
        read_only: mount.read_only,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_pod_lifecycle::env::Holder;
    use pointsman_runtime::VolumeSource;
    use serde_json::{Value, json};

    fn manifest(pod: Value) -> PodManifest {
        serde_json::from_value(pod).unwrap()
    }

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
        objects.insert(Holder::ConfigMap, "c", serde_json::from_value(data).unwrap());
        objects
    }

    #[test]
    fn a_container_leaves_with_everything_resolved() {
        let pod = manifest(pod());
        let place = Place {
            pod: &pod,
            pod_ips: &["10.0.0.7".parse().unwrap()],
            host_ips: &[],
            dns: &ClusterDns::default(),
        };
        let spec = container(&place, "c", 3, &objects()).unwrap();
        assert_eq!(spec.id.to_string(), "u-1/c/3");
        assert_eq!(
            (spec.command, spec.args),
            (
                vec!["run".to_owned(), "me".to_owned()],
                vec!["--ip=10.0.0.7".to_owned()]
            )
        );
        let env: BTreeMap<_, _> = spec.env.iter().cloned().collect();
        assert_eq!((env["APP"].as_str(), env["MEM"].as_str()), ("web", "67108864"));
        assert_eq!(env["HOSTNAME"], "web-0");
        assert_eq!(spec.limits.cpu_millis, Some(250));
        assert_eq!((spec.user.uid, spec.user.gid), (Some(1000), Some(5)));
        assert_eq!(spec.user.groups, [7]);
        assert!(spec.security.no_new_privileges && spec.mounts[0].read_only);
    }

    #[test]
    fn a_sandbox_has_the_files_of_its_volumes() {
        let pod = manifest(pod());
        let place = Place {
            pod: &pod,
            pod_ips: &[],
            host_ips: &[],
            dns: &ClusterDns::default(),
        };
        assert_eq!(
            crate::volumes::volume_objects(&pod),
            [(Holder::ConfigMap, "c".into())]
        );
        let spec = sandbox(&place, &objects()).unwrap();
        assert_eq!((spec.hostname.as_str(), spec.volume_group), ("web-0", Some(7)));
        assert_eq!((spec.domain, spec.ports), (None, Vec::new()));
        let mut named = pod.clone();
        named.spec.subdomain = "group".into();
        let ports = json!([{"containerPort": 80}, {"containerPort": 53, "hostPort": 54, "hostIP": "127.0.0.1", "protocol": "UDP"}]);
        named.spec.containers[0].ports = serde_json::from_value(ports).unwrap();
        let shared = sandbox(&Place { pod: &named, ..place }, &objects()).unwrap();
        assert_eq!(shared.domain.as_deref(), Some("group.d.svc.cluster.local"));
        let port = HostPort {
            protocol: Protocol::Udp,
            port: 54,
            address: Some([127, 0, 0, 1].into()),
            container_port: 53,
        };
        assert_eq!(shared.ports, [port]);
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
                pod: &manifest(pod.clone()),
                pod_ips: &["10.0.0.7".parse().unwrap()],
                host_ips: &[],
                dns: &ClusterDns::default(),
            };
            container(&place, "c", 0, &objects()).unwrap_err()
        };
        pod["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 0, "runAsNonRoot": true});
        assert_eq!(refused(&pod).reason, "CreateContainerConfigError");
        pod["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": -1});
        assert_eq!(refused(&pod).message, "-1 cannot be a user or group");
    }
}
