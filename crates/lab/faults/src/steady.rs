//! Is everything as it should be again, and if not, why not?

use super::cluster::Cluster;
use super::objects::{self, NAMESPACE, SERVICE, items, text};
use super::witness::Notes;
use pointsman_api_client::{Resource, Scope};
use pointsman_cluster::rollout::is_rolled_out;
use pointsman_fabric::Netns;
use pointsman_objects::Node;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the cluster is not in its steady state; nothing if it is.
pub async fn unsteady(cluster: &Cluster, notes: &Notes) -> Vec<String> {
    let mut reasons = match tokio::time::timeout(PATIENCE, objects_unsteady(cluster, notes)).await {
        Ok(Ok(reasons)) => reasons,
        Ok(Err(error)) => vec![format!("{error:#}")],
        Err(_) => vec!["the API server does not answer".to_owned()],
    };
    // What follows starts programs, so that it is asked last.
    if reasons.is_empty() {
        reasons = match kernel_unsteady(cluster).await {
            Ok(reasons) => reasons,
            Err(error) => vec![format!("{error:#}")],
        };
    }
    reasons
}

async fn objects_unsteady(cluster: &Cluster, notes: &Notes) -> anyhow::Result<Vec<String>> {
    let mut reasons = nodes_unsteady(cluster).await?;
    reasons.extend(deployment_unsteady(cluster).await?);
    let pods = objects::pods(&cluster.client).await?;
    for pod in &pods {
        let name = &pod.metadata.name;
        if pod.is_terminating() {
            reasons.push(format!("pod {name} is terminating"));
        } else if !pod.is_ready() {
            reasons.push(format!("pod {name} is not ready"));
        }
    }
    let names: BTreeSet<String> = pods.iter().map(|pod| pod.metadata.name.to_string()).collect();
    let slices = objects::slices(&cluster.client, SERVICE).await?;
    if slices.listed != names || slices.ready != names {
        reasons.push(format!("slices list {:?} and pods are {names:?}", slices.listed));
    }
    let marks: BTreeMap<String, u64> = {
        let recorded = notes.lock();
        let marks = recorded.marks.iter();
        marks.map(|mark| (mark.node.clone(), mark.version)).collect()
    };
    for node in &cluster.record.nodes {
        let mark = marks.get(&node.name).copied().unwrap_or(0);
        if mark < slices.version {
            reasons.push(format!(
                "{} has version {mark} of slices and {} is the newest",
                node.name, slices.version
            ));
        }
    }
    Ok(reasons)
}

async fn nodes_unsteady(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let mut reasons = Vec::new();
    for node in cluster.client.list::<Node>(&Scope::all(Resource::NODES)).await? {
        let name = &node.metadata.name;
        if !node.is_ready() {
            reasons.push(format!("node {name} is not ready"));
        }
        if !node.taints.is_empty() {
            reasons.push(format!("node {name} is tainted: {:?}", node.taints));
        }
    }
    Ok(reasons)
}

async fn deployment_unsteady(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let deployments = cluster.client.api(Resource::DEPLOYMENTS, Some(NAMESPACE));
    let deployment: Value = deployments.get(SERVICE).await?;
    let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
    Ok((!is_rolled_out(&deployment)).then(|| format!("the Deployment wants {wanted} pods and has {status}")))
}

/// Whether every kernel holds exactly what it should, and `status` agrees.
async fn kernel_unsteady(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let mut reasons = Vec::new();
    let services: Value = cluster.client.get_path("/api/v1/services").await?;
    let addresses: BTreeSet<String> = items(&services)
        .map(|service| text(&service["spec"]["clusterIP"]))
        .collect();
    let mut ways: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in &cluster.record.nodes {
        reasons.extend(explain(cluster, &node.name, &node.namespace).await?);
        let listing = listing(cluster, &node.namespace)?;
        let held = addresses_in(&listing);
        if held != addresses {
            reasons.push(format!(
                "the rules of {} are for {held:?}, not {addresses:?}",
                node.name
            ));
        }
        ways.insert(node.name.clone(), ways_in(&listing));
    }
    // All nodes lead to the same Services, so that what one has, all must have.
    let everything: BTreeSet<String> = ways.values().flatten().cloned().collect();
    for (node, ways) in &ways {
        for missing in everything.difference(ways).take(3) {
            reasons.push(format!("{node} lacks a rule that another node has: {missing}"));
        }
    }
    let status = cluster.pointsman("status", &[]).await?;
    if !status.status.success() {
        reasons.push(format!("status: {}", String::from_utf8_lossy(&status.stdout)));
    }
    Ok(reasons)
}

/// What `explain` finds missing or too much in the node's kernel.
async fn explain(cluster: &Cluster, node: &str, namespace: &str) -> anyhow::Result<Vec<String>> {
    let mut command = Netns::named(namespace)?.command(&cluster.program);
    command.args([
        "explain",
        "--output=json",
        "--log=warn",
        "--node",
        node,
        "--proxy-mode",
    ]);
    command.arg(cluster.proxy_mode());
    command.arg(format!("--cluster-cidr={}", cluster.pod_range()));
    command.arg("--kubeconfig").arg(&cluster.record.kubeconfig);
    command.arg(format!("{NAMESPACE}/{SERVICE}"));
    command.stdin(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await??;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(match answer["kernel"]["agrees"].as_bool() {
        Some(true) => Vec::new(),
        Some(false) => vec![format!(
            "the kernel of {node} does not agree: {}",
            answer["kernel"]
        )],
        None => vec![format!(
            "explain on {node} says nothing: {}",
            String::from_utf8_lossy(&output.stderr)
        )],
    })
}

/// The part of the node's rules that says which Services there are.
fn listing(cluster: &Cluster, namespace: &str) -> anyhow::Result<String> {
    let (program, arguments): (&str, &[&str]) = match cluster.proxy_mode() {
        "iptables" => ("iptables-save", &["-t", "nat"]),
        _ => ("nft", &["list", "set", "ip", "pointsman", "cluster-ips"]),
    };
    let output = Netns::named(namespace)?
        .command(program)
        .args(arguments)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The rules of iptables mode that lead packets to the chains of Services.
fn ways_in(listing: &str) -> BTreeSet<String> {
    let leads = ["-A KUBE-SERVICES", "-A PREROUTING", "-A OUTPUT", "-A POSTROUTING"];
    let lines = listing
        .lines()
        .filter(|line| leads.iter().any(|lead| line.starts_with(lead)));
    lines.map(str::to_owned).collect()
}

/// Cluster addresses in a listing: single destinations of rules for Services, or the elements of a set.
fn addresses_in(listing: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if let Some(elements) = listing.split("elements = {").nth(1) {
        let elements = elements.split('}').next().unwrap_or_default();
        found.extend(elements.split(',').map(|address| address.trim().to_owned()));
    }
    let rules = listing.lines().filter(|line| line.contains(" -j KUBE-SVC-"));
    found.extend(rules.filter_map(|rule| {
        let (address, _) = rule.split_once(" -d ")?.1.split_once("/32 ")?;
        Some(address.to_owned())
    }));
    found.retain(|address| !address.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_listings_of_both_modes() {
        let wanted: BTreeSet<String> = ["10.1.0.1".to_owned(), "10.1.0.9".to_owned()].into();
        let set = "table ip pointsman {\n\tset cluster-ips {\n\t\telements = { 10.1.0.1,\n\t\t\t     10.1.0.9 }\n\t}\n}\n";
        assert_eq!(addresses_in(set), wanted);
        let rules = "-A KUBE-A -d 10.1.0.1/32 -p tcp -j KUBE-SVC-X\n-A KUBE-B -d 10.1.0.9/32 -j KUBE-SVC-Y\n\
             -A KUBE-SVC-Y ! -s 10.2.0.0/16 -d 10.1.0.9/32 -j KUBE-MARK-MASQ\n-A Z -d 0.0.0.1/0.0.0.255 -j KUBE-B\n";
        assert_eq!(addresses_in(rules), wanted);
        assert_eq!(ways_in(rules), BTreeSet::new());
        assert_eq!(
            ways_in("-A KUBE-SERVICES-54 -j X\n:KUBE-SERVICES - [0:0]\n").len(),
            1
        );
    }
}
