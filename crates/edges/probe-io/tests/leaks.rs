//! Nothing is left behind: descriptors are counted around a crowd of bad servers. Alone in its
//! process, because descriptors are counted for the whole of it.

use pointsman_probe_io::{Config, Floors, NoExec, Prober, Reading, Started};
use pointsman_telemetry::Registry;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// A process that serves badly would be best; threads that close what they accept do too, once
/// asked to.
fn serve(behave: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || behave(stream));
        }
    });
    port
}

fn until_closed(mut stream: TcpStream) {
    while stream.read(&mut [0; 1024]).is_ok_and(|length| length > 0) {}
}

fn keep_alive(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 1024]);
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    until_closed(stream);
}

fn endless(mut stream: TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    while stream.write_all(&[b'x'; 1024]).is_ok() {}
}

fn reset(stream: TcpStream) {
    drop(stream);
}

#[tokio::test]
async fn no_descriptor_is_left_behind_by_any_kind_of_server() {
    let ports = [
        serve(until_closed),
        serve(keep_alive),
        serve(endless),
        serve(reset),
    ];
    let (prober, mut reports) =
        Prober::start(Config::default(), Arc::new(NoExec), &Registry::new()).expect("the prober starts");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = descriptors();
    let floors = Floors::uniform(20);
    let reading = Reading {
        floors,
        ..Reading::default()
    };
    let uid = |at: usize| format!("pod-{at}");
    for at in 0..80 {
        let handler = match at % 3 {
            0 => json!({"httpGet": {"port": ports[at % 4]}}),
            1 => json!({"httpGet": {"port": ports[at % 4], "scheme": "HTTPS"}}),
            _ => json!({"grpc": {"port": ports[at % 4]}}),
        };
        let mut probe = handler;
        probe["periodSeconds"] = json!(1);
        probe["periodMilliseconds"] = json!(-980);
        probe["timeoutMilliseconds"] = json!(-900);
        let pod = json!({"metadata": {"uid": uid(at), "name": uid(at), "namespace": "test"},
            "spec": {"containers": [{"name": "c", "readinessProbe": probe, "livenessProbe": probe}]}});
        let pod = serde_json::from_value(pod).expect("a pod");
        prober.set_pod(reading.pod(&pod, Some(Ipv4Addr::LOCALHOST.into())));
        prober.container_started(&uid(at), "c", Started::default());
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1200) {
        let _ = tokio::time::timeout(Duration::from_millis(100), reports.recv()).await;
        // Containers that restart under their checks.
        for at in (0..80).step_by(7) {
            prober.container_stopped(&uid(at), "c");
            prober.container_started(&uid(at), "c", Started::default());
        }
    }
    assert!(descriptors() > before, "checks are under way");
    for at in 0..80 {
        prober.remove_pod(&uid(at));
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while descriptors() > before {
        assert!(
            Instant::now() < deadline,
            "{} descriptors, {before} before",
            descriptors()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
