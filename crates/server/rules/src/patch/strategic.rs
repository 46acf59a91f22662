//! Kubernetes' strategic merge patch: a merge patch that knows the schema.
//!
//! Lists with a merge key are merged item by item, lists of single values with a merge strategy are
//! united, other lists are replaced. Directives: `$patch: replace|delete|merge` in objects and list
//! items, `$retainKeys`, `$setElementOrder/<list>`, `$deleteFromPrimitiveList/<list>`. Fields the
//! schema does not know merge as in RFC 7396. Directives never end up in the object.
//!
//! Recursion is bounded by the patch's nesting. Work is counted: a patch may name the same item again and again, and each
//! time the lists in it are looked through.

use super::PatchError;
use super::effort::Effort;
use super::order::{Identity, ordered};
use crate::decode::{Path, Step};
use crate::schema::{ObjectType, PatchStrategy, Shape};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Applies a strategic merge patch to an object of type `shape`.
pub(super) fn apply(original: Value, patch: Value, shape: &ObjectType) -> Result<Value, PatchError> {
    let (Value::Object(mut object), Value::Object(patch)) = (original, patch) else {
        return Err(PatchError::malformed(
            "a strategic merge patch must be a JSON object",
        ));
    };
    merge_object(
        &mut object,
        patch,
        Known::Fields(shape),
        &Path::ROOT,
        &mut Effort::default(),
    )?;
    Ok(Value::Object(object))
}

/// What the schema says about the members of an object.
#[derive(Clone, Copy)]
enum Known<'s> {
    Fields(&'s ObjectType),
    Values(&'s Shape),
    Nothing,
}

impl<'s> Known<'s> {
    fn of(shape: Option<&'s Shape>) -> Self {
        match shape {
            Some(Shape::Object(index)) if !index.get().union => Known::Fields(index.get()),
            Some(Shape::Map(values)) => Known::Values(values),
            _ => Known::Nothing,
        }
    }

    fn member(self, name: &str) -> (Option<&'s Shape>, PatchStrategy) {
        match self {
            Known::Fields(shape) => match shape.field(name) {
                Some(field) => (Some(&field.shape), field.patch),
                None => (None, PatchStrategy::Default),
            },
            Known::Values(shape) => (Some(shape), PatchStrategy::Default),
            Known::Nothing => (None, PatchStrategy::Default),
        }
    }

    /// How the list `name` merges: how its items are told apart and what they are; `None` if it is
    /// replaced whole.
    fn list(self, name: &str) -> Option<(Identity, Known<'s>)> {
        let (shape, strategy) = self.member(name);
        let items = match shape {
            Some(Shape::List(items)) => Known::of(Some(items)),
            _ => Known::Nothing,
        };
        match strategy {
            PatchStrategy::MergeBy(key) => Some((Identity::Key(key), items)),
            PatchStrategy::MergeSet => Some((Identity::Whole, items)),
            PatchStrategy::Default | PatchStrategy::Replace => None,
        }
    }
}

/// What a `$patch` member asks for.
enum Directive {
    Merge,
    Replace,
    Delete,
}

fn take_directive(patch: &mut Map<String, Value>, path: &Path<'_>) -> Result<Directive, PatchError> {
    match patch.remove(DIRECTIVE) {
        None => Ok(Directive::Merge),
        Some(Value::String(text)) if text == "merge" => Ok(Directive::Merge),
        Some(Value::String(text)) if text == "replace" => Ok(Directive::Replace),
        Some(Value::String(text)) if text == "delete" => Ok(Directive::Delete),
        Some(other) => Err(bad(
            path,
            &format!("unknown $patch directive {other}; known are replace, delete and merge"),
        )),
    }
}

fn merge_object(
    object: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    known: Known<'_>,
    path: &Path<'_>,
    effort: &mut Effort,
) -> Result<(), PatchError> {
    match take_directive(&mut patch, path)? {
        Directive::Merge => {}
        Directive::Replace => {
            *object = settled_object(patch);
            return Ok(());
        }
        Directive::Delete => {
            object.clear();
            return Ok(());
        }
    }
    effort.steps(1 + object.len())?;
    retain_keys(object, &mut patch, path)?;
    let orders = take_lists(&mut patch, SET_ORDER, path)?;
    let deletions = take_lists(&mut patch, DELETE_PRIMITIVES, path)?;
    for (name, order) in orders {
        let items = patch.remove(&name);
        merge_ordered(
            object,
            &name,
            items,
            &order,
            known,
            &path.then(Step::Field(&name)),
            effort,
        )?;
    }
    for (name, value) in patch {
        merge_member(
            object,
            &name,
            value,
            known,
            &path.then(Step::Field(&name)),
            effort,
        )?;
    }
    for (name, unwanted) in deletions {
        if let Some(Value::Array(items)) = object.get_mut(&name) {
            effort.steps(items.len())?;
            let unwanted: HashSet<String> = unwanted.iter().map(Value::to_string).collect();
            items.retain(|item| !unwanted.contains(&item.to_string()));
        }
    }
    Ok(())
}

fn merge_member(
    object: &mut Map<String, Value>,
    name: &str,
    patch: Value,
    known: Known<'_>,
    path: &Path<'_>,
    effort: &mut Effort,
) -> Result<(), PatchError> {
    let (shape, strategy) = known.member(name);
    match (object.get_mut(name), patch) {
        (_, Value::Null) => {
            object.remove(name);
        }
        (Some(Value::Object(old)), Value::Object(patch)) if strategy != PatchStrategy::Replace => {
            merge_object(old, patch, Known::of(shape), path, effort)?;
        }
        (Some(Value::Array(old)), Value::Array(patch)) => {
            let before = std::mem::take(old);
            *old = merge_list(before, patch, known.list(name), path, effort)?;
        }
        (_, patch) => match settled(patch) {
            Some(value) => {
                object.insert(name.to_owned(), value);
            }
            None => {
                object.remove(name);
            }
        },
    }
    Ok(())
}

/// Merges a list for which the patch also says the final order.
fn merge_ordered(
    object: &mut Map<String, Value>,
    name: &str,
    patch: Option<Value>,
    order: &[Value],
    known: Known<'_>,
    path: &Path<'_>,
    effort: &mut Effort,
) -> Result<(), PatchError> {
    let merge = known.list(name);
    let identity = merge.map_or(Identity::Whole, |(identity, _)| identity);
    if let Some(lost) = order.iter().find(|item| identity.of(item).is_none()) {
        return Err(bad(
            path,
            &format!("$setElementOrder has {lost} without the merge key"),
        ));
    }
    let wanted = identity.positions(order);
    let patch = match patch {
        Some(Value::Array(items)) => {
            check_follows(&items, identity, &wanted, path)?;
            Some(items)
        }
        Some(Value::Null) => {
            object.remove(name);
            return Ok(());
        }
        Some(_) => {
            return Err(bad(
                path,
                "$setElementOrder is given, but the field is not a list",
            ));
        }
        None => None,
    };
    let before = match object.get_mut(name) {
        Some(Value::Array(items)) => std::mem::take(items),
        Some(_) => {
            return Err(bad(
                path,
                "$setElementOrder is given, but the field is not a list",
            ));
        }
        None if patch.is_none() => return Ok(()),
        None => Vec::new(),
    };
    effort.steps(order.len() + before.len())?;
    let positions = identity.positions(&before);
    let merged = match patch {
        None => before,
        Some(items) if before.is_empty() => items.into_iter().filter_map(settled_item).collect(),
        Some(items) => merge_list(before, items, merge, path, effort)?,
    };
    let result = ordered(merged, identity, &wanted, &positions);
    object.insert(name.to_owned(), Value::Array(result));
    Ok(())
}

/// The patch's items must come in the order that the patch itself asks for.
fn check_follows(
    items: &[Value],
    identity: Identity,
    wanted: &HashMap<String, usize>,
    path: &Path<'_>,
) -> Result<(), PatchError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut last = 0;
    for item in items.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let at = identity.of(item).and_then(|id| wanted.get(&id).copied());
        match at {
            Some(at) if at >= last => last = at,
            _ => {
                return Err(bad(
                    path,
                    "the order of the patch's items does not match $setElementOrder",
                ));
            }
        }
    }
    Ok(())
}

fn merge_list(
    before: Vec<Value>,
    patch: Vec<Value>,
    merge: Option<(Identity, Known<'_>)>,
    path: &Path<'_>,
    effort: &mut Effort,
) -> Result<Vec<Value>, PatchError> {
    effort.steps(before.len() + patch.len())?;
    match merge {
        None => Ok(patch.into_iter().filter_map(settled_item).collect()),
        Some((Identity::Whole, _)) => unite(before, patch, path),
        Some((identity, items)) => merge_keyed(before, patch, identity, items, path, effort),
    }
}

fn unite(before: Vec<Value>, patch: Vec<Value>, path: &Path<'_>) -> Result<Vec<Value>, PatchError> {
    if patch.iter().any(|item| item.is_object() || item.is_array()) {
        return Err(bad(path, "the items of this list must be single values"));
    }
    let identity = Identity::Whole;
    let (positions, wanted) = (identity.positions(&before), identity.positions(&patch));
    let mut seen = HashSet::new();
    let both = before.into_iter().chain(patch);
    let merged = both.filter(|item| seen.insert(item.to_string())).collect();
    Ok(ordered(merged, identity, &wanted, &positions))
}

fn merge_keyed(
    before: Vec<Value>,
    patch: Vec<Value>,
    identity: Identity,
    known: Known<'_>,
    path: &Path<'_>,
    effort: &mut Effort,
) -> Result<Vec<Value>, PatchError> {
    let mut changes = Vec::new();
    let mut deleted = HashSet::new();
    let mut replace = false;
    for (at, item) in patch.into_iter().enumerate() {
        let here = path.then(Step::Index(at));
        let Value::Object(mut item) = item else {
            return Err(bad(&here, "the items of this list must be objects"));
        };
        match take_directive(&mut item, &here)? {
            Directive::Replace => replace = true,
            Directive::Delete => {
                deleted.insert(required_id(&Value::Object(item), identity, &here)?);
            }
            Directive::Merge => changes.push(Value::Object(item)),
        }
    }
    if replace {
        return Ok(changes.into_iter().filter_map(settled).collect());
    }
    let mut merged = before;
    merged.retain(|item| identity.of(item).is_none_or(|id| !deleted.contains(&id)));
    let positions = identity.positions(&merged);
    let wanted = identity.positions(&changes);
    let mut index = positions.clone();
    for (at, change) in changes.into_iter().enumerate() {
        let here = path.then(Step::Index(at));
        let id = required_id(&change, identity, &here)?;
        match (index.get(&id).map(|at| &mut merged[*at]), change) {
            (Some(Value::Object(old)), Value::Object(change)) => {
                merge_object(old, change, known, &here, effort)?
            }
            (_, change) => {
                index.insert(id, merged.len());
                merged.extend(settled(change));
            }
        }
    }
    Ok(ordered(merged, identity, &wanted, &positions))
}

fn required_id(item: &Value, identity: Identity, path: &Path<'_>) -> Result<String, PatchError> {
    identity.of(item).ok_or_else(|| {
        let key = match identity {
            Identity::Key(key) => key,
            Identity::Whole => "value",
        };
        bad(path, &format!("the item lacks the merge key {key:?}"))
    })
}

/// Clears the members that `$retainKeys` does not list.
fn retain_keys(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    path: &Path<'_>,
) -> Result<(), PatchError> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let kept: Option<HashSet<&str>> = directive
        .as_array()
        .and_then(|names| names.iter().map(Value::as_str).collect());
    let kept = kept.ok_or_else(|| bad(path, "$retainKeys must be a list of field names"))?;
    let unlisted = patch.iter().find(|(name, value)| {
        let is_list_directive = name.starts_with(SET_ORDER) || name.starts_with(DELETE_PRIMITIVES);
        !value.is_null() && !is_list_directive && !kept.contains(name.as_str())
    });
    if let Some((name, _)) = unlisted {
        return Err(bad(
            path,
            &format!("the patch sets {name:?}, which $retainKeys does not list"),
        ));
    }
    object.retain(|name, _| kept.contains(name.as_str()));
    Ok(())
}

/// Takes the `<prefix><field>` members out of the patch.
fn take_lists(
    patch: &mut Map<String, Value>,
    prefix: &str,
    path: &Path<'_>,
) -> Result<Vec<(String, Vec<Value>)>, PatchError> {
    let names: Vec<String> = patch
        .keys()
        .filter(|name| name.starts_with(prefix))
        .cloned()
        .collect();
    let mut lists = Vec::with_capacity(names.len());
    for name in names {
        match patch.remove(&name) {
            Some(Value::Array(items)) => lists.push((name[prefix.len()..].to_owned(), items)),
            _ => return Err(bad(path, &format!("{name:?} must be a list"))),
        }
    }
    Ok(lists)
}

/// The value that a patch leaves where there was nothing: no `null` members, no directives.
/// `None` if the patch only asks for deletion.
fn settled(patch: Value) -> Option<Value> {
    match patch {
        Value::Object(patch)
            if patch
                .get(DIRECTIVE)
                .is_some_and(|directive| directive == "delete") =>
        {
            None
        }
        Value::Object(patch) => Some(Value::Object(settled_object(patch))),
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(settled_item).collect())),
        value => Some(value),
    }
}

/// As [`settled`]; an item with any directive but `merge` speaks about the list, so it goes.
fn settled_item(item: Value) -> Option<Value> {
    match item.get(DIRECTIVE) {
        Some(directive) if directive != "merge" => None,
        _ => settled(item),
    }
}

fn settled_object(patch: Map<String, Value>) -> Map<String, Value> {
    patch
        .into_iter()
        .filter(|(name, value)| !value.is_null() && !is_directive(name))
        .filter_map(|(name, value)| Some((name, settled(value)?)))
        .collect()
}

fn is_directive(name: &str) -> bool {
    name == DIRECTIVE
        || name == RETAIN_KEYS
        || name.starts_with(SET_ORDER)
        || name.starts_with(DELETE_PRIMITIVES)
}

fn bad(path: &Path<'_>, why: &str) -> PatchError {
    match path.to_string() {
        path if path.is_empty() => PatchError::malformed(why),
        path => PatchError::Malformed(format!("field {path:?}: {why}")),
    }
}
