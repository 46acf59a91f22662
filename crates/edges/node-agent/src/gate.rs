//! When has every node taken a pod out of its rules?
//!
//! The collector knows. A pod that has to end is asked about first. A gate that cannot be reached is asked
//! again, since a collector that just restarts is no reason to lose requests; the bound holds in any case.

use crate::fetch;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::time::Duration;

/// How long the gate may take beyond the bound before it counts as unreachable.
const SLACK: Duration = Duration::from_secs(1);
/// Between two attempts to reach the gate.
const PAUSE: Duration = Duration::from_millis(100);

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
pub(crate) struct Answer {
    /// `everywhere`, `bound`, `no-endpoints`, `no-programmers` or `unreachable`.
    pub(crate) outcome: &'static str,
    pub(crate) waited: Duration,
    /// Nodes that were behind when the wait ended.
    pub(crate) behind: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    outcome: String,
    #[serde(default)]
    behind: Vec<String>,
}

impl Gate {
    pub(crate) async fn ask(&self, namespace: &str, name: &str, uid: &str) -> Answer {
        let began = tokio::time::Instant::now();
        let mut left = self.bound;
        let (outcome, behind) = loop {
            let error = match self.ask_once(namespace, name, uid, left).await {
                Ok(body) => break (known(&body.outcome), body.behind),
                Err(error) => error,
            };
            left = self.bound.saturating_sub(began.elapsed());
            if left.is_zero() {
                tracing::warn!(namespace, pod = name, error, "the shutdown gate cannot be asked");
                break ("unreachable", Vec::new());
            }
            tokio::time::sleep(PAUSE.min(left)).await;
        };
        Answer {
            outcome,
            waited: began.elapsed(),
            behind,
        }
    }

    async fn ask_once(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        bound: Duration,
    ) -> Result<Body, String> {
        let uri = self.uri(namespace, name, uid, bound)?;
        let (status, body) = fetch::get(&uri, &[], bound + SLACK).await?;
        if !status.is_success() {
            return Err(format!("the gate answered {status}"));
        }
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }

    fn uri(&self, namespace: &str, name: &str, uid: &str, bound: Duration) -> Result<Uri, String> {
        let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let base = self.url.to_string();
        let text = format!(
            "{}/gate/v1/pods/{}/{}?uid={}&bound={}ms",
            base.trim_end_matches('/'),
            escape(namespace),
            escape(name),
            escape(uid),
            bound.as_millis()
        );
        text.parse().map_err(|error| format!("{text} is no URL: {error}"))
    }
}

fn known(outcome: &str) -> &'static str {
    match outcome {
        "everywhere" => "everywhere",
        "bound" => "bound",
        "no-endpoints" => "no-endpoints",
        "no-programmers" => "no-programmers",
        _ => "other",
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
    async fn the_gates_word_is_taken() {
        let (gate, served) =
            gate_that_says(r#"{"outcome":"bound","waitedSeconds":0.1,"behind":["n2"]}"#).await;
        let answer = gate.ask("ns", "web-0", "u").await;
        assert_eq!(answer.outcome, "bound");
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
        assert_eq!(answer.outcome, "unreachable");
        assert!(answer.waited >= bound, "{answer:?}");
        let (mut odd, _served) = gate_that_says("hello").await;
        odd.bound = bound;
        assert_eq!(odd.ask("ns", "p", "u").await.outcome, "unreachable");
    }

    #[tokio::test]
    async fn a_gate_that_comes_back_within_the_bound_is_heard() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The first connection meets a collector that dies, the next one its successor.
        let served = tokio::spawn(async move {
            drop(listener.accept().await.unwrap());
            serve_once(listener, r#"{"outcome":"everywhere"}"#).await.unwrap()
        });
        let gate = gate_at(&address.to_string(), Duration::from_secs(60));
        assert_eq!(gate.ask("ns", "p", "u").await.outcome, "everywhere");
        served.await.unwrap();
    }
}
