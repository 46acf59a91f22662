//! How does a test get a node with real pods?
//!
//! The API server and the agent run in a fresh network namespace, and so does the test itself: nothing of the
//! machine's own network is touched.

use futures::FutureExt;
use pointsman_fabric::{Netns, Prefix};
use pointsman_harness::wire::Http;
use pointsman_harness::{Server, eventually};
use pointsman_runtime::cri::archive;
use serde_json::{Value, json};
use std::fs::File;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// The node's address inside of the namespace.
pub const ADDRESS: &str = "10.77.0.1";
/// How long a pod may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// An API server and a node.
pub struct Lab {
    pub server: Server,
    pub http: Http,
    root: TempDir,
    agent: Option<Child>,
    /// Flags of the agent beside those that every node has.
    flags: &'static [&'static str],
}

/// Runs a test on a node of its own.
pub fn on_a_node(test: impl AsyncFnOnce(&mut Lab) + Send) {
    on_a_node_with(&[], test);
}

/// The same, with an agent that has these flags.
pub fn on_a_node_with(flags: &'static [&'static str], test: impl AsyncFnOnce(&mut Lab) + Send) {
    on_a_prepared_node(flags, || (), test);
}

/// The same, where something runs on the node already.
pub fn on_a_prepared_node<T>(
    flags: &'static [&'static str],
    prepare: impl FnOnce() -> T + Send,
    test: impl AsyncFnOnce(&mut Lab) + Send,
) {
    if !rustix::process::geteuid().is_root() {
        return pointsman_testkit::skip::skip("a node needs root");
    }
    let namespace = Netns::anonymous().expect("root can make namespaces");
    let mut network = namespace.network().unwrap();
    network.set_up("lo").unwrap();
    let address = Prefix::host(ADDRESS.parse::<std::net::IpAddr>().unwrap());
    network.add_address("lo", address).unwrap();
    let ran = namespace.run(|| {
        let _prepared = prepare();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut lab = Lab::start(flags).await;
            let tested = AssertUnwindSafe(test(&mut lab)).catch_unwind().await;
            // The pods of a test that failed have to go, too: they outlive everybody.
            let finished = AssertUnwindSafe(lab.finish()).catch_unwind().await;
            if let Err(why) = tested.and(finished) {
                resume_unwind(why);
            }
        });
    });
    ran.expect("the thread entered the namespace");
}

impl Lab {
    async fn start(flags: &'static [&'static str]) -> Self {
        let server = Server::start_to_be_restarted(&[]).await;
        let http = server.admin().await;
        let mut lab = Self {
            server,
            http,
            root: tempfile::tempdir().unwrap(),
            agent: None,
            flags,
        };
        lab.start_agent();
        let path = "/api/v1/nodes/n1";
        eventually("the node is ready", async || {
            let answer = lab.http.get(path).await;
            (answer.code == 200 && is_true(&answer.json(), "Ready")).then_some(())
        })
        .await;
        // There is no controller here that would see that the node is ready.
        let untainted = json!({ "spec": { "taints": null } });
        lab.http.patch(path, "merge", &untainted).await.expect(200);
        lab
    }

    /// Starts the agent as it is started in a cluster.
    pub fn start_agent(&mut self) {
        self.start_agent_shown_as(Some("n1"));
    }

    /// Starts it with a serving certificate for the node of that name, or with one that it makes itself.
    pub fn start_agent_shown_as(&mut self, name: Option<&str>) {
        let [kubeconfig, ..] = self.issue("n1", ADDRESS);
        // Another node has another address.
        let serving = name.map(|name| {
            let address = if name == "n1" { ADDRESS } else { "10.77.0.2" };
            self.issue(name, address)
        });
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let agent = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .arg("node")
            .arg(kubeconfig)
            .args(
                serving
                    .iter()
                    .flat_map(|[_, certificate, key]| [certificate, key]),
            )
            .args(["--node-name=n1", "--pod-cidr=10.88.0.0/24"])
            .arg(format!("--node-ip={ADDRESS}"))
            .arg("--root-dir")
            .arg(self.root())
            .args(["--log", "info,pointsman_node_agent=debug"])
            .args(self.flags)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.agent = Some(agent);
    }

    /// What the command says that an agent is to be started with: kubeconfig, certificate and key.
    fn issue(&self, name: &str, address: &str) -> [String; 3] {
        let issued = std::process::Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(["ca", "issue-node", name, "--address", address])
            .arg(format!("--server=https://{}", self.server.address()))
            .arg("--out")
            .arg(self.root.path().join("issued"))
            .arg("--data-dir")
            .arg(self.server.kubeconfig().parent().unwrap())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&issued.stderr);
        assert!(issued.status.success(), "{errors}");
        let line = String::from_utf8(issued.stdout).unwrap();
        let expected = format!("pointsman node --node-name={name} --node-ip={address} ");
        let flags = line
            .trim()
            .strip_prefix(&expected)
            .unwrap_or_else(|| panic!("{line}"));
        let flags: Vec<String> = flags.split(' ').map(str::to_owned).collect();
        flags.try_into().unwrap()
    }

    /// Where the agent itself answers.
    pub fn agent_url(&self, path: &str) -> String {
        format!("https://{ADDRESS}:10250{path}")
    }

    /// What the agent answers to the API server.
    pub async fn ask_agent(&self, path: &str) -> String {
        let keys = self.server.kubeconfig().with_file_name("pki");
        let answer = Command::new("curl")
            .args(["-sS", "--fail", "--cacert"])
            .arg(keys.join("ca.crt"))
            .arg("--cert")
            .arg(keys.join("apiserver-kubelet-client.crt"))
            .arg("--key")
            .arg(keys.join("apiserver-kubelet-client.key"))
            .arg(self.agent_url(path))
            .output()
            .await
            .unwrap();
        let errors = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.success(), "{path}: {errors}");
        String::from_utf8(answer.stdout).unwrap()
    }

    /// Runs a script in all containers of a containerd, and says how many there are.
    pub fn in_containers(&self, script: &str) -> usize {
        let tasks = self.ctr(&["tasks", "list", "-q"]);
        // Sandboxes have no shell.
        let script = format!("{script}; echo done");
        let ran = |task: &&str| {
            let arguments = ["tasks", "exec", "--exec-id", "test", task, "sh", "-c", &script];
            self.ctr(&arguments).contains("done")
        };
        tasks.lines().filter(ran).count()
    }

    /// How many containers and sandboxes the runtime has that run.
    pub fn running_tasks(&self) -> usize {
        self.ctr(&["tasks", "list"]).matches("RUNNING").count()
    }

    /// Kills what holds the pods' namespaces, and says how many there were.
    pub fn kill_sandboxes(&self) -> usize {
        let containers = self.ctr(&["containers", "list"]);
        let sandboxes = containers.lines().filter(|line| line.contains(archive::PAUSE));
        let killed = sandboxes.map(|line| {
            let name = line.split_whitespace().next().unwrap();
            self.ctr(&["tasks", "kill", "--signal", "KILL", name]);
        });
        killed.count()
    }

    fn ctr(&self, arguments: &[&str]) -> String {
        let socket = self
            .flags
            .iter()
            .find_map(|flag| flag.strip_prefix("--container-runtime-endpoint=unix://"));
        let output = std::process::Command::new("ctr")
            .args(["-a", socket.unwrap(), "-n", "k8s.io"])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Ends the agent as `kill -9` does.
    pub async fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill().await.unwrap();
    }

    fn root(&self) -> PathBuf {
        self.root.path().join("node")
    }

    fn log(&self) -> PathBuf {
        self.root.path().join("agent.log")
    }

    /// Creates a pod of one container, which runs a program on the node.
    pub async fn pod(&self, name: &str, container: Value) {
        let mut spec = json!({ "name": "c", "image": "host" });
        for (key, value) in container.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "nodeName": "n1", "terminationGracePeriodSeconds": 5, "containers": [spec] },
        });
        self.http
            .post("/api/v1/namespaces/default/pods", &pod)
            .await
            .expect(201);
    }

    /// The pod, once it is as the test wants it.
    pub async fn pod_when(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + SOON;
        loop {
            let answer = self.http.get(&pod_path(name)).await;
            let pod = if answer.code == 200 {
                answer.json()
            } else {
                Value::Null
            };
            if wanted(&pod) {
                return pod;
            }
            assert!(
                Instant::now() < deadline,
                "pod {name} is {:#}\n{}",
                pod["status"],
                self.agent_log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn ready(&self, name: &str) -> Value {
        self.pod_when(name, |pod| is_true(pod, "Ready")).await
    }

    /// Asks for a pod's end and waits for it.
    pub async fn delete(&self, name: &str) {
        self.http.delete(&pod_path(name)).await.expect(200);
        self.pod_when(name, Value::is_null).await;
    }

    /// What kubectl prints; it has to succeed.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self
            .server
            .kubectl_command()
            .args(arguments)
            .output()
            .await
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {errors}\n{}",
            self.agent_log()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// The end of what the agent logged.
    pub fn agent_log(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Everything ends; nothing of it may stay on the machine.
    async fn finish(&mut self) {
        if self.agent.is_none() {
            self.start_agent();
        }
        let pods = self.http.get("/api/v1/namespaces/default/pods").await.json();
        for pod in pods["items"].as_array().into_iter().flatten() {
            self.delete(pod["metadata"]["name"].as_str().unwrap()).await;
        }
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        assert!(!log.contains("panicked"), "{}", self.agent_log());
        assert_eq!(
            left_over(self.root.path()),
            Vec::<i32>::new(),
            "processes are left"
        );
        self.kill_agent().await;
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // An agent that lives would start again what is killed here.
        if let Some(agent) = &mut self.agent {
            let _ = agent.start_kill();
            while matches!(agent.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for id in left_over(self.root.path()) {
            if let Some(id) = rustix::process::Pid::from_raw(id) {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
        }
    }
}

pub fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

pub fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|found| found["type"] == condition && found["status"] == "True")
}

/// Processes that were started with this directory on their command line, the agent not counted.
fn left_over(root: &Path) -> Vec<i32> {
    let root = root.to_str().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(root) && !line.contains(" node --kubeconfig=") {
            found.push(id);
        }
    }
    found
}
