//! May this pod be stopped?
//!
//! Whoever is about to stop a pod asks, and the answer comes when the slice that takes the pod out of use
//! is in the kernel of every node, or when the wait is over.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What the paths of all questions begin with.
pub const PATH: &str = "/gate/";
/// The wait that is never exceeded, unless a caller asks for another.
pub const DEFAULT_BOUND: Duration = Duration::from_secs(5);
/// The longest wait that a caller may ask for.
pub const LONGEST_BOUND: Duration = Duration::from_secs(60);
/// The longest name of anything in Kubernetes.
const LONGEST_NAME: usize = 253;

/// Whom a gate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A pod, as namespace/name, and its uid; empty if the caller does not know it.
    Pod { pod: String, uid: String },
    /// All pods of a Service (namespace/name) under deletion, on one node or on all.
    Service { service: String, node: Option<String> },
}

impl Subject {
    /// Which form of the question it is.
    pub fn form(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "pod",
            Self::Service { .. } => "service",
        }
    }

    /// What it is about, as namespace/name.
    pub fn about(&self) -> &str {
        match self {
            Self::Pod { pod, .. } => pod,
            Self::Service { service, .. } => service,
        }
    }
}

/// A question, as `/gate/v1/pods/NS/NAME?uid=U&bound=5s` or `/gate/v1/namespaces/NS/services/NAME?node=N&drain=1s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub subject: Subject,
    /// The longest wait, if not the collector's own.
    pub bound: Option<Duration>,
    /// How much later than no new connections come the answer is sent: requests under way get that long.
    pub drain: Duration,
}

/// Why a request is no question.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadQuestion {
    #[error("ask /gate/v1/pods/NAMESPACE/NAME or /gate/v1/namespaces/NAMESPACE/services/NAME")]
    Path,
    #[error("{0:?} is not a name")]
    Name(String),
    #[error("{0:?} is not a wait between 0s and {max}s", max = LONGEST_BOUND.as_secs())]
    Bound(String),
}

impl Question {
    /// The path and query that ask it. Longer bounds than [`LONGEST_BOUND`] are cut to it.
    pub fn encode(&self) -> String {
        let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (namespace, name) = self.subject.about().split_once('/').unwrap_or_default();
        let (namespace, name) = (escape(namespace), escape(name));
        let mut query = Vec::new();
        let path = match &self.subject {
            Subject::Pod { uid, .. } => {
                if !uid.is_empty() {
                    query.push(format!("uid={}", escape(uid)));
                }
                format!("/gate/v1/pods/{namespace}/{name}")
            }
            Subject::Service { node, .. } => {
                query.extend(node.iter().map(|node| format!("node={}", escape(node))));
                format!("/gate/v1/namespaces/{namespace}/services/{name}")
            }
        };
        let bound = self.bound.map(|bound| bound.min(LONGEST_BOUND).as_millis());
        query.extend(bound.map(|millis| format!("bound={millis}ms")));
        let drain = self.drain.min(LONGEST_BOUND).as_millis();
        query.extend((drain > 0).then(|| format!("drain={drain}ms")));
        match query.is_empty() {
            true => path,
            false => format!("{path}?{}", query.join("&")),
        }
    }

    /// Reads a path and a query.
    pub fn decode(path: &str, query: &str) -> Result<Self, BadQuestion> {
        let (mut uid, mut node, mut bound, mut drain) = (String::new(), None, None, Duration::ZERO);
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "uid" => uid = name(&value)?,
                "node" => node = Some(name(&value)?),
                "bound" => bound = Some(wait(&value)?),
                "drain" => drain = wait(&value)?,
                _ => {}
            }
        }
        let both = |namespace: &str, name: &str| -> Result<String, BadQuestion> {
            Ok(format!("{}/{}", part(namespace)?, part(name)?))
        };
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let subject = match parts[..] {
            ["gate", "v1", "pods", namespace, name] => Subject::Pod {
                pod: both(namespace, name)?,
                uid,
            },
            ["gate", "v1", "namespaces", namespace, "services", name] => Subject::Service {
                service: both(namespace, name)?,
                node,
            },
            _ => return Err(BadQuestion::Path),
        };
        Ok(Self {
            subject,
            bound,
            drain,
        })
    }
}

/// A part of a path.
fn part(text: &str) -> Result<String, BadQuestion> {
    name(&percent_decode_str(text).decode_utf8_lossy())
}

fn name(text: &str) -> Result<String, BadQuestion> {
    let good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_' | ':');
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(good) {
        return Err(BadQuestion::Name(text.to_owned()));
    }
    Ok(text.to_owned())
}

/// Reads `5s`, `500ms` or `2.5` (seconds).
fn wait(text: &str) -> Result<Duration, BadQuestion> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 0.001),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * unit);
    let fits = seconds.filter(|seconds| (0.0..=LONGEST_BOUND.as_secs_f64()).contains(seconds));
    let seconds = fits.ok_or_else(|| BadQuestion::Bound(text.to_owned()))?;
    // Whole milliseconds, as they are written.
    Ok(Duration::from_secs_f64((seconds * 1000.0).round() / 1000.0))
}

/// Why a gate opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// No programmer sends new connections to the pod any more.
    Everywhere,
    /// The bounded wait is over; somebody is behind.
    Bound,
    /// No Service sends traffic to the pod.
    NoEndpoints,
    /// No programmer reports a watermark.
    NoProgrammers,
    /// Nobody is deleting the pod, or any pod of the Service: there is nothing to wait for.
    NotDeleting,
}

impl Outcome {
    pub const ALL: [Self; 5] = [
        Self::Everywhere,
        Self::Bound,
        Self::NoEndpoints,
        Self::NoProgrammers,
        Self::NotDeleting,
    ];

    /// The word in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Everywhere => "everywhere",
            Self::Bound => "bound",
            Self::NoEndpoints => "no-endpoints",
            Self::NoProgrammers => "no-programmers",
            Self::NotDeleting => "not-deleting",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }
}

/// What comes of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub outcome: Outcome,
    pub waited: Duration,
    /// Nodes that were behind when the wait ended; not all of them if there are many.
    pub behind: Vec<String>,
    /// Whether no slice took the pod out of use by then.
    pub unmarked: bool,
}

/// Why bytes are no answer.
#[derive(Debug, Error)]
pub enum BadAnswer {
    #[error("not a gate's answer: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The gate is open, for a reason that is not known here: it may be newer.
    #[error("unknown outcome {0:?}")]
    UnknownOutcome(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAnswer {
    outcome: String,
    #[serde(default)]
    waited_seconds: f64,
    #[serde(default)]
    behind: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage: Option<String>,
}

/// The stage at which a pod waits whose endpoint no slice has taken out of use.
const UNMARKED: &str = "slice";

impl Answer {
    pub fn encode(&self) -> String {
        let raw = RawAnswer {
            outcome: self.outcome.as_str().to_owned(),
            waited_seconds: self.waited.as_secs_f64(),
            behind: self.behind.clone(),
            stage: self.unmarked.then(|| UNMARKED.to_owned()),
        };
        serde_json::to_string(&raw).expect("plain values always serialize")
    }

    pub fn decode(answer: &[u8]) -> Result<Self, BadAnswer> {
        let raw: RawAnswer = serde_json::from_slice(answer)?;
        let Some(outcome) = Outcome::parse(&raw.outcome) else {
            return Err(BadAnswer::UnknownOutcome(raw.outcome));
        };
        Ok(Self {
            outcome,
            waited: Duration::try_from_secs_f64(raw.waited_seconds).unwrap_or_default(),
            behind: raw.behind,
            unmarked: raw.stage.as_deref() == Some(UNMARKED),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subject() -> impl Strategy<Value = Subject> {
        let name = "[a-z0-9]([-.a-z0-9]{0,20}[a-z0-9])?";
        prop_oneof![
            (name, name, "([a-f0-9][-a-f0-9]{0,35})?").prop_map(|(namespace, name, uid)| Subject::Pod {
                pod: format!("{namespace}/{name}"),
                uid,
            }),
            (name, name, prop::option::of(name)).prop_map(|(namespace, name, node)| Subject::Service {
                service: format!("{namespace}/{name}"),
                node,
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_asked_is_what_is_read(
            subject in subject(),
            millis in prop::option::of(0u64..=60_000),
            drain in 0u64..=60_000,
        ) {
            let (bound, drain) = (millis.map(Duration::from_millis), Duration::from_millis(drain));
            let question = Question { subject, bound, drain };
            let target = question.encode();
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            prop_assert!(path.starts_with(PATH));
            prop_assert_eq!(Question::decode(path, query), Ok(question));
        }

        #[test]
        fn what_is_answered_is_what_is_read(
            outcome in prop::sample::select(Outcome::ALL.to_vec()),
            micros in 0u64..100_000_000,
            behind in prop::collection::vec(any::<String>(), 0..4),
            unmarked in any::<bool>(),
        ) {
            let waited = Duration::from_micros(micros);
            let answer = Answer { outcome, waited, behind, unmarked };
            prop_assert_eq!(Answer::decode(answer.encode().as_bytes()).unwrap(), answer);
        }

        #[test]
        fn any_request_is_a_question_or_refused(path in "(/gate/v1/)?[ -~é]{0,40}", query in "[ -~é%&=]{0,40}") {
            if let Ok(question) = Question::decode(&path, &query) {
                prop_assert!(question.bound.is_none_or(|bound| bound <= LONGEST_BOUND));
                prop_assert!(question.drain <= LONGEST_BOUND);
            }
        }

        #[test]
        fn any_bytes_are_an_answer_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Answer::decode(&bytes);
        }
    }

    #[test]
    fn both_forms_of_the_question_are_read() {
        let question = Question::decode("/gate/v1/pods/default/web-1", "uid=u-1&bound=2500ms").unwrap();
        let subject = Subject::Pod {
            pod: "default/web-1".into(),
            uid: "u-1".into(),
        };
        let bound = Some(Duration::from_millis(2500));
        let drain = Duration::ZERO;
        assert_eq!(
            question,
            Question {
                subject,
                bound,
                drain
            }
        );
        let question =
            Question::decode("/gate/v1/namespaces/default/services/web", "node=n1&drain=1s").unwrap();
        let subject = Subject::Service {
            service: "default/web".into(),
            node: Some("n1".into()),
        };
        let (bound, drain) = (None, Duration::from_secs(1));
        assert_eq!(
            question,
            Question {
                subject,
                bound,
                drain
            }
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (path, query) in [
            ("/gate/v1/pods/default", ""),
            ("/gate/v1/pods//x", ""),
            ("/gate/v1/pods/a/b%2Fc", ""),
            ("/gate/v1/pods/a/b", "bound=-1s"),
            ("/gate/v1/pods/a/b", "bound=1h"),
            ("/gate/v1/pods/a/b", "drain=61s"),
            ("/gate/v1/pods/a/b", "bound=61s"),
            ("/gate/v2/pods/a/b", ""),
        ] {
            assert!(Question::decode(path, query).is_err(), "{path}?{query}");
        }
    }

    #[test]
    fn an_answer_looks_as_documented_and_a_strange_outcome_is_told_apart() {
        let answer = Answer {
            outcome: Outcome::Bound,
            waited: Duration::from_millis(5012),
            behind: vec!["n2".into()],
            unmarked: false,
        };
        assert_eq!(
            answer.encode(),
            r#"{"outcome":"bound","waitedSeconds":5.012,"behind":["n2"]}"#
        );
        let newer = Answer::decode(br#"{"outcome":"because"}"#);
        assert!(matches!(newer, Err(BadAnswer::UnknownOutcome(_))));
        assert!(matches!(Answer::decode(b"hello"), Err(BadAnswer::Malformed(_))));
    }
}
