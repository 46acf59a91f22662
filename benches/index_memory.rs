//! Prints how much memory the index of a large cluster takes.
//!
//! `cargo bench -p pointsman-benches --bench index_memory -- 45000 1`
#![expect(clippy::print_stdout, reason = "the output is the point")]

use std::net::Ipv4Addr;
use std::time::Instant;

use pointsman_benches::process::resident_bytes;
use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, convert};
use pointsman_model::{Interner, Moment, NodeName};
use pointsman_objects::{compact, names};

fn main() {
    let arguments = pointsman_benches::arguments();
    let number = |position: usize, default| {
        arguments
            .get(position)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (services, endpoints): (u32, u32) = (number(0, 45_000), number(1, 1));
    let before = resident_bytes();
    let mut names = Interner::default();
    let mut index = Index::<Ipv4Addr>::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0));
    let start = Instant::now();
    for service in 0..services {
        let converted = convert::service(&service_object(service), &mut names).expect("a name");
        let name = converted.name.clone();
        index.fold_service(&name, converted.v4, converted.revision);
    }
    for service in 0..services {
        let converted = convert::slice(&slice_object(service, endpoints), &mut names).expect("a name");
        if let convert::FamilySlice::V4(slice) = converted.slice {
            index.fold_slice(slice, converted.revision, converted.trigger);
        }
    }
    report("folded", before, services, start);
    let batch = index.checkout();
    let _ = index.commit(batch);
    report("committed", before, services, start);
}

fn service_object(number: u32) -> compact::Service {
    let mut object = compact::Service::default();
    object.metadata.namespace = format!("namespace-{}", number / 100);
    object.metadata.name = format!("service-{number}");
    object.metadata.resource_version = (number + 1).to_string();
    object.spec.cluster_ip = Ipv4Addr::from_bits(0xAC1E_0000 + number).to_string();
    object.spec.ports.push(compact::ServicePort {
        name: "http".into(),
        port: 80,
        ..Default::default()
    });
    object
}

fn slice_object(number: u32, endpoints: u32) -> compact::EndpointSlice {
    let mut object = compact::EndpointSlice::default();
    object.metadata.namespace = format!("namespace-{}", number / 100);
    object.metadata.name = format!("service-{number}-x7x2f");
    object.metadata.resource_version = (number + 100_000).to_string();
    object
        .metadata
        .labels
        .insert(names::SERVICE_NAME_LABEL.into(), format!("service-{number}"));
    object.address_type = "IPv4".into();
    let port = compact::EndpointPort {
        name: Some("http".into()),
        port: Some(8080),
        ..Default::default()
    };
    object.ports.push(port);
    for endpoint in 0..endpoints {
        object.endpoints.push(compact::Endpoint {
            addresses: vec![Ipv4Addr::from_bits(0x0A00_0000 + number * 16 + endpoint).to_string()],
            node_name: Some(format!("node-{}", number % 500)),
            ..Default::default()
        });
    }
    object
}

fn report(what: &str, before: u64, services: u32, start: Instant) {
    let used = resident_bytes() - before;
    println!(
        "{what}: {:.1} MiB, {} bytes for each Service, after {:?}",
        used as f64 / f64::from(1 << 20),
        used / u64::from(services),
        start.elapsed()
    );
}
