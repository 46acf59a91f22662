//! What does the server keep for a definition of custom resources?

use pointsman_rules::{Kind, custom};
use pointsman_testkit::heap::Heap;
use serde_json::{Map, Value, json};

#[global_allocator]
static HEAP: Heap = Heap::new();

const DEFINITIONS: usize = 100;
const FIELDS: usize = 40;

/// It was some 1,250 when schemas were kept as parsed JSON, and their sources as text beside it.
const LIMIT: usize = 330;

#[test]
fn a_field_of_a_definition_takes_little_memory() {
    // What is made once, on first use.
    custom::define(&definition(DEFINITIONS)).unwrap();
    let before = HEAP.held();
    for number in 0..DEFINITIONS {
        custom::define(&definition(number)).unwrap();
    }
    let each = (HEAP.held() - before) / (DEFINITIONS * FIELDS);
    assert!((50..LIMIT).contains(&each), "{each} bytes");
    let kind = Kind::by_resource("g7.bench.test", "v1", "benches7").unwrap();
    let source = kind.defined.unwrap().get().source.value();
    assert_eq!(source, schema(), "nothing of it is lost");
}

fn schema() -> Value {
    let fields: Map<String, Value> = (0..FIELDS)
        .map(|at| {
            let description = format!("Field {at} says what operators of this kind of thing would like to have changed.");
            let field = match at % 4 {
                0 => json!({"type": "string", "description": description, "maxLength": 64}),
                1 => json!({"type": "integer", "description": description, "minimum": 0}),
                2 => json!({"type": "string", "description": description, "enum": ["Always", "Never", "Sometimes"]}),
                _ => json!({"type": "array", "description": description, "items": {"type": "string"}}),
            };
            (format!("field{at}"), field)
        })
        .collect();
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": fields},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }})
}

fn definition(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("benches{number}.g{number}.bench.test"), "uid": number.to_string()},
        "spec": {
            "group": format!("g{number}.bench.test"), "scope": "Namespaced",
            "names": {"plural": format!("benches{number}"), "kind": format!("Bench{number}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                          "schema": {"openAPIV3Schema": schema()}}],
        },
        "status": {"conditions": [{"type": "NamesAccepted", "status": "True"}]},
    })
}
