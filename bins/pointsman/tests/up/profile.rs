//! Latency profiles on real nodes: changed under traffic, and a step that fails.

use crate::cluster::{Cluster, eventually, program};
use crate::harm::Stopped;
use crate::history::{History, Observer, assert_always_well, name};
use pointsman_api_client::Resource;
use pointsman_fabric::Netns;
use pointsman_testkit::require_netns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const WISHES: Resource = Resource::new("config.openshift.io", "v1", "nodes");
const NODE_OWNER: &str = "MachineConfigOperator";
const GRACE_OWNER: &str = "KubeControllerManagerOperator";
const TOLERATION_OWNER: &str = "KubeAPIServerOperator";

/// What a profile's tables say.
struct Expected {
    name: &'static str,
    report: &'static str,
    grace: &'static str,
    grace_seconds: f64,
    toleration: i64,
}

const DEFAULT: Expected = Expected {
    name: "Default",
    report: "10s",
    grace: "40s",
    grace_seconds: 40.0,
    toleration: 300,
};
const MEDIUM: Expected = Expected {
    name: "MediumUpdateAverageReaction",
    report: "20s",
    grace: "2m",
    grace_seconds: 120.0,
    toleration: 60,
};
const LOW: Expected = Expected {
    name: "LowUpdateSlowReaction",
    report: "1m0s",
    grace: "5m",
    grace_seconds: 300.0,
    toleration: 60,
};

#[test]
fn a_fresh_cluster_can_be_checked_and_patched_before_anybody_has_set_a_profile() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=1"]);
    let said = eventually("every component announces what it uses", || {
        let output = profile(&cluster, &["check"]).output().unwrap();
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).unwrap())
    });
    assert!(said.contains("no major impact"), "{said}");
    let patch = r#"{"spec":{"workerLatencyProfile":"LowUpdateSlowReaction"}}"#;
    let what = [
        "nodes.config.openshift.io",
        "cluster",
        "--type=merge",
        "-p",
        patch,
    ];
    cluster.kubectl(&[&["patch"], &what[..]].concat());
    let said = succeed(&cluster, &["status", "--watch"]);
    assert!(said.contains("profile LowUpdateSlowReaction"), "{said}");
}

#[test]
fn a_new_cluster_starts_with_its_profile_and_nothing_has_to_change() {
    require_netns!();
    let mut cluster = Cluster::not_started();
    cluster.profile = Some(LOW.name.to_owned());
    cluster.start_again(&["--nodes=1"]);
    let said = succeed(&cluster, &["status", "--watch"]);
    assert!(said.contains(&format!("profile {}", LOW.name)), "{said}");
    assert_in_force(&cluster, &LOW);

    let ever = |path: &str| -> Vec<Value> {
        let query = format!("{path}?watch=1&resourceVersion=1&timeoutSeconds=1");
        let events = cluster.kubectl(&["get", "--raw", &query]);
        let events = events.lines().map(|line| serde_json::from_str(line).unwrap());
        events.map(|event: Value| event["object"].clone()).collect()
    };
    let requests = ever("/apis/config.openshift.io/v1/nodes");
    for owner in [NODE_OWNER, GRACE_OWNER, TOLERATION_OWNER] {
        let words = requests
            .iter()
            .map(|it| condition(it, owner, "Complete")["status"].as_str());
        let words: Vec<&str> = words.flatten().collect();
        assert!(
            words.contains(&"True") && !words.contains(&"False"),
            "{owner}: {words:?}"
        );
    }
    for node in ever("/api/v1/nodes") {
        assert!(["-", LOW.report].contains(&frequency(&node)), "{node:#}");
    }
    for map in ever("/api/v1/namespaces/kube-system/configmaps") {
        let observed = |flag: &str| &map["metadata"]["annotations"][format!("pointsman.io/observed-{flag}")];
        for (found, expected) in [
            (observed("node-monitor-grace-period"), LOW.grace),
            (observed("default-unreachable-toleration-seconds"), "60"),
            (observed("default-not-ready-toleration-seconds"), "60"),
        ] {
            assert!(found.is_null() || found == expected, "{map:#}");
        }
    }

    // The next start of the same cluster, with another profile, is no first day.
    cluster.terminate();
    cluster.profile = Some(DEFAULT.name.to_owned());
    cluster.start_again(&["--nodes=1"]);
    let said = succeed(&cluster, &["status", "--watch"]);
    assert!(said.contains(&format!("profile {}", DEFAULT.name)), "{said}");
    assert_in_force(&cluster, &DEFAULT);
}

#[test]
fn a_profile_that_is_none_is_refused_with_those_there_are() {
    for (wrong, why) in [
        (
            &["--latency-profile=Fast"][..],
            "Default, MediumUpdateAverageReaction, LowUpdateSlowReaction",
        ),
        (&["--latency-profile=low", "--demo"], "cannot be used with"),
    ] {
        let output = Command::new(program()).arg("up").args(wrong).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(why), "{errors}");
    }
}

#[test]
fn all_six_transitions_run_under_traffic_without_a_taint() {
    require_netns!();
    let cluster = Cluster::start(&[]);
    let observer = Observer::of(&cluster);
    let nodes = observer.follow(Resource::NODES);
    let target = serve_web(&cluster);
    succeed(&cluster, &["apply", "Default"]);
    let said = observer.follow(WISHES);
    let loads = NODES.map(|node| Load::start(&cluster, node, &target));

    // Every ordered pair of the three profiles once.
    let mut before = &DEFAULT;
    for after in [&MEDIUM, &LOW, &DEFAULT, &LOW, &MEDIUM, &DEFAULT] {
        let heard = said.len();
        succeed(&cluster, &["apply", after.name]);
        assert_in_force(&cluster, after);
        assert_moved(&said, heard, NODE_OWNER, after);
        assert_moved(&said, heard, GRACE_OWNER, after);
        if before.toleration != after.toleration {
            assert_moved(&said, heard, TOLERATION_OWNER, after);
        }
        before = after;
    }
    let is_degraded = |object: &Value| {
        let owners = [NODE_OWNER, GRACE_OWNER, TOLERATION_OWNER];
        owners
            .iter()
            .any(|owner| condition(object, owner, "Degraded")["status"] == "True")
    };
    assert!(!said.since(0).iter().any(|sight| is_degraded(&sight.object)));
    for load in loads {
        let (node, (ok, failed)) = load.stop();
        assert!(ok > 10 && failed == 0, "{node}: {ok} answered, {failed} failed");
    }
    assert_always_well(&nodes, &NODES);
    let check = succeed(&cluster, &["check"]);
    assert!(check.contains("no major impact"), "{check}");
}

#[test]
fn a_step_that_a_node_does_not_take_degrades_its_owner_and_brings_default_back() {
    require_netns!();
    let cluster = Cluster::start(&[]);
    let observer = Observer::of(&cluster);
    let nodes = observer.follow(Resource::NODES);
    let maps = observer.follow(Resource::core("configmaps"));
    let patch = r#"{"data":{"latencyProfileStepTimeout":"4s"}}"#;
    let map = ["configmap", "pointsman-controllers", "--namespace=kube-system"];
    cluster.kubectl(&[&["patch"], &map[..], &["--type=merge", "-p", patch]].concat());
    succeed(&cluster, &["apply", MEDIUM.name]);
    let said = observer.follow(WISHES);
    let (quick, medium) = (maps.len(), nodes.len());

    // An agent that neither takes up its setting nor says so, as one that hangs.
    let stopped = Stopped::agent(&cluster, "n3");
    let asked = Asked::start(&cluster, &["apply", LOW.name]);
    let degraded = said.first("the owner is degraded", 0, |object| {
        condition(object, NODE_OWNER, "Degraded")["status"] == "True"
    });
    let degraded = condition(&degraded.object, NODE_OWNER, "Degraded").clone();
    assert_eq!(degraded["reason"], "StepTimedOut");
    let message = degraded["message"].as_str().unwrap();
    assert!(message.contains("Kubelet") && message.contains("n3"), "{message}");

    // Default is on its way by itself, but patience does not shrink before the hung node can follow.
    eventually("the other nodes report as often as Default says", || {
        let announced = announced(&cluster);
        (announced == [DEFAULT.report, DEFAULT.report, MEDIUM.report]).then_some(())
    });
    let object = wish(&cluster);
    for owner in [NODE_OWNER, GRACE_OWNER] {
        assert_eq!(
            condition(&object, owner, "Complete")["status"],
            "False",
            "{owner}"
        );
    }
    for owner in [NODE_OWNER, GRACE_OWNER, TOLERATION_OWNER] {
        let expected = if owner == NODE_OWNER { "True" } else { "False" };
        assert_eq!(
            condition(&object, owner, "Degraded")["status"],
            expected,
            "{owner}"
        );
    }
    assert_eq!(grace_in_force(&cluster), MEDIUM.grace_seconds);
    for sight in maps.since(quick) {
        let wanted = &sight.object["data"]["nodeMonitorGracePeriod"];
        assert_ne!(wanted, DEFAULT.grace, "patience shrank while n3 was silent");
    }

    drop(stopped);
    let output = asked.finish();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(errors.contains("MachineConfigOperator: Kubelet"), "{errors}");
    assert_in_force(&cluster, &DEFAULT);
    for sight in nodes.since(medium) {
        // It woke up with the news of a wish that was given up meanwhile.
        let is_late = name(&sight.object) == "n3" && frequency(&sight.object) == LOW.report;
        assert!(!is_late, "{:#}", sight.object);
    }
    let object = wish(&cluster);
    assert_eq!(
        condition(&object, NODE_OWNER, "Degraded")["reason"],
        "StepTimedOut"
    );
    for owner in [NODE_OWNER, GRACE_OWNER, TOLERATION_OWNER] {
        let complete = condition(&object, owner, "Complete");
        assert_eq!(
            (&complete["status"], &complete["reason"]),
            (&json!("False"), &json!("RolledBack")),
            "{owner}"
        );
        assert_eq!(
            condition(&object, owner, "Progressing")["status"],
            "False",
            "{owner}"
        );
    }

    // The cause is gone, so the same wish can be asked for again.
    succeed(&cluster, &["apply", LOW.name]);
    assert_in_force(&cluster, &LOW);
    assert_eq!(
        condition(&wish(&cluster), NODE_OWNER, "Degraded")["status"],
        "False"
    );
    assert_always_well(&nodes, &NODES);
}

/// Every component uses the profile's values: agents say so, the controllers' metrics do, and the API
/// server gives new pods the profile's tolerations.
fn assert_in_force(cluster: &Cluster, profile: &Expected) {
    let announced = announced(cluster);
    assert!(
        announced.iter().all(|period| period == profile.report),
        "{}: {announced:?}",
        profile.name
    );
    eventually("the grace period is in force", || {
        (grace_in_force(cluster) == profile.grace_seconds).then_some(())
    });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "new" },
        "spec": { "containers": [{ "name": "c", "image": "host" }] } });
    let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let pod: Value = serde_json::from_str(&cluster.kubectl_with(&create, &pod.to_string())).unwrap();
    for toleration in pod["spec"]["tolerations"].as_array().unwrap() {
        assert_eq!(
            toleration["tolerationSeconds"], profile.toleration,
            "{}",
            profile.name
        );
    }
}

/// An owner began to change its component, and in the end it had changed it and said so.
fn assert_moved(said: &History, heard: usize, owner: &str, profile: &Expected) {
    let is = |object: &Value, kind: &str, status: &str| condition(object, owner, kind)["status"] == status;
    let done = said.first(
        &format!("{owner} is complete with {}", profile.name),
        heard,
        |object| {
            let complete = condition(object, owner, "Complete");
            let message = complete["message"].as_str().unwrap_or_default();
            complete["status"] == "True"
                && message.contains(profile.name)
                && is(object, "Progressing", "False")
        },
    );
    let all = said.since(heard);
    let begun = all
        .iter()
        .find(|sight| is(&sight.object, "Progressing", "True") && is(&sight.object, "Complete", "False"));
    let begun = begun.unwrap_or_else(|| panic!("{owner} never began with {}", profile.name));
    assert!(begun.at <= done.at, "{owner}, {}", profile.name);
}

/// What agents say that they use, in the order of their names.
fn announced(cluster: &Cluster) -> Vec<String> {
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "json"]);
    let nodes: Value = serde_json::from_str(&nodes).unwrap();
    let mut all: Vec<(String, String)> = nodes["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (name(node).to_owned(), frequency(node).to_owned()))
        .collect();
    all.sort();
    all.into_iter().map(|(_, period)| period).collect()
}

/// What a node says that its agent uses.
fn frequency(node: &Value) -> &str {
    let period = &node["metadata"]["annotations"]["pointsman.io/node-status-update-frequency"];
    period.as_str().unwrap_or("-")
}

/// The grace period that the controllers use now.
fn grace_in_force(cluster: &Cluster) -> f64 {
    let pki = cluster.data_dir().join("pki");
    let output = Command::new("curl")
        .args(["-sk", "--cert"])
        .arg(pki.join("sli.crt"))
        .arg("--key")
        .arg(pki.join("sli.key"))
        .arg(format!(
            "https://{}/metrics",
            cluster.facts["controllers"].as_str().unwrap()
        ))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let metric = "pointsman_controllers_node_monitor_grace_period_seconds ";
    let value = text.lines().find_map(|line| line.strip_prefix(metric));
    value.unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
}

fn wish(cluster: &Cluster) -> Value {
    let text = cluster.kubectl(&["get", "nodes.config.openshift.io", "cluster", "-o", "json"]);
    serde_json::from_str(&text).unwrap()
}

/// What an owner says of one type.
fn condition<'a>(object: &'a Value, owner: &str, kind: &str) -> &'a Value {
    let conditions = &object["status"]["workerLatencyProfileStatus"]["conditions"];
    let mut all = conditions.as_array().into_iter().flatten();
    all.find(|it| it["owner"] == owner && it["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn profile(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .arg("profile")
        .args(arguments)
        .env("KUBECONFIG", cluster.data_dir().join("admin.kubeconfig"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs `pointsman profile`; it has to succeed.
fn succeed(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = profile(cluster, arguments).output().unwrap();
    assert!(output.status.success(), "profile {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A `pointsman profile` that takes its time; ended with the test.
struct Asked(Option<Child>);

impl Asked {
    fn start(cluster: &Cluster, arguments: &[&str]) -> Self {
        Self(Some(profile(cluster, arguments).spawn().unwrap()))
    }

    fn finish(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A Deployment behind a Service; returns the Service's address once it answers.
fn serve_web(cluster: &Cluster) -> String {
    let labels = json!({ "app": "web" });
    let container = json!({
        "name": "web", "image": "host", "command": [program(), "serve-http"],
        "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
    });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
          "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] } },
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
          "spec": {
              "replicas": 3, "selector": { "matchLabels": labels },
              "template": {
                  "metadata": { "labels": labels },
                  "spec": { "terminationGracePeriodSeconds": 2, "containers": [container] },
              },
          } },
    ] });
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &objects.to_string());
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let target = format!("{address}:80");
    for node in NODES {
        let ask = [
            node,
            "--",
            &program(),
            "load",
            "--target",
            &target,
            "--duration=100ms",
            "--rate=50",
        ];
        eventually("the Service answers", || {
            let (ok, failed) = crate::traffic::count(&cluster.pointsman("exec", &ask).stdout);
            (ok > 0 && failed == 0).then_some(())
        });
    }
    target
}

/// Requests from a node, until they are stopped.
struct Load {
    node: &'static str,
    child: Child,
    lines: PathBuf,
}

impl Load {
    fn start(cluster: &Cluster, node: &'static str, target: &str) -> Self {
        let lines = cluster.data_dir().join(format!("load-{node}.jsonl"));
        let namespace = Netns::named(&format!("{}-{node}", cluster.name)).unwrap();
        let child = namespace
            .command(program())
            .args(["load", "--rate=20", "--target", target])
            .stdout(File::create(&lines).unwrap())
            .spawn()
            .unwrap();
        Self { node, child, lines }
    }

    /// Answered and failed requests.
    fn stop(mut self) -> (&'static str, (u64, u64)) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        (
            self.node,
            crate::traffic::count(&std::fs::read(&self.lines).unwrap()),
        )
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have been stopped before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
