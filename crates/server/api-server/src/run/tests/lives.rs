//! Does every kind that is a row and a schema live the same life, and say at its creation who acts upon it?

use super::certificates::asking;
use super::*;
use pointsman_rules::Kind;
use pointsman_rules::kind::ActedOn;
use pointsman_rules::kinds::declared;
use std::collections::BTreeMap;

/// An object of each kind, without its name. `PODS` and `TASKS` are templates.
const SAMPLES: &str = r#"
LimitRange {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}
PersistentVolumeClaim {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
PersistentVolume {"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/v"}}}
PodTemplate {"template": PODS}
ReplicationController {"spec": {"selector": {"a": "b"}, "template": PODS}}
ResourceQuota {"spec": {"hard": {"pods": "3"}}}
ControllerRevision {"revision": 1, "data": {"x": 1}}
StatefulSet {"spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": PODS}}
CronJob {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": TASKS}}}}
Job {"spec": {"template": TASKS}}
HorizontalPodAutoscaler {"spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}}
PodDisruptionBudget {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
PriorityClass {"value": 7}
RuntimeClass {"handler": "h"}
CSIDriver {"spec": {"attachRequired": false}}
CSINode {"spec": {"drivers": []}}
CSIStorageCapacity {"storageClassName": "s", "capacity": "1Gi"}
StorageClass {"provisioner": "example.com/p"}
VolumeAttachment {"spec": {"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}
VolumeAttributesClass {"driverName": "example.com", "parameters": {"a": "b"}}
DeviceClass {"spec": {"selectors": []}}
DeviceTaintRule {"spec": {"taint": {"key": "example.com/k", "effect": "NoSchedule"}}}
ResourceClaim {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}
ResourceClaimTemplate {"spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}}
ResourceSlice {"spec": {"driver": "example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}}
IngressClass {"spec": {"controller": "example.com/c"}}
Ingress {"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}
IPAddress {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}}
NetworkPolicy {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
ServiceCIDR {"spec": {"cidrs": ["10.200.0.0/24"]}}
ClusterTrustBundle {"spec": {"trustBundle": "x"}}
PodCertificateRequest {"spec": {"nodeName": "n", "nodeUID": "u", "podName": "p", "podUID": "u", "serviceAccountName": "s", "serviceAccountUID": "u", "signerName": "example.com/s", "maxExpirationSeconds": 3600, "stubPKCS10Request": "AAAA"}}
StorageVersionMigration {"spec": {"resource": {"group": "", "resource": "secrets"}}}
ValidatingAdmissionPolicy {"spec": {"validations": [{"expression": "true"}]}}
ValidatingAdmissionPolicyBinding {"spec": {"policyName": "p", "validationActions": ["Deny"]}}
MutatingAdmissionPolicy {"spec": {}}
MutatingAdmissionPolicyBinding {"spec": {"policyName": "p"}}
"#;

fn samples() -> BTreeMap<&'static str, Value> {
    let pods =
        r#"{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}"#;
    let tasks = pods.replace(r#""spec": {"#, r#""spec": {"restartPolicy": "Never", "#);
    let lines = SAMPLES.lines().filter_map(|line| line.split_once(' '));
    let objects = lines.map(|(kind, text)| {
        let text = text.replace("PODS", pods).replace("TASKS", &tasks);
        (kind, serde_json::from_str(&text).unwrap())
    });
    let request = asking("", "people", "example.com/s");
    objects.chain([("CertificateSigningRequest", request)]).collect()
}

fn collection(kind: &Kind) -> String {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let space = if kind.namespaced() {
        "/namespaces/default"
    } else {
        ""
    };
    format!("{root}/{}{space}/{}", kind.api_version(), kind.plural)
}

/// Whether the answer to the creation of a sample warns, that it has no effect.
async fn warned(world: &World, kind: &Kind, object: &Value) -> Option<String> {
    let response = world
        .send(&admin(), Method::POST, &collection(kind), object)
        .await;
    let code = response.status().as_u16();
    let warning = response.headers().get(http::header::WARNING).cloned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(code, 201, "{kind:?}: {}", String::from_utf8_lossy(&body));
    warning.map(|text| text.to_str().unwrap().to_owned())
}

/// Creates, reads, lists, changes and deletes an object; returns the types of the events of a watch.
async fn live(world: &World, kind: &Kind, path: &str, name: &str) -> Vec<String> {
    let made = world.json(path, "application/json").await;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(made["kind"], kind.kind);
    let list = collection(kind);
    let query = format!("fieldSelector=metadata.name%3D{name}");
    let listed = world.json(&format!("{list}?{query}"), "application/json").await;
    assert_eq!(
        listed["items"][0]["metadata"]["uid"], made["metadata"]["uid"],
        "{kind:?}"
    );
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = world.json(&format!("{list}?{query}"), table).await;
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(
        (table["kind"].as_str(), cells[0].as_str()),
        (Some("Table"), Some(name))
    );
    assert_eq!(
        cells.len(),
        table["columnDefinitions"].as_array().unwrap().len(),
        "{kind:?}"
    );

    let watch = format!("{list}?watch=1&{query}&resourceVersion={version}&timeoutSeconds=30");
    let mut events = world
        .send(&admin(), Method::GET, &watch, &Value::Null)
        .await
        .into_body();
    let change = json!({"metadata": {"labels": {"x": "y"}, "finalizers": null}});
    let (code, why) = world.ask(&admin(), Method::PATCH, path, &change).await;
    assert_eq!(code, 200, "{kind:?}: {why}");
    // Some kinds would wait for the garbage collector to let their dependents go.
    let now = format!("{path}?propagationPolicy=Background");
    let (code, why) = world.ask(&admin(), Method::DELETE, &now, &json!({})).await;
    assert_eq!(code, 200, "{kind:?}: {why}");
    let gone = world.json(path, "application/json").await;
    let told = json!({"name": name, "group": kind.group, "kind": kind.plural});
    let details = if kind.group.is_empty() {
        json!({"name": name, "kind": kind.plural})
    } else {
        told
    };
    assert_eq!(
        (&gone["code"], &gone["details"]),
        (&json!(404), &details),
        "{kind:?}"
    );
    let mut seen = String::new();
    while !seen.contains(r#""DELETED""#) {
        let frame = events.frame().await.expect("the watch goes on").unwrap();
        seen += std::str::from_utf8(&frame.into_data().unwrap()).unwrap();
    }
    let lines = seen
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

impl World {
    async fn json(&self, path: &str, accept: &str) -> Value {
        let response = self
            .send_for(&admin(), Method::GET, path, &Value::Null, accept)
            .await;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }
}

#[tokio::test]
async fn every_declared_kind_lives_a_whole_life_and_says_who_acts_upon_it() {
    let world = World::new().await;
    let mut samples = samples();
    for kind in declared::ALL {
        if !kind.verbs.contains(&"create") {
            let (code, _) = world
                .ask(&admin(), Method::POST, &collection(kind), &json!({}))
                .await;
            assert_eq!(code, 405, "{kind:?}");
            let none = world.json(&collection(kind), "application/json").await;
            assert_eq!(none["items"], json!([]), "{kind:?}");
            continue;
        }
        let name = if kind.kind == "IPAddress" {
            "10.96.200.1"
        } else {
            "sample"
        };
        let mut object = samples
            .remove(kind.kind)
            .unwrap_or_else(|| panic!("no sample of {kind:?}"));
        object["metadata"] = json!({"name": name});
        let warning = warned(&world, kind, &object).await;
        let expected = kind.acted_on.warning(kind.kind, |_| false);
        let expected = expected.map(|text| format!("299 - \"{text}\""));
        assert_eq!(warning, expected, "{kind:?}");
        let path = format!("{}/{name}", collection(kind));
        assert_eq!(
            live(&world, kind, &path, name).await,
            ["MODIFIED", "DELETED"],
            "{kind:?}"
        );
    }
    assert!(samples.is_empty(), "not served: {:?}", samples.keys());
}

#[tokio::test]
async fn nobody_is_warned_while_the_program_that_acts_leads() {
    let world = World::new().await;
    let lease = json!({"metadata": {"name": "kube-controller-manager"}, "spec": {"holderIdentity": "m",
        "leaseDurationSeconds": 600, "renewTime": format!("{:.6}", jiff::Timestamp::now())}});
    let leases = LEASES.replace("default", "kube-system");
    let (code, why) = world.ask(&admin(), Method::POST, &leases, &lease).await;
    assert_eq!(code, 201, "{why}");
    for (kind, mut object) in samples() {
        let kind = declared::ALL.iter().find(|row| row.kind == kind).unwrap();
        let silent = match kind.acted_on {
            ActedOn::Here => true,
            ActedOn::ByProgram(program) => program == "kube-controller-manager",
            ActedOn::Nowhere(_) => false,
        };
        let name = if kind.kind == "IPAddress" {
            "10.96.200.1"
        } else {
            "sample"
        };
        object["metadata"] = json!({"name": name});
        let warning = warned(&world, kind, &object).await;
        assert_eq!(warning.is_none(), silent, "{kind:?}: {warning:?}");
    }
}
