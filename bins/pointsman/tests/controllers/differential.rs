//! Does the same history give the same endpoints as upstream's controller?
//!
//! Both run against an API server of their own, the same seeded history of Services and pods is written to both, and
//! after every few steps both have to say the same. `PEER_KCM` names the kube-controller-manager, and without one
//! that test is not run (`--run-ignored all` runs it). A second copy of ours always is compared: it shows that the
//! history itself is sound and that the outcome does not depend on timing.

use pointsman_api_client::{DeleteOptions, Patch, Resource};
use pointsman_harness::SOON;
use pointsman_harness::cluster::{Cluster, Controllers};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const APPS: [&str; 3] = ["a", "b", "c"];

/// A small generator, so that a seed names a history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.roll(from.len())])
    }
}

/// One write to an API server.
enum Step {
    Create(Resource, Value),
    Patch(Resource, String, Value),
    Status(String, Value),
    Delete(Resource, String, DeleteOptions),
}

impl std::fmt::Display for Step {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Create(resource, object) => write!(out, "create {} {object}", resource.plural),
            Self::Patch(resource, name, patch) => write!(out, "patch {} {name} {patch}", resource.plural),
            Self::Status(pod, status) => write!(out, "status {pod} {status}"),
            Self::Delete(resource, name, how) => write!(out, "delete {} {name} {how:?}", resource.plural),
        }
    }
}

impl Step {
    async fn write(&self, cluster: &Cluster) {
        match self {
            Self::Create(resource, object) => {
                cluster.create(*resource, object).await;
            }
            Self::Patch(resource, name, patch) => {
                cluster.patch(*resource, name, patch).await;
            }
            Self::Status(pod, status) => {
                let api = cluster.client.api(Resource::PODS, Some("default"));
                let patch = Patch::Strategic(json!({ "status": status }).to_string().into_bytes());
                let _: Value = api.patch_status(pod, patch).await.unwrap();
            }
            Self::Delete(resource, name, options) => {
                let api = cluster.client.api(*resource, Some("default"));
                api.delete(name, options).await.unwrap();
            }
        }
    }
}

/// What exists, as far as choosing the next step needs it.
#[derive(Default)]
struct World {
    services: Vec<String>,
    pods: BTreeMap<String, Pod>,
    made: usize,
}

#[derive(Default)]
struct Pod {
    addressed: bool,
    terminating: bool,
    ended: bool,
}

impl World {
    fn next(&mut self, dice: &mut Dice) -> Step {
        loop {
            let step = match dice.roll(16) {
                0 | 1 if self.services.len() < 6 => Some(self.new_service(dice)),
                2 => self.change_service(dice),
                3 => self.remove_service(dice),
                4..=6 if self.pods.len() < 24 => Some(self.new_pod(dice)),
                7..=9 => self.report(dice),
                10 | 11 => self.flip(dice),
                12 => self.relabel(dice),
                13 | 14 => self.end(dice),
                _ => self.forget(dice),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    fn name(&mut self, prefix: &str) -> String {
        self.made += 1;
        format!("{prefix}{}", self.made)
    }

    fn new_service(&mut self, dice: &mut Dice) -> Step {
        let name = self.name("s");
        let mut spec = json!({ "selector": { "app": dice.pick(&APPS) }, "ports": ports(dice) });
        match dice.roll(5) {
            0 => spec["clusterIP"] = json!("None"),
            1 => spec["publishNotReadyAddresses"] = json!(true),
            2 => spec["type"] = json!("NodePort"),
            _ => {}
        }
        self.services.push(name.clone());
        Step::Create(
            Resource::SERVICES,
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec }),
        )
    }

    fn change_service(&self, dice: &mut Dice) -> Option<Step> {
        let name = dice.pick(&self.services)?.clone();
        let patch = match dice.roll(3) {
            0 => json!({ "spec": { "selector": { "app": dice.pick(&APPS) } } }),
            1 => json!({ "spec": { "publishNotReadyAddresses": dice.roll(2) == 0 } }),
            _ => json!({ "spec": { "ports": ports(dice) } }),
        };
        Some(Step::Patch(Resource::SERVICES, name, patch))
    }

    fn remove_service(&mut self, dice: &mut Dice) -> Option<Step> {
        let name = dice.pick(&self.services)?.clone();
        self.services.retain(|service| *service != name);
        Some(Step::Delete(Resource::SERVICES, name, DeleteOptions::default()))
    }

    fn new_pod(&mut self, dice: &mut Dice) -> Step {
        let name = self.name("p");
        let mut spec = json!({ "nodeName": format!("n{}", dice.roll(2)), "containers": [{
            "name": "c", "image": "host",
            "ports": [{ "name": "web", "containerPort": 8000 + dice.roll(3) }],
        }] });
        if dice.roll(4) == 0 {
            spec["hostname"] = json!(name);
            spec["subdomain"] = json!(dice.pick(&self.services).map_or("s1", String::as_str));
        }
        self.pods.insert(name.clone(), Pod::default());
        let metadata = json!({ "name": name, "labels": { "app": dice.pick(&APPS) } });
        Step::Create(
            Resource::PODS,
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }),
        )
    }

    /// The kubelet speaks of an address, or of the end.
    fn report(&mut self, dice: &mut Dice) -> Option<Step> {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        let name = dice.pick(&names)?.clone();
        let number: usize = name[1..].parse().unwrap();
        let pod = self.pods.get_mut(&name)?;
        if pod.ended {
            return None;
        }
        if pod.addressed && dice.roll(4) == 0 {
            pod.ended = true;
            let phase = if dice.roll(2) == 0 { "Succeeded" } else { "Failed" };
            // Readiness ends with the pod, as the kubelet says it: upstream overlooks a phase that
            // changes alone and keeps such a pod as ready, which ours does not.
            let conditions = json!([{ "type": "Ready", "status": "False" }]);
            return Some(Step::Status(
                name,
                json!({ "phase": phase, "conditions": conditions }),
            ));
        }
        pod.addressed = true;
        let ip = format!("10.1.{}.{}", number / 250, number % 250 + 1);
        Some(Step::Status(
            name,
            json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] }),
        ))
    }

    fn flip(&self, dice: &mut Dice) -> Option<Step> {
        let names: Vec<&String> = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.ended)
            .map(|(name, _)| name)
            .collect();
        let name = dice.pick(&names)?.to_string();
        let status = if dice.roll(3) == 0 { "False" } else { "True" };
        let conditions = json!([{ "type": "Ready", "status": status }]);
        Some(Step::Status(name, json!({ "conditions": conditions })))
    }

    fn relabel(&self, dice: &mut Dice) -> Option<Step> {
        let names: Vec<&String> = self.pods.keys().collect();
        let name = dice.pick(&names)?.to_string();
        let labels = json!({ "metadata": { "labels": { "app": dice.pick(&APPS) } } });
        Some(Step::Patch(Resource::PODS, name, labels))
    }

    /// Somebody asks for a pod's end.
    fn end(&mut self, dice: &mut Dice) -> Option<Step> {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        let name = dice.pick(&names)?.clone();
        let pod = self.pods.get_mut(&name)?;
        // A pod that ended already goes at once, which is another step.
        if pod.terminating || pod.ended {
            return None;
        }
        pod.terminating = true;
        Some(Step::Delete(Resource::PODS, name, DeleteOptions::default()))
    }

    /// The kubelet's last word about a pod.
    fn forget(&mut self, dice: &mut Dice) -> Option<Step> {
        let going: Vec<&String> = self
            .pods
            .iter()
            .filter_map(|(name, pod)| (pod.terminating || pod.ended).then_some(name))
            .collect();
        let name = dice.pick(&going)?.to_string();
        self.pods.remove(&name);
        Some(Step::Delete(
            Resource::PODS,
            name,
            DeleteOptions::default().without_grace(),
        ))
    }
}

fn ports(dice: &mut Dice) -> Value {
    match dice.roll(4) {
        0 => json!([{ "name": "x", "port": 80, "targetPort": "web" }]),
        1 => json!([{ "name": "x", "port": 80, "targetPort": 8080 },
                    { "name": "y", "port": 81, "targetPort": "web", "appProtocol": "http" }]),
        2 => json!([{ "name": "u", "port": 53, "protocol": "UDP" },
                    { "name": "t", "port": 53, "protocol": "TCP" }]),
        _ => json!([{ "port": 80, "targetPort": "absent" }]),
    }
}

/// Everything slices say, one line per address and set of ports, without what may differ: how they are
/// packed, and what they are called.
async fn said(cluster: &Cluster) -> BTreeSet<String> {
    let list: Value = cluster
        .client
        .get_path("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices")
        .await
        .unwrap();
    let mut lines = BTreeSet::new();
    for slice in list["items"].as_array().unwrap() {
        let service = &slice["metadata"]["labels"]["kubernetes.io/service-name"];
        let headless = &slice["metadata"]["labels"]["service.kubernetes.io/headless"];
        let mut ports: Vec<String> = slice["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .map(Value::to_string)
            .collect();
        ports.sort();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let target = &endpoint["targetRef"]["name"];
            let facts = ["addresses", "conditions", "nodeName", "zone", "hostname"].map(|f| &endpoint[f]);
            lines.insert(format!(
                "{service} headless={headless} {} {ports:?} {target} {facts:?}",
                slice["addressType"]
            ));
        }
    }
    lines
}

/// A running kube-controller-manager; killed when dropped.
struct Peer(#[expect(dead_code, reason = "it lives as long as this does")] Child);

fn peer(program: &str, cluster: &Cluster) -> Peer {
    let child = Command::new(program)
        .args(["--controllers=endpointslice-controller", "--leader-elect=false"])
        .args(["--secure-port=0", "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("PEER_KCM names a program");
    Peer(child)
}

async fn agree(ours: &Cluster, theirs: &Cluster, history: &[Step]) {
    let deadline = Instant::now() + SOON;
    loop {
        let (a, b) = (said(ours).await, said(theirs).await);
        if a == b {
            return;
        }
        if Instant::now() > deadline {
            let only_ours: Vec<_> = a.difference(&b).collect();
            let only_theirs: Vec<_> = b.difference(&a).collect();
            for step in history {
                eprintln!("{step}");
            }
            panic!("only ours {only_ours:#?}\nonly theirs {only_theirs:#?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_history_gives_the_same_endpoints_twice() {
    compare(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PEER_KCM"]
async fn the_same_history_gives_the_same_endpoints_as_kube_controller_manager() {
    let program = std::env::var("PEER_KCM").expect("PEER_KCM names a kube-controller-manager");
    compare(Some(&program)).await;
}

/// Compares ours with the program, or with a second copy of ours.
async fn compare(program: Option<&str>) {
    let steps: usize = std::env::var("PEER_STEPS").map_or(60, |steps| steps.parse().unwrap());
    let seed: u64 = std::env::var("PEER_SEED").map_or(1, |seed| seed.parse().unwrap());
    let ours = Cluster::start().await;
    let loops: Controllers = ours.lone_controllers(&["--controllers=endpointslice"]);
    let theirs = Cluster::start().await;
    let _peer = program.map(|program| peer(program, &theirs));
    let stand_in = program
        .is_none()
        .then(|| theirs.lone_controllers(&["--controllers=endpointslice"]));
    for cluster in [&ours, &theirs] {
        cluster.node("n0", "east").await;
        cluster.node("n1", "west").await;
    }
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut world = World::default();
    let mut history = Vec::new();
    for number in 0..steps {
        let step = world.next(&mut dice);
        step.write(&ours).await;
        step.write(&theirs).await;
        history.push(step);
        if dice.roll(4) == 0 || number + 1 == steps {
            agree(&ours, &theirs, &history).await;
        }
    }
    assert!(!said(&ours).await.is_empty(), "the history made no endpoint");
    loops.stop().await;
    if let Some(stand_in) = stand_in {
        stand_in.stop().await;
    }
}
