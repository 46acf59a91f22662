//! Prints how long iptables takes to hold many Services, and what single changes cost.
//!
//! `cargo run --release -p pointsman-kernel --example iptables_scale -- nft 5000 5` as root. It works in a
//! network namespace of its own.
#![expect(clippy::print_stdout, reason = "the output is the point")]

use std::net::Ipv4Addr;
use std::time::Instant;

use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, LocalDetector, Settings, TriggerTime};
use pointsman_kernel::iptables::Variant;
use pointsman_kernel::iptables_backend::IptablesBackend;
use pointsman_model::{
    Conditions, NodeName, Port, Protocol, Service, ServiceName, ServicePort, Slice, SliceEndpoint, SliceName,
    SlicePort, TrafficPolicy,
};
use pointsman_testkit::netns::Namespace;

fn main() {
    pointsman_kernel::memory::prefer_small();
    let arguments: Vec<String> = std::env::args().collect();
    let variant = if arguments.get(1).is_some_and(|name| name == "legacy") {
        Variant::Legacy
    } else {
        Variant::Nft
    };
    let number = |position: usize, default| {
        arguments
            .get(position)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (services, endpoints) = (number(2, 1000), number(3, 5));
    let namespace = Namespace::new().expect("root");
    namespace.run(move || measure(variant, services, endpoints));
}

fn measure(variant: Variant, services: u32, endpoints: u32) {
    let mut index = Index::<Ipv4Addr>::new(NodeName::from("n1"), ExternalIps::Honoured, TriggerTime(0));
    for number in 0..services {
        let name = name(number);
        index.fold_service(&name, Some(service(number)), None);
        index.fold_slice(slice(number, endpoints), None, None);
    }
    println!(
        "{variant:?} {services} x {endpoints}, resident {} MiB",
        resident_mib()
    );
    let settings = Settings {
        local: LocalDetector::from_ranges(["10.0.0.0/8"]),
        ..Settings::default()
    };
    let mut proxy = Proxy {
        index,
        backend: IptablesBackend::new(settings, variant),
    };
    proxy.sync("cold start");
    pointsman_kernel::memory::return_unused();
    println!("resident {} MiB", resident_mib());
    for round in 1..=3 {
        proxy
            .index
            .fold_slice(slice(services / 2, endpoints - round % 2), None, None);
        proxy.sync("one endpoint change");
    }
    for _ in 0..2 {
        proxy
            .index
            .fold_service(&name(services), Some(service(services)), None);
        proxy.index.fold_slice(slice(services, endpoints), None, None);
        proxy.sync("one Service added");
        proxy.index.fold_service(&name(services), None, None);
        proxy.index.remove_slice(&slice(services, endpoints).name, None);
        proxy.sync("one Service removed");
    }
    let start = Instant::now();
    let differences = proxy
        .backend
        .digest_check(proxy.index.desired().collect())
        .divergences();
    println!(
        "digest check {:?}, {} differences",
        start.elapsed(),
        differences.len()
    );
    proxy.index.force_full();
    proxy.sync("warm full sync");
    println!("resident {} MiB", resident_mib());
}

struct Proxy {
    index: Index<Ipv4Addr>,
    backend: IptablesBackend<Ipv4Addr>,
}

impl Proxy {
    fn sync(&mut self, what: &str) {
        let start = Instant::now();
        let batch = self.index.checkout();
        let written = self.backend.sync(&batch).expect("the kernel takes the rules");
        let _ = self.index.commit(batch);
        println!(
            "{what:22} {:>9.1} ms {:>9} bytes {:>7} lines {:>4} restores",
            start.elapsed().as_secs_f64() * 1e3,
            written.bytes,
            written.lines,
            written.restores,
        );
    }
}

fn name(number: u32) -> ServiceName {
    ServiceName::new("default", &format!("service-{number}")).expect("a name")
}

fn service(number: u32) -> Service<Ipv4Addr> {
    Service {
        name: name(number),
        cluster_ip: Ipv4Addr::from_bits(0xAC1E_0000 + number + 1),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity: None,
        ports: [ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("a port"),
            node_port: None,
        }]
        .into(),
        external: None,
    }
}

fn slice(number: u32, endpoints: u32) -> Slice<Ipv4Addr> {
    let endpoint = |position: u32| SliceEndpoint {
        address: Ipv4Addr::from_bits(0x0A00_0000 + number * 16 + position),
        conditions: Conditions::READY,
        node: Some("n2".into()),
        hints: None,
    };
    Slice {
        name: SliceName::new("default", &format!("service-{number}-x")).expect("a name"),
        service: name(number),
        ports: [SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: Port::new(8080).expect("a port"),
        }]
        .into(),
        endpoints: (0..endpoints).map(endpoint).collect(),
    }
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}
