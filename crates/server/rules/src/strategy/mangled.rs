//! What do rules meet when a value is not what the schema promises?

use proptest::prelude::*;
use serde_json::{Value, json};

/// Copies of `base` in which up to four places hold arbitrary JSON.
pub fn mangled(base: Value) -> impl Strategy<Value = Value> {
    proptest::collection::vec((any::<prop::sample::Index>(), any_json()), 0..4).prop_map(move |edits| {
        let mut object = base.clone();
        for (place, value) in edits {
            let mut pointers = Vec::new();
            collect(&object, String::new(), &mut pointers);
            let pointer = &pointers[place.index(pointers.len())];
            if let Some(slot) = object.pointer_mut(pointer) {
                *slot = value;
            }
        }
        object
    })
}

/// Any small JSON value.
pub fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2000_i64..2000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[-a-z0-9./:%]{0,12}".prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
        Just(json!("2024-05-01T10:00:00Z")),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-zA-Z]{1,8}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let field = field.replace('~', "~0").replace('/', "~1");
                collect(value, format!("{pointer}/{field}"), pointers);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{index}"), pointers);
            }
        }
        _ => {}
    }
    pointers.push(pointer);
}
