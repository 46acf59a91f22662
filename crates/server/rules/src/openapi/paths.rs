//! The `paths` of one document: every address with its operations and their parameters.

use super::place;
use super::schemas::{id_of, reference};
use crate::discovery::{kinds_of, reviews_of, subresource_kind, subresource_verbs};
use crate::kind::{Kind, Scope};
use crate::patch::PatchType;
use crate::review::Review;
use crate::schema;
use serde_json::{Map, Value, json};

/// All paths of a group and version.
pub(super) fn of(group: &str, version: &str) -> Map<String, Value> {
    let mut paths = Map::new();
    for kind in kinds_of(group, version) {
        add_kind(&mut paths, kind);
    }
    for review in reviews_of(group, version) {
        add_review(&mut paths, review);
    }
    paths
}

/// What an operation works on, and how its id is spelled.
struct Target<'a> {
    /// `CoreV1NamespacedPod`.
    noun: String,
    group_version_kind: (&'a str, &'a str, &'a str),
    /// Schema id of the bodies.
    body: String,
    /// Schema id of the list.
    list: String,
    patches: &'static [PatchType],
}

fn add_kind(paths: &mut Map<String, Value>, kind: &'static Kind) {
    let body = id_of(kind);
    let target = Target {
        noun: noun(kind.group, kind.version, kind.scope, kind.kind, ""),
        group_version_kind: (kind.group, kind.version, kind.kind),
        list: format!("{body}List"),
        body,
        patches: patches(kind),
    };
    let root = place(kind.group, kind.version);
    let collection = match kind.scope {
        Scope::Namespaced => format!("/{root}/namespaces/{{namespace}}/{}", kind.plural),
        Scope::Cluster => format!("/{root}/{}", kind.plural),
    };
    let mut item = common(kind.namespaced(), false);
    item.insert("get".into(), target.list_operation(&target.noun));
    item.insert("post".into(), target.create());
    if kind.verbs.contains(&"deletecollection") {
        item.insert("delete".into(), target.delete_collection());
    }
    paths.insert(collection.clone(), Value::Object(item));

    let mut item = common(kind.namespaced(), true);
    item.insert("get".into(), target.read());
    item.insert("put".into(), target.replace());
    item.insert("patch".into(), target.patch());
    item.insert("delete".into(), target.delete());
    paths.insert(format!("{collection}/{{name}}"), Value::Object(item));

    if kind.namespaced() {
        let noun = noun(
            kind.group,
            kind.version,
            Scope::Cluster,
            kind.kind,
            "ForAllNamespaces",
        );
        let mut item = common(false, false);
        item.insert("get".into(), target.list_operation(&noun));
        paths.insert(format!("/{root}/{}", kind.plural), Value::Object(item));
    }
    add_subresources(paths, kind, &format!("{collection}/{{name}}"));
}

fn add_subresources(paths: &mut Map<String, Value>, kind: &'static Kind, of_object: &str) {
    for subresource in kind.subresources {
        let gvk = subresource_kind(kind, *subresource);
        let body = match schema::named(gvk.0, gvk.1, gvk.2) {
            Some(shape) => shape.id.clone(),
            None => id_of(kind),
        };
        let mut suffix = subresource.name().to_owned();
        suffix[..1].make_ascii_uppercase();
        let target = Target {
            noun: noun(kind.group, kind.version, kind.scope, kind.kind, &suffix),
            group_version_kind: gvk,
            body,
            list: String::new(),
            patches: patches(kind),
        };
        let mut item = common(kind.namespaced(), true);
        for verb in subresource_verbs(*subresource) {
            match *verb {
                "get" => item.insert("get".into(), target.read()),
                "update" => item.insert("put".into(), target.replace()),
                "patch" => item.insert("patch".into(), target.patch()),
                _ => item.insert("post".into(), target.create()),
            };
        }
        let path = format!("{of_object}/{}", subresource.name());
        paths.insert(path, Value::Object(item));
    }
}

fn add_review(paths: &mut Map<String, Value>, review: &'static Review) {
    let shape = schema::named(review.group, Review::VERSION, review.kind).expect("every review has a schema");
    let target = Target {
        noun: noun(review.group, Review::VERSION, review.scope, review.kind, ""),
        group_version_kind: (review.group, Review::VERSION, review.kind),
        body: shape.id.clone(),
        list: String::new(),
        patches: &[],
    };
    let root = place(review.group, Review::VERSION);
    let namespaced = review.scope == Scope::Namespaced;
    let path = if namespaced {
        format!("/{root}/namespaces/{{namespace}}/{}", review.plural)
    } else {
        format!("/{root}/{}", review.plural)
    };
    let mut item = common(namespaced, false);
    item.insert("post".into(), target.create());
    paths.insert(path, Value::Object(item));
}

impl Target<'_> {
    fn list_operation(&self, noun: &str) -> Value {
        let parameters = queries(&LIST_QUERIES);
        self.operation(
            "list",
            &format!("list{noun}"),
            parameters,
            None,
            self.answers(&self.list, &["200"]),
        )
    }

    fn read(&self) -> Value {
        let parameters = queries(&[("resourceVersion", "string")]);
        self.operation(
            "get",
            &format!("read{}", self.noun),
            parameters,
            None,
            self.answers(&self.body, &["200"]),
        )
    }

    fn create(&self) -> Value {
        let answers = self.answers(&self.body, &["200", "201", "202"]);
        let id = format!("create{}", self.noun);
        self.operation(
            "post",
            &id,
            queries(&WRITE_QUERIES),
            Some(self.request()),
            answers,
        )
    }

    fn replace(&self) -> Value {
        let answers = self.answers(&self.body, &["200", "201"]);
        let id = format!("replace{}", self.noun);
        self.operation("put", &id, queries(&WRITE_QUERIES), Some(self.request()), answers)
    }

    fn patch(&self) -> Value {
        let patch = reference("io.k8s.apimachinery.pkg.apis.meta.v1.Patch");
        let content: Map<String, Value> = self
            .patches
            .iter()
            .map(|patch_type| (patch_type.media_type().to_owned(), json!({"schema": patch})))
            .collect();
        let mut parameters = queries(&WRITE_QUERIES);
        parameters.extend(queries(&[("force", "boolean")]));
        let request = json!({"required": true, "content": content});
        let answers = self.answers(&self.body, &["200", "201"]);
        self.operation(
            "patch",
            &format!("patch{}", self.noun),
            parameters,
            Some(request),
            answers,
        )
    }

    fn delete(&self) -> Value {
        let answers = self.answers("io.k8s.apimachinery.pkg.apis.meta.v1.Status", &["200", "202"]);
        let id = format!("delete{}", self.noun);
        self.operation(
            "delete",
            &id,
            queries(&DELETE_QUERIES),
            Some(delete_request()),
            answers,
        )
    }

    fn delete_collection(&self) -> Value {
        let mut parameters = queries(&LIST_QUERIES);
        parameters.extend(queries(&DELETE_QUERIES));
        let answers = self.answers("io.k8s.apimachinery.pkg.apis.meta.v1.Status", &["200"]);
        let id = format!("deleteCollection{}", self.noun);
        self.operation(
            "deletecollection",
            &id,
            parameters,
            Some(delete_request()),
            answers,
        )
    }

    fn request(&self) -> Value {
        json!({"required": true, "content": {"application/json": {"schema": reference(&self.body)}}})
    }

    fn answers(&self, schema: &str, codes: &[&str]) -> Value {
        let answer = |code: &str| {
            let description = match code {
                "200" => "OK",
                "201" => "Created",
                _ => "Accepted",
            };
            let content = json!({"application/json": {"schema": reference(schema)}});
            (
                code.to_owned(),
                json!({"description": description, "content": content}),
            )
        };
        codes
            .iter()
            .map(|code| answer(code))
            .collect::<Map<_, _>>()
            .into()
    }

    fn operation(
        &self,
        action: &str,
        id: &str,
        parameters: Vec<Value>,
        request: Option<Value>,
        answers: Value,
    ) -> Value {
        let (group, version, kind) = self.group_version_kind;
        let mut operation = json!({
            "operationId": id,
            "parameters": parameters,
            "responses": answers,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        });
        if let Some(request) = request {
            operation["requestBody"] = request;
        }
        operation
    }
}

const WRITE_QUERIES: [(&str, &str); 3] = [
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
];

const DELETE_QUERIES: [(&str, &str); 4] = [
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

const LIST_QUERIES: [(&str, &str); 10] = [
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];

fn queries(names: &[(&str, &str)]) -> Vec<Value> {
    names
        .iter()
        .map(|(name, kind)| json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}}))
        .collect()
}

/// The parts of a path item that all its operations share.
fn common(namespaced: bool, named: bool) -> Map<String, Value> {
    let mut parameters = Vec::new();
    for (name, wanted) in [("name", named), ("namespace", namespaced)] {
        if wanted {
            parameters
                .push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
        }
    }
    parameters.extend(queries(&[("pretty", "string")]));
    let mut item = Map::new();
    item.insert("parameters".to_owned(), Value::Array(parameters));
    item
}

fn delete_request() -> Value {
    let schema = reference("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    json!({"content": {"application/json": {"schema": schema}}})
}

fn patches(kind: &Kind) -> &'static [PatchType] {
    if kind.custom {
        &[PatchType::Json, PatchType::Merge]
    } else {
        &[PatchType::Json, PatchType::Merge, PatchType::Strategic]
    }
}

/// `AppsV1NamespacedDeployment`: the part of an operation's id after the verb.
fn noun(group: &str, version: &str, scope: Scope, kind: &str, suffix: &str) -> String {
    let group = match group {
        "" => "core",
        named => named.split('.').next().unwrap_or(named),
    };
    let scope = match scope {
        Scope::Namespaced => "Namespaced",
        Scope::Cluster => "",
    };
    let mut text = String::new();
    for word in [group, version] {
        let mut word = word.to_owned();
        word[..1].make_ascii_uppercase();
        text.push_str(&word);
    }
    format!("{text}{scope}{kind}{suffix}")
}
