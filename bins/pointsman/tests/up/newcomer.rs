//! Does what people try first with kubectl work, or is it refused in one clear sentence?

use crate::cluster::{Cluster, eventually, program};
use pointsman_harness::containerd::{BUSYBOX, busybox};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

type Try = fn(&Newcomer);

/// What people try, in this order. They do it in one cluster, since the first pods serve what follows.
const LIST: [(&str, Try); 15] = [
    ("a Deployment", deployment),
    ("logs", logs),
    ("exec", exec),
    ("cp", cp),
    ("port-forward", port_forward),
    ("run and attach", run_and_attach),
    ("a Secret and a ConfigMap", mounted),
    ("scale and a rolling update", roll),
    ("a StatefulSet", stateful_set),
    ("a Job", job),
    ("a CronJob", cron_job),
    ("a custom resource", custom),
    ("debug", debug),
    ("top", top),
    ("describe and delete", farewell),
];

/// Serves one page on port 8080, and says hello in its log.
const WEB: &str =
    "echo hello; mkdir -p /www; echo page > /www/index.html; exec busybox httpd -f -p 8080 -h /www";

struct Newcomer {
    cluster: Cluster,
    /// What the runtime runs.
    image: &'static str,
}

impl Newcomer {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env("KUBECONFIG", self.cluster.data_dir().join("admin.kubeconfig"))
            .args(arguments);
        command
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(arguments)
    }

    fn apply(&self, objects: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.cluster
            .kubectl_with(&["apply", "-f", "-"], &list.to_string());
    }

    fn wait(&self, condition: &str, object: &str) {
        self.kubectl(&["wait", &format!("--for={condition}"), "--timeout=60s", object]);
    }

    /// The one line in which it is refused.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    fn container(&self, script: &str) -> Value {
        json!({ "name": "main", "image": self.image, "command": ["sh", "-c", script] })
    }

    /// What pods are made of that live until they are deleted.
    fn template(&self, app: &str, script: &str) -> Value {
        json!({
            "metadata": { "labels": { "app": app } },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [self.container(script)] },
        })
    }
}

fn deployment(new: &Newcomer) {
    let mut template = new.template("web", WEB);
    template["spec"]["containers"][0]["readinessProbe"] =
        json!({ "httpGet": { "port": 8080 }, "periodSeconds": 1 });
    new.apply(&[json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": template },
    })]);
    new.wait("condition=Available", "deployment/web");
    new.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
}

fn logs(new: &Newcomer) {
    assert_eq!(new.kubectl(&["logs", "deployment/web"]), "hello\n");
    assert_eq!(
        new.kubectl(&["logs", "--selector=app=web", "--tail=1"]),
        "hello\n"
    );
}

fn exec(new: &Newcomer) {
    assert_eq!(
        new.kubectl(&["exec", "deployment/web", "--", "cat", "/www/index.html"]),
        "page\n"
    );
    let mut command = new.command(&["exec", "deployment/web", "--", "sh", "-c", "exit 3"]);
    assert_eq!(command.output().unwrap().status.code(), Some(3));
}

fn cp(new: &Newcomer) {
    let (there, back) = (new.cluster.home().join("there"), new.cluster.home().join("back"));
    fs::write(&there, "copied\n").unwrap();
    let pod = new.kubectl(&[
        "get",
        "pods",
        "--selector=app=web",
        "--output=jsonpath={.items[0].metadata.name}",
    ]);
    new.kubectl(&["cp", there.to_str().unwrap(), &format!("{pod}:/www/copied")]);
    new.kubectl(&["cp", &format!("{pod}:/www/copied"), back.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(back).unwrap(), "copied\n");
}

/// A program that runs beside the test.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn port_forward(new: &Newcomer) {
    for target in ["deployment/web", "service/web"] {
        let ports = if target == "service/web" { ":80" } else { ":8080" };
        let mut forward = new.command(&["port-forward", "--address=127.0.0.1", target, ports]);
        let mut forward = Beside(forward.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        // It says more later, and ends when nobody reads it.
        let mut said = BufReader::new(forward.0.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let port = line.strip_prefix("Forwarding from 127.0.0.1:").expect(&line);
        let port = port.split(' ').next().unwrap();
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "10", &format!("http://127.0.0.1:{port}/")]);
        assert_eq!(curl.output().unwrap().stdout, b"page\n", "{target}");
    }
}

fn run_and_attach(new: &Newcomer) {
    let ask = "read name; echo hello $name";
    let flags = [
        "run",
        "asked",
        "--restart=Never",
        "--stdin",
        "--quiet",
        "--rm",
        "--command",
        "--image",
        new.image,
    ];
    let said = new
        .cluster
        .kubectl_with(&[&flags[..], &["--", "sh", "-c", ask]].concat(), "you\n");
    assert!(said.starts_with("hello you\n"), "{said}");
}

fn mounted(new: &Newcomer) {
    new.kubectl(&["create", "configmap", "settings", "--from-literal=colour=green"]);
    new.kubectl(&[
        "create",
        "secret",
        "generic",
        "password",
        "--from-literal=word=sesame",
    ]);
    let mut container = new.container("cat /settings/colour /password/word; echo; echo $WORD");
    container["env"] =
        json!([{ "name": "WORD", "valueFrom": { "secretKeyRef": { "name": "password", "key": "word" } } }]);
    container["volumeMounts"] = json!([
        { "name": "settings", "mountPath": "/settings" },
        { "name": "password", "mountPath": "/password", "readOnly": true },
    ]);
    new.apply(&[json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "reader" },
        "spec": {
            "restartPolicy": "Never", "containers": [container],
            "volumes": [
                { "name": "settings", "configMap": { "name": "settings" } },
                { "name": "password", "secret": { "secretName": "password" } },
            ],
        },
    })]);
    new.wait("jsonpath={.status.phase}=Succeeded", "pod/reader");
    assert_eq!(new.kubectl(&["logs", "reader"]), "greensesame\nsesame\n");
}

fn roll(new: &Newcomer) {
    new.kubectl(&["scale", "deployment/web", "--replicas=3"]);
    new.kubectl(&["set", "env", "deployment/web", "VERSION=2"]);
    new.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    new.kubectl(&["rollout", "undo", "deployment/web"]);
    new.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let running = new.kubectl(&[
        "get",
        "deployment",
        "web",
        "--output=jsonpath={.status.readyReplicas}",
    ]);
    assert_eq!(running, "3");
}

fn stateful_set(new: &Newcomer) {
    new.apply(&[json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "serviceName": "db", "replicas": 2, "selector": { "matchLabels": { "app": "db" } },
            "template": new.template("db", "exec sleep 1000"),
        },
    })]);
    new.kubectl(&["rollout", "status", "statefulset/db", "--timeout=60s"]);
    assert_eq!(new.kubectl(&["exec", "db-1", "--", "hostname"]), "db-1\n");
}

fn job(new: &Newcomer) {
    new.kubectl(&[
        "create",
        "job",
        "sums",
        "--image",
        new.image,
        "--",
        "sh",
        "-c",
        "echo $((6 * 7))",
    ]);
    new.wait("condition=Complete", "job/sums");
    assert_eq!(new.kubectl(&["logs", "job/sums"]), "42\n");
}

fn cron_job(new: &Newcomer) {
    let create = [
        "create",
        "cronjob",
        "nightly",
        "--schedule=0 3 * * *",
        "--image",
        new.image,
        "--",
        "sh",
        "-c",
        "true",
    ];
    let output = new.command(&create).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        said.starts_with("Warning: ") && said.lines().count() == 1,
        "{said}"
    );
    // By hand it is a Job like any other.
    new.kubectl(&["create", "job", "now", "--from=cronjob/nightly"]);
    new.wait("condition=Complete", "job/now");
}

fn custom(new: &Newcomer) {
    let schema = json!({ "type": "object", "properties": { "spec": {
        "type": "object", "properties": { "size": { "type": "integer", "minimum": 1 } } } } });
    new.apply(&[json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "shirts.example.org" },
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": { "kind": "Shirt", "plural": "shirts", "singular": "shirt" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })]);
    new.wait("condition=Established", "crd/shirts.example.org");
    let shirt = |size: i64| json!({ "apiVersion": "example.org/v1", "kind": "Shirt", "metadata": { "name": "red" }, "spec": { "size": size } });
    new.apply(&[shirt(40)]);
    assert_eq!(
        new.kubectl(&["get", "shirt", "red", "--output=jsonpath={.spec.size}"]),
        "40"
    );
    let file = new.cluster.home().join("shirt.json");
    fs::write(&file, shirt(0).to_string()).unwrap();
    let said = new.refused(&["apply", "-f", file.to_str().unwrap()]);
    assert!(
        said.contains("spec.size") && said.contains("greater than or equal to 1"),
        "{said}"
    );
}

fn debug(new: &Newcomer) {
    let said = new.refused(&[
        "debug",
        "db-0",
        "--container=look",
        "--profile=general",
        "--image",
        new.image,
        "--",
        "sh",
    ]);
    assert!(
        said.contains("ephemeral containers are disabled for this cluster"),
        "{said}"
    );
}

fn top(new: &Newcomer) {
    let nodes = new.kubectl(&["top", "nodes", "--no-headers"]);
    assert!(
        nodes.lines().count() > 0 && nodes.lines().all(|line| line.matches('%').count() == 2),
        "{nodes}"
    );
    // Its own columns are the name, thousandths of a CPU and MiB.
    let pods = new.kubectl(&["top", "pods", "--no-headers"]);
    let database = pods.lines().find(|line| line.starts_with("db-0 "));
    assert!(
        database.is_some_and(|line| line.contains('m') && line.trim_end().ends_with("Mi")),
        "{pods}"
    );
}

fn farewell(new: &Newcomer) {
    let described = new.kubectl(&["describe", "pods", "--selector=app=web"]);
    assert!(
        described.contains("Started") && described.contains(new.image),
        "{described}"
    );
    new.kubectl(&[
        "delete",
        "deployment,statefulset,job,cronjob,pod",
        "--all",
        "--timeout=60s",
    ]);
    eventually("all pods are gone", || {
        new.kubectl(&["get", "pods", "--output=name"])
            .is_empty()
            .then_some(())
    });
}

fn tries_all(new: &Newcomer) {
    for (what, try_it) in LIST {
        // Printed when the test fails, and only then.
        eprintln!("{what}");
        try_it(new);
    }
}

#[test]
fn what_people_try_first_works_with_processes() {
    pointsman_testkit::require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    tries_all(&Newcomer {
        cluster,
        image: "host",
    });
}

#[test]
fn what_people_try_first_works_with_containers() {
    if !rustix::process::geteuid().is_root() {
        return pointsman_testkit::skip::skip("nodes need root");
    }
    let cluster = Cluster::start(&["--nodes=2", "--runtime=containerd"]);
    let archive = cluster.home().join("busybox.tar");
    fs::write(&archive, busybox()).unwrap();
    let mut load = cluster.command(&program());
    load.args(["image", "load", "--name", &cluster.name])
        .arg(&archive);
    assert!(load.status().unwrap().success());
    tries_all(&Newcomer {
        cluster,
        image: BUSYBOX,
    });
}
