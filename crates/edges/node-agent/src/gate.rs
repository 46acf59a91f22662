//! When has every node taken a pod out of its rules?
//!
//! The collector knows. A pod that has to end is asked about first. A gate that cannot be reached is asked
//! again, since a collector that just restarts is no reason to lose requests; the bound holds in any case.

use http::Uri;
use pointsman_http::{BadUrl, ClientError, Target};
use pointsman_protocol::gate::{Answer, BadAnswer, Outcome, Question, Subject};
use std::time::Duration;
use thiserror::Error;

/// How long the gate may take beyond the bound before it counts as unreachable.
const SLACK: Duration = Duration::from_secs(1);
/// Between two attempts to reach the gate.
const PAUSE: Duration = Duration::from_millis(100);

/// The most bytes of an answer that are worth reading.
const LONGEST: usize = 64 << 10;

/// Where to ask, and how long to wait at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The collector, such as `http://127.0.0.1:10270`.
    pub url: Uri,
    /// The longest wait.
    pub bound: Duration,
}

/// What came of the wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    pub outcome: WaitOutcome,
    pub waited: Duration,
    /// Nodes that were behind when the wait ended.
    pub behind: Vec<String>,
}

/// Why the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    Opened(Outcome),
    /// The gate opened for a reason that is not known here.
    Other,
    Unreachable,
}

impl WaitOutcome {
    /// The word in events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opened(outcome) => outcome.as_str(),
            Self::Other => "other",
            Self::Unreachable => "unreachable",
        }
    }
}

#[derive(Debug, Error)]
enum AskError {
    #[error(transparent)]
    Url(#[from] BadUrl),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Answer(#[from] BadAnswer),
}

impl Gate {
    /// Waits until a pod may be stopped; an empty uid means any pod of that name.
    pub async fn ask(&self, namespace: &str, name: &str, uid: &str) -> Waited {
        let began = tokio::time::Instant::now();
        let subject = Subject::Pod {
            pod: format!("{namespace}/{name}"),
            uid: uid.to_owned(),
        };
        let mut left = self.bound;
        let (outcome, behind) = loop {
            let error = match self.ask_once(&subject, left).await {
                Ok(answer) => break (WaitOutcome::Opened(answer.outcome), answer.behind),
                Err(AskError::Answer(BadAnswer::UnknownOutcome(_))) => {
                    break (WaitOutcome::Other, Vec::new());
                }
                Err(error) => error,
            };
            left = self.bound.saturating_sub(began.elapsed());
            if left.is_zero() {
                tracing::warn!(namespace, pod = name, %error, "cannot ask the shutdown gate");
                break (WaitOutcome::Unreachable, Vec::new());
            }
            tokio::time::sleep(PAUSE.min(left)).await;
        };
        Waited {
            outcome,
            waited: began.elapsed(),
            behind,
        }
    }

    async fn ask_once(&self, subject: &Subject, bound: Duration) -> Result<Answer, AskError> {
        let question = Question {
            subject: subject.clone(),
            bound: Some(bound),
            drain: Duration::ZERO,
        };
        let target = Target::parse(&self.url.to_string())?;
        let answer = target.get(&question.encode(), LONGEST, bound + SLACK).await?;
        Ok(Answer::decode(&answer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn gate_that_says(body: &'static str) -> (Gate, tokio::task::JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = gate_at(
            &listener.local_addr().unwrap().to_string(),
            Duration::from_secs(5),
        );
        (gate, serve_once(listener, body))
    }

    fn gate_at(address: &str, bound: Duration) -> Gate {
        let url = format!("http://{address}/").parse().unwrap();
        Gate { url, bound }
    }

    fn serve_once(listener: tokio::net::TcpListener, body: &'static str) -> tokio::task::JoinHandle<String> {
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        })
    }

    #[tokio::test]
    async fn what_the_gate_answers_counts() {
        let (gate, served) =
            gate_that_says(r#"{"outcome":"bound","waitedSeconds":0.1,"behind":["n2"]}"#).await;
        let answer = gate.ask("ns", "web-0", "u").await;
        assert_eq!(answer.outcome, WaitOutcome::Opened(Outcome::Bound));
        assert_eq!(answer.behind, ["n2"]);
        let request = served.await.unwrap();
        assert!(
            request.starts_with("GET /gate/v1/pods/ns/web%2D0?uid=u&bound=5000ms HTTP/1.1"),
            "{request}"
        );
    }

    #[tokio::test]
    async fn a_gate_that_is_not_there_or_talks_nonsense_is_open_at_the_bound() {
        let bound = Duration::from_millis(250);
        let answer = gate_at("127.0.0.1:1", bound).ask("ns", "p", "u").await;
        assert_eq!(answer.outcome, WaitOutcome::Unreachable);
        assert!(answer.waited >= bound, "{answer:?}");
        let (mut odd, _served) = gate_that_says("hello").await;
        odd.bound = bound;
        assert_eq!(odd.ask("ns", "p", "u").await.outcome, WaitOutcome::Unreachable);
    }

    #[tokio::test]
    async fn a_gate_that_comes_back_within_the_bound_counts() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The first connection meets a collector that dies, the next one its successor.
        let served = tokio::spawn(async move {
            drop(listener.accept().await.unwrap());
            serve_once(listener, r#"{"outcome":"everywhere"}"#).await.unwrap()
        });
        let gate = gate_at(&address.to_string(), Duration::from_secs(60));
        let waited = gate.ask("ns", "p", "u").await;
        assert_eq!(waited.outcome, WaitOutcome::Opened(Outcome::Everywhere));
        served.await.unwrap();
    }
}
