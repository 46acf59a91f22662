//! What would somebody do to keep a server from its heartbeats, and how well do these get through?
//!
//! A [`Stage`] has a server, a node that renews its lease, and a tenant with rights in one namespace who attacks. Attackers
//! have threads of their own, so that what is measured is the server and not the one who measures.

mod connections;
mod requests;

use crate::wire::Http;
use crate::{SOON, Server, token_file};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// One way to attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Bodies whose values take far more memory than their text.
    TinyValues,
    /// JSON patches that copy an object into itself.
    CopyingPatches,
    /// JSON patches that shift a long list with every operation.
    ShiftingPatches,
    /// Strategic merge patches that name the same item again and again.
    RepeatingPatches,
    /// Dry runs of merge patches of 2 MB.
    LargePatches,
    /// Lists with selectors of 900 requirements.
    HugeSelectors,
    /// Tables of everything.
    Tables,
    /// Indented lists of everything.
    PrettyLists,
    AccessReviews,
    /// Requests whose bodies come byte by byte.
    SlowBodies,
    /// Requests for lists that nobody reads.
    SlowReaders,
    /// Logs of pods on a node that never answers.
    LogFollows,
    /// Connections that say nothing.
    IdleConnections,
    /// Connections that send the first byte of a handshake.
    OneByteConnections,
    /// Connections that speak HTTP/2 and ask for nothing.
    IdleHttp2,
}

impl Attack {
    pub const ALL: [Attack; 15] = [
        Attack::TinyValues,
        Attack::CopyingPatches,
        Attack::ShiftingPatches,
        Attack::RepeatingPatches,
        Attack::LargePatches,
        Attack::HugeSelectors,
        Attack::Tables,
        Attack::PrettyLists,
        Attack::AccessReviews,
        Attack::SlowBodies,
        Attack::SlowReaders,
        Attack::LogFollows,
        Attack::IdleConnections,
        Attack::OneByteConnections,
        Attack::IdleHttp2,
    ];

    /// What is done, for a table.
    pub fn name(self) -> &'static str {
        match self {
            Attack::TinyValues => "bodies of 100,000 tiny maps",
            Attack::CopyingPatches => "JSON patches that copy",
            Attack::ShiftingPatches => "JSON patches that shift a list",
            Attack::RepeatingPatches => "strategic patches that repeat an item",
            Attack::LargePatches => "dry-run patches of 2 MB",
            Attack::HugeSelectors => "selectors of 900 requirements",
            Attack::Tables => "tables of everything",
            Attack::PrettyLists => "indented lists of everything",
            Attack::AccessReviews => "access reviews",
            Attack::SlowBodies => "bodies that come byte by byte",
            Attack::SlowReaders => "lists that nobody reads",
            Attack::LogFollows => "logs of a node that never answers",
            Attack::IdleConnections => "connections that say nothing",
            Attack::OneByteConnections => "connections that send one byte",
            Attack::IdleHttp2 => "idle HTTP/2 connections",
        }
    }
}

/// A server with a heartbeat and a tenant who means ill.
pub struct Stage {
    pub server: Server,
    node: Http,
    /// An address that takes connections and never answers.
    _silent: tokio::net::TcpListener,
    _home: TempDir,
}

/// How long requests took.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Renewals of a node's lease.
    pub renewals: Vec<Duration>,
    pub livez: Vec<Duration>,
}

/// An attack under way; it ends when this is dropped.
pub struct Attackers(Option<Runtime>);

impl Drop for Attackers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const TENANT: &str = "tenant-token";
const WRITERS: usize = 32;
const PAUSE: Duration = Duration::from_millis(20);

impl Stage {
    /// Starts a server with `objects` ConfigMaps of some kilobytes.
    pub async fn set(objects: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        let tokens = [
            ("node-token", "system:node:n1", "system:nodes"),
            (TENANT, "mallory", ""),
        ];
        let tokens = token_file(home.path(), &tokens);
        let server = Server::start(&["--token-auth-file", &tokens, "--log=warn"]).await;
        let admin = server.admin().await;
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        grant(&admin).await;
        let node = server.with_token(Some("node-token")).await;
        let n1 = json!({"metadata": {"name": "n1"}});
        node.post("/api/v1/nodes", &n1).await.expect(201);
        let port = silent.local_addr().unwrap().port();
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let patched = node.patch("/api/v1/nodes/n1/status", "merge", &status).await;
        patched.expect(200);
        node.post(
            LEASES,
            &json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}),
        )
        .await
        .expect(201);
        for pod in requests::pods() {
            admin.post(PODS, &pod).await.expect(201);
        }
        let text = "x".repeat(4 << 10);
        // Many at a time, which one commit of the store makes durable together.
        let fill = (0..WRITERS).map(|writer| {
            let (admin, text) = (admin.clone(), text.clone());
            tokio::spawn(async move {
                for at in (writer..objects).step_by(WRITERS) {
                    let map = json!({"metadata": {"name": format!("m{at}"), "labels": {"at": at.to_string()}}, "data": {"text": text}});
                    admin.post(MAPS, &map).await.expect(201);
                }
            })
        });
        for writer in fill.collect::<Vec<_>>() {
            writer.await.expect("the ConfigMaps are there");
        }
        Self {
            server,
            node,
            _silent: silent,
            _home: home,
        }
    }

    /// Renews the lease and asks for `/livez`, again and again, for `time`.
    pub async fn measure(&self, time: Duration) -> Latencies {
        let end = Instant::now() + time;
        let renew = async |at: usize| {
            let renewal = json!({"spec": {"leaseDurationSeconds": 40 + at % 2}});
            let lease = format!("{LEASES}/n1");
            let answer = tokio::time::timeout(SOON, self.node.patch(&lease, "merge", &renewal)).await;
            answer.expect("the lease is renewed").expect(200);
        };
        let alive = async |_: usize| {
            let answer = tokio::time::timeout(SOON, self.node.get("/livez")).await;
            assert_eq!(answer.expect("the server is alive").text, "ok");
        };
        let (renewals, livez) = tokio::join!(repeated(end, renew), repeated(end, alive));
        Latencies { renewals, livez }
    }

    /// Starts an attack.
    pub async fn launch(&self, attack: Attack) -> Attackers {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let target = connections::Target::new(&self.server);
        let tenant = self.server.with_token(Some(TENANT)).await;
        match attack {
            Attack::SlowBodies => connections::slow_bodies(&runtime, &target, TENANT),
            Attack::SlowReaders => connections::slow_readers(&runtime, &target, TENANT),
            Attack::IdleConnections => connections::silent(&runtime, &target, b""),
            Attack::OneByteConnections => connections::silent(&runtime, &target, b"\x16"),
            Attack::IdleHttp2 => connections::idle_http2(&runtime, &target),
            _ => requests::flood(&runtime, attack, &tenant),
        }
        Attackers(Some(runtime))
    }
}

async fn repeated(end: Instant, mut request: impl AsyncFnMut(usize)) -> Vec<Duration> {
    let mut took = Vec::new();
    while Instant::now() < end {
        let started = Instant::now();
        request(took.len()).await;
        took.push(started.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    took
}

/// Gives the tenant what tenants have: one namespace.
async fn grant(admin: &Http) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rule = json!({"apiGroups": [""], "resources": ["configmaps", "pods", "pods/log"], "verbs": ["*"]});
    let role = json!({"metadata": {"name": "tenant"}, "rules": [rule]});
    admin.post(&format!("{rbac}/roles"), &role).await.expect(201);
    let group = "rbac.authorization.k8s.io";
    let binding: Value = json!({
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "tenant"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "mallory"}],
    });
    admin
        .post(&format!("{rbac}/rolebindings"), &binding)
        .await
        .expect(201);
}
