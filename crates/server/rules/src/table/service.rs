//! Where can a Service be reached?

use super::{AGE, NAME, Printer, age, name, or, text, wide};
use crate::meta::strings;
use crate::selector::LabelSelector;
use crate::value::{at, int_at, list_at, str_at};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;

pub const PRINTER: Printer = Printer::new(
    &[
        NAME,
        text("Type", "How the service is exposed."),
        text("Cluster-IP", "First address inside the cluster."),
        text("External-IP", "Addresses outside the cluster."),
        text("Port(s)", "Ports, node ports and protocols."),
        AGE,
        wide(text("Selector", "Labels of the pods behind the service.")),
    ],
    cells,
);

fn cells(service: &Value, now: Timestamp) -> Vec<Value> {
    let cluster_ip = strings(service, &["spec", "clusterIPs"])
        .next()
        .unwrap_or("<none>");
    let selector = LabelSelector::from_labels(at(service, &["spec", "selector"])).to_string();
    vec![
        name(service),
        str_at(service, &["spec", "type"]).into(),
        cluster_ip.into(),
        external_ip(service).into(),
        ports(service).into(),
        age(service, now),
        or(&selector, "<none>").into(),
    ]
}

fn external_ip(service: &Value) -> String {
    let external: Vec<&str> = strings(service, &["spec", "externalIPs"]).collect();
    match str_at(service, &["spec", "type"]) {
        "ClusterIP" | "NodePort" => or(&external.join(","), "<none>").to_owned(),
        "LoadBalancer" => {
            let ingress: BTreeSet<&str> = list_at(service, &["status", "loadBalancer", "ingress"])
                .iter()
                .map(|point| or(str_at(point, &["ip"]), str_at(point, &["hostname"])))
                .filter(|point| !point.is_empty())
                .collect();
            let all: Vec<&str> = ingress.into_iter().chain(external).collect();
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => str_at(service, &["spec", "externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ports(service: &Value) -> String {
    let spelled: Vec<String> = list_at(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            let number = int_at(port, &["port"]).unwrap_or(0);
            let protocol = str_at(port, &["protocol"]);
            match int_at(port, &["nodePort"]) {
                Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    or(&spelled.join(","), "<none>").to_owned()
}
