//! How does a test get a server of its own?
//!
//! Every test starts the real program on a temporary directory and a free port, talks to it through real
//! sockets and kills it at the end. Nothing here knows how the server works inside.

use crate::wire::Http;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// How long anything that should happen at once may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);
/// For tests that count ConfigMaps: the server makes none of its own.
pub const BARE: &str = "--publish-root-ca=false";
const POLL: Duration = Duration::from_millis(20);

/// A running `pointsman apiserver`.
pub struct Server {
    process: Option<Child>,
    home: TempDir,
    data_dir: PathBuf,
    listen: String,
    flags: Vec<String>,
    /// How many files and connections it may have open, if fewer than usual.
    descriptors: Option<u32>,
}

impl Server {
    /// Starts a server that can have only so many files and connections open.
    pub async fn start_with_descriptors(descriptors: u32) -> Self {
        Self::launch_new(&[], None, "127.0.0.1:0".into(), Some(descriptors)).await
    }

    /// Starts a server on a port that the system picks; returns when it is ready.
    pub async fn start(flags: &[&str]) -> Self {
        Self::start_at(flags, None, "127.0.0.1:0".into()).await
    }

    /// Starts a server that comes back at the same address when it is restarted.
    pub async fn start_to_be_restarted(flags: &[&str]) -> Self {
        Self::start_at(flags, None, format!("127.0.0.1:{}", quiet_port())).await
    }

    /// The same with a data directory of the test's choice.
    pub async fn start_in(data_dir: &Path, flags: &[&str]) -> Self {
        Self::start_at(
            flags,
            Some(data_dir.to_owned()),
            format!("127.0.0.1:{}", quiet_port()),
        )
        .await
    }

    async fn start_at(flags: &[&str], data_dir: Option<PathBuf>, listen: String) -> Self {
        Self::launch_new(flags, data_dir, listen, None).await
    }

    async fn launch_new(
        flags: &[&str],
        data_dir: Option<PathBuf>,
        listen: String,
        descriptors: Option<u32>,
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let data_dir = data_dir.unwrap_or_else(|| home.path().join("data"));
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = Self {
            process: None,
            home,
            data_dir,
            listen,
            flags,
            descriptors,
        };
        server.launch().await;
        server
    }

    /// Starts the program again after [`Server::kill`] or [`Server::terminate`].
    pub async fn launch(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        // An old file may name an old port.
        let _ = std::fs::remove_file(self.kubeconfig());
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .unwrap();
        let mut command = match self.descriptors {
            None => Command::new(crate::program()),
            Some(most) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {most} && exec \"$0\" \"$@\"")]);
                shell.arg(crate::program());
                shell
            }
        };
        let process = command
            .arg("apiserver")
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen", &self.listen])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.process = Some(process);
        self.wait_until_ready().await;
    }

    /// Starts the program again where clients of the old address do not find it.
    pub async fn launch_hidden(&mut self) {
        let listen = std::mem::replace(&mut self.listen, "127.0.0.1:0".into());
        self.launch().await;
        self.listen = listen;
    }

    async fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + SOON;
        loop {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
            assert!(
                Instant::now() < deadline,
                "the server did not get ready\n{}",
                self.log()
            );
            if self.answers_ready().await.unwrap_or(false) {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn answers_ready(&self) -> Result<bool, Box<dyn std::error::Error>> {
        let http = Http::try_new(Kubeconfig::read_from(self.kubeconfig())?).await?;
        Ok(http.try_get("/readyz").await?.code == 200)
    }

    /// Changes the flags that the next start uses.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Ends the server as `kill -9` does.
    pub async fn kill(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        process.kill().await.unwrap();
    }

    /// Ends the server as a service manager does; it has to end by itself, with success.
    pub async fn terminate(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        kill_process(pid(&process), Signal::TERM).unwrap();
        let ended = tokio::time::timeout(SOON, process.wait()).await;
        let ended = ended
            .unwrap_or_else(|_| panic!("SIGTERM was ignored\n{}", self.log()))
            .unwrap();
        assert!(ended.success(), "{ended}\n{}", self.log());
    }

    /// Lets the server do nothing until it is thawed.
    pub fn freeze(&self) {
        let process = self.process.as_ref().expect("the server runs");
        kill_process(pid(process), Signal::STOP).unwrap();
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        let process = self.process.as_ref().expect("the server runs");
        kill_process(pid(process), Signal::CONT).unwrap();
    }

    /// Waits until the server has ended by itself; returns its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let mut process = self.process.take().expect("the server runs");
        let ended = tokio::time::timeout(SOON, process.wait()).await;
        ended.expect("the server ends").unwrap().code()
    }

    /// Stops and starts the server.
    pub async fn restart(&mut self) {
        self.terminate().await;
        self.launch().await;
    }

    /// Restarts until history before `version` is compacted and no longer in memory, so that a list of
    /// `path` at that version is refused. Needs a short `--etcd-compaction-interval`.
    pub async fn restart_until_forgotten(&mut self, path: &str, version: &str) {
        let deadline = Instant::now() + SOON;
        while !self.has_forgotten(path, version).await {
            assert!(Instant::now() < deadline, "version {version} is still known");
            self.restart().await;
        }
    }

    /// The same for a server that was started by [`Server::launch_hidden`].
    pub async fn hide_until_forgotten(&mut self, path: &str, version: &str) {
        let deadline = Instant::now() + SOON;
        while !self.has_forgotten(path, version).await {
            assert!(Instant::now() < deadline, "version {version} is still known");
            self.terminate().await;
            self.launch_hidden().await;
        }
    }

    async fn has_forgotten(&self, path: &str, version: &str) -> bool {
        // Compaction keeps what is younger than its interval.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let exact = format!("{path}?resourceVersion={version}&resourceVersionMatch=Exact");
        self.admin().await.get(&exact).await.code == 410
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most resident memory so far, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let id = self
            .process
            .as_ref()
            .and_then(Child::id)
            .expect("the server runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Where the server's files are.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("admin.kubeconfig")
    }

    /// Where the server listens.
    pub fn address(&self) -> String {
        let config = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        let server = config.clusters[0]
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.server.clone());
        server.unwrap().trim_start_matches("https://").to_owned()
    }

    /// Requests as the administrator.
    pub async fn admin(&self) -> Http {
        Http::try_new(Kubeconfig::read_from(self.kubeconfig()).unwrap())
            .await
            .unwrap()
    }

    /// Requests as whoever a kubeconfig file in `kubeconfigs/` speaks for.
    pub async fn role(&self, role: &str) -> Http {
        let path = self
            .data_dir
            .join("kubeconfigs")
            .join(format!("{role}.kubeconfig"));
        Http::try_new(Kubeconfig::read_from(path).unwrap()).await.unwrap()
    }

    /// Requests with a bearer token; with none, as nobody.
    pub async fn with_token(&self, token: Option<&str>) -> Http {
        Http::try_new(self.token_config(token)).await.unwrap()
    }

    fn token_config(&self, token: Option<&str>) -> Kubeconfig {
        let admin = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        let cluster = admin.clusters[0].cluster.as_ref().unwrap();
        let user = token.map_or(json!({}), |token| json!({"token": token}));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {
                "server": cluster.server,
                "certificate-authority-data": cluster.certificate_authority_data,
            }}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        serde_json::from_value(config).unwrap()
    }

    /// A kube client as the administrator, without retries of its own.
    pub async fn client(&self) -> kube::Client {
        let config = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
            .await
            .unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// A kubectl command line as the administrator, with its own home directory.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.home.path().join("kube-cache"))
            .current_dir(self.home.path())
            .kill_on_drop(true);
        command
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("server.log")
    }

    /// The last lines that the server logged.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = self.process.as_mut() {
            let _ = process.start_kill();
            // Its files can only be removed once it is gone.
            let deadline = Instant::now() + SOON;
            while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{}\n---", self.log());
        } else {
            assert!(!log.contains("panicked"), "the server panicked\n{}", self.log());
        }
    }
}

fn pid(process: &Child) -> Pid {
    let id = process.id().expect("the process was not waited for");
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

/// A free port that the system does not hand out to outgoing connections, so that nobody takes it while
/// the server is down.
pub fn quiet_port() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    loop {
        let random = RandomState::new().hash_one(std::process::id());
        let port = 15_000 + u16::try_from(random % 15_000).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Tries until `attempt` gives a value; says what did not come true otherwise.
pub async fn eventually<T, F: AsyncFnMut() -> Option<T>>(what: &str, mut attempt: F) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < deadline, "did not come true in {SOON:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// A token file of `(token, user, groups)`.
pub fn token_file(dir: &Path, users: &[(&str, &str, &str)]) -> String {
    let path = dir.join("tokens.csv");
    let lines: Vec<String> = users
        .iter()
        .map(|(token, user, groups)| format!("{token},{user},uid-{user},\"{groups}\""))
        .collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A small pod.
pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "host"}]},
    })
}

/// A small ConfigMap.
pub fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})
}
