//! What are the rules of custom resources, and of their definitions?

use super::{Definition, check, conflict, definition, has_expressions, schema};
use crate::decode::StrictError;
use crate::field_error::{FieldError, FieldErrors};
use crate::kind::Defined;
use crate::strategy::equality::same;
use crate::strategy::{Context, Part, Strategy, keep};
use crate::value::{at, list_at, remove, set, str_at};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Marks an object whose defaults were not all filled in: it is refused.
const TOO_LARGE: &str = "pointsman.too-large";

/// The rules of one version of a custom resource.
pub(super) struct Custom {
    pub status: bool,
    pub defined: &'static Defined,
}

impl Strategy for Custom {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if !schema::fill_in(object, &self.defined.get().schema) {
            set(object, &[TOO_LARGE], true);
        }
    }

    fn prune(&self, object: &mut Value) -> Vec<StrictError> {
        let mut pruned = Vec::new();
        // A request that is under way when its version is gone loses nothing: what is there then takes everything.
        schema::prune(object, &self.defined.get().schema, "", true, &mut pruned);
        pruned
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        if self.status {
            remove(object, &["status"]);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, _context: &Context<'_>) {
        match part {
            Part::Main if self.status => keep(new, old, "status"),
            Part::Main => {}
            Part::Status => {
                let status = at(new, &["status"]).cloned();
                let too_large = at(new, &[TOO_LARGE]).is_some();
                *new = old.clone();
                match status {
                    Some(status) => set(new, &["status"], status),
                    None => drop(remove(new, &["status"])),
                }
                if too_large {
                    set(new, &[TOO_LARGE], true);
                }
            }
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        if at(object, &[TOO_LARGE]).is_some() {
            let why = "the defaults of its schema make it too large";
            return vec![FieldError::invalid("", "", why)];
        }
        let definition = self.defined.get();
        check::validate(object, &definition.schema, &definition.patterns)
    }

    /// What is stored and no longer fits may stay as it is: the schema may be younger than the object.
    fn validate_update(&self, new: &Value, old: &Value, part: Part, context: &Context<'_>) -> FieldErrors {
        let errors = self.validate_create(new, context);
        if errors.is_empty() || part == Part::Main && !same_content(new, old) {
            return errors;
        }
        let before = self.validate_create(old, context);
        errors
            .into_iter()
            .filter(|error| !before.contains(error))
            .collect()
    }

    fn update_needs_resource_version(&self) -> bool {
        true
    }

    fn first_generation(&self) -> Option<i64> {
        Some(1)
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        let rest = |object: &Value| -> Map<String, Value> {
            let fields = object.as_object().cloned().unwrap_or_default();
            let skipped = |name: &str| name == "metadata" || (self.status && name == "status");
            fields.into_iter().filter(|(name, _)| !skipped(name)).collect()
        };
        rest(new) != rest(old)
    }

    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        crate::strategy::declared::plain_value(object, field)
    }

    fn warnings(&self, _object: &Value) -> Vec<String> {
        let definition: std::sync::Arc<Definition> = self.defined.get();
        definition.deprecation.iter().cloned().collect()
    }
}

fn same_content(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        remove(&mut object, &["metadata"]);
        object
    };
    same(Some(&rest(new)), Some(&rest(old)))
}

/// Keeps a definition until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The rules of CustomResourceDefinitions.
pub struct DefinitionStrategy;

impl Strategy for DefinitionStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        let kind = str_at(object, &["spec", "names", "kind"]).to_owned();
        if kind.is_empty() {
            return;
        }
        if str_at(object, &["spec", "names", "singular"]).is_empty() {
            set(object, &["spec", "names", "singular"], kind.to_lowercase());
        }
        if str_at(object, &["spec", "names", "listKind"]).is_empty() {
            set(object, &["spec", "names", "listKind"], format!("{kind}List"));
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        if !object.is_object() {
            return;
        }
        remove(object, &["status"]);
        let mut finalizers = list_at(object, &["metadata", "finalizers"]).to_vec();
        finalizers.push(CLEANUP.into());
        set(object, &["metadata", "finalizers"], finalizers);
        accept(object, context.now);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
        match part {
            Part::Main => {
                keep(new, old, "status");
                if terminating(new) {
                    keep(new, old, "spec");
                } else {
                    accept(new, context.now);
                }
            }
            Part::Status => {
                // The rest of its status is this server's to say.
                let stored = at(new, &["status", "storedVersions"]).cloned();
                let path = ["status", "conditions"];
                let theirs = list_at(new, &path).iter().filter(|found| !is_own(found));
                let own = list_at(old, &path).iter().filter(|found| is_own(found));
                let conditions: Vec<Value> = own.chain(theirs).cloned().collect();
                *new = old.clone();
                if let Some(stored) = stored {
                    set(new, &["status", "storedVersions"], stored);
                }
                set(new, &path, conditions);
                if !terminating(new) {
                    accept(new, context.now);
                }
            }
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        definition::validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part, context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        if part == Part::Status {
            definition::stored_versions(new, &mut errors);
        } else if !terminating(new) {
            errors = self.validate_create(new, context);
            for path in [
                ["spec", "group"].as_slice(),
                &["spec", "scope"],
                &["spec", "names", "plural"],
                &["spec", "names", "kind"],
            ] {
                crate::meta::immutable(&mut errors, new, old, path);
            }
        }
        errors
    }

    fn first_generation(&self) -> Option<i64> {
        Some(1)
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        !same(at(new, &["spec"]), at(old, &["spec"]))
    }

    fn by_schema(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        if has_expressions(object) {
            warnings.push("x-kubernetes-validations are stored, but not evaluated: objects that break these rules are accepted".to_owned());
        }
        warnings
    }
}

/// Whether a condition of a definition is the server's to write.
fn is_own(condition: &Value) -> bool {
    matches!(
        condition["type"].as_str(),
        Some("NamesAccepted" | "Established" | "Terminating")
    )
}

fn terminating(definition: &Value) -> bool {
    at(definition, &["metadata", "deletionTimestamp"]).is_some()
}

/// Says whether the names are free, and that the kind is served if they are: it is as soon as this is stored.
fn accept(object: &mut Value, now: Timestamp) {
    let refused = conflict(object);
    let since = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str, status: bool, reason: &str, message: String| {
        json!({"type": kind, "status": if status { "True" } else { "False" }, "reason": reason,
               "message": message, "lastTransitionTime": since})
    };
    let conditions = match &refused {
        None => [
            condition("NamesAccepted", true, "NoConflicts", "no conflicts found".into()),
            condition(
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted".into(),
            ),
        ],
        Some(error) => {
            let reason = if error.field.ends_with("plural") {
                "PluralConflict"
            } else {
                "KindConflict"
            };
            [
                condition("NamesAccepted", false, reason, error.to_string()),
                condition(
                    "Established",
                    false,
                    "NotAccepted",
                    "not all names are accepted".into(),
                ),
            ]
        }
    };
    let known = list_at(object, &["status", "conditions"]).to_vec();
    let kept = conditions.map(|new| {
        let same = |old: &&Value| old["type"] == new["type"] && old["status"] == new["status"];
        known.iter().find(same).cloned().unwrap_or(new)
    });
    let others = known.iter().filter(|found| !is_own(found)).cloned();
    let conditions: Vec<Value> = kept.into_iter().chain(others).collect();
    set(object, &["status", "conditions"], conditions);
    if refused.is_none() {
        let names = at(object, &["spec", "names"]).cloned().unwrap_or_default();
        set(object, &["status", "acceptedNames"], names);
    } else {
        set(
            object,
            &["status", "acceptedNames"],
            json!({"plural": "", "kind": ""}),
        );
    }
    let mut stored = list_at(object, &["status", "storedVersions"]).to_vec();
    let storage = list_at(object, &["spec", "versions"])
        .iter()
        .find(|version| version["storage"] == true);
    if let Some(name) = storage.and_then(|version| version.get("name"))
        && !stored.contains(name)
    {
        stored.push(name.clone());
    }
    set(object, &["status", "storedVersions"], stored);
}
