//! What do terminating endpoints in slices cost?
//!
//! ```sh
//! terminating PROGRAM [--deployments 20] [--pods 10] [--rolls 3]
//! ```
//!
//! Rolls Deployments with the gate `EndpointSliceTerminatingCondition` off and on, and counts what that makes of
//! slices. API server, controllers and a proxy of each mode are the real programs, each proxy with a kernel of its
//! own; pods are objects whose readiness and end this program reports as a kubelet would: ready at once, no longer
//! ready when the container has ended, and gone after that.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod cluster;
mod kubelet;

use cluster::{Cluster, Costs};
use pointsman_testkit::netns::Namespace;

/// How much is rolled.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub deployments: usize,
    pub pods: usize,
    pub rolls: usize,
}

fn main() {
    let mut arguments = pointsman_benches::arguments().into_iter();
    let program = arguments
        .next()
        .expect("usage: terminating PROGRAM [--deployments N] [--pods N] [--rolls N]");
    let mut sizes = Sizes {
        deployments: 20,
        pods: 10,
        rolls: 3,
    };
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        let value = value.parse().expect("a number");
        match flag.as_str() {
            "--deployments" => sizes.deployments = value,
            "--pods" => sizes.pods = value,
            "--rolls" => sizes.rolls = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    let program = std::fs::canonicalize(program).expect("the program is there");
    let costs = [false, true].map(|gate| {
        let program = program.display().to_string();
        // A namespace, so that the machine's own rules stay as they are.
        let home = Namespace::new().expect("network namespaces need root");
        home.run(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build();
            runtime
                .expect("a runtime")
                .block_on(measure(&program, gate, sizes))
        })
    });
    print(sizes, &costs);
}

async fn measure(program: &str, gate: bool, sizes: Sizes) -> Costs {
    let cluster = Cluster::start(program, gate).await;
    cluster.fill(sizes).await;
    let before = cluster.costs();
    for roll in 1..=sizes.rolls {
        cluster.roll(sizes, roll).await;
    }
    let costs = cluster.costs().since(&before);
    cluster.stop().await;
    costs
}

fn print(sizes: Sizes, [off, on]: &[Costs; 2]) {
    let replaced = (sizes.deployments * sizes.pods * sizes.rolls) as f64;
    println!(
        "| {} Deployments × {} pods, rolled {} times | gate off | gate on |",
        sizes.deployments, sizes.pods, sizes.rolls
    );
    println!("|---|--:|--:|");
    let row = |name: &str, value: &dyn Fn(&Costs) -> f64, digits: usize| {
        println!("| {name} | {:.digits$} | {:.digits$} |", value(off), value(on));
    };
    row("slice writes", &|costs| costs.writes, 0);
    row("per replaced pod", &|costs| costs.writes / replaced, 2);
    row(
        "kB of slices sent to watchers",
        &|costs| costs.watch_bytes / 1e3,
        0,
    );
    row(
        "kB per replaced pod",
        &|costs| costs.watch_bytes / 1e3 / replaced,
        2,
    );
    row("CPU of the API server, s", &|costs| costs.server_cpu, 2);
    row("CPU of the controllers, s", &|costs| costs.controllers_cpu, 2);
    for (at, mode) in cluster::MODES.iter().enumerate() {
        row(
            &format!("CPU of the proxy, {mode} mode, s"),
            &|costs| costs.proxies[at].cpu,
            2,
        );
    }
    for (at, mode) in cluster::MODES.iter().enumerate() {
        for quantile in [0.5, 0.99] {
            let name = format!(
                "network programming latency, {mode} mode, p{:.0}, ms",
                quantile * 100.0
            );
            row(&name, &|costs| costs.proxies[at].latency(quantile), 0);
        }
        row(
            &format!("samples, {mode} mode"),
            &|costs| costs.proxies[at].samples(),
            0,
        );
    }
    row("time, s", &|costs| costs.seconds, 1);
}
