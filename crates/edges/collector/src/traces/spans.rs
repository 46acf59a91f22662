//! How does a change become a trace?
//!
//! One span for the whole change; below it one for each stage, which follow each other without a gap, so that their
//! lengths add up to that of the change; and one for each kernel, from the slice to its commit.

use pointsman_model::Moment;
use pointsman_sli::fold::Change;
use pointsman_sli::history::{self, Part};
use pointsman_sli::sample::mixed;

use super::messages::{AnyValue, KeyValue, Span, Value};

/// Sixteen bytes that name a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(u128);

impl TraceId {
    /// The trace of a change, for a collector that drew `seed` when it started: versions of two clusters are the same.
    pub fn new(seed: u64, change: &Change) -> Self {
        let low = mixed(change.what.revision ^ (change.what.resource as u64) << 63);
        Self(u128::from(seed | 1) << 64 | u128::from(low))
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// A change that is everywhere, with the names of its nodes.
#[derive(Debug)]
pub(crate) struct Traced {
    pub id: TraceId,
    pub change: Change,
    /// When each node had it, in clusters small enough to know that.
    pub nodes: Vec<(Box<str>, Moment)>,
    pub last: Option<Box<str>>,
    pub slow: bool,
}

/// The spans of a change. Laws: the first is the whole, stages add up to it, and none lies outside of it.
pub(crate) fn spans(traced: &Traced) -> Vec<Span> {
    let Traced { id, change, .. } = traced;
    let what = &change.what;
    let began = change.began();
    let end = change.all.unwrap_or(began);
    let mut count = 0u64;
    let mut span = |name: String, from: Moment, to: Moment, attributes: Vec<KeyValue>| {
        count += 1;
        let number = mixed(id.0 as u64 ^ count) | 1;
        let parent = mixed(id.0 as u64 ^ 1) | 1;
        Span {
            trace_id: id.0.to_be_bytes().to_vec(),
            span_id: number.to_be_bytes().to_vec(),
            parent_span_id: if count == 1 {
                Vec::new()
            } else {
                parent.to_be_bytes().to_vec()
            },
            name,
            kind: 1,
            start_time_unix_nano: nanos(from),
            end_time_unix_nano: nanos(to.max(from)),
            attributes,
        }
    };
    let mut spans = vec![span(
        format!("change {}", what.kind.as_str()),
        began,
        end,
        attributes(traced),
    )];
    let mut from = began;
    for (part, took) in history::parts(change).into_iter().flatten() {
        let name = match part {
            Part::Api => "change to API",
            Part::Slice => "API to slice",
            Part::Half => "slice to half of the kernels",
            Part::All => "half of the kernels to all",
        };
        let to = from.after(took);
        spans.push(span(
            name.into(),
            from,
            to,
            vec![text("pointsman.stage", part.as_str())],
        ));
        from = to;
    }
    let written = change.written();
    for (node, at) in &traced.nodes {
        let at = (*at).clamp(written, end.max(written));
        spans.push(span(
            format!("kernel of {node}"),
            written,
            at,
            vec![text("k8s.node.name", node)],
        ));
    }
    spans
}

fn attributes(traced: &Traced) -> Vec<KeyValue> {
    let change = &traced.change;
    let what = &change.what;
    let (namespace, service) = what.service.split_once('/').unwrap_or(("", &what.service));
    let mut all = vec![
        text("k8s.namespace.name", namespace),
        text("k8s.service.name", service),
        text("pointsman.change.kind", what.kind.as_str()),
        text("pointsman.change.dated", what.dated.as_str()),
        text("pointsman.resource", what.resource.as_str()),
        key("pointsman.resource_version", Value::Int(what.revision as i64)),
        key("pointsman.nodes", Value::Int(change.of as i64)),
        key("pointsman.slow", Value::Bool(traced.slow)),
    ];
    if let Some((_, pod)) = what.pod.as_deref().and_then(|pod| pod.split_once('/')) {
        all.push(text("k8s.pod.name", pod));
    }
    if let Some(last) = &traced.last {
        all.push(text("pointsman.last_node", last));
    }
    all
}

pub(super) fn text(name: &str, value: &str) -> KeyValue {
    key(name, Value::Text(value.to_owned()))
}

fn key(name: &str, value: Value) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

fn nanos(at: Moment) -> u64 {
    u64::try_from(at.0).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use pointsman_model::Dated;
    use pointsman_protocol::watermark::Resource;
    use pointsman_sli::fold::{Kind, NewChange};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    pub(crate) fn traced(took: [i64; 4], api: bool, commits: &[i64]) -> Traced {
        let at = |micros: i64| Moment(1_700_000_000_000_000 + micros);
        let [a, b, c, d] = took;
        let change = Change {
            what: NewChange {
                resource: Resource::Slices,
                revision: 77,
                service: "shop/web".into(),
                kind: Kind::Ready,
                pod: Some("shop/web-1".into()),
                triggered: Some(at(0)),
                dated: Dated::Exact,
                api: api.then(|| at(a)),
                written: at(a + b),
            },
            reached: 2,
            of: 2,
            earliest: Some(at(a + b + c)),
            latest: Some(at(a + b + c + d)),
            last: None,
            commits: Vec::new(),
            half: Some(at(a + b + c)),
            most: None,
            all: Some(at(a + b + c + d)),
        };
        Traced {
            id: TraceId::new(9, &change),
            nodes: commits
                .iter()
                .map(|it| (format!("n{it}").into(), at(*it)))
                .collect(),
            last: Some("n2".into()),
            slow: true,
            change,
        }
    }

    proptest! {
        #[test]
        fn stages_add_up_to_the_change_and_no_span_lies_outside_of_it(
            took in prop::array::uniform4(0i64..1_000_000),
            api in any::<bool>(),
            commits in prop::collection::vec(-1_000i64..5_000_000, 0..5),
        ) {
            let spans = spans(&traced(took, api, &commits));
            let length = |span: &Span| span.end_time_unix_nano - span.start_time_unix_nano;
            let has = |span: &&Span, name: &str| span.attributes.iter().any(|it| it.key == name);
            let (whole, below) = spans.split_first().unwrap();
            let stages: u64 = below.iter().filter(|it| has(it, "pointsman.stage")).map(length).sum();
            prop_assert_eq!(stages, length(whole));
            prop_assert_eq!(length(whole), took.iter().sum::<i64>() as u64 * 1000);
            for span in below {
                prop_assert!(span.start_time_unix_nano >= whole.start_time_unix_nano);
                prop_assert!(span.end_time_unix_nano <= whole.end_time_unix_nano, "{span:?}");
                prop_assert_eq!(&span.parent_span_id, &whole.span_id);
            }
            let ids: BTreeSet<&Vec<u8>> = spans.iter().map(|it| &it.span_id).collect();
            prop_assert_eq!(ids.len(), spans.len());
        }
    }

    #[test]
    fn a_trace_names_its_service_pod_kind_and_nodes() {
        let all = spans(&traced([1, 2, 3, 4], true, &[7]));
        let named: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(named[0], "change ready");
        assert_eq!(named.last(), Some(&"kernel of n7"));
        let attributes = format!("{:?}", all[0].attributes);
        for word in ["shop", "web", "web-1", "ready", "n2", "77"] {
            assert!(
                attributes.contains(&format!("\"{word}\"")) || attributes.contains(&format!("({word})")),
                "{word}: {attributes}"
            );
        }
        assert_eq!(traced([1; 4], true, &[]).id.to_string().len(), 32);
    }
}
