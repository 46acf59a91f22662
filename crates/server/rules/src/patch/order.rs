//! In which order do the items of a merged list come?
//!
//! Items that the patch mentions follow the patch's order, the others keep the order they had; the
//! two sequences are merged by where their items stood before, and new items come first. This is
//! upstream's rule, down to the last sentence.

use serde_json::Value;
use std::collections::HashMap;

/// How items of a list are told apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum Identity {
    /// By this field of theirs.
    Key(&'static str),
    /// By their whole value.
    Whole,
}

impl Identity {
    /// What makes `item` this item; `None` if it lacks the key.
    pub(super) fn of(self, item: &Value) -> Option<String> {
        match self {
            Identity::Whole => Some(item.to_string()),
            Identity::Key(key) => item.get(key).map(Value::to_string),
        }
    }

    /// The position of the first item with each identity.
    pub(super) fn positions<'a>(self, items: impl IntoIterator<Item = &'a Value>) -> HashMap<String, usize> {
        let mut positions = HashMap::new();
        for (at, item) in items.into_iter().enumerate() {
            if let Some(id) = self.of(item) {
                positions.entry(id).or_insert(at);
            }
        }
        positions
    }
}

/// Orders `merged` by the positions in the `wanted` list and in the list as it was `before`.
pub(super) fn ordered(
    merged: Vec<Value>,
    identity: Identity,
    wanted: &HashMap<String, usize>,
    before: &HashMap<String, usize>,
) -> Vec<Value> {
    let mut mentioned = Vec::new();
    let mut others = Vec::new();
    for item in merged {
        let id = identity.of(&item);
        let was_at = id.as_ref().and_then(|id| before.get(id).copied());
        match id.and_then(|id| wanted.get(&id).copied()) {
            Some(wanted_at) => mentioned.push((wanted_at, was_at, item)),
            None => others.push((was_at, item)),
        }
    }
    mentioned.sort_by_key(|(wanted_at, _, _)| *wanted_at);
    others.sort_by_key(|(was_at, _)| was_at.unwrap_or(usize::MAX));

    let mut result = Vec::with_capacity(mentioned.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, mentioned_at, item) in mentioned {
        while let Some(other) =
            others.next_if(|(was_at, _)| matches!((was_at, mentioned_at), (Some(was), Some(at)) if *was < at))
        {
            result.push(other.1);
        }
        result.push(item);
    }
    result.extend(others.map(|(_, item)| item));
    result
}
