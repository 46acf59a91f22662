//! Patches in the three languages, on objects that somebody else wrote.
//!
//! The first byte chooses the kind and the language. The object comes next, as JSON, and the patch after a zero
//! byte, which no JSON has.

use crate::requests::assert_settled;
use pointsman_rules::decode::{self, BodyFormat, MAX_DEPTH};
use pointsman_rules::patch::{self, PatchType};
use pointsman_rules::{kinds, schema};
use serde_json::Value;

const LANGUAGES: [PatchType; 3] = [PatchType::Json, PatchType::Merge, PatchType::Strategic];

pub(crate) fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else {
        return;
    };
    let choice = usize::from(*choice);
    let language = LANGUAGES[choice % LANGUAGES.len()];
    let kind = kinds::ALL[choice / LANGUAGES.len() % kinds::ALL.len()];
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let (Some(object), Some(patch)) = (parts.next(), parts.next()) else {
        return;
    };
    let shape = schema::of(kind);
    let Ok(original) = decode::decode(object, BodyFormat::Json, shape) else {
        return;
    };
    let original = original.object;
    assert_unchanged(&original, language, kind);
    if let Ok(patched) = patch::apply(language, patch, &original, shape) {
        assert!(
            depth(&patched.object) <= MAX_DEPTH,
            "a patch nests deeper than a body may"
        );
        assert_settled(&patched.object, kind);
    }
}

/// A patch that says nothing changes nothing.
fn assert_unchanged(original: &Value, language: PatchType, kind: &pointsman_rules::Kind) {
    let empty: &[u8] = if language == PatchType::Json { b"[]" } else { b"{}" };
    if !original.is_object() {
        return;
    }
    let patched = patch::apply(language, empty, original, schema::of(kind))
        .unwrap_or_else(|error| panic!("an empty patch is refused: {error:?}\n{original}"));
    assert_eq!(&patched.object, original, "an empty patch changes something");
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
