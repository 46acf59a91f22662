//! What do the query parameters ask for?
//!
//! Unknown parameters are ignored, as every Kubernetes API server does; known ones with values that
//! make no sense are refused by name.

use pointsman_model::duration;
use pointsman_rules::{ApiError, FieldError};
use pointsman_store::Revision;
use std::time::Duration;

/// Query parameters, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a raw query string, as many parameters as anybody sends.
    pub fn parse(raw: &str) -> Self {
        const MAX_PARAMETERS: usize = 100;
        let parameters = form_urlencoded::parse(raw.as_bytes()).into_owned();
        Self(parameters.take(MAX_PARAMETERS).collect())
    }

    /// Bytes of all parameters.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The first value of a parameter; empty counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self
            .0
            .iter()
            .find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a boolean parameter is set. Only the spellings of Go's parser count.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
            Some("true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
            Some(other) => Err(ApiError::BadRequest(format!(
                "query parameter {name:?}: {other:?} is not a boolean"
            ))),
        }
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    ApiError::BadRequest(format!(
                        "query parameter {name:?}: {text:?} is not a whole number"
                    ))
                })
            })
            .transpose()
    }

    /// Whether the write is only to be tried (`dryRun=All`).
    pub fn dry_run(&self) -> Result<bool, ApiError> {
        let mut tried = false;
        for value in self.all("dryRun").filter(|value| !value.is_empty()) {
            if value != "All" {
                let error = FieldError::not_supported("dryRun", value, &["All"]);
                return Err(ApiError::BadRequest(format!("invalid options: {error}")));
            }
            tried = true;
        }
        Ok(tried)
    }

    /// The `timeout` parameter in Go's duration form, as far as clients use it (`30s`, `1m30s`).
    pub fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        let Some(text) = self.get("timeout") else {
            return Ok(None);
        };
        let bad = || {
            ApiError::BadRequest(format!(
                "invalid timeout specified in the request URL: query parameter \"timeout\": {text:?} is not a duration"
            ))
        };
        duration::parse(text).map(Some).ok_or_else(bad)
    }
}

/// How fresh a read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The newest state.
    Newest,
    /// Whatever is at hand.
    Any,
    /// At least as new as this.
    NotOlderThan(Revision),
    Exactly(Revision),
}

/// The parameters of a list or watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// How fresh a list has to be.
    pub freshness: Freshness,
    /// At most so many items; zero means all.
    pub limit: usize,
    /// Where the last page ended.
    pub after: Option<Continue>,
    /// `None` for a list; how to watch otherwise.
    pub watch: Option<WatchOptions>,
}

/// The longest life of a watch; one that asks for more gets this. The clock cannot hold every number of seconds.
const MAX_WATCH: Duration = Duration::from_secs(365 * 24 * 3600);

/// The parameters of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Where to start; `None` starts with the present objects as `ADDED` events.
    pub from: Option<Revision>,
    /// Whether the state shown first must be the newest.
    pub initial_freshness: Freshness,
    /// Whether to send bookmarks.
    pub bookmarks: bool,
    /// Whether to mark the end of the initial events by a bookmark.
    pub mark_initial_end: bool,
    /// When the client wants the stream to end.
    pub timeout: Option<Duration>,
}

/// A position in a paged list.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Continue {
    #[serde(rename = "v")]
    version: String,
    /// The revision that all pages show; -1 goes on with the newest state.
    pub rv: i64,
    /// The key of the last item of the page before.
    pub start: String,
}

impl Continue {
    /// A position after `start` in the state at `revision`; `None` goes on inconsistently.
    pub fn new(revision: Option<Revision>, start: &str) -> Self {
        let rv = revision.map_or(-1, |revision| revision.0 as i64);
        Self {
            version: "meta.k8s.io/v1".into(),
            rv,
            start: start.to_owned(),
        }
    }

    /// The opaque form for clients.
    pub fn token(&self) -> String {
        use base64::Engine;
        let json = serde_json::to_vec(self).expect("plain strings and numbers");
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json)
    }

    fn parse(token: &str) -> Result<Self, ApiError> {
        use base64::Engine;
        let bad = || ApiError::BadRequest("continue key is not valid".into());
        let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let json = engine.decode(token.trim_end_matches('=')).map_err(|_| bad())?;
        let token: Self = serde_json::from_slice(&json).map_err(|_| bad())?;
        let sane = token.version == "meta.k8s.io/v1" && (token.rv > 0 || token.rv == -1);
        if sane { Ok(token) } else { Err(bad()) }
    }
}

impl ListOptions {
    /// Reads the parameters of a list, or of a watch if `watch` or the query says so.
    pub fn parse(query: &Query, watch: bool) -> Result<Self, ApiError> {
        let revision = parse_revision(query.get("resourceVersion"))?;
        let rule = query.get("resourceVersionMatch");
        let send_initial = match query.get("sendInitialEvents") {
            None => None,
            Some(_) => Some(query.flag("sendInitialEvents")?),
        };
        let limit = usize::try_from(query.number("limit")?.unwrap_or(0).max(0)).unwrap_or(usize::MAX);
        let after = query.get("continue").map(Continue::parse).transpose()?;
        if watch || query.flag("watch")? {
            let watch = Some(watch_options(query, revision, rule, send_initial)?);
            return Ok(Self {
                freshness: Freshness::Newest,
                limit: 0,
                after: None,
                watch,
            });
        }
        if send_initial.is_some() {
            return Err(forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        let freshness = list_freshness(revision, rule, limit, after.is_some())?;
        // Upstream answers resourceVersion=0 from its cache, whole, whatever the limit says.
        let limit = if freshness == Freshness::Any { 0 } else { limit };
        Ok(Self {
            freshness,
            limit,
            after,
            watch: None,
        })
    }
}

fn list_freshness(
    revision: Option<Revision>,
    rule: Option<&str>,
    limit: usize,
    continued: bool,
) -> Result<Freshness, ApiError> {
    if continued {
        if rule.is_some() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            return Err(forbidden("resourceVersionMatch", why));
        }
        if revision.is_some_and(|revision| revision.0 != 0) {
            let why = "specifying resource version is not allowed when using continue";
            return Err(ApiError::BadRequest(why.into()));
        }
        return Ok(Freshness::Newest);
    }
    match (rule, revision) {
        (None, None) => Ok(Freshness::Newest),
        (None, Some(Revision(0))) => Ok(Freshness::Any),
        (None, Some(revision)) if limit > 0 => Ok(Freshness::Exactly(revision)),
        (None, Some(revision)) => Ok(Freshness::NotOlderThan(revision)),
        (Some(_), None) => Err(forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        (Some("NotOlderThan"), Some(Revision(0))) => Ok(Freshness::Any),
        (Some("NotOlderThan"), Some(revision)) => Ok(Freshness::NotOlderThan(revision)),
        (Some("Exact"), Some(Revision(0))) => Err(forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some("Exact"), Some(revision)) => Ok(Freshness::Exactly(revision)),
        (Some(other), _) => Err(invalid(vec![FieldError::not_supported(
            "resourceVersionMatch",
            other,
            &["Exact", "NotOlderThan"],
        )])),
    }
}

fn watch_options(
    query: &Query,
    revision: Option<Revision>,
    rule: Option<&str>,
    send_initial: Option<bool>,
) -> Result<WatchOptions, ApiError> {
    if send_initial.is_some() && rule != Some("NotOlderThan") {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(forbidden("resourceVersionMatch", why));
    }
    if send_initial.is_none() && rule.is_some() {
        let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        return Err(forbidden("resourceVersionMatch", why));
    }
    let bookmarks = query.flag("allowWatchBookmarks")?;
    let timeout = query.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
    let initial_freshness = match revision {
        None => Freshness::Newest,
        Some(Revision(0)) => Freshness::Any,
        Some(revision) => Freshness::NotOlderThan(revision),
    };
    let from = match (send_initial, revision) {
        (Some(true), _) | (None, None | Some(Revision(0))) => None,
        // Without initial events an unset version means "from now on".
        (Some(false), None | Some(Revision(0))) => Some(Revision(0)),
        (_, Some(revision)) => Some(revision),
    };
    Ok(WatchOptions {
        from,
        initial_freshness,
        bookmarks,
        mark_initial_end: bookmarks && send_initial == Some(true),
        timeout: timeout.map(|seconds| Duration::from_secs(seconds.unsigned_abs()).min(MAX_WATCH)),
    })
}

fn parse_revision(text: Option<&str>) -> Result<Option<Revision>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let revision = text.parse().map(Revision);
    revision.map(Some).map_err(|_| {
        ApiError::BadRequest(format!(
            "Invalid value: {text:?}: resourceVersion is not a number"
        ))
    })
}

fn forbidden(field: &str, why: &str) -> ApiError {
    invalid(vec![FieldError::forbidden(field, why)])
}

fn invalid(errors: Vec<FieldError>) -> ApiError {
    let subject = pointsman_rules::status::Subject {
        group: "meta.k8s.io".into(),
        kind: "ListOptions".into(),
        name: String::new(),
    };
    ApiError::Invalid { subject, errors }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(raw: &str) -> Result<ListOptions, u16> {
        ListOptions::parse(&Query::parse(raw), false).map_err(|error| error.code())
    }

    #[test]
    fn resource_version_rules_of_lists() {
        let fresh = |raw: &str| list(raw).map(|options| options.freshness);
        assert_eq!(fresh(""), Ok(Freshness::Newest));
        assert_eq!(fresh("resourceVersion=0"), Ok(Freshness::Any));
        assert_eq!(
            fresh("resourceVersion=7"),
            Ok(Freshness::NotOlderThan(Revision(7)))
        );
        assert_eq!(
            fresh("resourceVersion=7&limit=5"),
            Ok(Freshness::Exactly(Revision(7)))
        );
        let rule = "resourceVersion=7&resourceVersionMatch=";
        assert_eq!(
            fresh(&format!("{rule}Exact")),
            Ok(Freshness::Exactly(Revision(7)))
        );
        assert_eq!(
            fresh(&format!("{rule}NotOlderThan&limit=5")),
            Ok(Freshness::NotOlderThan(Revision(7)))
        );
        assert_eq!(fresh(&format!("{rule}Sometimes")), Err(422));
        assert_eq!(fresh("resourceVersionMatch=Exact"), Err(422));
        assert_eq!(fresh("resourceVersion=0&resourceVersionMatch=Exact"), Err(422));
        assert_eq!(fresh("resourceVersion=abc"), Err(400));
        assert_eq!(fresh("sendInitialEvents=true"), Err(422));
    }

    #[test]
    fn watch_starts_with_the_present_state_unless_told_otherwise() {
        let watch = |raw: &str| {
            ListOptions::parse(&Query::parse(raw), true)
                .map(|o| o.watch.unwrap())
                .map_err(|e| e.code())
        };
        assert_eq!(watch("").unwrap().from, None);
        assert_eq!(watch("resourceVersion=0").unwrap().from, None);
        assert_eq!(watch("resourceVersion=9").unwrap().from, Some(Revision(9)));
        let streaming = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        assert!(watch(streaming).unwrap().mark_initial_end);
        assert_eq!(watch("sendInitialEvents=true").unwrap_err(), 422);
        assert_eq!(watch("timeoutSeconds=x").unwrap_err(), 400);
    }

    #[test]
    fn continue_tokens_survive_the_round_trip_and_bad_ones_are_refused() {
        let token = Continue::new(Some(Revision(12)), "a/b");
        let options = list(&format!("limit=2&continue={}", token.token())).unwrap();
        assert_eq!(options.after, Some(token));
        for bad in ["!!", "e30", "eyJ2IjoieCIsInJ2IjoxLCJzdGFydCI6IiJ9"] {
            assert_eq!(list(&format!("continue={bad}")), Err(400), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(raw in ".{0,80}", watch: bool) {
            let query = Query::parse(&raw);
            let _ = ListOptions::parse(&query, watch);
            let _ = (query.dry_run(), query.timeout());
        }
    }
}
