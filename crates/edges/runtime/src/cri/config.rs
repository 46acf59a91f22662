//! What does a container runtime get, so that a spec is carried out?
//!
//! Specs in, messages out.

use super::messages::*;
use crate::process::layout::Layout;
use crate::{
    CapabilitySet, ContainerId, ContainerName, ContainerSpec, HostPort, Network, PodUid, Protocol,
    SandboxSpec, Security, SystemCalls,
};
use std::collections::BTreeMap;

/// Labels by which pods are found again; those that tools look for are the kubelet's.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Tells the pods of one root directory from those of others that use the same runtime, a kubelet's for instance.
const ROOT: &str = "pointsman.io/root";

/// One tenth of a second, in microseconds: how often a CPU quota is given out.
const CPU_PERIOD: i64 = 100_000;

/// What programs see nothing of, as with every container runtime.
const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// What programs cannot write to.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The labels of everything that belongs to a root directory.
pub fn ours(layout: &Layout) -> BTreeMap<String, String> {
    BTreeMap::from([(ROOT.to_owned(), layout.root().display().to_string())])
}

fn pod_labels(spec: &SandboxSpec, layout: &Layout) -> BTreeMap<String, String> {
    let mut labels = ours(layout);
    labels.insert(POD_NAME.into(), spec.name.clone());
    labels.insert(POD_NAMESPACE.into(), spec.namespace.clone());
    labels.insert(POD_UID.into(), spec.pod.to_string());
    labels
}

/// What the containers of a pod share.
pub fn sandbox(spec: &SandboxSpec, layout: &Layout, attempt: u32) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: spec.name.clone(),
            uid: spec.pod.to_string(),
            namespace: spec.namespace.clone(),
            attempt,
        }),
        hostname: match spec.network {
            Network::Own => spec.hostname.clone(),
            Network::Host => String::new(),
        },
        log_directory: layout.logs(spec).display().to_string(),
        port_mappings: spec.ports.iter().map(port).collect(),
        labels: pod_labels(spec, layout),
        annotations: spec.labels.clone(),
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(spec.network)),
                // A privileged container is only let into a sandbox that may have some; no program runs in the
                // sandbox itself.
                privileged: true,
                seccomp: Some(SecurityProfile {
                    profile_type: value::PROFILE_DEFAULT,
                }),
            }),
        }),
    }
}

fn port(port: &HostPort) -> PortMapping {
    PortMapping {
        protocol: match port.protocol {
            Protocol::Tcp => value::PROTOCOL_TCP,
            Protocol::Udp => value::PROTOCOL_UDP,
            Protocol::Sctp => value::PROTOCOL_SCTP,
        },
        container_port: port.container_port.into(),
        host_port: port.port.into(),
        host_ip: port.address.map_or(String::new(), |address| address.to_string()),
    }
}

fn namespaces(network: Network) -> NamespaceOption {
    NamespaceOption {
        network: match network {
            Network::Own => value::NAMESPACE_POD,
            Network::Host => value::NAMESPACE_NODE,
        },
        pid: value::NAMESPACE_CONTAINER,
        ipc: value::NAMESPACE_POD,
    }
}

/// One run of a container, whose image and mounts are there.
pub fn container(
    spec: &ContainerSpec,
    pod: &SandboxSpec,
    layout: &Layout,
    image: String,
    mounts: Vec<Mount>,
) -> ContainerConfig {
    let mut labels = pod_labels(pod, layout);
    labels.insert(CONTAINER_NAME.into(), spec.id.name.to_string());
    let log = layout.log(pod, &spec.id);
    let log = log.strip_prefix(layout.logs(pod)).unwrap_or(&log);
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: spec.id.name.to_string(),
            attempt: spec.id.attempt,
        }),
        image: Some(ImageSpec { image }),
        command: spec.command.clone(),
        args: spec.args.clone(),
        working_dir: text(spec.working_dir.as_deref()),
        envs: spec.env.iter().map(variable).collect(),
        mounts,
        labels,
        annotations: spec.labels.clone(),
        log_path: log.display().to_string(),
        stdin: spec.attachable.stdin,
        stdin_once: spec.attachable.stdin_once,
        tty: spec.attachable.tty,
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(spec)),
            security_context: Some(security(spec, pod.network)),
        }),
    }
}

fn text(path: Option<&std::path::Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

fn variable((key, value): &(String, String)) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: value.clone(),
    }
}

fn resources(spec: &ContainerSpec) -> LinuxContainerResources {
    let amount = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let millis = spec.limits.cpu_millis.map(amount);
    LinuxContainerResources {
        cpu_period: millis.map_or(0, |_| CPU_PERIOD),
        // Linux gives out no less than a millisecond.
        cpu_quota: millis.map_or(0, |millis| millis.saturating_mul(CPU_PERIOD / 1000).max(1000)),
        memory_limit_in_bytes: spec.limits.memory_bytes.map_or(0, amount),
    }
}

fn security(spec: &ContainerSpec, network: Network) -> LinuxContainerSecurityContext {
    let Security {
        no_new_privileges,
        read_only_root,
        capabilities,
        all_devices,
        system_calls,
    } = spec.security;
    let id = |id: Option<u32>| id.map(|id| Int64Value { value: id.into() });
    let unless_privileged = |paths: &[&str]| match all_devices {
        true => Vec::new(),
        false => paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    LinuxContainerSecurityContext {
        capabilities: changed(capabilities.bound),
        privileged: all_devices,
        namespace_options: Some(namespaces(network)),
        run_as_user: id(spec.user.uid),
        run_as_group: id(spec.user.gid),
        supplemental_groups: spec.user.groups.iter().map(|group| i64::from(*group)).collect(),
        readonly_rootfs: read_only_root,
        no_new_privs: no_new_privileges,
        masked_paths: unless_privileged(&MASKED),
        readonly_paths: unless_privileged(&READ_ONLY),
        seccomp: Some(SecurityProfile {
            profile_type: match system_calls {
                SystemCalls::All => value::PROFILE_UNCONFINED,
                SystemCalls::Ordinary => value::PROFILE_DEFAULT,
            },
        }),
    }
}

/// How a container's capabilities differ from the usual ones.
fn changed(bound: CapabilitySet) -> Option<Capability> {
    let all = || vec!["ALL".to_owned()];
    if bound == CapabilitySet::usual() {
        None
    } else if bound == CapabilitySet::ALL {
        Some(Capability {
            add_capabilities: all(),
            drop_capabilities: Vec::new(),
        })
    } else {
        Some(Capability {
            add_capabilities: bound.names().map(str::to_owned).collect(),
            drop_capabilities: all(),
        })
    }
}

/// Whose container this is.
pub fn container_id(container: &Container) -> Option<ContainerId> {
    named(container.metadata.as_ref()?, &container.labels)
}

/// The same of what it is listed with.
pub fn named(metadata: &ContainerMetadata, labels: &BTreeMap<String, String>) -> Option<ContainerId> {
    Some(ContainerId {
        pod: PodUid::try_new(labels.get(POD_UID)?).ok()?,
        name: ContainerName::try_new(&metadata.name).ok()?,
        attempt: metadata.attempt,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attachable, Capabilities, Limits, Pull, User};
    use std::path::Path;

    fn pod() -> SandboxSpec {
        SandboxSpec {
            pod: PodUid::try_new("u-1").unwrap(),
            namespace: "d".into(),
            name: "web".into(),
            hostname: "web".into(),
            domain: None,
            network: Network::Own,
            ports: vec![HostPort {
                protocol: Protocol::Udp,
                port: 53,
                address: Some([127, 0, 0, 1].into()),
                container_port: 5353,
            }],
            host_aliases: Vec::new(),
            resolv_conf: None,
            volumes: Vec::new(),
            volume_group: None,
            labels: BTreeMap::new(),
        }
    }

    fn spec() -> ContainerSpec {
        ContainerSpec {
            id: ContainerId {
                pod: pod().pod,
                name: ContainerName::try_new("c").unwrap(),
                attempt: 2,
            },
            image: "web:1".into(),
            pull: Pull::Never,
            command: Vec::new(),
            args: vec!["-v".into()],
            env: vec![("A".into(), "1".into())],
            working_dir: None,
            user: User::default(),
            mounts: Vec::new(),
            limits: Limits::default(),
            security: Security::default(),
            termination_message: None,
            attachable: Attachable::default(),
            labels: BTreeMap::new(),
        }
    }

    fn linux(spec: &ContainerSpec) -> (LinuxContainerSecurityContext, LinuxContainerResources) {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::create(root.path()).unwrap();
        let linux = container(spec, &pod(), &layout, "sha256:1".into(), Vec::new())
            .linux
            .unwrap();
        (linux.security_context.unwrap(), linux.resources.unwrap())
    }

    #[test]
    fn a_container_that_asks_for_nothing_is_what_its_image_says_and_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::create(root.path()).unwrap();
        let config = container(&spec(), &pod(), &layout, "sha256:1".into(), Vec::new());
        assert_eq!(
            (config.working_dir.as_str(), config.log_path.as_str()),
            ("", "c/2.log")
        );
        assert!(config.command.is_empty());
        let listed = Container {
            metadata: config.metadata.clone(),
            labels: config.labels.clone(),
            ..Container::default()
        };
        assert_eq!(container_id(&listed), Some(spec().id));
        let sandbox = sandbox(&pod(), &layout, 0);
        assert!(Path::new(&sandbox.log_directory).ends_with("logs/d_web_u-1"));
        let port = PortMapping {
            protocol: value::PROTOCOL_UDP,
            container_port: 5353,
            host_port: 53,
            host_ip: "127.0.0.1".into(),
        };
        assert_eq!(sandbox.port_mappings, [port]);
        assert!(
            ours(&layout)
                .iter()
                .all(|(key, value)| sandbox.labels[key] == *value)
        );
        let (security, resources) = linux(&spec());
        assert_eq!((security.capabilities, security.run_as_user), (None, None));
        assert_eq!(security.seccomp.unwrap().profile_type, value::PROFILE_UNCONFINED);
        assert!(security.masked_paths.contains(&"/proc/kcore".to_owned()));
        assert_eq!(resources, LinuxContainerResources::default());
    }

    #[test]
    fn what_a_container_is_kept_from_reaches_the_runtime() {
        let mut strict = spec();
        strict.security = Security {
            no_new_privileges: true,
            read_only_root: true,
            capabilities: Capabilities::of(&["NET_BIND_SERVICE".into()], &["ALL".into()]).unwrap(),
            all_devices: false,
            system_calls: SystemCalls::Ordinary,
        };
        strict.user.uid = Some(7);
        strict.attachable.tty = true;
        strict.limits = Limits {
            cpu_millis: Some(250),
            memory_bytes: Some(1 << 20),
        };
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::create(root.path()).unwrap();
        let config = container(&strict, &pod(), &layout, "sha256:1".into(), Vec::new());
        assert!(config.tty && !config.stdin);
        let (security, resources) = linux(&strict);
        assert!(security.no_new_privs && security.readonly_rootfs && !security.privileged);
        let capabilities = security.capabilities.unwrap();
        assert_eq!(capabilities.add_capabilities, ["NET_BIND_SERVICE"]);
        assert_eq!(capabilities.drop_capabilities, ["ALL"]);
        assert_eq!(security.run_as_user.unwrap().value, 7);
        assert_eq!(security.seccomp.unwrap().profile_type, value::PROFILE_DEFAULT);
        assert_eq!(
            (resources.cpu_quota, resources.memory_limit_in_bytes),
            (25_000, 1 << 20)
        );
        let mut privileged = spec();
        privileged.security.all_devices = true;
        privileged.security.capabilities = Capabilities::ALL;
        let (security, _) = linux(&privileged);
        assert!(security.privileged && security.masked_paths.is_empty());
        assert_eq!(security.capabilities.unwrap().add_capabilities, ["ALL"]);
    }
}
