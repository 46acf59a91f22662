//! Can every role do its work with exactly the rights that `deploy/` gives it, and does it say so if not?
//!
//! Roles run as the service accounts of their manifests, with the manifests' arguments, against a server that enforces
//! RBAC, and do what they do in a cluster. A single refused request fails the test.

use super::{apply, containers, deploy, rendered};
use pointsman_fabric::{Netns, Prefix};
use pointsman_harness::wire::Http;
use pointsman_harness::{Probed, Server, eventually, pod, quiet_port, token_file};
use serde_json::{Value, json};
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::{Child, Command};

const ADDRESS: &str = "10.77.0.1";
/// The service accounts of the folders; each one's token is its name.
const ACCOUNTS: [&str; 5] = [
    "pointsman-controllers",
    "pointsman-observer",
    "pointsman-probe",
    "pointsman-proxy",
    "pointsman-sli",
];
const PODS: &str = "/api/v1/namespaces/default/pods";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dweb";

/// A cluster without roles.
struct Cluster {
    server: Server,
    admin: Http,
    home: TempDir,
}

/// A role that runs with the rights of its folder.
struct Role {
    _process: Child,
    log: PathBuf,
    ready: String,
}

impl Cluster {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let names = ACCOUNTS.map(|account| format!("system:serviceaccount:kube-system:{account}"));
        let mut users: Vec<(&str, &str, &str)> = Vec::new();
        for (account, name) in ACCOUNTS.iter().zip(&names) {
            users.push((account, name, "system:serviceaccounts"));
        }
        let tokens = token_file(home.path(), &users);
        let server = Server::start(&["--token-auth-file", &tokens]).await;
        let admin = server.admin().await;
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        admin.post("/api/v1/nodes", &node).await.expect(201);
        let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": ADDRESS }],
            "conditions": [{ "type": "Ready", "status": "True" }] } });
        let path = "/api/v1/nodes/n1/status";
        admin.patch(path, "merge", &status).await.expect(200);
        Self { server, admin, home }
    }

    /// Applies a folder and starts its container as its service account. Some arguments are others than in the
    /// manifest, since there is one machine and no image.
    async fn role(&self, folder: &str, changed: &[(&str, &str)], ready: &str) -> Role {
        let manifest = rendered(&self.server, &deploy().join(folder)).await;
        let objects = apply(&self.server, &manifest, &[]).await;
        let account = objects.iter().find(|object| object["kind"] == "ServiceAccount");
        let account = account.unwrap()["metadata"]["name"].as_str().unwrap();
        let text = std::fs::read_to_string(self.server.kubeconfig()).unwrap();
        let mut config: Value = serde_saphyr::from_str(&text).unwrap();
        config["users"][0]["user"] = json!({ "token": account });
        let kubeconfig = self.home.path().join(format!("{account}.kubeconfig"));
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let flag = |argument: &str| argument.split('=').next().unwrap().to_owned();
        let container = containers(&objects).remove(0);
        let shipped = container["args"].as_array().unwrap().iter();
        let shipped = shipped.map(|argument| argument.as_str().unwrap());
        let shipped =
            shipped.filter(|argument| changed.iter().all(|(changed, _)| *changed != flag(argument)));
        let log = self.home.path().join(format!("{account}.log"));
        let process = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(shipped.map(|argument| {
                argument
                    .replace("$(NODE_NAME)", "n1")
                    .replace("$(NODE_IP)", ADDRESS)
            }))
            .args(changed.iter().map(|(flag, value)| format!("{flag}={value}")))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let role = Role {
            _process: process,
            log,
            ready: ready.to_owned(),
        };
        eventually(&format!("{folder} is ready"), async || {
            (role.readiness().await.0 == "200").then_some(())
        })
        .await;
        role
    }

    /// Says that a pod runs and is ready or not, as a kubelet does.
    async fn report(&self, name: &str, ready: &str) {
        let running = json!({ "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "x://1", "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } });
        let status = json!({ "status": { "phase": "Running", "podIP": ADDRESS, "podIPs": [{ "ip": ADDRESS }],
            "containerStatuses": [running], "conditions": [{ "type": "Ready", "status": ready }] } });
        let path = format!("{PODS}/{name}/status");
        self.admin
            .patch(&path, "strategic-merge", &status)
            .await
            .expect(200);
    }

    async fn pod(&self, name: &str, annotation: &str) {
        let mut made = pod(name);
        made["metadata"]["labels"] = json!({ "app": "web" });
        made["metadata"]["annotations"] = json!({ pointsman_probe_only::ANNOTATION: annotation });
        made["spec"]["readinessGates"] = json!([{ "conditionType": pointsman_probe_only::GATE }]);
        made["spec"]["nodeName"] = json!("n1");
        self.admin.post(PODS, &made).await.expect(201);
    }

    /// A Service of type LoadBalancer for the pods; returns where load balancers ask for its health.
    async fn service(&self) -> String {
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }], "type": "LoadBalancer",
                "externalTrafficPolicy": "Local" } });
        let path = "/api/v1/namespaces/default/services";
        let made = self.admin.post(path, &service).await.expect(201);
        format!("http://{ADDRESS}:{}/", made["spec"]["healthCheckNodePort"])
    }

    async fn slice_says(&self, ready: bool) {
        eventually("the slice follows the pod", async || {
            let list = self.admin.get(SLICES).await.json();
            let said = &list["items"][0]["endpoints"][0]["conditions"]["ready"];
            (*said == json!(ready)).then_some(())
        })
        .await;
    }

    /// Waits for an event whose reason begins so.
    async fn event(&self, reason: &str) {
        eventually(reason, async || {
            let events = self.admin.get("/api/v1/events").await.json();
            let mut events = events["items"].as_array().unwrap().iter();
            let found = events.any(|event| event["reason"].as_str().unwrap().starts_with(reason));
            found.then_some(())
        })
        .await;
    }

    /// Requests that were refused for want of a right, by the server's own count.
    async fn refused(&self) -> Vec<String> {
        let metrics = self.admin.get("/metrics").await.text;
        let refused = metrics
            .lines()
            .filter(|line| line.starts_with("apiserver_request_total") && line.contains("code=\"403\""));
        refused.map(str::to_owned).collect()
    }
}

impl Role {
    /// The code and the words of its readiness.
    async fn readiness(&self) -> (String, String) {
        let answer = ask(&self.ready, None).await;
        let (words, code) = answer.rsplit_once('\n').unwrap();
        (code.to_owned(), words.to_owned())
    }

    /// The lines of its log that complain of a missing right.
    fn complaints(&self) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let lines = log.lines().filter(|line| line.contains("a right is missing"));
        lines.map(str::to_owned).collect()
    }
}

/// What a server answers, and the code in a line of its own.
async fn ask(url: &str, token: Option<&str>) -> String {
    let mut command = Command::new("curl");
    command.args(["-sk", "--max-time", "20", "-w", "\n%{http_code}"]);
    if let Some(token) = token {
        command.arg("-H").arg(format!("authorization: Bearer {token}"));
    }
    let answer = command.arg(url).output().await.unwrap();
    String::from_utf8(answer.stdout).unwrap()
}

async fn answers(url: &str, token: Option<&str>, code: &str) {
    eventually(&format!("{url} answers {code}"), async || {
        ask(url, token).await.ends_with(code).then_some(())
    })
    .await;
}

#[test]
fn all_roles_do_their_work_together_with_exactly_their_shipped_rights() {
    if !rustix::process::geteuid().is_root() {
        return pointsman_testkit::skip::skip("a proxy needs root");
    }
    let namespace = Netns::anonymous().expect("root can make namespaces");
    let mut network = namespace.network().unwrap();
    network.set_up("lo").unwrap();
    let address = Prefix::host(ADDRESS.parse::<std::net::IpAddr>().unwrap());
    network.add_address("lo", address).unwrap();
    let ran = namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(all_roles());
    });
    ran.expect("the thread entered the namespace");
}

async fn all_roles() {
    let cluster = Cluster::start().await;
    let roles = start_roles(&cluster).await;
    let health = flip_readiness(&cluster).await;
    cluster.pod("bad", "httpGet: {}").await;
    cluster.report("bad", "False").await;
    cluster.event("InvalidProbeAnnotation").await;
    meet_a_second_proxy(&cluster).await;
    follow_ranges_and_peers(&cluster).await;
    collect().await;
    end_pod_and_service(&cluster, &health).await;

    assert_eq!(cluster.refused().await, Vec::<String>::new());
    for url in [
        "https://127.0.0.1:10257",
        "https://10.77.0.1:10249",
        "https://10.77.0.1:10250",
        "http://127.0.0.1:10270",
        "http://127.0.0.1:10272",
    ] {
        let metrics = ask(&format!("{url}/metrics"), Some("pointsman-sli")).await;
        assert!(
            metrics.contains("\npointsman_missing_rights 0\n"),
            "{url}: {metrics}"
        );
    }
    for role in &roles {
        assert_eq!(role.complaints(), Vec::<String>::new());
        assert_eq!(role.readiness().await.0, "200", "{}", role.ready);
    }
}

/// All of them on one node, each with its own rights.
async fn start_roles(cluster: &Cluster) -> [Role; 5] {
    let file = |name: &str, text: &str| {
        let path = cluster.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let config = file(
        "config.conf",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n",
    );
    let token = file("token", "pointsman-sli");
    let data = file("unused", "") + ".d";
    [
        cluster
            .role("controllers", &[], "https://127.0.0.1:10257/readyz")
            .await,
        cluster
            .role(
                "proxy",
                &[("--config", &config), ("--reset-dead-connections", "3s")],
                "http://127.0.0.1:10256/readyz",
            )
            .await,
        // On a node of its own it would have the proxy's port.
        cluster
            .role(
                "observer",
                &[
                    ("--config", &config),
                    ("--metrics-bind-address", "10.77.0.1:10250"),
                    ("--healthz-bind-address", "127.0.0.1:10273"),
                ],
                "http://127.0.0.1:10273/readyz",
            )
            .await,
        cluster
            .role(
                "sli",
                &[("--programmer-token-file", &token), ("--data-dir", &data)],
                "http://127.0.0.1:10271/readyz",
            )
            .await,
        cluster
            .role(
                "probe-only",
                &[("--probe-only-listen", "127.0.0.1:10272")],
                "http://127.0.0.1:10272/readyz",
            )
            .await,
    ]
}

/// A pod that its prober calls ready, until it does not; the address of its Service's health check.
async fn flip_readiness(cluster: &Cluster) -> String {
    let application = Probed::start(ADDRESS);
    application.answer(200);
    let probe = format!(
        "httpGet: {{port: {}}}\nperiodSeconds: 1\nfailureThreshold: 1",
        application.port
    );
    cluster.pod("web", &probe).await;
    let health = cluster.service().await;
    for (code, ready) in [(200, true), (503, false), (200, true)] {
        application.answer(code);
        cluster.report("web", "False").await;
        eventually("the prober writes its condition", async || {
            let pod = cluster.admin.get(&format!("{PODS}/web")).await.json();
            let conditions = pod["status"]["conditions"].as_array()?;
            let ours = conditions
                .iter()
                .find(|it| it["type"] == pointsman_probe_only::GATE)?;
            (ours["status"] == if ready { "True" } else { "False" }).then_some(())
        })
        .await;
        cluster.report("web", if ready { "True" } else { "False" }).await;
        cluster.slice_says(ready).await;
        answers(&health, None, if ready { "200" } else { "503" }).await;
    }
    health
}

/// kube-proxy comes back, as far as a table of its name shows it.
async fn meet_a_second_proxy(cluster: &Cluster) {
    let table = Command::new("nft")
        .args(["add", "table", "ip", "kube-proxy"])
        .status();
    assert!(table.await.unwrap().success());
    cluster.event("SecondServiceProxy").await;
    // As far as the observer sees, it writes no rules at all.
    cluster.event("ServiceProxyBehind").await;
}

async fn follow_ranges_and_peers(cluster: &Cluster) {
    // The proxy knows from which ranges cluster addresses come, now and later.
    let range = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": "more" }, "spec": { "cidrs": ["10.250.0.0/16"] } });
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    cluster.admin.post(path, &range).await.expect(201);
    eventually("the proxy follows ServiceCIDRs", async || {
        let set = ["list", "set", "ip", "pointsman", "service-cidrs"];
        let listed = Command::new("nft").args(set).output().await.unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        listed.contains("10.250.0.0/16").then_some(())
    })
    .await;

    // The proxy says whom it does not reach: nobody else is there.
    eventually("the proxy keeps a Lease beside the kubelet's", async || {
        let path = "/apis/coordination.k8s.io/v1/namespaces/pointsman-peers/leases/n1";
        let lease = cluster.admin.get(path).await.json();
        (lease["metadata"]["annotations"]["pointsman.io/unreachable-peers"] == "").then_some(())
    })
    .await;
}

/// The collector follows the proxy as its own account, and the API server says whose tokens those are.
async fn collect() {
    eventually("the collector follows the proxy", async || {
        let metrics = ask("http://127.0.0.1:10270/metrics", None).await;
        let live = r#"pointsman_sli_programmers{state="live"} 1"#;
        metrics.contains(live).then_some(())
    })
    .await;
    answers("https://127.0.0.1:10257/metrics", Some("pointsman-sli"), "200").await;
    answers("https://10.77.0.1:10250/metrics", Some("pointsman-sli"), "200").await;
    answers("https://127.0.0.1:10257/metrics", Some("pointsman-proxy"), "403").await;
}

/// The latency profile changes; the pod ends through the gate; the Service goes.
async fn end_pod_and_service(cluster: &Cluster, health: &str) {
    let profile = json!({ "spec": { "workerLatencyProfile": "MediumUpdateAverageReaction" } });
    let path = "/apis/config.openshift.io/v1/nodes/cluster";
    cluster.admin.patch(path, "merge", &profile).await.expect(200);
    cluster.admin.delete(&format!("{PODS}/web")).await.expect(200);
    answers(
        "http://127.0.0.1:10271/gate/v1/pods/default/web?bound=5s",
        None,
        "200",
    )
    .await;
    let service = "http://127.0.0.1:10271/gate/v1/namespaces/default/services/web?bound=1s";
    answers(service, None, "200").await;
    cluster.event("ShutdownGate").await;
    let service = "/api/v1/namespaces/default/services/web";
    cluster.admin.delete(service).await.expect(200);
    eventually("the slice goes with its Service", async || {
        let list = cluster.admin.get(SLICES).await.json();
        list["items"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    answers(health, None, "000").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_lacks_a_right_says_so_once_and_is_not_ready_until_it_has_it() {
    let cluster = Cluster::start().await;
    let listen = format!("127.0.0.1:{}", quiet_port());
    let changed = [("--metrics-listen", listen.as_str())];
    let role = cluster
        .role("controllers", &changed, &format!("http://{listen}/readyz"))
        .await;
    // As in a cluster where an older manifest was applied.
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/pointsman-endpointslice-controller";
    let shipped = cluster.admin.get(path).await.json();
    let mut lacking = shipped.clone();
    let slices = lacking["rules"].as_array_mut().unwrap().iter_mut();
    for rule in slices.filter(|rule| rule["resources"] == json!(["endpointslices"])) {
        let verbs = rule["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| verb != "patch");
    }
    let only_rules = |role: &Value| json!({ "rules": role["rules"] });
    cluster
        .admin
        .patch(path, "merge", &only_rules(&lacking))
        .await
        .expect(200);
    cluster.pod("web", "").await;
    cluster.report("web", "True").await;
    cluster.service().await;
    cluster.slice_says(true).await;
    cluster.report("web", "False").await;
    cluster.event("FailedToUpdateEndpointSlices").await;
    eventually("it is not ready, and says why", async || {
        let expected = "the API server refuses: patch endpointslices.discovery.k8s.io";
        (role.readiness().await == ("503".into(), expected.into())).then_some(())
    })
    .await;
    let metrics = format!("http://{listen}/metrics");
    let shown = ask(&metrics, None).await;
    assert!(shown.contains("\npointsman_missing_rights 1\n"), "{shown}");
    eventually("it tries again", async || {
        let refused = cluster.refused().await;
        let count = refused.first()?.rsplit_once(' ')?.1.parse::<f64>().ok()?;
        (refused.len() == 1 && count >= 3.0).then_some(())
    })
    .await;
    assert_eq!(role.complaints().len(), 1, "{:#?}", role.complaints());
    cluster
        .admin
        .patch(path, "merge", &only_rules(&shipped))
        .await
        .expect(200);
    cluster.slice_says(false).await;
    eventually("it is ready again", async || {
        (role.readiness().await.0 == "200").then_some(())
    })
    .await;
    let shown = ask(&metrics, None).await;
    assert!(shown.contains("\npointsman_missing_rights 0\n"), "{shown}");
}
