//! Which kinds were defined at run time?
//!
//! A CustomResourceDefinition becomes rows like the built-in ones ([`Kind`]), one for each served version, and one more
//! if the stored one is not served. Whoever looks a kind up finds them in the same way; what differs is that
//! they come and go. The table belongs to the process, as the built-in one does.
//!
//! Rows stay in memory once they are made, so that objects, watches and metrics can refer to them. They are small, equal
//! rows are made once, and there is a limit ([`MAX_ROWS`]). Schemas, which are large, are dropped when they are replaced.

mod check;
mod definition;
mod packed;
mod schema;
mod strategy;
#[cfg(test)]
mod tests;

pub use definition::{has_expressions, validate};

use crate::field_error::FieldError;
use crate::kind::{Defined, Kind, ScalePaths, Scope, Subresource};
use crate::kinds;
use crate::table::{self, Column};
use crate::value::{at, list_at, str_at};
use definition::Version;
pub use packed::Packed;
use schema::Schema;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, RwLock};
use strategy::Custom;
pub use strategy::{CLEANUP, DefinitionStrategy};

/// Rows that can be made until the server is restarted; a definition makes one for each of its versions, and another one
/// when its names, columns or subresources change.
pub const MAX_ROWS: usize = 20_000;

/// What a definition says of one version, besides its row.
#[derive(Debug, Default)]
pub struct Definition {
    /// The structural schema, without what is for people only.
    schema: Schema,
    patterns: schema::Patterns,
    /// Whether the definition is being deleted: nothing can be created then.
    pub terminating: bool,
    /// What to warn clients about that use this version.
    deprecation: Option<String>,
    /// Identifies the state of the definition, for clients that cache documents.
    pub hash: u64,
    /// The schema as its author wrote it.
    pub source: Packed,
    /// The defaults of the schema, and where they stand; empty if it has none.
    defaults: String,
}

type Name = (String, String, String);

/// A row of a definition, and whether it is served.
type Row = (&'static Kind, bool);

#[derive(Default)]
struct Registry {
    by_resource: HashMap<Name, &'static Kind>,
    by_type: HashMap<Name, &'static Kind>,
    by_store_key: HashMap<(String, String), &'static Kind>,
    /// Every row that was ever made, by all that it says.
    made: HashMap<String, &'static Kind>,
    /// Dense numbers of stored kinds.
    slots: HashMap<(String, String), usize>,
    /// The rows of each definition, in order of preference.
    rows: BTreeMap<String, Vec<Row>>,
    generation: u64,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

fn read<T>(look: impl FnOnce(&Registry) -> T) -> T {
    // A panic while rows are changed leaves them as they are; they are still rows.
    look(&REGISTRY.read().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn triple(a: &str, b: &str, c: &str) -> Name {
    (a.to_owned(), b.to_owned(), c.to_owned())
}

pub(crate) fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    read(|registry| registry.by_resource.get(&triple(group, version, plural)).copied())
}

pub(crate) fn by_type(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    read(|registry| registry.by_type.get(&triple(group, version, kind)).copied())
}

pub(crate) fn by_store_key(group: &str, plural: &str) -> Option<&'static Kind> {
    let key = (group.to_owned(), plural.to_owned());
    read(|registry| registry.by_store_key.get(&key).copied())
}

/// Changes whenever a kind comes, goes or changes.
pub fn generation() -> u64 {
    read(|registry| registry.generation)
}

/// The rows of all definitions that are served, by group and version.
pub fn served() -> Vec<&'static Kind> {
    read(|registry| {
        let rows = registry.rows.values().flatten();
        rows.filter(|(_, served)| *served).map(|(row, _)| *row).collect()
    })
}

/// Whether all objects have to be read from the store when this state of a definition comes into force: their kind comes,
/// or comes back, or is shown in another way.
pub fn shows_anew(definition: &Value) -> bool {
    let versions = list_at(definition, &["spec", "versions"]);
    let Some(storage) = versions.iter().find(|version| version["storage"] == true) else {
        return false;
    };
    let (group, plural) = names_of(definition);
    let Some(known) = by_store_key(group, plural) else {
        return condition(definition, "NamesAccepted");
    };
    let defaults = schema::defaults(&storage["schema"]["openAPIV3Schema"]);
    known.version != str_at(storage, &["name"])
        || known
            .defined
            .is_some_and(|defined| defined.get().defaults != defaults)
}

/// What an object that is stored is shown as, if its kind has defaults that were added since.
pub fn filled_in(kind: &Kind, stored: &[u8]) -> Option<Value> {
    let definition = kind.defined?.get();
    if definition.defaults.is_empty() {
        return None;
    }
    let stored: Value = serde_json::from_slice(stored).ok()?;
    let mut filled = stored.clone();
    (schema::fill_in(&mut filled, &definition.schema) && filled != stored).then_some(filled)
}

/// Puts a definition into force, or what is new about it; returns the kind under which its objects are stored. Nothing
/// happens to one whose names are not accepted.
pub fn define(definition: &Value) -> Result<Option<&'static Kind>, String> {
    if !condition(definition, "NamesAccepted") {
        return Ok(None);
    }
    let name = str_at(definition, &["metadata", "name"]);
    let (group, plural) = names_of(definition);
    let (hash, terminating) = (
        hash(definition),
        at_some(definition, &["metadata", "deletionTimestamp"]),
    );
    if let Some(stored) = by_store_key(group, plural)
        && is_in_force(name, hash, terminating)
    {
        return Ok(Some(stored));
    }
    // Patterns take long to compile: nobody waits for that.
    let versions = sorted(definition::versions(definition));
    let mut registry = REGISTRY
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let stored_at = versions
        .iter()
        .position(|version| version.storage)
        .ok_or("it has no storage version")?;
    let stored = registry.row(definition, &versions[stored_at], None)?;
    let mut rows = Vec::new();
    for (at, version) in versions.iter().enumerate() {
        let row = match at == stored_at {
            true => stored,
            false => registry.row(definition, version, Some(stored))?,
        };
        rows.push((row, version.served));
    }
    for ((row, _), version) in rows.iter().zip(versions) {
        row.defined.expect("rows made here are").set(Definition {
            defaults: version.defaults,
            schema: version.schema,
            patterns: version.patterns,
            terminating,
            deprecation: version.deprecation,
            hash,
            source: version.source,
        });
    }
    for (row, _) in registry.forget(name) {
        if !rows.iter().any(|(kept, _)| *kept == row) {
            row.defined
                .expect("rows made here are")
                .set(Definition::default());
        }
    }
    for (row, served) in &rows {
        if *served {
            registry
                .by_resource
                .insert(triple(row.group, row.version, row.plural), row);
            registry
                .by_type
                .insert(triple(row.group, row.version, row.kind), row);
        }
    }
    registry
        .by_store_key
        .insert((group.to_owned(), plural.to_owned()), stored);
    registry.rows.insert(name.to_owned(), rows);
    registry.generation += 1;
    Ok(Some(stored))
}

/// Whether this state of a definition is in force already: most writes change its status only.
fn is_in_force(name: &str, hash: u64, terminating: bool) -> bool {
    let rows = read(|registry| registry.rows.get(name).cloned());
    let mut known = rows
        .into_iter()
        .flatten()
        .filter_map(|(row, _)| Some(row.defined?.get()));
    known
        .next()
        .is_some_and(|known| (known.hash, known.terminating) == (hash, terminating))
}

/// Takes a definition out of force; returns the kind under which its objects are stored.
pub fn remove(definition: &Value) -> Option<&'static Kind> {
    let mut registry = REGISTRY
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (group, plural) = names_of(definition);
    let stored = registry
        .by_store_key
        .get(&(group.to_owned(), plural.to_owned()))
        .copied()?;
    for (row, _) in registry.forget(str_at(definition, &["metadata", "name"])) {
        row.defined
            .expect("rows made here are")
            .set(Definition::default());
    }
    registry.generation += 1;
    Some(stored)
}

fn names_of(definition: &Value) -> (&str, &str) {
    let text = |path| str_at(definition, path);
    (text(&["spec", "group"]), text(&["spec", "names", "plural"]))
}

fn at_some(object: &Value, path: &[&str]) -> bool {
    at(object, path).is_some()
}

fn condition(definition: &Value, name: &str) -> bool {
    let conditions = list_at(definition, &["status", "conditions"]);
    conditions
        .iter()
        .any(|condition| condition["type"] == name && condition["status"] == "True")
}

fn hash(definition: &Value) -> u64 {
    let seen = json!([definition["spec"], definition["metadata"]["uid"]]).to_string();
    crate::document::fnv1a(seen.as_bytes())
}

/// The newest first: stable versions before beta before alpha, and larger numbers before smaller ones.
fn sorted(mut versions: Vec<Version>) -> Vec<Version> {
    versions.sort_by_cached_key(|version| std::cmp::Reverse(priority(&version.name)));
    versions
}

fn priority(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let name = std::cmp::Reverse(version.to_owned());
    let Some(rest) = version.strip_prefix('v') else {
        return (0, 0, 0, name);
    };
    let digits = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let Ok(major) = major.parse() else {
        return (0, 0, 0, name);
    };
    for (label, rank) in [("alpha", 1), ("beta", 2)] {
        if let Some(minor) = rest.strip_prefix(label) {
            return match minor.parse() {
                Ok(minor) => (rank, major, minor, name),
                Err(_) => (0, 0, 0, name),
            };
        }
    }
    if rest.is_empty() {
        (3, major, 0, name)
    } else {
        (0, 0, 0, name)
    }
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn leak_all(texts: impl Iterator<Item = String>) -> &'static [&'static str] {
    Vec::leak(texts.map(|text| leak(&text)).collect())
}

impl Registry {
    /// Takes the rows of a definition out of the table; what else is known of them stays until it is replaced.
    fn forget(&mut self, name: &str) -> Vec<Row> {
        let rows = self.rows.remove(name).unwrap_or_default();
        for (row, _) in &rows {
            self.by_resource
                .remove(&triple(row.group, row.version, row.plural));
            self.by_type.remove(&triple(row.group, row.version, row.kind));
            self.by_store_key
                .remove(&(row.group.to_owned(), row.plural.to_owned()));
        }
        rows
    }

    /// The row of one version, made if there is no equal one.
    fn row(
        &mut self,
        definition: &Value,
        version: &Version,
        stored_as: Option<&'static Kind>,
    ) -> Result<&'static Kind, String> {
        let (group, plural) = names_of(definition);
        let names = &definition["spec"]["names"];
        let stored = stored_as.map(|kind| kind.version);
        let text = json!([
            group,
            definition["spec"]["scope"],
            names,
            version.name,
            stored,
            version.status,
            version.scale,
            version.columns,
            version.selectable
        ]);
        let text = text.to_string();
        if let Some(known) = self.made.get(&text) {
            return Ok(known);
        }
        if self.made.len() >= MAX_ROWS {
            let limit = format!("more than {MAX_ROWS} versions of kinds were defined; restart the server");
            return Err(limit);
        }
        let next = self.slots.len();
        let key = (group.to_owned(), plural.to_owned());
        let slot = *self.slots.entry(key).or_insert(next);
        let defined: &'static Defined = Box::leak(Box::new(Defined::new(kinds::ALL.len() + slot)));
        let row = Kind {
            singular: leak(str_at(names, &["singular"])),
            short_names: leak_all(texts(names, "shortNames")),
            categories: leak_all(texts(names, "categories")),
            subresources: subresources(version),
            custom: true,
            stored_as,
            selectable: leak_all(version.selectable.iter().cloned()),
            strategy: Box::leak(Box::new(Custom {
                status: version.status,
                defined,
            })),
            printer: table::declared::printer(columns(version)),
            defined: Some(defined),
            scale: version.scale.as_ref().map(scale_paths),
            ..Kind::plain(
                leak(group),
                leak(&version.name),
                leak(str_at(names, &["kind"])),
                leak(plural),
                match definition["spec"]["scope"] == "Cluster" {
                    true => Scope::Cluster,
                    false => Scope::Namespaced,
                },
            )
        };
        let row: &'static Kind = Box::leak(Box::new(row));
        self.made.insert(text, row);
        Ok(row)
    }
}

fn texts(names: &Value, field: &str) -> impl Iterator<Item = String> {
    let texts: Vec<String> = list_at(names, &[field])
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    texts.into_iter()
}

fn subresources(version: &Version) -> &'static [Subresource] {
    match (version.status, version.scale.is_some()) {
        (false, false) => &[],
        (true, false) => &[Subresource::Status],
        (false, true) => &[Subresource::Scale],
        (true, true) => &[Subresource::Status, Subresource::Scale],
    }
}

fn scale_paths((replicas, observed, selector): &(String, String, String)) -> &'static ScalePaths {
    let split = |path: &str| leak_all(path.split('.').map(str::to_owned));
    Box::leak(Box::new(ScalePaths {
        replicas: split(replicas),
        observed: split(observed),
        selector: (!selector.is_empty()).then(|| split(selector)),
    }))
}

/// The name, then what the definition asks for, or the age.
fn columns(version: &Version) -> &'static [Column] {
    let mut columns = vec![table::declared::NAME];
    columns.extend(
        version
            .columns
            .iter()
            .map(|[name, kind, path, priority, description]| Column {
                name: leak(name),
                cell_type: leak(kind),
                format: "",
                description: leak(description),
                priority: priority.parse().unwrap_or(0),
                path: leak(path),
            }),
    );
    if columns.len() == 1 {
        columns.push(table::declared::AGE);
    }
    columns.leak()
}

/// Why the names of a definition cannot be accepted, if they cannot: another kind of its group has them.
pub fn conflict(definition: &Value) -> Option<FieldError> {
    let (group, plural) = names_of(definition);
    let name = str_at(definition, &["metadata", "name"]);
    let kind = str_at(definition, &["spec", "names", "kind"]);
    let own = read(|registry| registry.rows.get(name).cloned().unwrap_or_default());
    let others = kinds::ALL.iter().copied().chain(served());
    let others = others.filter(|other| other.group == group && !own.iter().any(|(own, _)| own == other));
    for other in others {
        if other.plural == plural {
            return Some(FieldError::invalid(
                "spec.names.plural",
                plural,
                format!("{plural:?} is already in use"),
            ));
        }
        if other.kind == kind {
            return Some(FieldError::invalid(
                "spec.names.kind",
                kind,
                format!("{kind:?} is already in use"),
            ));
        }
    }
    None
}
