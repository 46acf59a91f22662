//! Which ready addresses does an Endpoints object list?

use super::{AGE, NAME, Printer, age, first_three, name, text};
use crate::value::{int_at, list_at, str_at};
use jiff::Timestamp;
use serde_json::Value;

pub const PRINTER: Printer = Printer::new(
    &[NAME, text("Endpoints", "Ready addresses and their ports."), AGE],
    cells,
);

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), addresses(object).into(), age(object, now)]
}

fn addresses(object: &Value) -> String {
    let subsets = list_at(object, &["subsets"]);
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let ips = || {
            list_at(subset, &["addresses"])
                .iter()
                .map(|address| str_at(address, &["ip"]))
        };
        let ports = list_at(subset, &["ports"]);
        if ports.is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in ports {
            let port = int_at(port, &["port"]).unwrap_or(0);
            all.extend(ips().map(|ip| {
                if ip.contains(':') {
                    format!("[{ip}]:{port}")
                } else {
                    format!("{ip}:{port}")
                }
            }));
        }
    }
    first_three(&all)
}
