//! How are the server and its store started, watched and ended?

use crate::progress;
use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use pointsman_benches::client::Http1;
use pointsman_benches::kubeconfig::{self, Access};
use pointsman_benches::process::{Usage, usage};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long a start may take.
const START: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);

/// Which store is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The one inside the server.
    Embedded,
    /// An etcd beside it.
    Etcd,
}

impl Engine {
    /// As `--store` names it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Embedded => "embedded",
            Engine::Etcd => "etcd",
        }
    }
}

/// What to start, and where.
pub struct Workplace {
    /// The `pointsman` program.
    pub program: PathBuf,
    /// The `etcd` program.
    pub etcd: PathBuf,
    /// A directory on a disk.
    pub scratch: PathBuf,
    /// Which store to use.
    pub engine: Engine,
}

/// A running server. Dropping it ends its processes and removes what they wrote.
pub struct Server {
    /// How to reach it.
    pub access: Access,
    program: PathBuf,
    arguments: Vec<String>,
    child: Child,
    etcd: Option<Child>,
    // Last, so that it is removed after the processes got their signal.
    dir: TempDir,
}

/// What server, store and this load generator have used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usages {
    /// `pointsman apiserver`.
    pub server: Usage,
    /// `etcd`, where there is one.
    pub etcd: Option<Usage>,
    pub client: Usage,
}

impl Server {
    /// Starts the store and the server on empty directories and waits until it is ready.
    pub async fn start(workplace: &Workplace) -> anyhow::Result<Self> {
        let dir = TempDir::with_prefix_in("run-", &workplace.scratch)?;
        let data = dir.path().join("data");
        let mut arguments: Vec<String> = ["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]
            .map(str::to_owned)
            .into();
        arguments.push(data.display().to_string());
        let etcd = match workplace.engine {
            Engine::Embedded => None,
            Engine::Etcd => {
                let (child, url) = start_etcd(&workplace.etcd, dir.path()).await?;
                arguments.extend(["--store".to_owned(), format!("etcd={url}")]);
                Some(child)
            }
        };
        let (child, access) = launch(&workplace.program, &arguments, dir.path()).await?;
        Ok(Self {
            access,
            program: workplace.program.clone(),
            arguments,
            child,
            etcd,
            dir,
        })
    }

    /// Ends the server by `signal`, starts it again on the same data, and says how long it took from
    /// the start of the process until it was ready.
    pub async fn restart(&mut self, signal: Signal) -> anyhow::Result<Duration> {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid as i32))
            .context("the server is gone")?;
        kill_process(pid, signal)?;
        tokio::time::timeout(START, self.child.wait())
            .await
            .context("the server does not stop")??;
        std::fs::remove_file(kubeconfig_path(self.dir.path()))?;
        let started = Instant::now();
        (self.child, self.access) = launch(&self.program, &self.arguments, self.dir.path()).await?;
        Ok(started.elapsed())
    }

    /// What all processes have used so far.
    pub fn usages(&self) -> anyhow::Result<Usages> {
        let of = |child: &Child| usage(child.id().context("a process is gone")?);
        Ok(Usages {
            server: of(&self.child)?,
            etcd: self.etcd.as_ref().map(of).transpose()?,
            client: usage(std::process::id())?,
        })
    }

    /// What the store has on disk.
    pub fn disk_bytes(&self) -> u64 {
        let etcd = self.dir.path().join("etcd");
        size_of(if etcd.exists() { &etcd } else { self.dir.path() })
    }
}

fn size_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => size_of(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

fn kubeconfig_path(dir: &Path) -> PathBuf {
    dir.join("data/admin.kubeconfig")
}

async fn launch(program: &Path, arguments: &[String], dir: &Path) -> anyhow::Result<(Child, Access)> {
    let log = dir.join("server.log");
    let mut child = spawn(Command::new(program).args(arguments), &log)?;
    let path = kubeconfig_path(dir);
    let ready = async {
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("the server ended with {status}: {}", tail(&log));
            }
            // The file may be missing or half written.
            if let Ok(access) = kubeconfig::read(&path)
                && is_ready(&access).await
            {
                return Ok(access);
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let access = tokio::time::timeout(START, ready).await;
    let access = access.unwrap_or_else(|_| bail!("the server does not get ready: {}", tail(&log)))?;
    Ok((child, access))
}

async fn is_ready(access: &Access) -> bool {
    let Ok(mut client) = Http1::connect(access).await else {
        return false;
    };
    client.call(Method::GET, "/readyz", Bytes::new()).await.is_ok()
}

async fn start_etcd(program: &Path, dir: &Path) -> anyhow::Result<(Child, String)> {
    let (clients, peers) = (free_port()?, free_port()?);
    let (url, peer_url) = (
        format!("http://127.0.0.1:{clients}"),
        format!("http://127.0.0.1:{peers}"),
    );
    let log = dir.join("etcd.log");
    let mut command = Command::new(program);
    command
        .args(["--name", "bench", "--data-dir"])
        .arg(dir.join("etcd"));
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args([
        "--listen-peer-urls",
        &peer_url,
        "--initial-advertise-peer-urls",
        &peer_url,
    ]);
    command.args(["--initial-cluster", &format!("bench={peer_url}")]);
    let mut child = spawn(&mut command, &log)?;
    let started = Instant::now();
    while !etcd_is_healthy(clients).await {
        if let Some(status) = child.try_wait()? {
            bail!("etcd ended with {status}: {}", tail(&log));
        }
        if started.elapsed() > START {
            bail!("etcd does not get healthy: {}", tail(&log));
        }
        tokio::time::sleep(POLL).await;
    }
    progress::say("etcd is up");
    Ok((child, url))
}

async fn etcd_is_healthy(port: u16) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.contains(r#""health":"true""#))
    };
    ask.await.unwrap_or(false)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn spawn(command: &mut Command, log: &Path) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    let program = command.as_std().get_program().to_owned();
    let command = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    command
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
