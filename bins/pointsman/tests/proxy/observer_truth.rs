//! How exact is an observer beside a real kube-proxy?
//!
//! `PEER_KUBE_PROXY` names the program, and without one these tests are not run (`--run-ignored all` runs them). The truth
//! is read from the kernel, again and again, by code of the test's own; each change leaves a mark of its own there.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pointsman_netlink::nft::{Data, Expr, Family, Name, Value};
use pointsman_netlink_io::{Buffers, Client};
use serde_json::json;

use crate::eventually;
use crate::features::endpoint;
use crate::node::{Cluster, Network};
use crate::observer::{chain, chain_of_iptables};

const SERVICES: u64 = 20;
const CHANGES: u64 = 500;

fn now() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// The mark of a change: an endpoint that no other change has.
fn mark(change: u64) -> String {
    format!("10.100.{}.{}", change / 250, 1 + change % 250)
}

/// The newest change whose mark a chain holds: the address of an endpoint, or its text in a comment.
fn newest(client: &mut Client, (table, chain): &(Name, Name)) -> Option<u64> {
    let mut marks = Vec::new();
    let of_value = |value: &Value| match value.as_bytes() {
        [10, 100, high, low, ..] => Some(u64::from(*high) * 250 + u64::from(*low) - 1),
        _ => None,
    };
    for (rule, _) in client.rules_of_chain(Family::Ip, table, chain).ok()? {
        for expr in rule.exprs {
            match expr {
                Expr::Load { value, .. } => marks.extend(of_value(&value)),
                Expr::Lookup { set, .. } => {
                    let elements = client.elements(Family::Ip, table, &set).ok()?;
                    marks.extend(elements.iter().filter_map(|element| match &element.data {
                        Data::Value(value) => of_value(value),
                        _ => None,
                    }));
                }
                Expr::Other { attributes, .. } => {
                    marks.extend(in_comment(&String::from_utf8_lossy(&attributes)))
                }
                _ => {}
            }
        }
    }
    marks.into_iter().max()
}

fn in_comment(text: &str) -> Option<u64> {
    let (_, mark) = text.split_once("-> 10.100.")?;
    let (high, rest) = mark.split_once('.')?;
    let (low, _) = rest.split_once(':')?;
    Some(high.parse::<u64>().ok()? * 250 + low.parse::<u64>().ok()? - 1)
}

/// When each change was last seen to be missing, in the kernel of the node.
#[derive(Default)]
struct Truth(Mutex<BTreeMap<u64, (u64, i64)>>);

impl Truth {
    /// Looks until told to stop: by Service, the newest change there and when it was still missing.
    fn look(&self, chains: &[(Name, Name)], stop: &AtomicBool) {
        let mut client = Client::open(Buffers::default()).unwrap();
        let mut missing = vec![0; chains.len()];
        let mut known = vec![None; chains.len()];
        while !stop.load(Ordering::Relaxed) {
            for (service, chain) in chains.iter().enumerate() {
                let began = now();
                let found = newest(&mut client, chain);
                if let Some(change) = found.filter(|_| found > known[service]) {
                    known[service] = found;
                    self.0
                        .lock()
                        .unwrap()
                        .insert(change, (service as u64, missing[service]));
                }
                missing[service] = began;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the observer said, and when by its own clock.
fn listen(cluster: &Cluster<'_>) -> Arc<Mutex<Vec<(u64, i64)>>> {
    let said: Arc<Mutex<Vec<(u64, i64)>>> = Arc::default();
    let (lines, heard) = (cluster.lines(10249, "/watermark"), Arc::clone(&said));
    std::thread::spawn(move || {
        for line in lines
            .lines()
            .map_while(Result::ok)
            .filter(|line| line.starts_with('{'))
        {
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            let time: jiff::Timestamp = line["time"].as_str().unwrap().parse().unwrap();
            if let Some(version) = line["endpointSlices"].as_u64() {
                heard.lock().unwrap().push((version, time.as_microsecond()));
            }
        }
    });
    said
}

fn start_kube_proxy(cluster: &mut Cluster<'_>, mode: &str) {
    let program = std::env::var("PEER_KUBE_PROXY").expect("PEER_KUBE_PROXY names a kube-proxy");
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": mode, "hostnameOverride": "n1", "clusterCIDR": "10.0.0.0/16,fd00::/48",
        "clientConnection": {"kubeconfig": cluster.kubeconfig},
        "nftables": {"minSyncPeriod": "100ms"}, "iptables": {"minSyncPeriod": "100ms"},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "metricsBindAddress": "127.0.0.1:20249", "healthzBindAddress": "127.0.0.1:20256",
    });
    let path = cluster.directory().join("kube-proxy.json");
    std::fs::write(&path, config.to_string()).unwrap();
    cluster.spawn_program("kube-proxy", &program, &["--config", &path.display().to_string()]);
}

fn observed_beside_kube_proxy(mode: &str) {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let (mut random, mut chains) = (fastrand::Rng::with_seed(20), Vec::new());
    for number in 0..SERVICES {
        let name = format!("s{number}");
        cluster.service(&name, &json!({"ports": [{"port": 80, "targetPort": 8080}]}));
        let (table, chain) = match mode {
            "nftables" => ("kube-proxy", chain(&network, &name)),
            _ => ("nat", chain_of_iptables(&network, &name)),
        };
        chains.push((Name::fixed(table), Name::try_new(chain).unwrap()));
    }
    start_kube_proxy(&mut cluster, mode);
    cluster.start_observer(mode);
    let watermark = |resource: &str| {
        cluster.metric(&format!(
            "pointsman_proxy_watermark_resource_version{{resource=\"{resource}\"}}"
        ))
    };
    eventually("the first lists are said", || watermark("services") > 0.0);
    let said = listen(&cluster);
    let (truth, stop) = (Arc::new(Truth::default()), Arc::new(AtomicBool::new(false)));
    let (looking, stopped) = (Arc::clone(&truth), Arc::clone(&stop));
    let looks = network
        .node
        .run(move || std::thread::spawn(move || looking.look(&chains, &stopped)));
    let mut changes = Vec::new();
    for change in 0..CHANGES {
        let service = random.u64(0..SERVICES);
        let mut endpoints = vec![endpoint(&mark(change))];
        endpoints.extend((0..random.u8(0..5)).map(|other| endpoint(&format!("10.0.1.{}", 10 + other))));
        let version = cluster.endpoints(
            &format!("s{service}"),
            &json!([{"name": "", "port": 8080}]),
            &endpoints,
        );
        changes.push((service, version));
        std::thread::sleep(Duration::from_millis(random.u64(0..60)));
    }
    let newest = changes.last().unwrap().1 as f64;
    eventually("all changes are said", || watermark("endpointslices") >= newest);
    stop.store(true, Ordering::Relaxed);
    looks.join().unwrap();
    report(mode, &changes, &truth.0.lock().unwrap(), &said.lock().unwrap());
}

/// How late each change was said, and whether any was said while it was still missing.
fn report(mode: &str, changes: &[(u64, u64)], truth: &BTreeMap<u64, (u64, i64)>, said: &[(u64, i64)]) {
    let mut everything_until = 0;
    let (mut late, mut early) = (Vec::new(), Vec::new());
    for (change, (service, version)) in changes.iter().enumerate() {
        // A state that kube-proxy skipped came with the next one of the Service.
        let mut later = truth.range(change as u64..);
        let (_, (_, missing)) = later
            .find(|(_, (of, _))| of == service)
            .expect("the kernel has it");
        everything_until = everything_until.max(*missing);
        let (_, at) = said
            .iter()
            .find(|(until, _)| until >= version)
            .expect("it was said");
        match at - everything_until {
            micros if micros < 0 => early.push((change, micros)),
            micros => late.push(micros),
        }
    }
    late.sort_unstable();
    let at = |share: usize| late[(late.len() * share / 100).min(late.len() - 1)] as f64 / 1000.0;
    let (p50, p99, most) = (at(50), at(99), at(100));
    let count = changes.len();
    eprintln!(
        "{mode}: {count} changes, late p50 {p50:.2} ms, p99 {p99:.2} ms, at most {most:.2} ms; early {early:?}"
    );
    assert!(early.is_empty(), "{early:?}");
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY"]
fn changes_are_said_after_kube_proxy_has_written_them_in_nftables_mode() {
    observed_beside_kube_proxy("nftables");
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY"]
fn changes_are_said_after_kube_proxy_has_written_them_in_iptables_mode() {
    observed_beside_kube_proxy("iptables");
}
