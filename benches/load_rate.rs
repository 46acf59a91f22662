//! How fast does a real kernel take the table?
//!
//! `cargo bench -p pointsman-benches --bench load_rate -- 45000x1 20000x5` (as root). Everything
//! happens in a network namespace of its own. For each size: the time to fill an empty table, the same bytes
//! sent again without any logic (the physical limit), a restart on the correct table, and one endpoint
//! replaced, added and removed, from the folded slice to the commit.

#![allow(clippy::print_stdout, reason = "this program's purpose is to print")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use pointsman_benches::synthetic::{index, settings, slice};
use pointsman_netlink::nft::Batch;
use pointsman_netlink_io::{Buffers, Client};
use pointsman_nft::{Inventory, Planner, Records, TABLE, TableSettings, family};
use pointsman_testkit::netns::Namespace;

/// Services for each transaction of a cold start.
const CHUNK: usize = 1000;

fn main() {
    let sizes: Vec<(u32, u32)> = pointsman_benches::arguments()
        .iter()
        .filter_map(|size| parse(size))
        .collect();
    println!(
        "| size | elements | fill | bare loader | longest commit | restart | replace p50 / p99 | add | remove |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (services, endpoints) in sizes {
        let namespace = Namespace::new().expect("network namespaces need root");
        println!("{}", namespace.run(move || measure(services, endpoints)));
    }
}

/// Elapsed time and the time this thread had a processor: on a busy machine only the second one counts.
struct Stopwatch {
    started: Instant,
    cpu: Duration,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            started: Instant::now(),
            cpu: thread_cpu(),
        }
    }

    fn stop(&self) -> String {
        let (elapsed, cpu) = (self.started.elapsed(), thread_cpu().saturating_sub(self.cpu));
        format!("{elapsed:.0?} ({cpu:.0?} cpu)")
    }
}

/// The first number of a thread's schedstat is its time on a processor in nanoseconds.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn parse(size: &str) -> Option<(u32, u32)> {
    let (services, endpoints) = size.split_once('x')?;
    Some((services.parse().ok()?, endpoints.parse().ok()?))
}

fn measure(services: u32, endpoints: u32) -> String {
    let mut index = index(services, endpoints);
    let mut client = Client::open(Buffers::default()).expect("a socket");
    let mut planner = Planner::new(TableSettings::new(settings()));
    let create = planner.ruleset().create();
    let batch = index.checkout();
    let mut longest = Duration::ZERO;
    let mut transactions = vec![create];
    let stopwatch = Stopwatch::start();
    client
        .commit(&transactions[..1], None)
        .expect("the table is created");
    for chunk in batch.changes.chunks(CHUNK) {
        let planned = planner.plan(chunk);
        let commit = Instant::now();
        client
            .commit(std::slice::from_ref(&planned.transaction), None)
            .expect("the elements are added");
        longest = longest.max(commit.elapsed());
        planner.commit(planned.update);
        transactions.push(planned.transaction);
    }
    let fill = stopwatch.stop();
    let elements: usize = transactions
        .iter()
        .map(|transaction| transaction.element_count())
        .sum();
    let _ = index.commit(batch);
    let bare = Namespace::new().expect("a namespace").run(move || {
        let mut client = Client::open(Buffers::default()).expect("a socket");
        let (mut total, mut cpu) = (Duration::ZERO, Duration::ZERO);
        for transaction in transactions {
            let batch =
                Batch::encode(&[transaction], None, client.next_sequence()).expect("it was sent before");
            let stopwatch = Stopwatch::start();
            client.commit_batch(&batch).expect("it was taken before");
            total += stopwatch.started.elapsed();
            cpu += thread_cpu().saturating_sub(stopwatch.cpu);
        }
        format!("{total:.0?} ({cpu:.0?} cpu)")
    });
    let stopwatch = Stopwatch::start();
    let kernel = read_inventory(&mut client);
    let states: Vec<_> = index.programmed().map(|(_, state)| state.clone()).collect();
    let adoption = planner.adopt(
        states.iter().map(|state| (&state.service.name, state.as_ref())),
        &kernel,
    );
    let restart = stopwatch.stop();
    assert!(adoption.repair.is_empty(), "a restart writes nothing");
    drop((kernel, adoption));
    let mut change = |endpoints: u32, round: u32, number: u32| {
        let started = Instant::now();
        index.fold_slice(slice(number, endpoints, round), None, None);
        let batch = index.checkout();
        let planned = planner.plan(&batch.changes);
        client
            .commit(&[planned.transaction], None)
            .expect("the change is taken");
        planner.commit(planned.update);
        let _ = index.commit(batch);
        started.elapsed()
    };
    let mut sample = |endpoints: u32, round: u32| {
        let mut times: Vec<Duration> = (0..1000)
            .map(|at| change(endpoints, round, at * 7919 % services))
            .collect();
        times.sort();
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let (replace, replace_99) = sample(endpoints, 1);
    let (add, _) = sample(endpoints + 1, 1);
    let (remove, _) = sample(endpoints, 1);
    format!(
        "| {services} x {endpoints} | {elements} | {fill} | {bare} | {longest:.1?} | {restart} | {replace:.1?} / {replace_99:.1?} | {add:.1?} | {remove:.1?} |"
    )
}

/// What a proxy that starts finds in the kernel.
fn read_inventory(client: &mut Client) -> Inventory {
    let family = family::<Ipv4Addr>();
    let chains = client.chains(family, &TABLE).expect("chains can be listed");
    let rules = client.rules(family, &TABLE).expect("rules can be listed");
    let mut inventory = Inventory::new(chains, rules.into_iter().map(|(rule, _)| rule));
    for set in client.sets(family, &TABLE).expect("sets can be listed") {
        let at = (family, &TABLE, &set.name);
        let push = |records: &mut Records, element| records.push(&element);
        let records = client.collect_elements(at, || Records::new(&set), push);
        inventory.add_set(set, records.expect("elements can be listed"));
    }
    inventory
}
