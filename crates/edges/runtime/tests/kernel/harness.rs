//! A node for a test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pointsman_fabric::Netns;
use pointsman_runtime::process::{Config, ProcessRuntime};
use pointsman_runtime::{
    ContainerId, ContainerName, ContainerSpec, ContainerState, ContainerStatus, ExecOutcome, ExecRequest,
    Exit, Limits, MountSpec, Network, PodUid, Pull, Runtime, RuntimeError, Sandbox, SandboxSpec, Security,
    User, VolumeName, VolumeSource, VolumeSpec,
};

/// Long enough for a busy machine; nothing waits this long unless it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Node {
    pub runtime: ProcessRuntime,
    pub netns: Netns,
    pub root: tempfile::TempDir,
    pub config: Config,
}

impl Node {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let netns = Netns::anonymous().unwrap();
        let mut config = config(root.path(), &netns);
        change(&mut config);
        let runtime = ProcessRuntime::open(config.clone()).await.unwrap();
        runtime.set_pod_ranges(&ranges());
        Self {
            runtime,
            netns,
            root,
            config,
        }
    }

    /// What a new agent finds.
    pub async fn reopen(&mut self) {
        self.runtime = ProcessRuntime::open(self.config.clone()).await.unwrap();
        self.runtime.set_pod_ranges(&ranges());
    }

    pub async fn open(&self, uid: &str) -> Sandbox {
        self.runtime.open_sandbox(sandbox(uid)).await.unwrap()
    }

    /// Starts a shell script in a container named `main` of a new pod.
    pub async fn run(&self, uid: &str, script: &str) -> ContainerId {
        self.open(uid).await;
        self.start(shell(uid, "main", script)).await.unwrap().id
    }

    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        self.runtime.start(spec).await
    }

    pub async fn state(&self, id: &ContainerId) -> Option<ContainerState> {
        let pods = self.runtime.list().await.unwrap();
        let containers = pods.into_iter().flat_map(|pod| pod.containers);
        containers.into_iter().find(|container| container.id == *id)
    }

    pub async fn exit(&self, id: &ContainerId) -> Exit {
        let ended = async {
            loop {
                if let Some(ContainerStatus::Exited(exit)) = self.state(id).await.map(|state| state.status) {
                    return exit;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .expect("the container ends")
    }

    pub async fn exec(&self, id: &ContainerId, script: &str) -> ExecOutcome {
        let request = ExecRequest::new(words(&["sh", "-c", script]), Some(PATIENCE));
        self.runtime.exec(id, request).await.unwrap()
    }

    /// What a script run in the container printed.
    pub async fn says(&self, id: &ContainerId, script: &str) -> String {
        String::from_utf8_lossy(&self.exec(id, script).await.output)
            .trim_end()
            .to_owned()
    }

    /// The lines of a container's log without their time, once the container has ended.
    pub async fn log(&self, id: &ContainerId) -> Vec<String> {
        self.exit(id).await;
        let log = self.state(id).await.unwrap().log;
        let text = std::fs::read_to_string(log).unwrap();
        text.lines()
            .filter(|line| !line.is_empty())
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    pub async fn remove(&self, uid: &str) {
        self.runtime.remove_pod(&pod(uid)).await.unwrap();
    }

    /// Everything a pod has beyond this process, for comparing before and after.
    pub fn traces(&self) -> Vec<String> {
        let mut traces = Vec::new();
        let root = self.root.path().canonicalize().unwrap();
        for place in ["pods", "addresses", "logs"] {
            traces.extend(names(&root.join(place)));
        }
        // Which address was last given out is the node's, not a pod's.
        traces.retain(|name| name != ".last");
        traces.extend(
            Netns::names()
                .unwrap()
                .into_iter()
                .filter(|name| name.ends_with(&self.tag())),
        );
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        traces.extend(
            mounts
                .lines()
                .filter(|line| line.contains(root.to_str().unwrap()))
                .map(str::to_owned),
        );
        let links = self.netns.network().unwrap().links().unwrap();
        traces.extend(links.into_iter().map(|link| link.name));
        traces.extend(
            names(&self.cgroups())
                .into_iter()
                .filter(|name| name.starts_with("pod")),
        );
        traces.extend(processes_about(root.to_str().unwrap()));
        traces
    }

    /// Tells this runtime's names from those of others.
    fn tag(&self) -> String {
        let groups = self.cgroups();
        groups.to_str().unwrap().rsplit('-').next().unwrap().to_owned()
    }

    /// The cgroup of this runtime, found by asking a path of its own layout.
    pub fn cgroups(&self) -> PathBuf {
        let root = self.root.path().canonicalize().unwrap();
        let hash = root
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .expect("cgroup 2 is mounted");
        let point = mount.split(' ').nth(4).unwrap();
        Path::new(point).join(format!("pointsman-{:04x}", hash & 0xffff))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A failed test leaves pods; they must not stay on the machine.
        let _ = std::fs::write(self.cgroups().join("cgroup.kill"), "1");
        remove_groups(&self.cgroups());
        for name in Netns::names().unwrap_or_default() {
            if name.starts_with("pod-") && name.ends_with(&self.tag()) {
                let _ = Netns::delete(&name);
            }
        }
    }
}

fn remove_groups(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_groups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}

pub fn config(root: &Path, netns: &Netns) -> Config {
    let mut config = Config::new(root);
    config.shim = vec![env!("CARGO_BIN_EXE_pointsman-shim").into(), "shim".into()];
    config.node_netns = Some(netns.clone());
    config
}

pub fn ranges() -> Vec<pointsman_runtime::AddressRange> {
    ["10.244.7.0/24", "fd00:244:7::/64"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

pub fn pod(uid: &str) -> PodUid {
    PodUid::try_new(uid).unwrap()
}

pub fn id(uid: &str, name: &str, attempt: u32) -> ContainerId {
    ContainerId {
        pod: pod(uid),
        name: ContainerName::try_new(name).unwrap(),
        attempt,
    }
}

pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub fn sandbox(uid: &str) -> SandboxSpec {
    SandboxSpec {
        pod: pod(uid),
        namespace: "default".into(),
        name: format!("pod-{uid}"),
        hostname: format!("host-{uid}"),
        domain: None,
        network: Network::Own,
        ports: Vec::new(),
        host_aliases: Vec::new(),
        resolv_conf: None,
        volumes: Vec::new(),
        volume_group: None,
        labels: BTreeMap::from([("hash".to_owned(), "1".to_owned())]),
    }
}

pub fn container(uid: &str, name: &str, command: &[&str]) -> ContainerSpec {
    ContainerSpec {
        id: id(uid, name, 0),
        image: "host".into(),
        pull: Pull::default(),
        args: Vec::new(),
        command: words(command),
        env: Vec::new(),
        working_dir: None,
        user: User::default(),
        mounts: Vec::new(),
        limits: Limits::default(),
        security: Security::default(),
        termination_message: None,
        attachable: Default::default(),
        labels: BTreeMap::from([("restarts".to_owned(), "0".to_owned())]),
    }
}

pub fn shell(uid: &str, name: &str, script: &str) -> ContainerSpec {
    container(uid, name, &["sh", "-c", script])
}

pub fn volume(name: &str, source: VolumeSource) -> VolumeSpec {
    VolumeSpec {
        name: VolumeName::try_new(name).unwrap(),
        source,
    }
}

pub fn mount(volume: &str, path: &str) -> MountSpec {
    MountSpec {
        volume: VolumeName::try_new(volume).unwrap(),
        path: path.into(),
        sub_path: None,
        read_only: false,
    }
}

/// The processes whose command line or environment names something, in no one's favour.
pub fn processes_about(text: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for name in names(Path::new("/proc")) {
        if name == own || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let line = std::fs::read(format!("/proc/{name}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push(format!("{name}: {line}"));
        }
    }
    found
}

pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, so)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
