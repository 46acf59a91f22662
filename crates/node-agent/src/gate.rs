//! When has every node taken a pod out of its rules?
//!
//! The collector knows. A pod that has to end is asked about first; a gate that cannot be reached, or
//! that does not answer in time, holds nobody up.

use crate::fetch;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::time::Duration;

/// How long the gate may take beyond the bound before it counts as unreachable.
const SLACK: Duration = Duration::from_secs(1);

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
        let answer = match self.uri(namespace, name, uid) {
            Ok(uri) => fetch::get(&uri, &[], self.bound + SLACK).await,
            Err(error) => Err(error),
        };
        let read = answer.and_then(|(status, body)| {
            if !status.is_success() {
                return Err(format!("the gate answered {status}"));
            }
            serde_json::from_slice::<Body>(&body).map_err(|error| error.to_string())
        });
        let (outcome, behind) = match read {
            Ok(body) => (known(&body.outcome), body.behind),
            Err(error) => {
                tracing::warn!(namespace, pod = name, error, "the shutdown gate cannot be asked");
                ("unreachable", Vec::new())
            }
        };
        Answer {
            outcome,
            waited: began.elapsed(),
            behind,
        }
    }

    fn uri(&self, namespace: &str, name: &str, uid: &str) -> Result<Uri, String> {
        let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let base = self.url.to_string();
        let text = format!(
            "{}/gate/v1/pods/{}/{}?uid={}&bound={}ms",
            base.trim_end_matches('/'),
            escape(namespace),
            escape(name),
            escape(uid),
            self.bound.as_millis()
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
        let url = format!("http://{}/", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let bound = Duration::from_secs(5);
        (Gate { url, bound }, served)
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
    async fn a_gate_that_is_not_there_or_talks_nonsense_is_open() {
        let nobody = Gate {
            url: "http://127.0.0.1:1".parse().unwrap(),
            bound: Duration::from_millis(50),
        };
        assert_eq!(nobody.ask("ns", "p", "u").await.outcome, "unreachable");
        let (odd, _served) = gate_that_says("hello").await;
        assert_eq!(odd.ask("ns", "p", "u").await.outcome, "unreachable");
    }
}
