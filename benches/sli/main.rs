//! What does it cost to follow a large cluster?
//!
//! ```sh
//! bench_sli PROGRAM [--programmers 5000] [--rate 20] [--seconds 30] [--warm-up 15]
//! ```
//!
//! Starts the real API server, hollow programmers and the real collector as processes of their own, changes
//! one EndpointSlice at the given rate, and reads what the collector says of itself and what the kernel says
//! of its process. Once with a connection to each programmer, once through relays.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod parts;

use parts::{Cluster, Figures, Mode};

#[tokio::main]
async fn main() {
    let mut arguments = pointsman_benches::arguments().into_iter();
    let program = arguments
        .next()
        .expect("usage: sli PROGRAM [--programmers N] [--rate N] [--seconds N] [--warm-up N]");
    let mut sizes = parts::Sizes::default();
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        let value: u32 = value.parse().expect("a number");
        match flag.as_str() {
            "--programmers" => sizes.programmers = value,
            "--rate" => sizes.rate = value,
            "--seconds" => sizes.seconds = value,
            "--warm-up" => sizes.warm_up = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    let mut columns = Vec::new();
    for mode in [Mode::Direct, Mode::Relays(8)] {
        let cluster = Cluster::start(&program, &sizes, mode).await;
        columns.push(cluster.measure(&sizes).await);
    }
    println!(
        "| {} programmers, {} commits/s each | target | direct | 8 relays |",
        sizes.programmers, sizes.rate
    );
    println!("|---|---|--:|--:|");
    type Row = (&'static str, &'static str, fn(&Figures) -> String);
    let rows: [Row; 10] = [
        ("lines folded", "100,000/s", |it| {
            format!("{:.0}/s", it.lines_per_second)
        }),
        ("collector CPU", "≤ 1 core", |it| {
            format!("{:.2} cores", it.collector_cores)
        }),
        ("collector RSS", "≤ 150 MiB", |it| {
            format!("{:.0} MiB", it.collector_mib)
        }),
        ("collector peak RSS", "", |it| {
            format!("{:.0} MiB", it.collector_peak_mib)
        }),
        ("commit to fold, p50", "", |it| format!("{} ms", it.delay_p50_ms)),
        ("commit to fold, p99", "≤ 100 ms", |it| {
            format!("{} ms", it.delay_p99_ms)
        }),
        ("commit to fold, slowest sampled", "", |it| {
            format!("{} ms", it.delay_max_ms)
        }),
        ("changes that reached everybody", "", |it| {
            format!("{:.0}", it.changes)
        }),
        ("change to everybody (pauses of 1–15 ms in it), p99", "", |it| {
            format!("{} ms", it.all_p99_ms)
        }),
        ("generator CPU", "", |it| {
            format!("{:.2} cores", it.generator_cores)
        }),
    ];
    for (name, target, show) in rows {
        let cells: Vec<String> = columns.iter().map(show).collect();
        println!("| {name} | {target} | {} |", cells.join(" | "));
    }
}
