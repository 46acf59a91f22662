//! Do heartbeats get through while somebody attacks the API server?
//!
//! ```sh
//! POINTSMAN=target/release/pointsman cargo bench -p pointsman-benches --bench attacks -- [--quick] [--seconds 10] [--objects 2000] [NAME]
//! ```
//!
//! For each attack a fresh server: a node renews its lease every 20 ms, first in calm, then while a tenant with rights in
//! one namespace attacks from the same machine. NAME chooses the attacks whose names contain it, and `--quick` measures for 5 s each.

#![expect(clippy::print_stdout, reason = "its output is the product")]

use pointsman_benches::latency::{Latencies, Quantiles};
use pointsman_benches::process;
use pointsman_harness::attack::{Attack, Stage};
use std::time::Duration;

#[tokio::main]
async fn main() {
    process::raise_file_limit();
    let (mut seconds, mut objects, mut chosen) = (10, 2_000, String::new());
    let mut arguments = pointsman_benches::arguments().into_iter();
    while let Some(argument) = arguments.next() {
        let mut number = || {
            arguments
                .next()
                .and_then(|text| text.parse().ok())
                .expect("a number")
        };
        match argument.as_str() {
            "--quick" => seconds = 5,
            "--seconds" => seconds = number(),
            "--objects" => objects = number(),
            _ => chosen = argument,
        }
    }
    let time = Duration::from_secs(seconds as u64);
    println!("load average {}", process::load_average());
    println!(
        "| attack | renewals, calm p50 / p99 | under attack p50 / p99 / max | `/livez` max | resident, calm / attacked |"
    );
    println!("|---|--:|--:|--:|--:|");
    for attack in Attack::ALL
        .into_iter()
        .filter(|attack| attack.name().contains(&chosen))
    {
        let stage = Stage::set(objects).await;
        let calm = stage.measure(time).await;
        let calm_bytes = stage.server.resident_bytes() >> 20;
        let attackers = stage.launch(attack).await;
        let attacked = stage.measure(time).await;
        let peak = stage.server.peak_bytes() >> 20;
        drop(attackers);
        let (before, during) = (sorted(calm.renewals), sorted(attacked.renewals));
        println!(
            "| {} | {:.1} / {:.1} ms | {:.1} / {:.1} / {:.0} ms | {:.0} ms | {calm_bytes} / {peak} MiB |",
            attack.name(),
            before.millis(0.5),
            before.millis(0.99),
            during.millis(0.5),
            during.millis(0.99),
            during.millis(1.0),
            sorted(attacked.livez).millis(1.0),
        );
    }
}

fn sorted(durations: Vec<Duration>) -> Quantiles {
    let mut latencies = Latencies::default();
    durations
        .into_iter()
        .for_each(|duration| latencies.record(duration));
    latencies.sorted()
}
