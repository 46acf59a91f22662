//! A node with all roles, a client and a backend.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pointsman_api_client::{ApiError, Client, Patch, Resource, Source, connect};
use pointsman_testkit::netns::Namespace;
use serde_json::Value;
use tempfile::TempDir;

use crate::eventually;

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Said(String),
    Refused,
    Other(String),
}

/// The namespaces.
pub struct Network {
    node: Namespace,
    client: Namespace,
    _backend: Namespace,
}

impl Network {
    pub fn new() -> Self {
        let network = Self {
            node: Namespace::new().unwrap(),
            client: Namespace::new().unwrap(),
            _backend: Namespace::new().unwrap(),
        };
        let (node, client, backend) = (&network.node, &network.client, &network._backend);
        node.connect("pods", backend, "eth0");
        node.connect("clients", client, "eth0");
        node.ip("addr add 10.0.1.1/24 dev pods");
        node.ip("addr add 10.0.2.1/24 dev clients");
        // Without a route, packets to a cluster address would end before they meet a filter rule.
        node.ip("route add default via 10.0.1.5");
        node.sysctl("ipv4/ip_forward", "1");
        backend.ip("addr add 10.0.1.5/24 dev eth0");
        backend.ip("route add default via 10.0.1.1");
        client.ip("addr add 10.0.2.9/24 dev eth0");
        client.ip("route add default via 10.0.2.1");
        let listener = backend.run(|| TcpListener::bind("10.0.1.5:8080").unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that is gone needs no answer.
                let _ = stream.and_then(|mut stream| stream.write_all(b"10.0.1.5"));
            }
        });
        network
    }

    /// A new connection from the client.
    pub fn ask(&self, address: &str, port: u16) -> Answer {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        self.client.run(move || {
            let mut said = String::new();
            let outcome =
                TcpStream::connect_timeout(&target, Duration::from_secs(2)).and_then(|mut stream| {
                    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
                    stream.read_to_string(&mut said)
                });
            match outcome {
                Ok(_) => Answer::Said(said),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Answer::Refused,
                Err(error) => Answer::Other(error.to_string()),
            }
        })
    }

    /// Whether rules of either mode are in the node's kernel.
    pub fn has_rules(&self) -> bool {
        let rules = self.node.sh("nft list ruleset; iptables-save");
        rules.contains("pointsman") || rules.contains("KUBE-SERVICES")
    }

    /// Starts all roles.
    pub fn start(&self, mode: &str) -> Cluster<'_> {
        let dir = TempDir::new().unwrap();
        let mut cluster = Cluster {
            node: &self.node,
            kubeconfig: dir.path().join("data/admin.kubeconfig"),
            dir,
            children: Vec::new(),
        };
        let data = cluster.dir.path().join("data").display().to_string();
        cluster.spawn("apiserver", &["--data-dir", &data, "--listen", "127.0.0.1:6443"]);
        eventually("the API server gets ready", || {
            cluster
                .call(async |client| client.get_path::<Value>("/version").await)
                .is_ok()
        });
        let kubeconfig = cluster.kubeconfig.display().to_string();
        cluster.spawn(
            "controllers",
            &["--kubeconfig", &kubeconfig, "--leader-elect=false"],
        );
        cluster.spawn(
            "proxy",
            &[
                "--kubeconfig",
                &kubeconfig,
                "--hostname-override=n1",
                "--cluster-cidr=10.0.0.0/16",
                "--proxy-mode",
                mode,
            ],
        );
        cluster
    }
}

/// The processes on the node.
pub struct Cluster<'a> {
    node: &'a Namespace,
    dir: TempDir,
    kubeconfig: PathBuf,
    children: Vec<Child>,
}

impl Cluster<'_> {
    fn spawn(&mut self, role: &str, arguments: &[&str]) {
        let log = std::fs::File::create(self.dir.path().join(format!("{role}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        command.arg(role).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = self.node.run(move || command.spawn().unwrap());
        self.children.push(child);
    }

    /// Makes requests from the node.
    fn call<T: Send + 'static>(
        &self,
        requests: impl AsyncFnOnce(Client) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, String> {
        let source = Source::Kubeconfig(self.kubeconfig.clone());
        self.node.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let client = connect::connect(&source, "test").await;
                let client = client.map_err(|error| error.to_string())?;
                requests(client).await.map_err(|error| error.to_string())
            })
        })
    }

    pub fn create(&self, resource: Resource, namespace: Option<&'static str>, body: &'static str) -> Value {
        self.call(async move |client| client.api(resource, namespace).create::<Value>(body).await)
            .unwrap()
    }

    pub fn patch_pod_status(&self, name: &'static str, patch: String) {
        let patch = Patch::Strategic(patch.into_bytes());
        self.call(async move |client| {
            let pods = client.api(Resource::PODS, Some("default"));
            pods.patch_status::<Value>(name, patch).await
        })
        .unwrap();
    }

    /// Asks one of the proxy's own servers.
    pub fn get(&self, port: u16, path: &str) -> String {
        let mut answer = String::new();
        let mut reader = self.request(port, path);
        reader.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The first line of a stream.
    pub fn first_line(&self, port: u16, path: &str) -> String {
        let lines = self.request(port, path).lines();
        // The stream comes in chunks, each after its length.
        lines
            .map(Result::unwrap)
            .find(|line| line.starts_with('{'))
            .unwrap()
    }

    /// Sends a request and reads the head of the answer.
    fn request(&self, port: u16, path: &str) -> BufReader<TcpStream> {
        let mut stream = self
            .node
            .run(move || TcpStream::connect(("127.0.0.1", port)).unwrap());
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(
                reader.read_line(&mut line).unwrap() > 0,
                "the answer has no end of its head"
            );
        }
        reader
    }

    /// Ends the proxy and removes its rules.
    pub fn clean_up(mut self) {
        let mut proxy = self.children.pop().unwrap();
        proxy.kill().unwrap();
        proxy.wait().unwrap();
        let cleaned = self
            .node
            .command(env!("CARGO_BIN_EXE_pointsman"), &["proxy", "--cleanup"])
            .unwrap();
        assert!(
            cleaned.status.success(),
            "{}",
            String::from_utf8_lossy(&cleaned.stderr)
        );
    }

    /// What a role said, for failures.
    fn log(&self, role: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{role}.log"))).unwrap_or_default()
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that ended by itself is what a failing test tells of.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for role in ["apiserver", "controllers", "proxy"] {
                eprintln!("--- {role}\n{}", self.log(role));
            }
        }
    }
}
