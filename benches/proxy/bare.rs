//! What is the physical limit, and what is our own share?

use crate::Size;
use crate::report::{Bare, OursOnly};
use pointsman_benches::synthetic::{index, settings, slice};
use pointsman_dataplane::Batch;
use pointsman_iptables::{Inventory, render};
use pointsman_netlink::nft::{Batch as Messages, Transaction};
use pointsman_netlink_io::{Buffers, Client};
use pointsman_nft::{Planner, TableSettings};
use pointsman_testkit::netns::Namespace;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Services for each transaction, as the proxy does it.
const CHUNK: usize = 1000;
/// Changes that are timed.
const CHANGES: usize = 500;

/// Sends the elements of a cluster to an empty kernel without any logic.
pub fn load(size: Size) -> Bare {
    let mut index = index(size.services as u32, size.endpoints as u32);
    let batch = index.checkout();
    let (_, transactions) = fill(&batch);
    let elements = transactions.iter().map(Transaction::element_count).sum();
    let (total, longest) = Namespace::new().expect("a namespace").run(move || {
        let mut client = Client::open(Buffers::default()).expect("a socket");
        let (mut total, mut longest) = (Duration::ZERO, Duration::ZERO);
        for transaction in transactions {
            let messages = Messages::encode(&[transaction], None, client.next_sequence()).expect("it fits");
            let started = Instant::now();
            client.commit_batch(&messages).expect("an empty kernel takes it");
            total += started.elapsed();
            longest = longest.max(started.elapsed());
        }
        (total, longest)
    });
    let _ = index.commit(batch);
    eprintln!("{size}: bare loader {total:.2?}");
    Bare {
        size,
        elements,
        seconds: total.as_secs_f64(),
        longest_ms: longest.as_secs_f64() * 1e3,
    }
}

/// The cost of one endpoint change in our own code, from the folded slice to the bytes for the kernel.
pub fn ours_only(services: usize) -> OursOnly {
    let size = Size {
        services,
        endpoints: 5,
    };
    let mut index = index(size.services as u32, size.endpoints as u32);
    let batch = index.checkout();
    let (mut nft, _) = fill(&batch);
    let mut iptables = pointsman_iptables::Planner::new(settings());
    let plan = iptables
        .plan(&batch, || Ok::<_, std::convert::Infallible>(Inventory::default()))
        .expect("an empty inventory is no failure");
    for transaction in plan {
        iptables.applied(&transaction);
    }
    let _ = index.commit(batch);
    let (mut nft_us, mut iptables_us) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for round in 1..=CHANGES {
        let number = round * 7919 % services;
        let started = Instant::now();
        index.fold_slice(
            slice(number as u32, size.endpoints as u32, round as u32),
            None,
            None,
        );
        let batch = index.checkout();
        let folded = started.elapsed();
        let started = Instant::now();
        let planned = nft.plan(&batch.changes);
        Messages::encode(std::slice::from_ref(&planned.transaction), None, 1).expect("it fits");
        nft_us.push(micros(folded + started.elapsed()));
        nft.commit(planned.update);
        let started = Instant::now();
        let plan = iptables
            .plan(&batch, || Ok::<_, std::convert::Infallible>(Inventory::default()))
            .expect("a partial plan needs no inventory");
        for transaction in plan {
            bytes = render::transaction(&transaction).len();
            iptables.applied(&transaction);
        }
        iptables_us.push(micros(folded + started.elapsed()));
        let _ = index.commit(batch);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let (nftables, iptables) = (median(&mut nft_us), median(&mut iptables_us));
    eprintln!("{services} Services: our own share {nftables:.1?} us, {iptables:.1?} us");
    OursOnly {
        services,
        nftables_p50_us: nftables.0,
        nftables_p99_us: nftables.1,
        iptables_p50_us: iptables.0,
        iptables_p99_us: iptables.1,
        iptables_bytes: bytes,
    }
}

fn fill(batch: &Batch<Ipv4Addr>) -> (Planner<Ipv4Addr>, Vec<Transaction>) {
    let mut planner = Planner::new(TableSettings::new(settings()));
    let mut transactions = vec![planner.ruleset().create()];
    for chunk in batch.changes.chunks(CHUNK) {
        let planned = planner.plan(chunk);
        transactions.push(planned.transaction);
        planner.commit(planned.update);
    }
    (planner, transactions)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
