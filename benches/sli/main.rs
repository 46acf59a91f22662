//! What does it cost to follow a large cluster?
//!
//! ```sh
//! bench_sli PROGRAM [--programmers 5000] [--rate 20] [--seconds 30] [--warm-up 15]
//! ```
//!
//! Starts the real API server, hollow programmers and the real collector as processes of their own, changes
//! one EndpointSlice at the given rate, and reads what the collector says of itself and what the kernel says
//! of its process. Once with a connection to each programmer, once through relays. Then for ten programmers and 100 changes a
//! second, without traces and with one of each change.

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
        let cluster = Cluster::start(&program, &sizes, mode, None).await;
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
    traces(&program, sizes).await;
}

/// What it costs to send each change as a trace.
async fn traces(program: &str, sizes: parts::Sizes) {
    let sizes = parts::Sizes {
        programmers: 10,
        rate: 100,
        ..sizes
    };
    let receiver = parts::receiver().await;
    let mut columns = Vec::new();
    for receiver in [None, Some(&*receiver)] {
        let cluster = Cluster::start(program, &sizes, Mode::Direct, receiver).await;
        columns.push(cluster.measure(&sizes).await);
    }
    let [without, with] = columns.as_slice() else {
        unreachable!()
    };
    println!(
        "\n| {} programmers, {} changes/s | target | without traces | with traces of all |",
        sizes.programmers, sizes.rate
    );
    println!("|---|---|--:|--:|");
    let percent = |it: &Figures| format!("{:.1} %", it.collector_cores * 100.0);
    println!(
        "| collector CPU with OTLP | ≤ 5 % of a core | {} | {} |",
        percent(without),
        percent(with)
    );
    let rates = [without, with].map(|it| [it.changes_per_second, it.traces_per_second]);
    for (at, name) in ["changes that reached everybody", "traces sent"]
        .iter()
        .enumerate()
    {
        println!("| {name} | | {:.0}/s | {:.0}/s |", rates[0][at], rates[1][at]);
    }
    println!(
        "| collector RSS | | {:.0} MiB | {:.0} MiB |",
        without.collector_mib, with.collector_mib
    );
}
