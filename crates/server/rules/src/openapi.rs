//! How do clients learn which fields and parameters exist?
//!
//! OpenAPI v3 as Kubernetes publishes it: an index, and one document per group and version. Made
//! from the schema and the table of kinds, once, on first use. `kubectl apply` and `create` look for
//! the `fieldValidation` parameter of a kind's PATCH, `kubectl explain` reads the schemas.

mod paths;
mod schemas;
pub mod v2;

use crate::discovery::{group_versions, kinds_of};
use crate::document::Document;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

struct Published {
    group: &'static str,
    version: &'static str,
    document: Document,
}

/// The body of `/openapi/v3`: where each document is, with its hash in the address.
pub fn index() -> Document {
    let mut paths = Map::new();
    for (group, version) in group_versions() {
        let place = place(group, version);
        let url = format!("/openapi/v3/{place}?hash={}", hash(group, version));
        paths.insert(place, json!({"serverRelativeURL": url}));
    }
    Document::new(&json!({"paths": paths}))
}

/// The hash in the address of a document. One with custom resources changes with their definitions, and is not
/// made before somebody asks for it.
fn hash(group: &str, version: &str) -> String {
    let defined = kinds_of(group, version).filter_map(|kind| kind.defined);
    let hashes: Vec<u64> = defined.map(|defined| defined.get().hash).collect();
    match documents()
        .iter()
        .find(|known| (known.group, known.version) == (group, version))
    {
        Some(known) if hashes.is_empty() => known.document.hash.clone(),
        _ => format!(
            "{:016X}",
            hashes.iter().fold(0, |all: u64, one| all.rotate_left(1) ^ one)
        ),
    }
}

/// The document of one group and version, if it is served.
pub fn document(group: &str, version: &str) -> Option<Document> {
    let mut kinds = kinds_of(group, version);
    if kinds.any(|kind| kind.defined.is_some()) {
        return Some(Document {
            hash: hash(group, version),
            ..Document::new(&build(group, version))
        });
    }
    documents()
        .iter()
        .find(|published| published.group == group && published.version == version)
        .map(|published| published.document.clone())
}

/// The documents of the built-in groups and versions.
fn documents() -> &'static [Published] {
    static DOCUMENTS: OnceLock<Vec<Published>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let built_in =
            |(group, version): &(&str, &str)| kinds_of(group, version).all(|kind| kind.defined.is_none());
        group_versions()
            .into_iter()
            .filter(built_in)
            .map(|(group, version)| Published {
                group,
                version,
                document: Document::new(&build(group, version)),
            })
            .collect()
    })
}

fn build(group: &str, version: &str) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Pointsman", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths::of(group, version),
        "components": {"schemas": schemas::of(group, version)},
    })
}

/// `api/v1`, `apis/apps/v1`: the path of a group and version without the leading slash.
fn place(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use std::collections::BTreeSet;

    fn parsed(group: &str, version: &str) -> Value {
        serde_json::from_slice(&document(group, version).unwrap().body).unwrap()
    }

    #[test]
    fn the_index_names_every_document_with_its_hash() {
        let index: Value = serde_json::from_slice(&index().body).unwrap();
        for (group, version) in group_versions() {
            let url = index["paths"][place(group, version)]["serverRelativeURL"]
                .as_str()
                .unwrap();
            let hash = &document(group, version).unwrap().hash;
            assert!(
                url.starts_with("/openapi/v3/api") && url.ends_with(hash.as_str()),
                "{url}"
            );
        }
        assert!(document("apps", "v2").is_none());
    }

    #[test]
    fn the_patch_of_every_kind_takes_field_validation() {
        for kind in kinds::ALL.iter() {
            let document = parsed(kind.group, kind.version);
            let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
            let found = document["paths"].as_object().unwrap().values().any(|item| {
                let patch = &item["patch"];
                let parameters = patch["parameters"].as_array().into_iter().flatten();
                patch["x-kubernetes-group-version-kind"] == gvk
                    && parameters
                        .into_iter()
                        .any(|p| p["name"] == "fieldValidation" && p["in"] == "query")
            });
            assert!(found, "{}", kind.kind);
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_operation_ids_are_unique() {
        for (group, version) in group_versions() {
            let document = parsed(group, version);
            let schemas = document["components"]["schemas"].as_object().unwrap();
            let mut ids = BTreeSet::new();
            walk(&document, &mut |key, value| match (key, value.as_str()) {
                ("$ref", Some(target)) => {
                    let id = target.strip_prefix("#/components/schemas/").unwrap();
                    assert!(schemas.contains_key(id), "{id}");
                }
                ("operationId", Some(id)) => assert!(ids.insert(id.to_owned()), "{id}"),
                _ => {}
            });
        }
    }

    #[test]
    fn schemas_carry_what_apply_needs_to_merge_lists() {
        let core = parsed("", "v1");
        let ports = &core["components"]["schemas"]["io.k8s.api.core.v1.Container"]["properties"]["ports"];
        assert_eq!(ports["x-kubernetes-patch-merge-key"], "containerPort");
        assert_eq!(ports["x-kubernetes-patch-strategy"], "merge");
        assert_eq!(ports["x-kubernetes-list-type"], "map");
        assert_eq!(
            ports["x-kubernetes-list-map-keys"],
            json!(["containerPort", "protocol"])
        );
        let pod = &core["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "Pod"}])
        );
    }

    fn walk(value: &Value, visit: &mut impl FnMut(&str, &Value)) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    visit(key, value);
                    walk(value, visit);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
            _ => {}
        }
    }
}
