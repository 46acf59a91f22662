//! A little world to plan in: builders in API JSON, and a store that carries out plans.
#![allow(dead_code, reason = "every test file uses its own part")]

use pointsman_model::{Interner, Moment};
use pointsman_objects::endpoint_slice::Endpoint;
use pointsman_objects::{EndpointSlice, Node, Pod, Service};
use pointsman_slices::{Inputs, NodeFacts, Nodes, Settings, SlicePlan, ZoneCapacity, plan};
use serde_json::{Value, json};

/// A ready pod of app `web` on node `n1` with one IPv4 address.
pub fn pod_json(index: usize) -> Value {
    json!({
        "metadata": { "namespace": "ns", "name": format!("pod{index:04}"), "uid": format!("uid{index}"),
                      "resourceVersion": "1", "labels": { "app": "web" } },
        "spec": { "nodeName": "n1", "containers": [{ "ports": [{ "name": "http", "containerPort": 8080 }] }] },
        "status": {
            "phase": "Running",
            "podIPs": [{ "ip": format!("10.0.{}.{}", index / 250, index % 250 + 1) }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        },
    })
}

pub fn pod_with(index: usize, edit: impl FnOnce(&mut Value)) -> Pod {
    let mut value = pod_json(index);
    edit(&mut value);
    serde_json::from_value(value).expect("a pod")
}

pub fn pod(index: usize) -> Pod {
    pod_with(index, |_| {})
}

pub fn pods(count: usize) -> Vec<Pod> {
    (0..count).map(pod).collect()
}

pub fn set_ready(pod: &mut Value, ready: bool) {
    pod["status"]["conditions"][0]["status"] = if ready { "True" } else { "False" }.into();
}

pub fn set_deleted(pod: &mut Value) {
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
}

/// A Service `ns/svc` of app `web` with one IPv4 port 80 to 8080.
pub fn service_json() -> Value {
    json!({
        "metadata": { "namespace": "ns", "name": "svc", "uid": "svc-uid", "resourceVersion": "1",
                      "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "selector": { "app": "web" },
            "ports": [{ "name": "web", "protocol": "TCP", "port": 80, "targetPort": 8080 }],
        },
    })
}

pub fn service_with(edit: impl FnOnce(&mut Value)) -> Service {
    let mut value = service_json();
    edit(&mut value);
    serde_json::from_value(value).expect("a service")
}

pub fn service() -> Service {
    service_with(|_| {})
}

pub fn node(name: &str, zone: &str, cpu: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": zone } },
        "status": { "allocatable": { "cpu": cpu }, "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .expect("a node")
}

pub fn facts(node: &Node) -> NodeFacts {
    NodeFacts::of(node, &mut Interner::default())
}

/// One Service's world, and a store for its slices.
#[derive(Clone)]
pub struct World {
    pub service: Service,
    pub pods: Vec<Pod>,
    pub nodes: Nodes,
    pub zones: ZoneCapacity,
    pub slices: Vec<EndpointSlice>,
    pub settings: Settings,
    next_name: usize,
}

impl World {
    pub fn new(service: Service, pods: Vec<Pod>) -> Self {
        let mut world = Self {
            service,
            pods,
            nodes: Nodes::new(),
            zones: ZoneCapacity::default(),
            slices: Vec::new(),
            settings: Settings::default(),
            next_name: 0,
        };
        world.set_nodes([node("n1", "", "4")]);
        world
    }

    pub fn set_nodes(&mut self, nodes: impl IntoIterator<Item = Node>) {
        self.nodes = nodes
            .into_iter()
            .map(|node| (node.metadata.name.clone(), facts(&node)))
            .collect();
        self.zones = ZoneCapacity::from_nodes(self.nodes.values());
    }

    pub fn plan(&self) -> SlicePlan {
        let inputs = Inputs {
            service: &self.service,
            pods: self.pods.iter().collect(),
            slices: self.slices.iter().collect(),
            nodes: &self.nodes,
            zones: &self.zones,
        };
        plan(&inputs, &self.settings)
    }

    /// Carries a plan out as an API server would, through the JSON it would be sent.
    pub fn apply(&mut self, plan: &SlicePlan) {
        for create in &plan.create {
            let mut object: Value = serde_json::from_slice(&create.body(None)).expect("JSON");
            let name = format!(
                "{}{:05}",
                object["metadata"]["generateName"].as_str().expect("a base"),
                self.next_name
            );
            object["metadata"]["name"] = name.into();
            object["metadata"]["uid"] = format!("slice{}", self.next_name).into();
            object["metadata"]["resourceVersion"] = "1".into();
            self.next_name += 1;
            self.slices.push(serde_json::from_value(object).expect("a slice"));
        }
        for update in &plan.update {
            let slice = self
                .slices
                .iter_mut()
                .find(|slice| slice.metadata.name == update.name)
                .expect("a known slice");
            update.apply(slice, None::<Moment>);
        }
        for delete in &plan.delete {
            let before = self.slices.len();
            self.slices.retain(|slice| slice.metadata.name != delete.name);
            assert_eq!(self.slices.len() + 1, before, "deleted a slice that is there");
        }
    }

    /// Plans and applies; returns creates, updates and deletes. The world is quiet afterwards.
    pub fn sync(&mut self) -> (usize, usize, usize) {
        let plan = self.plan();
        self.apply(&plan);
        let again = self.plan();
        assert!(again.is_empty(), "planning again gives {again:?}");
        (plan.create.len(), plan.update.len(), plan.delete.len())
    }

    /// Sizes of all slices, largest first.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.slices.iter().map(|slice| slice.endpoints.len()).collect();
        sizes.sort_by(|a, b| b.cmp(a));
        sizes
    }

    pub fn endpoints(&self) -> Vec<&Endpoint> {
        self.slices.iter().flat_map(|slice| &slice.endpoints).collect()
    }

    pub fn only_endpoint(&self) -> &Endpoint {
        let endpoints = self.endpoints();
        assert_eq!(endpoints.len(), 1);
        endpoints[0]
    }

    /// Adds an owned slice of the world's ports with these pods.
    pub fn put_slice(&mut self, pods: std::ops::Range<usize>) {
        let mut other = World::new(self.service.clone(), pods.map(pod).collect());
        other.settings.max_endpoints_per_slice = 1000;
        other.nodes.clone_from(&self.nodes);
        other.next_name = self.next_name;
        other.sync();
        self.next_name = other.next_name;
        self.slices.extend(other.slices);
    }
}
