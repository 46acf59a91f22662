//! Which rights do we lack?
//!
//! A role that is refused what it needs goes on with old knowledge, which nobody sees. So each missing right is said
//! once, loudly, and a role that lacks one is not ready.

use crate::error::Status;
use http::Method;
use pointsman_telemetry::{Encoder, Kind, Registry};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What nobody has been refused for this long is not needed any more: whatever needs a right tries again sooner.
const PATIENCE: Duration = Duration::from_secs(600);

/// What RBAC would have to allow, such as `patch pods/status`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    verb: &'static str,
    resource: String,
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.verb, self.resource)
    }
}

impl Right {
    /// The right that a request needs.
    fn of(method: &Method, path: &str) -> Self {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => ("", &[][..]),
        };
        let rest = match rest {
            ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
            rest => rest,
        };
        let (plural, named, sub) = match rest {
            // Not a resource: the path itself is what is allowed.
            [] => (path, true, ""),
            [plural] => (*plural, false, ""),
            [plural, _] => (*plural, true, ""),
            [plural, _, sub, ..] => (*plural, true, *sub),
        };
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if sub.is_empty() { "" } else { "/" };
        let watches = query
            .split('&')
            .any(|part| part == "watch=true" || part == "watch=1");
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ if watches => "watch",
            _ if named => "get",
            _ => "list",
        };
        Self {
            verb,
            resource: format!("{plural}{dot}{group}{slash}{sub}"),
        }
    }
}

/// The rights that the requests of one client lack. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Rights(Arc<Mutex<BTreeMap<Right, Instant>>>);

impl Rights {
    /// What was refused and has not been granted since.
    pub fn missing(&self) -> Vec<Right> {
        let missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = missing.iter().filter(|(_, at)| at.elapsed() < PATIENCE);
        recent.map(|(right, _)| right.clone()).collect()
    }

    /// Why a role that lacks rights is not ready; none if it lacks none.
    pub fn complaint(&self) -> Option<String> {
        let missing: Vec<String> = self.missing().iter().map(Right::to_string).collect();
        (!missing.is_empty()).then(|| format!("the API server refuses: {}", missing.join(", ")))
    }

    /// Shows how many are missing, as one of a role's metrics.
    pub fn register(&self, registry: &Registry) {
        let rights = self.clone();
        registry.collector(move |encoder: &mut Encoder| {
            let help = "Rights that the API server refuses to this role; its log and /readyz name them. Every role but the API server.";
            let mut family = encoder.family("pointsman_missing_rights", help, Kind::Gauge);
            family.sample(&[], rights.missing().len() as f64);
        });
    }

    /// A request was refused.
    pub(crate) fn refused(&self, method: &Method, path: &str, status: &Status) {
        if !status.is_missing_right() {
            return;
        }
        let right = Right::of(method, path);
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if missing.insert(right.clone(), Instant::now()).is_none() {
            tracing::error!(%right, said = status.message, "a right is missing; nothing that needs it works");
        }
    }

    /// A request succeeded.
    pub(crate) fn granted(&self, method: &Method, path: &str) {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if missing.is_empty() {
            return;
        }
        let right = Right::of(method, path);
        if missing.remove(&right).is_some() {
            tracing::info!(%right, "a right is no longer missing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_need_the_right_that_rbac_has_a_name_for() {
        for (method, path, right) in [
            (
                Method::GET,
                "/api/v1/pods?watch=true&resourceVersion=3",
                "watch pods",
            ),
            (Method::GET, "/api/v1/pods?limit=500", "list pods"),
            (Method::GET, "/api/v1/nodes/n1", "get nodes"),
            (Method::GET, "/api/v1/namespaces/default", "get namespaces"),
            (Method::POST, "/api/v1/namespaces/default/events", "create events"),
            (
                Method::PATCH,
                "/api/v1/namespaces/a/pods/p/status",
                "patch pods/status",
            ),
            (
                Method::DELETE,
                "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/s",
                "delete endpointslices.discovery.k8s.io",
            ),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/l",
                "update leases.coordination.k8s.io",
            ),
            (Method::GET, "/metrics", "get /metrics"),
        ] {
            assert_eq!(Right::of(&method, path).to_string(), right);
        }
    }

    #[test]
    fn a_right_is_missing_until_it_is_granted_and_other_refusals_are_not_its_lack() {
        let rights = Rights::default();
        let registry = Registry::new();
        rights.register(&registry);
        let shows = |count: &str| {
            let text = registry.render();
            let line = format!("\npointsman_missing_rights {count}\n");
            assert!(text.contains(&line), "{count}: {text}");
        };
        shows("0");
        let status = |message: &str| Status {
            code: 403,
            message: message.into(),
            ..Status::default()
        };
        let lacking = status(r#"pods is forbidden: User "x" cannot list resource "pods" in API group """#);
        rights.refused(&Method::GET, "/api/v1/pods", &lacking);
        rights.refused(&Method::GET, "/api/v1/pods", &lacking);
        let quota = status(r#"pods "p" is forbidden: exceeded quota: small"#);
        rights.refused(&Method::POST, "/api/v1/namespaces/a/pods", &quota);
        let gone = status(
            "pods \"p\" is forbidden: User \"system:node:n\" cannot get resource \"pods\" in API group \"\" in the namespace \
             \"a\": no relationship found between node \"n\" and this object",
        );
        rights.refused(&Method::GET, "/api/v1/namespaces/a/pods/p", &gone);
        assert_eq!(
            rights.complaint().as_deref(),
            Some("the API server refuses: list pods")
        );
        shows("1");
        rights.granted(&Method::GET, "/api/v1/pods?watch=true");
        assert!(rights.complaint().is_some(), "another right was granted");
        rights.granted(&Method::GET, "/api/v1/pods?limit=1");
        assert_eq!(rights.complaint(), None);
        shows("0");
    }
}
