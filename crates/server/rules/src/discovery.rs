//! What does this server serve, in the words of the discovery API?
//!
//! Two forms: the legacy one (`APIGroupList`, `APIResourceList`) and the aggregated one
//! (`APIGroupDiscoveryList`), both made from [`kinds::ALL`], [`REVIEWS`] and [`MEASURED`](crate::measured::MEASURED). The core group is always
//! first, so that clients resolve `nodes` to the core Node.

use crate::custom;
use crate::document::Document;
use crate::kind::{Kind, Scope, Subresource};
use crate::kinds;
use crate::measured::Measured;
use crate::review::{REVIEWS, Review};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The verbs that a subresource answers to.
pub fn subresource_verbs(subresource: Subresource) -> &'static [&'static str] {
    match subresource {
        Subresource::Status | Subresource::Scale | Subresource::Approval => &["get", "patch", "update"],
        Subresource::Binding | Subresource::Eviction | Subresource::Token => &["create"],
        Subresource::Finalize => &["update"],
        Subresource::Log => &["get"],
        Subresource::Exec | Subresource::Attach | Subresource::Portforward => &["create", "get"],
        Subresource::Proxy => &["create", "delete", "get", "patch", "update"],
    }
}

/// Group, version and kind of the bodies of a subresource.
pub fn subresource_kind(kind: &Kind, subresource: Subresource) -> (&'static str, &'static str, &'static str) {
    match subresource {
        Subresource::Scale => ("autoscaling", "v1", "Scale"),
        Subresource::Eviction => ("policy", "v1", "Eviction"),
        Subresource::Binding => ("", "v1", "Binding"),
        Subresource::Token => ("authentication.k8s.io", "v1", "TokenRequest"),
        Subresource::Exec => ("", "v1", "PodExecOptions"),
        Subresource::Attach => ("", "v1", "PodAttachOptions"),
        Subresource::Portforward => ("", "v1", "PodPortForwardOptions"),
        Subresource::Proxy => match kind.kind {
            "Pod" => ("", "v1", "PodProxyOptions"),
            "Node" => ("", "v1", "NodeProxyOptions"),
            _ => ("", "v1", "ServiceProxyOptions"),
        },
        Subresource::Status | Subresource::Finalize | Subresource::Log | Subresource::Approval => {
            (kind.group, kind.version, kind.kind)
        }
    }
}

/// What is served, in order. With hundreds of definitions nobody can afford to go through all kinds for each of them.
struct Served {
    /// The state of the definitions that this is made from.
    generation: u64,
    /// Every group and version once, core first, custom kinds last.
    versions: Vec<(&'static str, &'static str)>,
    kinds: HashMap<(&'static str, &'static str), Vec<&'static Kind>>,
}

impl Served {
    /// What is served now, made anew when definitions have changed.
    fn now() -> Arc<Self> {
        static NOW: RwLock<Option<Arc<Served>>> = RwLock::new(None);
        let generation = custom::generation();
        let known = NOW.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| known.generation == generation) {
            return known;
        }
        let made = Arc::new(Self::new(generation));
        *NOW.write().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        made
    }

    fn new(generation: u64) -> Self {
        let builtin = kinds::ALL.iter().filter(|kind| !kind.custom);
        let own = kinds::ALL.iter().filter(|kind| kind.custom);
        let defined = custom::served();
        let mut versions = Vec::new();
        let mut seen = HashSet::new();
        let all = builtin
            .map(|kind| (kind.group, kind.version))
            .chain(REVIEWS.iter().map(|review| (review.group, Review::VERSION)))
            .chain([(Measured::GROUP, Measured::VERSION)])
            .chain(own.map(|kind| (kind.group, kind.version)))
            .chain(defined.iter().map(|kind| (kind.group, kind.version)));
        for pair in all {
            if seen.insert(pair) {
                versions.push(pair);
            }
        }
        // A stable sort: the order within each half stays.
        versions.sort_by_key(|(group, _)| !group.is_empty());
        let mut kinds: HashMap<_, Vec<_>> = HashMap::new();
        for kind in kinds::ALL.iter().copied().chain(defined) {
            kinds.entry((kind.group, kind.version)).or_default().push(kind);
        }
        Self {
            generation,
            versions,
            kinds,
        }
    }

    /// The named groups with their versions, without core.
    fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut places = HashMap::new();
        let mut groups: Vec<(_, Vec<_>)> = Vec::new();
        for (group, version) in self.versions.iter().filter(|(group, _)| !group.is_empty()) {
            let at = *places.entry(group).or_insert(groups.len());
            if at == groups.len() {
                groups.push((*group, Vec::new()));
            }
            groups[at].1.push(*version);
        }
        groups
    }
}

/// Every served group and version once, core first, custom kinds last.
pub fn group_versions() -> Vec<(&'static str, &'static str)> {
    Served::now().versions.clone()
}

/// `APIVersions`, for `/api`.
pub fn api_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `APIGroupList`, for `/apis`.
pub fn group_list() -> Value {
    let groups = Served::now().groups();
    let groups: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| group_entry(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `APIGroup`, for `/apis/<group>`.
pub fn group(name: &str) -> Option<Value> {
    let groups = Served::now().groups();
    let (_, versions) = groups.iter().find(|(group, _)| *group == name)?;
    let mut entry = group_entry(name, versions);
    entry["kind"] = json!("APIGroup");
    entry["apiVersion"] = json!("v1");
    Some(entry)
}

/// `APIResourceList`, for `/api/v1` and `/apis/<group>/<version>`.
pub fn resource_list(group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in kinds_of(group, version) {
        resources.push(resource_entry(kind));
        resources.extend(kind.subresources.iter().map(|sub| subresource_entry(kind, *sub)));
    }
    for review in reviews_of(group, version) {
        resources.push(json!({
            "name": review.plural,
            "singularName": review.singular(),
            "namespaced": review.scope == Scope::Namespaced,
            "kind": review.kind,
            "verbs": ["create"],
        }));
    }
    for measured in Measured::of_group(group, version) {
        resources.push(json!({
            "name": measured.plural,
            "singularName": "",
            "namespaced": measured.scope == Scope::Namespaced,
            "kind": measured.kind,
            "verbs": Measured::VERBS,
        }));
    }
    if resources.is_empty() {
        return None;
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    }))
}

/// `APIGroupDiscoveryList` for `/api`: the core group.
pub fn aggregated_core() -> Arc<Document> {
    static DOCUMENT: OnceLock<Arc<Document>> = OnceLock::new();
    DOCUMENT
        .get_or_init(|| Arc::new(aggregated(&[("", vec!["v1"])])))
        .clone()
}

/// `APIGroupDiscoveryList` for `/apis`: all groups but core.
pub fn aggregated_groups() -> Arc<Document> {
    static DOCUMENT: RwLock<Option<(u64, Arc<Document>)>> = RwLock::new(None);
    let generation = custom::generation();
    let known = DOCUMENT.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some((_, document)) = known.filter(|(at, _)| *at == generation) {
        return document;
    }
    let document = Arc::new(aggregated(&Served::now().groups()));
    let mut known = DOCUMENT.write().unwrap_or_else(PoisonError::into_inner);
    *known = Some((generation, document.clone()));
    document
}

/// `v1`, `apps/v1`.
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// The kinds of one group and version.
pub fn kinds_of(group: &str, version: &str) -> impl Iterator<Item = &'static Kind> + use<> {
    let kinds = Served::now().kinds.get(&(group, version)).cloned();
    kinds.into_iter().flatten()
}

/// The reviews of one group and version.
pub fn reviews_of(group: &str, version: &str) -> impl Iterator<Item = &'static Review> {
    REVIEWS
        .iter()
        .filter(move |review| review.group == group && version == Review::VERSION)
}

fn group_entry(name: &str, versions: &[&str]) -> Value {
    let entry = |version: &&str| json!({"groupVersion": group_version(name, version), "version": version});
    let versions: Vec<Value> = versions.iter().map(entry).collect();
    let preferred = versions.first().cloned().unwrap_or_default();
    json!({"name": name, "versions": versions, "preferredVersion": preferred})
}

fn resource_entry(kind: &Kind) -> Value {
    let mut entry = json!({
        "name": kind.plural,
        "singularName": kind.singular(),
        "namespaced": kind.namespaced(),
        "kind": kind.kind,
        "verbs": kind.verbs,
        "storageVersionHash": storage_version_hash(kind),
    });
    add_aliases(&mut entry, kind);
    entry
}

/// Changes when another version of the kind is stored; made as upstream makes it.
fn storage_version_hash(kind: &Kind) -> String {
    let stored = kind.stored_as.unwrap_or(kind);
    let text = format!("{}/{}/{}", stored.group, stored.version, stored.kind);
    BASE64_STANDARD.encode(&Sha256::digest(text)[..8])
}

fn subresource_entry(kind: &Kind, subresource: Subresource) -> Value {
    let (group, version, name) = subresource_kind(kind, subresource);
    let mut entry = json!({
        "name": format!("{}/{}", kind.plural, subresource.name()),
        "singularName": "",
        "namespaced": kind.namespaced(),
        "kind": name,
        "verbs": subresource_verbs(subresource),
    });
    if (group, version) != (kind.group, kind.version) {
        entry["group"] = json!(group);
        entry["version"] = json!(version);
    }
    entry
}

fn add_aliases(entry: &mut Value, kind: &Kind) {
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
}

fn aggregated(groups: &[(&str, Vec<&str>)]) -> Document {
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| aggregated_group(group, versions))
        .collect();
    Document::new(&json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }))
}

fn aggregated_group(name: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            let kinds = kinds_of(name, version).map(aggregated_resource);
            let reviews = reviews_of(name, version).map(aggregated_review);
            let measured = Measured::of_group(name, version).map(aggregated_measured);
            let resources: Vec<Value> = kinds.chain(reviews).chain(measured).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if name.is_empty() {
        json!({"creationTimestamp": null})
    } else {
        json!({"name": name, "creationTimestamp": null})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(kind: &'static Kind) -> Value {
    let mut entry = json!({
        "resource": kind.plural,
        "responseKind": response_kind((kind.group, kind.version, kind.kind)),
        "scope": scope(kind.scope),
        "singularResource": kind.singular(),
        "verbs": kind.verbs,
    });
    add_aliases(&mut entry, kind);
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|subresource| {
            json!({
                "subresource": subresource.name(),
                "responseKind": response_kind(subresource_kind(kind, *subresource)),
                "verbs": subresource_verbs(*subresource),
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = Value::Array(subresources);
    }
    entry
}

fn aggregated_review(review: &'static Review) -> Value {
    json!({
        "resource": review.plural,
        "responseKind": response_kind((review.group, Review::VERSION, review.kind)),
        "scope": scope(review.scope),
        "singularResource": review.singular(),
        "verbs": ["create"],
    })
}

fn aggregated_measured(measured: &'static Measured) -> Value {
    json!({
        "resource": measured.plural,
        "responseKind": response_kind((Measured::GROUP, Measured::VERSION, measured.kind)),
        "scope": scope(measured.scope),
        "singularResource": "",
        "verbs": Measured::VERBS,
    })
}

fn response_kind((group, version, kind): (&str, &str, &str)) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespaced => "Namespaced",
        Scope::Cluster => "Cluster",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn groups_come_once_and_custom_ones_last() {
        let list = group_list();
        let names: Vec<&str> = list["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["name"].as_str().unwrap())
            .collect();
        assert_eq!(names.first(), Some(&"apps"));
        assert_eq!(names.last(), Some(&"config.openshift.io"));
        assert!(names.contains(&"authorization.k8s.io"));
        let unique: std::collections::BTreeSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert_eq!(group_versions()[0], ("", "v1"));
    }

    #[test]
    fn the_legacy_form_lists_subresources_with_the_kind_they_answer_with() {
        let apps = resource_list("apps", "v1").unwrap();
        let entry = |name: &str| {
            let resources = apps["resources"].as_array().unwrap();
            resources
                .iter()
                .find(|entry| entry["name"] == name)
                .unwrap()
                .clone()
        };
        assert_eq!(entry("deployments")["shortNames"], json!(["deploy"]));
        // What kube-apiserver says.
        assert_eq!(entry("deployments")["storageVersionHash"], "8aSe+NMegvE=");
        assert_eq!(
            entry("deployments/scale"),
            json!({"name": "deployments/scale", "singularName": "", "namespaced": true, "group": "autoscaling",
                   "version": "v1", "kind": "Scale", "verbs": ["get", "patch", "update"]})
        );
        assert_eq!(resource_list("apps", "v2"), None);
        assert_eq!(group("nothing"), None);
        assert_eq!(
            group("apps").unwrap()["preferredVersion"],
            json!({"groupVersion": "apps/v1", "version": "v1"})
        );
    }

    #[test]
    fn both_forms_name_the_same_resources() {
        for (group, version) in group_versions() {
            let legacy = resource_list(group, version).unwrap();
            let mut legacy: Vec<String> = legacy["resources"]
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| format!("{} {}", entry["name"].as_str().unwrap(), entry["verbs"]))
                .collect();
            let document = if group.is_empty() {
                aggregated_core()
            } else {
                aggregated_groups()
            };
            let document: Value = serde_json::from_slice(&document.body).unwrap();
            let mut aggregated = Vec::new();
            for item in document["items"].as_array().unwrap() {
                if item["metadata"]["name"].as_str().unwrap_or("") != group {
                    continue;
                }
                for entry in item["versions"][0]["resources"].as_array().unwrap() {
                    let resource = entry["resource"].as_str().unwrap();
                    aggregated.push(format!("{resource} {}", entry["verbs"]));
                    for sub in entry["subresources"].as_array().into_iter().flatten() {
                        let name = sub["subresource"].as_str().unwrap();
                        aggregated.push(format!("{resource}/{name} {}", sub["verbs"]));
                    }
                }
            }
            legacy.sort();
            aggregated.sort();
            assert_eq!(legacy, aggregated);
        }
    }

    #[test]
    fn every_body_that_discovery_names_has_a_schema() {
        for review in REVIEWS {
            assert!(schema::named(review.group, Review::VERSION, review.kind).is_some());
        }
        for kind in kinds::ALL.iter() {
            // Options are parameters, and no bodies.
            for subresource in kind.subresources.iter().filter(|sub| !sub.connects()) {
                let (group, version, name) = subresource_kind(kind, *subresource);
                assert!(schema::named(group, version, name).is_some(), "{name}");
            }
        }
    }
}
