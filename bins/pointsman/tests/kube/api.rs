//! A namespace of the test's own in some cluster.

use http::{Method, Request};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API server as seen from the test.
pub struct Api {
    client: Client,
    kubeconfig: PathBuf,
    /// The namespace, which nobody else uses.
    pub namespace: String,
    /// The node that the pods name: an object without a machine behind it.
    pub node: String,
    /// Whether the cluster has no controllers but ours.
    pub has_own_controllers: bool,
    is_removed: bool,
}

impl Api {
    /// Makes the namespace and the node.
    pub async fn connect(kubeconfig: &Path, node_address: &str) -> Self {
        let client = client(kubeconfig).await;
        let tag: String = std::iter::repeat_with(fastrand::lowercase).take(8).collect();
        let api = Self {
            client,
            kubeconfig: kubeconfig.to_owned(),
            namespace: format!("pointsman-test-{tag}"),
            node: format!("pointsman-test-{tag}"),
            has_own_controllers: false,
            is_removed: false,
        };
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": api.namespace } });
        let made = send(&api.client, Method::POST, "/api/v1/namespaces", Some(&namespace)).await;
        made.expect("a namespace can be made");
        // Endpoints belong to nodes that exist. Nothing of the cluster's own may come here.
        let taint = json!([{ "key": "pointsman.io/test", "effect": "NoExecute" }]);
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": api.node },
            "spec": { "unschedulable": true, "taints": taint },
        });
        let made = send(&api.client, Method::POST, "/api/v1/nodes", Some(&node)).await;
        made.expect("a node can be made");
        // By its address a node is known to be this machine.
        let addresses = json!([{ "type": "InternalIP", "address": node_address }]);
        let path = format!("/api/v1/nodes/{}/status", api.node);
        let status = json!({ "status": { "addresses": addresses } });
        let told = send(&api.client, Method::PATCH, &path, Some(&status)).await;
        told.expect("a node's status can be written");
        api
    }

    /// Whether the user named the cluster.
    pub fn is_named(&self) -> bool {
        std::env::var_os("POINTSMAN_TEST_KUBECONFIG").is_some()
    }

    pub async fn get(&self, path: &str) -> Value {
        self.send(Method::GET, path, None).await.unwrap_or_default()
    }

    /// Makes an object; tries again while the namespace is not furnished yet.
    pub async fn create(&self, resource: &str, object: &Value) -> Value {
        eventually("an object can be made", async || {
            self.send(Method::POST, resource, Some(object)).await.ok()
        })
        .await
    }

    /// The slices of a Service.
    pub async fn slices(&self, service: &str) -> Vec<Value> {
        let (namespace, label) = (&self.namespace, "kubernetes.io%2Fservice-name");
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={label}%3D{service}"
        );
        let listed = send(&self.client, Method::GET, &path, None)
            .await
            .unwrap_or_default();
        listed["items"].as_array().cloned().unwrap_or_default()
    }

    /// Makes a pod that nobody runs.
    pub async fn make_pod(&self, name: &str, mut metadata: Value, more: Value) {
        metadata["name"] = name.into();
        let mut spec = json!({
            "nodeName": self.node, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0, "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "web", "image": "none", "ports": [{ "containerPort": 8080 }] }],
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        self.create("pods", &pod).await;
    }

    /// Says what a kubelet would say about a pod that runs.
    pub async fn report(&self, pod: &str, address: &str, ready: bool) {
        let (now, ready) = (
            jiff::Timestamp::now().to_string(),
            if ready { "True" } else { "False" },
        );
        let conditions = ["Ready", "ContainersReady"]
            .map(|kind| json!({ "type": kind, "status": ready, "lastTransitionTime": now }));
        let container = json!({
            "name": "web", "image": "none", "imageID": "", "containerID": "none://1", "restartCount": 0,
            "ready": true, "started": true, "state": { "running": { "startedAt": now } },
        });
        let status = json!({ "status": {
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": conditions, "containerStatuses": [container],
        }});
        let path = format!("pods/{pod}/status");
        self.send(Method::PATCH, &path, Some(&status))
            .await
            .expect("a pod's status can be written");
    }

    /// Whether it becomes so within some time.
    pub async fn becomes_true(&self, within: Duration, is_so: impl AsyncFn(&Self) -> bool) -> bool {
        let started = Instant::now();
        loop {
            if is_so(self).await {
                return true;
            }
            if started.elapsed() >= within {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Removes the namespace with all that is in it and waits until it is gone.
    pub async fn remove(mut self) {
        self.is_removed = true;
        remove(&self.client, &self.namespace, self.has_own_controllers).await;
        eventually("the namespace is gone", async || {
            let path = format!("/api/v1/namespaces/{}", self.namespace);
            let found = send(&self.client, Method::GET, &path, None).await;
            found.is_err().then_some(())
        })
        .await;
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
        let path = format!("/api/v1/namespaces/{}/{path}", self.namespace);
        send(&self.client, method, &path, body).await
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        let (kubeconfig, namespace) = (self.kubeconfig.clone(), self.namespace.clone());
        let finalize = self.has_own_controllers;
        // A test that fails leaves nothing in somebody's cluster either. A runtime cannot wait in itself.
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
            runtime.block_on(async { remove(&client(&kubeconfig).await, &namespace, finalize).await });
        });
        let _ = removing.join();
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig can be read");
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("the kubeconfig is usable")).expect("a client can be made")
}

/// Objects go first, so that nothing depends on controllers; where there are none, nobody else ends the namespace.
async fn remove(client: &Client, namespace: &str, finalize: bool) {
    let own = format!("/api/v1/namespaces/{namespace}");
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let paths = [
        format!("{own}/services/web"),
        format!("{own}/pods?gracePeriodSeconds=0"),
        slices,
        // It has the namespace's name.
        format!("/api/v1/nodes/{namespace}"),
        own.clone(),
    ];
    for path in paths {
        // What is gone already needs nothing.
        let _ = send(client, Method::DELETE, &path, None).await;
    }
    if finalize {
        let body = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace }, "spec": { "finalizers": [] },
        });
        let _ = send(client, Method::PUT, &format!("{own}/finalize"), Some(&body)).await;
    }
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, kube::Error> {
    let kind = match method {
        Method::PATCH => "application/strategic-merge-patch+json",
        _ => "application/json",
    };
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind);
    let request = request
        .body(body)
        .expect("the parts of a request are well formed");
    client.request::<Value>(request).await
}

/// Asks again and again until it is so.
pub async fn eventually<T>(what: &str, is_so: impl AsyncFn() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = is_so().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
