//! The processes under measurement, and what they cost.

use pointsman_api_client::Client;
use pointsman_benches::process::{Usage, usage};
use pointsman_benches::server::Server;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// Who makes slices.
pub enum Contender {
    Ours(String),
    KubeControllerManager(String),
}

impl Contender {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ours(_) => "pointsman controllers",
            Self::KubeControllerManager(_) => "kube-controller-manager (client limits raised to 10,000/s)",
        }
    }

    fn command(&self, kubeconfig: &Path) -> Command {
        let (program, flags): (&String, &[&str]) = match self {
            Self::Ours(program) => (
                program,
                &[
                    "controllers",
                    "--controllers=endpointslice",
                    "--leader-elect=false",
                    "--metrics-listen=off",
                    "--log=warn",
                ],
            ),
            Self::KubeControllerManager(program) => (
                program,
                &[
                    "--controllers=endpointslice-controller",
                    "--leader-elect=false",
                    "--secure-port=0",
                    "--kube-api-qps=10000",
                    "--kube-api-burst=10000",
                ],
            ),
        };
        let mut command = Command::new(program);
        command.args(flags).arg("--kubeconfig").arg(kubeconfig);
        command
    }
}

/// A cluster and a contender.
pub struct Bench {
    server: Server,
    contender: Contender,
    process: Option<Child>,
    pub client: Client,
    /// Bytes that the contender sent, TLS and headers included.
    pub sent: Arc<AtomicU64>,
    relayed: PathBuf,
}

impl Bench {
    pub async fn start(program: &str, contender: Contender) -> Self {
        let server = Server::start(program).await;
        let (relay, sent) = relay(server.address.clone()).await;
        let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
        let relayed = server.file("relayed.kubeconfig");
        std::fs::write(&relayed, text.replace(&server.address, &relay)).unwrap();
        Self {
            client: server.client.clone(),
            server,
            contender,
            process: None,
            sent,
            relayed,
        }
    }

    /// Starts the contender.
    pub fn launch(&mut self) {
        let log = std::fs::File::create(self.server.file("contender.log")).unwrap();
        let process = self
            .contender
            .command(&self.relayed)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Ends the contender.
    pub async fn halt(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().await.unwrap();
        }
    }

    pub async fn stop(mut self) {
        self.halt().await;
        self.server.process.kill().await.unwrap();
    }

    /// What the contender has used so far.
    pub fn usage(&self) -> Usage {
        usage(self.process.as_ref().and_then(Child::id).expect("it runs")).unwrap()
    }

    /// CPU seconds of the API server so far.
    pub fn server_cpu(&self) -> f64 {
        usage(self.server.process.id().expect("it runs"))
            .unwrap()
            .cpu_seconds
    }

    pub fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Passes connections on to the server and counts what goes there.
async fn relay(server: String) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sent = Arc::new(AtomicU64::new(0));
    let counter = sent.clone();
    tokio::spawn(async move {
        loop {
            let (inner, _) = listener.accept().await.unwrap();
            let outer = TcpStream::connect(&server).await.unwrap();
            for stream in [&inner, &outer] {
                stream.set_nodelay(true).unwrap();
            }
            let (mut from_client, mut to_client) = inner.into_split();
            let (mut from_server, mut to_server) = outer.into_split();
            let counter = counter.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count) = from_client.read(&mut buffer).await {
                    counter.fetch_add(count as u64, Ordering::Relaxed);
                    if count == 0 || to_server.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
                let _ = to_server.shutdown().await;
            });
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                let _ = to_client.shutdown().await;
            });
        }
    });
    (address, sent)
}
