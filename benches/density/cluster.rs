//! The processes under measurement, and what they have used.

use pointsman_api_client::Client;
use pointsman_benches::nodes::are_settled;
use pointsman_benches::process::{Usage, usage};
use pointsman_benches::server::{Server, quiet};
use serde_json::Value;
use std::time::Duration;
use tokio::process::{Child, Command};

/// The loops that a cluster of bare pods needs.
const LOOPS: &str = "--controllers=endpointslice,scheduler,podgc,nodelifecycle,tainteviction";

/// An API server, the loops, and hollow nodes.
pub struct Cluster {
    server: Server,
    loops: Child,
    nodes: Child,
}

/// What each of them has used so far.
pub struct Usages {
    pub server: Usage,
    pub loops: Usage,
    pub nodes: Usage,
    /// What creates pods and watches slices: the program that measures.
    pub load: Usage,
}

impl Cluster {
    /// Returns when pods may be placed on all nodes.
    pub async fn start(program: &str, nodes: usize) -> Self {
        let server = Server::start(program).await;
        let start = |arguments: &[&str], kubeconfig: std::path::PathBuf| {
            let mut command = Command::new(program);
            quiet(command.args(arguments).arg("--kubeconfig").arg(kubeconfig))
        };
        let count = format!("--nodes={nodes}");
        let hollow = start(&["hollow", "--log=warn", &count], server.kubeconfig());
        let quietly = ["--leader-elect=false", "--metrics-listen=off", "--log=warn"];
        let controllers = [&["controllers", LOOPS][..], &quietly].concat();
        let loops = start(&controllers, server.kubeconfig_of("controllers"));
        while !are_settled(&server.client, nodes).await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Self {
            server,
            loops,
            nodes: hollow,
        }
    }

    pub fn client(&self) -> &Client {
        &self.server.client
    }

    pub fn usages(&self) -> Usages {
        let of = |child: &Child| usage(child.id().expect("it runs")).expect("it runs");
        Usages {
            server: of(&self.server.process),
            loops: of(&self.loops),
            nodes: of(&self.nodes),
            load: usage(std::process::id()).expect("this process runs"),
        }
    }

    /// Nodes that the loops believe to be silent, which none of them is.
    pub async fn unready_nodes(&self) -> usize {
        let nodes: Value = self.client().get_path("/api/v1/nodes").await.expect("a list");
        let nodes = nodes["items"].as_array().expect("items");
        let taints = |node: &&Value| {
            node["spec"]["taints"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        };
        nodes.iter().filter(taints).count()
    }
}
