//! Which addresses and ports does an EndpointSlice list?

use super::{AGE, NAME, Printer, age, first_three, name, or, text};
use crate::meta::strings;
use crate::value::{int_at, list_at, str_at};
use jiff::Timestamp;
use serde_json::Value;

pub const PRINTER: Printer = Printer::new(
    &[
        NAME,
        text("AddressType", "Family of the addresses."),
        text("Ports", "Ports of every endpoint."),
        text("Endpoints", "Addresses, whatever their readiness."),
        AGE,
    ],
    cells,
);

fn cells(slice: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list_at(slice, &["ports"])
        .iter()
        .map(|port| match int_at(port, &["port"]) {
            Some(number) => number.to_string(),
            None => or(str_at(port, &["name"]), "*").to_owned(),
        })
        .collect();
    let addresses: Vec<String> = list_at(slice, &["endpoints"])
        .iter()
        .flat_map(|endpoint| strings(endpoint, &["addresses"]))
        .map(str::to_owned)
        .collect();
    vec![
        name(slice),
        str_at(slice, &["addressType"]).into(),
        or(&first_three(&ports), "<unset>").into(),
        or(&first_three(&addresses), "<unset>").into(),
        age(slice, now),
    ]
}
