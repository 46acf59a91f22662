//! Which changes does somebody look for?

use pointsman_model::Moment;
use pointsman_sli::fold::Kind;
use thiserror::Error;

/// What is looked for; what is not given fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// A Service (namespace/name), or if there is none of that name, a part of the name.
    pub service: Option<String>,
    /// A node that lacks the change, or had it last.
    pub node: Option<String>,
    pub kind: Option<Kind>,
    /// Only what took longer than the objective, or does so already.
    pub slow: bool,
    /// Only what was on its way in this time.
    pub from: Option<Moment>,
    pub to: Option<Moment>,
}

/// Why a question about changes has no answer.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum BadFilter {
    #[error("{0:?} is not a filter: service, node, kind, slow, from and to are")]
    Unknown(String),
    #[error("kind={0}: the kinds are {all}", all = Kind::ALL.map(Kind::as_str).join(", "))]
    Kind(String),
    #[error("slow={0}: true or false")]
    Slow(String),
    #[error("{0}={1}: a time is written as in RFC 3339, such as 2026-11-15T02:13:00Z")]
    Time(String, String),
}

impl Filter {
    /// Reads the query of a URL. Empty values are as good as none.
    pub fn parse(query: &str) -> Result<Self, BadFilter> {
        let mut filter = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let text = (!value.is_empty()).then(|| value.to_string());
            let Some(text) = text else { continue };
            let time = || {
                let read = Moment::parse(&text);
                read.ok_or_else(|| BadFilter::Time(name.to_string(), text.clone()))
            };
            match &*name {
                "service" => filter.service = Some(text),
                "node" => filter.node = Some(text),
                "kind" => {
                    let found = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
                    filter.kind = Some(found.ok_or(BadFilter::Kind(text))?);
                }
                "slow" => filter.slow = text.parse().map_err(|_| BadFilter::Slow(text))?,
                "from" => filter.from = Some(time()?),
                "to" => filter.to = Some(time()?),
                _ => return Err(BadFilter::Unknown(name.to_string())),
            }
        }
        Ok(filter)
    }
}

/// The text that names have to contain, of a query such as `match=web`.
pub(crate) fn part_of_name(query: &str) -> String {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let found = pairs.find(|(name, _)| name == "match");
    found.map_or_else(String::new, |(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_query_says_which_changes() {
        let all = "service=default%2Fweb&node=n2&kind=not-ready&slow=true&from=1970-01-01T00:00:01Z&to=";
        assert_eq!(
            Filter::parse(all).unwrap(),
            Filter {
                service: Some("default/web".into()),
                node: Some("n2".into()),
                kind: Some(Kind::NotReady),
                slow: true,
                from: Some(Moment(1_000_000)),
                to: None,
            }
        );
        assert_eq!(Filter::parse(""), Ok(Filter::default()));
        assert_eq!(part_of_name("match=a+b"), "a b");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (query, says) in [
            ("services=a", "\"services\" is not a filter"),
            ("kind=gone", "the kinds are ready, not-ready"),
            ("slow=yes", "true or false"),
            (
                "from=yesterday",
                "from=yesterday: a time is written as in RFC 3339",
            ),
        ] {
            let error = Filter::parse(query).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(query in ".{0,80}", value in ".{0,20}") {
            let _ = Filter::parse(&query);
            let encoded: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
            let read = Filter::parse(&format!("service={encoded}")).unwrap();
            prop_assert_eq!(read.service.unwrap_or_default(), value);
        }
    }
}
