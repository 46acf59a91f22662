//! Endpoints of Services without a selector show in slices.

use pointsman_objects::endpoints::Endpoints;
use pointsman_objects::{EndpointSlice, Service};
use pointsman_slices::ServiceKey;
use pointsman_slices::mirror::{MAX_ADDRESSES, MirrorPlan, plan};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn read(endpoints: &Value) -> Endpoints {
    serde_json::from_value(endpoints.clone()).unwrap()
}

fn service(selector: Value) -> Service {
    let metadata = json!({ "namespace": "ns", "name": "db" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": { "selector": selector } })).unwrap()
}

fn endpoints(subsets: Value) -> Value {
    let labels = json!({ "team": "a", "endpointslice.kubernetes.io/managed-by": "me" });
    let annotations = json!({ "note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}" });
    json!({
        "metadata": { "namespace": "ns", "name": "db", "uid": "ep", "labels": labels, "annotations": annotations },
        "subsets": subsets,
    })
}

/// A server that carries plans out.
struct Server {
    key: ServiceKey,
    service: Option<Service>,
    endpoints: Option<Value>,
    slices: Vec<Value>,
    serial: usize,
}

impl Server {
    fn new(subsets: Value) -> Self {
        Self {
            key: ServiceKey::new("ns", "db"),
            service: Some(service(Value::Null)),
            endpoints: Some(endpoints(subsets)),
            slices: Vec::new(),
            serial: 0,
        }
    }

    fn plan(&self) -> MirrorPlan {
        let slices = self.slices.iter().cloned();
        let slices: Vec<EndpointSlice> = slices
            .map(|slice| serde_json::from_value(slice).unwrap())
            .collect();
        let endpoints = self.endpoints.as_ref().map(read);
        plan(&self.key, self.service.as_ref(), endpoints.as_ref(), &slices)
    }

    fn apply(&mut self) -> MirrorPlan {
        let plan = self.plan();
        for mirror in &plan.create {
            let mut slice: Value = serde_json::from_slice(&mirror.body()).unwrap();
            self.serial += 1;
            slice["metadata"]["name"] = format!("db-{}", self.serial).into();
            slice["metadata"]["uid"] = format!("{}", self.serial).into();
            self.slices.push(slice);
        }
        for update in &plan.update {
            let found = self
                .slices
                .iter_mut()
                .find(|slice| slice["metadata"]["name"] == *update.name);
            merge(found.unwrap(), &serde_json::from_slice(&update.body()).unwrap());
        }
        let gone = |slice: &Value| {
            plan.delete
                .iter()
                .any(|delete| slice["metadata"]["name"] == *delete.name)
        };
        self.slices.retain(|slice| !gone(slice));
        plan
    }

    /// What all slices together say: ports, address, readiness.
    fn said(&self) -> BTreeSet<String> {
        let mut said = BTreeSet::new();
        for slice in &self.slices {
            for endpoint in slice["endpoints"].as_array().unwrap() {
                let ready = &endpoint["conditions"]["ready"];
                said.insert(format!(
                    "{} {} {ready}",
                    slice["ports"][0]["port"], endpoint["addresses"][0]
                ));
            }
        }
        said
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    for (name, value) in fields {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(name)),
            value => merge(&mut target[name], value),
        }
    }
}

#[test]
fn a_mirror_has_labels_annotations_and_owner_of_the_endpoints() {
    let mut server = Server::new(json!([{
        "addresses": [{ "ip": "10.0.0.1", "nodeName": "n1", "hostname": "one" }, { "ip": "fd00::1" }],
        "notReadyAddresses": [{ "ip": "10.0.0.2" }],
        "ports": [{ "name": "sql", "port": 5432 }],
    }]));
    server.apply();
    assert_eq!(server.slices.len(), 2, "one for each family");
    let four = &server.slices[0];
    let labels = json!({
        "team": "a", "kubernetes.io/service-name": "db",
        "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
    });
    assert_eq!(four["metadata"]["labels"], labels);
    assert_eq!(four["metadata"]["annotations"], json!({ "note": "x" }));
    let owner = &four["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("Endpoints"), &json!("ep"))
    );
    let first = json!({ "addresses": ["10.0.0.1"], "conditions": { "ready": true }, "hostname": "one", "nodeName": "n1" });
    assert_eq!(four["endpoints"][0], first);
    assert_eq!(four["endpoints"][1]["conditions"], json!({ "ready": false }));
    assert_eq!(server.plan(), MirrorPlan::default());

    let name = four["metadata"]["name"].clone();
    server.endpoints.as_mut().unwrap()["metadata"]["annotations"] = json!({ "other": "y" });
    server.endpoints.as_mut().unwrap()["metadata"]["labels"] = json!({});
    assert_eq!(server.apply().update.len(), 2);
    let metadata = &server.slices[0]["metadata"];
    assert_eq!(
        (&metadata["name"], &metadata["annotations"]),
        (&name, &json!({ "other": "y" }))
    );
    assert_eq!(metadata["labels"].as_object().unwrap().len(), 2);
    assert_eq!(server.plan(), MirrorPlan::default());
}

#[test]
fn what_is_not_to_be_mirrored_goes_and_others_slices_stay() {
    let subsets = json!([{ "addresses": [{ "ip": "10.0.0.1" }], "ports": [{ "port": 80 }] }]);
    type Change = fn(&mut Server);
    let changes: [Change; 5] = [
        |server| server.service = None,
        |server| server.service = Some(service(json!({ "app": "db" }))),
        |server| server.endpoints = None,
        |server| {
            let labels = json!({ "endpointslice.kubernetes.io/skip-mirror": "true" });
            server.endpoints.as_mut().unwrap()["metadata"]["labels"] = labels;
        },
        |server| {
            let leader = json!({ "control-plane.alpha.kubernetes.io/leader": "{}" });
            server.endpoints.as_mut().unwrap()["metadata"]["annotations"] = leader;
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut server = Server::new(subsets.clone());
        server.apply();
        let mut stranger = server.slices[0].clone();
        stranger["metadata"]["name"] = "theirs".into();
        stranger["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "me".into();
        server.slices.push(stranger);
        change(&mut server);
        server.apply();
        assert_eq!(server.slices.len(), 1, "change {number}");
        assert_eq!(server.slices[0]["metadata"]["name"], "theirs");
    }
}

#[test]
fn too_many_addresses_are_counted_and_unreadable_ones_too() {
    let many: Vec<Value> = (0..1200)
        .map(|n| json!({ "ip": format!("10.0.{}.{}", n / 250, n % 250) }))
        .collect();
    let mut server = Server::new(json!([
        { "addresses": many, "ports": [{ "port": 80 }] }, { "addresses": [{ "ip": "odd" }], "ports": [{ "port": 81 }] },
    ]));
    let plan = server.apply();
    assert_eq!((plan.skipped, server.said().len()), (200, MAX_ADDRESSES));
    assert_eq!(read(server.endpoints.as_ref().unwrap()).invalid, 1);
}

proptest! {
    #[test]
    fn slices_say_what_the_endpoints_say_after_any_history(
        history in proptest::collection::vec(
            proptest::collection::vec((0u8..6, 0u8..3, any::<bool>()), 0..8), 1..6),
    ) {
        let mut server = Server::new(json!([]));
        for addresses in history {
            let mut subsets = Vec::new();
            let mut expected = BTreeSet::new();
            for (host, port, ready) in &addresses {
                let list = if *ready { "addresses" } else { "notReadyAddresses" };
                let ip = if host % 2 == 0 { format!("10.0.0.{host}") } else { format!("fd00::{host}") };
                subsets.push(json!({ list: [{ "ip": ip }], "ports": [{ "port": port }] }));
                let better = addresses.iter().any(|other| (other.0, other.1, other.2) == (*host, *port, true));
                expected.insert(format!("{port} \"{ip}\" {better}"));
            }
            server.endpoints = Some(endpoints(json!(subsets)));
            server.apply();
            prop_assert_eq!(server.said(), expected);
            prop_assert_eq!(server.plan(), MirrorPlan::default());
        }
    }
}
