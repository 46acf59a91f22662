//! What can be asked over HTTP?

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use pointsman_sli::gate::LONGEST_BOUND;
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};

use crate::auth::Login;
use crate::gates::{For, Opened, Question};
use crate::http::{Body, reply, text};
use crate::owner::Request as Ask;
use crate::page;

/// What answers need.
#[derive(Clone)]
pub(crate) struct Site {
    pub registry: Registry,
    pub login: Login,
    pub requests: mpsc::Sender<Ask>,
    pub gate_bound: Duration,
    /// What the page shows, as it changes. Each open page subscribes, so that without one nothing is made.
    pub page: watch::Sender<Arc<str>>,
}

impl Site {
    /// Answers on the listener for people and for Prometheus.
    pub async fn everything(self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if matches!(path, "/healthz" | "/livez" | "/readyz") {
            return text(StatusCode::OK, "ok");
        }
        if !self.login.allows(request.headers()) {
            let mut response = text(StatusCode::UNAUTHORIZED, "log in first");
            let ask = HeaderValue::from_static("Basic realm=\"pointsman\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            return response;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        match path {
            "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, self.registry.render()),
            "/api/v1/state" => self.ask(Ask::State).await,
            "/perfdash.json" => self.ask(Ask::PerfDash).await,
            "/api/v1/events" => page::events(self.page.subscribe(), self.requests).await,
            _ if path.starts_with("/gate/") => self.gate(&request).await,
            _ => page::asset(path),
        }
    }

    /// A document that the owner makes.
    async fn ask(&self, question: impl FnOnce(oneshot::Sender<String>) -> Ask) -> Response<Body> {
        match page::ask(&self.requests, question).await {
            Some(body) => reply(StatusCode::OK, "application/json", body),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        }
    }

    /// Answers on the listener for nodes.
    pub async fn gate_only(self, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/healthz" | "/livez" | "/readyz" => text(StatusCode::OK, "ok"),
            path if path.starts_with("/gate/") => self.gate(&request).await,
            _ => text(StatusCode::NOT_FOUND, "not found"),
        }
    }

    async fn gate(&self, request: &Request<Incoming>) -> Response<Body> {
        let uri = request.uri();
        let (gate, bound) = match read_question(uri.path(), uri.query().unwrap_or("")) {
            Ok(question) => question,
            Err(why) => return text(StatusCode::BAD_REQUEST, &why),
        };
        let (reply, answer) = oneshot::channel();
        let bound = bound.unwrap_or(self.gate_bound);
        let question = Ask::Gate(Question { gate, bound, reply });
        let busy = || text(StatusCode::SERVICE_UNAVAILABLE, "too many gates are waiting");
        if self.requests.try_send(question).is_err() {
            return busy();
        }
        match answer.await {
            Ok(opened) => crate::http::reply(StatusCode::OK, "application/json", gate_answer(&opened)),
            Err(_) => busy(),
        }
    }
}

fn gate_answer(opened: &Opened) -> String {
    let mut answer = json!({
        "outcome": opened.outcome.as_str(),
        "waitedSeconds": opened.waited.as_secs_f64(),
        "behind": opened.behind,
    });
    if opened.unmarked {
        answer["stage"] = "slice".into();
    }
    answer.to_string()
}

/// Reads `/gate/v1/pods/NS/NAME?uid=U&bound=5s` and `/gate/v1/namespaces/NS/services/NAME?node=N`.
fn read_question(path: &str, query: &str) -> Result<(For, Option<Duration>), String> {
    let decode = |part: &str| {
        let part = percent_decode_str(part).decode_utf8_lossy().into_owned();
        let good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_' | ':');
        let fits = !part.is_empty() && part.len() <= 253 && part.chars().all(good);
        fits.then_some(part.clone())
            .ok_or(format!("{part:?} is not a name"))
    };
    let (mut uid, mut node, mut bound) = (String::new(), None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "uid" => uid = decode(&value)?,
            "node" => node = Some(decode(&value)?),
            "bound" => bound = Some(duration(&value)?),
            _ => {}
        }
    }
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let gate = match parts[..] {
        ["gate", "v1", "pods", namespace, name] => For::Pod {
            pod: format!("{}/{}", decode(namespace)?, decode(name)?),
            uid,
        },
        ["gate", "v1", "namespaces", namespace, "services", name] => For::Service {
            service: format!("{}/{}", decode(namespace)?, decode(name)?),
            node,
        },
        _ => {
            return Err(
                "ask /gate/v1/pods/NAMESPACE/NAME or /gate/v1/namespaces/NAMESPACE/services/NAME".into(),
            );
        }
    };
    Ok((gate, bound))
}

/// Reads `5s`, `500ms` or `2.5` (seconds).
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 0.001),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * unit);
    let fits = seconds.filter(|seconds| (0.0..=LONGEST_BOUND.as_secs_f64()).contains(seconds));
    let seconds = fits.ok_or_else(|| {
        format!(
            "{text:?} is not a wait between 0s and {}s",
            LONGEST_BOUND.as_secs()
        )
    })?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_sli::gate::Outcome;

    #[test]
    fn both_forms_of_the_question_are_read() {
        let (gate, bound) = read_question("/gate/v1/pods/default/web-1", "uid=u-1&bound=2500ms").unwrap();
        let pod = For::Pod {
            pod: "default/web-1".into(),
            uid: "u-1".into(),
        };
        assert_eq!((gate, bound), (pod, Some(Duration::from_millis(2500))));
        let (gate, bound) = read_question("/gate/v1/namespaces/default/services/web", "node=n1").unwrap();
        let service = For::Service {
            service: "default/web".into(),
            node: Some("n1".into()),
        };
        assert_eq!((gate, bound), (service, None));
    }

    #[test]
    fn nonsense_is_refused() {
        for (path, query) in [
            ("/gate/v1/pods/default", ""),
            ("/gate/v1/pods//x", ""),
            ("/gate/v1/pods/a/b%2Fc", ""),
            ("/gate/v1/pods/a/b", "bound=-1s"),
            ("/gate/v1/pods/a/b", "bound=1h"),
            ("/gate/v1/pods/a/b", "bound=61s"),
            ("/gate/v2/pods/a/b", ""),
        ] {
            assert!(read_question(path, query).is_err(), "{path}?{query}");
        }
    }

    #[test]
    fn the_answer_is_what_the_node_agent_reads() {
        let opened = Opened {
            outcome: Outcome::Bound,
            waited: Duration::from_millis(5012),
            behind: vec!["n2".into()],
            unmarked: false,
        };
        let answer: serde_json::Value = serde_json::from_str(&gate_answer(&opened)).unwrap();
        assert_eq!(
            answer,
            json!({"outcome": "bound", "waitedSeconds": 5.012, "behind": ["n2"]})
        );
    }
}
