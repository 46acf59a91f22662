//! How long from start to Ready, by probe type, with and without a sub-second period?

use crate::containers::on_a_node_with_images;
use crate::lab::{Lab, on_a_node};
use pointsman_harness::containerd::BUSYBOX;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long the programs take before they answer.
const WARM_UP: &str = "0.3";

/// A program that answers one kind of probe on port 8080, after a while.
fn program(kind: &str) -> Value {
    json!(["python3", "-c", PROGRAM, kind, WARM_UP])
}

/// HTTP, bare TCP, gRPC health (fixed frames are enough for one check) and a file for exec.
const PROGRAM: &str = r#"
import socket, sys, threading, time
kind, wait = sys.argv[1], float(sys.argv[2])
time.sleep(wait)
if kind == "exec":
    open("/scratch/up", "w").close()
    time.sleep(3600)
listener = socket.create_server(("0.0.0.0", 8080))
def frame(kind, flags, stream, body):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
def literal(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
def grpc(peer):
    data = b""
    while len(data) < 24: data += peer.recv(4096)
    data = data[24:]
    peer.sendall(frame(4, 0, 0, b""))
    while True:
        while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
            more = peer.recv(4096)
            if not more: return
            data += more
        size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
        stream = int.from_bytes(data[5:9], "big")
        body, data = data[9:9 + size], data[9 + size:]
        if kind == 4 and not flags & 1: peer.sendall(frame(4, 1, 0, b""))
        if kind == 6 and not flags & 1: peer.sendall(frame(6, 1, 0, body))
        if kind == 0 and flags & 1:
            head = b"\x88" + literal(b"content-type", b"application/grpc")
            answer = frame(1, 4, stream, head) + frame(0, 0, stream, b"\x00\x00\x00\x00\x02\x08\x01")
            peer.sendall(answer + frame(1, 5, stream, literal(b"grpc-status", b"0")))
def http(peer):
    peer.recv(4096)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
def serve(peer):
    try:
        {"http": http, "grpc": grpc, "tcp": lambda peer: None}[kind](peer)
    finally:
        peer.close()
while True:
    peer, _ = listener.accept()
    threading.Thread(target=serve, args=(peer,), daemon=True).start()
"#;

fn probe(kind: &str, fast: bool) -> Value {
    let mut probe = match kind {
        "http" => json!({ "httpGet": { "port": 8080 } }),
        "tcp" => json!({ "tcpSocket": { "port": 8080 } }),
        "grpc" => json!({ "grpc": { "port": 8080 } }),
        _ => json!({ "exec": { "command": ["test", "-e", "/scratch/up"] } }),
    };
    probe["periodSeconds"] = 1.into();
    if fast {
        // The shortest that is allowed: 500 ms for exec, 200 ms for the others.
        probe["periodMilliseconds"] = if kind == "exec" { -500 } else { -800 }.into();
    }
    probe
}

/// How long a pod takes from the start of its container to Ready, as the API has it.
async fn time_to_ready(lab: &Lab, kind: &str, fast: bool, edit: fn(&mut Value)) -> Duration {
    let name = format!("{kind}-{}", if fast { "fast" } else { "plain" });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
            "containers": [{
                "name": "c", "image": "host", "command": program(kind), "readinessProbe": probe(kind, fast),
                "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }],
            }],
        },
    });
    edit(&mut pod["spec"]);
    lab.http
        .post("/api/v1/namespaces/default/pods", &pod)
        .await
        .expect(201);
    let running = |pod: &Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
    lab.pod_when(&name, running).await;
    let began = Instant::now();
    lab.ready(&name).await;
    let took = began.elapsed();
    lab.delete(&name).await;
    took
}

/// Has the container run from an image, with the machine's own python3.
fn from_image(spec: &mut Value) {
    spec["containers"][0]["image"] = BUSYBOX.into();
    for (name, path) in [("usr", "/usr"), ("lib", "/lib"), ("lib64", "/lib64")] {
        let volume = json!({ "name": name, "hostPath": { "path": path } });
        let mount = json!({ "name": name, "mountPath": path, "readOnly": true });
        spec["volumes"].as_array_mut().unwrap().push(volume);
        let mounts = &mut spec["containers"][0]["volumeMounts"];
        mounts.as_array_mut().unwrap().push(mount);
    }
}

async fn sub_second_periods_are_sooner(lab: &Lab, edit: fn(&mut Value)) {
    for kind in ["http", "tcp", "grpc", "exec"] {
        let fast = time_to_ready(lab, kind, true, edit).await;
        let plain = time_to_ready(lab, kind, false, edit).await;
        eprintln!("{kind}: {fast:?} with a sub-second period, {plain:?} with 1 s");
        assert!(
            fast + Duration::from_millis(150) < plain,
            "{kind}: {fast:?} against {plain:?}"
        );
    }
}

#[test]
fn a_sub_second_period_makes_pods_ready_sooner_with_every_kind_of_probe() {
    on_a_node(async |lab| sub_second_periods_are_sooner(lab, |_| ()).await);
}

#[test]
fn the_same_holds_for_containers_of_an_image() {
    on_a_node_with_images(async |lab| sub_second_periods_are_sooner(lab, from_image).await);
}
