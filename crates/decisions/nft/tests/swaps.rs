//! Is anybody sent to an endpoint that has left, while endpoints come and go all the time?
//!
//! Clients connect without a pause. A Service's endpoints are replaced thousands of times meanwhile, as fast as the
//! kernel takes it, so that slots move and classes change under packets on their way. Whoever answers a
//! connection must have belonged to the Service at some moment between the last commit that was acknowledged
//! before the connection began and the last one that was sent before it was answered.

#![expect(clippy::disallowed_methods, reason = "real packets take real time")]

mod support;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pointsman_testkit::cluster::Family;
use pointsman_testkit::history::Random;
use pointsman_testkit::require_netns;

use self::support::network::{Network, ask, pods, programmed, service};

/// Connections at once.
const CLIENTS: usize = 2;
/// Connections that must have been made before the test ends.
const CONNECTIONS: usize = 500;
/// How long to wait for them.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the Service's endpoints were, over time.
#[derive(Default)]
struct Lives {
    lists: Mutex<Vec<BTreeSet<IpAddr>>>,
    /// The number of lists that the kernel has acknowledged, and that were sent to it.
    acknowledged: AtomicUsize,
    sent: AtomicUsize,
    /// The number of connections that were answered.
    answered: AtomicUsize,
}

impl Lives {
    /// Whether an endpoint was one between two moments, given by the lists acknowledged before the first and
    /// sent before the second.
    fn was_one(&self, endpoint: IpAddr, acknowledged: usize, sent: usize) -> bool {
        let lists = self.lists.lock().unwrap();
        let possible = &lists[acknowledged.saturating_sub(1)..sent];
        possible.iter().any(|list| list.contains(&endpoint))
    }
}

/// Connects until told to stop, or until a connection goes wrong.
fn connect_all_the_time(to: SocketAddr, lives: &Lives, stop: &AtomicBool) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        let acknowledged = lives.acknowledged.load(Ordering::SeqCst);
        let (endpoint, _) = ask(to).map_err(|error| error.to_string())?;
        let sent = lives.sent.load(Ordering::SeqCst);
        if !lives.was_one(endpoint, acknowledged, sent) {
            return Err(format!(
                "{endpoint} answered, which was no endpoint from list {acknowledged} to list {sent}"
            ));
        }
        lives.answered.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

fn swap<A: Family>(address: &str, all: &[IpAddr], options: &str, swaps: usize) {
    let network = Network::new(all);
    let program = programmed::<A>(&network, service(address, all, options));
    let lives = Arc::new(Lives::default());
    let mut random = Random(7);
    let mut replace = || {
        // Between one and seven of twelve, so that the class changes too.
        let mut list: Vec<IpAddr> = all.to_vec();
        let count = 1 + random.below(7) as usize;
        while list.len() > count {
            list.swap_remove(random.below(list.len() as u64) as usize);
        }
        lives.lists.lock().unwrap().push(list.iter().copied().collect());
        lives.sent.fetch_add(1, Ordering::SeqCst);
        program(service(address, &list, options));
        lives.acknowledged.fetch_add(1, Ordering::SeqCst);
    };
    replace();
    let to: SocketAddr = format!("{address}:80").parse().unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (lives, stop) = (Arc::clone(&lives), Arc::clone(&network.stop));
            network
                .client
                .run(move || std::thread::spawn(move || connect_all_the_time(to, &lives, &stop)))
        })
        .collect();
    let began = Instant::now();
    let enough = |done: usize| done >= swaps && lives.answered.load(Ordering::SeqCst) >= CONNECTIONS;
    let mut done = 0;
    while !enough(done) && began.elapsed() < PATIENCE && !clients.iter().any(JoinHandle::is_finished) {
        replace();
        done += 1;
    }
    network.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
    }
    let answered = lives.answered.load(Ordering::SeqCst);
    assert!(enough(done), "only {answered} connections during {done} swaps");
}

fn swaps() -> usize {
    // POINTSMAN_SWAPS=10000 is the long version.
    std::env::var("POINTSMAN_SWAPS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2000)
}

#[test]
fn nobody_is_sent_to_an_endpoint_that_left_before_ipv4() {
    require_netns!();
    swap::<Ipv4Addr>("172.30.0.1", &pods(12), "", swaps());
}

#[test]
fn nobody_is_sent_to_an_endpoint_that_left_before_ipv6() {
    require_netns!();
    let all: Vec<IpAddr> = (1..=12)
        .map(|number| format!("fd00:1::1{number:02}").parse().unwrap())
        .collect();
    swap::<Ipv6Addr>("[fd00:96::1]", &all, "", swaps());
}

#[test]
fn nobody_with_affinity_is_sent_to_an_endpoint_that_left_before() {
    require_netns!();
    swap::<Ipv4Addr>("172.30.0.1", &pods(12), "affinity=600", swaps());
}
