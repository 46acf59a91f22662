//! Requests from every node to a Service, all the while, and what became of each.

use crate::cluster::{Cluster, eventually, program};
use jiff::Timestamp;
use pointsman_cluster::load::Sample;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// New connections each second, from each node.
const RATE: u32 = 50;
/// After so long a request is lost.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What was sent from which node; ends when it is dropped.
pub struct Requests {
    loads: Vec<Child>,
    samples: Arc<Mutex<Vec<(String, Sample)>>>,
}

impl Requests {
    /// Asks the Service `web` from these nodes; returns once all of them get answers.
    pub fn start(cluster: &Cluster, nodes: &[&str]) -> Self {
        let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
        let mut requests = Self {
            loads: Vec::new(),
            samples: Arc::default(),
        };
        for node in nodes {
            let mut load = cluster.command(&program());
            load.args(["exec", "--name", &cluster.name, node, "--"])
                .arg(program());
            load.args(["load", "--each"])
                .arg(format!("--target={address}:80"));
            load.arg(format!("--rate={RATE}"))
                .arg(format!("--timeout={}s", TIMEOUT.as_secs()));
            load.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut load = load.spawn().unwrap();
            let lines = BufReader::new(load.stdout.take().unwrap()).lines();
            requests.loads.push(load);
            let (samples, from) = (requests.samples.clone(), (*node).to_owned());
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    let sample = serde_json::from_str(&line).unwrap();
                    samples.lock().unwrap().push((from.clone(), sample));
                }
            });
            eventually("a node's requests are answered", || {
                let samples = requests.samples.lock().unwrap();
                let mut own = samples.iter().filter(|(from, _)| from == node);
                own.any(|(_, sample)| sample.failed.is_none()).then_some(())
            });
        }
        requests
    }

    /// When the requests were sent that were lost since then, but for those of some nodes. Waits until it is known of each.
    pub fn lost(&self, since: Timestamp, but_of: &[&str]) -> Vec<Timestamp> {
        let (since, now) = (since.as_microsecond(), Timestamp::now().as_microsecond());
        let known = now + i64::try_from(TIMEOUT.as_micros()).unwrap();
        eventually("it is known what became of all requests", || {
            let samples = self.samples.lock().unwrap();
            let mut later: Vec<&String> = samples
                .iter()
                .filter(|(_, sample)| sample.sent > known && sample.failed.is_none())
                .map(|(from, _)| from)
                .collect();
            later.sort_unstable();
            later.dedup();
            (later.len() == self.loads.len()).then_some(())
        });
        let samples = self.samples.lock().unwrap();
        let lost = samples.iter().filter(|(from, sample)| {
            (since..now).contains(&sample.sent) && sample.failed.is_some() && !but_of.contains(&&**from)
        });
        lost.map(|(_, sample)| Timestamp::from_microsecond(sample.sent).unwrap())
            .collect()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        for load in &mut self.loads {
            // The cluster may have taken its nodes with it.
            let _ = load.kill();
            let _ = load.wait();
        }
    }
}
