//! A node for a test, of either kind.

use pointsman_fabric::Netns;
use pointsman_harness::containerd::{BUSYBOX, Containerd};
use pointsman_runtime::cri::{self, CriRuntime};
use pointsman_runtime::process::{self, ProcessRuntime};
use pointsman_runtime::{
    Attachable, ContainerId, ContainerName, ContainerSpec, ContainerStatus, ExecOutcome, ExecRequest, Exit,
    Limits, MountSpec, Network, PodUid, Pull, Runtime, Sandbox, SandboxSpec, Security, User, VolumeName,
};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Long enough for a busy machine; nothing waits this long unless it fails.
pub const PATIENCE: Duration = Duration::from_secs(40);

pub struct Place {
    pub runtime: Arc<dyn Runtime>,
    pub containerd: Option<Containerd>,
    image: &'static str,
    node: Netns,
    pub root: tempfile::TempDir,
}

impl Place {
    pub async fn of_processes() -> Self {
        Self::new(|_, _| None, "host").await
    }

    pub async fn of_containers() -> Self {
        let start = |root: &Path, node: &Netns| Some(Containerd::start(&root.join("c"), node));
        Self::new(start, BUSYBOX).await
    }

    /// With a runc that takes that long before it runs a command in a container.
    pub async fn of_containers_with_late_commands(by: Duration) -> Self {
        let start = |root: &Path, node: &Netns| {
            let programs = root.join("programs");
            std::fs::create_dir(&programs).unwrap();
            let script = format!(
                "#!/bin/sh\ncase \" $* \" in *\" exec \"*) sleep {};; esac\nPATH=${{PATH#*:}}\nexec runc \"$@\"\n",
                by.as_secs_f64()
            );
            std::fs::write(programs.join("runc"), script).unwrap();
            let may_run = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(programs.join("runc"), may_run).unwrap();
            Some(Containerd::start_finding(&root.join("c"), node, Some(programs)))
        };
        Self::new(start, BUSYBOX).await
    }

    async fn new(start: impl FnOnce(&Path, &Netns) -> Option<Containerd>, image: &'static str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let node = Netns::anonymous().unwrap();
        let containerd = start(root.path(), &node);
        let runtime = open(containerd.as_ref(), root.path(), &node).await;
        Self {
            runtime,
            containerd,
            image,
            node,
            root,
        }
    }

    /// What a new agent finds.
    pub async fn reopen(&mut self) {
        self.runtime = open(self.containerd.as_ref(), self.root.path(), &self.node).await;
    }

    pub async fn open(&self, uid: &str) -> Sandbox {
        self.runtime.open_sandbox(self.sandbox(uid)).await.unwrap()
    }

    pub fn sandbox(&self, uid: &str) -> SandboxSpec {
        SandboxSpec {
            pod: pod(uid),
            namespace: "default".into(),
            name: format!("pod-{uid}"),
            hostname: format!("host-{uid}"),
            domain: Some("group.default.svc.cluster.local".into()),
            network: Network::Own,
            ports: Vec::new(),
            host_aliases: Vec::new(),
            resolv_conf: Some("nameserver 10.0.0.10\n".into()),
            volumes: Vec::new(),
            volume_group: None,
            labels: BTreeMap::from([("hash".to_owned(), "1".to_owned())]),
        }
    }

    pub fn shell(&self, uid: &str, attempt: u32, script: &str) -> ContainerSpec {
        ContainerSpec {
            id: id(uid, attempt),
            image: self.image.into(),
            pull: Pull::IfNotPresent,
            command: ["sh", "-c", script].map(str::to_owned).into(),
            args: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            user: User::default(),
            mounts: Vec::new(),
            limits: Limits::default(),
            security: Security::default(),
            termination_message: None,
            attachable: Attachable::default(),
            labels: BTreeMap::from([("restarts".to_owned(), attempt.to_string())]),
        }
    }

    /// Starts a shell script in a new pod.
    pub async fn run(&self, uid: &str, script: &str) -> ContainerId {
        self.open(uid).await;
        self.runtime.start(self.shell(uid, 0, script)).await.unwrap().id
    }

    pub async fn state(&self, id: &ContainerId) -> Option<pointsman_runtime::ContainerState> {
        let pods = self.runtime.list().await.unwrap();
        let mut all = pods.into_iter().flat_map(|pod| pod.containers);
        all.find(|container| container.id == *id)
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

    pub async fn exec(&self, id: &ContainerId, script: &str, timeout: Duration) -> ExecOutcome {
        let command = ["sh", "-c", script].map(str::to_owned).into();
        self.runtime
            .exec(id, ExecRequest::new(command, Some(timeout)))
            .await
            .unwrap()
    }

    /// What a script run in the container printed.
    pub async fn says(&self, id: &ContainerId, script: &str) -> String {
        let outcome = self.exec(id, script, PATIENCE).await;
        String::from_utf8_lossy(&outcome.output).trim_end().to_owned()
    }

    /// The lines of a container's log without their time, once one of them is this.
    pub async fn log_with(&self, id: &ContainerId, line: &str) -> Vec<String> {
        let log = self.state(id).await.unwrap().log;
        let lines = || -> Vec<String> {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.lines()
                .map(|line| line.split_once(' ').unwrap().1.to_owned())
                .collect()
        };
        let here = async {
            loop {
                let lines = lines();
                if lines.iter().any(|known| known == line) {
                    return lines;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let here = tokio::time::timeout(PATIENCE, here).await;
        here.unwrap_or_else(|_| panic!("{line:?} is not in {:?}", lines()))
    }

    pub async fn remove(&self, uid: &str) {
        self.runtime.remove_pod(&pod(uid)).await.unwrap();
        let left = self.runtime.list().await.unwrap();
        assert!(left.iter().all(|state| state.pod != pod(uid)), "{left:?}");
    }
}

async fn open(containerd: Option<&Containerd>, root: &Path, node: &Netns) -> Arc<dyn Runtime> {
    let ranges = ["10.244.7.0/24".parse().unwrap()];
    let Some(containerd) = containerd else {
        let mut config = process::Config::new(root);
        config.shim = vec![env!("CARGO_BIN_EXE_pointsman-shim").into(), "shim".into()];
        config.node_netns = Some(node.clone());
        let runtime = ProcessRuntime::open(config).await.unwrap();
        runtime.set_pod_ranges(&ranges);
        return Arc::new(runtime);
    };
    let mut config = cri::Config::new(root, containerd.files.endpoint());
    config.log_limit = 1 << 16;
    config.node_netns = Some(node.clone());
    let runtime = CriRuntime::open(config).await.unwrap();
    assert!(
        runtime.version().starts_with("containerd://"),
        "{}",
        runtime.version()
    );
    runtime.set_pod_ranges(&ranges);
    let mut trouble = runtime.trouble();
    let well = tokio::time::timeout(PATIENCE, trouble.wait_for(Option::is_none)).await;
    well.expect("the runtime is well").unwrap();
    Arc::new(runtime)
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // A failed test leaves pods; they must not stay on the machine.
        let (containerd, root, node) = (self.containerd.as_ref(), self.root.path(), &self.node);
        let clear = || {
            let tokio = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            tokio.block_on(async {
                let runtime = open(containerd, root, node).await;
                for state in runtime.list().await.unwrap_or_default() {
                    let _ = runtime.remove_pod(&state.pod).await;
                }
            });
        };
        let _ = std::thread::scope(|scope| scope.spawn(clear).join());
        if containerd.is_some() {
            let log = std::fs::read_to_string(root.join("c/log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(30)..]
                .iter()
                .for_each(|line| eprintln!("containerd: {line}"));
        }
    }
}

pub fn pod(uid: &str) -> PodUid {
    PodUid::try_new(uid).unwrap()
}

pub fn id(uid: &str, attempt: u32) -> ContainerId {
    ContainerId {
        pod: pod(uid),
        name: ContainerName::try_new("main").unwrap(),
        attempt,
    }
}

pub fn volume(name: &str) -> VolumeName {
    VolumeName::try_new(name).unwrap()
}

pub fn mount(name: &str, path: &str, sub_path: Option<&str>) -> MountSpec {
    MountSpec {
        volume: volume(name),
        path: path.into(),
        sub_path: sub_path.map(Into::into),
        read_only: false,
    }
}
