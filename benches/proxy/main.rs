//! How fast, how small and how scalable is the service proxy?
//!
//! ```sh
//! bench_proxy PROGRAM [--modes nftables,iptables-nft,iptables-legacy] [--sizes 1000x5,20000x5]
//!             [--gate-off-sizes 1000x5] [--peer-modes nftables,iptables-nft] [--peer-sizes 1000x5]
//!             [--limit 120] [--row-limit 300] [--changes 200] [--data-path 10,1000,45000] [--ours-only 1000,45000] [--out FILE.json]
//! bench_proxy plot FILE.json FILE.svg
//! bench_proxy show FILE.json
//! ```
//!
//! One row at a time: `--modes iptables-nft --sizes 10000x5 --out FILE.json` measures that row alone and puts it
//! among those that the file holds, in place of an earlier one of the same proxy, mode and size. A row of the
//! peer alone has no `--sizes`. `--limit` bounds a start, `--row-limit` everything that is measured for a row;
//! what was not reached in time is shown as "not within".
//!
//! Starts the real API server in a network namespace, fills it with Services and EndpointSlices, and runs the
//! real proxy in another one, whose kernel rules it may write. With `PEER_KUBE_PROXY` naming a kube-proxy, the
//! same is done with that one, against the same server. Needs root.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod bare;
mod cluster;
mod contender;
mod data_path;
mod measure;
mod plot;
mod report;

use contender::{Contender, Mode};
use pointsman_testkit::netns::Namespace;
use report::Results;

/// A number of Services, and of endpoints of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Size {
    services: usize,
    endpoints: usize,
}

/// How many seconds may be spent.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// On one start.
    start: u64,
    /// On one row.
    row: u64,
}

/// What to measure.
#[derive(Debug)]
struct Plan {
    program: String,
    modes: Vec<Mode>,
    sizes: Vec<Size>,
    /// Where iptables modes are measured without `MinimizeIPTablesRestore`, too.
    gate_off_sizes: Vec<Size>,
    peer_modes: Vec<Mode>,
    peer_sizes: Vec<Size>,
    limits: Limits,
    changes: usize,
    data_path: Vec<usize>,
    ours_only: Vec<usize>,
    out: Option<String>,
}

fn main() {
    let arguments = pointsman_benches::arguments();
    if let [word, from, to] = arguments.as_slice()
        && word == "plot"
    {
        let results = Results::read(from);
        std::fs::write(to, plot::draw(&results)).expect("the plot can be written");
        return;
    }
    if let [word, from] = arguments.as_slice()
        && word == "show"
    {
        return println!("{}", report::markdown(&Results::read(from)));
    }
    let plan = Plan::parse(arguments.into_iter());
    // Everything runs in namespaces, so that the machine's own rules stay as they are.
    let home = Namespace::new().expect("network namespaces need root");
    home.run(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(run(plan));
    });
}

async fn run(plan: Plan) {
    let mut results = plan.out.as_deref().map(Results::read).unwrap_or_default();
    results.machine = report::machine();
    for services in &plan.ours_only {
        results.put_ours_only(bare::ours_only(*services));
    }
    let peer = std::env::var("PEER_KUBE_PROXY")
        .ok()
        .filter(|path| !path.is_empty());
    let mut sizes = plan.sizes.clone();
    for size in plan.gate_off_sizes.iter().chain(&plan.peer_sizes) {
        if !sizes.contains(size) {
            sizes.push(*size);
        }
    }
    for size in sizes {
        let mut contenders = Vec::new();
        if plan.sizes.contains(&size) {
            contenders.extend(
                plan.modes
                    .iter()
                    .map(|mode| Contender::ours(&plan.program, *mode)),
            );
            if plan.modes.contains(&Mode::Nftables) {
                results.put_bare(bare::load(size));
            }
        }
        if plan.gate_off_sizes.contains(&size) {
            let modes = plan.modes.iter().filter(|mode| **mode != Mode::Nftables);
            contenders
                .extend(modes.map(|mode| Contender::ours(&plan.program, *mode).with_complete_restores()));
        }
        if let Some(peer) = &peer
            && plan.peer_sizes.contains(&size)
        {
            contenders.extend(plan.peer_modes.iter().map(|mode| Contender::peer(peer, *mode)));
        }
        if contenders.is_empty() {
            continue;
        }
        let mut server = cluster::Server::start(&plan.program, size).await;
        for contender in contenders {
            let row = measure::run(&mut server, &contender, plan.changes, plan.limits).await;
            results.put_row(row);
            plan.keep(&results);
        }
        server.stop().await;
    }
    if !plan.data_path.is_empty() {
        let mut contenders: Vec<Contender> = plan
            .modes
            .iter()
            .map(|mode| Contender::ours(&plan.program, *mode))
            .collect();
        if let Some(peer) = &peer {
            contenders.extend(plan.peer_modes.iter().map(|mode| Contender::peer(peer, *mode)));
        }
        let (sizes, limit) = (&plan.data_path, plan.limits.start);
        let measured = data_path::run(&plan.program, &contenders, sizes, limit).await;
        measured.into_iter().for_each(|it| results.put_data_path(it));
    }
    plan.keep(&results);
    println!("{}", report::markdown(&results));
}

impl Plan {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut plan = Self {
            program: arguments
                .next()
                .expect("usage: bench_proxy PROGRAM [flags], see the source"),
            modes: Mode::ALL.to_vec(),
            sizes: Vec::new(),
            gate_off_sizes: Vec::new(),
            peer_modes: Vec::new(),
            peer_sizes: Vec::new(),
            limits: Limits { start: 120, row: 300 },
            changes: 200,
            data_path: Vec::new(),
            ours_only: Vec::new(),
            out: None,
        };
        while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
            match flag.as_str() {
                "--modes" => plan.modes = list(&value, Mode::parse),
                "--sizes" => plan.sizes = list(&value, Size::parse),
                "--gate-off-sizes" => plan.gate_off_sizes = list(&value, Size::parse),
                "--peer-modes" => plan.peer_modes = list(&value, Mode::parse),
                "--peer-sizes" => plan.peer_sizes = list(&value, Size::parse),
                "--limit" => plan.limits.start = value.parse().expect("seconds"),
                "--row-limit" => plan.limits.row = value.parse().expect("seconds"),
                "--changes" => plan.changes = value.parse().expect("a number"),
                "--data-path" => plan.data_path = list(&value, |text| text.parse().ok()),
                "--ours-only" => plan.ours_only = list(&value, |text| text.parse().ok()),
                "--out" => plan.out = Some(value),
                _ => panic!("unknown flag {flag}"),
            }
        }
        plan
    }

    /// Writes what is known so far, so that an interrupted run is not lost.
    fn keep(&self, results: &Results) {
        if let Some(path) = &self.out {
            std::fs::write(path, results.to_json()).expect("the results can be written");
        }
    }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    let words = text.split(',').filter(|word| !word.is_empty());
    words
        .map(|word| parse(word).unwrap_or_else(|| panic!("{word:?} means nothing here")))
        .collect()
}

impl Size {
    fn parse(text: &str) -> Option<Self> {
        let (services, endpoints) = text.split_once('x')?;
        Some(Self {
            services: services.parse().ok()?,
            endpoints: endpoints.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", self.services, self.endpoints)
    }
}
