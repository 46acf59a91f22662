//! Which processes are there, and how are they hurt?

use super::Tally;
use super::disk::Disk;
use super::schedule::{Engine, Fault};
use fastrand::Rng;
use kube::config::Kubeconfig;
use pointsman_harness::wire::Http;
use pointsman_testkit::etcd::Etcd;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// How long a server may take to be ready on a busy machine.
const READY: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// All processes of an engine.
pub struct Servers {
    servers: Vec<Server>,
    etcd: Option<Etcd>,
    /// Only the embedded store writes through the C library, where a failing disk can be put below it.
    disk: Option<Disk>,
    random: Rng,
    last: Option<Fault>,
    pub tally: Tally,
    _home: TempDir,
}

/// How a client finds a server.
#[derive(Clone)]
pub struct Access {
    pub server: usize,
    pub http: Http,
    /// Counts starts; changes when the server is ready again.
    pub starts: watch::Receiver<u64>,
}

struct Server {
    process: Option<Child>,
    data: PathBuf,
    log: PathBuf,
    port: u16,
    starts: watch::Sender<u64>,
}

impl Servers {
    /// Starts everything that the engine needs.
    pub async fn start(engine: Engine, seed: u64) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let etcd = (engine == Engine::Etcd).then(|| tokio::task::block_in_place(Etcd::start));
        let servers = (0..engine.servers()).map(|number| Server {
            process: None,
            data: home.path().join(format!("data{number}")),
            log: home.path().join(format!("log{number}")),
            port: quiet_port(),
            starts: watch::Sender::new(0),
        });
        let servers: Vec<Server> = servers.collect();
        let file = servers[0].data.join("store/store.redb");
        let disk = (engine == Engine::Embedded).then(|| Disk::new(home.path(), file));
        let mut all = Self {
            servers,
            etcd,
            disk,
            random: Rng::with_seed(seed),
            last: None,
            tally: Tally::default(),
            _home: home,
        };
        for server in 0..all.servers.len() {
            all.launch(server);
            all.until_ready(server).await;
        }
        all
    }

    /// A connection to each server.
    pub async fn access(&self, server: usize) -> Access {
        Access {
            server,
            http: self.http(server).await.expect("the server was ready"),
            starts: self.servers[server].starts.subscribe(),
        }
    }

    /// Does what the fault says and returns when all servers are ready again.
    pub async fn hurt(&mut self, fault: Fault) {
        self.last = Some(fault);
        self.tally.kills += fault.kills();
        match fault {
            Fault::Kill(server) => {
                self.kill(server).await;
                self.launch(server);
            }
            Fault::KillTwice(server, after) => {
                self.kill(server).await;
                self.launch(server);
                tokio::time::sleep(after).await;
                self.kill(server).await;
                self.launch(server);
            }
            Fault::LosePower(server) => {
                self.kill(server).await;
                self.lose_power();
                self.launch(server);
            }
            Fault::FailSync(server, after) => {
                self.fail_sync().await;
                tokio::time::sleep(after).await;
                self.kill(server).await;
                self.lose_power();
                self.launch(server);
            }
            Fault::Freeze(server, long) => {
                self.tally.freezes += 1;
                let process = self.servers[server].process.as_ref().and_then(Child::id);
                freeze(process, long).await;
            }
            Fault::KillEtcd => {
                let etcd = self.etcd.as_mut().expect("the engine has an etcd");
                tokio::task::block_in_place(|| etcd.restart());
            }
            Fault::FreezeEtcd(long) => {
                self.tally.freezes += 1;
                freeze(self.etcd.as_ref().map(Etcd::id), long).await;
            }
        }
        for server in 0..self.servers.len() {
            self.until_ready(server).await;
        }
    }

    async fn kill(&mut self, server: usize) {
        if let Some(mut process) = self.servers[server].process.take() {
            let _ = process.kill().await;
        }
    }

    fn lose_power(&mut self) {
        let disk = self.disk.as_ref().expect("the engine has a disk");
        self.tally.power_losses += 1;
        self.tally.pages_lost += disk.lose_power(&mut self.random);
    }

    /// Lets the next sync of the store fail, and waits until it has.
    async fn fail_sync(&mut self) {
        let disk = self.disk.as_ref().expect("the engine has a disk");
        let before = disk.failed();
        disk.fail_syncs(1);
        let deadline = Instant::now() + Duration::from_secs(5);
        while disk.failed() == before && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        disk.fail_syncs(0);
        self.tally.failed_syncs += (disk.failed() - before) as usize;
    }

    fn launch(&mut self, server: usize) {
        let own = &mut self.servers[server];
        let log = File::options().create(true).append(true).open(&own.log);
        let mut command = Command::new(pointsman_harness::program());
        command
            .arg("apiserver")
            .arg("--data-dir")
            .arg(&own.data)
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", own.port))
            .arg(pointsman_harness::BARE)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a file in a temporary directory"))
            .kill_on_drop(true);
        if let Some(etcd) = &self.etcd {
            command.arg("--store").arg(format!("etcd={}", etcd.url()));
        }
        if let Some(disk) = &self.disk {
            command.envs(disk.environment());
        }
        own.process = Some(command.spawn().expect("the program was built"));
    }

    async fn until_ready(&mut self, server: usize) {
        let deadline = Instant::now() + READY;
        loop {
            if self.answers(server).await {
                self.servers[server].starts.send_modify(|starts| *starts += 1);
                return;
            }
            let process = self.servers[server].process.as_mut().expect("it was launched");
            if let Ok(Some(status)) = process.try_wait() {
                // It cannot do without its etcd, and may give up when that is gone.
                assert!(
                    self.etcd.is_some(),
                    "after {:?} the server ended: {status}\n{}",
                    self.last,
                    self.log(server)
                );
                self.tally.ended += 1;
                self.launch(server);
            }
            assert!(
                Instant::now() < deadline,
                "after {:?} the server is not ready\n{}",
                self.last,
                self.log(server)
            );
            tokio::time::sleep(POLL).await;
        }
    }

    async fn answers(&self, server: usize) -> bool {
        let Some(http) = self.http(server).await else {
            return false;
        };
        let answer = tokio::time::timeout(Duration::from_secs(2), http.try_get("/readyz")).await;
        matches!(answer, Ok(Ok(answer)) if answer.code == 200)
    }

    async fn http(&self, server: usize) -> Option<Http> {
        let kubeconfig = Kubeconfig::read_from(self.servers[server].data.join("admin.kubeconfig")).ok()?;
        Http::try_new(kubeconfig).await.ok()
    }

    /// What the servers logged that they should not have.
    pub fn complaints(&self) -> Vec<String> {
        let logs = (0..self.servers.len()).map(|server| self.log(server));
        logs.filter(|log| log.contains("panicked")).collect()
    }

    fn log(&self, server: usize) -> String {
        let log = std::fs::read_to_string(&self.servers[server].log).unwrap_or_default();
        let start = log.find("panicked").unwrap_or(log.len()).saturating_sub(200);
        let lines: Vec<&str> = log.get(start..).unwrap_or(&log).lines().take(20).collect();
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        if lines.is_empty() {
            last.into_iter().rev().collect::<Vec<_>>().join("\n")
        } else {
            lines.join("\n")
        }
    }
}

async fn freeze(process: Option<u32>, long: Duration) {
    let pid = process.and_then(|id| Pid::from_raw(id.cast_signed()));
    let Some(pid) = pid else { return };
    if kill_process(pid, Signal::STOP).is_ok() {
        tokio::time::sleep(long).await;
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// A free port that the system does not hand out to outgoing connections.
fn quiet_port() -> u16 {
    loop {
        let port = fastrand::u16(15_000..30_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
