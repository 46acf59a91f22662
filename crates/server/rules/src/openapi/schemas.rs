//! The `components.schemas` of one document: every type that its kinds reach.

use crate::discovery::{kinds_of, reviews_of, subresource_kind};
use crate::kind::Kind;
use crate::review::Review;
use crate::schema::{self, Field, MergeType, ObjectType, PatchStrategy, Scalar, Shape, TypeIndex};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A reference to a schema of the same document.
pub(super) fn reference(id: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{id}")})
}

/// The id of the type of a kind. That of a custom resource is made from its group, as upstream does.
pub(super) fn id_of(kind: &Kind) -> String {
    if kind.defined.is_none() {
        return schema::of(kind).id.clone();
    }
    let group: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), kind.version, kind.kind)
}

/// All schemas that the kinds of a group and version need, by id.
pub(super) fn of(group: &str, version: &str) -> Map<String, Value> {
    let mut reached = Reached::default();
    reached.add(schema::delete_options());
    for name in ["Status", "ListMeta"] {
        reached.extend(schema::schema().by_id(&format!("{META}.{name}")));
    }
    for kind in kinds_of(group, version) {
        reached.add(schema::of(kind));
        if let Some(defined) = kind.defined {
            reached
                .0
                .insert(id_of(kind), custom(kind, defined.get().source.value()));
        }
        reached.0.insert(format!("{}List", id_of(kind)), list(kind));
        for subresource in kind.subresources {
            let (group, version, name) = subresource_kind(kind, *subresource);
            reached.extend(schema::named(group, version, name));
        }
    }
    for review in reviews_of(group, version) {
        reached.extend(schema::named(review.group, Review::VERSION, review.kind));
    }
    reached
        .0
        .insert(format!("{META}.Patch"), json!({"type": "object"}));
    reached.0.into_iter().collect()
}

#[derive(Default)]
struct Reached(BTreeMap<String, Value>);

impl Reached {
    fn extend(&mut self, found: Option<&ObjectType>) {
        if let Some(found) = found {
            self.add(found);
        }
    }

    /// Adds a type and what its fields lead to. Types may lead back to themselves.
    fn add(&mut self, object: &ObjectType) {
        if self.0.contains_key(&object.id) {
            return;
        }
        self.0.insert(object.id.clone(), render(object));
        for field in object.fields() {
            self.follow(&field.shape);
        }
    }

    fn follow(&mut self, shape: &Shape) {
        match shape {
            Shape::Object(index) => self.add(index.get()),
            Shape::List(inner) | Shape::Map(inner) => self.follow(inner),
            Shape::Scalar(scalar) => {
                if let Some((id, leaf)) = leaf(*scalar) {
                    self.0.entry(id).or_insert(leaf);
                }
            }
            Shape::Any => {}
        }
    }
}

fn render(object: &ObjectType) -> Value {
    let properties: Map<String, Value> = object
        .fields()
        .iter()
        .map(|field| (field.name.to_owned(), property(field)))
        .collect();
    let required: Vec<&str> = object
        .fields()
        .iter()
        .filter(|field| field.required)
        .map(|field| field.name)
        .collect();
    let mut rendered = match (object.union, properties.is_empty()) {
        (true, _) => json!({}),
        // Clients leave an empty list of them away when they write a document again.
        (false, true) => json!({"type": "object"}),
        (false, false) => json!({"type": "object", "properties": properties}),
    };
    if !object.description.is_empty() {
        rendered["description"] = json!(object.description);
    }
    if !required.is_empty() {
        rendered["required"] = json!(required);
    }
    if let Some(map_type) = object.map_type {
        rendered["x-kubernetes-map-type"] = json!(map_type);
    }
    if let Some(served) = object.served_as {
        rendered["x-kubernetes-group-version-kind"] =
            json!([{"group": served.group, "version": served.version, "kind": served.kind}]);
    }
    rendered
}

fn property(field: &Field) -> Value {
    let mut rendered = render_shape(&field.shape);
    if !field.description.is_empty() {
        rendered["description"] = json!(field.description);
    }
    match &field.merge_type {
        Some(MergeType::List(list_type, keys)) => {
            rendered["x-kubernetes-list-type"] = json!(list_type);
            if !keys.is_empty() {
                rendered["x-kubernetes-list-map-keys"] = json!(keys);
            }
        }
        Some(MergeType::Map(map_type)) => rendered["x-kubernetes-map-type"] = json!(map_type),
        None => {}
    }
    let mut strategies = Vec::new();
    match field.patch {
        PatchStrategy::Default => {}
        PatchStrategy::Replace => strategies.push("replace"),
        PatchStrategy::MergeSet => strategies.push("merge"),
        PatchStrategy::MergeBy(key) => {
            strategies.push("merge");
            rendered["x-kubernetes-patch-merge-key"] = json!(key);
        }
    }
    if field.retain_keys {
        strategies.push("retainKeys");
    }
    if !strategies.is_empty() {
        rendered["x-kubernetes-patch-strategy"] = json!(strategies.join(","));
    }
    rendered
}

fn render_shape(shape: &Shape) -> Value {
    match shape {
        Shape::Any => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        Shape::Object(index) => wrapped(&TypeIndex::get(*index).id),
        Shape::List(item) => json!({"type": "array", "items": render_shape(item)}),
        Shape::Map(value) => json!({"type": "object", "additionalProperties": render_shape(value)}),
        Shape::Scalar(scalar) => match (leaf(*scalar), scalar) {
            (Some((id, _)), _) => wrapped(&id),
            (None, Scalar::Bool) => json!({"type": "boolean"}),
            (None, Scalar::Int32 | Scalar::Int64) => json!({"type": "integer", "format": scalar.name()}),
            (None, Scalar::Double) => json!({"type": "number", "format": "double"}),
            (None, Scalar::Bytes) => json!({"type": "string", "format": "byte"}),
            (None, _) => json!({"type": "string"}),
        },
    }
}

/// A reference that can stand beside a description, which a bare `$ref` cannot.
fn wrapped(id: &str) -> Value {
    json!({"allOf": [reference(id)]})
}

/// The scalars that upstream publishes as types of their own.
fn leaf(scalar: Scalar) -> Option<(String, Value)> {
    match scalar {
        Scalar::Time => Some((
            format!("{META}.Time"),
            json!({"type": "string", "format": "date-time"}),
        )),
        Scalar::MicroTime => Some((
            format!("{META}.MicroTime"),
            json!({"type": "string", "format": "date-time"}),
        )),
        Scalar::Quantity => Some((
            "io.k8s.apimachinery.pkg.api.resource.Quantity".to_owned(),
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        )),
        Scalar::IntOrString => Some((
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString".to_owned(),
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        )),
        _ => None,
    }
}

/// The schema of a custom resource with what all objects have.
fn custom(kind: &Kind, mut rendered: Value) -> Value {
    if !rendered.is_object() {
        rendered = json!({"type": "object"});
    }
    if !rendered["properties"].is_object() {
        rendered["properties"] = json!({});
    }
    let properties = &mut rendered["properties"];
    properties["apiVersion"] = json!({"type": "string", "description": "APIVersion defines by which group and version this object is written."});
    properties["kind"] = json!({"type": "string", "description": "What this object is."});
    properties["metadata"] = wrapped(&format!("{META}.ObjectMeta"));
    properties["metadata"]["description"] =
        json!("Standard object's metadata: name, labels and the rest of the bookkeeping.");
    rendered["x-kubernetes-group-version-kind"] =
        json!([{"group": kind.group, "version": kind.version, "kind": kind.kind}]);
    rendered
}

fn list(kind: &Kind) -> Value {
    let mut rendered = json!({
        "type": "object",
        "description": format!("A page of {} objects.", kind.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": wrapped(&format!("{META}.ListMeta")),
            "items": {"type": "array", "items": wrapped(&id_of(kind))},
        },
    });
    rendered["x-kubernetes-group-version-kind"] =
        json!([{"group": kind.group, "version": kind.version, "kind": format!("{}List", kind.kind)}]);
    rendered
}
