//! A cluster of a user who is not root.

use crate::cluster::{eventually, host_rules};
use crate::traffic::count;
use pointsman_testkit::require_netns;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");
/// The user `nobody`.
const USER: u32 = 65534;

/// The home and the cluster of a user without rights.
struct Nobody {
    home: TempDir,
    name: String,
    up: Option<Child>,
}

impl Nobody {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        // The tree that it was built in may be closed to others.
        std::fs::copy(PROGRAM, home.path().join("program")).unwrap();
        std::os::unix::fs::chown(home.path(), Some(USER), Some(USER)).unwrap();
        Self {
            home,
            name: format!("u{}", std::process::id()),
            up: None,
        }
    }

    fn program(&self) -> String {
        self.home.path().join("program").display().to_string()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", program])
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .env("XDG_RUNTIME_DIR", self.home.path())
            .env("KUBECONFIG", self.home.path().join("data/admin.kubeconfig"))
            .stdin(Stdio::null());
        command
    }

    /// Why this machine cannot run the test.
    fn unable(&self) -> Option<String> {
        let mut tried = self.command("unshare");
        let tried = tried.args(["--user", "--map-root-user", "--net", &self.program(), "--version"]);
        let output = tried.output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then(|| format!("nobody cannot make a user namespace: {said}"))
    }

    fn pointsman(&self, command: &str, arguments: &[&str]) -> Output {
        let mut all = self.command(&self.program());
        all.args([command, "--name", &self.name]).args(arguments);
        all.output().unwrap()
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let mut kubectl = self.command("kubectl");
        let kubectl = kubectl.args(arguments).stdin(Stdio::piped());
        let mut kubectl = kubectl.stdout(Stdio::piped()).spawn().unwrap();
        kubectl.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = kubectl.wait_with_output().unwrap();
        assert!(output.status.success(), "kubectl {arguments:?} {}", self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts it where something is mounted below /tmp that the user cannot take away, which only it sees.
    fn start(&mut self) -> Value {
        let mounted = self.home.path().join("mounted");
        std::fs::create_dir_all(&mounted).unwrap();
        let user = self.command(&self.program());
        let mut up = Command::new("unshare");
        up.args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs tmpfs \"$0\" && exec \"$@\"",
        ])
        .arg(&mounted)
        .arg(user.get_program())
        .args(user.get_args())
        .envs(user.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(self.home.path())
        .stdin(Stdio::null());
        up.args([
            "up",
            "--output=json",
            "--nodes=2",
            "--listen=127.0.0.1:0",
            "--name",
        ]);
        let mut up = up.arg(&self.name).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(up.stdout.take().unwrap()).lines();
        self.up = Some(up);
        for line in lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if line["seconds"].is_number() {
                return line;
            }
        }
        panic!("it ended before it was ready {}", self.logs());
    }

    fn logs(&self) -> String {
        let logs = std::fs::read_dir(self.home.path().join("data/logs"));
        let mut text = String::new();
        for path in logs.into_iter().flatten().flatten().map(|entry| entry.path()) {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(8).collect();
            text += &format!("\n{}: {last:#?}", path.display());
        }
        text
    }

    fn has_link(&self) -> bool {
        let output = Command::new("ip").args(["-o", "link"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&self.name)
    }

    /// Processes that have to do with the cluster.
    fn processes(&self) -> Vec<String> {
        let listed = Command::new("ps").args(["-eo", "user:16,args"]).output().unwrap();
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let home = self.home.path().display().to_string();
        let is_ours = |line: &&str| line.contains(&home) || line.contains(&self.name);
        text.lines().filter(is_ours).map(str::to_owned).collect()
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        if let Some(mut up) = self.up.take() {
            self.pointsman("down", &[]);
            let _ = up.kill();
            let _ = up.wait();
        }
    }
}

/// Two pods behind a Service.
fn web() -> String {
    let labels = json!({ "app": "web" });
    let container = json!({
        "name": "web", "image": "host", "command": [PROGRAM, "serve-http"],
        "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    format!("{deployment}\n---\n{service}\n")
}

#[test]
fn a_user_runs_a_cluster_in_a_user_namespace_and_nothing_is_left_of_it() {
    require_netns!();
    let mut nobody = Nobody::new();
    if let Some(reason) = nobody.unable() {
        return pointsman_testkit::skip::skip(&reason);
    }
    let rules = host_rules();
    let facts = nobody.start();
    assert_eq!(facts["rootless"], true);
    assert!(!nobody.has_link(), "the host gets no link");

    nobody.kubectl(&["create", "-f", "-"], &web());
    nobody.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"], "");
    let address = nobody.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"], "");
    let target = format!("--target={address}:80");
    let program = nobody.program();
    for node in ["n1", "n2"] {
        let load = [
            node,
            "--",
            &program,
            "load",
            &target,
            "--rate=20",
            "--duration=500ms",
        ];
        eventually("every request is answered", || {
            let (answered, failed) = count(&nobody.pointsman("exec", &load).stdout);
            (answered > 5 && failed == 0).then_some(())
        });
    }
    let pod = nobody.kubectl(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"], "");
    let seen = nobody.pointsman("exec", &[&pod, "--", "hostname"]);
    assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), pod, "{seen:?}");
    let status = nobody.pointsman("status", &["--output=json"]);
    let said: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (status.status.code(), &said[0]["well"]),
        (Some(0), &json!(true)),
        "{said:#}"
    );
    assert!(said[0]["memoryBytes"].as_u64() > Some(1 << 20), "{said:#}");
    let page = facts["page"].as_str().unwrap();
    let page = page.trim_start_matches("http://").trim_end_matches('/');
    std::net::TcpStream::connect(page).expect("the page can be reached from outside");
    assert_eq!(host_rules(), rules, "the host's firewall is not touched");

    let mut up = nobody.up.take().unwrap();
    up.kill().unwrap();
    up.wait().unwrap();
    eventually("all of it ends with the process outside", || {
        nobody.processes().is_empty().then_some(())
    });

    nobody.start();
    let kept = nobody.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"], "");
    assert_eq!(kept, address);
    let down = nobody.pointsman("down", &[]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(nobody.up.take().unwrap().wait().unwrap().success());
    assert_eq!(nobody.processes(), Vec::<String>::new());
    assert_eq!(host_rules(), rules);
    assert!(
        !Path::new(nobody.home.path()).join("pointsman").exists(),
        "no record is left"
    );
}

#[test]
fn a_kernel_that_refuses_user_namespaces_is_told_with_the_setting_that_helps() {
    require_netns!();
    let nobody = Nobody::new();
    if let Some(reason) = nobody.unable() {
        return pointsman_testkit::skip::skip(&reason);
    }
    // The limit of a user namespace holds for those made in it, so that the machine's own can stay.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec {} up",
        nobody.program()
    );
    let mut tried = nobody.command("unshare");
    let output = tried
        .args(["--user", "--map-user=1000", "--map-group=1000", "--keep-caps"])
        .args(["sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("user.max_user_namespaces=1000"), "{said}");
}
