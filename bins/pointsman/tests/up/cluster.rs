//! A cluster of a test's own.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test; `POINTSMAN_PROGRAM` names another build of it, for measurements.
pub fn program() -> String {
    let built = env!("CARGO_BIN_EXE_pointsman");
    std::env::var("POINTSMAN_PROGRAM").unwrap_or_else(|_| built.to_owned())
}

/// A running `pointsman up`.
pub struct Cluster {
    pub name: String,
    home: TempDir,
    process: Option<Child>,
    /// What every command is started by, if it sees other mounts than the test.
    through: Vec<String>,
    /// The latency profile that it starts with; the whole suite can be run under one.
    pub profile: Option<String>,
    /// What it said when it was ready.
    pub facts: Value,
}

impl Cluster {
    /// Starts a cluster and returns when it is ready.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_through(Vec::new(), flags)
    }

    /// The same by way of another program, such as `nsenter`.
    pub fn start_through(through: Vec<String>, flags: &[&str]) -> Self {
        let mut cluster = Self::not_started();
        cluster.through = through;
        cluster.start_again(flags);
        cluster
    }

    /// A cluster that has a name and a place for its data.
    pub fn not_started() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            name: format!("t{}-{count}", std::process::id()),
            home: tempfile::tempdir().unwrap(),
            process: None,
            through: Vec::new(),
            profile: std::env::var("POINTSMAN_TEST_LATENCY_PROFILE").ok(),
            facts: Value::Null,
        }
    }

    /// Starts it again on the same data; returns the lines it said until it was ready.
    pub fn start_again(&mut self, flags: &[&str]) -> Vec<Value> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("up.log"))
            .unwrap();
        let mut process = self
            .command(&program())
            .args(["up", "--output=json", "--name", &self.name, "--data-dir"])
            .arg(self.data_dir())
            .args(
                self.profile
                    .as_ref()
                    .map(|profile| format!("--latency-profile={profile}")),
            )
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(log)
            // As a shell does it, so that Ctrl-C can be for it and its children alone.
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        self.process = Some(process);
        let mut said: Vec<Value> = Vec::new();
        for line in lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let is_ready = line["seconds"].is_number();
            said.push(line);
            if is_ready {
                self.facts = said.last().unwrap().clone();
                return said;
            }
        }
        panic!("it ended before it was ready: {said:#?}\n{}", self.logs());
    }

    /// A directory of the cluster's own.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Kills `up` itself, as a crash would.
    pub fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Asks it to stop and waits for it.
    pub fn terminate(&mut self) {
        let mut process = self.process.take().unwrap();
        let pid = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(process.wait().unwrap().success(), "{}", self.logs());
    }

    /// Does what Ctrl-C in its terminal does, and waits for it.
    pub fn interrupt(&mut self) {
        let mut process = self.process.take().unwrap();
        let group = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        assert!(process.wait().unwrap().success(), "{}", self.logs());
    }

    /// What `up` itself said on its standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.home.path().join("up.log")).unwrap_or_default()
    }

    /// A command that sees the mounts that the cluster sees.
    pub fn command(&self, program: &str) -> Command {
        let mut words = self.through.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        command
    }

    /// Runs another command of ours on this cluster.
    pub fn pointsman(&self, command: &str, arguments: &[&str]) -> Output {
        self.command(&program())
            .args([command, "--name", &self.name])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs kubectl and returns what it printed; panics if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_with(arguments, "")
    }

    /// The same with a file on standard input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> String {
        use std::io::Write;
        let mut process = Command::new("kubectl")
            .env("KUBECONFIG", self.data_dir().join("admin.kubeconfig"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is installed");
        process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {errors}\n{}",
            self.logs()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Everything of this cluster that is in the kernel or runs.
    pub fn traces(&self) -> Vec<String> {
        let shell = |script: &str| {
            let output = self.command("sh").args(["-c", script]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let link = format!("pm-{}", self.name);
        let data = self.data_dir().canonicalize().unwrap_or_else(|_| self.data_dir());
        let data = data.display().to_string();
        let everything = [
            ("namespace", shell("ls /run/netns 2>/dev/null")),
            ("link", shell("ip -o link")),
            ("route", shell("ip route")),
            ("mount", shell("cat /proc/self/mounts")),
            ("process", shell("ps -eo args")),
            ("record", shell("ls /run/pointsman 2>/dev/null")),
        ];
        let mut traces = Vec::new();
        for (kind, text) in everything {
            let ours = |line: &&str| {
                line.contains(&format!("{}-", self.name))
                    || line.contains(&data)
                    || line.contains(&link)
                    || *line == self.name
            };
            traces.extend(text.lines().filter(ours).map(|line| format!("{kind} {line}")));
        }
        traces
    }

    /// How many containers run with this cluster's files.
    pub fn containers_running(&self) -> usize {
        let data = self.data_dir().canonicalize().unwrap().display().to_string();
        let listed = Command::new("ps").args(["-eo", "args"]).output().unwrap();
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let is_shim = |line: &&str| line.contains(" shim ") && line.contains(&data);
        text.lines().filter(is_shim).count()
    }

    fn logs(&self) -> String {
        let mut paths = vec![self.home.path().join("up.log")];
        let more = std::fs::read_dir(self.data_dir().join("logs"))
            .into_iter()
            .flatten();
        paths.extend(more.flatten().map(|entry| entry.path()));
        let mut text = String::new();
        for path in paths {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            text += &format!("--- {}\n{}\n", path.display(), tail.join("\n"));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        let down = self.pointsman("down", &[]);
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if !std::thread::panicking() {
            assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
        }
    }
}

/// The host's own rules.
pub fn host_rules() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asks again and again until it is so.
pub fn eventually<T>(what: &str, is_so: impl FnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, is_so)
}

/// The same for something that takes longer.
pub fn eventually_within<T>(patience: Duration, what: &str, mut is_so: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = is_so() {
            return value;
        }
        assert!(started.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
