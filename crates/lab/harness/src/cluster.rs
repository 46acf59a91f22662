//! How does a test get a cluster without machines?
//!
//! An API server and the loops run as processes of their own; nodes are objects, and a fake kubelet
//! gives pods addresses and makes them ready.

use crate::{SOON, Server, eventually};
use pointsman_api_client::connect::connect;
use pointsman_api_client::{Client, DeleteOptions, Event, Patch, Resource, Scope, Source, Watcher};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

const POLL: Duration = Duration::from_millis(20);

/// An API server, and a client of its administrator.
pub struct Cluster {
    server: Server,
    pub client: Client,
}

/// A running `pointsman controllers`; killed when dropped.
pub struct Controllers {
    process: Child,
    log: NamedTempFile,
}

impl Cluster {
    /// Starts an API server; returns when it is ready.
    pub async fn start() -> Self {
        let server = Server::start_to_be_restarted(&[]).await;
        let source = Source::Kubeconfig(server.kubeconfig());
        let client = connect(&source, "test").await.unwrap();
        Self { server, client }
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.server.kubeconfig()
    }

    /// What the API server measures of itself.
    pub async fn metrics(&self) -> String {
        self.server.admin().await.get("/metrics").await.text
    }

    /// Ends the API server as `kill -9` does.
    pub async fn kill_server(&mut self) {
        self.server.kill().await;
    }

    /// Restarts the API server where the loops do not find it, lets `change` happen there until history
    /// from before is forgotten, and brings it back.
    pub async fn change_behind_their_backs(&mut self, change: impl AsyncFnOnce(&Cluster)) {
        let path = "/api/v1/pods";
        let list: Value = self.client.get_path(path).await.unwrap();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        self.server.set_flags(&["--etcd-compaction-interval=1s"]);
        self.server.kill().await;
        self.server.launch_hidden().await;
        self.client = self.connect().await;
        change(self).await;
        self.server.hide_until_forgotten(path, &version).await;
        self.server.terminate().await;
        self.server.launch().await;
        self.client = self.connect().await;
    }

    async fn connect(&self) -> Client {
        let source = Source::Kubeconfig(self.server.kubeconfig());
        connect(&source, "test").await.unwrap()
    }

    /// Starts the API server again, with these flags.
    pub async fn start_server(&mut self, flags: &[&str]) {
        self.server.set_flags(flags);
        self.server.launch().await;
    }

    /// Starts loops as the role they have in a cluster.
    pub fn controllers(&self, flags: &[&str]) -> Controllers {
        let admin = self.server.kubeconfig();
        let kubeconfig = admin.with_file_name("kubeconfigs").join("controllers.kubeconfig");
        let log = NamedTempFile::new().unwrap();
        let process = Command::new(crate::program())
            .arg("controllers")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args([
                "--log",
                "info,pointsman_controllers=debug,pointsman_api_client=debug",
            ])
            .args(flags)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log.path()).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Controllers { process, log }
    }

    /// Loops that lead at once and serve no metrics.
    pub fn lone_controllers(&self, flags: &[&str]) -> Controllers {
        let fixed = ["--leader-elect=false", "--metrics-listen=off"];
        self.controllers(&[&fixed, flags].concat())
    }

    /// Asks for a pod of `default` to be evicted; returns the Status of the answer.
    pub async fn evict(&self, pod: &str) -> Value {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": "default" },
        });
        let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        self.server.admin().await.post(&path, &eviction).await.json()
    }

    /// What kubectl prints; it has to succeed.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let mut command = self.server.kubectl_command();
        let output = command.args(arguments).output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates an object in `default` (or without a namespace).
    pub async fn create(&self, resource: Resource, object: &Value) -> Value {
        let namespace = (resource != Resource::NODES).then_some("default");
        let api = self.client.api(resource, namespace);
        api.create(object.to_string().into_bytes()).await.unwrap()
    }

    /// Merge-patches an object in `default`.
    pub async fn patch(&self, resource: Resource, name: &str, patch: &Value) -> Value {
        let api = self.client.api(resource, Some("default"));
        api.patch(name, Patch::Merge(patch.to_string().into_bytes()))
            .await
            .unwrap()
    }

    /// Creates a ready node without taints.
    pub async fn node(&self, name: &str, zone: &str) {
        let labels = json!({ "topology.kubernetes.io/zone": zone });
        let node =
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } });
        self.create(Resource::NODES, &node).await;
        let api = self.client.api(Resource::NODES, None);
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let _: Value = api
            .patch_status(name, Patch::Merge(ready.to_string().into_bytes()))
            .await
            .unwrap();
        let untainted = json!({ "spec": { "taints": null } });
        let _: Value = api
            .patch(name, Patch::Merge(untainted.to_string().into_bytes()))
            .await
            .unwrap();
    }

    /// Creates a Service `web` that selects `app=web`.
    pub async fn service(&self, spec: Value) {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
        });
        for (key, value) in spec.as_object().unwrap() {
            service["spec"][key] = value.clone();
        }
        self.create(Resource::SERVICES, &service).await;
    }

    /// Creates a pod `app=web` on node `n1`, with this address, ready or not.
    pub async fn pod(&self, name: &str, ip: &str, ready: bool) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "host" }] },
        });
        self.create(Resource::PODS, &pod).await;
        let status = json!({ "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] } });
        self.patch_status(name, &status).await;
        self.set_ready(name, ready).await;
    }

    /// What the kubelet says about readiness.
    pub async fn set_ready(&self, pod: &str, ready: bool) {
        let now = self.now();
        let status = if ready { "True" } else { "False" };
        let condition = json!({ "type": "Ready", "status": status, "lastTransitionTime": now });
        self.patch_status(pod, &json!({ "status": { "conditions": [condition] } }))
            .await;
    }

    fn now(&self) -> String {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        pointsman_model::Moment::from_seconds(since.as_secs() as i64).to_string()
    }

    async fn patch_status(&self, pod: &str, patch: &Value) {
        let api = self.client.api(Resource::PODS, Some("default"));
        let patch = Patch::Strategic(patch.to_string().into_bytes());
        let _: Value = api.patch_status(pod, patch).await.unwrap();
    }

    /// Asks for a pod's end, as kubectl does: the kubelet then has 30 s.
    pub async fn delete_pod(&self, name: &str) {
        let api = self.client.api(Resource::PODS, Some("default"));
        api.delete(name, &DeleteOptions::default()).await.unwrap();
    }

    /// The kubelet's last word about a pod.
    pub async fn remove_pod(&self, name: &str) {
        let api = self.client.api(Resource::PODS, Some("default"));
        api.delete(name, &DeleteOptions::default().without_grace())
            .await
            .unwrap();
    }

    /// All slices of a Service, in order of name.
    pub async fn slices(&self, service: &str) -> Vec<Value> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{service}"
        );
        let list: Value = self.client.get_path(&path).await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// What slices say: per pod `ready/serving/terminating`, with `-` for a condition that is not there.
    pub async fn endpoints(&self, service: &str) -> Vec<String> {
        let mut said = Vec::new();
        for slice in self.slices(service).await {
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                let word = |name: &str| match endpoint["conditions"][name].as_bool() {
                    Some(true) => "yes",
                    Some(false) => "no",
                    None => "-",
                };
                let name = endpoint["targetRef"]["name"].as_str().unwrap_or("?");
                said.push(format!(
                    "{name} {}/{}/{}",
                    word("ready"),
                    word("serving"),
                    word("terminating")
                ));
            }
        }
        said.sort();
        said
    }

    /// Waits until slices say this.
    pub async fn expect(&self, service: &str, expected: &[&str]) {
        let mut last = Vec::new();
        let deadline = Instant::now() + SOON;
        while last != expected {
            assert!(
                Instant::now() < deadline,
                "slices of {service} say {last:?}, not {expected:?}"
            );
            tokio::time::sleep(POLL).await;
            last = self.endpoints(service).await;
        }
    }

    /// Gives every pod that has a node an address, makes it ready, and removes it when it is asked to end.
    pub fn kubelet(&self) -> Kubelet {
        let client = self.client.clone();
        let mut watcher = Watcher::<Value>::new(client.clone(), Scope::all(Resource::PODS));
        let task = tokio::spawn(async move {
            let mut addresses = 0u32;
            loop {
                let Event::Applied { key, object: pod, .. } = watcher.next().await else {
                    continue;
                };
                if pod["spec"]["nodeName"].is_null() {
                    continue;
                }
                let api = client.api(Resource::PODS, Some(key.namespace()));
                if !pod["metadata"]["deletionTimestamp"].is_null() {
                    let _ = api
                        .delete(key.name(), &DeleteOptions::default().without_grace())
                        .await;
                } else if pod["status"]["podIP"].is_null() {
                    addresses += 1;
                    let ip = format!("10.1.{}.{}", addresses / 250, addresses % 250 + 1);
                    let status = json!({ "status": {
                        "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                        "conditions": [{ "type": "Ready", "status": "True" }],
                    } });
                    let patch = Patch::Strategic(status.to_string().into_bytes());
                    let _ = api.patch_status::<Value>(key.name(), patch).await;
                }
            }
        });
        Kubelet(task)
    }
}

/// A fake kubelet; ends when dropped.
pub struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Controllers {
    /// Ends them as a service manager does; they have to end by themselves, with success.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        let ended = tokio::time::timeout(SOON, self.process.wait())
            .await
            .expect("SIGTERM was ignored")
            .unwrap();
        assert!(ended.success(), "{ended}\n{}", self.log());
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Ends them as `kill -9` does.
    pub async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }

    /// Waits until the log says this.
    pub async fn says(&self, text: &str) -> String {
        eventually(&format!("the log says {text:?}\n{}", self.log()), async || {
            let log = self.log();
            log.lines().find(|line| line.contains(text)).map(str::to_owned)
        })
        .await
    }

    /// Everything logged so far.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.log.path()).unwrap_or_default();
        // Colours make lines hard to search.
        let mut plain = String::new();
        let mut escape = false;
        for letter in log.chars() {
            match letter {
                '\u{1b}' => escape = true,
                'm' if escape => escape = false,
                _ if escape => {}
                other => plain.push(other),
            }
        }
        plain
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        let log = self.log();
        if std::thread::panicking() {
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- the loops' log\n{}\n---",
                lines[lines.len().saturating_sub(40)..].join("\n")
            );
        } else {
            assert!(!log.contains("panicked"), "the loops panicked\n{log}");
        }
    }
}
