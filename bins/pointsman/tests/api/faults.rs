//! Does bad input, a bad client or a full disk hurt anybody else?

use http::Method;
use pointsman_harness::wire::{Http, message, version_of};
use pointsman_harness::{BARE, Server, config_map, eventually, pod, token_file};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: (&str, &str) = ("content-type", "application/json");

async fn is_well(http: &Http) {
    assert_eq!(http.get("/readyz").await.text, "ok");
    http.get(MAPS).await.expect(200);
}

#[tokio::test]
async fn malformed_bodies_get_a_status_and_change_nothing() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(MAPS, &config_map("a", "1")).await.expect(201);
    let one = format!("{MAPS}/a");
    let deep = |open: &str, close: &str| format!("{{\"x\":{}{}}}", open.repeat(10_000), close.repeat(10_000));
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"\"text\"".to_vec(),
        b"{\"metadata\":{\"name\":\"b\"}} trailing".to_vec(),
        b"\xff\xfe{}".to_vec(),
        b"{\"metadata\":{\"name\":7}}".to_vec(),
        b"{\"metadata\":[]}".to_vec(),
        b"{\"metadata\":{\"name\":\"b\"},\"data\":{\"a\":1}}".to_vec(),
        b"{\"metadata\":{\"name\":\"b\"},\"data\":\"text\"}".to_vec(),
        deep("[", "]").into_bytes(),
        format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000)).into_bytes(),
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        for (method, path) in [(Method::POST, MAPS), (Method::PUT, one.as_str())] {
            let answer = http.raw(method.clone(), path, &[JSON], body.clone()).await;
            assert!(
                [400, 422].contains(&answer.code),
                "{method} {shown}: {}",
                answer.text
            );
            assert_eq!(answer.json()["kind"], "Status");
        }
        for media in [
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/json-patch+json",
        ] {
            let answer = http
                .raw(Method::PATCH, &one, &[("content-type", media)], body.clone())
                .await;
            let harmless = body == b"[]" && media == "application/json-patch+json";
            assert!(
                harmless || [400, 422].contains(&answer.code),
                "{media} {shown}: {}",
                answer.text
            );
        }
        if !body.is_empty() {
            let answer = http
                .raw(Method::DELETE, &format!("{MAPS}/missing"), &[JSON], body)
                .await;
            assert!(
                (400..500).contains(&answer.code),
                "DELETE {shown}: {}",
                answer.text
            );
        }
    }
    let yaml = "a: &a [x]\n".to_owned() + &"- [".repeat(5_000);
    let answer = http
        .raw(
            Method::POST,
            MAPS,
            &[("content-type", "application/yaml")],
            yaml.into_bytes(),
        )
        .await;
    assert_eq!(answer.code, 400, "{}", answer.text);
    let list = http.get(MAPS).await.expect(200);
    assert_eq!(
        (
            list["items"].as_array().unwrap().len(),
            &list["items"][0]["data"]["value"]
        ),
        (1, &json!("1"))
    );
    is_well(&http).await;
}

#[tokio::test]
async fn oversized_bodies_and_foreign_media_are_refused() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let sized = |bytes: usize| {
        let mut object = config_map("big", "");
        let overhead = object.to_string().len();
        object["data"]["value"] = "x".repeat(bytes - overhead).into();
        object
    };
    http.post(MAPS, &sized((3 << 20) + 1))
        .await
        .refused(413, "RequestEntityTooLarge");
    // The largest value that fits the request is still larger than a ConfigMap may be.
    assert!([413, 422].contains(&http.post(MAPS, &sized(3 << 20)).await.code));
    http.post(MAPS, &sized(1000 << 10)).await.expect(201);
    // With far too much the server may hang up before it has all arrived.
    if let Ok(answer) = http.try_post(MAPS, &sized(20 << 20)).await {
        assert_eq!(answer.code, 413);
    }
    for (method, path) in [
        (Method::POST, MAPS.to_owned()),
        (Method::PUT, format!("{MAPS}/big")),
    ] {
        let foreign = [("content-type", "application/cbor")];
        let refused = http.raw(method.clone(), &path, &foreign, b"\xa0".to_vec()).await;
        let refused = refused.refused(415, "UnsupportedMediaType");
        assert!(message(&refused).contains("application/json"), "{refused}");
        let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
        for body in [&b"{}"[..], b"k8s\0\x12\xff\xff\xff\x7f", b"k8s\0\n\x05"] {
            let answer = http.raw(method.clone(), &path, &protobuf, body.to_vec()).await;
            assert!([400, 422].contains(&answer.code), "{body:?}: {}", answer.text);
        }
    }
    let mut many = Vec::new();
    for _ in 0..10_001 {
        many.push(json!({"op": "add", "path": "/data/x", "value": "y"}));
    }
    assert!(
        [413, 422].contains(
            &http
                .patch(&format!("{MAPS}/big"), "json", &many.into())
                .await
                .code
        )
    );
    is_well(&http).await;
}

#[tokio::test]
async fn wrong_paths_types_selectors_and_versions_are_named() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    for path in [
        "/api/v1/widgets",
        "/apis/apps/v2/deployments",
        "/apis/nothing/v1/x",
        "/api/v1/namespaces/default/pods/a/b/c",
        "/no/such",
        "/apis/apps/v1/namespaces/default/pods",
    ] {
        assert_eq!(http.get(path).await.code, 404, "{path}");
    }
    http.post("/api/v1/pods", &pod("p"))
        .await
        .refused(405, "MethodNotAllowed");
    http.raw(
        Method::PATCH,
        PODS,
        &[("content-type", "application/merge-patch+json")],
        b"{}".to_vec(),
    )
    .await
    .refused(405, "MethodNotAllowed");
    http.delete("/api/v1/pods").await.refused(405, "MethodNotAllowed");
    let mut wrong = pod("p");
    wrong["spec"]["containers"] = "none".into();
    let refused = http.post(PODS, &wrong).await.refused(400, "BadRequest");
    assert!(message(&refused).contains("containers"), "{refused}");
    for query in [
        "limit=x",
        "labelSelector=%3D",
        "fieldSelector=a",
        "resourceVersion=-1",
        "resourceVersion=99999999999999999999999",
    ] {
        http.get(&format!("{PODS}?{query}"))
            .await
            .refused(400, "BadRequest");
    }
    http.get(&format!("{PODS}?unknown=1&limit=-5")).await.expect(200);
    // A version of another store: too new here.
    http.post(MAPS, &config_map("a", "1")).await.expect(201);
    let foreign = 1_u64 << 62;
    for query in [
        format!("resourceVersion={foreign}"),
        format!("resourceVersion={foreign}&resourceVersionMatch=Exact"),
        format!("limit=1&resourceVersion={foreign}"),
    ] {
        let refused = http.get(&format!("{MAPS}?{query}")).await.refused(504, "Timeout");
        assert_eq!(
            refused["details"]["causes"][0]["reason"],
            "ResourceVersionTooLarge"
        );
    }
    let mut stale = config_map("a", "2");
    for version in ["1", "999999999", "x"] {
        stale["metadata"]["resourceVersion"] = version.into();
        let answer = http.put(&format!("{MAPS}/a"), &stale).await;
        assert!(
            [400, 409, 422].contains(&answer.code),
            "{version}: {}",
            answer.text
        );
    }
    is_well(&http).await;
}

#[tokio::test]
async fn watchers_that_never_read_cost_little_and_disturb_nobody() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let big = "x".repeat(900 << 10);
    http.post(MAPS, &config_map("big", &big)).await.expect(201);
    let version = version_of(&http.get(MAPS).await.expect(200));
    let mut dead = Vec::new();
    for _ in 0..20 {
        dead.push(
            http.watch(&format!("{MAPS}?watch=1&resourceVersion={version}"))
                .await,
        );
    }
    let mut live = http
        .watch(&format!("{MAPS}?watch=1&resourceVersion={version}"))
        .await;
    let before = server.resident_bytes();
    let rounds = 45;
    for round in 0..rounds {
        http.put(
            &format!("{MAPS}/big"),
            &config_map("big", &format!("{round}{big}")),
        )
        .await
        .expect(200);
        let event = live.expect().await;
        assert!(
            event.object["data"]["value"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{round}x"))
        );
    }
    let grown = server.resident_bytes().saturating_sub(before) >> 20;
    eprintln!("{rounds} changes of 0.9 MiB before 20 dead watchers: resident memory grew by {grown} MiB");
    // The log of past changes may hold 32 MiB; twenty copies of everything would be over a thousand.
    assert!(grown < 300, "resident memory grew by {grown} MiB");
    // Who reads too late is told to start over, or cut off; never shown a gap.
    let mut late = dead.pop().unwrap();
    for round in 0..rounds {
        match late.next().await {
            Some(event) if event.kind == "ERROR" => {
                assert_eq!(event.object["code"], 410);
                break;
            }
            Some(event) => {
                let value = event.object["data"]["value"].as_str().unwrap();
                assert!(value.starts_with(&format!("{round}x")), "a change was left out");
            }
            None => break,
        }
    }
    is_well(&http).await;
}

#[tokio::test]
async fn silent_and_broken_connections_are_no_obstacle() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let address = server.address();
    let mut held = Vec::new();
    for at in 0..300 {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        match at % 3 {
            0 => {}
            1 => stream.write_all(b"\x16\x03\x01").await.unwrap(),
            _ => stream
                .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .await
                .unwrap(),
        }
        held.push(stream);
    }
    is_well(&http).await;
    // Plain HTTP on the TLS port is cut off.
    let mut answer = Vec::new();
    let read = tokio::time::timeout(pointsman_harness::SOON, held[2].read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "the connection stays open");
    drop(held);
    let bodies = (0..100).map(|at| {
        let http = http.clone();
        async move {
            http.post(MAPS, &config_map(&format!("m{at}"), "1"))
                .await
                .expect(201)
        }
    });
    futures::future::join_all(bodies).await;
    assert_eq!(
        http.get(MAPS).await.expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        100
    );
}

/// A small file system that is gone at the end.
struct SmallDisk(PathBuf, Option<tempfile::TempDir>);

impl SmallDisk {
    /// `None` where it cannot be made, and the test is skipped.
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let output = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .output();
        match output {
            Ok(output) if output.status.success() => Some(Self(dir.path().to_owned(), Some(dir))),
            other => {
                pointsman_testkit::skip::skip(&format!("a tmpfs cannot be mounted here: {other:?}"));
                None
            }
        }
    }

    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        for chunk in [1 << 20, 4096, 1] {
            let bytes = vec![0; chunk];
            while file.write_all(&bytes).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
        self.1.take();
    }
}

#[tokio::test]
async fn a_full_disk_fails_writes_clearly_and_nothing_else() {
    let Some(disk) = SmallDisk::mount("48m") else {
        return;
    };
    let mut server = Server::start_in(&disk.0.join("data"), &[BARE]).await;
    let http = server.admin().await;
    let value = "x".repeat(100 << 10);
    let mut acknowledged = Vec::new();
    for at in 0..5 {
        http.post(MAPS, &config_map(&format!("before{at}"), &value))
            .await
            .expect(201);
        acknowledged.push(format!("before{at}"));
    }
    let filler = disk.fill();
    let mut failed = None;
    for at in 0..200 {
        let answer = http.post(MAPS, &config_map(&format!("during{at}"), &value)).await;
        if answer.code != 201 {
            failed = Some(answer);
            break;
        }
        acknowledged.push(format!("during{at}"));
    }
    let failed = failed.expect("a write fails on a full disk");
    assert!(
        [500, 503, 507].contains(&failed.code),
        "{}: {}",
        failed.code,
        failed.text
    );
    let status = failed.json();
    assert_eq!(status["status"], "Failure");
    eprintln!("a write on a full disk: {} {}", failed.code, message(&status));
    // Reads and watches go on.
    let all_there = async |http: &Http| {
        let list = http.get(MAPS).await.expect(200);
        let names: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        for name in &acknowledged {
            assert!(names.contains(&name.as_str()), "{name} is lost");
        }
    };
    all_there(&http).await;
    http.get(&format!("{MAPS}/before0")).await.expect(200);
    std::fs::remove_file(filler).unwrap();
    eventually("writes work again", async || {
        let answer = http.post(MAPS, &config_map("after", "1")).await;
        assert!(
            [201, 409, 500, 503, 507].contains(&answer.code),
            "{}",
            answer.text
        );
        [201, 409].contains(&answer.code).then_some(())
    })
    .await;
    all_there(&http).await;
    server.kill().await;
    server.launch().await;
    let http = server.admin().await;
    all_there(&http).await;
    http.get(&format!("{MAPS}/after")).await.expect(200);
    http.post(MAPS, &config_map("again", "1")).await.expect(201);
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_noisy_client_does_not_starve_heartbeats() {
    let files = tempfile::tempdir().unwrap();
    let tokens = token_file(
        files.path(),
        &[("noisy", "noisy", ""), ("n1", "system:node:n1", "system:nodes")],
    );
    let server = Server::start(&[BARE, "--token-auth-file", &tokens]).await;
    let admin = server.admin().await;
    let binding = json!({"metadata": {"name": "noisy"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "noisy"}]});
    admin
        .post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding)
        .await
        .expect(201);
    for at in 0..100 {
        admin
            .post(MAPS, &config_map(&format!("m{at}"), &"x".repeat(500)))
            .await
            .expect(201);
    }
    let quiet = Arc::new(AtomicBool::new(false));
    let mut noise = Vec::new();
    for at in 0..100 {
        noise.push(tokio::spawn(make_noise(
            server.with_token(Some("noisy")).await,
            at,
            quiet.clone(),
        )));
    }
    let node = server.with_token(Some("n1")).await;
    assert_eq!(node.get("/readyz").await.code, 200);
    // On a thread of its own, so that only the server can be what makes it wait.
    let beating = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(beat(node, Duration::from_secs(5)))
    });
    let mut took = beating.await.unwrap();
    quiet.store(true, Ordering::Relaxed);
    let served = futures::future::join_all(noise).await;
    let (done, refused) = served
        .into_iter()
        .map(Result::unwrap)
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    eprintln!(
        "beside {done} noisy requests served and {refused} refused: {} heartbeats, p50 {:?}, p99 {p99:?}",
        took.len(),
        took[took.len() / 2]
    );
    assert!(done > 0, "the noisy client is served too");
    assert!(p99 < Duration::from_secs(2), "p99 of heartbeats is {p99:?}");
}

/// Lists and writes as fast as it is let; counts what was served and what was refused.
async fn make_noise(http: Http, at: usize, quiet: Arc<AtomicBool>) -> (usize, usize) {
    let (mut done, mut refused) = (0, 0);
    while !quiet.load(Ordering::Relaxed) {
        let name = format!("m{}", at % 100);
        let answer = match at % 3 {
            0 => {
                http.try_put(&format!("{MAPS}/{name}"), &config_map(&name, &format!("{done}")))
                    .await
            }
            _ => http.try_get(MAPS).await,
        };
        match answer {
            Ok(answer) if answer.code == 429 => {
                assert_eq!(answer.header("retry-after"), "1");
                refused += 1;
            }
            Ok(_) => done += 1,
            Err(_) => refused += 1,
        }
    }
    (done, refused)
}

/// Renews a lease again and again; gives how long each renewal took.
async fn beat(node: Http, period: Duration) -> Vec<Duration> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    let mut lease = node.post(leases, &lease).await.expect(201);
    let (mut took, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < period {
        let start = Instant::now();
        lease["spec"]["leaseTransitions"] = took.len().into();
        lease = node.put(&format!("{leases}/n1"), &lease).await.expect(200);
        took.push(start.elapsed());
    }
    took
}
