//! How fast do pods of a large cluster get ready, and what do the API server and the loops need for them?
//!
//! ```sh
//! cargo bench -p pointsman-benches --bench density -- PROGRAM [--quick] [--nodes 5000] [--pods 100000] [--services 10000]
//! ```
//!
//! The API server and the loops are the real ones, as processes. The nodes are **hollow** (`pointsman hollow --nodes`): one process
//! sends the heartbeats of all and reports their pods as running and ready at once. So this says what the control plane can
//! carry, and nothing about how long containers take to start.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod cluster;
mod load;
mod seen;

use clap::Parser;
use cluster::Cluster;
use load::Sizes;
use pointsman_benches::process::{Usage, load_average, raise_file_limit};
use seen::Seen;
use std::time::{Duration, Instant};

/// The targets, at any size.
const PODS_PER_SECOND: f64 = 500.0;
const MEMORY_MEBIBYTES: f64 = 1024.0;
/// Pods that are not ready by then count as lost.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Measures the control plane of a large cluster of hollow nodes.
#[derive(Parser)]
struct Flags {
    /// The program to measure.
    #[arg(value_name = "POINTSMAN")]
    program: String,
    /// 200 nodes and 4,000 pods.
    #[arg(long)]
    quick: bool,
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    #[arg(long, value_name = "N")]
    pods: Option<usize>,
    /// Services that share the pods.
    #[arg(long, value_name = "N")]
    services: Option<usize>,
    /// Create pods of all Services in turn instead of one Service after the other, as Deployments would be scaled.
    #[arg(long)]
    in_turn: bool,
}

#[tokio::main]
async fn main() {
    let arguments = pointsman_benches::arguments();
    let flags = Flags::parse_from(std::iter::once("density".to_owned()).chain(arguments));
    raise_file_limit();
    let (nodes, pods, services) = match flags.quick {
        true => (200, 4_000, 400),
        false => (5_000, 100_000, 10_000),
    };
    let sizes = Sizes {
        nodes: flags.nodes.unwrap_or(nodes),
        pods: flags.pods.unwrap_or(pods),
        services: flags.services.unwrap_or(services).max(1),
        in_turn: flags.in_turn,
    };
    println!("load average before: {}\n", load_average());
    let cluster = Cluster::start(&flags.program, sizes.nodes).await;
    measure(&cluster, &sizes).await;
}

async fn measure(cluster: &Cluster, sizes: &Sizes) {
    let client = cluster.client();
    load::services(client, sizes).await;
    let mut seen = Seen::follow(client);
    let before = cluster.usages();
    let began = Instant::now();
    let creating = tokio::spawn(load::pods(client.clone(), *sizes));
    let complete = tokio::time::timeout(PATIENCE, seen.until(sizes.pods)).await;
    let took = began.elapsed();
    let created = creating.await.expect("pods can be created");
    let after = cluster.usages();
    let found = seen.compare(client).await;
    let (all, unplaced) = (sizes.pods as f64, cluster.unready_nodes().await);
    println!(
        "| {} hollow nodes, {} pods in {} Services | target | measured |\n|---|---|--:|",
        sizes.nodes, sizes.pods, sizes.services
    );
    println!("| pods created | | {:.0}/s |", all / created.as_secs_f64());
    let rate = all / took.as_secs_f64();
    let shown = bold(
        rate >= PODS_PER_SECOND && complete.is_ok(),
        format!("{rate:.0}/s"),
    );
    println!("| first pod sent to all ready and in slices | ≥ {PODS_PER_SECOND:.0}/s | {shown} |");
    println!("| the same as time | | {:.1} s |", took.as_secs_f64());
    println!(
        "| after the last pod was created | | {:.2} s |",
        took.saturating_sub(created).as_secs_f64()
    );
    for (what, count) in [
        (
            "pods that are not ready in exactly one slice, at their own address",
            found.wrong,
        ),
        ("addresses that two pods have", found.shared),
        ("nodes with a taint in the end", unplaced),
    ] {
        println!("| {what} | 0 | {} |", bold(count == 0, count.to_string()));
    }
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    let sum = |pick: fn(&Usage) -> f64| mebibytes(pick(&after.server) + pick(&after.loops));
    for (what, used) in [
        (
            "resident memory of API server and loops",
            sum(|used| used.rss_bytes),
        ),
        ("the most of both", sum(|used| used.peak_bytes)),
    ] {
        let shown = bold(used <= MEMORY_MEBIBYTES, format!("{used:.0} MiB"));
        println!("| {what} | ≤ {MEMORY_MEBIBYTES:.0} MiB | {shown} |");
    }
    for (what, before, after) in [
        ("API server", before.server, after.server),
        ("loops", before.loops, after.loops),
        ("hollow nodes", before.nodes, after.nodes),
        ("load generator", before.load, after.load),
    ] {
        let (cpu, memory) = (after.cpu_seconds - before.cpu_seconds, mebibytes(after.rss_bytes));
        println!("| {what}: CPU, resident memory | | {cpu:.1} s, {memory:.0} MiB |");
    }
    println!("\nload average after: {}", load_average());
}

fn bold(holds: bool, shown: String) -> String {
    if holds { shown } else { format!("**{shown}**") }
}
