//! Does every role run from the image, with the arguments and the rights of its manifest?
//!
//! The image is made from the program under test, imported into a containerd of the test's own, and its containers run in
//! the network namespace of the node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pointsman_api_client::Resource;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::{Answer, Cluster, Network};
use crate::{POD, SERVICE, eventually, status};

const IMAGE: &str = "docker.io/library/pointsman:test";

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn sure(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A containerd that holds the image.
struct Containerd {
    home: TempDir,
    process: Child,
}

impl Containerd {
    fn with_image() -> Self {
        let home = TempDir::new().unwrap();
        let path = |name: &str| home.path().join(name).display().to_string();
        // Without what debuggers need it is a tenth of the size.
        sure(Command::new("strip").args(["-o", &path("pointsman"), env!("CARGO_BIN_EXE_pointsman")]));
        let architecture = sure(Command::new("dpkg").arg("--print-architecture"));
        let program = format!("{}={}", architecture.trim(), path("pointsman"));
        let tool = project("tools/package.py");
        sure(Command::new("python3").arg(tool).args([
            "image",
            "--program",
            &program,
            "--name",
            IMAGE,
            "--out",
            &path("image.tar"),
        ]));
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {:?}\n",
            path("root"),
            path("state"),
            path("socket"),
        );
        fs::write(path("config.toml"), config).unwrap();
        let process = Command::new("containerd")
            .args(["--config", &path("config.toml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("log")).unwrap())
            .spawn()
            .expect("containerd is installed");
        let this = Self { home, process };
        eventually("containerd answers", || {
            this.ctr(&["version"]).output().unwrap().status.success()
        });
        sure(&mut this.ctr(&["images", "import", &this.path("image.tar")]));
        fs::create_dir(this.path("image")).unwrap();
        sure(&mut this.ctr(&["images", "mount", "--rw", IMAGE, &this.path("image")]));
        this
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.path("socket")).args(arguments);
        command
    }

    /// Runs the container of a folder of `deploy/`, with these files at these places.
    fn run<'a>(&'a self, cluster: &Cluster, folder: &str, files: &[(&str, String)]) -> Container<'a> {
        let manifest = sure(
            Command::new("kubectl")
                .arg("kustomize")
                .arg(project("deploy").join(folder)),
        );
        let objects = manifest
            .split("\n---\n")
            .map(|text| serde_saphyr::from_str(text).unwrap());
        let workload = objects
            .into_iter()
            .find(|object: &Value| object["spec"]["template"].is_object())
            .unwrap();
        let home = self.home.path().join(folder);
        fs::create_dir_all(&home).unwrap();
        let mut mounts = Vec::new();
        for (at, (place, content)) in files.iter().enumerate() {
            let file = home.join(at.to_string());
            fs::write(&file, content).unwrap();
            mounts.push(
                json!({"destination": place, "type": "bind", "source": file, "options": ["bind", "ro"]}),
            );
        }
        sure(Command::new("runc").arg("spec").arg("--bundle").arg(&home));
        let config = home.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        spec["root"]["path"] = json!(self.path("image"));
        let pod = &workload["spec"]["template"]["spec"];
        let directory = format!("/proc/{}/ns/net", cluster.node.thread_id());
        carry_out(&mut spec, pod, &directory);
        spec["mounts"].as_array_mut().unwrap().extend(mounts);
        fs::write(&config, spec.to_string()).unwrap();
        let container = Container {
            containerd: self,
            name: folder.to_owned(),
        };
        let log = format!("file://{}", self.path(&format!("{folder}.log")));
        let config = config.display().to_string();
        sure(&mut self.ctr(&[
            "run",
            "--detach",
            "--log-uri",
            &log,
            "--config",
            &config,
            &container.name,
        ]));
        container
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Best effort: the directory goes, whatever is still mounted in it.
        let _ = self.ctr(&["images", "unmount", &self.path("image")]).output();
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            for log in fs::read_dir(self.home.path()).into_iter().flatten().flatten() {
                if log.path().extension().is_some_and(|extension| extension == "log") {
                    eprintln!(
                        "--- {}\n{}",
                        log.path().display(),
                        fs::read_to_string(log.path()).unwrap_or_default()
                    );
                }
            }
        }
    }
}

struct Container<'a> {
    containerd: &'a Containerd,
    name: String,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        for arguments in [
            ["tasks", "delete", "--force", &self.name],
            ["containers", "delete", &self.name, ""],
        ] {
            let arguments: Vec<&str> = arguments
                .into_iter()
                .filter(|argument| !argument.is_empty())
                .collect();
            let _ = self.containerd.ctr(&arguments).output();
        }
    }
}

/// Puts a pod's arguments and security settings into a specification, as a kubelet and its runtime do.
fn carry_out(spec: &mut Value, pod: &Value, network: &str) {
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    let arguments = container["args"].as_array().unwrap().iter().map(|argument| {
        let argument = argument.as_str().unwrap().replace("$(NODE_NAME)", "n1");
        json!(argument.replace("$(NODE_IP)", "10.0.1.1"))
    });
    let program = std::iter::once(json!("/usr/local/bin/pointsman"));
    spec["process"]["args"] = program.chain(arguments).collect();
    spec["process"]["terminal"] = json!(false);
    spec["process"]["env"] = json!([
        format!("KUBECONFIG={KUBECONFIG}"),
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    ]);
    let user = security["runAsUser"]
        .as_u64()
        .or(pod["securityContext"]["runAsUser"].as_u64())
        .unwrap();
    spec["process"]["user"] = json!({"uid": user, "gid": user});
    let privileged = security["privileged"] == true;
    let mut capabilities: Vec<String> = security["capabilities"]["add"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|name| format!("CAP_{}", name.as_str().unwrap()))
        .collect();
    if privileged {
        capabilities = [
            "CAP_NET_ADMIN",
            "CAP_NET_RAW",
            "CAP_SYS_ADMIN",
            "CAP_DAC_OVERRIDE",
        ]
        .map(str::to_owned)
        .into();
        for field in ["maskedPaths", "readonlyPaths"] {
            spec["linux"][field] = json!([]);
        }
    }
    let sets = ["bounding", "effective", "permitted"].map(|set| (set.to_owned(), json!(capabilities)));
    spec["process"]["capabilities"] = Value::Object(sets.into_iter().collect());
    spec["root"]["readonly"] = security["readOnlyRootFilesystem"].clone();
    for namespace in spec["linux"]["namespaces"].as_array_mut().unwrap() {
        if namespace["type"] == "network" {
            namespace["path"] = json!(network);
        }
    }
    let empty = pod["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| volume["emptyDir"].is_object());
    for volume in empty {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let place = mounts
            .iter()
            .find(|mount| mount["name"] == volume["name"])
            .unwrap();
        let place = json!({"destination": place["mountPath"], "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]});
        spec["mounts"].as_array_mut().unwrap().push(place);
    }
}

const KUBECONFIG: &str = "/var/run/pointsman.kubeconfig";

#[test]
fn every_role_runs_from_the_image_with_the_rights_of_its_manifest() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let cluster = network.start_server();
    cluster.node_object();
    let containerd = Containerd::with_image();
    let kubeconfig = (KUBECONFIG, fs::read_to_string(&cluster.kubeconfig).unwrap());

    let service = cluster.create(Resource::SERVICES, Some("default"), SERVICE);
    let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    cluster.create(Resource::PODS, Some("default"), POD);
    let _controllers = containerd.run(&cluster, "controllers", std::slice::from_ref(&kubeconfig));
    cluster.patch_pod_status("web-1", status("True"));
    let files = |mode: &str| {
        let config = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
             clusterCIDR: 10.0.0.0/16\nclientConnection: {{kubeconfig: {KUBECONFIG}}}\n",
        );
        [("/var/lib/kube-proxy/config.conf", config), kubeconfig.clone()]
    };
    for (folder, mode) in [("proxy", "iptables"), ("proxy-nftables", "nftables")] {
        let proxy = containerd.run(&cluster, folder, &files(mode));
        eventually(&format!("{folder} of the image forwards"), || {
            network.ask(&address, 80) == Answer::Said("10.0.1.5".into())
        });
        drop(proxy);
        // The next one has to write its own rules.
        assert!(cluster.run(&["proxy", "--cleanup"]).status.success());
        assert!(!network.has_rules());
    }
    // Nobody writes rules any more, which an observer can read, and does nothing about.
    let left = network.node.sh("nft --stateless list ruleset");
    let observer = containerd.run(&cluster, "observer", &files("nftables"));
    eventually("the observer of the image misses the rules", || {
        let health = cluster.node.sh("curl -s http://127.0.0.1:10272/healthz || true");
        let health: Value = serde_json::from_str(&health).unwrap_or_default();
        let differs = health["behind"]["differs"].as_str();
        differs.is_some_and(|differs| differs.contains("nat-prerouting"))
    });
    assert_eq!(network.node.sh("nft --stateless list ruleset"), left);
    drop(observer);
    for folder in ["sli", "probe-only"] {
        let token = ("/var/run/secrets/pointsman/token", "token".to_owned());
        let _role = containerd.run(&cluster, folder, &[kubeconfig.clone(), token]);
        eventually(&format!("{folder} of the image is well"), || {
            cluster
                .node
                .sh("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:10271/healthz || true")
                == "200"
        });
    }
}
