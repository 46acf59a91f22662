//! A node's network without a node: roles run in it, and pods' addresses answer there.
//!
//! Sockets belong to the network in which they were made, so a listener inside and a connection outside are
//! all it takes to give the roles their API server, wherever that is.

use kube::config::Kubeconfig;
use pointsman_fabric::Netns;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// The network with all that runs in it.
pub struct Lab {
    netns: Netns,
    home: TempDir,
    kubeconfig: PathBuf,
    roles: Vec<Child>,
}

impl Lab {
    /// A network in which every address answers on port 8080 with its own name.
    pub fn new(kubeconfig: &Path, addresses: &[&str]) -> Self {
        let netns = Netns::anonymous().unwrap();
        let home = tempfile::tempdir().unwrap();
        let sh = |script: &str| {
            let status = netns.command("sh").args(["-c", script]).status().unwrap();
            assert!(status.success(), "{script}");
        };
        for address in addresses {
            sh(&format!("ip addr add {address}/32 dev lo"));
        }
        // Without a route, packets to a cluster address would end before they meet a rule.
        sh(&format!("ip route add default dev lo src {}", addresses[0]));
        for address in addresses {
            let listener = bind(&netns, &format!("{address}:8080"));
            let name = (*address).to_owned();
            std::thread::spawn(move || answer(&listener, &name));
        }
        let inside = relayed(&netns, kubeconfig, home.path());
        Self {
            netns,
            home,
            kubeconfig: inside,
            roles: Vec::new(),
        }
    }

    /// Starts a role inside.
    pub fn start(&mut self, name: &str, role: &str, arguments: &[&str]) {
        let log = File::create(self.home.path().join(format!("{name}.log"))).unwrap();
        let child = self
            .netns
            .command(PROGRAM)
            .arg(role)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.roles.push(child.unwrap());
    }

    /// Runs a command of ours inside and returns what it printed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let mut command = self.netns.command(PROGRAM);
        let output = command
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .unwrap();
        if !output.status.success() {
            eprintln!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).unwrap()
    }

    /// The names of those who answer at port 80 of an address, in order; nobody is asked after a failure.
    pub fn who_answers(&self, address: &str, times: usize) -> Vec<String> {
        let target: SocketAddr = format!("{address}:80").parse().unwrap();
        let asked = self.netns.run(|| {
            let answers = (0..times).map_while(|_| ask(target, b"").ok());
            answers.collect::<std::collections::BTreeSet<String>>()
        });
        asked.unwrap().into_iter().collect()
    }

    /// A page of somebody inside.
    pub fn get(&self, address: &str, path: &str) -> Option<String> {
        let target: SocketAddr = address.parse().unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        self.netns.run(|| ask(target, request.as_bytes())).unwrap().ok()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for role in &mut self.roles {
            let _ = role.kill();
            let _ = role.wait();
        }
        if std::thread::panicking() {
            for entry in std::fs::read_dir(self.home.path())
                .into_iter()
                .flatten()
                .flatten()
            {
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == "log") {
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    let last: Vec<&str> = text.lines().rev().take(15).collect();
                    eprintln!("{}: {last:#?}", path.display());
                }
            }
        }
    }
}

fn bind(netns: &Netns, address: &str) -> TcpListener {
    netns.run(|| TcpListener::bind(address)).unwrap().unwrap()
}

fn answer(listener: &TcpListener, name: &str) {
    for stream in listener.incoming().flatten() {
        let mut stream = stream;
        let _ = stream.write_all(name.as_bytes());
    }
}

fn ask(target: SocketAddr, request: &[u8]) -> std::io::Result<String> {
    let patience = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&target, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(request)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A kubeconfig for the inside, where a listener leads to the server outside.
fn relayed(netns: &Netns, kubeconfig: &Path, home: &Path) -> PathBuf {
    let mut config = Kubeconfig::read_from(kubeconfig).unwrap();
    let context = config
        .current_context
        .clone()
        .expect("the kubeconfig has a current context");
    let context = config
        .contexts
        .iter()
        .find(|named| named.name == context)
        .expect("it exists");
    let name = context
        .context
        .as_ref()
        .expect("it says something")
        .cluster
        .clone();
    let cluster = config.clusters.iter_mut().find(|named| named.name == name);
    let cluster = cluster
        .and_then(|named| named.cluster.as_mut())
        .expect("it names a cluster");
    let server: http::Uri = cluster
        .server
        .as_deref()
        .expect("the cluster has a server")
        .parse()
        .unwrap();
    let host = server
        .host()
        .expect("the server has a host")
        .trim_matches(['[', ']'])
        .to_owned();
    let port = server.port_u16().unwrap_or(443);
    let target = (host.as_str(), port)
        .to_socket_addrs()
        .unwrap()
        .next()
        .expect("the host has an address");
    let listener = bind(netns, "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    cluster.server = Some(format!("https://{address}"));
    cluster.tls_server_name.get_or_insert(host);
    std::thread::spawn(move || relay(&listener, target));
    let path = home.join("kubeconfig");
    std::fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
    path
}

fn relay(listener: &TcpListener, target: SocketAddr) {
    for inside in listener.incoming().flatten() {
        let Ok(outside) = TcpStream::connect(target) else {
            continue;
        };
        for (mut from, mut to) in [
            (inside.try_clone().unwrap(), outside.try_clone().unwrap()),
            (outside, inside),
        ] {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
        }
    }
}
