use super::*;
use crate::status::ApiError;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::borrow::Cow;

fn selects(selector: &str, labels: Value) -> bool {
    LabelSelector::parse(selector)
        .unwrap()
        .matches(labels.as_object())
}

#[test]
fn label_selectors_mean_what_upstream_documents() {
    let web = || json!({"app": "web", "tier": "", "weight": "5"});
    for yes in [
        "",
        "  ",
        "app=web",
        "app==web",
        "app = web , tier",
        "app!=db",
        "missing!=x",
        "app in (db,web)",
        "app in ( db , web )",
        "app notin (db)",
        "missing notin (a)",
        "tier=",
        "tier in ()",
        "tier in (,a)",
        "!missing",
        "weight>4",
        "weight<6,app",
    ] {
        assert!(selects(yes, web()), "{yes:?} should select");
    }
    for no in [
        "app=db",
        "app!=web",
        "missing",
        "missing=",
        "!app",
        "app notin (web)",
        "app in (db)",
        "weight>5",
        "weight<5",
        "app>1",
        "missing<1",
    ] {
        assert!(!selects(no, web()), "{no:?} should not select");
    }
    assert!(selects("in in (in)", json!({"in": "in"})));
    assert!(!LabelSelector::nothing().matches(None));
}

#[test]
fn label_syntax_errors_name_the_position() {
    for (text, position) in [
        ("=a", 0),
        ("a,", 2),
        (",a", 0),
        ("a b", 2),
        ("a in", 4),
        ("a in (b", 7),
        ("a in (b c)", 8),
        ("a in b", 5),
        ("!a=b", 2),
        ("a=b=c", 3),
        ("-a", 0),
        ("a=-b", 2),
        ("a>b", 2),
        ("a=(b)", 2),
        ("a&b", 0),
    ] {
        let Err(ApiError::BadRequest(message)) = LabelSelector::parse(text) else {
            panic!("{text:?} should be refused as a bad request");
        };
        assert!(
            message.contains(&format!("(at position {position} of")),
            "{text:?}: {message}"
        );
    }
    insta::assert_snapshot!(
        LabelSelector::parse("app in web").unwrap_err().to_string(),
        @"unable to parse requirement: found 'web', expected: '(' (at position 7 of the label selector)"
    );
}

#[test]
fn selector_objects_render_as_scale_shows_them() {
    let selector = json!({
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["b", "a"]},
            {"key": "old", "operator": "DoesNotExist"},
        ],
    });
    let selector = LabelSelector::from_object(Some(&selector), "spec.selector").unwrap();
    assert_eq!(selector.to_string(), "app=web,!old,tier in (a,b)");
    assert_eq!(
        LabelSelector::from_object(None, "s"),
        Ok(LabelSelector::nothing())
    );
    assert!(
        LabelSelector::from_object(Some(&json!({})), "s")
            .unwrap()
            .is_everything()
    );
}

#[test]
fn selector_objects_name_the_field_that_is_wrong() {
    let selector = json!({
        "matchLabels": {"a": "b c"},
        "matchExpressions": [
            {"key": "k", "operator": "In"},
            {"key": "k", "operator": "Exists", "values": ["x"]},
            {"key": "k", "operator": "Like", "values": ["x"]},
            {"key": "", "operator": "Exists"},
        ],
    });
    let errors = LabelSelector::from_object(Some(&selector), "spec.selector").unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.selector.matchLabels",
            "spec.selector.matchExpressions[0].values",
            "spec.selector.matchExpressions[1].values",
            "spec.selector.matchExpressions[2].operator",
            "spec.selector.matchExpressions[3].key",
            "spec.selector.matchExpressions[3].key",
        ]
    );
}

fn field_matches(selector: &str) -> bool {
    FieldSelector::parse(selector)
        .unwrap()
        .matches_with(|field| match field {
            "metadata.name" => Some(Cow::Borrowed("web")),
            "odd" => Some(Cow::Borrowed(r"a,b=c\d")),
            _ => None,
        })
}

#[test]
fn field_selectors_compare_and_unescape() {
    for yes in [
        "",
        "metadata.name=web",
        "metadata.name==web,",
        "metadata.name!=db",
        "spec.nodeName=",
        r"odd=a\,b\=c\\d",
        r"odd!=a\,b,metadata.name=web",
    ] {
        assert!(field_matches(yes), "{yes:?} should select");
    }
    for no in [
        "metadata.name=db",
        "metadata.name!=web",
        "spec.nodeName!=",
        r"odd=a\,b",
    ] {
        assert!(!field_matches(no), "{no:?} should not select");
    }
    let selector = FieldSelector::parse("spec.nodeName!=a,metadata.name=web").unwrap();
    assert_eq!(selector.requires_exact("metadata.name"), Some("web"));
    assert_eq!(selector.requires_exact("spec.nodeName"), None);
    for bad in ["name", "a=b=c", r"a=\x", r"a=b\", "a=b,c"] {
        assert!(
            matches!(FieldSelector::parse(bad), Err(ApiError::BadRequest(_))),
            "{bad:?}"
        );
    }
}

#[test]
fn selectors_have_so_many_conditions_and_no_more() {
    let many = |one: &str, count: usize| vec![one; count].join(",");
    let labels = |text: &str| LabelSelector::parse(text).map(drop).map_err(|error| error.code());
    let fields = |text: &str| FieldSelector::parse(text).map(drop).map_err(|error| error.code());
    assert_eq!(labels(&many("!a", 1_000)), Ok(()));
    assert_eq!(labels(&many("!a", 1_001)), Err(400));
    let among = |count: usize| format!("a in ({})", many("b", count));
    assert_eq!(labels(&among(10_000)), Ok(()));
    assert_eq!(labels(&among(10_001)), Err(400));
    assert_eq!(fields(&many("metadata.name!=a", 1_000)), Ok(()));
    assert_eq!(fields(&many("metadata.name!=a", 1_001)), Err(400));
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let value = "([a-zA-Z0-9]([a-z._-]{0,3}[a-z0-9])?)?";
    let test = prop_oneof![
        value.prop_map(Test::Equals),
        value.prop_map(Test::NotEquals),
        prop::collection::vec(value, 1..4).prop_map(Test::In),
        prop::collection::vec(value, 1..4).prop_map(Test::NotIn),
        Just(Test::Exists),
        Just(Test::Absent),
        (0i64..1000).prop_map(Test::GreaterThan),
        (0i64..1000).prop_map(Test::LessThan),
    ];
    ("([a-z]{1,3}/)?[a-zA-Z0-9]{1,5}", test).prop_map(|(key, test)| Requirement { key, test })
}

fn term() -> impl Strategy<Value = FieldTerm> {
    ("[a-zA-Z.]{1,10}", any::<String>(), any::<bool>()).prop_map(|(field, value, negated)| FieldTerm {
        field,
        value,
        negated,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn printed_label_selectors_parse_to_themselves(requirements in prop::collection::vec(requirement(), 0..5)) {
        let selector = LabelSelector::new(requirements);
        prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
    }

    #[test]
    fn printed_field_selectors_parse_to_themselves(terms in prop::collection::vec(term(), 0..5)) {
        let text = terms
            .iter()
            .map(|term| FieldSelector::single(term.clone()).to_string())
            .collect::<Vec<_>>()
            .join(",");
        let selector = FieldSelector::parse(&text).unwrap();
        prop_assert_eq!(selector.terms(), &terms);
        prop_assert_eq!(selector.to_string(), text);
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in any::<String>(), pieces in "[a-c=!<>(), \\\\in]{0,20}") {
        for text in [text, pieces] {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
            }
            let _ = FieldSelector::parse(&text);
        }
    }
}
