//! Prints how long iptables takes to hold many Services, and what single changes cost.
//!
//! `cargo bench -p pointsman-benches --bench iptables_scale -- nft 5000 5` as root. It works in a
//! network namespace of its own.
#![expect(clippy::print_stdout, reason = "the output is the point")]

use std::net::Ipv4Addr;
use std::time::Instant;

use pointsman_benches::process::resident_bytes;
use pointsman_benches::synthetic::{index, name, service, settings, slice};
use pointsman_dataplane::{Compared, Index, Programmer};
use pointsman_kernel::iptables::Variant;
use pointsman_kernel::iptables_backend::IptablesBackend;
use pointsman_testkit::netns::Namespace;

fn main() {
    pointsman_kernel::memory::prefer_small();
    let arguments = pointsman_benches::arguments();
    let variant = if arguments.first().is_some_and(|name| name == "legacy") {
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
    let (services, endpoints) = (number(1, 1000), number(2, 5));
    let namespace = Namespace::new().expect("root");
    namespace.run(move || measure(variant, services, endpoints));
}

fn measure(variant: Variant, services: u32, endpoints: u32) {
    let index = index(services, endpoints);
    println!(
        "{variant:?} {services} x {endpoints}, resident {} MiB",
        resident_bytes() >> 20
    );
    let mut proxy = Proxy {
        index,
        backend: IptablesBackend::new(settings(), variant),
    };
    proxy.sync("cold start");
    pointsman_kernel::memory::return_unused();
    println!("resident {} MiB", resident_bytes() >> 20);
    for round in 1..=3 {
        proxy
            .index
            .fold_slice(slice(services / 2, endpoints - round % 2, 0), None, None);
        proxy.sync("one endpoint change");
    }
    for _ in 0..2 {
        proxy
            .index
            .fold_service(&name(services), Some(service(services)), None);
        proxy.index.fold_slice(slice(services, endpoints, 0), None, None);
        proxy.sync("one Service added");
        proxy.index.fold_service(&name(services), None, None);
        proxy
            .index
            .remove_slice(&slice(services, endpoints, 0).name, None);
        proxy.sync("one Service removed");
    }
    let start = Instant::now();
    let states = proxy.index.desired().collect();
    let comparison = proxy.backend.comparison(Compared::Ledger, states);
    let comparison = comparison.expect("nothing is read").expect("this mode compares");
    let differences = comparison.differences().expect("nothing is read");
    println!(
        "comparison with the ledger {:?}, {} differences",
        start.elapsed(),
        differences.names.len()
    );
    proxy.index.force_full();
    proxy.sync("warm full sync");
    println!("resident {} MiB", resident_bytes() >> 20);
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
        let restored = written.restored.expect("iptables mode");
        let _ = self.index.commit(batch);
        println!(
            "{what:22} {:>9.1} ms {:>9} bytes {:>7} lines {:>4} restores",
            start.elapsed().as_secs_f64() * 1e3,
            restored.bytes,
            restored.lines,
            written.transactions,
        );
    }
}
