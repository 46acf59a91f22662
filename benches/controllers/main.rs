//! How fast and how small is the EndpointSlice loop?
//!
//! ```sh
//! bench_controllers PROGRAM [--services 10000] [--pods 5] [--flips 1000] [--large 10000]
//! ```
//!
//! Starts the real API server and the real loops as processes, fills the cluster, and watches slices as
//! any consumer would. With `PEER_KCM` naming a kube-controller-manager, the same is done with that one.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod cluster;
mod phases;

use cluster::{Bench, Contender};
use phases::Sizes;

#[tokio::main]
async fn main() {
    let mut arguments = pointsman_benches::arguments().into_iter();
    let program = arguments
        .next()
        .expect("usage: controllers PROGRAM [--services N] [--pods N] [--flips N] [--large N]");
    let mut sizes = Sizes::default();
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        let value: usize = value.parse().expect("a number");
        match flag.as_str() {
            "--services" => sizes.services = value,
            "--pods" => sizes.pods = value,
            "--flips" => sizes.flips = value,
            "--large" => sizes.large = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    let mut contenders = vec![Contender::Ours(program.clone())];
    if let Ok(peer) = std::env::var("PEER_KCM") {
        contenders.push(Contender::KubeControllerManager(peer));
    }
    for contender in contenders {
        println!("\n### {}\n", contender.name());
        let mut bench = Bench::start(&program, contender).await;
        phases::run(&mut bench, &sizes).await;
        bench.stop().await;
    }
}
