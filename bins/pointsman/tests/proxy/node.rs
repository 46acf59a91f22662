//! A node with all roles, a client and a backend.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pointsman_api_client::{ApiError, Client, DeleteOptions, Patch, Resource, Source, connect};
use pointsman_cluster::own_faults::{DIVERGENCES, PARTIAL_FAILURES, counted};
use pointsman_testkit::netns::Namespace;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::eventually;

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Said(String),
    Refused,
    Other(String),
}

/// The addresses of the backends, which share a namespace. Each answers with its own address.
const BACKENDS: [&str; 4] = ["10.0.1.5", "10.0.1.6", "fd00:1::5", "fd00:1::6"];

/// The program under test; `POINTSMAN_PROGRAM` names another build of it, for measurements.
pub fn program() -> String {
    std::env::var("POINTSMAN_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_pointsman").to_owned())
}

pub struct Network {
    pub node: Namespace,
    pub client: Namespace,
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
        for (space, device, addresses) in [
            (node, "pods", &["10.0.1.1/24", "fd00:1::1/64"][..]),
            (node, "clients", &["10.0.2.1/24", "fd00:2::1/64"]),
            (
                backend,
                "eth0",
                &["10.0.1.5/24", "10.0.1.6/24", "fd00:1::5/64", "fd00:1::6/64"],
            ),
            (client, "eth0", &["10.0.2.9/24", "fd00:2::9/64"]),
        ] {
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                space.ip(&format!("addr add {address} dev {device}{nodad}"));
            }
        }
        // Without a route, packets to a cluster address would end before they meet a filter rule.
        node.ip("route add default via 10.0.1.5");
        node.ip("-6 route add default via fd00:1::5");
        node.sysctl("ipv4/ip_forward", "1");
        node.sysctl("ipv6/conf/all/forwarding", "1");
        backend.ip("route add default via 10.0.1.1");
        backend.ip("-6 route add default via fd00:1::1");
        client.ip("route add default via 10.0.2.1");
        client.ip("-6 route add default via fd00:2::1");
        for address in BACKENDS {
            serve(backend, address);
        }
        network
    }

    /// A UDP client that keeps its port.
    pub fn udp_client(&self, address: &str, port: u16) -> UdpSocket {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        self.client.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(target).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket
        })
    }

    /// A connection that stays open; what is written to it comes back.
    pub fn echo(&self, address: &str, port: u16) -> TcpStream {
        Self::echo_from(&self.client, address, port)
    }

    /// The same from another place.
    pub fn echo_from(space: &Namespace, address: &str, port: u16) -> TcpStream {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        space.run(move || {
            let stream = TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream
        })
    }

    /// Opens one connection after the other until told to stop.
    pub fn traffic(&self, address: &str, port: u16) -> Traffic {
        Self::traffic_from(&self.client, address, port)
    }

    /// The same from another place, such as the node.
    pub fn traffic_from(space: &Namespace, address: &str, port: u16) -> Traffic {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = space.run(move || {
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    match ask(target) {
                        Answer::Said(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                        other => failures.push(other),
                    }
                }
                failures
            })
        });
        Traffic {
            stop,
            answered,
            thread,
        }
    }

    /// A new connection from the client.
    pub fn ask(&self, address: &str, port: u16) -> Answer {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        self.client.run(move || ask(target))
    }

    /// A new connection of a process of the node.
    pub fn ask_on_node(&self, address: &str, port: u16) -> Answer {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        self.node.run(move || ask(target))
    }

    /// Whether somebody listens there, for the client.
    pub fn is_open(&self, address: &str, port: u16) -> bool {
        let target: SocketAddr = format!("{address}:{port}").parse().unwrap();
        self.client
            .run(move || TcpStream::connect_timeout(&target, Duration::from_secs(2)).is_ok())
    }

    /// Whether rules of either mode are in the node's kernel.
    pub fn has_rules(&self) -> bool {
        let rules = self.node.sh("nft list ruleset; iptables-save");
        rules.contains("pointsman") || rules.contains("KUBE-SERVICES")
    }

    /// Starts all roles.
    pub fn start(&self, mode: &str) -> Cluster<'_> {
        let mut cluster = self.start_server();
        let kubeconfig = cluster.kubeconfig.display().to_string();
        cluster.spawn(
            "controllers",
            &["--kubeconfig", &kubeconfig, "--leader-elect=false"],
        );
        cluster.start_proxy(&["--proxy-mode", mode]);
        cluster
    }

    /// Starts only the API server.
    pub fn start_server(&self) -> Cluster<'_> {
        let dir = TempDir::new().unwrap();
        let mut cluster = Cluster {
            node: &self.node,
            kubeconfig: dir.path().join("data/admin.kubeconfig"),
            dir,
            programs: None,
            children: BTreeMap::new(),
        };
        cluster.start_apiserver();
        cluster
    }
}

/// Connections that are opened in the background.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<Answer>>,
}

impl Traffic {
    /// How many have been answered so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends; returns what was not answered.
    pub fn stop(self) -> Vec<Answer> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn ask(target: SocketAddr) -> Answer {
    let mut said = String::new();
    let outcome = TcpStream::connect_timeout(&target, Duration::from_secs(2)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.read_to_string(&mut said)
    });
    match outcome {
        Ok(_) => Answer::Said(said),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Answer::Refused,
        Err(error) => Answer::Other(error.to_string()),
    }
}

/// Answers on 8080 with the address, over TCP and UDP, and echoes on 8081.
fn serve(space: &Namespace, address: &'static str) {
    let at = move |port: u16| SocketAddr::new(address.parse().unwrap(), port);
    let (tcp, udp, echo) = space.run(move || {
        (
            TcpListener::bind(at(8080)).unwrap(),
            UdpSocket::bind(at(8080)).unwrap(),
            TcpListener::bind(at(8081)).unwrap(),
        )
    });
    // A client that is gone needs no answer.
    std::thread::spawn(move || {
        for stream in tcp.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(address.as_bytes()));
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, client)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(address.as_bytes(), client);
        }
    });
    std::thread::spawn(move || {
        for stream in echo.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = &stream;
                let _ = std::io::copy(&mut reader, &mut &stream);
            });
        }
    });
}

/// The processes on the node.
pub struct Cluster<'a> {
    pub node: &'a Namespace,
    dir: TempDir,
    pub kubeconfig: PathBuf,
    /// A directory of programs that the proxy finds first.
    pub programs: Option<PathBuf>,
    children: BTreeMap<&'static str, Child>,
}

impl Cluster<'_> {
    /// Starts the API server, or starts it again on its data.
    pub fn start_apiserver(&mut self) {
        self.start_apiserver_with(&[]);
    }

    /// The same with further arguments.
    pub fn start_apiserver_with(&mut self, arguments: &[&str]) {
        let data = self.dir.path().join("data").display().to_string();
        let mut all = vec!["--data-dir", &data, "--listen", "127.0.0.1:6443"];
        all.extend(arguments);
        self.spawn("apiserver", &all);
        eventually("the API server gets ready", || {
            let namespaces = self.call(async |client| {
                let namespaces = client.api(Resource::core("namespaces"), None);
                namespaces.get::<Value>("default").await
            });
            // Nobody has rights before the rules that come with the server are stored.
            namespaces.is_ok() && self.node.sh("curl -sk https://127.0.0.1:6443/readyz || true") == "ok"
        });
    }

    /// A directory for the test's own files.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the proxy of the node.
    pub fn start_proxy(&mut self, arguments: &[&str]) {
        let kubeconfig = self.kubeconfig.display().to_string();
        let mut all = vec![
            "--kubeconfig",
            &kubeconfig,
            "--hostname-override=n1",
            "--cluster-cidr=10.0.0.0/16,fd00::/48",
        ];
        all.extend(arguments);
        self.spawn("proxy", &all);
    }

    /// Starts an observer in the place of the proxy, with the one capability that its manifest gives it.
    pub fn start_observer(&mut self, mode: &str) {
        let (kubeconfig, program) = (self.kubeconfig.display().to_string(), program());
        let arguments = [
            "--bounding-set=-all,+net_admin",
            &program,
            "proxy",
            "--observe",
            "--kubeconfig",
            &kubeconfig,
            "--hostname-override=n1",
            "--proxy-mode",
            mode,
        ];
        self.spawn_program("proxy", "setpriv", &arguments);
    }

    /// The process of a role.
    pub fn pid(&self, role: &str) -> u32 {
        self.children[role].id()
    }

    /// Ends a role without a warning.
    pub fn kill(&mut self, role: &str) {
        let mut child = self.children.remove(role).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a role on the node.
    pub fn spawn(&mut self, role: &'static str, arguments: &[&str]) {
        let mut all = vec![role];
        all.extend(arguments);
        self.spawn_program(role, &program(), &all);
    }

    /// Starts another program on the node, under the name of a role.
    pub fn spawn_program(&mut self, role: &'static str, program: &str, arguments: &[&str]) {
        let log = self.dir.path().join(format!("{role}.log"));
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if let Some(programs) = &self.programs {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", programs.display()));
        }
        let child = self.node.run(move || command.spawn().unwrap());
        self.children.insert(role, child);
    }

    /// Runs the program on the node and waits for its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.node.command(&program(), arguments).unwrap()
    }

    /// Runs kubectl on the node and returns what it printed; panics if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let kubeconfig = self.kubeconfig.display().to_string();
        let mut all = vec!["--kubeconfig", &kubeconfig];
        all.extend(arguments);
        let output = self.node.command("kubectl", &all).expect("kubectl is installed");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {errors}{said}");
        said
    }

    /// The same with a manifest.
    pub fn kubectl_apply(&self, manifest: &str) -> String {
        let file = self.dir.path().join("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.kubectl(&["apply", "-f", &file.display().to_string()])
    }

    /// Makes requests from the node.
    pub fn call<T: Send + 'static>(
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

    pub fn create(&self, resource: Resource, namespace: Option<&'static str>, body: impl ToString) -> Value {
        let body = body.to_string();
        self.call(async move |client| client.api(resource, namespace).create::<Value>(body).await)
            .unwrap()
    }

    /// Creates a Service in the default namespace; returns its cluster address.
    pub fn service(&self, name: &str, spec: &Value) -> String {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        let made = self.create(Resource::SERVICES, Some("default"), object);
        made["spec"]["clusterIP"].as_str().unwrap().to_owned()
    }

    /// Makes the slice of a Service hold these endpoints, whose change happens now; returns its version.
    pub fn endpoints(&self, service: &str, ports: &Value, endpoints: &[Value]) -> u64 {
        let v6 = endpoints
            .iter()
            .any(|endpoint| endpoint["addresses"][0].to_string().contains(':'));
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-x"),
                "labels": {"kubernetes.io/service-name": service},
                "annotations": {
                    "endpoints.kubernetes.io/last-change-trigger-time": jiff::Timestamp::now().to_string(),
                },
            },
            "addressType": if v6 { "IPv6" } else { "IPv4" },
            "ports": ports,
            "endpoints": endpoints,
        });
        let (name, body) = (format!("{service}-x"), object.to_string());
        let written = self.call(async move |client| {
            let slices = client.api(Resource::ENDPOINT_SLICES, Some("default"));
            match slices.replace::<Value>(&name, body.clone()).await {
                Err(ApiError::NotFound(_)) => slices.create::<Value>(body).await,
                other => other,
            }
        });
        let version = written.unwrap()["metadata"]["resourceVersion"].clone();
        version.as_str().unwrap().parse().unwrap()
    }

    pub fn delete(&self, resource: Resource, namespace: Option<&'static str>, name: &'static str) {
        self.call(async move |client| {
            client
                .api(resource, namespace)
                .delete(name, &DeleteOptions::default())
                .await
        })
        .unwrap();
    }

    /// Makes the Node with the address that the node's namespace has.
    pub fn node_object(&self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
        self.create(Resource::NODES, None, node);
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.1.1"}]}});
        let patch = Patch::Merge(status.to_string().into_bytes());
        self.call(async move |client| {
            let nodes = client.api(Resource::NODES, None);
            nodes.patch_status::<Value>("n1", patch).await
        })
        .unwrap();
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

    /// One of the proxy's metrics; zero if it is not there, or the proxy not yet.
    pub fn metric(&self, series: &str) -> f64 {
        if self.status(10249, "/healthz") != "200" {
            return 0.0;
        }
        let text = self.get(10249, "/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    /// The code that `/healthz` answers with.
    pub fn health(&self) -> String {
        self.status(10256, "/healthz")
    }

    /// The code with which a server on the node answers, or nothing if nobody does.
    pub fn status(&self, port: u16, path: &str) -> String {
        let path = path.to_owned();
        self.node.run(move || {
            let answer = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
                write!(
                    stream,
                    "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
                )?;
                let mut line = String::new();
                BufReader::new(stream).read_line(&mut line)?;
                Ok(line)
            });
            let line = answer.unwrap_or_default();
            line.split_whitespace().nth(1).unwrap_or_default().to_owned()
        })
    }

    /// A stream that goes on, after its head.
    pub fn lines(&self, port: u16, path: &str) -> BufReader<TcpStream> {
        self.request(port, path)
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
        self.kill("proxy");
        let cleaned = self.run(&["proxy", "--cleanup"]);
        assert!(
            cleaned.status.success(),
            "{}",
            String::from_utf8_lossy(&cleaned.stderr)
        );
    }

    /// What a proxy never counts unless a partial sync went wrong.
    fn own_faults(&self) -> Vec<String> {
        let metrics = match self.status(10249, "/healthz").as_str() {
            "200" => self.get(10249, "/metrics"),
            _ => String::new(),
        };
        let counted = counted(&metrics, &[PARTIAL_FAILURES, DIVERGENCES]);
        counted.into_iter().map(str::to_owned).collect()
    }

    /// What a role said, for failures.
    fn log(&self, role: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{role}.log"))).unwrap_or_default()
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.children.contains_key("proxy") {
            let own_faults = self.own_faults();
            // Programs of the test's own may fail on purpose.
            assert!(own_faults.is_empty() || self.programs.is_some(), "{own_faults:?}");
        }
        for child in self.children.values_mut() {
            // One that ended by itself is what a failing test tells of.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for role in ["apiserver", "controllers", "proxy", "kube-proxy"] {
                eprintln!("--- {role}\n{}", self.log(role));
            }
        }
    }
}
