//! A cluster whose nodes have a containerd each.

use crate::cluster::{Cluster, eventually};
use pointsman_runtime::cri::archive::{self, Entry};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

#[test]
fn pods_run_from_images_on_all_nodes_and_nothing_of_them_stays() {
    if !rustix::process::geteuid().is_root() {
        return pointsman_testkit::skip::skip("nodes need root");
    }
    let mut cluster = Cluster::start(&["--nodes=2", "--runtime=containerd"]);
    let archives = tempfile::tempdir().unwrap();
    let tar = archives.path().join("busybox.tar");
    let busybox = fs::read("/bin/busybox").expect("busybox-static is installed");
    let files = [
        ("bin/busybox", Entry::Program(&busybox)),
        ("bin/sh", Entry::Link("busybox")),
        ("bin/httpd", Entry::Link("busybox")),
        ("bin/cat", Entry::Link("busybox")),
        ("bin/mkdir", Entry::Link("busybox")),
    ];
    fs::write(
        &tar,
        archive::image("docker.io/library/web:1", &files, &["/bin/sh"]),
    )
    .unwrap();
    let loaded = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .args(["image", "load", "--name", &cluster.name])
        .arg(&tar)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&loaded.stdout).into_owned();
    assert!(
        loaded.status.success(),
        "{}",
        String::from_utf8_lossy(&loaded.stderr)
    );
    assert_eq!(said.lines().count(), 2, "{said}");

    // The name tells its programs from those of a test beside this one.
    let httpd = format!("httpd -f -p 8080 -h /{}", cluster.name);
    let serve = format!(
        "mkdir -p /{0}; echo $HOSTNAME > /{0}/index.html; exec {httpd}",
        cluster.name
    );
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": 3, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [{
                    "name": "web", "image": "web:1", "command": ["sh", "-c", serve],
                    "readinessProbe": { "httpGet": { "port": 8080 }, "periodSeconds": 1 },
                }] },
            },
        },
    });
    let file = archives.path().join("web.json");
    fs::write(&file, web.to_string()).unwrap();
    cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    cluster.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    cluster.kubectl(&[
        "wait",
        "--for=condition=Available",
        "--timeout=60s",
        "deployment/web",
    ]);
    let pods: Value = serde_json::from_str(&cluster.kubectl(&["get", "pods", "-o", "json"])).unwrap();
    let nodes: std::collections::BTreeSet<&str> = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["spec"]["nodeName"].as_str().unwrap())
        .collect();
    assert_eq!(nodes.len(), 2, "both nodes have some");
    // Service, rules and the other node; a static busybox cannot look up addresses itself.
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let ask = format!("for i in 1 2 3 4 5 6; do curl -sS -m 5 http://{address}; done");
    // Pods are ready a moment before all rules lead to them.
    eventually("the Service answers on the node", || {
        let asked = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(["exec", "--name", &cluster.name, "n1", "--", "sh", "-c", &ask])
            .output()
            .unwrap();
        let answers = String::from_utf8_lossy(&asked.stdout);
        let all = answers.lines().count() == 6 && answers.lines().all(|line| line.starts_with("web-"));
        all.then_some(())
    });

    // A crash leaves containers behind; the next start, or its end, removes them.
    cluster.kill();
    cluster.start_again(&["--nodes=2", "--runtime=containerd"]);
    cluster.kubectl(&[
        "wait",
        "--for=condition=Available",
        "--timeout=60s",
        "deployment/web",
    ]);
    let data = cluster.data_dir().display().to_string();
    cluster.terminate();
    let processes = Command::new("ps").args(["-eo", "pid,args"]).output().unwrap();
    let processes = String::from_utf8(processes.stdout).unwrap();
    let left: Vec<&str> = processes
        .lines()
        .filter(|line| line.contains(&data) || line.contains(&httpd))
        .collect();
    assert!(left.is_empty(), "{left:#?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains(&data)).collect();
    assert!(left.is_empty(), "{left:#?}");
}
