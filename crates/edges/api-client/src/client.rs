//! How is one request sent, and how is its answer read?

use crate::error::{ApiError, Status};
use crate::request_metrics::{Measured, RequestMetrics};
use crate::resource::{Resource, push_segment};
use crate::rights::Rights;
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a single request may take before it counts as lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection pool to one API server. Clones share it.
#[derive(Clone)]
pub struct Client {
    inner: kube::Client,
    timeout: Duration,
    rights: Rights,
    /// The server's address, as metrics name it.
    host: Arc<str>,
    measured: Option<Measured>,
}

/// A change of part of an object.
#[derive(Clone, Debug)]
pub enum Patch {
    /// RFC 7396.
    Merge(Vec<u8>),
    /// RFC 6902.
    Json(Vec<u8>),
    /// Kubernetes' own merge with list keys.
    Strategic(Vec<u8>),
}

/// How an object is deleted.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// Only the object with this uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    preconditions: Option<Preconditions>,
    /// Seconds between the request and the removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<u32>,
    /// What happens to dependents, if not what the server does by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    propagation_policy: Option<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
struct Preconditions {
    uid: String,
}

impl DeleteOptions {
    /// Deletes only the object with this uid, not a later one of the same name.
    pub fn of(uid: &str) -> Self {
        Self {
            preconditions: Some(Preconditions { uid: uid.to_owned() }),
            ..Self::default()
        }
    }

    /// Deletes what it owns first.
    pub fn in_foreground(self) -> Self {
        Self {
            propagation_policy: Some("Foreground"),
            ..self
        }
    }

    /// Deletes at once.
    pub fn without_grace(self) -> Self {
        Self {
            grace_period_seconds: Some(0),
            ..self
        }
    }
}

/// An answer that comes in pieces.
pub struct Download(Body);

impl Download {
    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        while let Some(frame) = self.0.frame().await {
            let frame = frame.map_err(|error| unreachable(&error))?;
            if let Ok(piece) = frame.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

impl Client {
    /// Sends through this kube client.
    pub fn new(inner: kube::Client) -> Self {
        Self {
            inner,
            timeout: REQUEST_TIMEOUT,
            rights: Rights::default(),
            host: Arc::default(),
            measured: None,
        }
    }

    /// The rights that requests of this client and its clones lack.
    pub fn rights(&self) -> Rights {
        self.rights.clone()
    }

    /// The same client, whose missing rights are kept with those of another.
    #[must_use]
    pub fn with_rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    pub(crate) fn at(self, host: &str) -> Self {
        Self {
            host: host.into(),
            ..self
        }
    }

    /// The same client, whose requests are measured.
    #[must_use]
    pub fn measured_by(mut self, metrics: RequestMetrics) -> Self {
        let host = Arc::clone(&self.host);
        self.measured = Some(Measured { metrics, host });
        self
    }

    /// Requests on one collection, in a namespace or over all.
    pub fn api(&self, resource: Resource, namespace: Option<&str>) -> Api {
        Api {
            client: self.clone(),
            path: resource.path(namespace),
        }
    }

    /// Reads any path.
    pub async fn get_path<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        decode(&self.request(Method::GET, path, None, Bytes::new()).await?)
    }

    /// Reads any path, piece by piece, however long it takes.
    pub async fn download(&self, path: &str) -> Result<Download, ApiError> {
        let answer = self.send(Method::GET, path, None, Bytes::new()).await?;
        Ok(Download(answer.into_body()))
    }

    /// Sends a request and reads the whole answer, within the time that one request may take.
    async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&'static str>,
        body: impl Into<Bytes>,
    ) -> Result<Bytes, ApiError> {
        let exchange = async {
            let verb = method.to_string();
            let response = self.send(method, path, content_type, body.into()).await?;
            let answer = read_all(response.into_body()).await?;
            if let Some(measured) = &self.measured {
                measured.read(&verb, answer.len());
            }
            Ok(answer)
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiError::Unreachable(format!(
                "nothing within {:?}",
                self.timeout
            ))),
        }
    }

    /// Sends a request; returns once the head of a successful answer is there.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let sent = body.len();
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(header::ACCEPT, "application/json");
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request
            .body(Body::from(body.to_vec()))
            .map_err(|error| ApiError::Unreadable(format!("{path} is no path: {error}")))?;
        let began = Instant::now();
        let response = self.inner.send(request).await;
        if let Some(measured) = &self.measured {
            let code = response.as_ref().ok().map(|response| response.status().as_u16());
            measured.answered(method.as_str(), code, began.elapsed(), sent);
        }
        let response = response.map_err(|error| unreachable(&error))?;
        if response.status().is_success() {
            self.rights.granted(&method, path);
            return Ok(response);
        }
        let code = response.status().as_u16();
        let body = read_all(response.into_body()).await?;
        let status = status(code, &body);
        self.rights.refused(&method, path, &status);
        Err(ApiError::from_status(status))
    }
}

/// Requests on one collection.
#[derive(Clone)]
pub struct Api {
    client: Client,
    path: String,
}

impl Api {
    /// Reads an object.
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, ApiError> {
        self.client.get_path(&self.object(name, None)).await
    }

    /// Creates an object; the answer is what the server made of it.
    pub async fn create<T: DeserializeOwned>(&self, body: impl Into<Bytes>) -> Result<T, ApiError> {
        self.write(Method::POST, &self.path, JSON, body).await
    }

    /// Creates a subresource, such as a pod's binding.
    pub async fn create_sub<T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, ApiError> {
        let path = self.object(name, Some(subresource));
        self.write(Method::POST, &path, JSON, body).await
    }

    /// Replaces an object.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        name: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, ApiError> {
        self.write(Method::PUT, &self.object(name, None), JSON, body)
            .await
    }

    /// Changes an object.
    pub async fn patch<T: DeserializeOwned>(&self, name: &str, patch: Patch) -> Result<T, ApiError> {
        self.patch_at(&self.object(name, None), patch).await
    }

    /// Changes an object's status.
    pub async fn patch_status<T: DeserializeOwned>(&self, name: &str, patch: Patch) -> Result<T, ApiError> {
        self.patch_at(&self.object(name, Some("status")), patch).await
    }

    /// Deletes an object.
    pub async fn delete(&self, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        let body = serde_json::to_vec(options).expect("plain values always serialize");
        let path = self.object(name, None);
        self.client
            .request(Method::DELETE, &path, Some(JSON), body)
            .await?;
        Ok(())
    }

    async fn patch_at<T: DeserializeOwned>(&self, path: &str, patch: Patch) -> Result<T, ApiError> {
        let (content_type, body) = match patch {
            Patch::Merge(body) => ("application/merge-patch+json", body),
            Patch::Json(body) => ("application/json-patch+json", body),
            Patch::Strategic(body) => ("application/strategic-merge-patch+json", body),
        };
        self.write(Method::PATCH, path, content_type, body).await
    }

    async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Result<T, ApiError> {
        decode(
            &self
                .client
                .request(method, path, Some(content_type), body)
                .await?,
        )
    }

    fn object(&self, name: &str, subresource: Option<&str>) -> String {
        let mut path = self.path.clone();
        push_segment(&mut path, name);
        if let Some(subresource) = subresource {
            push_segment(&mut path, subresource);
        }
        path
    }
}

const JSON: &str = "application/json";

async fn read_all(body: Body) -> Result<Bytes, ApiError> {
    match body.collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(unreachable(&error)),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Unreadable(error.to_string()))
}

/// What a failed answer says; proxies in between do not speak of statuses.
fn status(code: u16, body: &[u8]) -> Status {
    let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned(),
        ..Status::default()
    });
    status.code = code;
    status
}

/// The whole chain of an error in one line.
fn unreachable(error: &(dyn std::error::Error + 'static)) -> ApiError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    ApiError::Unreachable(text)
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        unreachable(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_no_status_keep_their_text_and_code() {
        let status = status(502, b"<html>bad gateway</html>");
        assert_eq!(status.code, 502);
        assert!(status.message.contains("bad gateway"));
        assert!(matches!(ApiError::from_status(status), ApiError::Busy(_)));
    }

    #[test]
    fn delete_options_say_only_what_is_asked() {
        let options = serde_json::to_string(&DeleteOptions::of("u").without_grace()).unwrap();
        assert_eq!(options, r#"{"preconditions":{"uid":"u"},"gracePeriodSeconds":0}"#);
        assert_eq!(serde_json::to_string(&DeleteOptions::default()).unwrap(), "{}");
    }
}
