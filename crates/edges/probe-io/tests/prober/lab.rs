//! A prober, servers that behave as scripted, and a look at what is reported.

use pointsman_probe_io::{
    Config, ExecRunner, Floors, Kind, NoExec, Notice, Prober, Reading, Report, Started, Verdict,
};
use pointsman_telemetry::Registry;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

pub const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Lab {
    pub prober: Prober,
    pub reports: UnboundedReceiver<Report>,
    pub registry: Registry,
    pub reading: Reading,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(Config::default(), Arc::new(NoExec))
    }

    pub fn with(config: Config, runner: Arc<dyn ExecRunner>) -> Self {
        let registry = Registry::new();
        let (prober, reports) = Prober::start(config, runner, &registry).expect("the prober starts");
        let floors = Floors::uniform(20);
        Self {
            prober,
            reports,
            registry,
            reading: Reading {
                floors,
                ..Reading::default()
            },
        }
    }

    /// Runs a pod of this UID whose container `c` has these fields.
    pub fn run(&self, uid: &str, container: Value) {
        self.define(uid, container);
        self.prober.container_started(uid, "c", Started::default());
    }

    /// Makes a pod known without running it.
    pub fn define(&self, uid: &str, mut container: Value) {
        container["name"] = json!("c");
        let pod = json!({"metadata": {"uid": uid, "name": uid, "namespace": "test"}, "spec": {"containers": [container]}});
        let pod = serde_json::from_value(pod).expect("a pod");
        self.prober.set_pod(self.reading.pod(&pod, Some(IP)));
    }

    pub async fn next(&mut self) -> Report {
        let next = tokio::time::timeout(PATIENCE, self.reports.recv()).await;
        next.expect("a report in time").expect("the prober lives")
    }

    /// The next change of a verdict, with its message.
    pub async fn verdict(&mut self) -> (String, Kind, Verdict, String) {
        loop {
            if let Report::Verdict {
                subject,
                verdict,
                message,
                ..
            } = self.next().await
            {
                return (subject.pod_uid.to_string(), subject.kind, verdict, message);
            }
        }
    }

    /// The next notice, with its message.
    pub async fn notice(&mut self) -> (Notice, String) {
        loop {
            if let Report::Notice { notice, message, .. } = self.next().await {
                return (notice, message);
            }
        }
    }

    /// Asserts that nothing is reported for a while.
    pub async fn silence(&mut self, length: Duration) {
        let next = tokio::time::timeout(length, self.reports.recv()).await;
        assert!(next.is_err(), "reported {next:?}");
    }

    /// The sum of a metric over all series whose labels contain `part`.
    pub fn metric(&self, name: &str, part: &str) -> f64 {
        let text = self.registry.render();
        let lines = text
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(part));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Waits until something holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(tokio::time::Instant::now() < deadline, "{what} in time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A probe of `port` every 20 ms that fails at once.
pub fn quick(mut probe: Value) -> Value {
    for (field, value) in [
        ("periodSeconds", 1),
        ("periodMilliseconds", -980),
        ("failureThreshold", 1),
        ("timeoutSeconds", 1),
    ] {
        if probe.get(field).is_none() {
            probe[field] = json!(value);
        }
    }
    probe
}

pub fn http_get(port: u16) -> Value {
    quick(json!({"httpGet": {"port": port, "path": "/healthz"}}))
}

/// A server that gives every connection to `serve`, on a thread of its own.
pub struct Server {
    pub address: SocketAddr,
    pub accepted: Arc<AtomicUsize>,
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub fn raw(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((IP, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        Self {
            address,
            accepted,
            requests: Arc::default(),
        }
    }

    /// Reads requests; answers what `answer` makes of the request's head, and closes.
    pub fn http(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        let server = Self::raw(move |mut stream| {
            let head = read_head(&stream);
            seen.lock().expect("no panic").push(head.clone());
            answer(&head, &mut stream);
        });
        Self { requests, ..server }
    }

    /// Always answers with this status.
    pub fn status(code: u16) -> Self {
        Self::http(move |_, stream| respond(stream, code, "", "body"))
    }
}

pub fn read_head(stream: &TcpStream) -> String {
    let mut head = String::new();
    let mut lines = BufReader::new(stream);
    while lines.read_line(&mut head).is_ok_and(|length| length > 0) && !head.ends_with("\r\n\r\n") {}
    head
}

pub fn respond(stream: &mut TcpStream, code: u16, headers: &str, body: &str) {
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {code} Whatever\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
}
