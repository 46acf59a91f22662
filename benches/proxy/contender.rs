//! The proxies under measurement, and what they cost.

use crate::cluster::{SERVER, Server};
use pointsman_benches::process::usage;
use pointsman_testkit::netns::Namespace;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    Nftables,
    IptablesNft,
    IptablesLegacy,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Nftables, Self::IptablesNft, Self::IptablesLegacy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::IptablesNft => "iptables-nft",
            Self::IptablesLegacy => "iptables-legacy",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == text)
    }

    fn flag(self) -> &'static str {
        if self == Self::Nftables {
            "nftables"
        } else {
            "iptables"
        }
    }
}

/// Who writes rules.
#[derive(Clone, Debug)]
pub struct Contender {
    pub name: &'static str,
    pub mode: Mode,
    program: String,
    ours: bool,
    gates: &'static str,
}

impl Contender {
    pub fn ours(program: &str, mode: Mode) -> Self {
        Self {
            name: "pointsman",
            mode,
            program: program.to_owned(),
            ours: true,
            gates: "",
        }
    }

    /// As it would be without KEP-3453: all rules are written at each sync.
    pub fn with_complete_restores(self) -> Self {
        Self {
            name: "pointsman, gate off",
            gates: "MinimizeIPTablesRestore=false",
            ..self
        }
    }

    pub fn peer(program: &str, mode: Mode) -> Self {
        Self {
            name: "kube-proxy",
            mode,
            program: program.to_owned(),
            ours: false,
            gates: "",
        }
    }

    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Both are told the same; batching is switched off.
    fn command(&self, kubeconfig: &Path, programs: &Path) -> Command {
        let mut command = Command::new(&self.program);
        if self.ours {
            command.args(["proxy", "--log=info", "--feature-gates", self.gates]);
        }
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--hostname-override=n1", "--cluster-cidr=11.0.0.0/8"])
            .args(["--iptables-min-sync-period=0s", "--proxy-mode", self.mode.flag()])
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0s",
            ])
            .args(["--conntrack-tcp-timeout-close-wait=0s"])
            .args([
                "--metrics-bind-address=127.0.0.1:10249",
                "--healthz-bind-address=127.0.0.1:10256",
            ]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
        command.env_remove("KUBECONFIG");
        command
    }
}

/// A network namespace for a proxy, and the proxy.
pub struct Node {
    pub space: Namespace,
    contender: Contender,
    process: Option<Child>,
    started: SystemTime,
    log: std::path::PathBuf,
    programs: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
    /// CPU seconds of earlier processes.
    spent: f64,
}

impl Node {
    /// Makes the namespace, with a route to the server.
    pub fn new(server: &mut Server, contender: &Contender) -> Self {
        let space = Namespace::new().unwrap();
        let (number, id) = (server.next_link(), space.thread_id());
        crate::cluster::ip(&format!(
            "link add to{number} type veth peer name uplink netns {id}"
        ));
        crate::cluster::ip(&format!("addr add 10.201.{number}.1/30 dev to{number}"));
        crate::cluster::ip(&format!("link set to{number} up"));
        space.ip(&format!("addr add 10.201.{number}.2/30 dev uplink"));
        space.ip("link set uplink up");
        space.ip(&format!("route add {SERVER}/32 via 10.201.{number}.1"));
        space.ip("addr add 192.168.0.2/32 dev lo");
        let programs = tempfile::tempdir().unwrap();
        link_variant(programs.path(), contender.mode);
        Self {
            space,
            contender: contender.clone(),
            process: None,
            started: UNIX_EPOCH,
            log: server.file(&format!("proxy-{number}.log")),
            programs,
            kubeconfig: server.kubeconfig(),
            spent: 0.0,
        }
    }

    pub fn launch(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = self.contender.command(&self.kubeconfig, self.programs.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.started = SystemTime::now();
        self.process = Some(self.space.run(move || command.spawn().unwrap()));
    }

    pub fn halt(&mut self) {
        if let Some(mut process) = self.process.take() {
            self.spent += cpu(process.id());
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// CPU seconds of the proxy and the programs it ran.
    pub fn cpu(&self) -> f64 {
        self.spent + self.process.as_ref().map_or(0.0, |process| cpu(process.id()))
    }

    /// CPU seconds in the proxy, and of the programs it ran: outside the kernel, and in it.
    pub fn cpu_shares(&self) -> [f64; 3] {
        let id = self.process.as_ref().expect("it runs").id();
        let [user, system, programs, kernel] = cpu_fields(id);
        [user + system, programs, kernel]
    }

    /// Resident memory now, and the most so far, in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let id = self.process.as_ref().expect("it runs").id();
        let usage = usage(id).unwrap_or_default();
        (usage.rss_bytes as u64, usage.peak_bytes as u64)
    }

    /// The proxy's metrics; nothing if it does not answer yet.
    pub fn metrics(&self) -> String {
        self.space.run(|| get("/metrics").unwrap_or_default())
    }

    /// A stream of commits of ours: the version up to which everything is in the kernel, and when it came.
    pub fn watermarks(&self) -> std::sync::mpsc::Receiver<(Watermark, Instant)> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let stream = self.space.run(|| request("/watermark").unwrap());
        std::thread::spawn(move || {
            for line in stream.lines().map_while(Result::ok) {
                if let Ok(watermark) = serde_json::from_str::<Watermark>(&line)
                    && sender.send((watermark, Instant::now())).is_err()
                {
                    return;
                }
            }
        });
        receiver
    }

    /// What the proxy said last, for failures.
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.halt();
    }
}

/// How far a proxy of ours is.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watermark {
    pub services: Option<u64>,
    pub endpoint_slices: Option<u64>,
}

/// `iptables` and its kin mean the chosen variant for whoever finds them here first.
fn link_variant(directory: &Path, mode: Mode) {
    let (infix, multi) = match mode {
        Mode::Nftables => return,
        Mode::IptablesNft => ("nft", "xtables-nft-multi"),
        Mode::IptablesLegacy => ("legacy", "xtables-legacy-multi"),
    };
    for family in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{multi}");
            let plain = directory.join(format!("{family}{suffix}"));
            let named = directory.join(format!("{family}-{infix}{suffix}"));
            std::os::unix::fs::symlink(&target, plain).unwrap();
            std::os::unix::fs::symlink(&target, named).unwrap();
        }
    }
}

fn request(path: &str) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect("127.0.0.1:10249")?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            break;
        }
    }
    Ok(reader)
}

fn get(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    let mut reader = request(path)?;
    reader.get_ref().set_read_timeout(Some(Duration::from_secs(10)))?;
    reader.read_to_string(&mut text)?;
    Ok(text)
}

/// A series of a metrics page.
pub fn metric(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

/// User and system time of a process and of the children it has waited for.
fn cpu(id: u32) -> f64 {
    cpu_fields(id).iter().sum()
}

/// User and system time of a process, and of the children it has waited for, in seconds.
fn cpu_fields(id: u32) -> [f64; 4] {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    [11, 12, 13, 14].map(|at| {
        let ticks = fields.get(at).and_then(|field| field.parse::<f64>().ok());
        ticks.unwrap_or(0.0) / 100.0
    })
}
