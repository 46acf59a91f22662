//! What does it cost to decide about one pod of a large Service that flips, without watches and writes?
//!
//! ```sh
//! cargo build -p pointsman-slices --example flip
//! valgrind --tool=callgrind --toggle-collect='*Controller*next*' target/debug/examples/flip 10000 20
//! ```
//!
//! Instructions do not depend on what else the machine does. The first number is that of endpoints, the second that
//! of flips; the first look at the Service and the first flip cost more, so compare two numbers of flips. The classic
//! Endpoints are decided about as well: `--toggle-collect='*Planner*desired*'` counts them instead.

#![expect(clippy::print_stdout, reason = "its output is the product")]

use std::sync::Arc;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::{EndpointSlice, Node, Pod, Service};
use pointsman_slices::controller::{Controller, Event, Job, Now, Written};
use pointsman_slices::endpoints::Planner;
use pointsman_slices::queue::Pace;
use pointsman_slices::{ServiceKey, Settings};
use serde_json::{Value, from_value, json};

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"));
    let (endpoints, flips): (usize, usize) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(20));
    let mut cluster = Cluster::new();
    cluster.controller.keep_touched();
    let (mut classic, key) = (Planner::default(), ServiceKey::new("default", "web"));
    for index in 0..endpoints {
        let pod = cluster.pod(index, true);
        cluster.observe(pod);
    }
    cluster.observe(Event::Listed);
    let job = cluster
        .controller
        .next(cluster.now())
        .0
        .expect("slices are missing");
    let (answers, events) = cluster.carry_out(&job);
    cluster.controller.finish(&job, &answers, cluster.now());
    events.into_iter().for_each(|event| cluster.observe(event));

    for round in 0..flips {
        // As far apart as can be, so that each is in a slice of its own.
        let pod = cluster.pod(round * 7919 % endpoints, false);
        let now = cluster.now();
        let job = decide(&mut cluster.controller, pod, now);
        let touched = cluster.controller.take_touched();
        touched.iter().for_each(|touched| classic.touched(touched));
        assert!(classic.desired(cluster.controller.index(), &key).is_some());
        let (answers, events) = cluster.carry_out(&job);
        cluster.controller.finish(&job, &answers, cluster.now());
        events.into_iter().for_each(|event| cluster.observe(event));
    }
    println!("{flips} flips of one of {endpoints} endpoints");
}

/// From the event to the bytes of the write.
fn decide(controller: &mut Controller, pod: Event, now: Now) -> Job {
    controller.observe(pod, now);
    let job = controller.next(now).0.expect("a flip is a job");
    let [update] = &*job.plan.update else {
        panic!("a flip changes one slice")
    };
    let patch = update.patch(job.update_times[0]);
    let body = patch.to_json_patch().unwrap_or_else(|| patch.to_merge_patch());
    assert!(!body.is_empty());
    job
}

/// The controller, and a server that does as it is asked.
struct Cluster {
    controller: Controller,
    slices: Vec<EndpointSlice>,
    clock: u64,
}

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self {
            controller: Controller::new(Settings::default(), Pace::default(), None),
            slices: Vec::new(),
            clock: 1,
        };
        for index in 0..20 {
            let labels = json!({ "topology.kubernetes.io/zone": format!("z{}", index % 3) });
            let node = json!({ "metadata": { "name": format!("n{index}"), "labels": labels } });
            let node: Node = from_value(node).expect("a node");
            cluster.observe(Event::Node(Arc::new(node)));
        }
        let service = json!({
            "metadata": { "namespace": "default", "name": "web", "uid": "web", "resourceVersion": "1" },
            "spec": { "clusterIP": "None", "ipFamilies": ["IPv4"], "selector": { "app": "web" },
                "ports": [{ "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 }] },
        });
        let service: Service = from_value(service).expect("a Service");
        cluster.observe(Event::Service(Arc::new(service)));
        cluster
    }

    fn observe(&mut self, event: Event) {
        self.controller.observe(event, self.now());
    }

    fn pod(&mut self, index: usize, ready: bool) -> Event {
        self.clock += 1;
        let pod = json!({
            "metadata": { "namespace": "default", "name": format!("p{index}"), "uid": format!("uid-{index}"),
                "resourceVersion": self.clock.to_string(), "labels": { "app": "web" } },
            "spec": { "nodeName": format!("n{}", index % 20),
                "containers": [{ "ports": [{ "name": "http", "containerPort": 8080 }] }] },
            "status": {
                "phase": "Running",
                "podIPs": [{ "ip": format!("10.64.{}.{}", index / 250, index % 250 + 1) }],
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            },
        });
        let pod: Pod = from_value(pod).expect("a pod");
        Event::Pod(Arc::new(pod))
    }

    fn now(&self) -> Now {
        Now {
            moment: Moment::from_seconds(2_000_000_000 + self.clock as i64),
            tick: Duration::from_secs(self.clock),
        }
    }

    /// Writes as an API server would; returns what it answers, and what its watch shows.
    fn carry_out(&mut self, job: &Job) -> (Vec<Written>, Vec<Event>) {
        let mut written = Vec::new();
        for create in &job.plan.create {
            let mut object: Value = serde_json::from_slice(&create.body(None)).expect("JSON");
            let name = format!("web-{}", self.slices.len());
            object["metadata"]["uid"] = name.clone().into();
            object["metadata"]["name"] = name.into();
            written.push(self.slices.len());
            self.slices.push(from_value(object).expect("a slice"));
        }
        for update in &job.plan.update {
            let named = |slice: &EndpointSlice| slice.metadata.name == update.name;
            let at = self.slices.iter().position(named).expect("a slice");
            update.apply(&mut self.slices[at], None);
            written.push(at);
        }
        let answers = written.iter().map(|at| Written::Slice {
            uid: self.slices[*at].metadata.uid.clone(),
            generation: self.slices[*at].metadata.generation,
        });
        let events = written
            .iter()
            .map(|at| Event::Slice(Box::new(self.slices[*at].clone())));
        (answers.collect(), events.collect())
    }
}
