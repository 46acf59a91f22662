//! Which flows of a large table are forgotten, and at what cost?

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pointsman_dataplane::Programmer;
use pointsman_dataplane::conntrack::UdpReview;
use pointsman_kernel::Commits;
use pointsman_kernel::conntrack::FlowCleaner;
use pointsman_kernel::nftables_backend::NftablesBackend;
use pointsman_model::ServiceName;
use pointsman_netlink::conntrack::{Flow, Tuple};
use pointsman_netlink_io::{Buffers, Conntrack};
use pointsman_testkit::cluster::Cluster;
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

const CLUSTER: &str = "node n1 ip=192.168.0.2
    service default/dns 172.30.0.10:53/udp nodeport=30053
    endpoint default/dns 10.0.1.5:5353/udp node=n1";
/// How many syncs show how long one takes while no flows are looked for.
const ALONE: usize = 2000;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A flow of the client with this number.
fn flow(client: u32, protocol: u8, to: (&str, u16), answered_by: (&str, u16)) -> Flow {
    let source = Some(IpAddr::from(Ipv4Addr::from(0x0b00_0000 + client)));
    let address = |text: &str| Some(text.parse().unwrap());
    Flow {
        original: Tuple {
            source,
            destination: address(to.0),
            protocol,
            source_port: Some(4000),
            destination_port: Some(to.1),
        },
        reply: Tuple {
            source: address(answered_by.0),
            destination: source,
            protocol,
            source_port: Some(answered_by.1),
            destination_port: Some(4000),
        },
        id: None,
    }
}

/// Bytes of memory, by the name that the kernel gives them.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit())
        .parse::<u64>()
        .unwrap()
        << 10
}

/// How many flows of others there are: 200,000, or as many as `POINTSMAN_FLOWS` says.
fn others() -> u32 {
    let asked = std::env::var("POINTSMAN_FLOWS").ok();
    asked.map_or(200_000, |number| {
        number.parse().expect("POINTSMAN_FLOWS is a number")
    })
}

/// The limit of the machine's one table of flows, raised where more are asked for, and put back in the end.
struct Limit {
    before: Option<String>,
}

impl Limit {
    const FILE: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

    fn of_at_least(flows: u32) -> Self {
        let now = std::fs::read_to_string(Self::FILE).unwrap();
        let raised = now.trim().parse::<u32>().unwrap() < flows;
        if raised {
            std::fs::write(Self::FILE, flows.to_string()).expect("only the machine's own namespace may");
        }
        Self {
            before: raised.then_some(now),
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            std::fs::write(Self::FILE, before).unwrap();
        }
    }
}

/// Changes a Service again and again until told to stop; returns how long that took each time.
fn sync_until(stop: &AtomicBool, done: &AtomicUsize) -> Vec<Duration> {
    let cluster = Cluster::parse(CLUSTER);
    let mut index = cluster.index::<Ipv4Addr>();
    let commits = Commits::default();
    let mut backend = NftablesBackend::open(cluster.settings(), commits).unwrap();
    let mut took = Vec::new();
    let dns = ServiceName::new("default", "dns").unwrap();
    // The first one writes everything.
    for sync in 0.. {
        let batch = index.checkout();
        let started = Instant::now();
        let written = backend.sync(&batch).unwrap();
        if sync > 0 {
            took.push(started.elapsed());
        }
        assert!(written.transactions > 0, "sync {sync} had nothing to write");
        done.store(sync, Ordering::Relaxed);
        let _ = index.commit(batch);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match sync % 2 {
            1 => cluster.fold_into(&mut index),
            _ => index.fold_service(&dns, None, None),
        }
    }
    took
}

/// How long it takes on average, and the longest.
fn mean_and_longest(times: &[Duration]) -> (Duration, Duration) {
    let mean = times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap();
    (mean, *times.iter().max().unwrap())
}

#[test]
fn flows_of_a_deleted_service_are_found_among_200_000_others_in_little_memory() {
    require_netns!();
    let _limit = Limit::of_at_least(others() + 4000);
    let namespace = Namespace::new().unwrap();
    namespace.run(|| {
        let mut index = Cluster::parse(CLUSTER).index::<Ipv4Addr>();
        let batch = index.checkout();
        let _ = index.commit(batch);
        index.fold_service(&ServiceName::new("default", "dns").unwrap(), None, None);
        let review = UdpReview::of(&index.checkout().changes);

        let mut tracker = Conntrack::open(Buffers::default()).unwrap();
        let mut add = |flow: Flow| tracker.add(2, &flow, 600).unwrap();
        for client in 0..others() {
            add(flow(client, TCP, ("172.30.0.10", 53), ("10.0.1.5", 5353)));
        }
        for client in 0..1000 {
            add(flow(client, UDP, ("172.30.0.10", 53), ("10.0.1.5", 5353)));
            add(flow(
                client + 1000,
                UDP,
                ("192.168.0.2", 30053),
                ("10.0.1.5", 5353),
            ));
            add(flow(client, UDP, ("8.8.8.8", 53), ("8.8.8.8", 53)));
            add(flow(client, UDP, ("8.8.8.8", 30053), ("8.8.8.8", 30053)));
        }
        let udp = Tuple {
            protocol: UDP,
            ..Tuple::default()
        };
        let mut shown = 0;
        tracker.visit(2, &udp, &mut |_| shown += 1).unwrap();
        assert_eq!(shown, 4000, "the kernel leaves TCP out");
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (deleted, grown, took, alone, times) = std::thread::scope(|scope| {
            let syncing = scope.spawn(|| sync_until(&stop, &done));
            while done.load(Ordering::Relaxed) < ALONE {
                std::thread::yield_now();
            }
            std::fs::write("/proc/self/clear_refs", "5").unwrap();
            let before = memory("VmRSS:");
            let alone = done.load(Ordering::Relaxed);
            let started = Instant::now();
            let deleted = FlowCleaner::open().unwrap().clean(&review).unwrap();
            let took = started.elapsed();
            let grown = memory("VmHWM:").saturating_sub(before);
            stop.store(true, Ordering::Relaxed);
            (deleted, grown, took, alone, syncing.join().unwrap())
        });
        let (alone, meanwhile) = times.split_at(alone);
        let (before, (mean, longest)) = (mean_and_longest(alone), mean_and_longest(meanwhile));
        eprintln!(
            "{} flows: {took:?}, {grown} bytes; {} syncs meanwhile, {mean:?} on average, {longest:?} the longest; before {before:?}",
            others(),
            meanwhile.len(),
        );
        assert!(longest < Duration::from_secs(1), "a sync took {longest:?}");
        assert_eq!(deleted, 2000);
        assert!(grown < 4 << 20, "{grown} bytes");
        let mut left = 0;
        tracker.visit(2, &Tuple::default(), &mut |_| left += 1).unwrap();
        assert_eq!(left, others() + 2000, "TCP, and what was never translated, stay");
    });
}
