//! What does the controller keep for a pod, with its share of a Service and a slice?

use std::sync::Arc;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::{EndpointSlice, Interner, Node, Pod, Service};
use pointsman_slices::Settings;
use pointsman_slices::controller::{Controller, Event, Now, Written};
use pointsman_slices::queue::Pace;
use pointsman_testkit::heap::Heap;
use serde_json::{Value, from_slice, from_str, json};

#[global_allocator]
static HEAP: Heap = Heap::new();

const SERVICES: usize = 2_000;
const PODS: usize = 5;

const NOW: Now = Now {
    moment: Moment::from_seconds(2_000_000_000),
    tick: Duration::from_secs(1),
};

#[test]
fn a_pod_with_its_share_of_a_service_takes_little_memory() {
    let before = HEAP.held();
    let mut interner = Interner::default();
    let mut controller = Controller::new(Settings::default(), Pace::default(), None);
    for number in 0..20 {
        let node = json!({ "metadata": { "name": format!("n{number}") } });
        let node: Node = from_str(&node.to_string()).unwrap();
        controller.observe(Event::Node(Arc::new(node)), NOW);
    }
    for number in 0..SERVICES {
        let mut service: Service = from_str(&service(number).to_string()).unwrap();
        service.intern(&mut interner);
        controller.observe(Event::Service(Arc::new(service)), NOW);
        for pod in 0..PODS {
            let mut pod: Pod = from_str(&pod_of(number, number * PODS + pod).to_string()).unwrap();
            pod.intern(&mut interner);
            controller.observe(Event::Pod(Arc::new(pod)), NOW);
        }
    }
    controller.observe(Event::Listed, NOW);
    let mut written = 0;
    while let (Some(job), _) = controller.next(NOW) {
        written += 1;
        let mut slice: Value = from_slice(&job.plan.create[0].body(None)).unwrap();
        slice["metadata"]["name"] = format!("s{written}-x7k2p").into();
        slice["metadata"]["uid"] = uid("5", written).into();
        slice["metadata"]["resourceVersion"] = (100_000 + written).to_string().into();
        let slice: EndpointSlice = from_str(&slice.to_string()).unwrap();
        let (uid, generation) = (slice.metadata.uid.clone(), slice.metadata.generation);
        controller.finish(&job, &[Written::Slice { uid, generation }], NOW);
        controller.observe(Event::Slice(Box::new(slice)), NOW);
    }
    assert_eq!(written, SERVICES);
    let each = (HEAP.held() - before) / (SERVICES * PODS);
    assert!((500..LIMIT).contains(&each), "{each} bytes");
}

/// It was 1,800 when the blocks of endpoints kept the size of what they were read from, and each set was a table.
const LIMIT: usize = 1_300;

fn uid(kind: &str, number: usize) -> String {
    format!("{kind:0>8}-5f0e-4a53-9b5b-{number:012}")
}

fn service(number: usize) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": format!("s{number}"), "uid": uid("1", number), "resourceVersion": number.to_string() },
        "spec": { "clusterIP": "None", "ipFamilies": ["IPv4"], "selector": { "app": format!("s{number}") },
            "ports": [{ "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 }] },
    })
}

fn pod_of(service: usize, number: usize) -> Value {
    let ip = format!("10.64.{}.{}", number / 250, number % 250 + 1);
    json!({
        "metadata": { "namespace": "default", "name": format!("p{number}"), "uid": uid("2", number),
            "resourceVersion": (50_000 + number).to_string(),
            "labels": { "app": format!("s{service}"), "pod-template-hash": "5d8f9c7b6" } },
        "spec": { "nodeName": format!("n{}", number % 20),
            "containers": [{ "ports": [{ "name": "http", "containerPort": 8080 }] }] },
        "status": { "phase": "Running", "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}
