//! What do the objects look like that clients write?

use bytes::Bytes;
use memchr::memmem;
use serde_json::{Value, json};

/// Where ConfigMaps of the namespace `default` live.
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Where Leases of the namespace `default` live.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
/// Where EndpointSlices of the namespace `default` live.
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
/// EndpointSlices of all namespaces.
pub const ALL_SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// Slices per Service.
const SLICES_PER_SERVICE: usize = 2;

/// A ConfigMap of about half a kilobyte.
pub fn config_map(name: &str, sequence: usize) -> Bytes {
    bytes(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app.kubernetes.io/name": "bench", "app.kubernetes.io/component": "writer"},
            "annotations": {"bench/seq": format!("{sequence:07}")},
        },
        "data": {"settings": "interval=10s;timeout=1s;".repeat(10)},
    }))
}

/// A ConfigMap of about a fifth of a kilobyte.
pub fn small_config_map(number: usize) -> Bytes {
    bytes(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format!("object-{number:07}"),
            "namespace": "default",
            "labels": {"app.kubernetes.io/name": "bench"},
        },
        "data": {"settings": "interval=10s;timeout=1s;"},
    }))
}

/// A Lease as a node renews it. `version` is the one that is replaced; empty creates.
pub fn lease(name: &str, version: &str, sequence: usize) -> Bytes {
    let mut metadata = json!({
        "name": name,
        "namespace": "default",
        "labels": {"app.kubernetes.io/name": "bench", "kubernetes.io/hostname": name},
        "annotations": {"bench/seq": format!("{sequence:07}")},
    });
    if !version.is_empty() {
        metadata["resourceVersion"] = json!(version);
    }
    bytes(&json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": format!("2026-01-01T00:{:02}:{:02}.{:06}Z", sequence / 60 % 60, sequence % 60, sequence % 1_000_000),
        },
    }))
}

/// An EndpointSlice of three ready endpoints, about 1.7 kilobytes.
pub fn slice(name: &str, number: usize, sequence: usize) -> Bytes {
    let service = service_of(number);
    let endpoints: Vec<Value> = (0..3).map(|at| endpoint(number * 3 + at, &service)).collect();
    bytes(&json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "generateName": format!("{service}-"),
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "app.kubernetes.io/name": "bench",
            },
            "annotations": {
                "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z",
                "bench/seq": format!("{sequence:07}"),
            },
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "metrics", "port": 9090, "protocol": "TCP"},
        ],
        "endpoints": endpoints,
    }))
}

fn endpoint(number: usize, service: &str) -> Value {
    let [_, b, c, d] = (number as u32 + 1).to_be_bytes();
    let node = format!("node-{:04}.example.internal", number % 1_000);
    json!({
        "addresses": [format!("10.{b}.{c}.{d}")],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": node,
        "zone": format!("zone-{}", number % 3),
        "targetRef": {
            "kind": "Pod",
            "namespace": "default",
            "name": format!("{service}-7c9d8b6f5d-{number:06x}"),
            "uid": format!("00000000-0000-4000-8000-{number:012x}"),
        },
    })
}

/// The Service that slice `number` belongs to.
pub fn service_of(number: usize) -> String {
    format!("service-{:05}", number / SLICES_PER_SERVICE)
}

/// How many slices that Service has, of `total`.
pub fn slices_of_service(number: usize, total: usize) -> usize {
    let first = number / SLICES_PER_SERVICE * SLICES_PER_SERVICE;
    (total - first).min(SLICES_PER_SERVICE)
}

/// The resource version in an object's JSON.
pub fn resource_version(object: &[u8]) -> Option<&str> {
    text_after(object, br#""resourceVersion":""#)
}

/// The sequence number in an object's JSON.
pub fn sequence(object: &[u8]) -> Option<usize> {
    text_after(object, br#""bench/seq":""#)?.parse().ok()
}

fn text_after<'a>(object: &'a [u8], start: &[u8]) -> Option<&'a str> {
    let rest = &object[memmem::find(object, start)? + start.len()..];
    std::str::from_utf8(&rest[..memchr::memchr(b'"', rest)?]).ok()
}

fn bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}
