//! Does the chart say what the folders beside it say, and do its values do what they are for?

use super::{deploy, documents};
use pointsman_harness::Server;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `make deps` puts it there.
pub fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/helm")
}

fn helm(arguments: &[&str]) -> Output {
    let helm = program();
    let mut command = Command::new(&helm);
    command.args(arguments).arg(deploy().join("chart"));
    let made = command.output();
    made.unwrap_or_else(|error| panic!("{}: {error}; `make deps` installs it", helm.display()))
}

/// What the chart makes with these settings, each object by its kind and name, and its namespace if that is no usual one.
fn objects(settings: &str) -> BTreeMap<String, Value> {
    let output = helm(&["template", "pointsman", "-n", "kube-system", "--set", settings]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    by_name(text.split("\n---\n").map(str::to_owned))
}

fn by_name(documents: impl IntoIterator<Item = String>) -> BTreeMap<String, Value> {
    let read = documents.into_iter().filter_map(|text| {
        let mut object: Value = serde_saphyr::from_str(&text).unwrap();
        // Whose release it is, and nothing else, is said by labels that only Helm sets.
        for label in [
            "app.kubernetes.io/managed-by",
            "app.kubernetes.io/instance",
            "helm.sh/chart",
        ] {
            object["metadata"]["labels"].as_object_mut()?.remove(label);
        }
        // An older kubectl takes policies for objects of a namespace.
        if object["kind"].as_str()?.starts_with("ValidatingAdmissionPolicy") {
            object["metadata"].as_object_mut()?.remove("namespace");
        }
        let mut name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        // A role may have the same name in a namespace of its own.
        if let Some(elsewhere) = object["metadata"]["namespace"]
            .as_str()
            .filter(|it| *it != "kube-system")
        {
            name = format!("{name} in {elsewhere}");
        }
        Some((name, object))
    });
    read.collect()
}

const OFF: &str = "proxy.enabled=false";
const ROLES: [(&str, &str); 6] = [
    ("proxy", "proxy.enabled=true"),
    ("proxy-nftables", "proxy.rights=nftables"),
    ("observer", "proxy.enabled=false,observer.enabled=true"),
    ("controllers", "proxy.enabled=false,controllers.enabled=true"),
    ("sli", "proxy.enabled=false,sli.enabled=true"),
    ("probe-only", "proxy.enabled=false,probe.enabled=true"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_installs_what_kubectl_applies() {
    let server = Server::start(&[]).await;
    for (folder, settings) in ROLES {
        let applied = by_name(documents(&server, &deploy().join(folder)).await);
        assert_eq!(objects(settings), applied, "{folder}");
    }
}

fn pod<'a>(objects: &'a BTreeMap<String, Value>, workload: &str) -> &'a Value {
    &objects[workload]["spec"]["template"]["spec"]
}

#[test]
fn values_change_images_arguments_and_pods() {
    let objects = objects(
        "image.repository=registry.example/pointsman,image.tag=1.2.3,imagePullSecrets[0].name=key,proxy.args={--v=4},\
         proxy.pod.nodeSelector.pool=blue,proxy.container.resources.limits.memory=90Mi,\
         controllers.enabled=true,controllers.replicas=3",
    );
    let proxy = pod(&objects, r#""DaemonSet" "pointsman-proxy""#);
    let container = &proxy["containers"][0];
    assert_eq!(container["image"], "registry.example/pointsman:1.2.3");
    assert_eq!(
        container["args"].as_array().unwrap().last(),
        Some(&json!("--v=4"))
    );
    assert_eq!(container["resources"]["limits"]["memory"], "90Mi");
    assert_eq!(
        container["resources"]["requests"]["memory"], "40Mi",
        "the rest stays"
    );
    assert_eq!(proxy["nodeSelector"]["pool"], "blue");
    assert_eq!(proxy["imagePullSecrets"][0]["name"], "key");
    assert_eq!(
        objects[r#""Deployment" "pointsman-controllers""#]["spec"]["replicas"],
        3
    );
}

#[test]
fn roles_that_are_off_leave_nothing_and_rules_come_for_the_operator() {
    assert!(objects(OFF).is_empty());
    let rules = &objects(&format!("{OFF},monitoring.enabled=true"))[r#""PrometheusRule" "pointsman""#];
    let shipped = std::fs::read_to_string(deploy().join("monitoring/rules.yaml")).unwrap();
    let shipped: Value = serde_saphyr::from_str(&shipped).unwrap();
    assert_eq!(rules["spec"], shipped);
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() {
    let refused = |arguments: &[&str]| {
        let output = helm(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let template = ["template", "pointsman", "-n"];
    let unknown = refused(&[&template[..], &["kube-system", "--set", "proxi.enabled=true"]].concat());
    assert!(unknown.contains("proxi"), "{unknown}");
    let rights = refused(&[&template[..], &["kube-system", "--set", "proxy.rights=ipvs"]].concat());
    assert!(rights.contains("rights"), "{rights}");
    let elsewhere = refused(&[&template[..], &["default"]].concat());
    assert!(elsewhere.contains("install into kube-system"), "{elsewhere}");
}

#[test]
fn the_chart_is_as_helm_wants_charts_to_be() {
    let output = helm(&["lint", "--strict", "--namespace", "kube-system"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
}
