//! Is a CustomResourceDefinition sound, and what does it say?

use super::check;
use super::packed::Packed;
use super::schema::{self, INT_OR_STRING, Patterns, Schema};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::names;
use crate::table::path::JsonPath;
use crate::value::{at, bool_at, list_at, str_at};
use regex::RegexBuilder;
use serde_json::Value;
use std::collections::BTreeSet;

/// Levels of a schema. Objects of 100 levels are the deepest that can be sent.
const MAX_DEPTH: usize = 64;
/// Schemas within a schema.
const MAX_NODES: usize = 50_000;
/// Bytes of one pattern.
const MAX_PATTERN: usize = 4096;
/// Bytes that one pattern may compile to. What it takes is found out from the smallest up.
const COMPILED: [usize; 3] = [1 << 14, 1 << 17, 1 << 20];
/// Bytes that the patterns of a definition may compile to, all versions together.
const MAX_COMPILED: usize = 64 << 20;
/// What stays in memory for each row, in numbers and bytes. Eight selectable fields are upstream's limit.
const MAX_VERSIONS: usize = 100;
const MAX_ALIASES: usize = 32;
const MAX_COLUMNS: usize = 64;
const MAX_SELECTABLE: usize = 8;
const MAX_TEXT: usize = 1024;

/// One served or stored version of a kind.
#[derive(Debug)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub status: bool,
    /// Where the numbers of the scale subresource are: spec, status, selector.
    pub scale: Option<(String, String, String)>,
    /// Name, type, path, priority and description of each column.
    pub columns: Vec<[String; 5]>,
    pub selectable: Vec<String>,
    /// What to warn clients about that use it.
    pub deprecation: Option<String>,
    pub schema: Schema,
    /// The defaults of the schema, and where they stand.
    pub defaults: String,
    /// The schema as it was sent.
    pub source: Packed,
    pub patterns: Patterns,
}

/// The versions of a definition that was found sound.
pub fn versions(definition: &Value) -> Vec<Version> {
    let mut compiled = MAX_COMPILED;
    list_at(definition, &["spec", "versions"])
        .iter()
        .map(|found| version(found, &mut compiled))
        .collect()
}

fn version(version: &Value, compiled: &mut usize) -> Version {
    let source = at(version, &["schema", "openAPIV3Schema"]).unwrap_or(&Value::Null);
    let mut walk = Walk::new(*compiled);
    walk.schema(source, "", 0, false);
    *compiled = walk.compiled;
    let text = |value: &Value, field: &str| str_at(value, &[field]).to_owned();
    let columns = list_at(version, &["additionalPrinterColumns"])
        .iter()
        .map(|column| {
            let priority = column.get("priority").and_then(Value::as_i64).unwrap_or(0);
            let description = text(column, "description");
            [
                text(column, "name"),
                text(column, "type"),
                text(column, "jsonPath"),
                priority.to_string(),
                description,
            ]
        });
    let scale = at(version, &["subresources", "scale"]).map(|scale| {
        let path = |field| text(scale, field).trim_start_matches('.').to_owned();
        (
            path("specReplicasPath"),
            path("statusReplicasPath"),
            path("labelSelectorPath"),
        )
    });
    let selectable = list_at(version, &["selectableFields"]).iter();
    let deprecated = bool_at(version, &["deprecated"]) == Some(true);
    Version {
        name: text(version, "name"),
        served: bool_at(version, &["served"]) == Some(true),
        storage: bool_at(version, &["storage"]) == Some(true),
        status: at(version, &["subresources", "status"]).is_some(),
        scale,
        columns: columns.collect(),
        selectable: selectable
            .map(|field| str_at(field, &["jsonPath"]).trim_start_matches('.').to_owned())
            .collect(),
        deprecation: deprecated.then(|| text(version, "deprecationWarning")),
        schema: Schema::new(source),
        defaults: schema::defaults(source),
        source: Packed::new(source),
        patterns: walk.patterns,
    }
}

/// What is wrong with a definition.
pub fn validate(definition: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let spec = |path: &[&str]| str_at(definition, &[&["spec"], path].concat());
    let (group, plural) = (spec(&["group"]), spec(&["names", "plural"]));
    let name = str_at(definition, &["metadata", "name"]);
    if name != format!("{plural}.{group}") {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", name, why));
    }
    let mut faults = names::dns_subdomain(group);
    if !group.contains('.') {
        faults.push("should be a domain with at least one dot".to_owned());
    }
    each(&mut errors, "spec.group", group, faults);
    let approved = str_at(
        definition,
        &["metadata", "annotations", "api-approved.kubernetes.io"],
    );
    if approved.is_empty() && (group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io")) {
        let why = "protected groups must have approval annotation \"api-approved.kubernetes.io\"";
        errors.push(FieldError::required(
            "metadata.annotations[api-approved.kubernetes.io]",
            why,
        ));
    }
    for field in ["plural", "singular", "kind", "listKind"] {
        let text = spec(&["names", field]);
        let optional = matches!(field, "singular" | "listKind") && text.is_empty();
        if !optional {
            each(
                &mut errors,
                &format!("spec.names.{field}"),
                text,
                names::dns_label(&text.to_lowercase()),
            );
        }
    }
    for field in ["shortNames", "categories"] {
        for (index, text) in list_at(definition, &["spec", "names", field]).iter().enumerate() {
            let text = text.as_str().unwrap_or("");
            let place = format!("spec.names.{field}[{index}]");
            each(&mut errors, &place, text, names::dns_label(text));
        }
    }
    let scope = spec(&["scope"]);
    if !matches!(scope, "Namespaced" | "Cluster") {
        errors.push(FieldError::not_supported(
            "spec.scope",
            scope,
            &["Cluster", "Namespaced"],
        ));
    }
    let strategy = spec(&["conversion", "strategy"]);
    if !matches!(strategy, "" | "None") {
        // No webhook is called here: objects would be shown in a version that they are not of.
        errors.push(FieldError::not_supported(
            "spec.conversion.strategy",
            strategy,
            &["None"],
        ));
    }
    if bool_at(definition, &["spec", "preserveUnknownFields"]) == Some(true) {
        let why =
            "must be false in order to use defaults in the schema; use x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, why));
    }
    validate_versions(definition, &mut errors);
    errors
}

fn each(errors: &mut FieldErrors, path: &str, value: &str, faults: Vec<String>) {
    crate::meta::invalid_each(errors, path, value, faults);
}

fn validate_versions(definition: &Value, errors: &mut FieldErrors) {
    let versions = list_at(definition, &["spec", "versions"]);
    bounded(definition, errors);
    let mut compiled = MAX_COMPILED;
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let here = format!("spec.versions[{index}]");
        let name = str_at(version, &["name"]);
        each(errors, &format!("{here}.name"), name, names::dns_label(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{here}.name"), name));
        }
        let place = format!("{here}.schema.openAPIV3Schema");
        match at(version, &["schema", "openAPIV3Schema"]) {
            None => errors.push(FieldError::required(place, "schemas are required")),
            Some(schema) => validate_schema(schema, &place, &mut compiled, errors),
        }
        for (at, column) in list_at(version, &["additionalPrinterColumns"]).iter().enumerate() {
            let place = format!("{here}.additionalPrinterColumns[{at}]");
            let path = str_at(column, &["jsonPath"]);
            if let Err(why) = JsonPath::parse(path) {
                errors.push(FieldError::invalid(format!("{place}.jsonPath"), path, why));
            }
            let kind = str_at(column, &["type"]);
            let known = ["boolean", "date", "integer", "number", "string"];
            if !known.contains(&kind) {
                errors.push(FieldError::not_supported(format!("{place}.type"), kind, &known));
            }
        }
        for (field, half) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
            if let Some(scale) = at(version, &["subresources", "scale"]) {
                let path = str_at(scale, &[field]);
                let plain = JsonPath::parse(path).is_ok_and(|path| path.fields().is_some());
                if !plain || !path.starts_with(half) {
                    let why = format!("should be a json path under {half}");
                    errors.push(FieldError::invalid(
                        format!("{here}.subresources.scale.{field}"),
                        path,
                        why,
                    ));
                }
            }
        }
        for (at, field) in list_at(version, &["selectableFields"]).iter().enumerate() {
            let path = str_at(field, &["jsonPath"]);
            let fits = JsonPath::parse(path).is_ok_and(|path| {
                path.fields()
                    .is_some_and(|names| matches!(names.as_slice(), ["spec" | "status", _]))
            });
            if !fits {
                let why = "must name a field of spec or status; deeper fields cannot be selected by";
                let place = format!("{here}.selectableFields[{at}].jsonPath");
                errors.push(FieldError::invalid(place, path, why));
            }
        }
    }
    let stored = versions
        .iter()
        .filter(|version| bool_at(version, &["storage"]) == Some(true));
    if stored.count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", Value::Null, why));
    }
    stored_versions(definition, errors);
}

/// Limits what stays in memory of a row, and so in number and length what is written into it.
fn bounded(definition: &Value, errors: &mut FieldErrors) {
    let mut check = |place: String, list: &[Value], most: usize| {
        if list.len() > most {
            errors.push(FieldError::too_many(place.clone(), list.len(), most));
        }
        for (index, item) in list.iter().enumerate() {
            let parts = item.as_object().into_iter().flat_map(|item| item.values());
            let texts = parts.chain([item]).filter_map(Value::as_str);
            if texts.map(str::len).any(|length| length > MAX_TEXT) {
                errors.push(FieldError::too_long(format!("{place}[{index}]"), MAX_TEXT));
            }
        }
    };
    for field in ["shortNames", "categories"] {
        let list = list_at(definition, &["spec", "names", field]);
        check(format!("spec.names.{field}"), list, MAX_ALIASES);
    }
    let versions = list_at(definition, &["spec", "versions"]);
    check("spec.versions".to_owned(), versions, MAX_VERSIONS);
    for (index, version) in versions.iter().enumerate() {
        for (field, most) in [
            ("additionalPrinterColumns", MAX_COLUMNS),
            ("selectableFields", MAX_SELECTABLE),
        ] {
            let place = format!("spec.versions[{index}].{field}");
            check(place, list_at(version, &[field]), most);
        }
        let scale = at(version, &["subresources", "scale"]).map(std::slice::from_ref);
        let place = format!("spec.versions[{index}].subresources.scale");
        check(place, scale.unwrap_or_default(), 1);
    }
}

/// Versions that objects may be stored in are among the definition's.
pub(super) fn stored_versions(definition: &Value, errors: &mut FieldErrors) {
    let versions = list_at(definition, &["spec", "versions"]).iter();
    let seen: BTreeSet<&str> = versions.map(|version| str_at(version, &["name"])).collect();
    let kept: Vec<&str> = list_at(definition, &["status", "storedVersions"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for (index, name) in kept.iter().enumerate().filter(|(_, name)| !seen.contains(*name)) {
        let why = format!("missing from spec.versions; {name} was previously a storage version");
        errors.push(FieldError::invalid(
            format!("status.storedVersions[{index}]"),
            *name,
            why,
        ));
    }
}

fn validate_schema(schema: &Value, place: &str, compiled: &mut usize, errors: &mut FieldErrors) {
    let mut walk = Walk::new(*compiled);
    if str_at(schema, &["type"]) != "object" {
        let found = str_at(schema, &["type"]);
        walk.errors.push(FieldError::invalid(
            format!("{place}.type"),
            found,
            "must be object at the root",
        ));
    }
    walk.schema(schema, place, 0, false);
    if walk.nodes > MAX_NODES {
        let why = format!("it has more than {MAX_NODES} schemas");
        walk.errors.push(FieldError::invalid(place, "", why));
    }
    *compiled = walk.compiled;
    errors.append(&mut walk.errors);
}

/// Whether rules in the Common Expression Language are among the schemas.
pub fn has_expressions(definition: &Value) -> bool {
    fn found(value: &Value) -> bool {
        match value {
            Value::Object(map) => map.contains_key("x-kubernetes-validations") || map.values().any(found),
            Value::Array(items) => items.iter().any(found),
            _ => false,
        }
    }
    found(definition)
}

struct Walk {
    errors: FieldErrors,
    patterns: Patterns,
    nodes: usize,
    /// Steps that are left for reading the schemas of defaults and for comparing with them.
    steps: usize,
    /// Bytes that are left for compiled patterns.
    compiled: usize,
}

impl Walk {
    fn new(compiled: usize) -> Self {
        Self {
            compiled,
            errors: Vec::new(),
            patterns: Patterns::default(),
            nodes: 0,
            steps: check::MAX_STEPS,
        }
    }

    /// Checks a schema; `junctor` is whether it is an alternative, which may only narrow what is there.
    fn schema(&mut self, schema: &Value, path: &str, depth: usize, junctor: bool) {
        self.nodes += 1;
        if self.nodes > MAX_NODES || self.errors.len() > 20 {
            return;
        }
        let Value::Object(map) = schema else {
            let why = "must be a schema";
            return self.errors.push(FieldError::invalid(path, schema.clone(), why));
        };
        if depth > MAX_DEPTH {
            let why = format!("it is nested deeper than {MAX_DEPTH} levels");
            return self.errors.push(FieldError::invalid(path, "", why));
        }
        for field in [
            "$ref",
            "definitions",
            "dependencies",
            "patternProperties",
            "additionalItems",
            "id",
        ] {
            if map.contains_key(field) {
                self.errors.push(FieldError::forbidden(
                    format!("{path}.{field}"),
                    "is not supported",
                ));
            }
        }
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors
                .push(FieldError::forbidden(format!("{path}.uniqueItems"), why));
        }
        self.shape(schema, path, junctor);
        self.pattern(schema, path);
        let inner = |name: &str| schema.get(name);
        if let Some(Value::Object(properties)) = inner("properties") {
            if map
                .get("additionalProperties")
                .is_some_and(|more| more != &Value::Bool(false))
            {
                let why = "additionalProperties and properties are mutual exclusive";
                self.errors
                    .push(FieldError::forbidden(format!("{path}.additionalProperties"), why));
            }
            for (name, schema) in properties {
                self.schema(schema, &format!("{path}.properties[{name}]"), depth + 1, junctor);
            }
        }
        if let Some(schema) = inner("additionalProperties").filter(|schema| schema.is_object()) {
            self.schema(
                schema,
                &format!("{path}.additionalProperties"),
                depth + 1,
                junctor,
            );
        }
        if let Some(schema) = inner("items") {
            self.schema(schema, &format!("{path}.items"), depth + 1, junctor);
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            for (at, schema) in list_at(schema, &[name]).iter().enumerate() {
                self.schema(schema, &format!("{path}.{name}[{at}]"), depth + 1, true);
            }
        }
        if let Some(schema) = inner("not") {
            self.schema(schema, &format!("{path}.not"), depth + 1, true);
        }
        self.default_fits(schema, path);
    }

    /// A structural schema says of every field what it is.
    fn shape(&mut self, schema: &Value, path: &str, junctor: bool) {
        let kind = str_at(schema, &["type"]);
        let set = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        let free = set(INT_OR_STRING) || set("x-kubernetes-preserve-unknown-fields");
        let known = ["array", "boolean", "integer", "number", "object", "string"];
        if kind.is_empty() && !junctor && !free {
            let why = "must not be empty for specified object fields";
            self.errors
                .push(FieldError::required(format!("{path}.type"), why));
        } else if !kind.is_empty() && !known.contains(&kind) {
            self.errors
                .push(FieldError::not_supported(format!("{path}.type"), kind, &known));
        }
        if kind == "array" && !junctor && schema.get("items").is_none() {
            self.errors
                .push(FieldError::required(format!("{path}.items"), "must be specified"));
        }
    }

    fn pattern(&mut self, schema: &Value, path: &str) {
        let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else {
            return;
        };
        if self.patterns.contains_key(pattern) {
            return;
        }
        let mut compiled = Err("it is too long, or there are too many patterns".to_owned());
        for size in COMPILED {
            if pattern.len() > MAX_PATTERN || size > self.compiled {
                break;
            }
            let built = RegexBuilder::new(pattern).size_limit(size).build();
            let too_large = matches!(built, Err(regex::Error::CompiledTooBig(_)));
            compiled = built.map_err(|why| format!("must be a valid regular expression: {why}"));
            if !too_large {
                self.compiled -= size;
                break;
            }
        }
        match compiled {
            Ok(compiled) => drop(self.patterns.insert(pattern.to_owned(), compiled)),
            Err(why) => {
                let excerpt: String = pattern.chars().take(100).collect();
                self.errors
                    .push(FieldError::invalid(format!("{path}.pattern"), excerpt, why));
            }
        }
    }

    fn default_fits(&mut self, schema: &Value, path: &str) {
        let Some(default) = schema.get("default") else {
            return;
        };
        let mut read = 0;
        let compared = Schema::counted(schema, &mut read);
        self.steps = self.steps.saturating_sub(read);
        let faults = check::validate_within(default, &compared, &self.patterns, &mut self.steps);
        if let Some(fault) = faults.first() {
            let why = format!("must fit its schema: {fault}");
            self.errors.push(FieldError::invalid(
                format!("{path}.default"),
                default.clone(),
                why,
            ));
        }
    }
}
